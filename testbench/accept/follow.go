//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
)

// follower reads the merged stream of a topic and survives whatever happens to
// the gateway by asking again from its cursor.
type follower struct {
	w     *world
	topic string

	mu     sync.Mutex
	got    []shownRecord
	cursor string
	stale  int // answers that told it to wait for the region to catch up
	fatal  error

	stop func()
	done chan struct{}
}

// follow starts reading in region r from a place.
func follow(ctx context.Context, w *world, r *region, topic, from string) *follower {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{w: w, topic: topic, cursor: from, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for ctx.Err() == nil {
			err := f.read(ctx, r)
			var p *problem
			if errors.As(err, &p) && !p.Retriable {
				f.mu.Lock()
				f.fatal = fmt.Errorf("follow %s in %s: %w", topic, r.name, err)
				f.mu.Unlock()
				return
			}
			if p != nil && p.Code == "STALE_VIEW" {
				f.mu.Lock()
				f.stale++
				f.mu.Unlock()
			}
			pause(ctx, retryPause)
		}
	}()
	return f
}

// read follows one connection until it breaks.
func (f *follower) read(ctx context.Context, r *region) error {
	q := url.Values{"view": {"merged"}, "from": {f.place()}, "follow": {"true"}, "wait": {"1s"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.data+"/v1/topics/"+f.topic+"/records?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := f.w.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p := &problem{Status: resp.StatusCode}
		if err := json.NewDecoder(resp.Body).Decode(p); err != nil {
			return err
		}
		return p
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 8<<20)
	for sc.Scan() {
		var rec shownRecord
		if err := json.Unmarshal(sc.Bytes(), &rec); err != nil {
			return fmt.Errorf("decode line: %w", err)
		}
		f.mu.Lock()
		if !rec.Heartbeat {
			f.got = append(f.got, rec)
		}
		if rec.Cursor != "" {
			f.cursor = rec.Cursor
		}
		f.mu.Unlock()
	}
	return sc.Err()
}

func (f *follower) place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cursor
}

// count is how many records it has got, and how often it was told to wait.
func (f *follower) count() (records, stale int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got), f.stale
}

// end stops the follower and returns what it got and where it stands.
func (f *follower) end() (got []shownRecord, cursor string, err error) {
	f.stop()
	<-f.done
	return f.got, f.cursor, f.fatal
}
