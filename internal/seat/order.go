package seat

import (
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
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
	seed      maphash.Seed
	anyFailed atomic.Bool // until it is set, mu need not be taken

	mu     sync.Mutex
	stops  map[uint64]struct{} // hashes of record keys
	halted bool
}

// NewOrder makes an Order in which nothing has failed.
func NewOrder() *Order { return &Order{seed: maphash.MakeSeed()} }

// Retry begins a record key again: all of its writes have been answered, and those that
// failed will be submitted again, from the first one on. A halted Order stays so.
func (o *Order) Retry(key []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.stops, o.hash(key))
}

// Fail notes that a write was refused before a seat got it, and may be stored when it is
// sent again.
func (o *Order) Fail(key []byte) {
	if o == nil || key == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.anyFailed.Store(true)
	if o.stops == nil {
		o.stops = make(map[uint64]struct{})
	}
	o.stops[o.hash(key)] = struct{}{}
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
	o.anyFailed.Store(true)
}

// Stops tells whether a write of the record key would be refused with ErrAfterFailure.
func (o *Order) Stops(key []byte) bool {
	if o == nil || !o.anyFailed.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.halted || key == nil || len(o.stops) == 0 {
		return o.halted
	}
	_, stops := o.stops[o.hash(key)]
	return stops
}

// failed notes how a seat has answered a write; stops tells whether those of its key
// after it are refused.
func (o *Order) failed(key []byte, err error) (stops bool) {
	var reused *ReusedError
	if o == nil || errors.Is(err, ErrTooLarge) || errors.As(err, &reused) {
		return false
	}
	o.Fail(key)
	return true
}

func (o *Order) hash(key []byte) uint64 { return maphash.Bytes(o.seed, key) }
