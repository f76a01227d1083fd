package embed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	kills      = 8
	partitions = 6
	writers    = 3
)

// verdict is what a writer was told of a transaction.
type verdict int

const (
	unanswered verdict = iota
	commits
	aborts
)

// history is what all writers were told, by the value of a transaction's
// records.
type history struct {
	mu    sync.Mutex
	said  map[string]verdict
	parts map[string][]int32
	done  chan struct{} // one for each answer
}

func (h *history) begin(value string, parts []int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said[value], h.parts[value] = unanswered, parts
}

func (h *history) answer(value string, v verdict) {
	h.mu.Lock()
	h.said[value] = v
	h.mu.Unlock()
	select {
	case h.done <- struct{}{}:
	default:
	}
}

// write runs transactions of one transactional id until ctx ends or the broker
// is gone.
func (h *history) write(ctx context.Context, cl *kgo.Client, prefix string, rng *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		value := fmt.Sprintf("%s.%d", prefix, n)
		var parts []int32
		var records []*kgo.Record
		for _, p := range rng.Perm(partitions)[:2+rng.IntN(partitions-1)] {
			parts = append(parts, int32(p))
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(p), Value: []byte(value)})
		}
		h.begin(value, parts)
		if cl.BeginTransaction() != nil || cl.ProduceSync(ctx, records...).FirstErr() != nil {
			return
		}
		end, v := kgo.TryCommit, commits
		if rng.IntN(3) == 0 {
			end, v = kgo.TryAbort, aborts
		}
		if cl.EndTransaction(ctx, end) != nil {
			return
		}
		h.answer(value, v)
	}
}

// check reads everything committed and compares it with what was answered.
func (h *history) check(t *testing.T, seed string) {
	t.Helper()
	seen := map[string]map[int32]int{}
	for p, values := range committed(t, seed, topic) {
		for _, v := range values {
			if seen[v] == nil {
				seen[v] = map[int32]int{}
			}
			seen[v][p]++
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for value, said := range h.said {
		got := seen[value]
		delete(seen, value)
		switch {
		case said == aborts && len(got) > 0:
			t.Errorf("aborted transaction %s is seen in %v", value, got)
		case said == commits && len(got) == 0:
			t.Errorf("committed transaction %s is not seen", value)
		case len(got) > 0 && len(got) != len(h.parts[value]):
			t.Errorf("transaction %s (answer %d) is seen in %v of %v", value, said, got, h.parts[value])
		}
		for p, times := range got {
			if times != 1 {
				t.Errorf("transaction %s is seen %d times in partition %d", value, times, p)
			}
		}
	}
	for value := range seen {
		t.Errorf("record %s comes from nowhere", value)
	}
}

// plain writes numbers with one idempotent client, through every kill, until
// stop closes. Each must be answered in the end.
func plain(ctx context.Context, cl *kgo.Client, stop <-chan struct{}) (n int, err error) {
	for {
		select {
		case <-stop:
			return n, nil
		default:
		}
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "plain", Value: fmt.Append(nil, n)}).FirstErr(); err != nil {
			return n, fmt.Errorf("write %d: %w", n, err)
		}
		n++
	}
}

func soon(int) time.Duration { return 20 * time.Millisecond }

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestKafkaTransactionsOverKills kills the broker again and again at random
// moments while producers run transactions over several partitions. Whatever was
// answered holds, and nothing is half there.
func TestKafkaTransactionsOverKills(t *testing.T) {
	dir, listen := t.TempDir(), freePort(t)
	num := rand.Uint64()
	t.Logf("random seed %d", num)
	rng := rand.New(rand.NewPCG(num, 0))
	h := &history{said: map[string]verdict{}, parts: map[string][]int32{}, done: make(chan struct{}, 1024)}

	seed, kill := childOn(t, dir, listen)
	createTopic(t, seed, topic, partitions)
	createTopic(t, seed, "plain", 1)
	stop, written := make(chan struct{}), make(chan string, 1)
	steady := client(t, listen, kgo.RetryBackoffFn(soon), kgo.MetadataMinAge(20*time.Millisecond))
	go func() {
		n, err := plain(testContext(t), steady, stop)
		if err != nil {
			written <- err.Error()
			return
		}
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint(i))
		}
		written <- strings.Join(want, " ")
	}()

	for round := range kills {
		ctx, cancel := context.WithCancel(testContext(t))
		var running sync.WaitGroup
		var clients []*kgo.Client
		for w := range writers {
			cl := client(t, seed, kgo.TransactionalID(fmt.Sprintf("tx-%d", w)), kgo.RetryBackoffFn(soon))
			clients = append(clients, cl)
			own := rand.New(rand.NewPCG(num, uint64(1+round*writers+w)))
			running.Go(func() { h.write(ctx, cl, fmt.Sprintf("%d.%d", round, w), own) })
		}
		for range 3 * writers {
			select {
			case <-h.done:
			case <-ctx.Done():
				t.Fatal("no transaction was answered in time")
			}
		}
		<-time.After(time.Duration(rng.IntN(100_000)) * time.Microsecond) // the random moment
		kill()
		cancel()
		for _, cl := range clients {
			cl.Close() // or it waits for the answer to what it sent
		}
		running.Wait()
		for len(h.done) > 0 {
			<-h.done
		}
		seed, kill = childOn(t, dir, listen)
		h.check(t, seed)
		if t.Failed() {
			t.FailNow()
		}
	}
	close(stop)
	want := <-written
	if got := strings.Join(committed(t, seed, "plain")[0], " "); got != want {
		t.Errorf("the idempotent producer's records are %s, want %s", got, want)
	}
	kill()
	h.check(t, start(t, dir).Seeds()[0])
	unknown := 0
	for _, v := range h.said {
		if v == unanswered {
			unknown++
		}
	}
	t.Logf("%d transactions, %d of them unanswered", len(h.said), unknown)
}
