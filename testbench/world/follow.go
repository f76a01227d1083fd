package world

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Follower reads a followed stream of a region's merged view.
type Follower struct {
	// Got are the records so far, Cursor the place behind the last.
	Got    []Record
	Cursor string

	stop context.CancelFunc
	body io.ReadCloser
	in   *bufio.Scanner
}

// Follow opens a stream of a topic's merged view at a place: earliest, latest or
// a cursor of any region.
func (r *Region) Follow(topic, from string) (*Follower, error) {
	base, err := r.last().data()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	q := url.Values{"view": {"merged"}, "from": {from}, "follow": {"true"}, "wait": {"20s"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/topics/"+topic+"/records?"+q.Encode(), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := r.w.http.Do(req)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("follow %s in %s: %w", topic, r.Name, err)
	}
	if resp.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		return nil, errors.Join(problemOf(resp, raw), err)
	}
	f := &Follower{Cursor: from, stop: cancel, body: resp.Body, in: bufio.NewScanner(resp.Body)}
	f.in.Buffer(nil, 8<<20)
	return f, nil
}

// Next waits for records until there are n in all.
func (f *Follower) Next(n int) error {
	for len(f.Got) < n {
		if !f.in.Scan() {
			return fmt.Errorf("stream ended after %d records: %w", len(f.Got), errors.Join(f.in.Err(), io.ErrUnexpectedEOF))
		}
		var rec Record
		if err := decode(f.in.Bytes(), &rec); err != nil {
			return err
		}
		if rec.Cursor != "" {
			f.Cursor = rec.Cursor
		}
		if !rec.Heartbeat {
			f.Got = append(f.Got, rec)
		}
	}
	return nil
}

// Close ends the stream.
func (f *Follower) Close() {
	f.stop()
	f.body.Close()
}
