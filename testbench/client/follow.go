package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/geogate/geogate/internal/sleep"
)

// Stream is one connection that follows a merged view. It is used from one
// goroutine.
type Stream struct {
	// Cursor is the place behind what was read last.
	Cursor string

	body  io.ReadCloser
	lines *bufio.Scanner
}

// Follow opens a stream of a topic's merged view at a place: earliest, latest or a
// cursor of any region, which the region may take wait to catch up with. The
// stream lasts until ctx ends, the connection breaks, or it is closed.
func (c Client) Follow(ctx context.Context, topic, from, wait string) (*Stream, error) {
	at, err := c.Address()
	if err != nil {
		return nil, err
	}
	q := url.Values{"view": {"merged"}, "from": {from}, "follow": {"true"}, "wait": {wait}}
	resp, err := c.open(ctx, http.MethodGet, at.Data+recordsPath(topic)+"?"+q.Encode(), nil, http.Header{"Accept": {"application/x-ndjson"}})
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", topic, err)
	}
	s := &Stream{Cursor: from, body: resp.Body, lines: bufio.NewScanner(resp.Body)}
	s.lines.Buffer(nil, 8<<20)
	return s, nil
}

// Next waits for the next record; a heartbeat is one, too. Every end of the stream
// is an error.
func (s *Stream) Next() (Record, error) {
	if !s.lines.Scan() {
		return Record{}, fmt.Errorf("followed stream ended: %w", cmp.Or(s.lines.Err(), io.ErrUnexpectedEOF))
	}
	var rec Record
	if err := Decode(s.lines.Bytes(), &rec); err != nil {
		return Record{}, err
	}
	s.Cursor = cmp.Or(rec.Cursor, s.Cursor)
	return rec, nil
}

// Take waits for n records that are no heartbeats. With an error it returns those
// that came before.
func (s *Stream) Take(n int) ([]Record, error) {
	var got []Record
	for len(got) < n {
		rec, err := s.Next()
		if err != nil {
			return got, err
		}
		if !rec.Heartbeat {
			got = append(got, rec)
		}
	}
	return got, nil
}

// Close ends the stream.
func (s *Stream) Close() { s.body.Close() }

// mayAskAgain tells whether a stream that ended may be opened again from its
// cursor.
func mayAskAgain(err error) bool {
	var p *Problem
	return !errors.As(err, &p) || p.Retriable
}

// Follower reads the merged view of a topic and survives whatever happens to the
// gateway: it asks again from its cursor.
type Follower struct {
	stop context.CancelFunc
	done chan struct{} // closed when its goroutine has ended

	mu     sync.Mutex
	got    []Record
	cursor string
	stale  int // answers that told it to wait for the region to catch up
	err    error
}

// Keep follows a topic from a place until ctx ends or End is called, which must
// be.
func (c Client) Keep(ctx context.Context, topic, from string) *Follower {
	ctx, cancel := context.WithCancel(ctx)
	f := &Follower{cursor: from, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for ctx.Err() == nil {
			err := f.read(ctx, c, topic)
			if !mayAskAgain(err) {
				f.mu.Lock()
				f.err = fmt.Errorf("follow %s: %w", topic, err)
				f.mu.Unlock()
				return
			}
			if Code(err) == "STALE_VIEW" {
				f.mu.Lock()
				f.stale++
				f.mu.Unlock()
			}
			_ = sleep.For(ctx, c.pause()) // the loop looks at the context
		}
	}()
	return f
}

// read follows one connection until it breaks.
func (f *Follower) read(ctx context.Context, c Client, topic string) error {
	f.mu.Lock()
	from := f.cursor
	f.mu.Unlock()
	s, err := c.Follow(ctx, topic, from, "1s")
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		rec, err := s.Next()
		if err != nil {
			return err
		}
		f.mu.Lock()
		if !rec.Heartbeat {
			f.got = append(f.got, rec)
		}
		f.cursor = s.Cursor
		f.mu.Unlock()
	}
}

// Ended tells whether it has ended by itself, for good.
func (f *Follower) Ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Count is how many records it has got, and how often it was told to wait.
func (f *Follower) Count() (records, stale int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got), f.stale
}

// End stops the follower and returns what it got and where it stands, and the
// refusal that ended it, if one did. It may be called again.
func (f *Follower) End() (got []Record, cursor string, err error) {
	f.stop()
	<-f.done
	return f.got, f.cursor, f.err
}
