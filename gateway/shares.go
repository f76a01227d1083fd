package gateway

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// shares divides something of which there is a limited amount (bytes, reads,
// connections) between peers. A peer may hold as much as is left free: one that is
// alone half of it, since many clients behind one proxy are one peer, and the less
// is free, the less may those have that hold the most. So there is always
// something left for one that holds nothing yet.
//
// Invariants: the sum of held is used, which is at most most; no entry of held is 0.
type shares struct {
	most int64

	mu    sync.Mutex
	used  int64
	held  map[peer]int64
	given chan struct{} // closed when something is given back; nil while nobody waits
}

// peer is whom a connection counts for: its address, or for IPv6 the network of 64
// bits that one site has.
type peer = netip.Addr

// peerOf is the peer of a connection's remote address.
func peerOf(remote string) peer {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return peer{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		const site = 64
		if network, err := ip.Prefix(site); err == nil {
			return network.Addr()
		}
	}
	return ip
}

// MaxShare is the most that one peer gets of something.
func MaxShare(most int64) int64 { return most / 2 }

func newShares(most int64) *shares { return &shares{most: most, held: make(map[peer]int64)} }

// take takes n for a peer if it may have that now. Whoever holds nothing gets a
// small first part as long as it fits.
func (s *shares) take(p peer, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant(p, n)
}

func (s *shares) grant(p peer, n int64) bool {
	left := s.most - s.used - n
	first := s.held[p] == 0 && n <= max(1, s.most/1000)
	if left < 0 || !first && s.held[p]+n > left {
		return false
	}
	s.add(p, n)
	return true
}

func (s *shares) add(p peer, n int64) {
	s.used += n
	if s.held[p] += n; s.held[p] == 0 {
		delete(s.held, p)
	}
}

// await takes n for a peer, and waits for it until it may have that: no longer
// than patience, nor than ctx. It reports whether it has.
func (s *shares) await(ctx context.Context, p peer, n int64, patience time.Duration) bool {
	if s.take(p, n) {
		return true
	}
	if patience <= 0 {
		return false
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		s.mu.Lock()
		if s.grant(p, n) {
			s.mu.Unlock()
			return true
		}
		if s.given == nil {
			s.given = make(chan struct{})
		}
		given := s.given
		s.mu.Unlock()
		select {
		case <-given:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// give gives n of a peer's back.
func (s *shares) give(p peer, n int64) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(p, -n)
	if s.given != nil {
		close(s.given)
		s.given = nil
	}
}

// total is how much is held.
func (s *shares) total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// hold is what one request has of the shares. It belongs to the request's
// goroutine. A hold of nil has no limit.
type hold struct {
	of *shares
	by peer
	n  int64
}

// resize makes the hold n large; more than one peer may ever have counts as that.
// What grows waits as long as patience says, and fails with OVERLOADED.
func (h *hold) resize(ctx context.Context, n int64, patience time.Duration) error {
	if h.of == nil {
		return nil
	}
	n = min(n, max(MaxShare(h.of.most), 1))
	more := n - h.n
	if more > 0 && !h.of.await(ctx, h.by, more, patience) {
		return newProblem(codeOverloaded, "too much is in flight, or too much of it for this address; retry")
	}
	if more < 0 {
		h.of.give(h.by, -more)
	}
	h.n = n
	return nil
}

// release gives all back.
func (h *hold) release() {
	if h.n > 0 {
		h.of.give(h.by, h.n)
		h.n = 0
	}
}
