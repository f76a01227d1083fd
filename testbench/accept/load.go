//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/client"
)

const (
	// loadPause is between a worker's answer and its next request; the region that
	// is not fenced has a longer one, since its load runs all the time.
	loadPause  = 20 * time.Millisecond
	asidePause = 60 * time.Millisecond
	// loadWait bounds one request of the load: a stopped process answers nothing.
	loadWait = 5 * time.Second
)

// attempt is one request of the load and what came of it, on the clock of this
// process.
type attempt struct {
	item
	region, unit string
	sent, got    time.Time
	answer       client.Answer
	err          error // nil: acknowledged
}

// acked tells whether the write was acknowledged.
func (a *attempt) acked() bool { return a.err == nil }

// problem is the refusal, nil where none came.
func (a *attempt) problem() *client.Problem {
	var p *client.Problem
	errors.As(a.err, &p)
	return p
}

// unknown tells whether the write may be stored although it was not acknowledged.
func (a *attempt) unknown() bool {
	p := a.problem()
	return a.err != nil && (p == nil || p.Code == "OUTCOME_UNKNOWN")
}

// diary is every request of the load in the order of the answers.
type diary struct {
	mu  sync.Mutex
	all []*attempt
}

func (d *diary) add(a *attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, a)
}

// since gives the requests to a region that were answered after a time.
func (d *diary) since(region string, from time.Time) (out []*attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.all {
		if a.region == region && a.got.After(from) {
			out = append(out, a)
		}
	}
	return out
}

// flow is a stream of writes into one unit.
type flow struct {
	topic, unit string
	workers     int
}

// flowsOf are the units that a region writes.
func flowsOf(r *region) []flow {
	flows := []flow{
		{flightsTopic, "air/" + r.name, 2},
		{ordersTopic, "orders/" + r.name, 1},
		{githubTopic, "repos/" + r.name, 1},
	}
	if r.name == "eu" {
		flows = append(flows, flow{catalogueTopic, "catalogue", 1})
	}
	return flows
}

// load writes to a region's units until it is stopped.
type load struct {
	stop func()
	done *errgroup.Group
}

// startLoad begins to write. Entities of flights are the same in both regions, so
// that writes meet; those of github have keys that may leave every region.
func (s *fencing) startLoad(ctx context.Context, r *region, phase string) *load {
	ctx, cancel := context.WithCancel(ctx)
	between := loadPause
	if r != s.w.eu {
		between = asidePause
	}
	l := &load{stop: cancel, done: new(errgroup.Group)}
	for _, f := range flowsOf(r) {
		for worker := range f.workers {
			l.done.Go(func() error {
				for n := 0; ctx.Err() == nil; n++ {
					s.try(ctx, r, f, s.loadItem(r, f, phase, worker, n))
					_ = sleep.For(ctx, between) // the loop looks at the context
				}
				return nil
			})
		}
	}
	return l
}

func (l *load) end() {
	l.stop()
	l.done.Wait() // its members have no errors
}

func (s *fencing) loadItem(r *region, f flow, phase string, worker, n int) item {
	idem := fmt.Sprintf("%s/%s/%s/%d/%d", phase, r.name, f.topic, worker, n)
	w := client.Write{Topic: f.topic, Idem: idem, Value: fmt.Appendf(nil, `{"load":%q,"pad":%q}`, idem, "0123456789abcdefghijklmnopqrstuvwxyz")}
	switch f.topic {
	case flightsTopic:
		w.Key = fmt.Sprintf("airport/%d", n%20)
	case ordersTopic:
		w.Key = fmt.Sprintf("order/%s/%d", r.name, n%10)
		w.Headers = []client.Header{{Name: "home", Value: r.name}}
	case githubTopic:
		w.Key = []string{"octo-org/octo-repo", "octocat/hello-world"}[n%2]
	case catalogueTopic:
		w.Key = fmt.Sprintf("article/%d", n%10)
	}
	return item{w, n}
}

// try sends one write once and notes what came of it.
func (s *fencing) try(ctx context.Context, r *region, f flow, it item) *attempt {
	// Not the load's context: a request that was sent is waited for, so that the
	// diary knows its answer.
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadWait)
	defer cancel()
	a := &attempt{item: it, region: r.name, unit: f.unit, sent: time.Now()}
	a.answer, a.err = r.gateway.Try(ask, it.Write)
	a.got = time.Now()
	s.diary.add(a)
	return a
}
