package conflict_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/naive"
)

func entities(rule event.Rule) conflict.Config {
	return conflict.Config{Kind: conflict.Entities, Rule: rule}
}

// anyRule draws the number of a registered policy, so that a new one is tried by
// every property.
func anyRule(t *rapid.T) event.Rule {
	return rapid.SampledFrom(conflict.Policies()).Draw(t, "policy").Rule
}

// Any arrival order that keeps each log's own, in steps of any size, with
// repeated steps and restarts, gives the same bytes and what the naive fold says.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := entities(anyRule(t))
		logs := adversary(t, rapid.IntRange(2, 4).Draw(t, "regions"), 5)
		a, b := newReplica(cfg), newReplica(cfg)
		for _, it := range arrival(t, logs) {
			a.step(t, []judged.Item{it}, false)
			a.check(t)
		}
		order := arrival(t, logs)
		if rapid.Bool().Draw(t, "journal ahead") {
			b.store.Add(order)
		}
		for len(order) > 0 {
			n := rapid.IntRange(1, len(order)).Draw(t, "batch")
			b.step(t, order[:n], true)
			b.check(t)
			if rapid.Bool().Draw(t, "restart") {
				b.restart()
				b.step(t, order[:n], false) // all below the vector
			}
			order = order[n:]
		}
		for _, key := range []string{"x", "y"} {
			if x, y := a.bytes(t, key), b.bytes(t, key); !bytes.Equal(x, y) {
				t.Fatalf("entity %s\n%s\n%s", key, x, y)
			}
		}
	})
}

// All orders of a small set, exhaustively.
func TestEveryOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logs := adversary(t, 3, 2)
		want := map[string][]byte{}
		var walk func(done []judged.Item, next [3]int)
		walk = func(done []judged.Item, next [3]int) {
			last := true
			for r := range logs {
				if next[r] < len(logs[r]) {
					last = false
					more := next
					more[r]++
					walk(append(slices.Clone(done), logs[r][next[r]]), more)
				}
			}
			if !last {
				return
			}
			rep := newReplica(entities(event.LWW))
			for i := range done {
				rep.step(t, done[i:i+1], false)
			}
			rep.check(t)
			for _, key := range []string{"x", "y"} {
				got := rep.bytes(t, key)
				if want[key] == nil {
					want[key] = got
				}
				if !bytes.Equal(got, want[key]) {
					t.Fatalf("entity %s: %s, in another order %s", key, got, want[key])
				}
			}
		}
		walk(nil, [3]int{})
	})
}

// Apply in any order gives what Refold gives of all at once.
func TestApplyIsRefold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s conflict.State
		var all []conflict.Standing
		for _, it := range arrival(t, adversary(t, 4, 4)) {
			ev := it.Event
			s.Apply(&ev, nil)
			all = append(all, conflict.Standing{At: ev.At, Context: ev.FullContext()})
			live, cover := conflict.Refold(all)
			if cover != s.Cover || len(live) != len(s.Live) {
				t.Fatalf("applied %v under %v, refolded %v under %v", dots(s.Live), s.Cover, live, cover)
			}
			seen := map[event.RegionID]bool{}
			for _, i := range live {
				if !slices.Contains(dots(s.Live), all[i].At) || seen[all[i].At.Region] {
					t.Fatalf("refold has %v live, applied %v", all[i].At, dots(s.Live))
				}
				seen[all[i].At.Region] = true
			}
		}
	})
}

// Groups agrees with event.Less and with the naive rule.
func TestGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var copies []conflict.Copy
		var evs []event.Event
		for _, it := range arrival(t, adversary(t, 4, 4)) {
			it.Event.Envelope.Key = event.IdempotencyKey{1}
			copies, evs = append(copies, conflict.CopyOf(&it.Event)), append(evs, it.Event)
		}
		slices.SortFunc(evs, func(a, b event.Event) int {
			if event.Less(&a, &b) {
				return -1
			}
			return 1
		})
		var flat []event.Dot
		var heads []event.Dot
		for _, g := range conflict.GroupCopies(copies, window) {
			heads = append(heads, g[0].At)
			for _, c := range g {
				flat = append(flat, c.At)
			}
		}
		for i := range evs {
			if evs[i].At != flat[i] {
				t.Fatalf("order %v, by event.Less %v", flat, evs)
			}
		}
		for i, w := range naive.Writes(evs, window) {
			if w.Event.At != heads[i] {
				t.Fatalf("groups begin at %v, naive write %d is %v", heads, i, w.Event.At)
			}
		}
	})
}

// G5: in every region, the first time that a live write is beaten by a concurrent
// winner it is told, once, with that winner; and what the feed says last is true.
func TestFeedReportsEveryLossOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, entities(event.LWW))
		want := make([]losses, len(h.regions))
		h.run(40, func(r int, items []judged.Item) {
			rep := h.regions[r]
			rep.step(t, items, false)
			rep.check(t)
			want[r].see(rep)
		})
		for r, rep := range h.regions {
			want[r].check(t, rep)
			checkLastWord(t, rep)
			checkTwinsTold(t, rep)
		}
		for _, key := range []string{"x", "y"} {
			for _, rep := range h.regions[1:] {
				if a, b := h.regions[0].bytes(t, key), rep.bytes(t, key); !bytes.Equal(a, b) {
					t.Fatalf("entity %s: %s\n%s", key, a, b)
				}
			}
		}
	})
}

// losses are what a region has to tell, once each: by the write that was beaten,
// the winner of the first time.
type losses map[event.Dot]event.Dot

// see notes what is beaten now and was not before.
func (l *losses) see(rep *replica) {
	if *l == nil {
		*l = losses{}
	}
	for _, e := range naive.Fold(rep.valid, window) {
		for _, live := range e.Live {
			if _, told := (*l)[live.At]; !told && live.At != e.Winner.At {
				(*l)[live.At] = e.Winner.At
			}
		}
	}
}

// check: the feed names each of them once, with its winner, and no other.
func (l losses) check(t *rapid.T, rep *replica) {
	t.Helper()
	got := losses{}
	for _, c := range rep.conflicts {
		if c.Reason != conflict.Concurrent {
			continue
		}
		if _, twice := got[c.Lost.At]; twice {
			t.Fatalf("the loss of %v is told twice", c.Lost.At)
		}
		got[c.Lost.At] = c.Won.At
	}
	if !maps.Equal(got, l) {
		t.Fatalf("told %v, should tell %v", got, l)
	}
}

// checkLastWord: what the feed said last about each live value is so.
func checkLastWord(t *rapid.T, rep *replica) {
	standing := map[event.Dot]bool{}
	for _, w := range naive.Writes(rep.valid, window) {
		standing[w.Event.At] = true
	}
	for key, e := range naive.Fold(rep.valid, window) {
		for _, l := range e.Live {
			lostTo, isLost := event.Dot{}, false
			for _, c := range rep.conflicts {
				switch {
				case c.Lost.At == l.At && (c.Reason == conflict.Concurrent || c.Reason == conflict.Revoked):
					lostTo, isLost = c.Won.At, true
				case c.Won.At == l.At && c.Reason == conflict.Revoked:
					isLost = false
				}
			}
			if lost := l.At != e.Winner.At; lost != isLost {
				t.Fatalf("entity %q: %v lost = %v, the feed says %v", key, l.At, lost, isLost)
			}
			if isLost && !standing[lostTo] {
				t.Fatalf("entity %q: %v is said to have lost to %v, which is void", key, l.At, lostTo)
			}
		}
	}
}

// checkTwinsTold: every void copy is in the feed as lost, with the right reason.
func checkTwinsTold(t *rapid.T, rep *replica) {
	for _, w := range naive.Writes(rep.valid, window) {
		for _, v := range w.Voided {
			if !slices.ContainsFunc(rep.conflicts, func(c conflict.Conflict) bool {
				return c.Lost.At == v.At && (c.Reason == conflict.Duplicate || c.Reason == conflict.KeyReuse)
			}) {
				t.Fatalf("twin %v of %v is in no feed record", v.At, w.Event.At)
			}
		}
	}
}

// A merged topic of an entity ends with the winner, and no record is written that
// changes nothing.
func TestMergedEndsWithWinner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rep := newReplica(entities(anyRule(t)))
		for _, it := range arrival(t, adversary(t, 3, 5)) {
			rep.step(t, []judged.Item{it}, false)
		}
		last := map[string]conflict.Merged{}
		for _, m := range rep.merged {
			before, ok := last[string(m.Event.Key)]
			if ok && before.Event.At == m.Event.At && (before.Event.Value == nil) == (m.Event.Value == nil) {
				t.Fatalf("%v is emitted twice in a row", m.Event.At)
			}
			last[string(m.Event.Key)] = m
		}
		want := naive.Fold(rep.valid, window)
		for key, m := range last {
			if w := want[key]; len(w.Live) == 0 {
				if m.Event.Value != nil {
					t.Fatalf("nothing is left of %q, the merged topic shows %v", key, m.Event.At)
				}
			} else if m.Event.At != w.Winner.At || string(m.Event.Value) != string(w.Winner.Value) {
				t.Fatalf("merged topic of %q ends with %v, winner is %v", key, m.Event.At, w.Winner.At)
			}
		}
	})
}
