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
	"syscall"
	"time"

	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/data"
)

// wholeRun bounds everything: a hang is a failure with evidence, too.
const wholeRun = 10 * time.Minute

type options struct {
	kafka   string
	version string
	data    string
	geogate string
	dir     string
	keep    bool
	part    int
}

func main() {
	var o options
	flag.StringVar(&o.kafka, "kafka", "embedded", "broker of each region: embedded or apache")
	flag.StringVar(&o.version, "version", apache.Default, "version of Apache Kafka")
	flag.StringVar(&o.data, "data", os.Getenv("GEOGATE_DATA"), "directory of the whole data files; empty: the excerpts")
	flag.StringVar(&o.geogate, "geogate", "", "geogate binary; empty: build it")
	flag.StringVar(&o.dir, "dir", "", "work directory; empty: a temporary one")
	flag.BoolVar(&o.keep, "keep", false, "keep the work directory after success")
	flag.IntVar(&o.part, "part", 0, "1: regions that lose nothing, 2: fences and a border that hold; 0: both")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, wholeRun)
	code := run(ctx, o)
	cancel()
	os.Exit(code)
}

// run does the whole acceptance and returns the exit code.
func run(ctx context.Context, o options) int {
	dir, err := workDir(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "accept:", err)
		return 2
	}
	flights, github, full, err := data.Load(o.data)
	if err != nil {
		fmt.Fprintln(os.Stderr, "accept:", err)
		return 2
	}
	rep := &report{out: os.Stdout, start: time.Now()}
	what := "excerpt"
	if full {
		what = "full data"
	}
	rep.say("%d flights and %d webhooks (%s) on %s, work in %s", len(flights), len(github), what, brokerName(o), dir)

	err = accept(ctx, o, dir, rep, flights, github)
	if err != nil {
		rep.fail("the run completes", err.Error())
	}
	if rep.failed > 0 {
		fmt.Printf("accept: %d of %d checks FAILED (%s, %s); logs and data in %s\n", rep.failed, rep.n, what, brokerName(o), dir)
		return 1
	}
	if !o.keep {
		os.RemoveAll(dir)
	}
	fmt.Printf("accept: %d checks ok (%s, %s)\n", rep.n, what, brokerName(o))
	return 0
}

func brokerName(o options) string {
	if o.kafka == "apache" {
		return "apache kafka " + o.version
	}
	return o.kafka
}

func workDir(o options) (string, error) {
	if o.kafka != "embedded" && o.kafka != "apache" {
		return "", fmt.Errorf("-kafka %q: want embedded or apache", o.kafka)
	}
	if o.dir == "" {
		return os.MkdirTemp("", "geogate-accept-")
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return "", err
	}
	return filepath.Abs(o.dir)
}

// accept runs both parts, each in a world of its own.
func accept(ctx context.Context, o options, dir string, rep *report, flights, github []data.Line) error {
	bin := o.geogate
	if bin == "" {
		bin = filepath.Join(dir, "geogate")
		build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/geogate")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build geogate (run from the repository's root, or name -geogate): %w: %s", err, out)
		}
	} else {
		var err error
		if bin, err = filepath.Abs(bin); err != nil {
			return err
		}
	}
	if o.part != 2 {
		if err := firstPart(ctx, o, dir, bin, rep, flights, github); err != nil {
			return err
		}
	}
	if o.part != 1 {
		return secondPart(ctx, o, filepath.Join(dir, "authority"), bin, rep)
	}
	return nil
}

// firstPart starts the world, does the first part and its checks, and takes the world
// down whatever happens.
func firstPart(ctx context.Context, o options, dir, bin string, rep *report, flights, github []data.Line) (err error) {
	w, err := startWorld(ctx, o, dir, bin)
	if w != nil {
		defer func() { err = errors.Join(err, w.close()) }()
	}
	if err != nil {
		return err
	}
	rep.say("two regions answer")
	s := newLossless(w, rep, flights, github)
	if err := s.run(ctx); err != nil {
		return errors.Join(err, w.logTails())
	}
	if err := s.verify(ctx); err != nil {
		return errors.Join(err, w.logTails())
	}
	return s.stopGateways()
}

// secondPart does the same with three processes, fences, and a residency policy.
func secondPart(ctx context.Context, o options, dir, bin string, rep *report) (err error) {
	started := time.Now()
	w, err := startThreeSites(ctx, o, dir, bin)
	if w != nil {
		defer func() { err = errors.Join(err, w.close()) }()
	}
	if err != nil {
		return err
	}
	rep.say("two regions and a witness answer after %s", time.Since(started).Round(100*time.Millisecond))
	s := &fencing{
		notebook: notebook{rep: rep}, w: w, leak: newLeakTest(w),
		lost: make(map[string]*lostWrite), settled: make(map[string]*attempt),
	}
	if err := s.run(ctx); err != nil {
		return errors.Join(err, w.logTails())
	}
	rep.say("second part took %s", time.Since(started).Round(time.Second))
	return nil
}
