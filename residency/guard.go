package residency

import (
	"sync"
	"time"
)

// State says whether a Guard has a policy in force.
type State string

// The states.
const (
	On      State = "on"
	Stopped State = "stopped" // the file has not loaded for max_age: nothing leaves
)

// Guard holds the policy in force. Who lets records out asks it for rulings and
// gives up each as soon as Version has moved on.
type Guard struct {
	mu      sync.Mutex
	policy  *Policy // guarded by mu, as everything below
	version uint64
	failed  time.Time // since when the file has not loaded, zero while it does
	seen    time.Time // when it last failed
	age     time.Duration
	err     error
	stopped bool
	changed chan struct{}
}

// NewGuard begins with a policy.
func NewGuard(p *Policy) *Guard { return &Guard{policy: p, version: 1, changed: make(chan struct{})} }

// move makes all rulings given so far void; mu is held.
func (g *Guard) move() {
	g.version++
	close(g.changed)
	g.changed = make(chan struct{})
}

// Loaded tells that the file was read and is good. It tells whether anything has
// changed by it.
func (g *Guard) Loaded(p *Policy) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	same := p.Digest == g.policy.Digest && !g.stopped
	g.failed, g.age, g.err, g.stopped = time.Time{}, 0, nil, false
	if same {
		return false
	}
	g.policy = p
	g.move()
	return true
}

// Failed tells that the file could not be read or is not good. The policy stays
// until it has failed for max_age. It tells whether egress has stopped by it.
//
// The time is added up from call to call: a clock that is set back takes nothing
// off it but what lies between two calls.
func (g *Guard) Failed(now time.Time, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	if g.failed.IsZero() {
		g.failed, g.seen = now, now
	}
	g.age += max(0, now.Sub(g.seen))
	g.seen = now
	if g.stopped || g.age < g.policy.MaxAge {
		return false
	}
	g.stopped = true
	g.move()
	return true
}

// Deadline is when egress stops unless the file loads again; zero when it does.
func (g *Guard) Deadline() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed.IsZero() || g.stopped {
		return time.Time{}
	}
	return g.seen.Add(g.policy.MaxAge - g.age)
}

// Version is that of the rulings given now. A ruling with another one must not be
// used any more.
func (g *Guard) Version() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.version
}

// Changed returns a channel that is closed when Version moves on. Take it before
// asking for rulings.
func (g *Guard) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// StoppedRule is named as the rule where everything is denied because no policy is
// in force.
const StoppedRule = "stopped"

// Rule gives the ruling for a topic on a way, denying everything while stopped.
func (g *Guard) Rule(topic, from, to string) *Ruling {
	g.mu.Lock()
	p, version, stopped := g.policy, g.version, g.stopped
	g.mu.Unlock()
	r := p.ruling(topic, from, to)
	r.Rule = StoppedRule
	if !stopped {
		r = p.Compile(topic, from, to)
	}
	r.Version = version
	return r
}

// Status is a Guard's state for people.
type Status struct {
	State    State
	Name     string
	Revision int64
	SHA256   string
	// Err is why the file does not load, nil if it does, and Since since when.
	Err   error
	Since time.Time
}

// Status is the guard's state and its policy.
func (g *Guard) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := Status{State: On, Name: g.policy.Name, Revision: g.policy.Revision, SHA256: g.policy.SHA256(), Err: g.err, Since: g.failed}
	if g.stopped {
		st.State = Stopped
	}
	return st
}
