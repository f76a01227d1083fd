//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	streams     = 4
	connections = 64
	batchSize   = 500
	// streamBytes ends a stream before it reaches the gateway's max_body.
	streamBytes = 24 << 20
)

// tally is what a load was answered.
type tally struct {
	ok, refused atomic.Int64
	last        atomic.Int64 // time of the latest success, UnixNano
	problem     atomic.Pointer[string]
}

func (t *tally) stored(n int) {
	t.ok.Add(int64(n))
	t.last.Store(time.Now().UnixNano())
}

func (t *tally) refuse(n int, why string) {
	t.refused.Add(int64(n))
	t.problem.CompareAndSwap(nil, &why)
}

// keys gives idempotency keys that no other run of the program uses.
type keys struct{ n atomic.Uint64 }

func newKeys() *keys {
	k := &keys{}
	k.n.Store(uint64(time.Now().UnixNano()))
	return k
}

func (k *keys) next() uint64 { return k.n.Add(1) }

// load is one way to write for a while. Its bodies are made before its time begins.
type load struct {
	name    string
	prepare func(w *world) func(ctx context.Context, t *tally, until time.Time) error
}

// streamLoad writes NDJSON over four connections.
func streamLoad(name string, lines int, keyOf func(s, i int) string) load {
	return load{name, func(w *world) func(context.Context, *tally, time.Time) error {
		made := make([]*stream, streams)
		for s := range made {
			made[s] = newStream(rand.New(rand.NewPCG(11, uint64(s))), lines, w.o.size, func(i int) string { return keyOf(s, i) })
		}
		return func(ctx context.Context, t *tally, until time.Time) error {
			return together(streams, func(s int) error {
				for n := 0; n == 0 || time.Now().Before(until) && w.o.count == 0; n++ {
					if err := w.stream(ctx, made[s], t, until, fmt.Sprintf("%s-%d-%d-%d", name, s, n, time.Now().UnixNano())); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}}
}

// batchLoad writes JSON batches over four connections.
func batchLoad(name string, keyOf func(s, i int) string) load {
	return load{name, func(w *world) func(context.Context, *tally, time.Time) error {
		size := batchSize
		if w.o.count > 0 {
			size = w.o.count
		}
		made, k := make([]*request, streams), newKeys()
		for s := range made {
			made[s] = batch(rand.New(rand.NewPCG(12, uint64(s))), entityTopic, size, w.o.size, func(i int) string { return keyOf(s, i) })
		}
		return func(ctx context.Context, t *tally, until time.Time) error {
			return together(streams, func(s int) error { return w.repeat(ctx, made[s], k, t, until, nil) })
		}
	}}
}

func together(n int, do func(i int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// stream sends one NDJSON stream until it is long enough or time is up, and counts its
// answers.
func (w *world) stream(ctx context.Context, s *stream, t *tally, until time.Time, key string) error {
	c, done, err := dial(ctx, w.us.data)
	if err != nil {
		return err
	}
	defer done()
	if _, err := fmt.Fprintf(c, "POST /v1/topics/%s/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"+
		"Idempotency-Key: \"%s\"\r\nTransfer-Encoding: chunked\r\n\r\n", entityTopic, key); err != nil {
		return err
	}
	sent, failed := make(chan int, 1), make(chan error, 1)
	go func() {
		lines, size := 0, 0
		for i := 0; size < streamBytes && time.Now().Before(until); i = (i + 1) % len(s.chunks) {
			if w.o.count > 0 && lines >= w.o.count {
				break
			}
			if _, err := c.Write(s.chunks[i]); err != nil {
				failed <- err
				sent <- lines
				return
			}
			lines, size = lines+s.lines[i], size+s.bytes[i]
		}
		_, err := io.WriteString(c, "0\r\n\r\n")
		failed <- err
		sent <- lines
	}()
	answered, err := c.lines(t)
	if err != nil {
		done()
	}
	if sendErr := <-failed; err == nil {
		err = sendErr
	}
	if lines := <-sent; err == nil && lines != answered {
		err = fmt.Errorf("%d lines were sent and %d answered", lines, answered)
	}
	return err
}

// lines counts the answers of a stream.
func (c *conn) lines(t *tally) (n int, err error) {
	b, err := c.success()
	if err != nil {
		return 0, fmt.Errorf("write a stream: %w", err)
	}
	r := bufio.NewReaderSize(b, 64<<10)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("read the answers of a stream: %w", err)
		}
		n++
		if bytes.HasPrefix(line, []byte(`{"index"`)) && bytes.Contains(line, []byte(`"problem"`)) {
			t.refuse(1, string(line))
			continue
		}
		t.stored(1)
	}
}

// errNotThere is returned for what the measured program does not have.
var errNotThere = errors.New("the program does not have it")

// repeat sends a request with new keys again and again over one connection. What is
// refused is sent again.
func (w *world) repeat(ctx context.Context, r *request, k *keys, t *tally, until time.Time, took *[]time.Duration) error {
	c, done, err := dial(ctx, w.us.data)
	if err != nil {
		return err
	}
	defer done()
	for n := 0; time.Now().Before(until) && (w.o.count == 0 || n < w.o.count/r.records); n++ {
		text := r.next(k.next)
		at := time.Now()
		for {
			if _, err := c.Write(text); err != nil {
				return err
			}
			status, problem, err := c.answer()
			if err != nil {
				return err
			}
			switch {
			case status == 200:
				t.stored(r.records)
			case status == 400 && r.records > 1:
				return fmt.Errorf("%w: %s", errNotThere, problem)
			case (status == 429 || status == 503 || status == 207) && time.Since(at) < time.Minute:
				t.refuse(1, problem)
				time.Sleep(5 * time.Millisecond)
				continue
			default:
				return fmt.Errorf("a write is answered %d: %s", status, problem)
			}
			break
		}
		if took != nil {
			*took = append(*took, time.Since(at))
		}
	}
	return nil
}

// singles writes one record a request over n connections, and returns how long each took.
func (w *world) singles(ctx context.Context, n int, t *tally, until time.Time) ([]time.Duration, error) {
	k, took := newKeys(), make([][]time.Duration, n)
	err := together(n, func(i int) error {
		rng := rand.New(rand.NewPCG(13, uint64(i)))
		return w.repeat(ctx, single(entityTopic, fmt.Sprintf("single-%d", i), value(rng, w.o.size)), k, t, until, &took[i])
	})
	return slices.Concat(took...), err
}

// entities reads entities over n connections.
func (w *world) entities(ctx context.Context, n int, t *tally, until time.Time, keyOf func(i int) string) ([]time.Duration, error) {
	took := make([][]time.Duration, n)
	err := together(n, func(i int) error {
		c, done, err := dial(ctx, w.us.data)
		if err != nil {
			return err
		}
		defer done()
		rng := rand.New(rand.NewPCG(14, uint64(i)))
		var asks [][]byte
		for range 256 {
			asks = append(asks, lookup(entityTopic, keyOf(rng.IntN(1<<20))))
		}
		for m := 0; time.Now().Before(until) && (w.o.count == 0 || m < w.o.count); m++ {
			at := time.Now()
			if _, err := c.Write(asks[m%len(asks)]); err != nil {
				return err
			}
			status, problem, err := c.answer()
			if err != nil {
				return err
			}
			if status != 200 {
				return fmt.Errorf("the read of an entity is answered %d: %s", status, problem)
			}
			t.stored(1)
			took[i] = append(took[i], time.Since(at))
		}
		return nil
	})
	return slices.Concat(took...), err
}
