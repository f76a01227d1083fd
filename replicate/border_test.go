//go:build unix

package replicate_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

// tap keeps every byte that clients write to their connections.
type tap struct {
	mu   sync.Mutex
	sent bytes.Buffer // guarded by mu
}

func (p *tap) dial(ctx context.Context, network, host string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, host)
	return &tapped{c, p}, err
}

type tapped struct {
	net.Conn
	tap *tap
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	c.tap.sent.Write(b)
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}

func (p *tap) has(s string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.sent.Bytes(), []byte(s))
}

// policy makes a policy of rules, one a line, whose bytes no other has.
func policy(t testing.TB, revision int, rules ...string) *residency.Policy {
	t.Helper()
	src := fmt.Sprintf("version: 1\nkind: ResidencyPolicy\nname: test\nrevision: %d\ndefault: deny\nmax_age: 1s\nrules:\n  - %s\n",
		revision, strings.Join(rules, "\n  - "))
	p, err := residency.Parse("test", []byte(src), []string{"us", "eu"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	ordersOpen = `{id: open, effect: allow, topics: [orders], from: [us], to: ["*"]}`
	ordersByK  = `{id: public, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key.startsWith("pub")'}`
	notOrders  = `{id: pin, effect: deny, topics: [orders], from: [us], to: ["*"]}`
	noHeader   = `{id: secret, effect: deny, topics: ["*"], from: [us], to: [eu], when: '"class" in headers && headers["class"] == "secret"'}`
)

// bordered starts a link under a policy, with every byte to the target kept.
func bordered(t testing.TB, from, to *end, p *residency.Policy) (*running, *residency.Guard, *tap) {
	t.Helper()
	guard, seen := residency.NewGuard(p), &tap{}
	cfg := config(from, to)
	cfg.Border = guard
	cfg.Target = append(cfg.Target, kgo.Dialer(seen.dial))
	return start(t, cfg), guard, seen
}

// marked makes records whose every part holds its own unlikely text.
func marked(topic string, partition int32, from, n int, public func(i int) bool) []*kgo.Record {
	var out []*kgo.Record
	for i := from; i < from+n; i++ {
		word := "prv"
		if public(i) {
			word = "pub"
		}
		out = append(out, &kgo.Record{
			Topic: topic, Partition: partition,
			Key: fmt.Appendf(nil, "%s-key-%d-%d-canary", word, partition, i), Value: fmt.Appendf(nil, "%s-value-%d-%d-canary", word, partition, i),
			Headers:   []kgo.RecordHeader{{Key: fmt.Sprintf("%s-name-%d-%d-canary", word, partition, i), Value: fmt.Appendf(nil, "%s-text-%d-%d-canary", word, partition, i)}},
			Timestamp: time.UnixMilli(1_700_000_000_000 + int64(i)),
		})
	}
	return out
}

// plain produces without compression, so that the bytes of a record are to be seen
// wherever it goes.
func (e *end) plain(t testing.TB, recs ...*kgo.Record) {
	t.Helper()
	cl := e.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(20*time.Millisecond))
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// allowed are the source's records whose key begins with pub, by partition.
func allowed(all map[int32][]*kgo.Record) map[int32][]*kgo.Record {
	out := map[int32][]*kgo.Record{}
	for p, rs := range all {
		for _, r := range rs {
			if bytes.HasPrefix(r.Key, []byte("pub")) {
				out[p] = append(out[p], r)
			}
		}
	}
	return out
}

// exact checks that the target has these records of the source and no others, in
// order, each mapped by the runs to its own offset.
func exact(t testing.TB, from, to *end, topic string, want map[int32][]*kgo.Record) {
	t.Helper()
	links := linksOf(t, from, to)
	remote := router.RemoteName(from.region.Name, topic)
	there, err := txn.Describe(t.Context(), to.cl, remote)
	if err != nil {
		t.Fatal(err)
	}
	to.settled(t, remote)
	got := to.read(t, remote)
	for p := range int32(len(there[remote].Leaders)) {
		if len(got[p]) != len(want[p]) {
			t.Fatalf("%s/%d: %d records, want %d", remote, p, len(got[p]), len(want[p]))
		}
		for i, w := range want[p] {
			g := got[p][i]
			loc := links.Locate(event.TopicID(there[remote].ID), p, g.Offset, g.LeaderEpoch)
			if !bytes.Equal(g.Key, w.Key) || !bytes.Equal(g.Value, w.Value) || !g.Timestamp.Equal(w.Timestamp) || len(g.Headers) != len(w.Headers) {
				t.Fatalf("%s/%d at %d: %v, want %v", remote, p, g.Offset, g, w)
			}
			if loc.State != control.Mapped || loc.Source != w.Offset {
				t.Fatalf("%s/%d at %d: %+v, want source %d", remote, p, g.Offset, loc, w.Offset)
			}
		}
	}
}

// finals are the final verdicts of the audit. Every offset from 0 on must have one.
func finals(t testing.TB, from *end, topic string, covered func(p int32) int64) map[int32][]residency.Run {
	t.Helper()
	verdicts, said := map[int32]map[int64]residency.Run{}, map[int32]map[int64]*residency.Audit{}
	for _, rs := range from.read(t, control.TopicAudit) {
		for _, r := range rs {
			a, err := residency.ParseAudit(r.Key, r.Value)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(r.Value, []byte("canary")) {
				t.Fatalf("the audit holds data: %q", r.Value)
			}
			if a.Topic != topic {
				continue
			}
			if verdicts[a.Partition] == nil {
				verdicts[a.Partition], said[a.Partition] = map[int64]residency.Run{}, map[int64]*residency.Audit{}
			}
			for _, run := range a.Runs {
				for o := run.From; o < run.Until; o++ {
					if before := said[a.Partition][o]; before != nil && !a.Supersedes(before) {
						continue
					}
					said[a.Partition][o] = &a
					verdicts[a.Partition][o] = residency.Run{From: o, Until: o + 1, Code: run.Code, Rule: run.Rule}
				}
			}
		}
	}
	out := map[int32][]residency.Run{}
	for p, at := range verdicts {
		for o := range covered(p) {
			if _, ok := at[o]; !ok {
				t.Fatalf("%s/%d: offset %d has no verdict", topic, p, o)
			}
			out[p] = append(out[p], at[o])
		}
	}
	return out
}

// Nothing of a denied record is in any byte that the link sends, nor anywhere at
// the target; what is allowed is there in order and mapped exactly.
func TestDeniedRecordsStayOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 2, nil, "orders", "payroll")
		public := func(i int) bool { return i%3 != 1 && i%7 != 2 }
		for p := range int32(2) {
			from.plain(t, marked("orders", p, 0, 200, public)...)
			from.plain(t, marked("payroll", p, 0, 5, func(int) bool { return true })...)
		}
		l, _, seen := bordered(t, from, to, policy(t, 1, ordersByK))
		eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
		l.caughtUp(t, from, "orders")
		from.plain(t, marked("orders", 0, 200, 20, func(i int) bool { return i%2 == 0 })...)
		l.caughtUp(t, from, "orders")

		all := from.read(t, "orders")
		open := allowed(all)
		exact(t, from, to, "orders", open)
		for p, rs := range all {
			for _, r := range rs {
				for _, part := range []string{string(r.Key), string(r.Value), r.Headers[0].Key, string(r.Headers[0].Value)} {
					// The link compresses nothing, so what crossed is to be seen.
					if got, want := seen.has(part), slices.Contains(open[p], r); got != want {
						t.Fatalf("%q was sent: %v, want %v", part, got, want)
					}
				}
			}
		}
		if seen.has("payroll") {
			t.Fatal("the name of a topic that no rule allows was sent")
		}
		if topics, err := kadm.NewClient(to.cl).ListTopics(t.Context()); err != nil || topics.Has("us.payroll") {
			t.Fatal("a topic was made for records that may not come", err)
		}
		rulings, _ := l.Topics()
		for _, r := range rulings {
			if want := r.Topic == "payroll"; r.Denied != want || r.Topic == "payroll" && r.Reason != `include "*"; residency: no rule allows it` {
				t.Fatalf("%+v", r)
			}
		}
		l.stop(t)
		var denied int64
		for p, runs := range finals(t, from, "orders", func(p int32) int64 { return l.Covered()[replicate.Part{Topic: "orders", Number: p}] }) {
			at := map[int64]residency.Run{}
			for _, r := range runs {
				at[r.From] = r
			}
			for _, r := range all[p] {
				want := residency.Run{From: r.Offset, Until: r.Offset + 1, Code: residency.Denied, Rule: residency.DefaultRule}
				if slices.Contains(open[p], r) {
					want.Code, want.Rule = residency.Allowed, "public"
				} else {
					denied++
				}
				if at[r.Offset] != want {
					t.Fatalf("orders/%d at %d: %+v, want %+v", p, r.Offset, at[r.Offset], want)
				}
			}
		}
		st := l.Status()
		want := []replicate.RuleCount{{"default", "deny", denied}, {"public", "allow", int64(len(open[0]) + len(open[1]))}}
		if !slices.Equal(st.Rules, want) || st.Denied < denied {
			t.Fatalf("%+v, want %+v", st, want)
		}
	})
}

// A batch that rules look at and whose records may all leave passes as it was.
func TestAllowedBatchesPass(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	big := marked("orders", 0, 0, 100, func(int) bool { return true })
	for _, r := range big {
		r.Value = bytes.Repeat(r.Value, 40)
	}
	from.plain(t, big...)
	l, _, _ := bordered(t, from, to, policy(t, 1, ordersByK))
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	l.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	if st := l.Status(); st.Passed == 0 || st.Opened != 0 {
		t.Fatalf("%+v", st)
	}
}

// deny → allow → by key → deny, at the boundaries of batches.
func TestReload(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 2, nil, "orders")
	l, guard, seen := bordered(t, from, to, policy(t, 1, notOrders))
	n := 0
	put := func(public func(int) bool) {
		for p := range int32(2) {
			from.plain(t, marked("orders", p, n, 30, public)...)
		}
		n += 30
	}
	always, never := func(int) bool { return true }, func(int) bool { return false }
	ruled := func(part string) {
		t.Helper()
		eventually(t, "the ruling "+part, func() bool {
			rulings, _ := l.Topics()
			return slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool {
				return r.Topic == "orders" && strings.Contains(r.Reason, part) && !strings.Contains(r.Reason, "waiting")
			})
		})
	}
	put(always)
	ruled("rule pin denies")
	if seen.has("canary") || seen.has("orders") {
		t.Fatal("something of a denied topic was sent")
	}
	guard.Loaded(policy(t, 2, ordersOpen))
	ruled("rule open allows")
	put(always)
	l.caughtUp(t, from, "orders")
	equal(t, from, to, "orders") // what the policy now allows, from the start

	guard.Loaded(policy(t, 3, ordersByK))
	put(never) // at once: nothing of it may slip through under the old policy
	ruled("rules decide for each record")
	put(func(i int) bool { return i%2 == 0 })
	l.caughtUp(t, from, "orders")
	want := allowed(from.read(t, "orders"))
	exact(t, from, to, "orders", want)

	guard.Loaded(policy(t, 4, notOrders))
	put(always)
	ruled("rule pin denies")
	exact(t, from, to, "orders", want)
	if seen.has("prv-") {
		t.Fatal("a denied record was sent")
	}
	// The runs say from when on records may be missing.
	links, there := linksOf(t, from, to), to.read(t, "us.orders")
	topic, err := txn.Describe(t.Context(), to.cl, "us.orders")
	if err != nil {
		t.Fatal(err)
	}
	for p, rs := range there {
		for i, r := range rs {
			if loc := links.Locate(event.TopicID(topic["us.orders"].ID), p, r.Offset, r.LeaderEpoch); loc.Restricted != (i >= 60) {
				t.Fatalf("us.orders/%d at %d: %+v", p, r.Offset, loc)
			}
		}
	}
	guard.Loaded(policy(t, 5, ordersByK, noHeader))
	ruled("rules decide for each record")
	l.caughtUp(t, from, "orders")
	exact(t, from, to, "orders", allowed(from.read(t, "orders")))

	// A policy that loosens does not make up for what was not shown.
	guard.Loaded(policy(t, 6, ordersOpen))
	ruled("rule open allows")
	put(never)
	l.caughtUp(t, from, "orders")
	links, there = linksOf(t, from, to), to.read(t, "us.orders")
	for p, rs := range there {
		last := rs[len(rs)-1]
		if loc := links.Locate(event.TopicID(topic["us.orders"].ID), p, last.Offset, last.LeaderEpoch); !loc.Restricted || !bytes.HasPrefix(last.Key, []byte("prv")) {
			t.Fatalf("us.orders/%d at %d: %+v", p, last.Offset, loc)
		}
	}
	for p, runs := range finals(t, from, "orders", func(p int32) int64 { return l.Covered()[replicate.Part{Topic: "orders", Number: p}] }) {
		for _, r := range runs {
			if r.Code != residency.Allowed && r.Code != residency.Denied && r.Code != residency.NoRecord {
				t.Fatalf("orders/%d: %+v", p, r)
			}
		}
	}
}

// A policy file that has not loaded for max_age stops everything; one that loads
// again opens the border again.
func TestStoppedPolicy(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	p := policy(t, 1, ordersOpen)
	l, guard, seen := bordered(t, from, to, p)
	from.produce(t, marked("orders", 0, 0, 10, func(int) bool { return true })...)
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	l.caughtUp(t, from, "orders")
	now := time.Now()
	guard.Failed(now, context.DeadlineExceeded)
	guard.Failed(now.Add(p.MaxAge), context.DeadlineExceeded)
	from.plain(t, marked("orders", 0, 10, 10, func(int) bool { return false })...)
	eventually(t, "the stop", func() bool { return l.Status().Topics == 0 })
	if st := l.Status(); st.LagRecords != nil || st.LagSeconds != nil {
		t.Fatalf("what waits for a policy is a lag of %v records, %v s", st.LagRecords, st.LagSeconds)
	}
	if seen.has("prv-") {
		t.Fatal("something was sent without a policy in force")
	}
	guard.Loaded(p)
	eventually(t, "the topic to be carried again", func() bool { return l.Status().Topics == 1 })
	l.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
}

// A policy that changes while the target keeps the link waiting holds back what
// has not been sent yet, although it was allowed when the sending began.
func TestReloadWhileTheTargetIsAway(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	seen, guard := &tap{}, residency.NewGuard(policy(t, 1, ordersOpen))
	cfg := config(from, to)
	cfg.Border, cfg.Shards = guard, 1
	cfg.Target = append(cfg.Target, kgo.Dialer(seen.dial))
	var sending, tightened atomic.Bool
	resent := make(chan struct{}) // closed once the shard has dropped what it was sending
	once := sync.OnceFunc(func() { close(resent) })
	l := start(t, cfg, func(l *replicate.Link) { watchSending(l, &sending, &tightened, once) })
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	to.fake.ControlKey(int16(kmsg.AddPartitionsToTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		to.fake.KeepControl()
		if !sending.Load() || tightened.Swap(true) {
			return nil, nil, false
		}
		guard.Loaded(policy(t, 2, notOrders))
		select { // the target is away until then
		case <-resent:
		case <-time.After(time.Minute):
		}
		return nil, nil, false
	})
	from.plain(t, marked("orders", 0, 0, 5, func(int) bool { return false })...)
	select {
	case <-resent:
	case <-time.After(time.Minute):
		t.Fatal("the link went on sending")
	}
	eventually(t, "the denial", func() bool {
		rulings, _ := l.Topics()
		return slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool { return r.Topic == "orders" && r.Denied })
	})
	if seen.has("prv-") {
		t.Fatal("a record was sent that the policy in force denies")
	}
	guard.Loaded(policy(t, 3, ordersOpen))
	l.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
}

// What a transaction wrote that was then aborted is no record: it crosses under no
// policy, whether batches pass or are opened.
func TestAbortedRecordsStayOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		from.create(t, 1, nil, "orders")
		for i, word := range []string{"prv-aborted", "pub-aborted"} {
			cl := from.client(t, kgo.TransactionalID(word), kgo.ProducerBatchCompression(kgo.NoCompression()))
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			from.plain(t, marked("orders", 0, i*3, 3, func(i int) bool { return i%2 == 0 })...)
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Key: []byte(word + "-key"), Value: []byte(word + "-value")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
				t.Fatal(err)
			}
		}
		for i, rule := range []string{ordersByK, ordersOpen} {
			l, _, seen := bordered(t, from, to, policy(t, i+1, rule))
			eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
			l.caughtUp(t, from, "orders")
			l.stop(t)
			if seen.has("aborted-") {
				t.Fatal("an aborted record was sent")
			}
			from.plain(t, marked("orders", 0, 100, 3, func(int) bool { return true })...)
		}
		finals(t, from, "orders", func(int32) int64 { return 6 + 2 + 2 })
	})
}

// The target knows that records may be missing before the first one that was
// decided by itself.
func TestRestrictionComesFirst(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	from.produce(t, marked("orders", 0, 0, 10, func(i int) bool { return i%2 == 0 })...)
	var mu sync.Mutex
	announced, sent := false, 0
	waiting := make(chan struct{}) // closed once the topic was seen to wait
	guard := residency.NewGuard(policy(t, 1, ordersByK))
	cfg := config(from, to)
	cfg.Border = guard
	cfg.Shards = 32 // control and orders in shards of their own
	if router.Slot("us.orders", 0) == router.Slot(control.ControlFrom("us"), 0) {
		t.Fatal("the test needs two slots")
	}
	l := start(t, cfg, func(l *replicate.Link) {
		l.SetBefore(func(_ int, effect any) error {
			p, ok := effect.(replicate.Produce)
			if !ok {
				return nil
			}
			for _, b := range p.Batches {
				if b.Topic == control.ControlFrom("us") {
					<-waiting
				}
				if b.Topic != "us.orders" {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				sent++
				announced = true
				found := false
				for _, rs := range to.read(t, control.ControlFrom("us")) {
					for _, r := range rs {
						x, err := control.ParseRestriction(r.Key, r.Value)
						found = found || err == nil && x == control.Restriction{Origin: us.ID, To: eu.ID, Topic: "orders"}
					}
				}
				announced = announced && found
				return nil
			}
			return nil
		})
	})
	rounds := 0
	eventually(t, "two rounds in which the topic waits", func() bool {
		rulings, _ := l.Topics()
		if slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool {
			return r.Topic == "orders" && !r.Carried && strings.Contains(r.Reason, "waiting until the target has been told")
		}) && rounds == 0 {
			rounds = l.Rounds()
		}
		return rounds > 0 && l.Rounds() >= rounds+2
	})
	close(waiting)
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	l.caughtUp(t, from, "orders")
	mu.Lock()
	defer mu.Unlock()
	if sent == 0 || !announced {
		t.Fatalf("sent %d times, announced before: %v", sent, announced)
	}
}

// A target that records were denied to one by one is told so for good: also of what
// comes later, from another process and generation, under rules that look at none.
func TestRestrictedForGood(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	from.plain(t, marked("orders", 0, 0, 6, func(i int) bool { return i%2 == 0 })...)
	run := func(shards int, p *residency.Policy) {
		cfg := config(from, to)
		cfg.Shards, cfg.Border = shards, residency.NewGuard(p)
		l := start(t, cfg)
		eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
		l.caughtUp(t, from, "orders")
		l.stop(t)
	}
	run(1, policy(t, 1, ordersByK))
	for i, shards := range []int{1, 3} {
		from.plain(t, marked("orders", 0, 100+i, 1, func(int) bool { return true })...)
		run(shards, policy(t, 2+i, ordersOpen))
	}
	topic, err := txn.Describe(t.Context(), to.cl, "us.orders")
	if err != nil {
		t.Fatal(err)
	}
	links, there := linksOf(t, from, to), to.read(t, "us.orders")[0]
	if len(there) != 5 {
		t.Fatalf("%d records", len(there))
	}
	for _, r := range there {
		if loc := links.Locate(event.TopicID(topic["us.orders"].ID), 0, r.Offset, r.LeaderEpoch); loc.State != control.Mapped || !loc.Restricted {
			t.Fatalf("at %d: %+v", r.Offset, loc)
		}
	}
}

// A topic whose records must not be denied one by one is not carried under rules
// that look at records.
func TestUnrestrictableTopic(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	cfg := config(from, to)
	cfg.Border = residency.NewGuard(policy(t, 1, ordersByK))
	cfg.Restrictable = func(string) error { return fmt.Errorf("policy keep") }
	l := start(t, cfg)
	eventually(t, "the block", func() bool {
		rulings, _ := l.Topics()
		return slices.ContainsFunc(rulings, func(r replicate.TopicRuling) bool {
			return r.Topic == "orders" && r.Blocked && r.Reason == "policy keep"
		})
	})
}

// Killed before any effect, and under a policy that changes in between, the link
// keeps back exactly what the final verdicts deny, and every offset has one.
func TestBorderKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 3, nil, "orders")
	next := 0
	more := func() {
		for p := range int32(3) {
			from.plain(t, marked("orders", p, next, 5, func(i int) bool { return i%3 != 0 })...)
		}
		next += 5
	}
	more()
	rules := [][]string{{ordersByK}, {ordersOpen, `{id: never, effect: deny, topics: [orders], from: [us], to: [eu], when: 'key.startsWith("prv")'}`}, {notOrders}}
	seen := &tap{}
	config := func(revision int) replicate.Config {
		cfg := config(from, to)
		cfg.Shards = 2 + revision/10%2 // now and then in another generation
		cfg.Border = residency.NewGuard(policy(t, revision, rules[revision%len(rules)]...))
		cfg.Target = append(cfg.Target, kgo.Dialer(seen.dial))
		return cfg
	}
	for step := range int64(40) {
		var effects atomic.Int64
		cfg := config(int(step) + 1)
		r := start(t, cfg, func(l *replicate.Link) {
			l.SetBefore(func(int, any) error {
				if effects.Add(1) > step {
					return errKilled
				}
				return nil
			})
		})
		revision := int(step) + 100
		eventually(t, fmt.Sprintf("the end of the link killed at step %d", step), func() bool {
			if effects.Load() > step {
				return true
			}
			cfg.Border.Loaded(policy(t, revision, rules[revision%len(rules)]...))
			revision++
			more()
			return false
		})
		r.cancel()
		_ = r.wait(t)
	}
	r := start(t, config(1)) // decides for each record
	eventually(t, "the topic to be carried", func() bool { return r.Status().Topics == 1 })
	r.caughtUp(t, from, "orders")
	r.stop(t)
	all := from.read(t, "orders")
	open := allowed(all)
	exact(t, from, to, "orders", open)
	if seen.has("prv-") {
		t.Fatal("a denied record was sent")
	}
	for p, runs := range finals(t, from, "orders", func(p int32) int64 { return r.Covered()[replicate.Part{Topic: "orders", Number: p}] }) {
		at := map[int64]residency.Code{}
		for _, run := range runs {
			at[run.From] = run.Code
		}
		for _, rec := range all[p] {
			want := residency.Denied
			if slices.Contains(open[p], rec) {
				want = residency.Allowed
			}
			if at[rec.Offset] != want {
				t.Fatalf("orders/%d at %d: %v, want %v", p, rec.Offset, at[rec.Offset], want)
			}
		}
	}
}
