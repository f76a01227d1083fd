package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
)

const (
	// streamWindow bounds the lines of one stream between being read and being
	// answered: enough to fill the produce pipeline of all partitions.
	streamWindow = 256
	// streamPatience is how long a line waits for its share of the byte budget
	// before it is answered 429: a stream is slowed down before it is refused.
	streamPatience = 10 * time.Second
	// lineSlack is what a line may have beyond six bytes for each byte of a
	// record (the longest escape) before it cannot hold one that is small enough.
	lineSlack = 64 << 10
)

// stream is one NDJSON request: lines are read ahead, stored side by side, and
// answered in order. Lines with one record key are stored in the stream's order, and
// none after one that has failed but may yet be stored (write_order.go).
type stream struct {
	s     *Server
	c     *call
	head  *writeHead
	topic Topic

	in    *bufio.Reader
	pace  *pace // of the line that is being read; nil between lines
	read  int64 // bytes of the body so far
	index int   // of the next line
	order keyOrder

	waited waited
}

// line is one line's way from being read to its answer.
type line struct {
	index int
	out   []byte // the answer, valid once the turn has ended
	held  int64  // of the byte budget
	turn
}

// writeStream answers POST …/records with application/x-ndjson. What is wrong
// with the request as a whole is answered before the first line; from then on
// each line has its own answer.
func (s *Server) writeStream(c *call, head *writeHead) error {
	topic, err := s.deps.Topics.Topic(c.r.Context(), head.topic)
	if err != nil {
		return err
	}
	st := &stream{
		s: s, c: c, head: head, topic: topic,
		in: bufio.NewReaderSize(c.r.Body, 32<<10), order: newKeyOrder(),
	}
	return st.run()
}

func (st *stream) run() error {
	_ = st.c.rc.EnableFullDuplex() // HTTP/1 only; a test's recorder has none
	h := st.c.w.Header()
	h.Set("Content-Type", typeNDJSON)
	h.Set("X-Accel-Buffering", "no")
	st.c.w.WriteHeader(http.StatusOK)
	// The request's own context ends with the first error of reading, which a
	// drain brings about on purpose; the lines in flight are answered all the same.
	ctx, cancel := context.WithCancel(context.WithoutCancel(st.c.r.Context()))
	defer cancel()
	defer st.s.drain.onCut(cancel)()
	// A stream that idles while the server drains must not hold it up.
	defer st.s.drain.onStop(func() { st.c.readDeadline(0) })()

	lines := make(chan *line, streamWindow)
	var running sync.WaitGroup
	running.Go(func() {
		defer close(lines)
		st.readAhead(ctx, lines, &running)
	})
	defer running.Wait()
	err := st.answer(lines)
	if err != nil {
		cancel()
		st.c.readDeadline(0)
		for l := range lines {
			<-l.ended
			st.give(l.held)
		}
	}
	return err
}

// answer writes the lines' answers in order. It flushes when the next one is not
// there yet, so that a slow client costs few packets and a fast one no delay.
func (st *stream) answer(lines <-chan *line) error {
	for {
		var l *line
		select {
		case l = <-lines:
		default:
			_ = st.c.rc.Flush()
			l = <-lines
		}
		if l == nil {
			return nil
		}
		select {
		case <-l.ended:
		default:
			_ = st.c.rc.Flush()
			<-l.ended
		}
		st.give(l.held)
		if err := st.c.write(append(l.out, '\n')); err != nil {
			return err
		}
	}
}

// readAhead reads lines and starts their writes until the body ends, the client
// has gone, or the server drains.
//
// HAZARD: a line's answer belongs to the goroutine of its write until its turn has
// ended; st belongs to this one.
func (st *stream) readAhead(ctx context.Context, lines chan<- *line, running *sync.WaitGroup) {
	for ctx.Err() == nil {
		text, held, err := st.next(ctx)
		l := &line{index: st.index, held: held, turn: turn{ended: make(chan struct{})}}
		st.index++
		var p *problem
		switch {
		case errors.As(err, &p):
			// Whose line it was is not known.
			st.order.halted = st.order.halted || mayStillBeStored(p, st.topic)
			l.refuse(st, p)
		case err != nil && len(text) == 0:
			st.give(held)
			return
		case len(bytes.TrimSpace(text)) == 0:
			st.give(held)
			if err != nil {
				return
			}
			continue
		default:
			st.start(ctx, l, text, running)
		}
		select {
		case lines <- l:
		case <-ctx.Done():
			<-l.ended
			st.give(held)
			return
		}
		if err != nil && (p == nil || p.code == codeBodyTooLarge || p.code == codeDraining) {
			return
		}
	}
}

// start decodes a line and starts its write.
func (st *stream) start(ctx context.Context, l *line, text []byte, running *sync.WaitGroup) {
	rec, err := decodeLine(st.head, text, l.index)
	if err != nil {
		l.refuse(st, asProblem(err))
		return
	}
	var before *turn
	if rec.key != nil {
		before = st.order.follow(rec.key, &l.turn)
	}
	if st.order.halted {
		l.refuse(st, afterFailure())
		return
	}
	running.Go(func() {
		if before != nil {
			<-before.ended
			if before.failed {
				l.refuse(st, afterFailure())
				return
			}
		}
		a, err := st.write(ctx, rec)
		if err != nil {
			if errors.Is(err, context.Canceled) {
				err = newProblem(codeNotReady, "the request ended before this line was stored")
			}
			l.refuse(st, asProblem(err))
			return
		}
		form := st.s.newStoredForm(st.topic)
		l.out, _ = form.append(nil, &a)
		close(l.ended)
	})
}

// write permits and stores a line's record. A seat that has too much in flight, or
// is not ready yet, has stored nothing, so the stream waits for it as it waits for
// the byte budget. It waits for a partition once: the lines after those that have
// waited in vain fail at once.
func (st *stream) write(ctx context.Context, rec *record) (seat.Answer, error) {
	w, err := st.s.writer.permit(st.topic, rec)
	if err != nil {
		return seat.Answer{}, err
	}
	const first, longest = 5 * time.Millisecond, 200 * time.Millisecond
	start := time.Now()
	for wait := first; ; wait = min(2*wait, longest) {
		a, err := st.s.writer.store(ctx, w, st.c.peer)
		notReady := errors.Is(err, seat.ErrNotReady) && !errors.Is(err, seat.ErrSuperseded)
		switch {
		case notReady:
			if st.waited.inVain(w.partition) {
				return a, err
			}
			if time.Since(start) >= st.s.cfg.WriteTimeout {
				st.waited.set(w.partition, true)
				return a, err
			}
		case !errors.Is(err, seat.ErrOverloaded) || time.Since(start) >= streamPatience:
			if err == nil {
				st.waited.set(w.partition, false)
			}
			return a, err
		}
		if sleep.For(ctx, wait) != nil {
			return a, err
		}
	}
}

// refuse answers a line with a problem.
func (l *line) refuse(st *stream, p *problem) {
	st.s.m.refused(p.code)
	if p.code == codeInternal {
		st.s.log.Error("line refused", "request_id", st.c.id, "route", "records", "err", p)
	}
	var o object
	o.int("index", int64(l.index))
	o.int("status", int64(p.code.kind().status))
	o.raw("problem", p.append(nil, st.c.id))
	l.out = o.close()
	l.failed = mayStillBeStored(p, st.topic)
	close(l.ended)
}

// next reads one line without its end. A *problem is the line's answer, and the
// stream goes on after that line, except after BODY_TOO_LARGE and DRAINING; any
// other error ends the stream after the line that comes with it.
func (st *stream) next(ctx context.Context) (text []byte, held int64, err error) {
	most := min(st.s.cfg.MaxBody, 6*st.s.cfg.MaxRecord+lineSlack)
	var bad *problem
	for {
		part, err := st.readPart(st.pace != nil)
		if st.s.drain.isStopping() && err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, held, st.draining()
		}
		st.read += int64(len(part))
		switch {
		case st.read > st.s.cfg.MaxBody:
			return nil, held, newProblem(codeBodyTooLarge, "the stream has more than %d bytes; send the rest in another request", st.s.cfg.MaxBody)
		case bad != nil: // pass over the rest of a refused line
		case int64(len(text)+len(part)) > most:
			bad = newProblem(codeRecordTooLarge, "the line has more than %d bytes, so its record cannot be within the limit of %d (http.max_record)", most, st.s.cfg.MaxRecord)
		default:
			if !st.s.bodies.await(ctx, st.c.peer, int64(len(part)), streamPatience) {
				bad = newProblem(codeOverloaded, "in-flight request bodies already use what there is of http.max_inflight (%d bytes) for this address; retry", st.s.cfg.MaxInflight)
				break
			}
			held += int64(len(part))
			text = append(text, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		st.pace = nil
		text = bytes.TrimSuffix(text, []byte("\n"))
		if bad != nil {
			return nil, held, bad
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, held, fmt.Errorf("read stream: %w", err) // half a line is no line
		}
		return text, held, err
	}
}

// readPart reads up to the end of a line, or as much of it as is buffered at a time.
// A stream may rest between lines; a line that has begun has to come.
func (st *stream) readPart(begun bool) ([]byte, error) {
	if !begun {
		st.c.readDeadline(streamTime)
		if st.s.drain.isStopping() { // the deadline above may have undone run's
			return nil, os.ErrDeadlineExceeded
		}
		if _, err := st.in.Peek(1); err != nil {
			return nil, err
		}
		st.pace = st.c.newPace()
	}
	st.pace.before()
	if st.s.drain.isStopping() {
		return nil, os.ErrDeadlineExceeded
	}
	part, err := st.in.ReadSlice('\n')
	st.pace.moved(len(part))
	return part, err
}

func (st *stream) draining() error {
	return newProblem(codeDraining, "the instance is stopping; send this line and the lines after it again")
}

// give gives back what a line has held.
func (st *stream) give(n int64) { st.s.bodies.give(st.c.peer, n) }
