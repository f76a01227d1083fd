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
)

const (
	// streamBuffer is how much is read ahead of a stream whose lines come many at a time, and
	// the most that is submitted together; firstBuffer is how much of any other.
	streamBuffer, firstBuffer = 64 << 10, 4 << 10
	// blockLines bounds the lines that are submitted together.
	blockLines = 512
	// lineSlack is what a line may have beyond six bytes for each byte of a
	// record (the longest escape) before it cannot hold one that is small enough.
	lineSlack = 64 << 10
)

// stream is one NDJSON request: what has arrived is submitted together, and answered in
// order. Lines with one record key are stored in the stream's order, and none after one
// that has failed but may yet be stored (write_sequence.go).
type stream struct {
	s     *Server
	c     *call
	head  *writeHead
	topic Topic // as it was when the stream began
	lines *sequence

	// Owned by the goroutine that reads lines:
	in    *bufio.Reader
	large int64 // bytes of the body budget that in holds, 0 with its small buffer
	pace  *pace // of the line that is being read; nil between lines
	read  int64 // bytes of the body so far
	index int   // of the next line
	rec   record

	// Owned by the goroutine that answers:
	form   storedForm
	out    *[]byte // answers that have not left; nil: none
	held   int64   // of the byte budget, by lines whose answers are in out or have left
	unread int64   // of the budget of unread answers, likewise
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
		s: s, c: c, head: head, topic: topic, lines: s.newSequence(c, form{"line", "stream"}, sequenceWindow),
		in: bufio.NewReaderSize(c.r.Body, firstBuffer), form: s.newStoredForm(topic),
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

	var running sync.WaitGroup
	running.Go(func() {
		defer st.lines.close()
		st.readAhead(ctx)
	})
	err := st.answer(ctx)
	if err != nil {
		cancel()
		st.c.readDeadline(0)
	}
	running.Wait()
	held, unread := st.lines.finish(ctx)
	st.held, st.unread = st.held+held+st.large, st.unread+unread
	st.giveBack()
	return err
}

// answer writes the lines' answers in order, many at a time. It flushes when the next one
// is not there yet, so that a slow client costs few packets and a fast one no delay.
func (st *stream) answer(ctx context.Context) error {
	for {
		ready := st.lines.ready()
		if !ready || st.out != nil && len(*st.out) >= partSize/2 {
			if err := st.send(!ready); err != nil {
				return err
			}
		}
		e := st.lines.next(ctx)
		if e == nil {
			return st.send(false)
		}
		if st.out == nil {
			st.out, _ = answerBuffers.Get().(*[]byte)
		}
		*st.out = append(st.lines.append(*st.out, &st.form, e), '\n')
		st.held += e.held
		st.unread += e.unread
	}
}

// send writes what was answered.
func (st *stream) send(flush bool) error {
	if st.out != nil {
		if err := st.c.write(*st.out); err != nil {
			return err
		}
		*st.out = (*st.out)[:0]
		answerBuffers.Put(st.out)
		st.out = nil
	}
	st.giveBack()
	st.s.m.add(&st.lines.stored)
	if flush {
		_ = st.c.rc.Flush()
	}
	return nil
}

// answerBuffers are for answers of streams: one that rests has none.
var answerBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, partSize)
	return &b
}}

// giveBack gives back what answered lines have held.
func (st *stream) giveBack() {
	st.s.bodies.give(st.c.peer, st.held)
	st.c.unread.give(st.c.peer, st.unread)
	st.held, st.unread = 0, 0
}

// readAhead reads lines and submits them until the body ends, the client has gone, or the
// server drains.
func (st *stream) readAhead(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		b := new(block)
		more = st.readBlock(ctx, b)
		if len(b.entries) > 0 && (!st.hold(ctx, b) || !st.lines.add(ctx, b)) {
			for i := range b.entries {
				st.s.bodies.give(st.c.peer, b.entries[i].held)
				st.c.unread.give(st.c.peer, b.entries[i].unread)
			}
			return
		}
	}
}

// hold takes room for the entries of a block until their answers have left. It waits as
// long as that takes: clients that do not take their answers are cut off.
func (st *stream) hold(ctx context.Context, b *block) bool {
	n := min(int64(len(b.entries))*entrySize, max(MaxShare(st.c.unread.most), 1))
	for !st.c.unread.await(ctx, st.c.peer, n, streamPatience) {
		if ctx.Err() != nil {
			return false
		}
	}
	b.entries[len(b.entries)-1].unread = n
	return true
}

// readBlock waits for a line and makes entries of it and of those that have arrived with
// it. more is false if nothing is to be read after them.
func (st *stream) readBlock(ctx context.Context, b *block) (more bool) {
	text, held, err := st.next(ctx)
	var p *problem
	switch {
	case errors.As(err, &p):
		e := b.grow(1)
		e.index, e.held, e.refusal = st.index, held, p
		st.index++
		return p.code != codeBodyTooLarge && p.code != codeDraining
	case err != nil && len(text) == 0:
		st.s.bodies.give(st.c.peer, held)
		return false
	}
	arrived, lines := st.arrived()
	topic, failed := st.topicNow(ctx)
	permits := st.s.writer.permits(topic)
	b.entries = make([]entry, 0, 1+lines)
	st.line(b, &permits, failed, text, held)
	for lines > 0 && err == nil {
		n := bytes.IndexByte(arrived, '\n')
		st.line(b, &permits, failed, arrived[:n:n], int64(n+1))
		arrived = arrived[n+1:]
		lines--
	}
	return err == nil
}

// grow appends an entry. Entries do not move once one is used: there is room for all of a
// block's from the start.
func (b *block) grow(most int) *entry {
	if b.entries == nil {
		b.entries = make([]entry, 0, most)
	}
	b.entries = b.entries[:len(b.entries)+1]
	return &b.entries[len(b.entries)-1]
}

// topicNow is the topic as it is when a block is read; failed says why its lines cannot be
// stored.
func (st *stream) topicNow(ctx context.Context) (t *Topic, failed *problem) {
	now, err := st.s.deps.Topics.Topic(ctx, st.head.topic)
	if err != nil {
		return &st.topic, asProblem(err)
	}
	return &now, nil
}

// line makes an entry of a line's text, unless it is blank. The entry has the text's memory.
func (st *stream) line(b *block, permits *permits, failed *problem, text []byte, held int64) {
	index := st.index
	st.index++
	if len(bytes.TrimSpace(text)) == 0 {
		st.s.bodies.give(st.c.peer, held)
		return
	}
	e := b.grow(1)
	e.index, e.held = index, held
	st.rec = record{partition: -1}
	if err := decodeLine(st.head, text, index, &st.rec); err != nil {
		e.refusal = asProblem(err)
		return
	}
	e.permit(permits, &st.rec, failed)
}

// arrived takes the whole lines that have arrived, as far as the byte budget has room for
// them at once, and how many there are. What it leaves is read line by line.
func (st *stream) arrived() (text []byte, lines int) {
	text, _ = st.in.Peek(st.in.Buffered())
	end := 0
	for lines < blockLines {
		n := bytes.IndexByte(text[end:], '\n')
		if n < 0 || int64(n) > st.longest() {
			break
		}
		end += n + 1
		lines++
	}
	if lines == 0 || st.read+int64(end) > st.s.cfg.MaxBody || st.s.drain.isStopping() || !st.s.bodies.take(st.c.peer, int64(end)) {
		return nil, 0
	}
	text = append([]byte(nil), text[:end]...)
	st.read += int64(end)
	_, _ = st.in.Discard(end)
	if st.large == 0 && st.s.bodies.take(st.c.peer, streamBuffer) {
		st.large = streamBuffer
		st.in = bufio.NewReaderSize(st.in, streamBuffer) // reads what the smaller one holds first
	}
	return text, lines
}

// longest is how long a line may be.
func (st *stream) longest() int64 {
	return min(st.s.cfg.MaxBody, 6*st.s.cfg.MaxRecord+lineSlack)
}

// next reads one line without its end. A *problem is the line's answer, and the
// stream goes on after that line, except after BODY_TOO_LARGE and DRAINING; any
// other error ends the stream after the line that comes with it.
func (st *stream) next(ctx context.Context) (text []byte, held int64, err error) {
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
		case int64(len(text)+len(part)) > st.longest():
			bad = newProblem(codeRecordTooLarge, "the line has more than %d bytes, so its record cannot be within the limit of %d (http.max_record)", st.longest(), st.s.cfg.MaxRecord)
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
