package connect

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// refusedPause and refusedMost are how long a broker that has refused is left alone, after
	// the first time and at most.
	refusedPause = time.Second
	refusedMost  = 15 * time.Second
	// forgetAfter is when a broker that nobody has tried to reach since is not spoken of any more.
	forgetAfter = 5 * time.Minute
	// maxBrokers bounds what is remembered: more than any cluster has.
	maxBrokers = 4096
)

// brokers remembers which brokers of a cluster cannot be reached or refuse, and when the
// certificates of the others end.
type brokers struct {
	mu      sync.Mutex
	failing map[string]failure   // by address
	expires map[string]time.Time // when certificates end, by address
	cut     map[string]bool      // by address: has closed a connection during authentication
}

// failure is what a broker has said last.
type failure struct {
	err     error
	kind    Kind
	last    time.Time
	refused int       // times in a row
	until   time.Time // left alone until then
}

// held gives the error of a broker that is left alone, nil of one that may be tried.
func (b *brokers) held(addr string, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.failing[addr]; now.Before(f.until) {
		return &heldError{f.err}
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
	if _, held := errors.AsType[*heldError](err); held {
		f := b.failing[addr]
		f.last = now
		b.failing[addr] = f
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

// setCutOff remembers that a broker has closed a connection during authentication, until
// cutOff asks.
func (b *brokers) setCutOff(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut == nil || len(b.cut) >= maxBrokers {
		b.cut = make(map[string]bool)
	}
	b.cut[addr] = true
}

func (b *brokers) cutOff(addr string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.cut[addr]
	delete(b.cut, addr)
	return was
}

// trim forgets brokers that nobody tries to reach any more; mu is held.
func (b *brokers) trim(now time.Time) {
	maps.DeleteFunc(b.failing, func(_ string, f failure) bool { return now.Sub(f.last) > forgetAfter })
	if len(b.failing) >= maxBrokers {
		clear(b.failing)
	}
}

// release lets all brokers be tried at once: the secrets are others.
func (b *brokers) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for addr, f := range b.failing {
		f.refused, f.until = 0, time.Time{}
		b.failing[addr] = f
	}
}

// certificate takes when a broker's certificate ends.
func (b *brokers) certificate(addr string, end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expires == nil || len(b.expires) >= maxBrokers {
		b.expires = make(map[string]time.Time)
	}
	b.expires[addr] = end
}

// trouble is what the brokers of one kind say: the latest of them, and how many there are.
type trouble struct {
	addr string
	failure
	brokers int
}

// troubles gives what there is, by kind.
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

// endsFirst gives the broker whose certificate ends first.
func (b *brokers) endsFirst() (addr string, end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.expires) == 0 {
		return "", time.Time{}
	}
	addr = slices.MinFunc(slices.Sorted(maps.Keys(b.expires)), func(x, y string) int {
		return cmp.Compare(b.expires[x].UnixNano(), b.expires[y].UnixNano())
	})
	return addr, b.expires[addr]
}
