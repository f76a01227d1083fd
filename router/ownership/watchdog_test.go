package ownership_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// machine drives the state machine of an instance by hand: a register that stores
// everything at once, until it is silent.
type machine struct {
	t      *testing.T
	c      *ownership.Core
	now    time.Duration
	seq    uint64
	silent bool
	deaf   bool                  // the watch brings nothing
	before func(ownership.Write) // called before a write is stored
	// newest is what was stored of each subject; answers tells whether it is given to
	// whoever asks.
	newest  map[string]ownership.Seen
	answers bool
	recall  *ownership.Memory // what the region's own Kafka has; nil: it does not answer
	// regions are revisions of other regions' writes which the instance has not
	// heard of: whatever is conditional on an older one is refused.
	regions map[string]uint64
	done    []ownership.Effect // since the last call of took
}

const unit = "default/us"

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := startMachine(t)
	m.step(ownership.Opened{Created: 1})
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
	return &machine{t: t, now: time.Hour, newest: map[string]ownership.Seen{}, c: ownership.NewCore(ownership.CoreConfig{
		Region: "us", ID: 1, Regions: topology, Instance: "us-0", Life: "l", Home: []string{unit}, Lease: ownership.DefaultLease(),
	})}
}

// step gives an event and answers writes.
func (m *machine) step(ev ownership.Event) {
	effects := append([]ownership.Effect(nil), m.c.Step(m.now, ev)...)
	m.done = append(m.done, effects...)
	for _, e := range effects {
		switch e := e.(type) {
		case ownership.Write:
			m.write(e)
		case ownership.List:
			m.step(ownership.Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, OK: true})
		case ownership.Settle:
			m.step(ownership.Settled{Unit: e.Unit, Epoch: e.Epoch, OK: true})
		case ownership.Persist:
			m.step(ownership.Persisted{Version: e.Version})
		case ownership.Read:
			if s, ok := m.newest[e.Subject]; m.answers && ok {
				m.step(s)
			} else if m.answers {
				m.step(ownership.Seen{Source: ownership.Answered, Subject: e.Subject})
			}
		case ownership.Recall:
			if m.recall == nil {
				m.step(ownership.Recalled{})
			} else {
				m.step(ownership.Recalled{Memory: *m.recall, OK: true})
			}
		}
	}
}

func (m *machine) write(w ownership.Write) {
	if m.before != nil {
		m.before(w)
	}
	switch {
	case m.silent:
	case w.Expect < m.regions[w.Guard]:
		m.step(ownership.Written{Op: w.Op, Outcome: ownership.Conflict})
	default:
		m.seq++
		m.newest[w.Subject] = ownership.Seen{Source: ownership.Answered, Subject: w.Subject, Seq: m.seq, Data: w.Data}
		m.step(ownership.Written{Op: w.Op, Outcome: ownership.Stored, Seq: m.seq})
		if !m.deaf {
			m.step(ownership.Seen{Subject: w.Subject, Seq: m.seq, Data: w.Data})
		}
	}
}

// pass lets time go by in steps of a tenth of a second.
func (m *machine) pass(d time.Duration) {
	for end := m.now + d; m.now < end; {
		m.now += 100 * time.Millisecond
		m.step(ownership.Wake{})
	}
}

func (m *machine) took() []ownership.Effect {
	out := m.done
	m.done = nil
	return out
}

func count[E ownership.Effect](effects []ownership.Effect, is func(E) bool) (n int) {
	for _, e := range effects {
		if x, ok := e.(E); ok && (is == nil || is(x)) {
			n++
		}
	}
	return n
}

func moves(w ownership.Rewatch) bool { return w.Reconnect }

// TestSilence: an instance whose renewals are not answered goes to another server
// within three renewals, and asks only when its lease has run out.
func TestSilence(t *testing.T) {
	m := newMachine(t)
	m.pass(time.Minute)
	if e := m.took(); count[ownership.Rewatch](e, nil) != 0 || count[ownership.Read](e, nil) != 0 || m.c.WatchSilent() {
		t.Errorf("an instance that hears everything did %v", e)
	}
	m.silent = true
	m.pass(3 * ownership.DefaultLease().Renew)
	if e := m.took(); count(e, moves) == 0 || !m.c.WatchSilent() || count[ownership.Read](e, nil) != 0 {
		t.Errorf("three renewals of silence led to %v", e)
	}
	m.pass(12 * time.Second)
	if times, out := m.c.SoftFences(); times != 1 || !out {
		t.Errorf("%d soft fences, %t", times, out)
	}
	about := func(r ownership.Read) bool { return r.Subject == ownership.RegionSubject("us") }
	if e := m.took(); count(e, about) == 0 {
		t.Errorf("an instance without a lease asked nothing: %v", e)
	}
}

// TestPaused: an instance that was stopped reconnects to the register at once.
func TestPaused(t *testing.T) {
	m := newMachine(t)
	m.now += time.Minute
	m.silent = true
	m.step(ownership.Paused{})
	e := m.took()
	if count(e, moves) != 1 || count(e, func(r ownership.Read) bool { return r.Subject == ownership.RegionSubject("us") }) != 1 ||
		count(e, func(w ownership.Write) bool { return w.Guard == ownership.RegionSubject("us") }) != 1 {
		t.Errorf("after a pause: %v", e)
	}
}

// TestRumourRefuses: what another instance says of the own region's fence is
// answered to clients at once, though the watch is far behind.
func TestRumourRefuses(t *testing.T) {
	m := newMachine(t)
	m.now += time.Minute
	m.silent = true
	m.step(ownership.Paused{})
	fence, err := json.Marshal(ownership.RegionRecord{Version: 1, Region: "us", ID: 1, Live: 9, State: ownership.RegionFenced, By: "eu", Reason: "drill"})
	if err != nil {
		t.Fatal(err)
	}
	m.step(ownership.Seen{Subject: ownership.RegionSubject("us"), Seq: m.seq + 50, Data: fence, Source: ownership.Rumoured})
	_, err = m.c.Tokens().Grant(m.now, "default/us")
	if foreign, ok := err.(*ownership.NotOwnerError); !ok || foreign.By != "eu" {
		t.Errorf("a fenced instance says %v", err)
	}
}

// TestPlanOutlivesReconnection: a command under way goes on after the register was
// reached again, whose end the watch has not reached; only a new command would be
// refused while the register is not known.
func TestPlanOutlivesReconnection(t *testing.T) {
	m := newMachine(t)
	m.step(ownership.Ask{Ref: 1, Command: ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "x"}})
	m.silent = true
	m.step(ownership.Ask{Ref: 2, Command: ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "y"}})
	m.step(ownership.Opened{Created: 1, Last: m.seq + 100})
	m.pass(5 * time.Second)
	for _, e := range m.took() {
		if a, ok := e.(ownership.Answer); ok && a.Ref == 2 {
			t.Errorf("the command was answered with %+v", a.Result)
		}
	}
	// The register has forgotten: that ends it.
	m.step(ownership.Opened{Created: 2})
	if count(m.took(), func(a ownership.Answer) bool { return a.Ref == 2 && a.Result.Code == ownership.ResultRegressed }) != 1 {
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
			m.step(ownership.Opened{Created: 1})
			m.pass(time.Second)
			m.step(ownership.Ask{Ref: 1, Command: ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "x"}})
			m.pass(ownership.DefaultLease().Wait())
			m.step(ownership.Ask{Ref: 2, Command: ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}})
		}
		m.before = func(w ownership.Write) {
			var r ownership.UnitRecord
			if w.Subject != ownership.UnitSubject(unit) || json.Unmarshal(w.Data, &r) != nil || r.Owner != "us" {
				return
			}
			m.before = nil
			m.seq++ // another gateway's fence of the region; its broadcast is lost, the watch late
			m.regions = map[string]uint64{ownership.RegionSubject("us"): m.seq}
			m.deaf = true
		}
		if first {
			m.step(ownership.Opened{Created: 1})
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
	fence := ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "x"}
	lost := ownership.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 33, State: ownership.UnitFenced, Scope: ownership.ScopeRegion, Last: "eu", By: "us", Reason: "x",
		Epochs: []ownership.Tenure{{Epoch: 18, Owner: "eu", Ended: true, Applied: true}},
	}
	data, err := json.Marshal(lost)
	if err != nil {
		t.Fatal(err)
	}
	m.seq++
	m.step(ownership.Seen{Subject: ownership.UnitSubject("default/eu"), Seq: m.seq, Data: data})
	m.step(ownership.Ask{Ref: 7, Command: fence})
	m.pass(time.Second)
	effects := m.took()
	if n := count(effects, func(w ownership.Write) bool { return w.Subject == ownership.UnitSubject("default/eu") }); n != 1 {
		t.Errorf("the unit was written %d times", n)
	}
	answered := func(a ownership.Answer) bool {
		return a.Ref == 7 && a.Result.Code == ownership.ResultLoss && len(a.Result.Units) == 1 &&
			a.Result.Units[0] == ownership.FencedUnit{Unit: "default/eu", Epoch: 33, Cut: ownership.CutApplied}
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
		m.step(ownership.Seen{Subject: subject, Seq: m.seq, Data: data})
	}
	see(ownership.UnitSubject("default/eu"), ownership.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 18, State: ownership.UnitActive, Owner: "eu", Last: "eu", By: "eu", Epochs: []ownership.Tenure{{Epoch: 18, Owner: "eu"}},
	})
	see("own.live.eu.eu-0", ownership.LeaseRecord{Version: 1, Region: "eu", Instance: "eu-0", Gone: true})
	m.step(ownership.Ask{Ref: 7, Command: ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "x"}})
	m.pass(time.Second)
	asked := count(m.took(), func(a ownership.AskApplied) bool {
		m.step(ownership.Applied{Unit: a.Unit, Ref: a.Ref, OK: true})
		return a.Region == "eu"
	})
	m.pass(time.Second)
	lost := func(a ownership.Answer) bool { return a.Ref == 7 && a.Result.Code == ownership.ResultLoss }
	if effects := m.took(); asked != 1 || count(effects, lost) != 1 {
		t.Errorf("asked %d times what was applied, then %+v", asked, effects)
	}
}

// TestHearsOfOtherRegions: the newest lease record of a region's instances tells when
// they were heard of last; one that comes late, or again, is not news.
func TestHearsOfOtherRegions(t *testing.T) {
	m := newMachine(t)
	see := func(seq uint64, gone bool) {
		data, err := json.Marshal(ownership.LeaseRecord{Version: 1, Region: "eu", Instance: "eu-0", Life: "x", Guard: 1, Gone: gone})
		if err != nil {
			t.Fatal(err)
		}
		m.step(ownership.Seen{Subject: "own.live.eu.eu-0", Seq: seq, Data: data})
	}
	if h, ok := m.c.Tokens().Heard["eu"]; ok {
		t.Errorf("nothing came, and eu was heard of: %+v", h)
	}
	m.pass(time.Second)
	first := m.seq + 1
	see(first, false)
	at := m.now
	m.pass(time.Minute)
	see(first, false)
	if h := m.c.Tokens().Heard["eu"]; h.At != at || h.Gone {
		t.Errorf("heard %+v, want at %v", h, at)
	}
	see(m.seq+1, true)
	if h := m.c.Tokens().Heard["eu"]; h.At != m.now || !h.Gone {
		t.Errorf("heard %+v, want gone at %v", h, m.now)
	}
	// A fence is noted with when it was, once; the next lease is news of a region that is up.
	fence := func(live uint64, state ownership.RegionState) {
		data, err := json.Marshal(ownership.RegionRecord{Version: 1, Region: "eu", ID: 2, Live: live, State: state, By: "us", Reason: "drill"})
		if err != nil {
			t.Fatal(err)
		}
		m.seq++
		m.step(ownership.Seen{Subject: ownership.RegionSubject("eu"), Seq: m.seq, Data: data})
	}
	m.seq++
	at = m.now
	m.pass(time.Minute)
	fenced := m.now
	for live := range uint64(2) { // the second one touches it
		fence(5+live, ownership.RegionFenced)
		if h := m.c.Tokens().Heard["eu"]; h.At != at || h.Fenced != fenced {
			t.Errorf("heard %+v, fenced at %v", h, fenced)
		}
		m.pass(time.Second)
	}
	fence(7, ownership.RegionUp)
	see(m.seq+1, false)
	if h := m.c.Tokens().Heard["eu"]; h.At != m.now || h.Fenced != 0 {
		t.Errorf("heard %+v after the end of the fence", h)
	}
}

// TestWaitsForLongerLeases: who takes over waits for as long as the other side says
// that it believes in its lease, if its own times are shorter.
func TestWaitsForLongerLeases(t *testing.T) {
	m := newMachine(t)
	const hold = time.Minute
	lease, err := json.Marshal(ownership.LeaseRecord{Version: 1, Region: "eu", Instance: "eu-0", Guard: 1, Hold: hold.Milliseconds()})
	if err != nil {
		t.Fatal(err)
	}
	owned, err := json.Marshal(ownership.UnitRecord{
		Version: 1, Unit: "default/eu", Epoch: 18, Owner: "eu", State: ownership.UnitActive, Last: "eu", By: "eu", Epochs: []ownership.Tenure{{Epoch: 18, Owner: "eu"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.seq++
	m.step(ownership.Seen{Subject: "own.live.eu.eu-0", Seq: m.seq, Data: lease})
	m.seq++
	m.step(ownership.Seen{Subject: ownership.UnitSubject("default/eu"), Seq: m.seq, Data: owned})
	m.step(ownership.Ask{Ref: 7, Command: ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "x"}})
	cuts := func(a ownership.AskApplied) bool { return a.Unit == "default/eu" }
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
// restarted, although questions are answered.
func TestSilentFromTheStart(t *testing.T) {
	m := startMachine(t)
	m.step(ownership.Opened{Created: 1, Last: 40})
	region, err := json.Marshal(ownership.RegionRecord{Version: 1, Region: "us", ID: 1, Live: 1, State: ownership.RegionUp, By: "us"})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		m.pass(time.Second)
		m.step(ownership.Seen{Subject: ownership.RegionSubject("us"), Seq: 40, Data: region, Source: ownership.Answered})
	}
	if count(m.took(), moves) == 0 {
		t.Error("the watch is not restarted")
	}
}

// TestHigherEpochUnderOlderRevision: a register that went back hands its revisions
// out again. Who hears of a higher epoch under one of them stops.
func TestHigherEpochUnderOlderRevision(t *testing.T) {
	m := newMachine(t)
	fenced, err := json.Marshal(ownership.UnitRecord{Version: 1, Unit: unit, Epoch: 50, State: ownership.UnitFenced, Scope: ownership.ScopeUnit, Last: "us", By: "eu", Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	m.step(ownership.Seen{Subject: ownership.UnitSubject(unit), Seq: 1, Data: fenced, Source: ownership.Rumoured})
	if _, err := m.c.Tokens().Grant(m.now, unit); err == nil {
		t.Error("the unit is held still")
	}
}
