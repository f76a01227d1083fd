//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/geogate/geogate/testbench/apache"
)

type options struct {
	kafkas, works, only []string
	version             string
	geogate, before     string
	dir, json, profile  string
	svg                 string
	register, peer      string
	keep, markdown      bool
	heap                int

	seconds    time.Duration // of a load
	warm       time.Duration // of a load that is not measured, before it is
	raw        time.Duration // of the raw producer
	settle     time.Duration // before idleness is measured
	idle       time.Duration
	size       int           // bytes of a value
	events     int           // native events
	history    int           // records that are there before starts are measured
	partitions int           // of the idle region
	rate       int           // records each second of the load through kills
	every      time.Duration // between kills
	fences     time.Duration // between fences of the years, 0: none
	entities   int           // that the years write
	records    int64         // after which the years end, 0: when time is up
	window     time.Duration // of idempotency keys, 0: the default, with brokers that clean accordingly
	count      int           // of records of each load and connection; 0: as many as fit into the time
}

// wanted tells whether a work is to be done.
func (o options) wanted(work string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, work)
}

func list(into *[]string, name, value, usage string) {
	*into = strings.Split(value, ",")
	flag.Func(name, usage+" (default "+value+")", func(s string) error {
		*into = strings.Split(s, ",")
		return nil
	})
}

func main() {
	var o options
	list(&o.kafkas, "kafka", "embedded", "brokers: embedded, apache, or both with a comma")
	list(&o.works, "work", "write,fold,start,idle", "suites, also idle1000, kills, years and soak")
	flag.Func("only", "names of workloads, separated by semicolons; all others are left out", func(s string) error {
		o.only = strings.Split(s, ";")
		return nil
	})
	flag.StringVar(&o.version, "version", apache.Default, "version of Apache Kafka")
	flag.StringVar(&o.geogate, "geogate", "", "program to measure; empty: build it")
	flag.StringVar(&o.before, "before", "", "older program to measure in turn")
	flag.StringVar(&o.dir, "dir", "", "work directory; empty: a temporary one")
	flag.StringVar(&o.json, "json", "", "file for the figures")
	flag.StringVar(&o.svg, "svg", "", "file for the curves of the years and of the soak")
	flag.StringVar(&o.profile, "profile", "", "directory for CPU profiles of the gateway, with what cost most beside each")
	flag.StringVar(&o.register, "register", "quorum", "ownership register: quorum, solo or none; without the other region's gateway quorum is solo")
	flag.StringVar(&o.peer, "peer", "", "what runs of the other region: gateway, or broker (its Apache Kafka alone); empty: broker for write and fold, gateway for start and idle")
	flag.BoolVar(&o.keep, "keep", false, "keep the work directory")
	flag.BoolVar(&o.markdown, "markdown", false, "print the rows of docs/benchmarks.md in the end")
	flag.IntVar(&o.heap, "heap", 768, "MiB of heap of each Apache broker")
	flag.DurationVar(&o.seconds, "seconds", 15*time.Second, "duration of each load")
	flag.DurationVar(&o.warm, "warm", 15*time.Second, "duration of each load before it is measured")
	flag.DurationVar(&o.raw, "raw", 4*time.Second, "duration of the raw producer")
	flag.DurationVar(&o.settle, "settle", 60*time.Second, "rest before idleness is measured")
	flag.DurationVar(&o.idle, "idle", 10*time.Minute, "duration of the measurement of idleness; what rests writes every 10 minutes. An older program is measured for 2 minutes at most")
	flag.IntVar(&o.size, "size", 1000, "bytes of a value")
	flag.IntVar(&o.events, "events", 1_000_000, "native events to fold")
	flag.IntVar(&o.history, "history", 0, "records that are written and folded before starts are measured: half native events, half entities by streams")
	flag.IntVar(&o.rate, "rate", 10_000, "records each second of the loads through kills, over both regions")
	flag.DurationVar(&o.every, "every", 20*time.Second, "time between kills, and of the soak between kills and fences")
	flag.DurationVar(&o.fences, "fences", time.Minute, "time between fences of the other region, of the years; 0: none")
	flag.IntVar(&o.entities, "entities", 16384, "entities that the years write")
	flag.Int64Var(&o.records, "records", 0, "records after which the years end; 0: after -seconds")
	flag.IntVar(&o.partitions, "partitions", 25, "seats of the idle region")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := measure(ctx, o, &report{out: os.Stdout, file: o.json})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure runs the suites on each Kafka, with the older program before the newer one.
func measure(ctx context.Context, o options, rep *report) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "geogate-bench-"); err != nil {
			return err
		}
	}
	if !o.keep {
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
	}
	if o.geogate == "" {
		o.geogate = filepath.Join(o.dir, "geogate")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", o.geogate, "github.com/geogate/geogate/cmd/geogate")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build geogate (run from the repository's root, or name -geogate): %w: %s", err, out)
		}
	}
	for _, kafka := range o.kafkas {
		for _, work := range o.works {
			for _, p := range []struct{ label, path string }{{"before", o.before}, {"now", o.geogate}} {
				if p.path == "" {
					continue
				}
				if err := o.suite(ctx, rep, kafka, work, p.label, p.path); err != nil {
					return fmt.Errorf("%s on %s, program %s: %w", work, kafka, p.label, err)
				}
			}
		}
	}
	if o.markdown {
		rep.markdown()
	}
	return nil
}

func (o *options) check() error {
	for _, k := range o.kafkas {
		if k != "embedded" && k != "apache" {
			return fmt.Errorf("-kafka %q: want embedded or apache", k)
		}
	}
	for _, w := range o.works {
		if !slices.Contains([]string{"write", "fold", "start", "idle", "idle1000", "kills", "years", "soak"}, w) {
			return fmt.Errorf("-work %q: want write, fold, start, idle, idle1000, kills, years or soak", w)
		}
	}
	if !slices.Contains([]string{"quorum", "solo", "none"}, o.register) {
		return fmt.Errorf("-register %q: want quorum, solo or none", o.register)
	}
	if !slices.Contains([]string{"", "gateway", "broker"}, o.peer) {
		return fmt.Errorf("-peer %q: want gateway or broker", o.peer)
	}
	for _, p := range []*string{&o.dir, &o.geogate, &o.before, &o.profile, &o.svg} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// suite runs one suite in a world of its own.
func (o options) suite(ctx context.Context, rep *report, kafka, work, label, bin string) (err error) {
	dir := filepath.Join(o.dir, fmt.Sprintf("%s-%s-%s", label, kafka, work))
	switch work {
	case "write", "fold", "start", "kills", "years", "soak":
		o.partitions = partitions
	case "idle1000":
		o.partitions = 1000
	}
	if o.peer == "" && (work == "write" || work == "fold") {
		o.peer = "broker"
	}
	if work == "years" || work == "soak" {
		o.window = yearsWindow
	}
	w, err := begin(ctx, o, kafka, bin, dir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nus ends: %s\neu ends: %s", err, endOf(w.us.log), endOf(w.eu.log))
		}
		err = errors.Join(err, w.close())
		if !o.keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err != nil {
		return err
	}
	if label == "before" { // it writes every few seconds
		w.o.idle = min(w.o.idle, 2*time.Minute)
	}
	r := &run{w: w, rep: rep, f: figure{Program: label, Kafka: kafka}}
	switch work {
	case "write":
		return r.writes(ctx)
	case "fold":
		return r.folds(ctx)
	case "start":
		return r.starts(ctx)
	case "kills":
		return r.kills(ctx)
	case "years":
		return r.years(ctx)
	case "soak":
		return r.soak(ctx)
	default:
		return r.idle(ctx)
	}
}
