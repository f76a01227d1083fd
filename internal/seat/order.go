package seat

import (
	"errors"
	"hash/maphash"
	"sync"
)

// maxFailedKeys bounds the record keys that an Order remembers because a write of
// theirs has failed. Beyond it nothing more of the order is stored.
const maxFailedKeys = 10_000

// Order is a sequence of writes whose places among those of the same record key
// count: the lines of one stream. They may go to several seats. Writes of one key
// are stored in the order in which they are submitted, and none after one that
// failed but may be stored when it is sent again, or may be stored already: what
// the client does then must end with the last of them.
//
// A write that is wrong in itself (too large, a key that was used for another
// request) stops nothing. Writes without a record key have no order.
//
// An Order is safe for concurrent use. A nil Order orders nothing.
type Order struct {
	mu     sync.Mutex
	seed   maphash.Seed
	stops  map[uint64]struct{} // hashes of record keys
	halted bool
}

// NewOrder makes an Order in which nothing has failed.
func NewOrder() *Order { return &Order{seed: maphash.MakeSeed()} }

// Retry begins a record key again: its failed writes have all been answered and will be
// submitted again, from the first one on. A halted Order stays so.
func (o *Order) Retry(key []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.stops, maphash.Bytes(o.seed, key))
}

// Fail notes that a write was refused before a seat got it, and may be stored when it is
// sent again.
func (o *Order) Fail(key []byte) {
	if o == nil || key == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stops == nil {
		o.stops = make(map[uint64]struct{})
	}
	o.stops[maphash.Bytes(o.seed, key)] = struct{}{}
	if len(o.stops) > maxFailedKeys {
		o.halted, o.stops = true, nil
	}
}

// Halt has nothing more of the order stored: a write whose record key is not known has
// failed.
func (o *Order) Halt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.halted = true
}

// Stops tells whether a write of the record key would be refused with ErrAfterFailure.
func (o *Order) Stops(key []byte) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.halted || key == nil || len(o.stops) == 0 {
		return o.halted
	}
	_, stops := o.stops[maphash.Bytes(o.seed, key)]
	return stops
}

// failed notes how a seat has answered a write.
func (o *Order) failed(key []byte, err error) {
	var reused *ReusedError
	if o == nil || errors.Is(err, ErrTooLarge) || errors.As(err, &reused) {
		return
	}
	o.Fail(key)
}
