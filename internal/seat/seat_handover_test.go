package seat_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// TestLogIsReadOnce: where nobody else writes, the own log is fetched uncommitted alone;
// for a fold that lags what it has not taken yet is fetched again, and nothing twice.
func TestLogIsReadOnce(t *testing.T) {
	c := fakeCluster(t)
	var again atomic.Int64 // committed fetches of the own log
	id := c.ids[c.topic]
	c.fake.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		if req := kreq.(*kmsg.FetchRequest); req.IsolationLevel == 1 {
			for i := range req.Topics {
				if req.Topics[i].TopicID == id || req.Topics[i].Topic == c.topic {
					again.Add(1)
				}
			}
		}
		return nil, nil, false
	})
	store, f := dedupe.NewMemory(), newFolder()
	in := c.start("us-0", store, f).ready()
	var want []string
	write := func(n int) {
		for range n {
			v := fmt.Sprint(len(want))
			in.mustWrite(0, v)
			want = append(want, v)
		}
	}
	check := func() {
		t.Helper()
		f.until(t, "all that was written", func() bool { return len(f.values(1)) >= len(want) })
		if got := f.values(1); !slices.Equal(got, want) {
			t.Fatalf("folded %q, want %q", got, want)
		}
	}
	write(30)
	check()
	in.stop()
	in = c.start("us-0", store, f).ready() // in the middle of the log
	write(30)
	check()
	if n := again.Load(); n != 0 {
		t.Errorf("the own log was fetched %d times for the fold", n)
	}
	in.stop()

	slow := &slowFolder{folder: f, gate: make(chan struct{})}
	in = c.start("us-0", store, f, func(cfg *seat.Config) { cfg.Folder = slow }).ready()
	large := make([]byte, 100<<10)
	for range 100 { // more than is kept for it
		want = append(want, string(large))
		in.mustWrite(0, string(large))
	}
	close(slow.gate)
	check()
	if again.Load() == 0 {
		t.Error("what was dropped was not fetched again")
	}
}

// slowFolder folds nothing before its gate is closed.
type slowFolder struct {
	*folder
	gate chan struct{}
}

func (f *slowFolder) Fold(ctx context.Context, items []judged.Item) error {
	select {
	case <-f.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	return f.folder.Fold(ctx, items)
}

// interleaved writes while another application opens transactions in the partition, each
// of which is committed or aborted some writes later, and restarts the instance in between.
func interleaved(c *cluster) {
	t := c.t
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.TransactionalID("foreign-"+c.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	store, f := dedupe.NewMemory(), newFolder()
	in := c.start("us-0", store, f).ready()
	var want []string
	for i := range 24 {
		if i%9 == 8 {
			in.stop()
			if i%2 == 0 {
				store = dedupe.NewMemory()
			}
			in = c.start("us-0", store, f).ready()
		}
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		commit := kgo.TransactionEndTry(i%3 == 0)
		for n := range 1 + i%3 {
			v := fmt.Sprintf("foreign %d.%d", i, n)
			r := &kgo.Record{Topic: c.topic, Partition: partition, Key: []byte("x"), Value: []byte(v)}
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if commit == kgo.TryCommit {
				want = append(want, v)
			}
			v = fmt.Sprintf("own %d.%d", i, n)
			in.mustWrite(0, v)
			want = append(want, v)
		}
		if err := cl.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
		v := fmt.Sprintf("after %d", i)
		in.mustWrite(0, v)
		want = append(want, v)
	}
	f.until(t, "all that is committed", func() bool { return len(f.values(1)) >= len(want) })
	if got := f.values(1); !slices.Equal(got, want) {
		t.Errorf("folded %q, want %q", got, want)
	}
}

func TestInterleavedTransactions(t *testing.T) { interleaved(fakeCluster(t)) }
