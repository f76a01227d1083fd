package gateway

import (
	"crypto/sha256"
	"sync"

	"github.com/geogate/geogate/router/ownership"
)

// maxFailedKeys bounds the record keys that a stream remembers because a line of
// theirs has failed. Beyond it nothing more of the stream is stored.
const maxFailedKeys = 10_000

// keyOrder lets the lines of a stream that have one record key be stored one after
// the other, and none after one that has failed but may succeed when it is sent
// again: what the client does then must end with the last line. It belongs to the
// goroutine that reads lines.
type keyOrder struct {
	last   map[[sha256.Size]byte]*turn // of each record key
	scanAt int                         // size of last at which it is searched for what can go
	halted bool                        // nothing more may be stored
}

// turn is one line's place among those of its record key.
type turn struct {
	ended  chan struct{} // closed when the line is answered
	failed bool          // valid once ended is closed
}

func newKeyOrder() keyOrder {
	return keyOrder{last: make(map[[sha256.Size]byte]*turn), scanAt: 2 * streamWindow}
}

// follow gives the turn before t for a record key; nil if there is none.
func (o *keyOrder) follow(key []byte, t *turn) *turn {
	if len(o.last) >= o.scanAt {
		o.forget()
	}
	h := sha256.Sum256(key)
	before := o.last[h]
	o.last[h] = t
	return before
}

// forget drops the turns that have ended well. Those that have failed stay.
func (o *keyOrder) forget() {
	failed := 0
	for h, t := range o.last {
		select {
		case <-t.ended:
			if t.failed {
				failed++
				continue
			}
			delete(o.last, h)
		default:
		}
	}
	o.scanAt = max(2*streamWindow, 2*len(o.last))
	o.halted = o.halted || failed > maxFailedKeys
}

// mayStillBeStored tells whether a line that was refused may be stored when it is
// sent again, or may be stored already: no later line of its key may then come
// before it. A line that is wrong in itself stays wrong. NOT_OWNER passes when an
// operator changes the owner, but where the record says who that is, it is about
// this line alone.
func mayStillBeStored(p *problem, t Topic) bool {
	if p.code == codeNotOwner {
		return t.Domain.Mode != ownership.ByKey
	}
	return p.retriable || p.code.kind().status >= 500
}

// afterFailure is the answer to a line that comes after one that has failed.
func afterFailure() *problem {
	return newProblem(codeNotReady, "an earlier line of this stream was not stored, so this one was not either, to preserve their order; send the stream again from its start")
}

// waited are the partitions that a stream has waited for in vain.
type waited struct {
	mu     sync.Mutex
	vainly map[int32]bool
}

func (w *waited) inVain(p int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.vainly[p]
}

func (w *waited) set(p int32, vainly bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.vainly == nil {
		w.vainly = make(map[int32]bool)
	}
	w.vainly[p] = vainly
}
