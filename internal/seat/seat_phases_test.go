package seat_test

import (
	"sync"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/seat"
)

type counted struct {
	mu sync.Mutex
	n  int
}

func (c *counted) Observe(float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestPhasesAreMeasured: each write alone is accepted, produced and read back once.
func TestPhasesAreMeasured(t *testing.T) {
	c := fakeCluster(t)
	var accept, produce, back counted
	in := c.start("a", dedupe.NewMemory(), newFolder(), func(cfg *seat.Config) {
		cfg.Phases = seat.Phases{Accept: &accept, Produce: &produce, ReadBack: &back}
	}).ready()
	defer in.stop()
	const writes = 5
	for i := range byte(writes) {
		in.mustWrite(i, "v")
	}
	for produce.count() < writes { // its goroutine may be a little later than the answer
		select {
		case <-t.Context().Done():
			t.Fatal("acknowledgements are not measured")
		case <-time.After(time.Millisecond):
		}
	}
	if accept.count() != writes || produce.count() != writes || back.count() != writes {
		t.Errorf("%d writes: %d accepted, %d produced, %d read back", writes, accept.count(), produce.count(), back.count())
	}
}
