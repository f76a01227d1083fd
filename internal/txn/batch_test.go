package txn

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/event"
)

var someRecords = []Record{
	{Key: []byte("k"), Value: []byte("value"), Timestamp: 1_700_000_000_123},
	{Key: nil, Value: []byte{}, Timestamp: 1_700_000_000_100, Headers: []event.Header{
		{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte("x")},
	}},
	{Key: []byte{}, Value: nil, Timestamp: 1_700_000_000_500},
}

func build(t testing.TB, codec kgo.CompressionCodecType, recs []Record) Batch {
	t.Helper()
	var b Builder
	for i := range recs {
		if !b.Add(&recs[i]) {
			t.Fatal("record did not fit")
		}
	}
	batch, err := b.Batch(codec)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// What a transaction packs is compressed from MinCompressed on; a smaller batch
// stays as it is.
func TestSmallBatchesAreNotCompressed(t *testing.T) {
	p := &Producer{opts: Options{Codec: Codec, BatchBytes: DefaultBatchBytes}}
	for size, want := range map[int]kgo.CompressionCodecType{10: kgo.CodecNone, MinCompressed - 100: kgo.CodecNone, MinCompressed: Codec, 50_000: Codec} {
		k := p.Pack()
		if err := k.Add(&Record{Topic: "t", Value: bytes.Repeat([]byte("x"), size)}); err != nil {
			t.Fatal(err)
		}
		batches, err := k.finish()
		if err != nil || len(batches) != 1 || batches[0].Batch.Codec() != want {
			t.Errorf("a record of %d bytes: %v, codec %v, want %v", size, err, batches[0].Batch.Codec(), want)
		}
	}
}

func same(a, b Record) bool {
	if (a.Key == nil) != (b.Key == nil) || (a.Value == nil) != (b.Value == nil) ||
		!bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || a.Timestamp != b.Timestamp || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		x, y := a.Headers[i], b.Headers[i]
		if x.Key != y.Key || (x.Value == nil) != (y.Value == nil) || !bytes.Equal(x.Value, y.Value) {
			return false
		}
	}
	return true
}

// The bytes of a batch are Kafka's, not ours: written down by hand from its
// message format.
func TestBatchGolden(t *testing.T) {
	const golden = "0000000000000000" + // base offset
		"00000045" + "ffffffff" + "02" + // length, leader epoch, magic
		"1461f1e7" + // checksum
		"0000" + "00000001" + // attributes, last offset delta
		"0000018bcfe56800" + "0000018bcfe56801" + // base and max timestamp
		"ffffffffffffffff" + "ffff" + "ffffffff" + // producer id, epoch, sequence
		"00000002" + // count
		"18" + "00" + "00" + "00" + "02" + "6b" + "04" + "7631" + "02" + "0268" + "01" + // k=v1, header h=null
		"0c" + "00" + "02" + "02" + "01" + "01" + "00" // null key, null value, no header
	recs := []Record{
		{Key: []byte("k"), Value: []byte("v1"), Timestamp: 1_700_000_000_000, Headers: []event.Header{{Key: "h"}}},
		{Timestamp: 1_700_000_000_001},
	}
	got := build(t, kgo.CodecNone, recs)
	want, _ := hex.DecodeString(golden)
	if !bytes.Equal(got, want) {
		t.Fatalf("batch\n%x, want\n%x", got, want)
	}
}

func TestBatchRoundTripEveryCodec(t *testing.T) {
	recs := append([]Record(nil), someRecords...)
	for i := range 50 {
		recs = append(recs, Record{Key: fmt.Appendf(nil, "%d", i), Value: []byte(strings.Repeat("abc", 100)), Timestamp: int64(1_700_000_000_000 + i)})
	}
	for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
		b := build(t, codec, recs)
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		if b.Codec() != codec {
			t.Fatalf("codec %d, want %d", b.Codec(), codec)
		}
		var got []Record
		if err := NewDecoder(Limits{}).Each(b, func(r Record) error { got = append(got, r); return nil }); err != nil {
			t.Fatalf("codec %d: %v", codec, err)
		}
		if len(got) != len(recs) {
			t.Fatalf("codec %d: %d records, want %d", codec, len(got), len(recs))
		}
		for i := range recs {
			if !same(got[i], recs[i]) || got[i].Offset != int64(i) {
				t.Fatalf("codec %d record %d: %+v, want %+v", codec, i, got[i], recs[i])
			}
		}
	}
}

// kmsg's own reader of batches is the second opinion.
func TestBatchHeaderAgreesWithKmsg(t *testing.T) {
	b := build(t, Codec, someRecords)
	b.stamp(identity{id: 1 << 40, epoch: 7, sequence: math.MaxInt32})
	var k kmsg.RecordBatch
	if err := k.ReadFrom(b); err != nil {
		t.Fatal(err)
	}
	if k.ProducerID != 1<<40 || k.ProducerEpoch != 7 || k.FirstSequence != math.MaxInt32 || k.FirstOffset != 0 ||
		k.PartitionLeaderEpoch != -1 || k.NumRecords != 3 || k.LastOffsetDelta != 2 || k.Attributes&^AttrCodec != AttrTransactional ||
		k.FirstTimestamp != b.BaseTimestamp() || k.MaxTimestamp != 1_700_000_000_500 {
		t.Fatalf("%+v", k)
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	if b.ProducerID() != 1<<40 || b.ProducerEpoch() != 7 || b.BaseSequence() != math.MaxInt32 || !b.Transactional() || b.Holes() {
		t.Fatal("the view disagrees with what was stamped")
	}
}

func TestStampClearsWhatIsTheSourceBrokers(t *testing.T) {
	b := build(t, Codec, someRecords)
	records := bytes.Clone(b[HeaderSize:])
	binary.BigEndian.PutUint64(b, 4711)
	binary.BigEndian.PutUint32(b[atLeaderEpoch:], 3)
	binary.BigEndian.PutUint16(b[atAttributes:], uint16(b.Attributes())|AttrLogAppendTime|attrDeleteHorizon|1<<9)
	base := b.BaseTimestamp()
	b.stamp(identity{1, 2, 3})
	if b.BaseOffset() != 0 || b.LeaderEpoch() != -1 || b.Attributes()&^AttrCodec != AttrTransactional || b.BaseTimestamp() != base {
		t.Fatalf("attributes %x", b.Attributes())
	}
	if !bytes.Equal(records, b[HeaderSize:]) {
		t.Fatal("records were touched")
	}
}

func TestSplitDropsTheCutTail(t *testing.T) {
	a, b := build(t, kgo.CodecNone, someRecords), build(t, kgo.CodecZstd, someRecords)
	raw := append(append([]byte(nil), a...), b...)
	for cut := 0; cut <= len(raw); cut++ {
		got, err := Split(raw[:cut])
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		if cut >= len(a) {
			want++
		}
		if cut == len(raw) {
			want++
		}
		if len(got) != want {
			t.Fatalf("cut at %d of %d: %d batches, want %d", cut, len(raw), len(got), want)
		}
	}
}

func TestCheckFindsEveryFlippedBit(t *testing.T) {
	good := build(t, kgo.CodecNone, someRecords)
	for i := atMagic; i < len(good); i++ {
		for bit := range 8 {
			b := Batch(bytes.Clone(good))
			b[i] ^= 1 << bit
			if err := b.Check(); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
}

// holes takes records out of an uncompressed batch as compaction does.
func holes(t testing.TB, b Batch, keep func(i int) bool) Batch {
	t.Helper()
	out := Batch(bytes.Clone(b[:HeaderSize]))
	n := uint32(0)
	err := NewDecoder(Limits{}).eachRaw(b, false, func(r Raw) error {
		i := int(r.Offset - b.BaseOffset())
		if !keep(i) {
			return nil
		}
		var rec []byte
		rec = append(rec, r.Attributes)
		rec = binary.AppendVarint(rec, r.Timestamp-b.BaseTimestamp())
		rec = binary.AppendVarint(rec, int64(i))
		rec = append(rec, r.Body...)
		out = append(binary.AppendVarint(out, int64(len(rec))), rec...)
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(out[atCount:], n)
	binary.BigEndian.PutUint32(out[atLength:], uint32(len(out)-lengthEnd))
	binary.BigEndian.PutUint32(out[atCRC:], crc32.Checksum(out[atAttributes:], castagnoli))
	return out
}

func TestHolesAreClosed(t *testing.T) {
	b := holes(t, build(t, kgo.CodecNone, someRecords), func(i int) bool { return i == 1 })
	if err := b.Check(); err != nil || !b.Holes() {
		t.Fatalf("holes %v, %v", b.Holes(), err)
	}
	var nb Builder
	if err := NewDecoder(Limits{}).eachRaw(b, false, func(r Raw) error {
		if r.Offset != 1 {
			t.Fatalf("offset %d", r.Offset)
		}
		nb.AddRaw(r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got, err := nb.Batch(kgo.CodecNone)
	if err != nil || got.Holes() || got.Count() != 1 {
		t.Fatal(err)
	}
	_ = NewDecoder(Limits{}).Each(got, func(r Record) error {
		if !same(r, someRecords[1]) {
			t.Fatalf("%+v", r)
		}
		return nil
	})
	empty := holes(t, build(t, kgo.CodecNone, someRecords), func(int) bool { return false })
	if len(empty) != HeaderSize || empty.Check() != nil || empty.NextOffset() != 3 {
		t.Fatalf("empty batch: %v", empty.Check())
	}
}

func TestLogAppendTime(t *testing.T) {
	b := build(t, kgo.CodecNone, someRecords)
	binary.BigEndian.PutUint16(b[atAttributes:], AttrLogAppendTime)
	binary.BigEndian.PutUint64(b[atMaxTimestamp:], 42)
	for _, want := range []struct {
		append bool
		first  int64
	}{{true, 42}, {false, someRecords[0].Timestamp}} {
		first := int64(0)
		_ = NewDecoder(Limits{}).eachRaw(b, want.append, func(r Raw) error {
			if r.Offset == 0 {
				first = r.Timestamp
			}
			return nil
		})
		if first != want.first {
			t.Fatalf("append time %v: %d", want.append, first)
		}
	}
}

func TestBuilderLimit(t *testing.T) {
	b := Builder{Limit: 200}
	r := Record{Value: make([]byte, 1000)}
	if !b.Add(&r) {
		t.Fatal("the first record is always taken")
	}
	if b.Add(&Record{Value: []byte("x")}) {
		t.Fatal("limit not kept")
	}
	if _, err := b.Batch(kgo.CodecNone); err != nil || b.Len() != 0 {
		t.Fatal(err)
	}
	if _, err := b.Batch(kgo.CodecNone); !errors.Is(err, ErrState) {
		t.Fatalf("empty builder: %v", err)
	}
}

// oldMessage makes a message of format 0 or 1.
func oldMessage(magic byte, attrs byte, offset, ts int64, key, value []byte) []byte {
	var m []byte
	m = append(m, magic, attrs)
	if magic == 1 {
		m = binary.BigEndian.AppendUint64(m, uint64(ts))
	}
	for _, b := range [][]byte{key, value} {
		if b == nil {
			m = binary.BigEndian.AppendUint32(m, math.MaxUint32)
			continue
		}
		m = binary.BigEndian.AppendUint32(m, uint32(len(b)))
		m = append(m, b...)
	}
	out := binary.BigEndian.AppendUint64(nil, uint64(offset))
	out = binary.BigEndian.AppendUint32(out, uint32(len(m)+4))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(m))
	return append(out, m...)
}

// Two records of a compressed set that claim one offset are none: what is decided
// about the one would be done with the other.
func TestOldFormatsRise(t *testing.T) {
	for _, magic := range []byte{0, 1} {
		for _, offsets := range [][]int64{{3, 3}, {4, 3}, {-2, 3}, {2, 9, 3}} {
			var set []byte
			for _, o := range offsets {
				set = append(set, oldMessage(magic, 0, o, 100, bytes.Repeat([]byte("k"), 100), nil)...)
			}
			packed, used, err := compress(new(bytes.Buffer), kgo.CodecGzip, set)
			if err != nil || used != kgo.CodecGzip {
				t.Fatal(err)
			}
			b := Batch(oldMessage(magic, 1, 3, 102, nil, packed))
			if err := NewDecoder(Limits{}).Each(b, func(Record) error { return nil }); !errors.Is(err, ErrMalformed) {
				t.Errorf("magic %d, offsets %v: %v", magic, offsets, err)
			}
		}
	}
}

func TestOldFormats(t *testing.T) {
	for _, magic := range []byte{0, 1} {
		var set []byte
		for i := range 3 {
			inner := int64(i)
			if magic == 0 {
				inner = 10 + int64(i)
			}
			set = append(set, oldMessage(magic, 0, inner, int64(100+i), bytes.Repeat([]byte("k"), 100), nil)...)
		}
		packed, used, err := compress(new(bytes.Buffer), kgo.CodecGzip, set)
		if err != nil || used != kgo.CodecGzip {
			t.Fatal(err)
		}
		raw := append(oldMessage(magic, 0, 9, 99, nil, []byte("plain")), oldMessage(magic, 1, 12, 102, nil, packed)...)
		batches, err := Split(raw)
		if err != nil || len(batches) != 2 || batches[1].NextOffset() != 13 {
			t.Fatalf("magic %d: %v, %d batches", magic, err, len(batches))
		}
		var got []Record
		for _, b := range batches {
			if err := NewDecoder(Limits{}).Each(b, func(r Record) error { got = append(got, r); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != 4 {
			t.Fatalf("%d records", len(got))
		}
		for i, r := range got {
			ts := int64(99 + i)
			if magic == 0 {
				ts = -1
			}
			if r.Offset != int64(9+i) || r.Timestamp != ts {
				t.Fatalf("magic %d record %d: %+v", magic, i, r)
			}
		}
		raw[len(raw)-1] ^= 1
		batches, _ = Split(raw)
		if err := NewDecoder(Limits{}).Each(batches[1], func(Record) error { return nil }); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("corrupt: %v", err)
		}
	}
}

func TestMarker(t *testing.T) {
	for typ, want := range map[byte][2]bool{0: {false, true}, 1: {true, true}, 2: {false, false}} {
		b := build(t, kgo.CodecNone, []Record{{Key: []byte{0, 0, 0, typ}, Value: make([]byte, 6)}})
		binary.BigEndian.PutUint16(b[atAttributes:], AttrControl|AttrTransactional)
		commit, ok, err := b.Marker()
		if err != nil || commit != want[0] || ok != want[1] {
			t.Fatalf("type %d: %v %v %v", typ, commit, ok, err)
		}
	}
	if _, _, err := build(t, kgo.CodecNone, someRecords).Marker(); !errors.Is(err, ErrMalformed) {
		t.Fatalf("data batch: %v", err)
	}
}

// FuzzBatch: no bytes make the parser panic or read outside; what passes the
// check and decodes is rebuilt to the same records.
func FuzzBatch(f *testing.F) {
	for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
		f.Add([]byte(build(f, codec, someRecords)))
	}
	f.Add([]byte(holes(f, build(f, kgo.CodecNone, someRecords), func(i int) bool { return i == 2 })))
	f.Add(oldMessage(0, 0, 5, 0, []byte("k"), []byte("v")))
	f.Add(oldMessage(1, 0, 5, 7, nil, nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		batches, _ := Split(raw)
		for _, b := range batches {
			if b.Magic() == 2 {
				fixed := Batch(bytes.Clone(b))
				binary.BigEndian.PutUint32(fixed[atCRC:], crc32.Checksum(fixed[atAttributes:], castagnoli))
				b = fixed
				if b.Check() != nil {
					continue
				}
				_, _, _ = b.Marker()
			}
			var recs []Record
			if NewDecoder(Limits{}).Each(b, func(r Record) error { recs = append(recs, r); return nil }) != nil || len(recs) == 0 {
				continue
			}
			again := build(t, kgo.CodecNone, recs)
			i := 0
			if err := NewDecoder(Limits{}).Each(again, func(r Record) error {
				if !same(r, recs[i]) {
					t.Fatalf("record %d: %+v, want %+v", i, r, recs[i])
				}
				i++
				return nil
			}); err != nil || i != len(recs) {
				t.Fatalf("%d of %d records, %v", i, len(recs), err)
			}
		}
	})
}

// TestBodySize: what the builder reserves is what it writes.
func TestBodySize(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 8191, 8192, 1 << 20} {
		for _, hs := range [][]event.Header{nil, {{Key: strings.Repeat("h", n), Value: make([]byte, n)}, {Key: "", Value: nil}}, make([]event.Header, 100)} {
			key, value := make([]byte, n), []byte(nil)
			if got, want := bodySize(key, value, hs), len(appendBody(nil, key, value, hs)); got != want {
				t.Errorf("%d bytes, %d headers: size %d, want %d", n, len(hs), got, want)
			}
		}
	}
}
