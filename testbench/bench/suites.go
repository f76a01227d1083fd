//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// run is one suite on one program and one Kafka.
type run struct {
	w   *world
	rep *report
	f   figure // what all figures of the run have in common
	raw float64
}

func (r *run) figure(work string) figure {
	f := r.f
	f.Work = work
	return f
}

// yardstick measures the raw producer and reports it.
func (r *run) yardstick(ctx context.Context) error {
	if r.w.o.warm > 0 {
		if _, err := r.w.raw(ctx, r.w.o.warm); err != nil {
			return fmt.Errorf("raw producer: %w", err)
		}
	}
	before := r.w.cost()
	rate, err := r.w.raw(ctx, r.w.o.raw)
	if err != nil {
		return fmt.Errorf("raw producer: %w", err)
	}
	c, n := r.w.cost().since(before), int64(rate*r.w.o.raw.Seconds())
	r.raw = rate
	f := r.figure("raw producer").per(n, time.Duration(float64(n)/rate*float64(time.Second)), c)
	f.PeerUS = 0
	return r.rep.add(f)
}

// writes is the suite of writes and of reads of entities.
func (r *run) writes(ctx context.Context) error {
	w := r.w
	if err := r.yardstick(ctx); err != nil {
		return err
	}
	many := func(s, i int) string { return fmt.Sprintf("key-%d-%d", s, i) }
	one := func(int, int) string { return "the-one-key" }
	lines := 4096
	if w.o.count > 0 {
		lines = w.o.count
	}
	for _, l := range []load{
		streamLoad("ndjson", lines, many), batchLoad("batch", many),
		streamLoad("ndjson, one key", lines, one), batchLoad("batch, one key", one),
	} {
		if !w.o.wanted(l.name) {
			continue
		}
		if err := r.load(ctx, l); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	for _, timed := range []struct {
		name string
		do   func(t *tally, until time.Time) ([]time.Duration, error)
	}{
		{"singles, 64 connections", func(t *tally, until time.Time) ([]time.Duration, error) {
			return w.singles(ctx, connections, t, until)
		}},
		{"single, alone", func(t *tally, until time.Time) ([]time.Duration, error) { return w.singles(ctx, 1, t, until) }},
		{entityReads, func(t *tally, until time.Time) ([]time.Duration, error) {
			return w.entities(ctx, connections, t, until, func(i int) string { return fmt.Sprintf("single-%d", i%connections) })
		}},
	} {
		if !w.o.wanted(timed.name) {
			continue
		}
		if err := r.timed(ctx, timed.name, timed.do); err != nil {
			return fmt.Errorf("%s: %w", timed.name, err)
		}
	}
	return r.stored(ctx)
}

// load runs one load and reports it: the rate until the last answer, the cost until
// everything has been folded and copied.
func (r *run) load(ctx context.Context, l load) error {
	w, f := r.w, r.figure(l.name)
	if err := r.warmUp(ctx, l.name, l.prepare(w)); err != nil {
		return err
	}
	do := l.prepare(w)
	if err := w.settled(ctx); err != nil {
		return err
	}
	var t tally
	m := watchMemory(w.us.pid())
	before, began := w.cost(), time.Now()
	profiled := w.profile(ctx, f, w.o.seconds)
	err := do(ctx, &t, began.Add(w.o.seconds))
	if errors.Is(err, errNotThere) {
		f.Note = "not there"
		m.most()
		return errors.Join(profiled(), r.rep.add(f))
	}
	if err == nil {
		err = w.settled(ctx)
	}
	c := w.cost().since(before)
	f = f.peaked(m.most())
	if err := errors.Join(err, profiled()); err != nil {
		return err
	}
	return r.counted(f, &t, began, c)
}

// warmUp runs a load without measuring it: the virtual machine of a broker that was
// started just now compiles what it runs, and takes half of the processors for it.
func (r *run) warmUp(ctx context.Context, name string, do func(ctx context.Context, t *tally, until time.Time) error) error {
	if r.w.o.warm == 0 {
		return nil
	}
	var t tally
	err := do(ctx, &t, time.Now().Add(r.w.o.warm))
	r.stores(name, t.ok.Load())
	if errors.Is(err, errNotThere) {
		return nil
	}
	return err
}

// stores counts what a workload has stored, for the check in the end.
func (r *run) stores(work string, n int64) {
	if work != entityReads {
		r.w.written += n
	}
}

// entityReads is the workload that stores nothing.
const entityReads = "entity reads, 64 connections"

// counted reports what was answered.
func (r *run) counted(f figure, t *tally, began time.Time, c cost) error {
	n := t.ok.Load()
	if n == 0 {
		return fmt.Errorf("nothing was answered with success: %s", text(t.problem.Load()))
	}
	f = f.per(n, time.Unix(0, t.last.Load()).Sub(began), c).beside(r.raw)
	if f.Refused = t.refused.Load(); f.Refused > 0 {
		fmt.Fprintln(r.rep.out, "  refused, for instance:", text(t.problem.Load()))
	}
	r.stores(f.Work, n)
	if f.Work == entityReads {
		f.Raw, f.RawRatio = 0, 0
	}
	return r.rep.add(f)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return (*s)[:min(len(*s), 300)]
}

// timed runs requests of which each is timed.
func (r *run) timed(ctx context.Context, name string, do func(t *tally, until time.Time) ([]time.Duration, error)) error {
	w, f := r.w, r.figure(name)
	err := r.warmUp(ctx, name, func(_ context.Context, t *tally, until time.Time) error {
		_, err := do(t, until)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.settled(ctx); err != nil {
		return err
	}
	if name == "single, alone" {
		n := 2000
		if w.o.count > 0 {
			n = w.o.count
		}
		raw, err := w.rawAlone(ctx, n)
		if err != nil {
			return err
		}
		f.RawP50, f.RawP99 = quantile(raw, .5), quantile(raw, .99)
	}
	var t tally
	before, began := w.cost(), time.Now()
	profiled := w.profile(ctx, f, w.o.seconds)
	took, err := do(&t, began.Add(w.o.seconds))
	if err == nil {
		err = w.settled(ctx)
	}
	c := w.cost().since(before)
	if err := errors.Join(err, profiled()); err != nil {
		return err
	}
	f.P50, f.P99 = quantile(took, .5), quantile(took, .99)
	return r.counted(f, &t, began, c)
}

// folds is the suite of the fold of native events, and of reading the merged topic.
func (r *run) folds(ctx context.Context) error {
	w, n := r.w, int64(r.w.o.events)
	if err := r.yardstick(ctx); err != nil {
		return err
	}
	if few := n / 4; w.o.warm > 0 {
		if err := w.produceNative(ctx, warmTopic, few); err != nil {
			return err
		}
		if _, err := w.fold(ctx, warmTopic, few); err != nil {
			return err
		}
	}
	if err := w.produceNative(ctx, nativeTopic, n); err != nil {
		return err
	}
	f := r.figure("fold of native events")
	m := watchMemory(w.us.pid())
	before, began := w.cost(), time.Now()
	profiled := w.profile(ctx, f, time.Duration(n/100_000+5)*time.Second)
	took, err := w.fold(ctx, nativeTopic, n)
	c := w.cost().since(before)
	f = f.peaked(m.most())
	if err := errors.Join(err, profiled()); err != nil {
		return err
	}
	f = f.per(n, took, c).beside(r.raw)
	if err := r.rep.add(f); err != nil {
		return err
	}
	fmt.Fprintf(r.rep.out, "  folded after %.1f s, the opening of the seats included\n", time.Since(began).Seconds())
	return r.read(ctx, n)
}

// read reads the merged topic as one followed stream.
func (r *run) read(ctx context.Context, n int64) error {
	w, f := r.w, r.figure("merged topic as NDJSON")
	settled := residentOf(w.us.pid())
	m := watchMemory(w.us.pid())
	before := w.cost()
	profiled := w.profile(ctx, f, time.Duration(n/200_000+2)*time.Second)
	took, err := w.readMerged(ctx, n)
	c := w.cost().since(before)
	peak := m.most()
	if err := errors.Join(err, profiled()); err != nil {
		return err
	}
	f = f.peaked(peak)
	f.GrewMiB = math.Max(0, mib(peak.anonymous-settled.anonymous))
	f = f.per(n, took, c)
	return r.rep.add(f)
}
