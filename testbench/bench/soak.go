//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
)

// flat is what the last quarter of a soak may hold more than the second: a part of it, and
// what comes and goes with cleaning and compaction, in MiB. What grows for as long as it runs
// does not stay within.
var flat = map[string]struct {
	part float64
	mib  float64
}{
	"store":            {0.25, 48}, // two memtables and what is not compacted yet
	"logs":             {0.5, 32},  // as the rate and the segments have it
	"state and merged": {0.25, 24},
	"internal":         {0.25, 24},
}

// soakMemory is how much memory a gateway may take at any time, in MiB. Its growth is not
// looked at, because each kill makes it begin again from nothing.
const soakMemory = 600

// soak is the suite that shows that it runs for years, in compressed time: a load of both
// regions through kills and fences, with retention and compaction behind it. In the end
// everything that was answered is looked for, and nothing may have grown.
func (r *run) soak(ctx context.Context) error {
	w := r.w
	for _, reg := range w.regions() {
		if err := reg.create(ctx, eventTopic, partitions); err != nil {
			return err
		}
	}
	if err := w.settledBoth(ctx); err != nil { // all topics are there
		return err
	}
	if err := w.ageQuickly(ctx, soakRetention); err != nil {
		return err
	}
	writers, every := w.writers()
	began := time.Now()
	until := began.Add(w.o.seconds)
	var stored atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	for _, wr := range writers {
		g.Go(func() error { return wr.run(gctx, every, until, &stored) })
	}
	var samples []sample
	var fences, kills atomic.Int64
	g.Go(func() error { return w.disturb(gctx, until, &kills, &fences) })
	g.Go(func() error {
		for sleep.For(gctx, yearsSample) == nil && time.Now().Before(until) {
			s, err := w.sample()
			if err != nil {
				return err
			}
			s.Seconds, s.Records, s.Fences = time.Since(began).Seconds(), stored.Load(), int(fences.Load())
			samples = append(samples, s)
		}
		return gctx.Err()
	})
	if err := g.Wait(); err != nil {
		return err
	}
	verdict, failed := flatness(samples)
	if len(samples) == 0 {
		return failed
	}
	if err := w.settledBoth(ctx); err != nil {
		return err
	}
	l, err := w.look(ctx, writers, true)
	if err != nil {
		return err
	}
	f := r.figure("soak")
	f.Records, f.Seconds = stored.Load(), w.o.seconds.Seconds()
	f.Rate, f.By, f.Samples = float64(f.Records)/f.Seconds, grown(append(samples, samples[len(samples)-1])), samples
	f.By["kills"], f.By["void copies"] = float64(kills.Load()), float64(l.void)
	if err := errors.Join(w.draw(samples), r.rep.add(f)); err != nil {
		return err
	}
	fmt.Fprintf(r.rep.out, "  %d records were stored in %.0f s through %d kills and %d fences; all that logs still have is valid once, and both regions show the last of each key; %s\n",
		f.Records, f.Seconds, kills.Load(), fences.Load(), verdict)
	return errors.Join(failed, w.clean())
}

// disturb kills the gateways in turn, and fences the region of one that is up, one after
// the other, so that a fenced region has always drained: what was answered counts.
func (w *world) disturb(ctx context.Context, until time.Time, kills, fences *atomic.Int64) error {
	for n := 0; ; n++ {
		if sleep.For(ctx, min(w.o.every, time.Until(until))) != nil || !time.Now().Add(w.o.every).Before(until) {
			return ctx.Err()
		}
		reg := w.regions()[n%2]
		if n%3 == 2 {
			if err := w.fenceOnce(ctx, w.eu); err != nil {
				return err
			}
			fences.Add(1)
			continue
		}
		reg.process.Kill()
		kills.Add(1)
		if err := w.up(ctx, reg); err != nil {
			return err
		}
	}
}

// flatness describes how the sizes have changed, and returns an error for what has grown.
func flatness(samples []sample) (string, error) {
	n := len(samples)
	if n < 8 {
		return "", fmt.Errorf("%d samples do not tell what grows; load for longer", n)
	}
	var all []string
	var errs []error
	for _, c := range curvesOf {
		second, last := mean(samples, c.of, n/4, n/2)/(1<<20), mean(samples, c.of, 3*n/4, n)/(1<<20)
		all = append(all, fmt.Sprintf("%s %.0f to %.0f MiB", c.name, second, last))
		if b, ok := flat[c.name]; ok && last > second*(1+b.part)+b.mib {
			errs = append(errs, fmt.Errorf("%s has grown from %.0f to %.0f MiB between the second and the last quarter; flat is up to %.0f", c.name, second, last, second*(1+b.part)+b.mib))
		}
	}
	for i := range samples {
		if m := mib(samples[i].Memory); m > soakMemory {
			errs = append(errs, fmt.Errorf("the gateway took %.0f MiB after %.0f s, at most %d are allowed", m, samples[i].Seconds, soakMemory))
			break
		}
	}
	return "from the second to the last quarter: " + strings.Join(all, ", "), errors.Join(errs...)
}

// clean returns an error if a gateway has met a defect.
func (w *world) clean() error {
	var errs []error
	for _, r := range w.regions() {
		log, err := os.ReadFile(r.log)
		if err == nil && strings.Contains(string(log), "the program has a defect") {
			err = fmt.Errorf("the gateway of %s has met a defect: %s", r.name, endOf(r.log))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
