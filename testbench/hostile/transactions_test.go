//go:build unix

package hostile_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// TestManySmallTransactions: a native producer whose every record is a transaction of
// its own leaves a marker behind each, and each has to be told from a barrier. Writes
// through the gateway to the same partition go on. Their latency is printed.
func TestManySmallTransactions(t *testing.T) {
	const producers = 4
	d := deploy(t, spec{set: []string{"log.level=warn"}})
	key := keyOf(t, d.us)
	done := make(chan struct{})
	var native sync.WaitGroup
	for g := range producers {
		c := d.us.kafka(t, kgo.TransactionalID(fmt.Sprint("app", g)), kgo.ProducerLinger(0))
		native.Go(func() {
			for i := range rounds(10_000) / producers {
				if err := c.BeginTransaction(); err != nil {
					t.Error(err)
					return
				}
				if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: "github", Partition: 0, Key: fmt.Append(nil, i), Value: []byte("1")}).FirstErr(); err != nil {
					t.Error(err)
					return
				}
				if err := c.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	go func() { native.Wait(); close(done) }()
	var took []time.Duration
	for began, going := time.Now(), true; going; {
		select {
		case <-done:
			t.Logf("%d transactions in %s", rounds(10_000)/producers*producers, time.Since(began).Round(time.Millisecond))
			going = false
		default:
			at := time.Now()
			d.us.mustStore(t, client.Write{Topic: "github", Key: key, Value: []byte("2")})
			took = append(took, time.Since(at))
		}
	}
	slices.Sort(took)
	t.Logf("%d writes beside them: p50 %s, p99 %s, longest %s", len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// keyOf is a record key of partition 0 of github.
func keyOf(t *testing.T, r *region) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprint("k", i)
		if a := r.mustStore(t, client.Write{Topic: "github", Key: key, Value: []byte("0")}); a.Partition == 0 {
			return key
		}
	}
	t.Fatal("no key lies in partition 0")
	return ""
}
