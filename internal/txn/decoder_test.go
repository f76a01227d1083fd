package txn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
)

// handMade is a batch whose header counts what it is told to, with a right checksum.
func handMade(codec kgo.CompressionCodecType, count int32, records []byte) Batch {
	b := make(Batch, HeaderSize, HeaderSize+len(records))
	b = append(b, records...)
	binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-lengthEnd))
	b[atMagic] = 2
	binary.BigEndian.PutUint16(b[atAttributes:], uint16(codec))
	binary.BigEndian.PutUint32(b[atLastOffsetDelta:], uint32(count-1))
	binary.BigEndian.PutUint64(b[atProducerID:], 1<<64-1)
	binary.BigEndian.PutUint32(b[atCount:], uint32(count))
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
	return b
}

// oneRecord is the bytes of a record with a value of zeros and empty headers.
func oneRecord(value, headers int) []byte {
	body := append([]byte{0, 0, 0}, 2, 'k')
	body = binary.AppendVarint(body, int64(value))
	body = append(body, make([]byte, value)...)
	body = binary.AppendVarint(body, int64(headers))
	body = append(body, make([]byte, 2*headers)...)
	return append(binary.AppendVarint(nil, int64(len(body))), body...)
}

// packed are bytes compressed by each codec in each form that readers take.
func packed(t testing.TB, raw []byte) map[string]struct {
	codec kgo.CompressionCodecType
	bytes []byte
} {
	t.Helper()
	type form = struct {
		codec kgo.CompressionCodecType
		bytes []byte
	}
	out := make(map[string]form)
	stream := func(name string, codec kgo.CompressionCodecType, write func(dst *bytes.Buffer, part []byte) error) {
		var one, two bytes.Buffer
		for _, err := range []error{write(&one, raw), write(&two, raw[:len(raw)/2]), write(&two, raw[len(raw)/2:])} {
			if err != nil {
				t.Fatal(err)
			}
		}
		out[name], out[name+" in two frames"] = form{codec, one.Bytes()}, form{codec, two.Bytes()}
	}
	stream("gzip", kgo.CodecGzip, func(dst *bytes.Buffer, part []byte) error {
		w := gzip.NewWriter(dst)
		_, err := w.Write(part)
		return errors.Join(err, w.Close())
	})
	stream("lz4", kgo.CodecLz4, func(dst *bytes.Buffer, part []byte) error {
		w := lz4.NewWriter(dst)
		_, err := w.Write(part)
		return errors.Join(err, w.Close())
	})
	for name, opts := range map[string][]zstd.EOption{
		"zstd":                           {zstd.WithWindowSize(64 << 10)},
		"zstd with a window of 512 MiB":  {zstd.WithWindowSize(64 << 10)},
		"zstd in one segment":            {zstd.WithSingleSegment(true)},
		"zstd without size of the frame": {zstd.WithWindowSize(1 << 20)},
	} {
		stream(name, kgo.CodecZstd, func(dst *bytes.Buffer, part []byte) error {
			w, err := zstd.NewWriter(dst, append(opts, zstd.WithEncoderConcurrency(1))...)
			if err != nil {
				return err
			}
			if !strings.Contains(name, "without") {
				frame := w.EncodeAll(part, nil) // says the size in the frame
				if strings.Contains(name, "window") {
					frame[5] = 19 << 3 // a claim: 1 KiB times 2 to the power of 19
				}
				dst.Write(frame)
				return w.Close()
			}
			_, err = w.Write(part)
			return errors.Join(err, w.Close())
		})
	}
	out["snappy"] = form{kgo.CodecSnappy, s2.EncodeSnappy(nil, raw)}
	framed := append([]byte(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	for rest := raw; len(rest) > 0; {
		n := min(len(rest), 32<<10)
		block := s2.EncodeSnappy(nil, rest[:n])
		framed = append(binary.BigEndian.AppendUint32(framed, uint32(len(block))), block...)
		rest = rest[n:]
	}
	out["snappy in a frame"] = form{kgo.CodecSnappy, framed}
	return out
}

func TestEveryFormIsRead(t *testing.T) {
	raw := append(oneRecord(300<<10, 7), oneRecord(5, 0)...)
	raw[len(raw)-len(oneRecord(5, 0))+3] = 2 // its offset is 1
	for name, p := range packed(t, raw) {
		var sizes []int
		err := NewDecoder(Limits{}).Each(handMade(p.codec, 2, p.bytes), func(r Record) error {
			sizes = append(sizes, len(r.Value), len(r.Headers))
			return nil
		})
		if err != nil || fmt.Sprint(sizes) != "[307200 7 5 0]" {
			t.Errorf("%s: %v, %v", name, sizes, err)
		}
	}
}

// allocated is how much memory fn takes in all.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestUnfoldingIsBounded gives a decoder what unfolds to sixteen times what it
// may: memory is taken for the limit, however the bytes are packed.
func TestUnfoldingIsBounded(t *testing.T) {
	const limit = 128 << 10
	d := NewDecoder(Limits{BatchUnfolded: limit})
	for what, raw := range map[string][]byte{"value": oneRecord(2<<20, 0), "headers": oneRecord(1, 1<<20)} {
		for name, p := range packed(t, raw) {
			b := handMade(p.codec, 1, p.bytes)
			var got []Entry
			took := allocated(func() { got = d.Entries(b, 0) })
			if len(got) != 1 || !errors.Is(got[0].Refused, ErrBeyondLimits) || got[0].Next() != 1 {
				t.Errorf("%s of %s: %+v", what, name, got)
			}
			// Decoders have buffers of their own, which stay: of some megabytes for lz4.
			if took > 16<<20 {
				t.Errorf("%s of %s: took %d bytes for a limit of %d", what, name, took, limit)
			}
		}
	}
}

// TestClaims gives a decoder what claims to hold more than it does: no memory is
// taken for a claim.
func TestClaims(t *testing.T) {
	claims := func(record []byte, headers int64) []byte {
		body := append(append([]byte{0, 0, 0}, 2, 'k', 2, 'v'), binary.AppendVarint(nil, headers)...)
		body = append(body, record...)
		return append(binary.AppendVarint(nil, int64(len(body))), body...)
	}
	zeros := make([]byte, 100)
	for name, b := range map[string]Batch{
		"count":                 handMade(kgo.CodecNone, 1<<30, claims(nil, 0)),
		"count, compressed":     handMade(kgo.CodecSnappy, 1<<30, s2.EncodeSnappy(nil, claims(nil, 0))),
		"headers":               handMade(kgo.CodecNone, 1, claims(zeros, 1<<30)),
		"headers in few bytes":  handMade(kgo.CodecNone, 1, claims(zeros, 60)),
		"length of a record":    handMade(kgo.CodecNone, 1, binary.AppendVarint(nil, 1<<40)),
		"snappy of a gigabyte":  handMade(kgo.CodecSnappy, 1, binary.AppendUvarint(nil, 1<<30)),
		"snappy of 60 MiB":      handMade(kgo.CodecSnappy, 1, append(binary.AppendUvarint(nil, 60<<20), zeros...)),
		"zstd frame of 60 MiB":  handMade(kgo.CodecZstd, 1, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0xc0, 3, 1, 0, 0}),
		"zstd window of 60 GiB": handMade(kgo.CodecZstd, 1, []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0xd7, 1, 0, 0}),
		"unknown codec":         handMade(7, 1, zeros),
		"an empty gzip":         handMade(kgo.CodecGzip, 1, nil),
	} {
		var got []Entry
		d := NewDecoder(Limits{})
		took := allocated(func() { got = d.Entries(b, 0) })
		if len(got) != 1 || got[0].Refused == nil || got[0].Next() != int64(b.Count()) {
			t.Errorf("%s: %+v", name, got)
		}
		if took > 2<<20 { // one buffer of a megabyte is kept
			t.Errorf("%s: took %d bytes for %d", name, took, len(b))
		}
	}
}

// TestLimitsOfARecord: a record beyond a limit is given as such, the others of its
// batch as they are.
func TestLimitsOfARecord(t *testing.T) {
	header := func(n, bytes int) (hs []event.Header) {
		for range n {
			hs = append(hs, event.Header{Key: strings.Repeat("n", bytes/2), Value: make([]byte, bytes-bytes/2)})
		}
		return hs
	}
	d := NewDecoder(Limits{RecordHeaders: 10, HeaderBytes: 100, Key: 8})
	recs := []Record{
		{Key: make([]byte, 8), Headers: header(10, 10)},
		{Key: make([]byte, 9)},
		{Key: []byte("a"), Headers: header(11, 2)},
		{Key: []byte("b"), Headers: header(2, 51)},
		{Key: []byte("c"), Value: []byte("v")},
	}
	for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
		b := build(t, codec, recs)
		got := d.Entries(b, 0)
		if len(got) != len(recs) {
			t.Fatalf("codec %d: %d entries", codec, len(got))
		}
		for i, e := range got {
			within := i == 0 || i == 4
			if within != (e.Refused == nil) || e.Offset != int64(i) || e.Next() != int64(i+1) {
				t.Errorf("codec %d record %d: %+v", codec, i, e)
			}
			if within && !same(e.Record, recs[i]) || !within && (!errors.Is(e.Refused, ErrBeyondLimits) || e.Key != nil || e.Headers != nil) {
				t.Errorf("codec %d record %d: %+v", codec, i, e)
			}
		}
	}
}

// TestCostOfRecords: many small records, and many headers, take more than their
// bytes.
func TestCostOfRecords(t *testing.T) {
	d := NewDecoder(Limits{BatchUnfolded: 1 << 20})
	recs := make([]Record, 1<<13)
	if got := d.Entries(build(t, kgo.CodecNone, recs), 0); len(got) != 1 || !errors.Is(got[0].Refused, ErrBeyondLimits) || got[0].Span != 1<<13 {
		t.Errorf("%d entries, first %+v", len(got), got[0])
	}
	recs = recs[:4]
	for i := range recs {
		recs[i].Headers = make([]event.Header, 6000)
	}
	if got := d.Entries(build(t, kgo.CodecNone, recs), 2); len(got) != 1 || !errors.Is(got[0].Refused, ErrBeyondLimits) || got[0].Offset != 2 || got[0].Next() != 4 {
		t.Errorf("%d entries, first %+v", len(got), got[0])
	}
}

// TestLargeBatchesShareABudget holds on to what was unfolded: the next waits, but
// not for ever.
func TestLargeBatchesShareABudget(t *testing.T) {
	const size = 3 << 20
	d := NewDecoder(Limits{BatchUnfolded: 4 << 20})
	d.budget = newBudget(12 << 20)
	bomb := packed(t, oneRecord(size, 0))["gzip"]
	b := handMade(bomb.codec, 1, bomb.bytes)
	var held [][]byte
	for range 3 {
		held = append(held, d.Entries(b, 0)[0].Value)
	}
	if free := d.budget.left(); free > 3<<20 {
		t.Fatalf("%d bytes are free while three of 3 MiB are held", free)
	}
	runtime.KeepAlive(held)
	held = nil
	if got := d.Entries(b, 0); got[0].Refused != nil {
		t.Fatal(got[0].Refused)
	}
	if free := d.budget.left(); free < 4<<20 {
		t.Fatalf("%d bytes are free after three of four were dropped", free)
	}
}

// TestReadersGetNoMemoryThatOthersHold: a reader that keeps a large batch keeps others from
// the next one, and takes nothing from those who are not readers.
func TestReadersGetNoMemoryThatOthersHold(t *testing.T) {
	const size = 3 << 20
	all := NewDecoder(Limits{BatchUnfolded: 4 << 20})
	d := all.ForReads()
	d.budget.free, d.budget.wait = 4<<20, 10*time.Millisecond
	bomb := packed(t, oneRecord(size, 0))["gzip"]
	b := handMade(bomb.codec, 1, bomb.bytes)
	w := new(Walk)
	err := w.Reuse(d, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []*Decoder{d, d.Derived()} {
		if err := new(Walk).Reuse(other, b, 0); !errors.Is(err, ErrBusy) {
			t.Fatalf("while one is held: %v", err)
		}
	}
	if e, ok := all.Walk(b, 0).Next(); !ok || e.Refused != nil {
		t.Fatalf("one that is no reader: %v", e.Refused)
	}
	runtime.KeepAlive(w)
	w = nil
	d.budget.wait = time.Minute
	if err := new(Walk).Reuse(d, b, 0); err != nil {
		t.Fatalf("after the first was dropped: %v", err)
	}
}

// FuzzDecompress: no bytes make a decompressor panic or give more than it may; what
// it takes, the client library's takes too, and gives the same.
func FuzzDecompress(f *testing.F) {
	for _, p := range packed(f, oneRecord(40<<10, 3)) {
		f.Add(int8(p.codec), p.bytes)
	}
	const most = 64 << 10
	small, other := newDecompressor(most), kgo.DefaultDecompressor()
	f.Fuzz(func(t *testing.T, codec int8, src []byte) {
		got, err := small.decompress(src, kgo.CompressionCodecType(codec))
		if len(got) > most {
			t.Fatalf("%d bytes", len(got))
		}
		if err != nil || codec == 0 {
			return
		}
		want, err := other.Decompress(src, kgo.CompressionCodecType(codec))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, but the client library gives %d, %v", len(got), len(want), err)
		}
	})
}

// FuzzEntries: whatever lies in a batch that a broker has taken, its reader gets on
// to the end of the batch, in order, within its limits; and where nothing is refused, it
// gets what the client library's own consumer gives.
func FuzzEntries(f *testing.F) {
	for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
		b := build(f, codec, someRecords)
		f.Add(byte(codec), b.Count(), []byte(b[HeaderSize:]), int64(1))
	}
	f.Add(byte(0), int32(1), oneRecord(10, 20), int64(0))
	d, library := NewDecoder(Limits{BatchUnfolded: 64 << 10, RecordHeaders: 16, HeaderBytes: 256, Key: 64}), kgo.DefaultDecompressor()
	f.Fuzz(func(t *testing.T, codec byte, count int32, records []byte, from int64) {
		b := handMade(kgo.CompressionCodecType(codec%8), max(1, count), records)
		at := int64(0)
		if from > 0 {
			at = from % b.NextOffset()
		}
		cost, from := 0, at
		got := d.Entries(b, at)
		if !slices.ContainsFunc(got, func(e Entry) bool { return e.Refused != nil }) {
			want, err := byLibrary(answerOf(b), from, library)
			if err != nil {
				t.Fatal(err)
			}
			if diff := agree(got, want); diff != "" {
				t.Fatal(diff)
			}
		}
		for _, e := range got {
			if e.Offset < at || e.Next() <= e.Offset || e.Next() > b.NextOffset() {
				t.Fatalf("entry from %d to %d, at %d of %d", e.Offset, e.Next(), at, b.NextOffset())
			}
			at = e.Next()
			if cost += len(e.Value) + RecordCost + len(e.Headers)*HeaderCost; cost > 64<<10 || len(e.Headers) > 16 || len(e.Key) > 64 {
				t.Fatal("beyond the limits")
			}
			if e.Refused != nil && e.Span > 0 && at != b.NextOffset() {
				t.Fatalf("a refused batch ends at %d, want %d", at, b.NextOffset())
			}
		}
	})
}

// TestDecompressorBuffersFit: buffers grow up to the limit and no further, and a large
// one is not kept for small batches.
func TestDecompressorBuffersFit(t *testing.T) {
	const most = 5 << 20
	for _, size := range []int{1000, firstBuffer - 1, firstBuffer, firstBuffer + 1, most - 1, most, most + 1} {
		raw := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		for name, p := range packed(t, raw) {
			d := newDecompressor(most)
			got, err := d.decompress(p.bytes, p.codec)
			switch {
			case size > most && !errors.Is(err, errLarger):
				t.Errorf("%s of %d bytes: %v, want errLarger", name, size, err)
			case size <= most && (err != nil || !bytes.Equal(got, raw)):
				t.Errorf("%s of %d bytes gives %d, %v", name, size, len(got), err)
			}
		}
	}
	for _, c := range []struct{ have, size, keeps int }{
		{firstBuffer, 1, firstBuffer},
		{keptBuffer, 1, keptBuffer},
		{2 * keptBuffer, 1, 0},
		{2 * keptBuffer, keptBuffer, 2 * keptBuffer},
		{firstBuffer, firstBuffer + 1, 2 * firstBuffer},
	} {
		d := newDecompressor(4 * keptBuffer)
		p := packed(t, make([]byte, c.size))["zstd"]
		if _, keep, err := d.within(p.bytes, p.codec, make([]byte, c.have)); err != nil || len(keep) != c.keeps {
			t.Errorf("a buffer of %d bytes for %d: %d are kept, %v; want %d", c.have, c.size, len(keep), err, c.keeps)
		}
	}
}
