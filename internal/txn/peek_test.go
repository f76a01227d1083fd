package txn

import (
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// laid is a batch of n records whose first lies at base; emptied ones keep their
// place and have no record left, as compaction leaves them.
func laid(t *testing.T, base int64, n int, emptied bool) []byte {
	t.Helper()
	b := &Builder{Limit: 1 << 20}
	for range n {
		if !b.Add(&Record{Topic: "t", Key: []byte("k"), Value: []byte("v")}) {
			t.Fatal("the builder is full")
		}
	}
	batch, err := b.Batch(kgo.CodecNone)
	if err != nil {
		t.Fatal(err)
	}
	raw := append([]byte(nil), batch...)
	binary.BigEndian.PutUint64(raw[atBaseOffset:], uint64(base))
	if emptied {
		raw = raw[:HeaderSize]
		binary.BigEndian.PutUint32(raw[atLength:], HeaderSize-lengthEnd)
		binary.BigEndian.PutUint32(raw[atCount:], 0)
	}
	return raw
}

// sent makes a batch one of a transaction of producer id.
func sent(raw []byte, id int64) []byte {
	binary.BigEndian.PutUint64(raw[atProducerID:], uint64(id))
	binary.BigEndian.PutUint16(raw[atAttributes:], binary.BigEndian.Uint16(raw[atAttributes:])|AttrTransactional)
	return raw
}

func aborting(id, first int64) []kmsg.FetchResponseTopicPartitionAbortedTransaction {
	return []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: id, FirstOffset: first}}
}

func TestAfterHole(t *testing.T) {
	for _, tc := range []struct {
		name     string
		raw      [][]byte
		readable int64
		want     int64
		aborted  []kmsg.FetchResponseTopicPartitionAbortedTransaction
	}{
		{"nothing up to the end", nil, 30, 30, nil},
		{"the end itself", nil, 20, 20, nil},
		{"a record", [][]byte{laid(t, 20, 2, false)}, 30, 20, nil},
		{"a record after offsets that are gone", [][]byte{laid(t, 25, 2, false)}, 30, 20, nil},
		{"an emptied batch", [][]byte{laid(t, 18, 5, true)}, 23, 23, nil},
		{"an emptied batch, then a record", [][]byte{laid(t, 18, 5, true), laid(t, 23, 1, false)}, 30, 23, nil},
		{"the batch around a hole, all below", [][]byte{laid(t, 10, 5, false), laid(t, 19, 3, true)}, 30, 22, nil},
		{"records of an aborted transaction", [][]byte{sent(laid(t, 20, 2, false), 7), sent(laid(t, 22, 1, false), 8)}, 23, 22, aborting(7, 20)},
		{"an aborted one that began before", [][]byte{sent(laid(t, 20, 2, false), 7)}, 22, 22, aborting(7, 3)},
		{"a batch that is cut off", [][]byte{laid(t, 20, 3, true), laid(t, 23, 1, false)[:40]}, 30, 23, nil},
	} {
		var raw []byte
		for _, b := range tc.raw {
			raw = append(raw, b...)
		}
		if got, err := afterHole(raw, NewAborts(tc.aborted), 20, tc.readable); err != nil || got != tc.want {
			t.Errorf("%s: %d, %v, want %d", tc.name, got, err, tc.want)
		}
	}
}
