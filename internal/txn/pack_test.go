package txn

import (
	"bytes"
	"fmt"
	"testing"
)

// What is packed has the order of its partition, in as few batches as the limit allows, or each
// alone, and shares no memory with what was added.
func TestPacking(t *testing.T) {
	for name, pack := range map[string]func(*Producer) *Packing{"together": (*Producer).Pack, "apart": (*Producer).PackApart} {
		t.Run(name, func(t *testing.T) {
			p := &Producer{opts: Options{Codec: Codec, BatchBytes: 4000}}
			for range 3 { // memory is used again
				k := pack(p)
				value := make([]byte, 900)
				want := map[TopicPartition][]string{}
				var order []TopicPartition
				for i := range 50 {
					r := Record{Topic: []string{"t", "u"}[i%2], Partition: int32(i / 2 % 2), Timestamp: int64(i)}
					copy(value, fmt.Sprintf("%04d", i))
					if r.Value = value; i%7 == 0 {
						r.Value = value[:4]
					}
					tp := TopicPartition{r.Topic, r.Partition}
					want[tp], order = append(want[tp], string(r.Value)), append(order, tp)
					if err := k.Add(&r); err != nil {
						t.Fatal(err)
					}
					clear(value)
				}
				batches, err := k.finish()
				if err != nil {
					t.Fatal(err)
				}
				got := map[TopicPartition][]string{}
				d := NewDecoder(Limits{})
				for i, b := range batches {
					tp := TopicPartition{b.Topic, b.Partition}
					w := d.Walk(b.Batch, 0)
					n := 0
					for e, ok := w.Next(); ok; e, ok = w.Next() {
						got[tp] = append(got[tp], string(bytes.Clone(e.Value)))
						n++
					}
					if apart := name == "apart"; apart && (n != 1 || tp != order[i]) || !apart && n > 5 {
						t.Errorf("batch %d of %v has %d records", i, tp, n)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("packed %v, want %v", got, want)
				}
				if name == "together" && len(batches) > 4*4 {
					t.Errorf("%d batches", len(batches))
				}
			}
		})
	}
}
