package txn

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// recordBytes are the bytes of records with keys, values and headers of all shapes.
func recordBytes(rnd *rand.Rand, n int) (raw []byte) {
	text := func() []byte {
		if rnd.IntN(5) == 0 {
			return nil
		}
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = byte(rnd.IntN(4))
		}
		return b
	}
	for i := range n {
		headers := make([]event.Header, rnd.IntN(16))
		if rnd.IntN(20) == 0 {
			headers = make([]event.Header, 3*headersAtOnce)
		}
		for h := range headers {
			headers[h] = event.Header{Key: fmt.Sprint("h", h%7, rnd.IntN(2)), Value: text()}
		}
		body := binary.AppendVarint([]byte{0, byte(2 * rnd.IntN(3))}, int64(i))
		body = appendBody(body, text(), text(), headers)
		raw = append(binary.AppendVarint(raw, int64(len(body))), body...)
	}
	return raw
}

// TestWalkAgain: what a walk gives in the memory of others is what a walk of its own gives,
// for as long as it is valid, and a clone of it stays so.
func TestWalkAgain(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 1))
	d := NewDecoder(Limits{RecordHeaders: 2 * headersAtOnce})
	var w Walk
	var kept, want []Entry
	for range 20 {
		n := rnd.IntN(30)
		raw := recordBytes(rnd, n)
		for name, form := range packed(t, raw) {
			b := handMade(form.codec, int32(n), form.bytes)
			if rnd.IntN(10) == 0 {
				b = handMade(form.codec, int32(n), form.bytes[:len(form.bytes)/2]) // is refused
			}
			from := int64(rnd.IntN(3))
			if err := w.Reuse(d, b, from); err != nil {
				t.Fatal(err)
			}
			var e Entry
			for _, x := range d.Entries(b, from) {
				if !w.NextInto(&e) || !reflect.DeepEqual(e, x) {
					t.Fatalf("%s: %+v, want %+v", name, e, x)
				}
				kept, want = append(kept, *e.Clone()), append(want, x)
			}
			if rnd.IntN(2) == 0 && w.NextInto(&e) { // a walk may be left before its end
				t.Fatalf("%s: more than there is: %+v", name, e)
			}
		}
	}
	if len(kept) < 100 || !reflect.DeepEqual(kept, want) {
		t.Fatalf("%d entries that were kept have changed, or are too few", len(kept))
	}
}
