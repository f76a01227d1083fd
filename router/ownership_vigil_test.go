package router_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/geogate/geogate/router"
)

// machine drives the state machine of an instance by hand: a register that stores
// everything at once, until it is silent.
type machine struct {
	t      *testing.T
	c      *router.Ownership
	now    time.Duration
	seq    uint64
	silent bool
	deaf   bool               // the watch brings nothing
	before func(router.Write) // called before a write is stored
	// regions are revisions of other regions' writes which the instance has not
	// heard of: whatever is conditional on an older one is refused.
	regions map[string]uint64
	done    []router.OwnershipEffect // since the last call of took
}

const unit = "default/us"

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := startMachine(t)
	m.step(router.Opened{Created: 1})
	m.pass(time.Second)
	if _, err := m.c.Tokens().Grant(m.now, unit); err != nil {
		t.Fatalf("no grant from a register that stores everything: %v", err)
	}
	m.took()
	return m
}

func startMachine(t *testing.T) *machine {
	t.Helper()
	topology, err := router.NewTopology(twoRegions...)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t: t, now: time.Hour, c: router.NewOwnership(router.OwnershipConfig{
		Region: "us", ID: 1, Regions: topology, Instance: "us-0", Life: "l", Home: []string{unit}, Lease: router.DefaultLease(),
	})}
}

// step gives an event and answers writes.
func (m *machine) step(ev router.OwnershipEvent) {
	effects := append([]router.OwnershipEffect(nil), m.c.Step(m.now, ev)...)
	m.done = append(m.done, effects...)
	for _, e := range effects {
		switch e := e.(type) {
		case router.Write:
			m.write(e)
		case router.List:
			m.step(router.Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, OK: true})
		case router.Settle:
			m.step(router.Settled{Unit: e.Unit, Epoch: e.Epoch, OK: true})
		case router.Persist:
			m.step(router.Persisted{Version: e.Version})
		}
	}
}

func (m *machine) write(w router.Write) {
	if m.before != nil {
		m.before(w)
	}
	switch {
	case m.silent:
	case w.Expect < m.regions[w.Guard]:
		m.step(router.Written{Op: w.Op, Outcome: router.Conflict})
	default:
		m.seq++
		m.step(router.Written{Op: w.Op, Outcome: router.Stored, Seq: m.seq})
		if !m.deaf {
			m.step(router.Seen{Subject: w.Subject, Seq: m.seq, Data: w.Data})
		}
	}
}

// pass lets time go by in steps of a tenth of a second.
func (m *machine) pass(d time.Duration) {
	for end := m.now + d; m.now < end; {
		m.now += 100 * time.Millisecond
		m.step(router.Wake{})
	}
}

func (m *machine) took() []router.OwnershipEffect {
	out := m.done
	m.done = nil
	return out
}

func count[E router.OwnershipEffect](effects []router.OwnershipEffect, is func(E) bool) (n int) {
	for _, e := range effects {
		if x, ok := e.(E); ok && (is == nil || is(x)) {
			n++
		}
	}
	return n
}

func moves(w router.Rewatch) bool { return w.Reconnect }

// TestSilence: an instance whose renewals are not answered goes to another server
// within three renewals, and asks only when its lease has run out.
func TestSilence(t *testing.T) {
	m := newMachine(t)
	m.pass(time.Minute)
	if e := m.took(); count[router.Rewatch](e, nil) != 0 || count[router.Read](e, nil) != 0 || m.c.Blind() {
		t.Errorf("an instance that hears everything did %v", e)
	}
	m.silent = true
	m.pass(3 * router.DefaultLease().Renew)
	if e := m.took(); count(e, moves) == 0 || !m.c.Blind() || count[router.Read](e, nil) != 0 {
		t.Errorf("three renewals of silence led to %v", e)
	}
	m.pass(12 * time.Second)
	if times, out := m.c.SoftFences(); times != 1 || !out {
		t.Errorf("%d soft fences, %t", times, out)
	}
	about := func(r router.Read) bool { return r.Subject == router.RegionSubject("us") }
	if e := m.took(); count(e, about) == 0 {
		t.Errorf("an instance without a lease asked nothing: %v", e)
	}
}

// TestPaused: an instance that stood still reaches the register anew at once.
func TestPaused(t *testing.T) {
	m := newMachine(t)
	m.now += time.Minute
	m.silent = true
	m.step(router.Paused{})
	e := m.took()
	if count(e, moves) != 1 || count(e, func(r router.Read) bool { return r.Subject == router.RegionSubject("us") }) != 1 ||
		count(e, func(w router.Write) bool { return w.Guard == router.RegionSubject("us") }) != 1 {
		t.Errorf("after a pause: %v", e)
	}
}

// TestRumourRefuses: what another instance says of the own region's fence is
// answered to clients at once, though the watch is far behind.
func TestRumourRefuses(t *testing.T) {
	m := newMachine(t)
	m.now += time.Minute
	m.silent = true
	m.step(router.Paused{})
	fence, err := json.Marshal(router.RegionRecord{Version: 1, Region: "us", ID: 1, Live: 9, State: router.RegionFenced, By: "eu", Reason: "drill"})
	if err != nil {
		t.Fatal(err)
	}
	m.step(router.Seen{Subject: router.RegionSubject("us"), Seq: m.seq + 50, Data: fence, Rumour: true})
	_, err = m.c.Tokens().Grant(m.now, "default/us")
	if foreign, ok := err.(*router.NotOwnerError); !ok || foreign.By != "eu" {
		t.Errorf("a fenced instance says %v", err)
	}
}

// TestPlanOutlivesReconnection: a command under way goes on after the register was
// reached again, whose end the watch has not reached; only a new command would be
// refused while the register is not known.
func TestPlanOutlivesReconnection(t *testing.T) {
	m := newMachine(t)
	m.step(router.Ask{Ref: 1, Command: router.Command{Verb: router.VerbFence, Region: "eu", Reason: "x"}})
	m.silent = true
	m.step(router.Ask{Ref: 2, Command: router.Command{Verb: router.VerbFence, Region: "eu", Reason: "y"}})
	m.step(router.Opened{Created: 1, Last: m.seq + 100})
	m.pass(5 * time.Second)
	for _, e := range m.took() {
		if a, ok := e.(router.Answer); ok && a.Ref == 2 {
			t.Errorf("the command was answered with %+v", a.Result)
		}
	}
	// The register has forgotten: that ends it.
	m.step(router.Opened{Created: 2})
	if count(m.took(), func(a router.Answer) bool { return a.Ref == 2 && a.Result.Exit == router.ExitRegressed }) != 1 {
		t.Error("a command goes on with a register that is another one")
	}
}

// TestClaimBesideFence: a claim that is stored right behind a fence of the region,
// of which the claimant has not heard, gives nothing to hold: the fence took the
// units that were there when it was stored, and is answered without this one.
func TestClaimBesideFence(t *testing.T) {
	for _, first := range []bool{true, false} {
		m := startMachine(t)
		if !first { // claimed before, and given back
			m.step(router.Opened{Created: 1})
			m.pass(time.Second)
			m.step(router.Ask{Ref: 1, Command: router.Command{Verb: router.VerbFence, Unit: unit, Reason: "x"}})
			m.pass(router.DefaultLease().Wait())
			m.step(router.Ask{Ref: 2, Command: router.Command{Verb: router.VerbUnfence, Unit: unit}})
		}
		m.before = func(w router.Write) {
			var r router.UnitRecord
			if w.Subject != router.UnitSubject(unit) || json.Unmarshal(w.Data, &r) != nil || r.Owner != "us" {
				return
			}
			m.before = nil
			m.seq++ // another gateway's fence of the region; its broadcast is lost, the watch late
			m.regions = map[string]uint64{router.RegionSubject("us"): m.seq}
			m.deaf = true
		}
		if first {
			m.step(router.Opened{Created: 1})
		}
		for m.before != nil && m.now < 2*time.Hour {
			m.pass(100 * time.Millisecond)
			if g, err := m.c.Tokens().Grant(m.now, unit); err == nil && m.before == nil {
				t.Fatalf("first claim %t: a unit claimed behind the fence of its region is held in epoch %d", first, g.Epoch)
			}
		}
		if m.before != nil {
			t.Fatal("the unit was never claimed")
		}
		for range 50 {
			m.pass(100 * time.Millisecond)
			if g, err := m.c.Tokens().Grant(m.now, unit); err == nil {
				t.Fatalf("first claim %t: a unit claimed behind the fence of its region is held in epoch %d", first, g.Epoch)
			}
		}
	}
}

// TestRepeatedRegionFence: a fence of a region that is fenced already writes each
// unit that the region might be claiming, so that no such claim is stored, and says
// of each cut what the fence said that set it.
func TestRepeatedRegionFence(t *testing.T) {
	m := newMachine(t)
	fence := router.Command{Verb: router.VerbFence, Region: "eu", Reason: "x"}
	lost := router.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 33, State: router.UnitFenced, Scope: router.ScopeRegion, Last: "eu", By: "us", Reason: "x",
		Epochs: []router.Tenure{{Epoch: 18, Owner: "eu", Ended: true, Applied: true}},
	}
	data, err := json.Marshal(lost)
	if err != nil {
		t.Fatal(err)
	}
	m.seq++
	m.step(router.Seen{Subject: router.UnitSubject("default/eu"), Seq: m.seq, Data: data})
	m.step(router.Ask{Ref: 7, Command: fence})
	m.pass(time.Second)
	effects := m.took()
	if n := count(effects, func(w router.Write) bool { return w.Subject == router.UnitSubject("default/eu") }); n != 1 {
		t.Errorf("the unit was written %d times", n)
	}
	answered := func(a router.Answer) bool {
		return a.Ref == 7 && a.Result.Exit == router.ExitLoss && len(a.Result.Units) == 1 &&
			a.Result.Units[0] == router.FencedUnit{Unit: "default/eu", Epoch: 33, Cut: router.CutApplied}
	}
	if count(effects, answered) != 1 {
		t.Errorf("a fence after one with loss was answered in %+v", effects)
	}
}

// TestFenceOfARegionThatStopped: instances that have stopped in good order are not
// waited for; where the logs end nobody says, so the cut is what others had applied.
func TestFenceOfARegionThatStopped(t *testing.T) {
	m := newMachine(t)
	see := func(subject string, record any) {
		data, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		m.seq++
		m.step(router.Seen{Subject: subject, Seq: m.seq, Data: data})
	}
	see(router.UnitSubject("default/eu"), router.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 18, State: router.UnitActive, Owner: "eu", Last: "eu", By: "eu", Epochs: []router.Tenure{{Epoch: 18, Owner: "eu"}},
	})
	see("own.live.eu.eu-0", router.LeaseRecord{Version: 1, Region: "eu", Instance: "eu-0", Gone: true})
	m.step(router.Ask{Ref: 7, Command: router.Command{Verb: router.VerbFence, Region: "eu", Reason: "x"}})
	m.pass(time.Second)
	asked := count(m.took(), func(a router.AskApplied) bool {
		m.step(router.Applied{Unit: a.Unit, Ref: a.Ref, OK: true})
		return a.Region == "eu"
	})
	m.pass(time.Second)
	lost := func(a router.Answer) bool { return a.Ref == 7 && a.Result.Exit == router.ExitLoss }
	if effects := m.took(); asked != 1 || count(effects, lost) != 1 {
		t.Errorf("asked %d times what was applied, then %+v", asked, effects)
	}
}

// TestWaitsForLongerLeases: who takes over waits for as long as the other side says
// that it believes in its lease, if its own times are shorter.
func TestWaitsForLongerLeases(t *testing.T) {
	m := newMachine(t)
	const hold = time.Minute
	lease, err := json.Marshal(router.LeaseRecord{Version: 1, Region: "eu", Instance: "eu-0", Guard: 1, Hold: hold.Milliseconds()})
	if err != nil {
		t.Fatal(err)
	}
	owned, err := json.Marshal(router.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 18, Owner: "eu", State: router.UnitActive, Last: "eu", By: "eu", Epochs: []router.Tenure{{Epoch: 18, Owner: "eu"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.seq++
	m.step(router.Seen{Subject: "own.live.eu.eu-0", Seq: m.seq, Data: lease})
	m.seq++
	m.step(router.Seen{Subject: router.UnitSubject("default/eu"), Seq: m.seq, Data: owned})
	m.step(router.Ask{Ref: 7, Command: router.Command{Verb: router.VerbFence, Region: "eu", Reason: "x"}})
	cuts := func(a router.AskApplied) bool { return a.Unit == "default/eu" }
	m.pass(hold)
	if count(m.took(), cuts) != 0 {
		t.Errorf("the cut was looked for while a lease of %v could hold", hold)
	}
	m.pass(2 * time.Second)
	if count(m.took(), cuts) == 0 {
		t.Error("the fence has not gone on after the lease")
	}
}

// TestSilentFromTheStart: a watch that brings nothing when the register is opened is
// begun again, although questions are answered.
func TestSilentFromTheStart(t *testing.T) {
	m := startMachine(t)
	m.step(router.Opened{Created: 1, Last: 40})
	region, err := json.Marshal(router.RegionRecord{Version: 1, Region: "us", ID: 1, Live: 1, State: router.RegionUp, By: "us"})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		m.pass(time.Second)
		m.step(router.Seen{Subject: router.RegionSubject("us"), Seq: 40, Data: region, Rumour: true})
	}
	if count(m.took(), moves) == 0 {
		t.Error("the watch is not begun again")
	}
}

// TestHigherEpochUnderOlderRevision: a register that went back hands its revisions
// out again. Who hears of a higher epoch under one of them stops.
func TestHigherEpochUnderOlderRevision(t *testing.T) {
	m := newMachine(t)
	fenced, err := json.Marshal(router.UnitRecord{Version: 1, Unit: unit, Epoch: 50, State: router.UnitFenced, Scope: router.ScopeUnit, Last: "us", By: "eu", Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	m.step(router.Seen{Subject: router.UnitSubject(unit), Seq: 1, Data: fenced, Rumour: true})
	if _, err := m.c.Tokens().Grant(m.now, unit); err == nil {
		t.Error("the unit is held still")
	}
}
