//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/sleep"
)

// Time is compressed: what takes days in operation takes minutes here.
const (
	yearsWindow    = time.Minute // of idempotency keys
	yearsRetention = 3 * yearsWindow
	yearsSegment   = 20 * time.Second
	yearsSample    = 2 * time.Second
	// soakRetention is as short as the window allows.
	soakRetention = yearsWindow
	// yearsCleaning is how often brokers look for segments to delete and to compact.
	yearsCleaning = 5 * time.Second
)

// yearsBroker are the settings of brokers that clean as often as the compressed time needs.
func yearsBroker() map[string]string {
	often := millis(yearsCleaning)
	small := strconv.Itoa(1 << 20) // of the broker's own topics, which are cleaned segment by segment
	return map[string]string{
		"log.retention.check.interval.ms": often, "log.cleaner.backoff.ms": often, "log.initial.task.delay.ms": often,
		"transaction.state.log.segment.bytes": small, "offsets.topic.segment.bytes": small,
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// sample is what a region holds at one time.
type sample struct {
	Seconds float64 `json:"seconds"`
	Records int64   `json:"records"` // answered so far
	Store   int64   `json:"store_bytes"`
	Memory  int64   `json:"resident_bytes"` // without pages of files
	// Log files of the region's Kafka: of topics with records as they were written, of state and
	// merged topics, and of geogate's others.
	Logs     int64 `json:"log_bytes"`
	Derived  int64 `json:"derived_bytes"`
	Internal int64 `json:"internal_bytes"`
	Fences   int   `json:"fences"`
}

// years writes for long, with a short idempotency window, short retention, compaction and
// fences, and follows what grows.
func (r *run) years(ctx context.Context) error {
	w := r.w
	if err := w.settled(ctx); err != nil {
		return err
	}
	if err := w.ageQuickly(ctx, yearsRetention); err != nil {
		return err
	}
	do := streamLoad("years", max(1, w.o.entities/streams), func(s, i int) string { return fmt.Sprintf("entity-%d-%d", s, i) }).prepare(w)
	var t tally
	began := time.Now()
	until := began.Add(w.o.seconds)
	load, stop := context.WithCancel(ctx)
	defer stop()
	profiled := w.profile(ctx, r.figure("years"), min(w.o.seconds, time.Minute))
	loaded := make(chan error, 1)
	go func() { loaded <- do(load, &t, until) }()
	samples, fences, nextFence := []sample{}, 0, began.Add(w.o.fences)
	take := func() error {
		s, err := w.sample()
		s.Seconds, s.Records, s.Fences = time.Since(began).Seconds(), t.ok.Load(), fences
		samples = append(samples, s)
		return err
	}
	var failed error
	enough := func() bool { return w.o.records > 0 && t.ok.Load() >= w.o.records }
	for failed == nil && time.Now().Before(until) && !enough() {
		if w.o.fences > 0 && time.Now().After(nextFence) {
			if failed = w.fenceOnce(ctx, w.eu); failed == nil {
				fences++
			}
			nextFence = time.Now().Add(w.o.fences)
		}
		failed = errors.Join(failed, take(), sleep.For(ctx, min(yearsSample, max(time.Until(until), 0))))
	}
	if failed != nil {
		stop()
		return errors.Join(failed, <-loaded)
	}
	took := time.Since(began)
	stopped := enough()
	if stopped {
		stop()
	}
	if err := <-loaded; err != nil && !stopped { // streams that are stopped end in the middle of their lines
		return err
	}
	if err := profiled(); err != nil {
		return err
	}
	if err := w.settled(ctx); err != nil {
		return err
	}
	// What is left when the window has passed and the brokers have cleaned is what lives.
	if err := sleep.For(ctx, w.o.settle); err != nil {
		return err
	}
	if err := take(); err != nil {
		return err
	}
	f := r.figure("years")
	f.Records, f.Seconds = t.ok.Load(), took.Seconds()
	f.Rate = float64(f.Records) / f.Seconds
	f.By = grown(samples)
	f.Samples = samples
	if err := w.draw(samples); err != nil {
		return err
	}
	return r.rep.add(f)
}

// draw writes the curves into the file that was asked for.
func (w *world) draw(samples []sample) error {
	if w.o.svg == "" {
		return nil
	}
	return os.WriteFile(w.o.svg, curves(samples), 0o644)
}

// grown compares the last quarter of the load with the second: what is flat has not grown.
func grown(samples []sample) map[string]float64 {
	n := len(samples) - 1 // the last is after the load
	if n < 4 {
		return nil
	}
	last := &samples[n]
	records := func(s *sample) int64 { return s.Records }
	between := max(mean(samples, records, 3*n/4, n)-mean(samples, records, n/4, n/2), 1)
	out := map[string]float64{"fences": float64(last.Fences)}
	for _, c := range curvesOf {
		out[c.name+": bytes a record of growth"] = (mean(samples, c.of, 3*n/4, n) - mean(samples, c.of, n/4, n/2)) / between
		out[c.name+": MiB in the end"] = mib(c.of(last))
	}
	return out
}

// mean is that of some samples.
func mean(samples []sample, of func(*sample) int64, from, to int) (m float64) {
	for i := from; i < to; i++ {
		m += float64(of(&samples[i])) / float64(to-from)
	}
	return m
}

// ageQuickly gives the topics of both Kafkas the settings of compressed time.
func (w *world) ageQuickly(ctx context.Context, retention time.Duration) error {
	for _, r := range w.regions() {
		if r.broker == nil {
			continue // an embedded Kafka cleans when it starts
		}
		c, err := r.kafka()
		if err != nil {
			return err
		}
		admin := kadm.NewClient(c)
		err = func() error {
			topics, err := admin.ListTopics(ctx)
			if err != nil {
				return err
			}
			set := func(of map[string]string, names ...string) error {
				var alter []kadm.AlterConfig
				for k, v := range of {
					alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
				}
				out, err := admin.AlterTopicConfigs(ctx, alter, names...)
				for _, x := range out {
					err = errors.Join(err, x.Err)
				}
				return err
			}
			var origins, compacted []string
			for _, name := range topics.Names() {
				switch {
				case name == entityTopic || strings.HasSuffix(name, "."+entityTopic) && !strings.HasPrefix(name, "_geogate"),
					name == eventTopic || strings.HasSuffix(name, "."+eventTopic) && !strings.HasPrefix(name, "_geogate"), name == eventTopic+".merged":
					origins = append(origins, name)
				case strings.HasPrefix(name, "_geogate.") || strings.HasSuffix(name, ".merged"):
					compacted = append(compacted, name)
				}
			}
			return errors.Join(
				set(map[string]string{"cleanup.policy": "delete", "retention.ms": millis(retention), "segment.ms": millis(yearsSegment)}, origins...),
				set(map[string]string{"segment.ms": millis(yearsSegment), "max.compaction.lag.ms": millis(2 * yearsSegment), "delete.retention.ms": millis(2 * yearsSegment)}, compacted...))
		}()
		c.Close()
		if err != nil {
			return fmt.Errorf("settings of topics of %s: %w", r.name, err)
		}
	}
	return nil
}

// fenceOnce fences a region for everything it owns, and gives it back.
func (w *world) fenceOnce(ctx context.Context, r *region) error {
	for _, args := range [][]string{{"fence", "--region", r.name, "--reason", "measured"}, {"unfence", "--region", r.name}} {
		until := time.Now().Add(2 * time.Minute)
		for {
			cmd := exec.CommandContext(ctx, w.bin, append(args, "--gateway", "http://"+w.us.management)...)
			out, err := cmd.CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(until) || ctx.Err() != nil {
				return fmt.Errorf("geogate %s: %w: %s", strings.Join(args, " "), err, out)
			}
			if err := sleep.For(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// sample looks at what us holds now.
func (w *world) sample() (s sample, err error) {
	s.Memory = residentOf(w.us.pid()).anonymous
	if s.Store, err = bytesUnder(filepath.Join(w.dir, w.us.name, "store")); err != nil {
		return s, err
	}
	files, err := sizesOf(w.kafkaDir(w.us))
	for path, size := range files {
		topic := filepath.Base(filepath.Dir(path))
		switch {
		case strings.HasPrefix(topic, "_geogate.state.") || strings.Contains(topic, ".merged-"):
			s.Derived += size
		case strings.HasPrefix(topic, "_geogate.") || strings.HasPrefix(topic, "__"):
			s.Internal += size
		default:
			s.Logs += size
		}
	}
	return s, err
}

// bytesUnder is what the files of a directory take. The store makes logs larger beforehand
// than what is in them, with holes that take no blocks.
func bytesUnder(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		}
		n += blocksOf(path)
		return nil
	})
	return n, err
}

// curvesOf are what is followed.
var curvesOf = []struct {
	name string
	of   func(*sample) int64
}{
	{"store", func(s *sample) int64 { return s.Store }},
	{"memory", func(s *sample) int64 { return s.Memory }},
	{"logs", func(s *sample) int64 { return s.Logs }},
	{"state and merged", func(s *sample) int64 { return s.Derived }},
	{"internal", func(s *sample) int64 { return s.Internal }},
}

// curves draws what is followed over the records written, a panel each, as SVG.
func curves(samples []sample) []byte {
	const width, height, left, gap = 640, 90, 150, 26
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		left+width+20, len(curvesOf)*(height+gap)+gap)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	end := samples[len(samples)-1].Seconds
	for i, c := range curvesOf {
		top := i*(height+gap) + 10
		most := slices.MaxFunc(samples, func(x, y sample) int { return int(c.of(&x) - c.of(&y)) })
		scale := float64(max(c.of(&most), 1))
		fmt.Fprintf(&b, `<text x="4" y="%d">%s</text><text x="4" y="%d" fill="#666">%.0f MiB at most</text>`+"\n", top+14, c.name, top+30, mib(c.of(&most)))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#ccc"/><polyline fill="none" stroke="#1565c0" stroke-width="1.5" points="`,
			left, top, width, height)
		for j := range samples {
			s := &samples[j]
			fmt.Fprintf(&b, "%.1f,%.1f ", left+width*s.Seconds/max(end, 1), float64(top)+height*(1-float64(c.of(s))/scale))
		}
		b.WriteString(`"/>` + "\n")
	}
	last := &samples[len(samples)-1]
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#666">%.0f s, %d records, %d fences</text>`+"\n</svg>\n",
		left, len(curvesOf)*(height+gap)+16, end, last.Records, last.Fences)
	return []byte(b.String())
}
