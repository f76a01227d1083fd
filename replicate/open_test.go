package replicate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// source is a log of records, cut into items in some way.
type source struct {
	values map[int64]string // what must be copied, by offset
	items  []Item
	next   int64
}

func (s *source) batch(t testing.TB, codec kgo.CompressionCodecType, n, size int, keep func(i int) bool) {
	t.Helper()
	full := txn.Builder{}
	var kept []txn.Raw
	for i := range n {
		v := fmt.Sprintf("%d-%s", s.next+int64(i), bytes.Repeat([]byte{'a' + byte(i%20)}, size))
		full.Add(&txn.Record{Value: []byte(v), Timestamp: 1000 + int64(i)})
		if keep(i) {
			s.values[s.next+int64(i)] = v
		}
	}
	b, err := full.Batch(kgo.CodecNone)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := txn.NewDecoder(txn.Limits{}).Open(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.EachRaw(false, func(r txn.Raw) error {
		if keep(int(r.Offset)) {
			kept = append(kept, r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	out := b
	if len(kept) == n {
		var again txn.Builder
		for _, r := range kept {
			again.AddRaw(r)
		}
		if out, err = again.Batch(codec); err != nil {
			t.Fatal(err)
		}
	} else {
		out = withHoles(b, kept)
	}
	binary.BigEndian.PutUint64(out, uint64(s.next))
	s.items = append(s.items, Item{ItemData, s.next, s.next + int64(n), out, -1})
	s.next += int64(n)
}

// withHoles is what compaction leaves of an uncompressed batch.
func withHoles(b txn.Batch, kept []txn.Raw) txn.Batch {
	out := bytes.Clone(b[:txn.HeaderSize])
	for _, r := range kept {
		rec := []byte{r.Attributes}
		rec = binary.AppendVarint(rec, r.Timestamp-b.BaseTimestamp())
		rec = binary.AppendVarint(rec, r.Offset)
		rec = append(rec, r.Body...)
		out = append(binary.AppendVarint(out, int64(len(rec))), rec...)
	}
	binary.BigEndian.PutUint32(out[57:], uint32(len(kept)))
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	return out
}

// sealed gives a batch that was changed the checksum it must have.
func sealed(b txn.Batch) txn.Batch {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Whatever the batches look like, every record that is to be copied is, once and
// in order, and the runs say where it comes from.
func TestPrepareCopiesEveryRecordOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "shape"), 3))
		s := source{values: map[int64]string{}}
		barriers := map[int64]bool{}
		for range 1 + shape.IntN(25) {
			switch shape.IntN(6) {
			case 0:
				s.items = append(s.items, Item{ItemSkip, s.next, s.next + 1, nil, -1})
				s.next++
			case 1:
				s.items = append(s.items, Item{ItemBarrier, s.next, s.next + 1, nil, -1})
				barriers[s.next] = true
				s.next++
			case 2: // holes
				odd := shape.IntN(2)
				s.batch(t, kgo.CodecNone, 2+shape.IntN(6), shape.IntN(400), func(i int) bool { return i%2 == odd || i == 0 })
			default:
				codec := kgo.CompressionCodecType(shape.IntN(5))
				s.batch(t, codec, 1+shape.IntN(12), []int{1, 50, 4000}[shape.IntN(3)], func(int) bool { return true })
			}
		}
		from := prepared{barrier: -1, next: shape.Int64N(s.next + 1)}
		limit := []int{0, 0, 3000}[shape.IntN(3)]
		p, err := prepare(txn.NewDecoder(txn.Limits{}), &Stream{}, from, limit, nil, s.items)
		if err != nil || p.next != s.next {
			t.Fatalf("next %d of %d, %v", p.next, s.next, err)
		}
		part := plannedPart{s: &stream{}, prepared: p}
		var copied []string
		base := int64(1000)
		for i, b := range p.batches {
			if int64(b.Count()) != p.counts[i] || b.Holes() {
				t.Fatalf("batch %d: %d records, %d counted, holes %v", i, b.Count(), p.counts[i], b.Holes())
			}
			part.bases = append(part.bases, base)
			base += p.counts[i] + int64(shape.IntN(2)*shape.IntN(3)) // a foreign writer between them
			if err := txn.NewDecoder(txn.Limits{}).Each(b, func(r txn.Record) error { copied = append(copied, string(r.Value)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for _, r := range part.runs() {
			last := int64(-1)
			for b := range barriers {
				if b < r.Source {
					last = max(last, b)
				}
			}
			if from.next <= last && r.Barrier != last {
				t.Fatalf("run %+v, last barrier %d", r, last)
			}
			for i := range r.Count {
				if want := s.values[r.Source+i]; n >= len(copied) || copied[n] != want || r.Source+i < from.next {
					t.Fatalf("record %d copied as %.20q, source %d has %.20q", n, copied[min(n, len(copied)-1)], r.Source+i, want)
				}
				delete(s.values, r.Source+i)
				n++
			}
		}
		for off := range s.values {
			if off >= from.next {
				t.Fatalf("offset %d was not copied", off)
			}
		}
		if n != len(copied) || int64(n) != p.copied {
			t.Fatalf("%d records in runs, %d copied, %d counted", n, len(copied), p.copied)
		}
	})
}

func TestPreparePassesWhatItCan(t *testing.T) {
	s := source{values: map[int64]string{}}
	all := func(int) bool { return true }
	s.batch(t, kgo.CodecLz4, 20, 1, all)     // small, alone with its codec
	s.batch(t, kgo.CodecNone, 20, 1000, all) // large
	s.batch(t, kgo.CodecNone, 2, 10, all)    // small: these two are joined
	s.batch(t, kgo.CodecNone, 3, 10, all)
	s.batch(t, kgo.CodecNone, 20, 2000, all) // large
	want := [][]byte{bytes.Clone(s.items[0].Batch), bytes.Clone(s.items[1].Batch), nil, bytes.Clone(s.items[4].Batch)}
	p, err := prepare(txn.NewDecoder(txn.Limits{}), &Stream{}, prepared{barrier: -1}, 0, nil, s.items)
	if err != nil || len(p.batches) != len(want) || p.passed != 3 || p.opened != 2 || p.counts[2] != 5 {
		t.Fatalf("%d batches, passed %d, opened %d, %v", len(p.batches), p.passed, p.opened, err)
	}
	for i, w := range want {
		if w != nil && !bytes.Equal(p.batches[i], w) {
			t.Fatalf("batch %d was changed", i)
		}
	}
}

func TestPrepareStopsAtABatchThatCannotBeRead(t *testing.T) {
	s := source{values: map[int64]string{}}
	s.batch(t, kgo.CodecNone, 2, 10, func(int) bool { return true })
	s.batch(t, kgo.CodecGzip, 40, 10, func(int) bool { return true })
	s.items[1].Batch[len(s.items[1].Batch)-12] ^= 0xff                                                  // the deflated data
	p, err := prepare(txn.NewDecoder(txn.Limits{}), &Stream{}, prepared{barrier: -1}, 10, nil, s.items) // the limit has both opened
	if !errors.Is(err, txn.ErrMalformed) || p.next != 2 || p.copied != 2 || len(p.batches) != 2 {
		t.Fatalf("next %d, copied %d, %v", p.next, p.copied, err)
	}
}

func TestPrepareCarriesControlByAllowList(t *testing.T) {
	progress := control.Progress{Topic: "t"}
	incarnation := control.Incarnation{Origin: 1, Topic: "t"}
	restriction := control.Restriction{Origin: 1, To: 2, Topic: "t"}
	odd := control.Progress{Topic: "octo cat"}
	facts := newFacts(t, nil)
	facts.Know(map[string]FactTopic{"t": {Partitions: 1}})
	facts.Announced("t")
	more := []byte("canary")
	carriedRecords := []txn.Record{
		{Key: progress.AppendKey(nil), Value: progress.AppendValue(nil)},
		{Key: incarnation.AppendKey(nil), Value: incarnation.AppendValue(nil)},
		{Key: restriction.AppendKey(nil), Value: restriction.AppendValue(nil)},
	}
	stay := []txn.Record{
		{Key: control.Barrier{}.AppendKey(nil), Value: control.Barrier{}.AppendValue(nil)},
		{Key: []byte{99}, Value: more},
		{Key: []byte{}, Value: more},
		{Value: more},
		// What only looks like a fact, or holds more than one.
		{Key: progress.AppendKey(nil), Value: more},
		{Key: progress.AppendKey(nil)},
		{Key: progress.AppendKey(nil), Value: append(progress.AppendValue(nil), more...)},
		{Key: append(progress.AppendKey(nil), more...), Value: progress.AppendValue(nil)},
		{Key: progress.AppendKey(nil), Value: progress.AppendValue(nil), Headers: []event.Header{{Key: "canary"}}},
		{Key: odd.AppendKey(nil), Value: odd.AppendValue(nil)},
		{Key: incarnation.AppendKey(nil), Value: progress.AppendValue(nil)},
		{Key: restriction.AppendKey(nil), Value: append(restriction.AppendValue(nil), more...)},
	}
	for name, all := range map[string][]txn.Record{"carriedRecords": carriedRecords, "mixed": slices.Concat(carriedRecords[:1], stay, carriedRecords[1:])} {
		var b txn.Builder
		for i := range all {
			b.Add(&all[i])
		}
		batch, err := b.Batch(kgo.CodecNone)
		if err != nil {
			t.Fatal(err)
		}
		end := int64(len(all))
		p, err := prepare(txn.NewDecoder(txn.Limits{}), &Stream{Control: true, Facts: facts}, prepared{barrier: -1}, 0, nil, []Item{{ItemData, 0, end, batch, -1}})
		if err != nil || p.denied != int64(len(all)-len(carriedRecords)) || len(p.batches) != 1 || p.counts[0] != int64(len(carriedRecords)) || p.next != end {
			t.Fatalf("%s: %+v, %v", name, p, err)
		}
		if bytes.Contains(p.batches[0], more) {
			t.Fatalf("%s: what stays is in the batch", name)
		}
	}
}

// Two producers' transactions, interleaved.
func TestScanSkipsAbortedTransactions(t *testing.T) {
	var raw []byte
	next := int64(0)
	add := func(producer int64, attrs uint16, key []byte, value string) {
		var b txn.Builder
		b.Add(&txn.Record{Key: key, Value: []byte(value)})
		batch, err := b.Batch(kgo.CodecNone)
		if err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint64(batch, uint64(next))
		binary.BigEndian.PutUint64(batch[43:], uint64(producer))
		binary.BigEndian.PutUint16(batch[21:], attrs)
		sealed(batch)
		raw = append(raw, batch...)
		next++
	}
	commit, abort := []byte{0, 0, 0, 1}, []byte{0, 0, 0, 0}
	add(1, txn.AttrTransactional, nil, "bad")                 // 0
	add(2, txn.AttrTransactional, nil, "good")                // 1
	add(1, txn.AttrTransactional, nil, "bad")                 // 2
	add(1, 0, nil, "plain")                                   // 3: not transactional
	add(1, txn.AttrTransactional|txn.AttrControl, abort, "")  // 4
	add(1, txn.AttrTransactional, nil, "good")                // 5
	add(2, txn.AttrTransactional|txn.AttrControl, commit, "") // 6
	add(1, txn.AttrTransactional|txn.AttrControl, commit, "") // 7
	aborted := []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 1, FirstOffset: 0}}
	items, commits, err := scan(raw, aborted, 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := ""
	for _, it := range items {
		kinds += fmt.Sprint(it.Kind)
	}
	if kinds != fmt.Sprintf("%d%d%d%d%d%d%d%d", ItemSkip, ItemData, ItemSkip, ItemData, ItemSkip, ItemData, ItemSkip, ItemSkip) {
		t.Fatalf("kinds %s", kinds)
	}
	if len(commits) != 2 || commits[0] != (commitMarker{6, 2, -1}) || commits[1].item != 7 {
		t.Fatalf("commits %+v", commits)
	}
	if items, _, err = scan(raw[:len(raw)-3], aborted, 5); err != nil || len(items) != 2 || items[0].Base != 5 {
		t.Fatalf("from 5, cut: %+v, %v", items, err)
	}
	raw[len(raw)-2] ^= 1
	var bad *SourceError
	if items, _, err = scan(raw, aborted, 0); !errors.As(err, &bad) || bad.Offset != 7 || len(items) != 7 {
		t.Fatalf("corrupt: %d items, %v", len(items), err)
	}
}

func FuzzScan(f *testing.F) {
	s := source{values: map[int64]string{}}
	s.batch(f, kgo.CodecNone, 3, 10, func(i int) bool { return i != 1 })
	s.batch(f, kgo.CodecSnappy, 3, 10, func(int) bool { return true })
	facts := newFacts(f, nil)
	facts.Know(map[string]FactTopic{"t": {Partitions: 1}})
	f.Add([]byte(sealed(s.items[0].Batch)), int64(1), int64(0))
	f.Add(append([]byte(sealed(s.items[0].Batch)), sealed(s.items[1].Batch)...), int64(4), int64(7))
	f.Fuzz(func(t *testing.T, raw []byte, from, producer int64) {
		items, commits, _ := scan(raw, []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: producer}}, max(from, 0))
		next := max(from, 0)
		for _, it := range items {
			if it.Next <= next {
				t.Fatalf("item %+v after %d", it, next)
			}
			next = it.Next
		}
		for _, c := range commits {
			if c.item >= len(items) || items[c.item].Kind != ItemSkip {
				t.Fatalf("commit %+v of %d items", c, len(items))
			}
		}
		p, err := prepare(txn.NewDecoder(txn.Limits{}), &Stream{Control: true, Facts: facts}, prepared{next: max(from, 0), barrier: -1}, 0, nil, items)
		if err == nil && p.next != next {
			t.Fatalf("prepared to %d of %d", p.next, next)
		}
	})
}
