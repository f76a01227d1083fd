package view

import (
	"sync"
	"sync/atomic"
)

// Room bounds what the items of all partitions of an instance keep in memory together, from
// when a view takes them until they are committed. A partition alone has its own bound
// (Config.QueueBytes); of many that are behind at once each has less.
type Room struct {
	views atomic.Int64 // that run

	mu    sync.Mutex
	free  int
	moved chan struct{} // closed and replaced when there is room again
}

// ownRoom is what a partition may keep however little room there is, so that each goes on.
const ownRoom = 256 << 10

// NewRoom makes room for a number of bytes.
func NewRoom(bytes int) *Room { return &Room{free: bytes, moved: make(chan struct{})} }

// enter takes n bytes if any are free, or if it must, and tells whether it did; if not, there
// may be room when wait is closed. What enters last may be more than was free.
func (r *Room) enter(n int, must bool) (ok bool, wait <-chan struct{}) {
	if r == nil {
		return true, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free <= 0 && !must {
		return false, r.moved
	}
	r.free -= n
	return true, nil
}

func (r *Room) leave(n int) {
	if r == nil || n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free += n; r.free > 0 {
		close(r.moved)
		r.moved = make(chan struct{})
	}
}

// join counts a view that runs, until left is called.
func (r *Room) join() (left func()) {
	if r == nil {
		return func() {}
	}
	r.views.Add(1)
	return func() { r.views.Add(-1) }
}

// cacheShare is how much one view keeps of the entities that it folded last.
func (r *Room) cacheShare() int {
	if r == nil {
		return cacheBytes
	}
	return min(cacheBytes, max(leastCache, int(cachesBytes/max(r.views.Load(), 1))))
}
