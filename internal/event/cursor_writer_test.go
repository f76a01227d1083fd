package event_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// TestCursorWriter writes random cursors in random order of their partitions; each is what
// Cursor.String gives.
func TestCursorWriter(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		c := event.Cursor{View: event.View(rnd.IntN(17)), Topic: event.HashTopic("t"), Visible: event.RegionID(1 + rnd.IntN(15)), At: map[int32]event.Vector{}}
		w := event.NewCursorWriter(c.View, c.Topic, c.Visible)
		for step := range 300 {
			p := int32(rnd.IntN(1 + rnd.IntN(12)))
			if rnd.IntN(3) == 0 {
				p += 1 << 30
			}
			v := c.At[p]
			switch r := rnd.IntN(16); rnd.IntN(12) {
			case 0:
				v = event.Vector{}
			case 1:
				v[r] = event.Point{Incarnation: uint16(rnd.Uint32())}
			case 2:
				v[r] = event.Point{Next: rnd.Int64()}
			default:
				v[r].Next++ // mostly of the same length
			}
			c.At[p] = v
			w.Set(p, &v)
			if rnd.IntN(2) == 0 {
				continue // the next cursor has more than one change
			}
			got := string(w.Append([]byte("x")))
			if got != "x"+c.String() {
				t.Fatalf("seed %d, step %d: %s, want x%s", seed, step, got, c)
			}
			if v[0] == (event.Point{}) { // no region has the id 0
				continue
			}
			delete(c.At, p)
			w.Set(p, &event.Vector{})
		}
		want := maps.Clone(c.At)
		maps.DeleteFunc(want, func(_ int32, v event.Vector) bool { return v.IsZero() })
		if got, err := event.ParseCursor(string(w.Append(nil))); err == nil && !maps.Equal(got.At, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got.At, want)
		}
	}
}

func BenchmarkCursorWriter(b *testing.B) {
	w := event.NewCursorWriter(event.MergedView, event.HashTopic("t"), 1)
	var at [6]event.Vector
	var dst []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := i % len(at)
		at[p][1+i%2].Next = int64(1e6 + i%1000)
		w.Set(int32(p), &at[p])
		dst = w.Append(dst[:0])
	}
}
