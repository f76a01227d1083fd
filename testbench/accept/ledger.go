//go:build unix

package main

import (
	"fmt"
	"sync"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// item is a write of the first part with the line it comes from; the line decides
// where it goes and which retries it takes part in.
type item struct {
	client.Write
	number int
}

// entry is what the client knows of one idempotency key.
type entry struct {
	item
	// asked holds the first answer of each region that was asked, by name.
	asked map[string]client.Answer
	first string // the region asked first
}

// ledger is the client's memory of everything that was acknowledged.
type ledger struct {
	mu      sync.Mutex
	entries map[string]*entry // by idempotency key; keys are unique over topics
}

// record notes an acknowledged write and returns what was known before.
func (l *ledger) record(it item, region string, a client.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[it.Idem]
	if e == nil {
		e = &entry{item: it, asked: make(map[string]client.Answer), first: region}
		l.entries[it.Idem] = e
	}
	if _, ok := e.asked[region]; !ok {
		e.asked[region] = a
	}
}

// of returns the entries of a topic; they must not be changed any more.
func (l *ledger) of(topic string) (es []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Topic == topic {
			es = append(es, e)
		}
	}
	return es
}

func (l *ledger) get(idem string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[idem]
}

// place is an origin's partition of a topic.
type place struct {
	topic     string
	region    event.RegionID
	partition int32
}

// high is the acknowledged record of a place with the highest offset, and the
// token that stands for having seen it and all before it.
type high struct {
	offset int64
	token  string
	key    string
}

// highs returns the highest acknowledged record of every place.
func (l *ledger) highs(names event.RegionNames) (map[place]high, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[place]high)
	for _, e := range l.entries {
		for _, a := range e.asked {
			dot, err := event.ParseDot(a.Dot, names)
			if err != nil {
				return nil, fmt.Errorf("answer to %s: %w", e.Idem, err)
			}
			p := place{e.Topic, dot.Region, dot.Partition}
			if h, ok := out[p]; !ok || h.offset < dot.Offset {
				out[p] = high{dot.Offset, a.Token, e.Key}
			}
		}
	}
	return out, nil
}
