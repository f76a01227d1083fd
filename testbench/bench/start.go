//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/client"
)

const (
	// pace is the distance between writes: 200 each second.
	pace = 5 * time.Millisecond
	// patience is how long a client asks again before the write counts as lost.
	patience = 2 * time.Minute
	retry    = 20 * time.Millisecond
)

// pacedTopics are written in turn: one that the gateway opens from the start, and some
// that it opens because they have a state topic.
var pacedTopics = []string{entityTopic, "orders-1", "orders-2", "orders-3", "orders-4"}

// waited is one write of a client that asks again until it is answered.
type waited struct {
	begun, done time.Time
	answer      client.Answer
	err         error
}

// paced writes 200 records each second, whatever becomes of them.
type paced struct {
	mu     sync.Mutex
	all    []waited
	stop   context.CancelFunc
	writes sync.WaitGroup
	ended  chan struct{}
}

func (w *world) pace(ctx context.Context) *paced {
	ticking, cancel := context.WithCancel(ctx)
	p := &paced{stop: cancel, ended: make(chan struct{})}
	c := w.us.client
	c.Retry = retry
	c.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}, Timeout: 30 * time.Second}
	rng, k := rand.New(rand.NewPCG(21, 21)), newKeys()
	val := value(rng, w.o.size)
	go func() {
		defer close(p.ended)
		every := time.NewTicker(pace)
		defer every.Stop()
		for n := 0; ; n++ {
			select {
			case <-ticking.Done():
				return
			case <-every.C:
			}
			wr := client.Write{Topic: pacedTopics[n%len(pacedTopics)], Key: fmt.Sprintf("paced-%d", n%5000), Value: val, Idem: fmt.Sprintf("paced-%x", k.next())}
			p.writes.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				x := waited{begun: time.Now()}
				x.answer, x.err = c.Store(ctx, wr)
				x.done = time.Now()
				p.mu.Lock()
				p.all = append(p.all, x)
				p.mu.Unlock()
			})
		}
	}()
	return p
}

// end stops the load and waits for its last answers.
func (p *paced) end() []waited {
	p.stop()
	<-p.ended
	p.writes.Wait()
	return p.all
}

// starts is the suite of stops and kills under load.
func (r *run) starts(ctx context.Context) error {
	if err := r.yardstick(ctx); err != nil {
		return err
	}
	if err := r.w.settled(ctx); err != nil {
		return err
	}
	for _, topic := range pacedTopics[1:] {
		if err := r.w.us.create(ctx, topic, partitions); err != nil {
			return err
		}
		err := client.Poll(ctx, retry, func() error { // the brokers tell each other of a topic a little later
			_, err := r.w.us.client.Store(ctx, client.Write{Topic: topic, Key: "first", Value: []byte(`1`)})
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := r.history(ctx, int64(r.w.o.history)); err != nil {
		return fmt.Errorf("write a history: %w", err)
	}
	for _, s := range []struct {
		name   string
		signal syscall.Signal
	}{{"TERM and start", syscall.SIGTERM}, {"kill -9 and start", syscall.SIGKILL}} {
		if !r.w.o.wanted(s.name) {
			continue
		}
		if err := r.restart(ctx, s.name, s.signal); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// history writes and folds records before anything is measured.
func (r *run) history(ctx context.Context, n int64) error {
	w := r.w
	if n == 0 {
		return nil
	}
	if err := w.produceNative(ctx, nativeTopic, n/2); err != nil {
		return err
	}
	if _, err := w.fold(ctx, nativeTopic, n/2); err != nil {
		return err
	}
	var t tally
	write := streamLoad("history", 4096, func(s, i int) string { return fmt.Sprintf("key-%d-%d", s, i) }).prepare(w)
	for t.ok.Load() < n/2 {
		if err := write(ctx, &t, time.Now().Add(10*time.Second)); err != nil {
			return err
		}
	}
	fmt.Fprintf(r.rep.out, "  %d native events and %d writes of entities are there\n", n/2, t.ok.Load())
	return w.settled(ctx)
}

// restart stops the gateway under load and starts it again at once.
func (r *run) restart(ctx context.Context, name string, signal syscall.Signal) error {
	w, f := r.w, r.figure(name)
	calm := w.o.seconds / 3
	p := w.pace(ctx)
	defer p.stop()
	if err := sleep.For(ctx, calm); err != nil {
		return err
	}
	stopped := time.Now()
	if err := w.us.process.Signal(signal); err != nil {
		return err
	}
	leader := w.leader(ctx, stopped)
	select {
	case <-w.us.process.Done():
	case <-time.After(stopWait):
		return errors.New("the gateway does not stop")
	}
	gone, started := time.Since(stopped), time.Now()
	if err := w.up(ctx, w.us); err != nil {
		return err
	}
	ready := time.Now()
	f.Ready = ready.Sub(started).Seconds()
	if err := sleep.For(ctx, calm); err != nil {
		return err
	}
	all := p.end()
	ruled := <-leader
	for _, x := range all { // what was answered after the start needed a leader
		if x.err == nil && x.done.After(started) && x.done.Before(ruled) {
			ruled = x.done
		}
	}
	var lost error
	for _, x := range all {
		if x.err != nil {
			lost = fmt.Errorf("a write of %s has no answer: %w", x.begun.Format(time.TimeOnly), x.err)
			continue
		}
		f.Records++
		f.Longest = max(f.Longest, x.done.Sub(x.begun).Seconds())
		from := x.begun
		if ruled.After(from) {
			from = ruled
		}
		f.AfterLeader = max(f.AfterLeader, x.done.Sub(from).Seconds())
	}
	if !ruled.IsZero() {
		f.LeaderAfter = ruled.Sub(stopped).Seconds()
	}
	f.By = map[string]float64{
		"seconds from the signal to the end of the process":                               gone.Seconds(),
		"seconds to ready from the start, or from the register's leader if that is later": ready.Sub(latest(started, ruled)).Seconds(),
	}
	if lost != nil {
		return lost
	}
	if err := w.once(ctx, all); err != nil {
		return err
	}
	return r.rep.add(f)
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// leader tells when eu had stored something in the register again after us stopped,
// which it tries every few seconds, the zero time if there is no register of several servers.
func (w *world) leader(ctx context.Context, stopped time.Time) <-chan time.Time {
	out := make(chan time.Time, 1)
	if w.witness == nil {
		out <- time.Time{}
		return out
	}
	go func() {
		var at time.Time
		_ = client.Poll(ctx, 50*time.Millisecond, func() error {
			gap, err := w.eu.metric(ctx, "geogate_ownership_register_write_gap_seconds", "")
			if err != nil {
				return err
			}
			at = time.Now().Add(-time.Duration(gap * float64(time.Second)))
			if !at.After(stopped) {
				return errors.New("nothing was stored since")
			}
			return nil
		})
		out <- at
	}()
	return out
}

// once checks that each answered write is in the log where its answer says, and that
// no two answers name one place.
func (w *world) once(ctx context.Context, all []waited) error {
	type place struct {
		topic     string
		partition int32
		offset    int64
	}
	want := map[place]bool{}
	for _, x := range all {
		at := place{x.answer.Topic, x.answer.Partition, x.answer.Offset}
		if want[at] {
			return fmt.Errorf("two writes are answered with %s", x.answer.Dot)
		}
		want[at] = true
	}
	for _, topic := range pacedTopics {
		if err := w.us.each(ctx, topic, func(rec *kgo.Record) { delete(want, place{topic, rec.Partition, rec.Offset}) }); err != nil {
			return err
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("%d answered writes are not in the log", len(want))
	}
	return nil
}
