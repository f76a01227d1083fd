package seat

import (
	"testing"
	"time"
)

type observed []float64

func (o *observed) Observe(s float64) { *o = append(*o, s) }

// TestPhasesOfABatch: what is read back before its acknowledgement came has waited for
// nothing.
func TestPhasesOfABatch(t *testing.T) {
	var produce, back observed
	p := &Phases{Produce: &produce, ReadBack: &back}
	b := &sentBatch{sent: time.Now().Add(-time.Second)}
	b.readBack(p)
	b.acknowledged(p)
	b.readBack(p)
	if len(produce) != 1 || produce[0] < 1 || len(back) != 2 || back[0] != 0 || back[1] < 0 || back[1] > produce[0] {
		t.Errorf("produce %v, read back %v", produce, back)
	}
	observe(nil, time.Second) // measured by nobody
}
