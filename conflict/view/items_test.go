package view

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/txn"
)

// stepHistory draws items of three regions, keyed and not, concurrent and not, some void, some
// retried in another region.
func stepHistory(t *rapid.T) (items []judged.Item) {
	var next [4]int64
	n := rapid.IntRange(1, 60).Draw(t, "items")
	for i := range n {
		r := event.RegionID(rapid.IntRange(1, 3).Draw(t, "region"))
		ev := event.Event{
			At: event.Dot{Region: r, Offset: next[r]}, Stamped: true, Timestamp: int64(i), Key: fmt.Append(nil, "k", rapid.IntRange(0, 4).Draw(t, "key")),
			Value: fmt.Append(nil, "value ", i), Headers: []event.Header{{Key: "h", Value: []byte{byte(i)}}},
			Envelope: event.Envelope{
				ID: event.ID{byte(r), byte(next[r])}, Region: r, Epoch: event.FirstEpoch(r), Op: event.Put,
				Stamp: hlc.FromMillis(1000 + int64(rapid.IntRange(0, 40).Draw(t, "time"))),
			},
		}
		for o := event.RegionID(1); o <= 3; o++ {
			if o != r {
				ev.Context[o] = event.Point{Next: rapid.Int64Range(0, next[o]).Draw(t, "seen")}
			}
		}
		if k := rapid.IntRange(0, 12).Draw(t, "idempotency"); k > 0 {
			ev.Envelope.Key = event.IdempotencyKey{byte(k)}
		}
		next[r]++
		it := judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: next[r]}, Barrier: -1}
		switch rapid.IntRange(0, 9).Draw(t, "verdict") {
		case 0:
			it.Verdict = judged.Void
		case 1:
			it.Verdict = judged.Orphan
		}
		items = append(items, it)
	}
	return items
}

// folded is what a partition's topics have at the end.
type folded struct {
	state     map[string]string // without checkpoints, which say where steps ended
	merged    []string
	conflicts []string
}

// foldIn folds items in steps of which each number says how many items, in parts.
func foldIn(t *rapid.T, cfg conflict.Config, items []judged.Item, steps []int) folded {
	mem := conflict.NewMemory(cfg)
	p := conflict.NewPartition(cfg, mem, conflict.Start())
	v := &View{cfg: Config{Topic: "flights", Fold: cfg, Names: stepNames{}}.withDefaults(), at: vectorRecord{Position: conflict.Start()}, store: &store{}}
	v.producer = txn.New(nil, "", txn.Options{})
	got := folded{state: map[string]string{}}
	for _, n := range steps {
		part := items[:n]
		mem.Add(part)
		out, err := p.Step(part[:n/2], part[n/2:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range v.states(out) {
			if c.key[0] == typeCheckpoint {
				continue
			}
			if got.state[string(c.key)] = string(c.value); c.value == nil {
				delete(got.state, string(c.key))
			}
		}
		for i := range out.Merged {
			rec, err := v.mergedRecord(t.Context(), &out.Merged[i], time.UnixMilli(5))
			if err != nil {
				t.Fatal(err)
			}
			var b txn.Builder
			b.Add(&rec)
			batch, err := b.Batch(0)
			if err != nil {
				t.Fatal(err)
			}
			got.merged = append(got.merged, string(batch))
		}
		for i := range out.Conflicts {
			value, err := appendConflict(v.cfg.Topic, &out.Conflicts[i], v.cfg.Names)
			if err != nil {
				t.Fatal(err)
			}
			got.conflicts = append(got.conflicts, string(value))
		}
		v.mem.release()
		mem.Commit(out)
		p.Commit(out)
		v.at = v.at.after(out, 0)
		items = items[n:]
	}
	return got
}

type stepNames struct{}

func (stepNames) Name(r event.RegionID) string              { return fmt.Sprint("r", r) }
func (stepNames) ID(string) (id event.RegionID, known bool) { return 0, false }

// How items are cut into steps changes no byte of what is written: merged records, conflict
// feed, and the state in the end.
func TestStepSizeDoesNotMatter(t *testing.T) {
	for _, cfg := range []conflict.Config{
		{Kind: conflict.Entities, Rule: event.LWW, Window: 10 * time.Millisecond},
		{Kind: conflict.Entities, Rule: event.Keep, Window: 10 * time.Millisecond},
		{Kind: conflict.Events, Window: 10 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(cfg.Kind, " ", cfg.Rule), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				items := stepHistory(t)
				var steps []int
				for left := len(items); left > 0; {
					n := rapid.IntRange(1, left).Draw(t, "step")
					steps, left = append(steps, n), left-n
				}
				want, got := foldIn(t, cfg, items, []int{len(items)}), foldIn(t, cfg, items, steps)
				if !maps.Equal(want.state, got.state) {
					t.Fatalf("state at the end of one step\n%q\nof steps of %v\n%q", want.state, steps, got.state)
				}
				if !slices.Equal(want.merged, got.merged) || !slices.Equal(want.conflicts, got.conflicts) {
					t.Fatalf("one step writes %d and %d records, steps of %v others: %d and %d", len(want.merged), len(want.conflicts), steps, len(got.merged), len(got.conflicts))
				}
			})
		})
	}
}

// Items leave in the order in which they came, whatever is moved, split and put back, and what
// they cost is counted all the time.
func TestItemParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queue, taken itemParts
		var out []int64
		came := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "moves") {
			switch rapid.IntRange(0, 3).Draw(t, "move") {
			case 0:
				part := make([]judged.Item, rapid.IntRange(0, 5).Draw(t, "new"))
				for i := range part {
					part[i] = judged.Item{Next: event.Point{Next: came}, Event: event.Event{Value: make([]byte, rapid.IntRange(0, 900).Draw(t, "bytes"))}}
					came++
				}
				queue.add(part)
			case 1:
				if queue.items > 0 {
					limit := rapid.IntRange(0, 4000).Draw(t, "limit")
					n := rapid.IntRange(0, len(queue.list[0])).Draw(t, "n")
					if queue.move(&taken, n, limit) && taken.bytes >= limit+itemCost+900 {
						t.Fatalf("%d bytes were taken, the limit is %d", taken.bytes, limit)
					}
				}
			case 2:
				queue.join(taken.split(rapid.IntRange(0, taken.items).Draw(t, "keep")))
			case 3:
				for _, part := range taken.list {
					for i := range part {
						out = append(out, part[i].Next.Next)
					}
				}
				taken = itemParts{}
			}
			for name, p := range map[string]itemParts{"queue": queue, "taken": taken} {
				items, bytes := 0, 0
				for _, part := range p.list {
					if len(part) == 0 {
						t.Fatalf("an empty part in %s", name)
					}
					items += len(part)
					for i := range part {
						bytes += cost(&part[i])
					}
				}
				if items != p.items || bytes != p.bytes {
					t.Fatalf("%s has %d items of %d bytes, says %d of %d", name, items, bytes, p.items, p.bytes)
				}
			}
		}
		for _, p := range []itemParts{taken, queue} {
			for _, part := range p.list {
				for i := range part {
					out = append(out, part[i].Next.Next)
				}
			}
		}
		for i, n := range out {
			if n != int64(i) {
				t.Fatalf("order %v", out)
			}
		}
		if int64(len(out)) != came {
			t.Fatalf("%d of %d items are there", len(out), came)
		}
	})
}

// What waits loses what the fold does not look at, and the caller's items stay as they are.
func TestWithoutUnread(t *testing.T) {
	of := func(v judged.Verdict) judged.Item {
		return judged.Item{Verdict: v, Event: event.Event{Key: []byte("k"), Value: []byte("v"), Headers: []event.Header{{Key: "h"}}}}
	}
	items := []judged.Item{of(judged.Valid), of(judged.Void), of(judged.Orphan), {Verdict: judged.Skip}, of(judged.Quarantined)}
	for i, it := range withoutUnread(items) {
		if kept := it.Event.Value != nil || it.Event.Headers != nil; kept != (i == 0) || (it.Event.Key == nil) != (it.Verdict == judged.Skip) {
			t.Errorf("%v: %+v", it.Verdict, it.Event)
		}
		if it.Verdict != judged.Skip && items[i].Event.Value == nil {
			t.Errorf("the caller's item %d was changed", i)
		}
	}
	if valid := items[:1]; &withoutUnread(valid)[0] != &valid[0] {
		t.Error("items of which nothing is dropped were copied")
	}
}

// The caches of many views of an instance together have a bound, and each shrinks when more
// views run.
func TestCachesShareMemory(t *testing.T) {
	room := NewRoom(1)
	c := entityCache{room: room}
	fill := func() {
		for n := range 2000 {
			ev := event.Event{Key: fmt.Append(nil, "key", n), Value: make([]byte, 3000)}
			c.put(ev.Key, conflict.Entity{State: conflict.State{Live: []conflict.Live{{Event: ev}}}})
		}
	}
	for _, views := range []int{1, 64, 256, 1024, 100_000} {
		var left []func()
		for range views {
			left = append(left, room.join())
		}
		c.clear()
		fill()
		if most := min(cacheBytes, max(leastCache, cachesBytes/views)); c.bytes > most || c.bytes < most/2 {
			t.Errorf("of %d views one keeps %d bytes, at most %d are its share", views, c.bytes, most)
		}
		for _, leave := range left {
			leave()
		}
	}
	fill()
	defer room.join()()
	defer room.join()()
	if c.bytes < cacheBytes/2 {
		t.Errorf("alone again, it keeps %d bytes", c.bytes)
	}
}

// The cache gives what was put last, is never larger than it may be, and shares no memory.
func TestEntityCache(t *testing.T) {
	var c entityCache
	value := bytes.Repeat([]byte("v"), 10_000)
	entity := func(value []byte, n int64) conflict.Entity {
		ev := event.Event{Key: []byte("key"), Value: value, Headers: []event.Header{{Key: "null"}, {Key: "empty", Value: []byte{}}}, Timestamp: n}
		return conflict.Entity{State: conflict.State{Live: []conflict.Live{{Event: ev}}}}
	}
	for n := range int64(1000) {
		key := fmt.Append(nil, "key", n%300)
		c.put(key, entity(value, n))
		e, ok := c.get(key)
		if !ok || e.Live[0].Event.Timestamp != n || !bytes.Equal(e.Live[0].Event.Value, value) || &e.Live[0].Event.Value[0] == &value[0] {
			t.Fatalf("entity %d: %v, %+v", n, ok, e)
		}
		if hs := e.Live[0].Event.Headers; hs[0].Value != nil || hs[1].Value == nil {
			t.Fatalf("headers %+v", hs)
		}
		bytes := 0
		for _, x := range c.byKey {
			bytes += x.bytes
		}
		if bytes != c.bytes || bytes > cacheBytes {
			t.Fatalf("%d bytes are said to be %d", bytes, c.bytes)
		}
	}
	key := []byte("key7")
	c.put(key, entity(make([]byte, cacheBytes/16), 7))
	if e, ok := c.get(key); ok {
		t.Errorf("of an entity that is too large there is %d", e.Live[0].Event.Timestamp)
	}
}

// Transactions that take seconds make the next steps smaller, down to some items, and quick
// ones larger again.
func TestPace(t *testing.T) {
	v := View{limit: stepBytes}
	v.taken.bytes = stepBytes
	for range 20 {
		v.pace(slowStep + 1)
		v.taken.bytes = v.limit
	}
	if v.limit != leastStep {
		t.Errorf("the limit is %d, want %d", v.limit, leastStep)
	}
	v.pace(fastStep)
	if v.limit != leastStep {
		t.Errorf("the limit is %d after a transaction that is neither", v.limit)
	}
	for range 20 {
		v.pace(fastStep - 1)
	}
	if v.limit != stepBytes {
		t.Errorf("the limit is %d, want %d", v.limit, stepBytes)
	}
}
