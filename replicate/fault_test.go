//go:build unix

package replicate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
)

// Killed before any of its effects, a link that restarts goes on exactly.
func TestKilledAtEveryStepOnApache(t *testing.T) { onAll(t, killTest) }

func killTest(t *testing.T, from, to *end) {
	stride := int64(1)
	if from.fake == nil {
		stride = 4 // real brokers take their time
	}
	from.create(t, 3, nil, "orders")
	next := 0
	more := func() {
		for p := range int32(3) {
			from.produce(t, rows("orders", p, next, 5)...)
		}
		next += 5
	}
	more()
	for step := int64(0); step < 45; step += stride {
		cfg := config(from, to)
		cfg.Shards = 2
		if step%10 == 9 {
			cfg.Shards = 1 + int(step/10) // another generation
		}
		var effects atomic.Int64
		r := start(t, cfg, func(l *replicate.Link) {
			l.SetBefore(func(int, any) error {
				if effects.Add(1) > step {
					return errKilled
				}
				return nil
			})
		})
		// A link that is at rest before the step is reached is fed until it is.
		eventually(t, fmt.Sprintf("the end of the link killed at step %d", step), func() bool {
			if effects.Load() > step {
				return true
			}
			more()
			return false
		})
		r.cancel()
		_ = r.wait(t)
	}
	cfg := config(from, to)
	cfg.Shards = 0 // as many as the last
	r := start(t, cfg)
	r.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
	if st := r.Status(); st.Foreign != 0 || len(st.Parked) != 0 {
		t.Fatalf("status %+v", st)
	}
}

// lossy makes connections that break while an answer is awaited, so that requests
// were carried out and nobody knows.
func lossy(on *atomic.Bool, seed uint64, chance float64) kgo.Opt {
	rnd := rand.New(rand.NewPCG(seed, 1))
	dice := make(chan float64)
	go func() {
		for {
			dice <- rnd.Float64()
		}
	}()
	return kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, host)
		if err != nil {
			return nil, err
		}
		return &lossyConn{Conn: c, on: on, chance: chance, dice: dice}, nil
	})
}

type lossyConn struct {
	net.Conn
	on     *atomic.Bool
	chance float64
	dice   chan float64
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.on.Load() && <-c.dice < c.chance {
		_ = c.Close()
		return 0, errors.New("connection lost by the test")
	}
	return n, err
}

func TestLostAnswers(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 4, nil, "orders")
	var on atomic.Bool
	cfg := config(from, to)
	cfg.Target = append(cfg.Target, lossy(&on, 7, 0.02))
	cfg.Source = append(cfg.Source, lossy(&on, 8, 0.02))
	r := start(t, cfg)
	from.produce(t, rows("orders", 0, 0, 1)...)
	r.caughtUp(t, from, "orders")
	on.Store(true)
	i := 0
	eventually(t, "trouble", func() bool {
		from.produce(t, rows("orders", int32(i%4), 1+i*3, 3)...)
		i++
		return r.Status().Resets() >= 4
	})
	on.Store(false)
	r.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
	if st := r.Status(); st.Foreign != 0 || len(st.Parked) != 0 {
		t.Fatalf("status %+v", st)
	}
}

func TestRefusalsOfTheTargetAreRetried(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 2, nil, "orders")
	r := start(t, config(from, to))
	from.produce(t, rows("orders", 0, 0, 10)...)
	r.caughtUp(t, from, "orders")
	for i, f := range []kfake.Fault{
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "us.orders", Err: kerr.NotLeaderForPartition, Count: 3},
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "us.orders", Err: kerr.RequestTimedOut, Count: 1}, // done, but who knows
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "_geogate.positions.us", Err: kerr.NotEnoughReplicas, Count: 2},
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "_geogate.runs.us", Err: kerr.NotEnoughReplicasAfterAppend, Count: 1},
		{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.ConcurrentTransactions, Count: 20},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.CoordinatorNotAvailable, Count: 3},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.UnknownServerError, Count: 1},
		{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.UnknownServerError, Count: 1},
	} {
		h := to.fake.Fault(f)
		from.produce(t, rows("orders", int32(i%2), 100+i*10, 10)...)
		r.caughtUp(t, from, "orders")
		if h.Hits() == 0 {
			t.Fatalf("fault %d was not met", i)
		}
		h.Remove()
	}
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
}

func TestTwoInstancesFenceEachOtherOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 4, nil, "orders")
		first := start(t, config(from, to))
		from.produce(t, rows("orders", 0, 0, 10)...)
		first.caughtUp(t, from, "orders")
		second := start(t, config(from, to))
		eventually(t, "the second to run", func() bool { st := second.Status(); return st.Topics == 1 && st.LagRecords != nil })
		next := 100
		eventually(t, "the first to give up", func() bool {
			for p := range int32(4) {
				from.produce(t, rows("orders", p, next, 1)...)
			}
			next++
			select {
			case err := <-first.done:
				first.done <- err
				return true
			default:
				return false
			}
		})
		if err := first.wait(t); !errors.Is(err, replicate.ErrTakenOver) {
			t.Fatalf("the first ends with %v", err)
		}
		if st := first.Status(); st.State != replicate.Failed || st.Error == "" {
			t.Fatalf("status of the first: %+v", st)
		}
		second.caughtUp(t, from, "orders")
		equal(t, from, to, "orders")
		mapped(t, from, to, "orders")
	})
}

func TestForeignWriter(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	r := start(t, config(from, to))
	from.produce(t, rows("orders", 0, 0, 3)...)
	r.caughtUp(t, from, "orders")
	for i := range 5 {
		to.produce(t, &kgo.Record{Topic: "us.orders", Value: []byte("foreign")})
		from.produce(t, rows("orders", 0, 10+i*10, 3)...)
		r.caughtUp(t, from, "orders")
	}
	if st := r.Status(); st.Foreign != 5 || st.State != replicate.Running {
		t.Fatalf("status %+v", st)
	}
	foreign, ours := locate(t, from, to, "orders")
	if foreign != 5 || ours != 18 {
		t.Fatalf("%d foreign records and %d of ours", foreign, ours)
	}
	// In a quiet topic too, within a sweep.
	to.produce(t, &kgo.Record{Topic: "us.orders", Value: []byte("foreign")})
	eventually(t, "the foreign record in a quiet topic", func() bool { return r.Status().Foreign == 6 })
	eventually(t, "it to be described", func() bool { foreign, _ := locate(t, from, to, "orders"); return foreign == 6 })
	if !slices.ContainsFunc(incidents(t, to), func(x replicate.Incident) bool { return x.Kind == replicate.ForeignWriter && x.Topic == "orders" }) {
		t.Fatal("no incident was recorded")
	}
}

func incidents(t testing.TB, to *end) (out []replicate.Incident) {
	t.Helper()
	for _, recs := range to.read(t, control.PositionsFrom("us")) {
		for _, rec := range recs {
			x, ok, err := replicate.ParseIncident(rec.Key, rec.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				out = append(out, x)
			}
		}
	}
	return out
}

// parked waits until exactly one partition is held back, for a reason.
func (r *running) parked(t testing.TB, topic string, partition int32, kind replicate.Kind) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s/%d to be parked", topic, partition), func() bool {
		st := r.Status()
		if len(st.Parked) == 0 {
			return false
		}
		p := st.Parked[0]
		if len(st.Parked) != 1 || p.Topic != topic || p.Partition != partition || !strings.HasPrefix(p.Reason, kind.String()) || st.State != replicate.Parked {
			t.Fatalf("status %+v", st)
		}
		return true
	})
}

func TestRetentionGapOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 2, nil, "orders")
		r := start(t, config(from, to))
		from.produce(t, rows("orders", 0, 0, 10)...)
		from.produce(t, rows("orders", 1, 0, 10)...)
		r.caughtUp(t, from, "orders")
		r.stop(t)
		from.produce(t, rows("orders", 0, 10, 10)...)
		from.produce(t, rows("orders", 1, 10, 10)...)
		var cut kadm.Offsets
		cut.Add(kadm.Offset{Topic: "orders", Partition: 1, At: 15})
		if _, err := kadm.NewClient(from.cl).DeleteRecords(t.Context(), cut); err != nil {
			t.Fatal(err)
		}
		for range 2 { // found again after a restart, recorded once
			r = start(t, config(from, to))
			r.parked(t, "orders", 1, replicate.RetentionGap)
			eventually(t, "the incident to be recorded", func() bool { return len(incidents(t, to)) == 1 })
			eventually(t, "the other partition to be copied", func() bool { return r.Covered()[replicate.Part{Topic: "orders"}] >= 20 })
			r.stop(t)
		}
		x := incidents(t, to)[0]
		if x.Kind != replicate.RetentionGap || x.From != 10 || x.Until != 15 || x.Partition != 1 || x.Topic != "orders" || x.At.IsZero() {
			t.Fatalf("incident %+v", x)
		}
		if got := to.read(t, "us.orders"); len(got[0]) != 20 || len(got[1]) != 10 {
			t.Fatalf("copied %d and %d", len(got[0]), len(got[1]))
		}
	})
}

func TestRecreatedTopics(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"source", "target", "target while running", "target gone"} {
		t.Run(side, func(t *testing.T) {
			from, to := fakeEnd(t, us), fakeEnd(t, eu)
			from.create(t, 1, nil, "orders", "other")
			r := start(t, config(from, to))
			from.produce(t, rows("orders", 0, 0, 10)...)
			from.produce(t, rows("other", 0, 0, 10)...)
			r.caughtUp(t, from, "orders", "other")
			running := side == "target while running"
			if !running {
				r.stop(t)
			}
			e, topic, kind := from, "orders", replicate.SourceRecreated
			if side != "source" {
				e, topic, kind = to, "us.orders", replicate.TargetRecreated
			}
			if _, err := kadm.NewClient(e.cl).DeleteTopics(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
			if side != "target gone" {
				e.create(t, 1, nil, topic)
			}
			from.produce(t, rows("orders", 0, 10, 10)...)
			from.produce(t, rows("other", 0, 10, 10)...)
			if !running {
				r = start(t, config(from, to))
			}
			r.parked(t, "orders", 0, kind)
			eventually(t, "the incident to be recorded", func() bool {
				xs := incidents(t, to)
				return len(xs) == 1 && xs[0].Kind == kind
			})
			r.caughtUp(t, from, "other")
			equal(t, from, to, "other")
			if side == "target gone" {
				return
			}
			if n := len(to.read(t, "us.orders")[0]); n > 10 {
				t.Fatalf("%d records in the remote topic", n)
			}
		})
	}
}

func TestRefusedBatchesAreSplitOrParkedOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 2, nil, "orders")
		r := start(t, config(from, to))
		from.produce(t, rows("orders", 0, 0, 1)...)
		r.caughtUp(t, from, "orders")
		limit := "20000"
		if _, err := kadm.NewClient(to.cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, "us.orders"); err != nil {
			t.Fatal(err)
		}
		cl := from.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(50*time.Millisecond))
		var large []*kgo.Record
		for i := range 200 {
			large = append(large, &kgo.Record{Topic: "orders", Value: []byte(strings.Repeat(fmt.Sprint(i%10), 1000))})
		}
		if err := cl.ProduceSync(t.Context(), large...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		r.caughtUp(t, from, "orders")
		equal(t, from, to, "orders")
		mapped(t, from, to, "orders")
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Partition: 1, Value: []byte(strings.Repeat("x", 30_000))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		r.parked(t, "orders", 1, replicate.Refused)
		from.produce(t, rows("orders", 0, 300, 5)...)
		eventually(t, "the other partition to be copied", func() bool { return r.Covered()[replicate.Part{Topic: "orders"}] >= 206 })
	})
}

func TestNewGeneration(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 8, nil, "orders")
	next := 0
	for _, shards := range []int{0, 4, 3, 3, 32, 0, 2} {
		cfg := config(from, to)
		cfg.Shards = shards
		r := start(t, cfg)
		for p := range int32(8) {
			from.produce(t, rows("orders", p, next, 7)...)
		}
		next += 7
		r.caughtUp(t, from, "orders")
		r.stop(t)
	}
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
	last := replicate.Generation{}
	for _, rec := range to.read(t, control.PositionsFrom("us"))[0] {
		if string(rec.Key) == replicate.GenerationKey {
			var err error
			if last, err = replicate.ParseGeneration(rec.Value); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := (replicate.Generation{Number: 5, Shards: 2, Previous: 4, PreviousShards: 32, Cluster: "cluster-us", Fenced: true}); last != want {
		t.Fatalf("generation %+v, want %+v", last, want)
	}
	// A cluster that merely bears the region's name does not go on.
	other, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("somebody else"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if err := start(t, config(newEnd(t, us, other.ListenAddrs()), to)).wait(t); !errors.Is(err, replicate.ErrSettings) {
		t.Fatalf("another source: %v", err)
	}
}

// A running shard that must restart finds that the link has moved on.
func TestOldGenerationStops(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 4, nil, "orders")
	old := start(t, config(from, to))
	from.produce(t, rows("orders", 0, 0, 5)...)
	old.caughtUp(t, from, "orders")
	cfg := config(from, to)
	cfg.Shards = 2
	young := start(t, cfg)
	eventually(t, "the new generation to run", func() bool { st := young.Status(); return st.LagRecords != nil && *st.LagRecords == 0 })
	next := 5
	eventually(t, "the old generation to stop", func() bool {
		for p := range int32(4) {
			from.produce(t, rows("orders", p, next, 2)...)
		}
		next += 2
		return len(old.done) > 0
	})
	if err := old.wait(t); !errors.Is(err, replicate.ErrTakenOver) && !errors.Is(err, replicate.ErrGeneration) {
		t.Fatalf("old generation ends with %v", err)
	}
	young.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
}

// locate counts a remote topic's foreign and mapped records.
func locate(t testing.TB, from, to *end, topic string) (foreign, ours int) {
	t.Helper()
	links := linksOf(t, from, to)
	remote := from.region.Name + "." + topic
	there, err := txn.Describe(t.Context(), to.cl, remote)
	if err != nil {
		t.Fatal(err)
	}
	for p, recs := range to.read(t, remote) {
		for _, r := range recs {
			switch links.Locate(there[remote].ID, p, r.Offset, r.LeaderEpoch).State {
			case control.Foreign:
				foreign++
			case control.Mapped:
				ours++
			}
		}
	}
	return foreign, ours
}

// Garbage in the topics that a link reads its own records from stops nothing, also
// not a link that starts with it: each record is passed over.
func TestMalformedControlRecords(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	first := start(t, config(from, to))
	from.produce(t, rows("orders", 0, 0, 3)...)
	first.caughtUp(t, from, "orders")
	garbage := func(e *end, topic string, partitions int32) {
		for p := range partitions {
			for _, kv := range [][2][]byte{{nil, nil}, {nil, []byte("y")}, {[]byte("x"), nil}, {[]byte("x"), []byte("y")}} {
				e.produce(t, &kgo.Record{Topic: topic, Partition: p, Key: kv[0], Value: kv[1]})
			}
		}
	}
	garbage(to, control.TopicTopics, 1)
	garbage(to, control.PositionsFrom("us"), 4)
	// A good key with a value that is none: the last good one still holds.
	for p, recs := range to.read(t, control.PositionsFrom("us")) {
		for _, r := range recs {
			if _, _, err := offsets.ParsePositionKey(r.Key); err == nil {
				to.produce(t, &kgo.Record{Topic: control.PositionsFrom("us"), Partition: p, Key: r.Key, Value: []byte("y")})
				break
			}
		}
	}
	first.rounds(t, 2)
	first.stop(t)

	from.create(t, 1, nil, "later", "marked")
	from.create(t, 1, map[string]string{"cleanup.policy": "compact"}, control.TopicTopics)
	garbage(from, control.TopicTopics, 1)
	from.produce(t, &kgo.Record{Topic: control.TopicTopics, Key: []byte("marked"), Value: []byte("y")})
	second := start(t, config(from, to))
	from.produce(t, rows("orders", 0, 3, 3)...)
	from.produce(t, rows("later", 0, 0, 3)...)
	second.caughtUp(t, from, "orders", "later")
	equal(t, from, to, "orders")
	equal(t, from, to, "later")
	rulings, _ := second.Topics()
	if !slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool { return r.Topic == "marked" && r.Blocked && !r.Carried }) {
		t.Fatalf("a topic whose registry record does not parse is not blocked: %+v", rulings)
	}
}

// TestGenerationRecordDeleted: somebody deletes the records that a link keeps at its target
// while it runs. When it has to look at them again it starts again, and copies on; nothing
// says that another instance runs it.
func TestGenerationRecordDeleted(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	var away atomic.Bool
	cfg := config(from, to)
	cfg.Target = append(cfg.Target, lossy(&away, 1, 1))
	r := start(t, cfg)
	from.produce(t, rows("orders", 0, 0, 5)...)
	r.caughtUp(t, from, "orders")
	admin := kadm.NewClient(to.client(t))
	ends, err := admin.ListEndOffsets(t.Context(), control.PositionsFrom("us"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DeleteRecords(t.Context(), ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	from.produce(t, rows("orders", 0, 5, 40)...)
	eventually(t, "lost answers", func() bool { return r.Status().Error != "" })
	away.Store(false)
	eventually(t, "lag 0", func() bool { st := r.Status(); return st.LagRecords != nil && *st.LagRecords == 0 && st.Error == "" })
	equal(t, from, to, "orders")
	r.stop(t)
}
