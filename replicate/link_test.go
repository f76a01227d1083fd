//go:build unix

package replicate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/testbench/parallel"
)

func TestCopyIsByteForByteOnApache(t *testing.T) { onAll(t, copyTest) }

// copyTest copies records of every shape, old and new, with every codec.
func copyTest(t *testing.T, from, to *end) {
	from.create(t, 3, nil, "orders", "other")
	from.create(t, 1, nil, "many")
	from.create(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"}, "stamped")
	from.produce(t, rows("stamped", 0, 0, 40)...)
	odd := []*kgo.Record{
		{Topic: "orders", Key: nil, Value: nil},
		{Topic: "orders", Key: []byte{}, Value: []byte{}},
		{Topic: "orders", Key: []byte("gone"), Value: nil},
		{Topic: "orders", Partition: 1, Key: []byte("h"), Value: []byte("v"), Headers: []kgo.RecordHeader{
			{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte("x")}, {Key: "a", Value: []byte{0, 255}},
		}, Timestamp: time.UnixMilli(1)},
		{Topic: "orders", Partition: 2, Value: []byte(strings.Repeat("large", 50_000))},
	}
	from.produce(t, odd...)
	r := start(t, config(from, to))
	for i, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		cl := from.client(t, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(time.Duration(i%2)*5*time.Millisecond))
		for p := range int32(3) {
			if err := cl.ProduceSync(t.Context(), rows("other", p, i*1000, 300)...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			for j := range 20 { // small batches, to be joined
				if err := cl.ProduceSync(t.Context(), rows("orders", p, i*1000+j, 1)...).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		big := &kgo.Record{Topic: "many", Value: []byte(strings.Repeat(fmt.Sprint(i), 200_000))}
		if err := cl.ProduceSync(t.Context(), big).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topics := []string{"orders", "other", "many", "stamped"}
	r.caughtUp(t, from, topics...)
	for _, topic := range topics {
		equal(t, from, to, topic)
		mapped(t, from, to, topic)
	}
	st := r.Status()
	if st.Copied != 45+5*(3*320+1) || st.Topics != 4 || st.State != replicate.Running || st.Passed == 0 {
		t.Fatalf("status %+v", st)
	}
	eventually(t, "lag 0", func() bool {
		st := r.Status()
		return st.LagRecords != nil && *st.LagRecords == 0 && *st.LagSeconds == 0
	})
	r.stop(t)
}

func TestTransactionsOfTheSourceOnApache(t *testing.T) { onAll(t, transactionsTest) }

// transactionsTest copies from a log with committed and aborted transactions and
// plain records between them.
func transactionsTest(t *testing.T, from, to *end) {
	from.create(t, 1, nil, "orders")
	cl := from.client(t, kgo.TransactionalID("app"))
	r := start(t, config(from, to))
	for i := range 12 {
		from.produce(t, rows("orders", 0, i*100, 1+i%3)...)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), rows("orders", 0, i*100+50, 1+i%4)...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(i%3 != 0)); err != nil {
			t.Fatal(err)
		}
	}
	r.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
	r.stop(t)
}

func TestSameClusterIsRefused(t *testing.T) {
	e := fakeEnd(t, us)
	cfg := config(e, &end{region: eu, seeds: e.seeds})
	if err := start(t, cfg).wait(t); !errors.Is(err, replicate.ErrSameCluster) {
		t.Fatalf("got %v", err)
	}
}

// Both directions at once: nothing comes back, nothing internal or derived moves,
// and a local topic that bears a remote name is never written.
func TestLoopGuard(t *testing.T) {
	t.Parallel()
	a, b := fakeEnd(t, us), fakeEnd(t, eu)
	a.create(t, 2, nil, "orders", "_geogate.private", "__offsets", "skipped.one", "asia.things", strings.Repeat("l", 248))
	b.create(t, 2, nil, "orders", "us.taken")
	a.create(t, 1, nil, "taken")
	there := config(a, b)
	there.Exclude = []string{"skipped.*"}
	ab, ba := start(t, there), start(t, config(b, a))
	for i := range 5 {
		a.produce(t, rows("orders", int32(i%2), i*10, 3)...)
		b.produce(t, rows("orders", int32(i%2), i*10, 2)...)
		a.produce(t, rows("taken", 0, i*10, 1)...)
		ab.caughtUp(t, a, "orders")
		ba.caughtUp(t, b, "orders")
	}
	// Discovery has seen the remote topics by now, several times.
	ab.rounds(t, 3)
	ba.rounds(t, 3)
	equal(t, a, b, "orders")
	equal(t, b, a, "orders")
	// us.taken is local in eu, so its own records do go to us.
	for e, want := range map[*end][]string{
		a: {"__offsets", "_geogate.private", "asia.things", "eu.orders", "eu.us.taken", strings.Repeat("l", 248), "orders", "skipped.one", "taken"},
		b: {"orders", "us.asia.things", "us.orders", "us.taken"},
	} {
		if got := e.topics(t); !slices.Equal(got, want) {
			t.Fatalf("%s has %v, want %v", e.region.Name, got, want)
		}
	}
	if n := len(b.read(t, "us.taken")); n != 0 {
		t.Fatal("a local topic was written")
	}
	rulings, idle := ab.Topics()
	got := map[string]replicate.TopicRuling{}
	for _, r := range rulings {
		got[r.Topic] = r
	}
	for topic, want := range map[string]replicate.TopicRuling{
		"orders":                 {Topic: "orders", Remote: "us.orders", Carried: true, Reason: `include "*"`},
		"taken":                  {Topic: "taken", Remote: "us.taken", Blocked: true, Reason: "us.taken exists at the target, whose registry has no record that it is the copy. If it is, the gateway there finds that out; else it is a local topic there, and one of the two needs another name"},
		"skipped.one":            {Topic: "skipped.one", Reason: `exclude "skipped.*"`},
		"eu.orders":              {Topic: "eu.orders", Reason: "remote topic of region 2"},
		strings.Repeat("l", 248): {Topic: strings.Repeat("l", 248), Blocked: true},
	} {
		g := got[topic]
		if want.Blocked && want.Reason == "" {
			g.Reason, g.Remote = "", ""
		}
		if g != want {
			t.Fatalf("%s: %+v, want %+v", topic, g, want)
		}
	}
	if len(idle) != 0 {
		t.Fatalf("idle patterns %v", idle)
	}
}

// rounds waits for rounds of discovery.
func (r *running) rounds(t testing.TB, n int) {
	t.Helper()
	from := r.Rounds()
	eventually(t, "topics to be looked for", func() bool { return r.Rounds() >= from+n })
}

// topics lists a cluster's topics but for those that links make for themselves.
func (e *end) topics(t testing.TB) (out []string) {
	t.Helper()
	all, err := txn.Describe(t.Context(), e.cl)
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if !strings.HasPrefix(name, "_geogate.") || name == "_geogate.private" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// barriers answers for the markers of one producer id.
type barriers struct{ id int64 }

// Decide implements BarrierChecker.
func (b *barriers) Decide(context.Context, []control.Marker) error { return nil }

func (b *barriers) IsBarrier(_ context.Context, _ event.TopicID, _ int32, id int64, _ int16) (bool, error) {
	return id == b.id, nil
}

func TestRunsCarryBarriersOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 1, nil, "orders")
		seat, other := txn.New(from.cl, "seat", txn.Options{}), txn.New(from.cl, "other", txn.Options{})
		for _, p := range []*txn.Producer{seat, other} {
			if err := p.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		end := func() int64 {
			ends, err := kadm.NewClient(from.cl).ListEndOffsets(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			return ends["orders"][0].Offset
		}
		mark := func(p *txn.Producer) {
			if err := p.Add(t.Context(), "orders", 0); err != nil {
				t.Fatal(err)
			}
			before := end()
			if _, err := p.End(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			// Kafka answers before it writes the marker.
			eventually(t, "the marker", func() bool { return end() > before })
		}
		mark(seat)  // 0
		mark(other) // 1
		from.produce(t, rows("orders", 0, 0, 2)...)
		mark(other) // 4
		from.produce(t, rows("orders", 0, 2, 1)...)
		mark(seat) // 6
		mark(seat) // 7
		cfg := config(from, to)
		cfg.Barriers = &barriers{seat.ProducerID()}
		r := start(t, cfg)
		r.caughtUp(t, from, "orders")
		r.stop(t) // the next run begins with what the position says
		from.produce(t, rows("orders", 0, 3, 1)...)
		r = start(t, cfg)
		r.caughtUp(t, from, "orders")
		equal(t, from, to, "orders")
		links := linksOf(t, from, to)
		there, err := txn.Describe(t.Context(), to.cl, "us.orders")
		if err != nil {
			t.Fatal(err)
		}
		source := from.read(t, "orders")[0]
		for i, rec := range to.read(t, "us.orders")[0] {
			want := int64(0)
			if i == 3 {
				want = 7
			}
			if loc := links.Locate(there["us.orders"].ID, 0, rec.Offset, rec.LeaderEpoch); loc.Source != source[i].Offset || loc.Barrier != want {
				t.Fatalf("record %d: %+v, want source %d behind barrier %d", i, loc, source[i].Offset, want)
			}
		}
	})
}

// Control records that other regions need are carried, others not: neither other
// types nor what is said of a topic that does not exist.
func TestControlRecordsAreCarriedOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 1, map[string]string{"cleanup.policy": "compact"}, control.TopicControl)
		from.create(t, 20, nil, "orders")
		here, err := txn.Describe(t.Context(), from.cl)
		if err != nil {
			t.Fatal(err)
		}
		r := start(t, config(from, to))
		eventually(t, "the link to know the topic", func() bool { return r.Status().Topics == 1 })
		var want []string
		for i := range int32(20) {
			p := control.Progress{ID: here["orders"].ID, Partition: i, Topic: "orders"}
			b := control.Barrier{Topic: p.ID, ProducerID: int64(i)}
			forged := p
			forged.Topic = fmt.Sprintf("SECRET-%d", i)
			from.produce(t,
				&kgo.Record{Topic: control.TopicControl, Key: forged.AppendKey(nil), Value: forged.AppendValue(nil)},
				&kgo.Record{Topic: control.TopicControl, Key: b.AppendKey(nil), Value: b.AppendValue(nil)},
				&kgo.Record{Topic: control.TopicControl, Key: p.AppendKey(nil), Value: p.AppendValue(nil)})
			want = append(want, string(p.AppendKey(nil)))
		}
		r.caughtUp(t, from, control.TopicControl)
		var got []string
		for _, rec := range to.read(t, control.ControlFrom("us"))[0] {
			got = append(got, string(rec.Key))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d records carried, want %d", len(got), len(want))
		}
		if st := r.Status(); st.Denied != 40 || st.Topics != 1 {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestNewTopicsAndPartitions(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	r := start(t, config(from, to))
	eventually(t, "the link to run", func() bool { return r.Rounds() > 0 })
	from.create(t, 1, map[string]string{"retention.ms": "123456789", "max.message.bytes": "2000000"}, "late")
	from.produce(t, rows("late", 0, 0, 5)...)
	eventually(t, "the new topic to be taken up", func() bool { return r.Status().Topics == 1 })
	r.caughtUp(t, from, "late")
	if _, err := kadm.NewClient(from.cl).UpdatePartitions(t.Context(), 4, "late"); err != nil {
		t.Fatal(err)
	}
	from.produce(t, rows("late", 3, 0, 5)...)
	r.caughtUp(t, from, "late")
	equal(t, from, to, "late")
	mapped(t, from, to, "late")
	cfgs, err := kadm.NewClient(to.cl).DescribeTopicConfigs(t.Context(), "us.late")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range cfgs[0].Configs {
		got[c.Key] = c.MaybeValue()
	}
	if got["retention.ms"] != "123456789" || got["max.message.bytes"] != "2000000" || got["cleanup.policy"] != "delete" {
		t.Fatalf("settings %v", got)
	}
	if _, err := kadm.NewClient(from.cl).DeleteTopics(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted topic to be dropped", func() bool { st := r.Status(); return st.Topics == 0 && len(st.Parked) == 0 })
}

// Unknown is not 0, and lag grows while the target cannot be reached.
func TestLagWhileTheTargetIsAway(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	var away atomic.Bool
	cfg := config(from, to)
	cfg.Target = append(cfg.Target, lossy(&away, 1, 1))
	registry := prometheus.NewRegistry()
	cfg.Registerer = registry
	l, err := replicate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if st := l.Status(); st.LagRecords != nil || st.LagSeconds != nil {
		t.Fatalf("lag before the start: %+v", st)
	}
	if n := sample(t, registry, "geogate_link_lag_records"); n != nil {
		t.Fatalf("metric before the start: %v", *n)
	}
	cfg.Registerer = prometheus.NewRegistry()
	r := start(t, cfg)
	from.produce(t, rows("orders", 0, 0, 5)...)
	r.caughtUp(t, from, "orders")
	away.Store(true)
	from.produce(t, rows("orders", 0, 5, 40)...)
	eventually(t, "the lag", func() bool {
		st := r.Status()
		return st.LagRecords != nil && *st.LagRecords == 40 && *st.LagSeconds > 0.5 && st.Error != ""
	})
	away.Store(false)
	eventually(t, "lag 0", func() bool { st := r.Status(); return st.LagRecords != nil && *st.LagRecords == 0 && st.Error == "" })
	equal(t, from, to, "orders")
	gatherer, _ := cfg.Registerer.(*prometheus.Registry)
	if n := sample(t, gatherer, "geogate_link_copied_records_total"); n == nil || *n != 45 {
		t.Fatalf("metric %v", n)
	}
	r.stop(t)
	if n := sample(t, gatherer, "geogate_link_copied_records_total"); n != nil {
		t.Fatal("metrics are left over")
	}
}

// sample is the value of a metric without further labels, nil if it is absent.
func sample(t testing.TB, g prometheus.Gatherer, name string) *float64 {
	t.Helper()
	all, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			v := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			return &v
		}
	}
	return nil
}

func TestConfigIsChecked(t *testing.T) {
	good := replicate.Config{From: us, To: eu, Source: []kgo.Opt{kgo.SeedBrokers("a:1")}, Target: []kgo.Opt{kgo.SeedBrokers("b:1")}, Include: []string{"*"}}
	if _, err := replicate.New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*replicate.Config){
		"same region": func(c *replicate.Config) { c.To = us }, "no seeds": func(c *replicate.Config) { c.Target = nil },
		"shards": func(c *replicate.Config) { c.Shards = 33 }, "pattern": func(c *replicate.Config) { c.Include = []string{"/(/"} },
		"region": func(c *replicate.Config) { c.From.ID = 16 },
		"intervals": func(c *replicate.Config) {
			c.Intervals = func(string, int32) *event.ValidityTable { return nil }
		},
	} {
		c := good
		change(&c)
		if _, err := replicate.New(c); !errors.Is(err, replicate.ErrConfig) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestMain lets more links run side by side than there are cores: they wait for brokers
// most of the time.
func TestMain(m *testing.M) {
	parallel.Tests(4)
	goleak.VerifyTestMain(brokers.Main(m), goleak.IgnoreTopFunction("github.com/geogate/geogate/replicate_test.lossy.func1"))
}
