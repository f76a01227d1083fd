package txn_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/txn"
)

// TestFilter: a filtered batch has the records that were kept, at the same offsets and times,
// and ends where it ended.
func TestFilter(t *testing.T) {
	d := txn.NewDecoder(txn.Limits{})
	rapid.Check(t, func(t *rapid.T) {
		var b txn.Builder
		n := rapid.IntRange(1, 30).Draw(t, "records")
		for i := range n {
			r := &txn.Record{Key: fmt.Append(nil, "key", i), Timestamp: rapid.Int64Range(0, 1<<41).Draw(t, "time")}
			if rapid.Bool().Draw(t, "value") {
				r.Value = bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 300).Draw(t, "size"))
			}
			b.Add(r)
		}
		codec := rapid.SampledFrom([]kgo.CompressionCodecType{kgo.CodecNone, kgo.CodecGzip, kgo.CodecSnappy, kgo.CodecLz4, kgo.CodecZstd}).Draw(t, "codec")
		whole, err := b.Batch(codec)
		if err != nil {
			t.Fatalf("build: %v", err)
		}
		keep := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "keep")
		o, err := d.Open(whole)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		got, err := o.Filter(func(r txn.Raw) bool {
			key, tombstone, ok := r.Key()
			if want := fmt.Sprint("key", r.Offset); !ok || string(key) != want {
				t.Fatalf("key %q, %v; want %q", key, ok, want)
			}
			if err := d.Each(whole, func(rec txn.Record) error {
				if rec.Offset == r.Offset && tombstone != (rec.Value == nil) {
					t.Fatalf("record %d is a tombstone: %v", r.Offset, tombstone)
				}
				return nil
			}); err != nil {
				t.Fatalf("read: %v", err)
			}
			return keep[r.Offset]
		})
		if err != nil {
			t.Fatalf("filter: %v", err)
		}
		var want []string
		newest := int64(0)
		show := func(r txn.Record) string { return fmt.Sprintf("%d %d %q %v", r.Offset, r.Timestamp, r.Key, r.Value) }
		if err := d.Each(whole, func(r txn.Record) error {
			if keep[r.Offset] {
				want = append(want, show(r))
				newest = max(newest, r.Timestamp)
			}
			return nil
		}); err != nil {
			t.Fatalf("read: %v", err)
		}
		if len(want) == 0 {
			if got != nil {
				t.Fatalf("a batch of %d records is left", got.Count())
			}
			return
		}
		if err := got.Check(); err != nil {
			t.Fatalf("what is left: %v", err)
		}
		if got.NextOffset() != whole.NextOffset() || got.MaxTimestamp() != newest || int(got.Count()) != len(want) {
			t.Fatalf("%d records up to %d, newest of %d; want %d, %d, %d", got.Count(), got.NextOffset(), got.MaxTimestamp(), len(want), whole.NextOffset(), newest)
		}
		var have []string
		if err := d.Each(got, func(r txn.Record) error { have = append(have, show(r)); return nil }); err != nil {
			t.Fatalf("read what is left: %v", err)
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Fatalf("left %v, want %v", have, want)
		}
	})
}
