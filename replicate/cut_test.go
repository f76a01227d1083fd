//go:build unix

package replicate_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
)

// register is what an ownership register says of the partitions of topic orders.
type register struct {
	mu      sync.Mutex
	bounds  map[int32][]int64 // see replicate.Owned; guarded by mu, as everything below
	told    map[int32]*event.ValidityTable
	changed chan struct{}
	version uint64
}

func newRegister(partitions int32) *register {
	g := &register{bounds: map[int32][]int64{}, told: map[int32]*event.ValidityTable{}, changed: make(chan struct{}), version: 1}
	for p := range partitions {
		g.bounds[p] = []int64{0}
	}
	return g
}

// attach has a link ask the register.
func (g *register) attach(cfg *replicate.Config) {
	cfg.Intervals = func(topic string, partition int32) *event.ValidityTable {
		g.mu.Lock()
		defer g.mu.Unlock()
		if topic != "orders" {
			return replicate.Owned(g.version, 0) // in force from its beginning
		}
		g.told[partition] = replicate.Owned(g.version, g.bounds[partition]...)
		return g.told[partition]
	}
	cfg.IntervalsChanged = func() <-chan struct{} {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.changed
	}
	cfg.Unit = func(string) string { return "air/us" }
}

// bound ends the running interval of a partition at an offset, or begins the next
// one there.
func (g *register) bound(partition int32, at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bounds[partition] = append(slices.Clone(g.bounds[partition]), at)
	g.version++
	close(g.changed)
	g.changed = make(chan struct{})
}

// counts tells whether an offset does, by what is known or by what the link was
// told last.
func (g *register) counts(partition int32, at int64, told bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := replicate.Owned(g.version, g.bounds[partition]...)
	if told {
		a = g.told[partition]
	}
	return a.Judge(event.Dot{Region: replicate.Origin, Offset: at}, 0) == event.Authoritative
}

// A link stops at a cut, tells so, and is not behind; it goes on within a moment
// once it knows the next start.
func TestLinkStopsAtACutOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 2, nil, "orders")
		reg := newRegister(2)
		cfg := config(from, to)
		reg.attach(&cfg)
		seat := txn.New(from.cl, "seat", txn.Options{})
		if err := seat.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		cfg.Barriers = &barriers{seat.ProducerID()}
		put := func(n, each int) {
			for p := range int32(2) {
				from.plain(t, marked("orders", p, n, each, func(int) bool { return true })...)
			}
		}
		put(0, 20)
		r := start(t, cfg)
		r.caughtUp(t, from, "orders")
		reg.bound(0, 20)
		put(20, 10)
		first := replicate.Part{Topic: "orders", Number: 0}
		eventually(t, "the other partition to go on", func() bool { return r.Covered()[replicate.Part{Topic: "orders", Number: 1}] >= 30 })
		eventually(t, "no lag", func() bool {
			st := r.Status()
			return st.LagRecords != nil && *st.LagRecords == 0 && *st.LagSeconds == 0
		})
		st := r.Status()
		want := []replicate.StoppedEntry{{Topic: "orders", Partition: 0, Unit: "air/us", Offset: 20, Reason: "stopped at the cut of air/us"}}
		if st.State != replicate.Running || !slices.Equal(st.Stopped, want) || r.Covered()[first] != 20 || st.Orphans != 0 || len(st.Parked) != 0 {
			t.Fatalf("%+v, covered %v", st, r.Covered())
		}
		rulings, _ := r.Topics()
		if !slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool {
			return r.Topic == "orders" && r.Carried && r.Reason == `include "*"; stopped at the cut of air/us (partition 0 at 20)`
		}) {
			t.Fatalf("%+v", rulings)
		}
		mark(t, from, seat)
		put(30, 10) // behind the marker in partition 0: 31 to 40
		r.stop(t)   // it is stopped after a restart, too
		metrics := prometheus.NewRegistry()
		cfg.Registerer = metrics
		cfg.DiscoverEvery = time.Hour // a new list of streams would bring the news too
		r = start(t, cfg)
		eventually(t, "the restarted link to stop at the cut", func() bool { return len(r.Status().Stopped) == 1 })
		eventually(t, "the last look at the topics", func() bool { return r.Rounds() == replicate.SoonRounds })
		if n := sample(t, metrics, "geogate_link_standing_partitions"); n == nil || *n != 1 {
			t.Fatalf("metric %v", n)
		}

		began := time.Now()
		reg.bound(0, 35)
		eventually(t, "the link to go on", func() bool { return r.Covered()[first] >= 41 })
		if n := r.Rounds(); n != replicate.SoonRounds {
			t.Errorf("%d looks at the topics: something but the news may have woken it", n)
		}
		t.Logf("it took %v to go on", time.Since(began))
		r.caughtUp(t, from, "orders")
		all := from.read(t, "orders")
		open := map[int32][]*kgo.Record{1: all[1]}
		for _, rec := range all[0] {
			if reg.counts(0, rec.Offset, false) {
				open[0] = append(open[0], rec)
			}
		}
		exact(t, from, to, "orders", open)
		there, err := txn.Describe(t.Context(), to.cl, "us.orders")
		if err != nil {
			t.Fatal(err)
		}
		links, copies := linksOf(t, from, to), to.read(t, "us.orders")[0]
		last := copies[len(copies)-1]
		if loc := links.Locate(there["us.orders"].ID, 0, last.Offset, last.LeaderEpoch); loc.Source != 40 || loc.Barrier != 30 {
			t.Fatalf("%+v", loc)
		}
		if st := r.Status(); st.Orphans != 10+4 || len(st.Stopped) != 0 {
			t.Fatalf("%+v", st)
		}
		if n := sample(t, metrics, "geogate_link_orphan_offsets_total"); n == nil || *n != 10+4 {
			t.Fatalf("metric %v", n)
		}
	})
}

// mark writes a barrier into partition 0 of orders.
func mark(t *testing.T, e *end, seat *txn.Producer) {
	t.Helper()
	end := func() int64 {
		ends, err := kadm.NewClient(e.cl).ListEndOffsets(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return ends["orders"][0].Offset
	}
	if err := seat.Add(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	before := end()
	if _, err := seat.End(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the marker", func() bool { return end() > before })
}

// Killed before any effect, under a policy and a register whose cuts and starts
// come to be known in between: what is sent never lies past a cut that the link
// knew, everything that counts and may leave is copied once, and the audit says of
// each offset what became of it.
func TestCutKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	const partitions = 3
	from.create(t, partitions, nil, "orders")
	reg, rnd := newRegister(partitions), rand.New(rand.NewPCG(7, 7))
	next := 0
	public := func(i int) bool { return i%3 != 0 }
	more := func() {
		for p := range int32(partitions) {
			from.plain(t, marked("orders", p, next, 5, public)...)
		}
		next += 5
	}
	more()
	advance := func() { // a cut or a start, perhaps below what was copied
		p := rnd.Int32N(partitions)
		reg.mu.Lock()
		low := reg.bounds[p][len(reg.bounds[p])-1]
		reg.mu.Unlock()
		reg.bound(p, max(low, int64(next)-rnd.Int64N(6)))
	}
	var pastCut atomic.Bool
	seen := &tap{}
	config := func() replicate.Config {
		cfg := config(from, to)
		cfg.Shards = 2
		cfg.Border = residency.NewGuard(policy(t, 1, ordersByK))
		cfg.Target = append(cfg.Target, kgo.Dialer(seen.dial))
		reg.attach(&cfg)
		return cfg
	}
	check := func(effect any) {
		p, _ := effect.(replicate.Produce)
		for _, b := range p.Batches {
			if b.Topic == "us.orders" {
				_ = txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error {
					var q, at int
					if n, _ := fmt.Sscanf(string(r.Value), "pub-value-%d-%d-canary", &q, &at); n != 2 || !reg.counts(b.Partition, int64(at), true) {
						pastCut.Store(true)
					}
					return nil
				})
			}
		}
	}
	for step := range int64(40) {
		var effects atomic.Int64
		r := start(t, config(), func(l *replicate.Link) {
			l.SetBefore(func(_ int, effect any) error {
				check(effect)
				if effects.Add(1) > step {
					return errKilled
				}
				return nil
			})
		})
		eventually(t, fmt.Sprintf("the end of the link killed at step %d", step), func() bool {
			if effects.Load() > step {
				return true
			}
			more()
			advance()
			return false
		})
		r.cancel()
		_ = r.wait(t)
	}
	for p := range int32(partitions) { // everything runs again
		if len(reg.bounds[p])%2 == 0 {
			reg.bound(p, int64(next))
		}
	}
	more()
	r := start(t, config(), func(l *replicate.Link) {
		l.SetBefore(func(_ int, effect any) error { check(effect); return nil })
	})
	eventually(t, "the topic to be carried", func() bool { return r.Status().Topics == 1 })
	r.caughtUp(t, from, "orders")
	r.stop(t)
	if pastCut.Load() {
		t.Fatal("something was sent that lay past a cut that was known, or that no rule allows")
	}
	if seen.has("prv-") {
		t.Fatal("a denied record was sent")
	}
	verifyCut(t, from, to, reg, r)
}

// verifyCut compares the target with the source, once the link has covered it all.
func verifyCut(t *testing.T, from, to *end, reg *register, r *running) {
	t.Helper()
	there, err := txn.Describe(t.Context(), to.cl, "us.orders")
	if err != nil {
		t.Fatal(err)
	}
	links, copies, all := linksOf(t, from, to), to.read(t, "us.orders"), from.read(t, "orders")
	verdicts := finals(t, from, "orders", func(p int32) int64 { return r.Covered()[replicate.Part{Topic: "orders", Number: p}] })
	late, orphans := 0, 0
	for p, rs := range all {
		copied, last := map[int64]bool{}, int64(-1)
		for _, c := range copies[p] {
			loc := links.Locate(event.TopicID(there["us.orders"].ID), p, c.Offset, c.LeaderEpoch)
			if loc.State != control.Mapped || loc.Source <= last || !bytes.Equal(rs[loc.Source].Value, c.Value) {
				t.Fatalf("us.orders/%d at %d: %+v behind %d", p, c.Offset, loc, last)
			}
			last = loc.Source
			copied[last] = true
		}
		for _, rec := range rs {
			counts, public := reg.counts(p, rec.Offset, false), strings.HasPrefix(string(rec.Key), "pub")
			code := verdicts[p][rec.Offset].Code
			ok := copied[rec.Offset] && code == residency.Allowed && public ||
				!copied[rec.Offset] && (code == residency.Denied && !public || code == residency.Orphan && !counts)
			if !ok {
				t.Fatalf("orders/%d at %d: counts %v, copied %v, verdict %v", p, rec.Offset, counts, copied[rec.Offset], code)
			}
			if !counts && copied[rec.Offset] {
				late++
			} else if !counts {
				orphans++
			}
		}
	}
	if orphans == 0 {
		t.Fatal("no orphan was met")
	}
	t.Logf("%d orphans stayed, %d were copied before their cut was known", orphans, late)
}

// A target that does not answer a commit until the cut is known is not asked for it
// again: what lies past the cut stays out of the remote topic.
func TestCutWhileACommitWaits(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	reg := newRegister(1)
	cfg := config(from, to)
	cfg.Shards = 1
	reg.attach(&cfg)
	var sending, away atomic.Bool
	again := make(chan struct{}) // closed once the shard has given the transaction up
	once := sync.OnceFunc(func() { close(again) })
	l := start(t, cfg, func(l *replicate.Link) { watchSending(l, &sending, &away, once) })
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	to.fake.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		to.fake.KeepControl()
		if !sending.Load() {
			return nil, nil, false
		}
		if !away.Swap(true) {
			reg.bound(0, 3)
		}
		select {
		case <-again:
			return nil, nil, false
		default:
		}
		resp := req.ResponseKind().(*kmsg.EndTxnResponse) //nolint:forcetypeassert // that is its kind
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp, nil, true
	})
	from.plain(t, marked("orders", 0, 0, 10, func(int) bool { return true })...)
	select {
	case <-again:
	case <-time.After(time.Minute):
		t.Fatal("the link went on asking for its commit")
	}
	first := replicate.Part{Topic: "orders", Number: 0}
	eventually(t, "the link to stop at the cut", func() bool { return l.Covered()[first] == 3 && len(l.Status().Stopped) == 1 })
	if copies := to.read(t, "us.orders")[0]; len(copies) != 3 {
		t.Fatalf("%d records are in the remote topic, three lie below the cut", len(copies))
	}
}
