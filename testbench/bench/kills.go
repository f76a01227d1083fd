//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/client"
)

const (
	// writersPerRegion is how many clients write to each region, half of them NDJSON
	// streams and half JSON batches, half of them entities and half events.
	writersPerRegion = 4
	// writerKeys is how many record keys a writer has; nobody else writes under them.
	writerKeys = 50
	// perRequest is how many records a writer sends in one request. The next request is
	// sent when every record of the one before is stored.
	perRequest = 200
	// requestPatience is how long a request is sent again before the run has failed.
	requestPatience = 2 * time.Minute

	eventTopic = "ledger" // not declared: events
)

// stored is where an answer says that a record lies.
type stored struct {
	partition int32
	offset    int64
}

// writer is a careful client: it sends a request again, with the same idempotency keys and
// in the same order, until all of it is stored.
type writer struct {
	id     int
	region *region
	topic  string
	ndjson bool
	value  []byte
	acked  []stored // by number of the record
	again  int      // requests that were sent more than once
}

// keyOf is the record key of the writer's record n: the numbers of a key rise.
func (wr *writer) keyOf(n int) string { return fmt.Sprintf("w%d-%d", wr.id, n%writerKeys) }

// body is a request's, from record n on: lines, or one JSON document.
func (wr *writer) body(n int) []byte {
	var b []byte
	if !wr.ndjson {
		b = append(b, `{"records":[`...)
	}
	for i := n; i < n+perRequest; i++ {
		if i > n && !wr.ndjson {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"key":{"type":"string","data":%q},"value":{"type":"json","data":{"w":%d,"n":%d,"v":%s}},"idempotency_key":"kills-%d-%d"}`,
			wr.keyOf(i), wr.id, i, wr.value, wr.id, i)
		if wr.ndjson {
			b = append(b, '\n')
		}
	}
	if !wr.ndjson {
		b = append(b, `]}`...)
	}
	return b
}

// run sends requests, one every so often, until time is up.
func (wr *writer) run(ctx context.Context, every time.Duration, until time.Time, stored *atomic.Int64) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for time.Now().Before(until) {
		if err := wr.store(ctx); err != nil {
			return fmt.Errorf("writer %d of %s, record %d: %w", wr.id, wr.region.name, len(wr.acked), err)
		}
		stored.Add(perRequest)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// store sends the next records until all of them are stored.
func (wr *writer) store(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	body := wr.body(len(wr.acked))
	for first := true; ; first = false {
		at, err := wr.send(ctx, body)
		if err == nil {
			wr.acked = append(wr.acked, at...)
			return nil
		}
		if first {
			wr.again++
		}
		if errors.Is(err, errWrong) {
			return err
		}
		if sleep.For(ctx, retry) != nil {
			return fmt.Errorf("not stored after %s: %w", requestPatience, err)
		}
	}
}

// errWrong is returned for an answer that no fault excuses.
var errWrong = errors.New("a wrong answer")

// send sends a request once. It gives the places of all its records, or why not all are
// known to be stored.
func (wr *writer) send(ctx context.Context, body []byte) ([]stored, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, done, err := dial(ctx, wr.region.data)
	if err != nil {
		return nil, err
	}
	defer done()
	media := "application/json"
	if wr.ndjson {
		media = "application/x-ndjson"
	}
	if _, err := fmt.Fprintf(c, "POST /v1/topics/%s/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", wr.topic, media, len(body)); err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(body)
		failed <- err
	}()
	at, err := wr.answers(c)
	if err != nil {
		done()
	}
	return at, errors.Join(err, <-failed)
}

// answers reads the answers to a request, whichever form they have: each has the place
// of a stored record, or a problem.
func (wr *writer) answers(c *conn) (at []stored, err error) {
	h, err := c.head()
	if err != nil {
		return nil, err
	}
	var problem error
	r := bufio.NewReaderSize(c.body(h), 64<<10)
	take := func(answer []byte) {
		place, ok := placeIn(answer)
		switch {
		case ok:
			at = append(at, place)
		case problem == nil:
			problem = fmt.Errorf("answered %.300s", answer)
		}
	}
	switch {
	case wr.ndjson && h.status == 200:
		for {
			line, err := r.ReadBytes('\n')
			if len(line) > 0 && err == nil {
				take(line)
				continue
			}
			if len(at) == perRequest && problem == nil {
				return at, nil
			}
			return nil, errors.Join(problem, fmt.Errorf("%d of %d lines are stored: %w", len(at), perRequest, err))
		}
	case h.status == 200, h.status == 207:
		var all bytes.Buffer
		if _, err := all.ReadFrom(r); err != nil {
			return nil, err
		}
		for _, one := range bytes.SplitAfter(bytes.TrimPrefix(all.Bytes(), []byte(`{"results":[`)), []byte(`},{`)) {
			take(one)
		}
		if len(at) == perRequest && problem == nil {
			return at, nil
		}
		if h.status == 200 {
			return nil, fmt.Errorf("%w: 200 with %d of %d records stored: %w", errWrong, len(at), perRequest, problem)
		}
		return nil, fmt.Errorf("%d of %d records are stored: %w", len(at), perRequest, problem)
	default:
		text, _ := r.Peek(300)
		err := fmt.Errorf("answered %d: %s", h.status, text)
		if h.status/100 == 4 && h.status != 409 && h.status != 429 {
			return nil, fmt.Errorf("%w: %w", errWrong, err)
		}
		return nil, err
	}
}

// placeIn finds the place in the answer to a stored record.
func placeIn(answer []byte) (p stored, ok bool) {
	if bytes.Contains(answer, []byte(`"problem"`)) {
		return p, false
	}
	partition, ok1 := numberIn(answer, `"partition":`)
	offset, ok2 := numberIn(answer, `"offset":`)
	return stored{int32(partition), offset}, ok1 && ok2
}

// numberIn is the number behind a name.
func numberIn(b []byte, name string) (int64, bool) {
	_, rest, found := bytes.Cut(b, []byte(name))
	if !found {
		return 0, false
	}
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(rest[:end]), 10, 64)
	return n, err == nil
}

// kills is the suite of a load through kills: gateways are killed in turn, and in the
// end everything that was answered is looked for.
func (r *run) kills(ctx context.Context) error {
	w := r.w
	for _, reg := range w.regions() {
		if err := reg.create(ctx, eventTopic, partitions); err != nil {
			return err
		}
	}
	writers, every := w.writers()
	until := time.Now().Add(w.o.seconds)
	f, began := r.figure("load through kills"), time.Now()
	g, gctx := errgroup.WithContext(ctx)
	var all atomic.Int64
	for _, wr := range writers {
		g.Go(func() error { return wr.run(gctx, every, until, &all) })
	}
	killed := 0
	g.Go(func() error {
		for n := 0; ; n++ {
			if sleep.For(gctx, min(w.o.every, time.Until(until))) != nil || !time.Now().Add(w.o.every/2).Before(until) {
				return gctx.Err()
			}
			reg := w.regions()[n%2]
			reg.process.Kill()
			killed++
			if err := w.up(gctx, reg); err != nil {
				return err
			}
		}
	})
	if err := g.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	n, again := all.Load(), int64(0)
	for _, wr := range writers {
		again += int64(wr.again)
	}
	fmt.Fprintf(r.rep.out, "  %d records were stored in %.0f s through %d kills; %d of %d requests were sent again\n", n, took.Seconds(), killed, again, n/perRequest)
	if err := w.settledBoth(ctx); err != nil {
		return err
	}
	l, err := w.look(ctx, writers, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.rep.out, "  each of them is valid once in its log, where its answer says, in the order of its key, and shown once in both regions; %d void copies\n", l.void)
	f.By = map[string]float64{"kills": float64(killed), "requests sent again": float64(again), "void copies": float64(l.void)}
	f.Records, f.Seconds, f.Rate = n, took.Seconds(), float64(n)/took.Seconds()
	return r.rep.add(f)
}

// writers are those of both regions, and how often each sends a request.
func (w *world) writers() (writers []*writer, every time.Duration) {
	rng := rand.New(rand.NewPCG(31, 31))
	for _, reg := range w.regions() {
		for i := range writersPerRegion {
			wr := &writer{id: len(writers), region: reg, topic: entityTopic, ndjson: i%2 == 0, value: value(rng, w.o.size)}
			if i >= writersPerRegion/2 {
				wr.topic = eventTopic
			}
			writers = append(writers, wr)
		}
	}
	return writers, time.Duration(float64(time.Second) * float64(len(writers)*perRequest) / float64(w.o.rate))
}

// settledBoth waits until both regions have applied what either has written.
func (w *world) settledBoth(ctx context.Context) error {
	for _, from := range w.regions() {
		for _, topic := range []string{entityTopic, eventTopic} {
			if _, err := from.mark(ctx, topic, w.regions()); err != nil {
				return err
			}
		}
	}
	return nil
}

// mark writes a record to each partition of a topic, waits until regions have applied them,
// and with them everything before, and tells how many it wrote.
func (r *region) mark(ctx context.Context, topic string, regions []*region) (written int64, err error) {
	tokens, keys := map[int32]client.Answer{}, map[int32]string{}
	for i := 0; len(tokens) < partitions && i < 500; i++ {
		key := fmt.Sprintf("marker-%s-%d", r.name, i)
		a, err := r.client.Store(ctx, client.Write{Topic: topic, Key: key, Value: []byte(`{"marker":true}`)})
		if err != nil {
			return written, err
		}
		tokens[a.Partition], keys[a.Partition] = a, key
		written++
	}
	for _, to := range regions {
		for p, a := range tokens {
			if err := to.applied(ctx, topic, keys[p], a.Token); err != nil {
				return written, fmt.Errorf("%s does not apply what %s wrote to %s/%d: %w", to.name, r.name, topic, p, err)
			}
		}
	}
	return written, nil
}

// applied waits until a region has applied what a token names.
func (r *region) applied(ctx context.Context, topic, key, token string) error {
	return client.Poll(ctx, 100*time.Millisecond, func() error {
		if topic == entityTopic {
			_, err := r.client.Entity(ctx, topic, key, token, "30s")
			return err
		}
		_, _, err := r.client.Do(ctx, http.MethodGet, "/v1/topics/"+topic+"/records?view=merged&from=earliest&limit=1", nil, http.Header{"Geogate-Token": {token}})
		return err
	})
}
