package replicate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// oneBatch is an item with records from an offset on.
func oneBatch(t *testing.T, base int64, codec kgo.CompressionCodecType, rs ...txn.Record) Item {
	t.Helper()
	var b txn.Builder
	for i := range rs {
		b.Add(&rs[i])
	}
	batch, err := b.Batch(codec)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(batch, uint64(base))
	return Item{ItemData, base, base + int64(len(rs)), batch, 7}
}

// TestWhatCannotBeOpened: a small batch that unfolds to more than the limit
// passes as it is wherever it can, between others that are joined; where something must
// look inside, its partition stops; the control topic skips it.
func TestWhatCannotBeOpened(t *testing.T) {
	d := txn.NewDecoder(txn.Limits{BatchUnfolded: 1 << 20})
	small := txn.Record{Key: []byte("k"), Value: []byte("v")}
	large := txn.Record{Key: []byte("k"), Value: make([]byte, 2<<20)}
	bomb := oneBatch(t, 2, kgo.CodecZstd, small, large, small)
	malformed := oneBatch(t, 2, kgo.CodecZstd, small, small, small)
	malformed.Batch = sealed(append(malformed.Batch[:len(malformed.Batch)-1:len(malformed.Batch)-1], 0xff))
	appendTime := bomb
	appendTime.Batch = bytes.Clone(bomb.Batch)
	binary.BigEndian.PutUint16(appendTime.Batch[21:], uint16(kgo.CodecZstd)|txn.AttrLogAppendTime)
	appendTime.Batch = sealed(appendTime.Batch)
	around := func(it Item) []Item {
		return []Item{
			oneBatch(t, 0, kgo.CodecZstd, small), oneBatch(t, 1, kgo.CodecZstd, small), it,
			oneBatch(t, 5, kgo.CodecZstd, small), oneBatch(t, 6, kgo.CodecZstd, small),
		}
	}
	for name, it := range map[string]Item{"bomb": bomb, "malformed": malformed, "append time": appendTime} {
		p, err := prepare(d, &Stream{}, prepared{barrier: -1}, 0, nil, around(it))
		if err != nil || fmt.Sprint(p.counts) != "[2 3 2]" || p.next != 7 || len(p.segments) != 1 || p.segments[0].count != 7 {
			t.Fatalf("%s: %v in %+v, up to %d: %v", name, p.counts, p.segments, p.next, err)
		}
		if !bytes.Equal(p.batches[1], it.Batch) {
			t.Errorf("%s did not pass as it is", name)
		}

		p, err = prepare(d, &Stream{Control: true, Facts: newFacts(t, nil)}, prepared{barrier: -1}, 0, nil, around(it))
		if err != nil || len(p.batches) != 0 || p.next != 7 {
			t.Errorf("control topic with %s: %v up to %d, %v", name, p.counts, p.next, err)
		}

		first := prepared{next: 3, barrier: -1} // its first record is copied already
		if p, err = prepare(d, &Stream{}, first, 0, nil, around(it)); err == nil || p.next != 3 {
			t.Errorf("a part of %s: %v up to %d, %v", name, p.counts, p.next, err)
		}

		rules := &Stream{Ruling: compiled(t, `{id: r, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key != "x"'}`)}
		if p, err = prepare(d, rules, prepared{barrier: -1}, 0, nil, around(it)); err == nil || p.next != 2 || fmt.Sprint(p.counts) != "[2]" {
			t.Errorf("rules and %s: %v up to %d, %v", name, p.counts, p.next, err)
		}
		if name == "bomb" && !errors.Is(err, txn.ErrBeyondLimits) {
			t.Errorf("rules and %s: %v", name, err)
		}
	}
}

// TestRecordsBeyondLimitsAreDoubt: a rule that looks at records cannot look at one with
// too long a key, or too many headers; the others of its batch cross.
func TestRecordsBeyondLimitsAreDoubt(t *testing.T) {
	d := txn.NewDecoder(txn.Limits{Key: 4, RecordHeaders: 2})
	it := oneBatch(t, 0, kgo.CodecNone,
		txn.Record{Key: []byte("good")},
		txn.Record{Key: []byte("longer")},
		txn.Record{Key: []byte("many"), Headers: make([]event.Header, 3)},
		txn.Record{Key: []byte("well")},
	)
	rules := &Stream{Ruling: compiled(t, `{id: r, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key != "x"'}`)}
	p, err := prepare(d, rules, prepared{barrier: -1}, 0, nil, []Item{it})
	if err != nil || p.denied != 2 || fmt.Sprint(p.counts) != "[2]" || p.next != 4 {
		t.Fatalf("%v up to %d, %d denied: %v", p.counts, p.next, p.denied, err)
	}
	var codes []residency.Code
	for _, v := range p.verdicts {
		codes = append(codes, v.Code)
	}
	if want := fmt.Sprint([]residency.Code{residency.Allowed, residency.Doubtful, residency.Allowed}); fmt.Sprint(codes) != want {
		t.Errorf("verdicts %v, want %s", codes, want)
	}
	// Without rules nobody looks: the batch passes.
	if p, err = prepare(d, &Stream{}, prepared{barrier: -1}, 0, nil, []Item{it}); err != nil || fmt.Sprint(p.counts) != "[4]" || p.opened != 0 {
		t.Errorf("without rules: %v, %d opened, %v", p.counts, p.opened, err)
	}
}
