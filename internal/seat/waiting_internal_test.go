package seat

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/txn"
)

// TestWaitingBytes fills and empties the inboxes of many partitions in any order. No
// partition rests without a reason: one of which nothing waits is fetched, whatever the
// others have; and one of which little waits is, while all together are half full.
func TestWaitingBytes(t *testing.T) {
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1")) // is never asked
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rapid.Check(t, func(t *rapid.T) {
		const one, total = 1000, 3000
		f := &feed{limit: one, waiting: &waitingBytes{limit: total, held: map[*inbox]struct{}{}}, consumer: txn.NewConsumer(client, txn.ConsumerConfig{})}
		boxes := make([]*inbox, rapid.IntRange(1, 12).Draw(t, "partitions"))
		for i := range boxes {
			boxes[i] = f.open(txn.TopicPartition{Topic: "t", Partition: int32(i)}, [16]byte{1}, 0, func() {})
		}
		sum := func() (n int) {
			for _, b := range boxes {
				n += b.bytes
			}
			return n
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			b := boxes[rapid.IntRange(0, len(boxes)-1).Draw(t, "partition")]
			switch rapid.SampledFrom([]string{"push", "push", "take", "take", "close"}).Draw(t, "step") {
			case "push":
				if b.paused || b.closed {
					continue
				}
				b.push(txn.Fetched{Batches: []txn.Unread{{Batch: make(txn.Batch, rapid.IntRange(0, 900).Draw(t, "bytes"))}}})
			case "take":
				b.next()
			case "close":
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					b.close()
				}
			}
			all := sum()
			if f.waiting.bytes != all {
				t.Fatalf("%d bytes wait, %d are counted", all, f.waiting.bytes)
			}
			if bound := total + len(boxes)*(one+128); all > bound {
				t.Fatalf("%d bytes wait, more than %d", all, bound)
			}
			for i, b := range boxes {
				switch {
				case b.closed || !b.paused:
				case b.bytes == 0:
					t.Fatalf("partition %d has nothing and is not fetched", i)
				case all <= total/2 && b.bytes <= one/2:
					t.Fatalf("partition %d has %d bytes, all have %d, and it is not fetched", i, b.bytes, all)
				}
			}
		}
	})
}
