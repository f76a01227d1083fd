package connect

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// refusedPause and refusedMost are how long a broker that has refused is not tried, after
	// the first refusal and at most.
	refusedPause = time.Second
	refusedMost  = 15 * time.Second
	// forgetAfter is how long a broker is remembered after the last attempt to reach it, and
	// after its last connection was closed.
	forgetAfter = 5 * time.Minute
	// maxBrokers bounds what is remembered: more than any cluster has.
	maxBrokers = 4096
)

// brokers remembers which brokers of a cluster cannot be reached or refuse, and when the
// certificates of the others end.
type brokers struct {
	mu      sync.Mutex
	failing map[string]failure     // by address
	certs   map[string]certificate // by address
	// closedAuth has the addresses of brokers that have closed a connection during authentication.
	closedAuth map[string]bool
}

// failure is the last error of a broker.
type failure struct {
	err     error
	kind    Kind
	last    time.Time
	refused int       // times in a row
	until   time.Time // not tried before
}

// backoff returns the last refusal of a broker that is not to be tried yet, nil if it may be.
func (b *brokers) backoff(addr string, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.failing[addr]; now.Before(f.until) {
		return &backoffError{f.err}
	}
	return nil
}

// note takes the outcome of an attempt to connect.
func (b *brokers) note(addr string, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.failing, addr)
		return
	}
	if _, notTried := errors.AsType[*backoffError](err); notTried {
		if f, ok := b.failing[addr]; ok { // else another connection has succeeded since
			f.last = now
			b.failing[addr] = f
		}
		return
	}
	b.trim(now)
	if b.failing == nil {
		b.failing = make(map[string]failure)
	}
	f := b.failing[addr]
	f.err, f.kind, f.last = err, KindOf(err), now
	switch {
	case f.kind == Unreachable:
		f.refused, f.until = 0, time.Time{}
	case !now.Before(f.until): // not one of several attempts at a time
		f.until = now.Add(min(refusedPause<<min(f.refused, 4), refusedMost))
		f.refused++
	}
	b.failing[addr] = f
}

// setClosedAuth remembers that a broker has closed a connection during authentication, until
// takeClosedAuth asks.
func (b *brokers) setClosedAuth(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closedAuth == nil || len(b.closedAuth) >= maxBrokers {
		b.closedAuth = make(map[string]bool)
	}
	b.closedAuth[addr] = true
}

func (b *brokers) takeClosedAuth(addr string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.closedAuth[addr]
	delete(b.closedAuth, addr)
	return was
}

// trim forgets brokers that nobody tries to reach any more; mu is held.
func (b *brokers) trim(now time.Time) {
	maps.DeleteFunc(b.failing, func(_ string, f failure) bool { return now.Sub(f.last) > forgetAfter })
	if len(b.failing) >= maxBrokers {
		clear(b.failing)
	}
}

// release lets all brokers be tried again at once: the secrets have changed.
func (b *brokers) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for addr, f := range b.failing {
		f.refused, f.until = 0, time.Time{}
		b.failing[addr] = f
	}
}

// certificate is the certificate of a broker, as its newest connection has it.
type certificate struct {
	end    time.Time
	open   int       // connections
	closed time.Time // the last of them, if none is open
}

// connected notes a new connection, and when the broker's certificate ends.
func (b *brokers) connected(addr string, end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.certs == nil || len(b.certs) >= maxBrokers {
		b.certs = make(map[string]certificate)
	}
	b.certs[addr] = certificate{end: end, open: b.certs[addr].open + 1}
}

// disconnected notes that a connection was closed. A broker that has left the cluster is
// forgotten some time after its last one.
func (b *brokers) disconnected(addr string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.certs[addr]; ok {
		c.open, c.closed = max(c.open-1, 0), now
		b.certs[addr] = c
	}
}

// trouble is a kind of failure: the first broker, by address, that has it, and how many do.
type trouble struct {
	addr string
	failure
	brokers int
}

// troubles returns the failures of brokers by kind.
func (b *brokers) troubles(now time.Time) map[Kind]trouble {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trim(now)
	out := make(map[Kind]trouble)
	for _, addr := range slices.Sorted(maps.Keys(b.failing)) {
		f := b.failing[addr]
		x, ok := out[f.kind]
		if !ok {
			x = trouble{addr: addr, failure: f}
		}
		x.brokers++
		out[f.kind] = x
	}
	return out
}

// endsFirst returns the broker whose certificate ends first, "" if none is known.
func (b *brokers) endsFirst(now time.Time) (addr string, end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.certs, func(_ string, c certificate) bool { return c.open == 0 && now.Sub(c.closed) > forgetAfter })
	if len(b.certs) == 0 {
		return "", time.Time{}
	}
	addr = slices.MinFunc(slices.Sorted(maps.Keys(b.certs)), func(x, y string) int { return b.certs[x].end.Compare(b.certs[y].end) })
	return addr, b.certs[addr].end
}
