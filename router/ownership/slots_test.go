package ownership

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
)

// TestSlots: whatever epochs and names there are, nothing that the newest record names, or
// that one may be about to name, is pushed out; and what nobody needs does not pile up.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const kept, parts = 4, 3
		c := &Core{cfg: CoreConfig{Kept: kept}, slots: map[string]slot{}}
		u := &UnitRecord{Unit: "air/eu", Epoch: 18, Epochs: []Tenure{{Epoch: 18, Owner: "eu"}}}
		there := map[string][]string{} // sums by subject, as a register keeps them
		most := rapid.IntRange(1, 3).Draw(t, "epochs that are not settled")
		seq := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "records") {
			u.Epoch += 16
			seq++
			sum := fmt.Sprint("sum", seq)
			for part := range rapid.IntRange(1, parts).Draw(t, "parts") {
				r := &ExtentsRecord{Unit: u.Unit, Epoch: u.Epoch, Sum: sum, Part: part, Parts: parts}
				subject, expect := c.slotFor(r, u)
				if s := c.slots[subject]; expect != s.newest() {
					t.Fatalf("the condition for %s is %d, its newest %d", subject, expect, s.newest())
				}
				seq++
				c.slotted(subject, seq, r)
				if there[subject] = append(there[subject], sum); len(there[subject]) > kept {
					there[subject] = there[subject][1:]
				}
			}
			if rapid.Bool().Draw(t, "named") {
				u.Epochs = append(u.Epochs, Tenure{Epoch: u.Epoch, Owner: "eu", StartAt: &ExtentsRef{Sum: sum, Parts: 1}})
				u.Epochs = u.Epochs[max(0, len(u.Epochs)-most):]
			}
			all := slices.Concat(slices.Collect(maps.Values(there))...)
			for sum := range u.named() {
				if !slices.Contains(all, sum) {
					t.Fatalf("%s is named, and gone: %v", sum, there)
				}
			}
			// Each part that is named, or is about to be, keeps one slot closed at most.
			if len(there) > parts*(most+1)+1 {
				t.Fatalf("%d slots for %d sets: %v", len(there), most, there)
			}
		}
	})
}

// TestStoredParts: what is in the register need not be stored again where it stays for the
// record that is written next, and has to be where it may be pushed out before.
func TestStoredParts(t *testing.T) {
	parts := split("air/eu", 34, wide(2, 2, 1))
	var sets ExtentSets
	if sets.stored(&parts[0], nil) {
		t.Fatal("stored before it was seen")
	}
	sets.Take(&parts[0])
	named := []Tenure{{Epoch: 34, CutAt: &ExtentsRef{Sum: parts[0].Sum, Parts: 1}}}
	for _, c := range []struct {
		epoch  event.Epoch
		epochs []Tenure
		want   bool
	}{{18, nil, true}, {34, nil, true}, {50, nil, false}, {50, named, true}} {
		u := &UnitRecord{Unit: "air/eu", Epoch: c.epoch, Epochs: c.epochs}
		if got := sets.stored(&parts[0], u); got != c.want {
			t.Errorf("stored in epoch 34, record of epoch %d that names %v: %t", c.epoch, u.named(), got)
		}
	}
}
