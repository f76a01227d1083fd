package txn

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/event"
)

// answerOf is a broker's answer to a fetch that holds a batch.
func answerOf(b Batch) *kmsg.FetchResponseTopicPartition {
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.RecordBatches = b
	rp.HighWatermark, rp.LastStableOffset = b.NextOffset(), b.NextOffset()
	return &rp
}

// byLibrary decodes an answer as the client library's own consumer does.
func byLibrary(rp *kmsg.FetchResponseTopicPartition, from int64, d kgo.Decompressor) ([]*kgo.Record, error) {
	fp, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{KeepControlRecords: true, Offset: from}, rp, d, nil)
	return fp.Records, fp.Err
}

// byDecoder decodes an answer as the consumer and its users do.
func byDecoder(rp *kmsg.FetchResponseTopicPartition, from int64, d *Decoder) (out []Entry) {
	f, _ := unread(rp, from)
	for _, u := range f.Batches {
		w := d.Walk(u.Batch, u.From)
		out = slices.Grow(out, int(u.Batch.Count()))
		for e, ok := w.Next(); ok; e, ok = w.Next() {
			out = append(out, e)
		}
	}
	return out
}

// agree tells how the two differ, "" if they do not.
func agree(got []Entry, want []*kgo.Record) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d entries, the client library has %d", len(got), len(want))
	}
	null := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	for i, w := range want {
		g := got[i]
		ok := g.Refused == nil && g.Offset == w.Offset && g.Timestamp == w.Timestamp.UnixMilli() && null(g.Key, w.Key) && null(g.Value, w.Value) &&
			g.LeaderEpoch == w.LeaderEpoch && g.Producer == w.ProducerID && g.ProducerEpoch == w.ProducerEpoch &&
			g.Transactional == w.Attrs.IsTransactional() && g.Control == w.Attrs.IsControl() && len(g.Headers) == len(w.Headers)
		for j := 0; ok && j < len(w.Headers); j++ {
			ok = g.Headers[j].Key == w.Headers[j].Key && null(g.Headers[j].Value, w.Headers[j].Value)
		}
		if !ok {
			return fmt.Sprintf("entry %d: %+v, the client library has %+v", i, g, w)
		}
	}
	return ""
}

// randomRecords are records of many shapes, null members and empty ones among them.
func randomRecords(r *rand.Rand) []Record {
	some := func(most int) []byte {
		switch n := r.IntN(most); {
		case n%7 == 0:
			return nil
		case n%11 == 0:
			return []byte{}
		default:
			return bytes.Repeat([]byte{byte(r.Uint32()), byte(r.Uint32()), 'x'}, n)[:n]
		}
	}
	out := make([]Record, 1+r.IntN(60))
	for i := range out {
		out[i] = Record{Key: some(40), Value: some([]int{10, 300, 20_000}[r.IntN(3)]), Timestamp: 1_700_000_000_000 + int64(r.IntN(10_000)) - 5000}
		for range r.IntN(5) {
			out[i].Headers = append(out[i].Headers, event.Header{Key: string(some(12)), Value: some(50)})
		}
	}
	return out
}

// TestDecoderAgreesWithTheClientLibrary: of valid batches, in every codec, from every
// offset, the decoder gives what the client library's consumer gives.
func TestDecoderAgreesWithTheClientLibrary(t *testing.T) {
	d, library := NewDecoder(Limits{}), kgo.DefaultDecompressor()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		codec := kgo.CompressionCodecType(seed % 5)
		b := build(t, codec, randomRecords(r))
		if b.Codec() == kgo.CodecNone && r.IntN(3) > 0 {
			b = holes(t, b, func(int) bool { return r.IntN(2) == 0 })
		}
		b.stamp(identity{id: r.Int64N(1 << 40), epoch: int16(r.IntN(100)), sequence: r.Int32N(1000)})
		for _, from := range []int64{0, r.Int64N(b.NextOffset()), b.NextOffset() - 1} {
			want, err := byLibrary(answerOf(b), from, library)
			if err != nil {
				t.Fatal(err)
			}
			if diff := agree(byDecoder(answerOf(b), from, d), want); diff != "" {
				t.Fatalf("seed %d codec %d from %d: %s", seed, codec, from, diff)
			}
		}
	}
}

// BenchmarkDecode decodes batches with the decoder and with the client library's own
// consumer, in turns; "x-library" is the median time of the one over that of the other.
func BenchmarkDecode(b *testing.B) {
	fill := func(n, size, headers int) []Record {
		out := make([]Record, n)
		for i := range out {
			out[i] = Record{Key: fmt.Appendf(nil, "key-%d", i), Value: bytes.Repeat(fmt.Appendf(nil, `{"delay":%d,"carrier":"UA"}`, i), size/26+1)[:size], Timestamp: int64(1_700_000_000_000 + i)}
			for j := range headers {
				out[i].Headers = append(out[i].Headers, event.Header{Key: fmt.Sprint("gg-", j), Value: fmt.Appendf(nil, "value %d", i)})
			}
		}
		return out
	}
	d, library := NewDecoder(Limits{}), kgo.DefaultDecompressor()
	for _, shape := range []struct {
		name string
		recs []Record
	}{
		{"1x200B", fill(1, 200, 6)}, {"100x1KiB", fill(100, 1<<10, 6)}, {"1000x100B", fill(1000, 100, 6)}, {"4x1MiB", fill(4, 1<<20, 0)},
	} {
		for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
			rp := answerOf(build(b, codec, shape.recs))
			b.Run(fmt.Sprintf("%s/codec=%d", shape.name, codec), func(b *testing.B) {
				var own, theirs []time.Duration
				b.ReportAllocs()
				for range b.N {
					start := time.Now()
					got := byDecoder(rp, 0, d)
					middle := time.Now()
					want, err := byLibrary(rp, 0, library)
					own, theirs = append(own, middle.Sub(start)), append(theirs, time.Since(middle))
					if err != nil || len(got) != len(want) {
						b.Fatalf("%d of %d, %v", len(got), len(want), err)
					}
				}
				slices.Sort(own)
				slices.Sort(theirs)
				b.ReportMetric(float64(own[b.N/2])/float64(theirs[b.N/2]), "x-library")
				b.ReportMetric(float64(own[b.N/2].Nanoseconds()), "own-ns")
			})
		}
	}
}
