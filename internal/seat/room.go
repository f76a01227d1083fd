package seat

import "sync/atomic"

// Room bounds the bytes of the writes that all seats of an instance hold together. A write
// counts from when its seat takes it until it is settled, also when its client has gone: a
// broker that does not answer can make those many. A seat may hold at most as much as it
// leaves free for the others, so that partitions that cannot store anything do not take all.
// A nil Room has no limit. It is safe for concurrent use.
type Room struct {
	most int64
	held atomic.Int64
}

// NewRoom makes room for most bytes. A write of more than half of them is always refused.
func NewRoom(most int64) *Room { return &Room{most: most} }

// Held is how many bytes are held.
func (r *Room) Held() int64 {
	if r == nil {
		return 0
	}
	return r.held.Load()
}

// take takes n bytes for a seat that holds own, if it may have them. A seat that holds
// nothing may take a small write as long as it fits.
func (r *Room) take(own, n int) bool {
	if r == nil {
		return true
	}
	for {
		held := r.held.Load()
		left := r.most - held - int64(n)
		first := own == 0 && int64(n) <= r.most/1000
		if left < 0 || !first && int64(own+n) > left {
			return false
		}
		if r.held.CompareAndSwap(held, held+int64(n)) {
			return true
		}
	}
}

// give gives n bytes back.
func (r *Room) give(n int) {
	if r != nil {
		r.held.Add(-int64(n))
	}
}
