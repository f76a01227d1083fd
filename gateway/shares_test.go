package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func peerN(n int) peer { return netip.AddrFrom4([4]byte{127, 0, byte(n >> 8), byte(n)}) }

// TestSharesLeaveRoom: however many peers take all they can get, one that comes
// later still gets a part, and one that is alone gets most.
func TestSharesLeaveRoom(t *testing.T) {
	const most = 256 << 20
	s := newShares(most)
	grab := func(p peer) {
		for n := int64(32 << 20); n > 0; {
			if !s.take(p, n) {
				n /= 2
			}
		}
	}
	for i := range 10 {
		if i > 0 && !s.take(peerN(i), 64<<10) {
			t.Fatalf("peer %d gets nothing; %d of %d are used", i, s.used, most)
		}
		grab(peerN(i))
		if share := s.held[peerN(0)]; i == 0 && (share != most/2) {
			t.Errorf("one peer alone gets %d of %d", share, most)
		}
		if free := most - s.used; free < most>>(i+1) {
			t.Errorf("after %d peers %d are free", i+1, free)
		}
	}
}

// TestSharesAddUp plays random takes and gives.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newShares(rapid.Int64Range(1, 1000).Draw(t, "most"))
		var holds []hold
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(holds) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(holds)-1).Draw(t, "which")
				holds[i].release()
				holds = append(holds[:i], holds[i+1:]...)
			} else if h := (hold{of: s, by: peerN(rapid.IntRange(0, 3).Draw(t, "peer"))}); s.take(h.by, rapid.Int64Range(1, 300).Draw(t, "n")) {
				h.n = s.used - sum(holds)
				holds = append(holds, h)
			}
			if s.used != sum(holds) || s.used > s.most {
				t.Fatalf("%d of %d are used, the holds have %d", s.used, s.most, sum(holds))
			}
		}
		for i := range holds {
			holds[i].release()
		}
		if s.used != 0 || len(s.held) != 0 {
			t.Fatalf("at the end %d are used by %v", s.used, s.held)
		}
	})
}

func sum(holds []hold) (n int64) {
	for _, h := range holds {
		n += h.n
	}
	return n
}

func TestSharesAreWaitedFor(t *testing.T) {
	s := newShares(100)
	if !s.take(peerN(1), 50) || s.take(peerN(1), 1) {
		t.Fatal("a peer alone may hold half, and no more")
	}
	if s.await(context.Background(), peerN(1), 1, time.Nanosecond) {
		t.Error("more was given out than may be")
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if s.await(gone, peerN(1), 1, time.Hour) {
		t.Error("what nobody waits for any more was given out")
	}
	var waiting sync.WaitGroup
	for i := range 10 {
		waiting.Go(func() {
			if !s.await(context.Background(), peerN(2+i), 30, time.Hour) {
				t.Errorf("the peer %d waited in vain", i)
				return
			}
			s.give(peerN(2+i), 30)
		})
	}
	s.give(peerN(1), 50)
	waiting.Wait()
	if s.total() != 0 {
		t.Errorf("%d are still held", s.total())
	}
}

func TestPeers(t *testing.T) {
	for remote, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1", "127.0.0.2:80": "127.0.0.2", "[::ffff:10.1.2.3]:80": "10.1.2.3", "[::1]:80": "::",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::", "[2001:db8:1:2:ffff::]:9": "2001:db8:1:2::", "[fe80::1%eth0]:80": "fe80::", "pipe": "invalid IP",
	} {
		if got := fmt.Sprint(peerOf(remote)); got != want {
			t.Errorf("%s counts for %s, want %s", remote, got, want)
		}
	}
}
