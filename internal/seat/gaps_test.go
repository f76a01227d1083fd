package seat_test

import (
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/seat"
)

var (
	localID  = event.TopicID{1}
	remoteID = event.TopicID{2}
)

// lossy is a bench whose logs may have lost records, and what was reported of that.
type lossy struct {
	*bench
	known    incident.Set
	reported []seat.ReportGap
}

func newLossy(t *testing.T, at seat.InputsStart) *lossy {
	t.Helper()
	l := new(lossy)
	l.bench = newBenchOf(t, seat.InputsConfig{Region: 1, Topic: localID, History: true}, false, at, func(env *seat.InputsSurroundings) {
		env.Missing = func(kind incident.Kind, log event.TopicID, from, until int64) (int64, int64) {
			return l.known.Missing(incident.Place{Kind: kind, Log: log, From: from}, until)
		}
	})
	l.reports = func(e seat.ReportGap) {
		l.reported = append(l.reported, e)
		l.known.Found(l.incident(e))
	}
	return l
}

func (l *lossy) incident(e seat.ReportGap) incident.Incident {
	return incident.Incident{Place: incident.Place{Kind: e.Kind, Log: e.Log, From: e.From}, Origin: e.Origin, Until: e.Until}
}

// wantReports compares what was reported since with what it should be, once each.
func (l *lossy) wantReports(want ...seat.ReportGap) {
	l.t.Helper()
	l.step(seat.Look{})
	seen := map[seat.ReportGap]bool{}
	for _, e := range l.reported {
		seen[e] = true
	}
	for _, e := range want {
		if !seen[e] {
			l.t.Errorf("not reported: %+v", e)
		}
		delete(seen, e)
	}
	for e := range seen {
		l.t.Errorf("reported: %+v", e)
	}
	l.reported = nil
}

func (l *lossy) accept(e seat.ReportGap) {
	x := l.incident(e)
	l.known.Accept(incident.Acceptance{ID: x.ID(), Until: e.Until})
}

// TestFoldWaitsAtAGap: if an origin's log has lost what the fold needs next, nothing of the
// origin is folded, neither records nor what a position covers, until somebody accepts the
// gap; other origins go on. What is lost later is another gap.
func TestFoldWaitsAtAGap(t *testing.T) {
	at := event.Vector{1: {Next: 5}, 2: {Next: 20}}
	l := newLossy(t, seat.InputsStart{Committed: at, Keys: at})
	l.OpenLocal(5)
	l.OpenRemote(2, remoteID, 25)
	l.copies.covered = &control.Covered{Source: event.Point{Next: 40}, Target: 40, Barrier: seat.NoBarrier, Epoch: -1}
	gap := seat.ReportGap{Kind: incident.Fold, Origin: 2, Log: remoteID, From: 20, Until: 25}
	l.wantReports(gap)
	if g := l.Status().Gaps; len(g) != 1 || g[2] != (seat.Gap{From: 20, Until: 25}) || l.Wants(2) || l.Resting() {
		t.Errorf("gaps %v, wants more %v, rests %v", g, l.Wants(2), l.Resting())
	}
	l.step(seat.Fetched{Origin: 1, Entries: entries(5, 0, "a")})
	l.want("a valid")
	l.reported = nil
	// Retention goes on: the same gap grows.
	l.OpenRemote(2, remoteID, 30)
	gap.Until = 30
	l.wantReports(gap)
	l.accept(gap)
	l.step(seat.Fetched{Origin: 2, Entries: entries(30, 0, "x")})
	l.want("x valid")
	if len(l.Status().Gaps) != 0 || !l.Wants(2) {
		t.Errorf("held after it was accepted: %v", l.Status().Gaps)
	}
	l.OpenRemote(2, remoteID, 30) // found again
	l.wantReports()
	l.OpenRemote(2, remoteID, 43)
	l.wantReports(seat.ReportGap{Kind: incident.Fold, Origin: 2, Log: remoteID, From: 31, Until: 43})
	l.want()
	l.OpenLocal(9)
	l.wantReports(
		seat.ReportGap{Kind: incident.Fold, Origin: 1, Log: localID, From: 6, Until: 9},
		seat.ReportGap{Kind: incident.Fold, Origin: 2, Log: remoteID, From: 31, Until: 43},
	)
	l.step(seat.Look{})
	l.want()
}

// TestNothingWasLostBeforeTheFirstUse: what was deleted before a partition was first used is
// no gap, and the fold notes that. In a partition that was used it is one, even if nothing
// was folded.
func TestNothingWasLostBeforeTheFirstUse(t *testing.T) {
	l := newLossy(t, seat.InputsStart{})
	if at := l.OpenLocal(9); at != 9 {
		t.Errorf("reads from %d", at)
	}
	l.wantReports()
	l.want("1 to 9")
	used := newLossy(t, seat.InputsStart{UsedBefore: true})
	used.OpenLocal(9)
	used.OpenRemote(2, remoteID, 3)
	used.wantReports(
		seat.ReportGap{Kind: incident.Fold, Origin: 1, Log: localID, Until: 9}, seat.ReportGap{Kind: incident.Fold, Origin: 2, Log: remoteID, Until: 3},
	)
	used.want()
}

// TestGapsNeedADescription: only runs and positions tell whether a copy has lost what the fold
// needs; until they are read nothing of the copy is folded. The marker of the last transaction
// counts as no record.
func TestGapsNeedADescription(t *testing.T) {
	at := event.Vector{2: {Next: 20}}
	l := newLossy(t, seat.InputsStart{Committed: at, Keys: at, UsedBefore: true})
	l.copies.described = 0
	l.OpenRemote(2, remoteID, 22)
	l.wantReports()
	if l.Wants(2) || l.Resting() {
		t.Error("goes on without knowing")
	}
	l.copies.covered = &control.Covered{Source: event.Point{Next: 20}, Target: 20, Barrier: seat.NoBarrier, Epoch: -1}
	l.step(seat.Look{})
	if l.Wants(2) {
		t.Error("goes on although something undescribed was deleted")
	}
	l.OpenRemote(2, remoteID, 21) // all that was deleted is the marker
	l.wantReports()
	if !l.Wants(2) {
		t.Error("a marker is taken for a gap")
	}
	l.OpenRemote(2, remoteID, 22)
	l.copies.described = 100
	l.wantReports(seat.ReportGap{Kind: incident.Fold, Origin: 2, Log: remoteID, From: 20, Until: 22})
}

// TestIndexesReportWhatTheyLack: an index that was lost and that the logs cannot fill again
// does not hold the fold; what is missing is reported once, without what was accepted for
// the fold.
func TestIndexesReportWhatTheyLack(t *testing.T) {
	at := event.Vector{1: {Next: 5}, 2: {Next: 20}}
	start := seat.InputsStart{Committed: at, Sinks: []seat.SinkStart{{Barriers: seat.NoBarriers()}}}
	l := newLossy(t, start)
	l.OpenLocal(3)
	l.OpenRemote(2, remoteID, 10)
	history := seat.ReportGap{Kind: incident.History, Origin: 2, Log: remoteID, Until: 10}
	keys := seat.ReportGap{Kind: incident.Keys, Origin: 2, Log: remoteID, Until: 10}
	own := seat.ReportGap{Kind: incident.History, Origin: 1, Log: localID, Until: 3}
	l.wantReports(own, history, keys)
	if len(l.Status().Gaps) != 0 || !l.Wants(2) || !l.Wants(1) {
		t.Error("held")
	}
	for _, e := range []seat.ReportGap{own, history, keys} {
		l.accept(e)
	}
	l.OpenLocal(3)
	l.OpenRemote(2, remoteID, 12) // the indexes have had what is deleted later
	l.wantReports()
	accepted := l.known
	l = newLossy(t, start)
	l.known = accepted
	l.OpenLocal(3)
	l.OpenRemote(2, remoteID, 10)
	l.wantReports()
	l = newLossy(t, start)
	l.known = accepted
	l.OpenRemote(2, remoteID, 12)
	history.From, history.Until, keys.From, keys.Until = 10, 12, 10, 12
	l.wantReports(history, keys)
	// What was accepted for the fold is not missing for an index.
	l = newLossy(t, start)
	l.known.Found(incident.Incident{Place: incident.Place{Kind: incident.Fold, Log: remoteID}, Until: 10})
	l.accept(seat.ReportGap{Kind: incident.Fold, Log: remoteID, Until: 10})
	l.OpenRemote(2, remoteID, 10)
	l.wantReports()
}

// TestRereadingNamesWhatItNeeds: when a cut becomes known, only what lies past it may have to
// be taken out; orphans of an earlier table need not be there any more.
func TestRereadingNamesWhatItNeeds(t *testing.T) {
	at := event.Vector{2: {Next: 30}}
	tables := cutTables(20)
	b := newBenchOf(t, seat.InputsConfig{Region: 1}, true, seat.InputsStart{Committed: at, Keys: at, Table: tables[0]})
	b.OpenLocal(0)
	b.copies.covered = &control.Covered{Source: event.Point{Next: 30}, Target: 30, Barrier: seat.NoBarrier, Epoch: -1}
	b.OpenRemote(2, remoteID, 0)
	b.table = tables[1] // ended at 20
	b.step(seat.Look{})
	if e, ok := b.asked.(seat.ReadAgain); !ok || e.From != 20 || e.Needed != 20 || e.To != 30 {
		t.Fatalf("asked %+v", b.asked)
	}
	again := newBenchOf(t, seat.InputsConfig{Region: 1}, true, seat.InputsStart{Committed: at, Keys: at, Table: tables[1]})
	again.OpenLocal(0)
	again.copies.covered = b.copies.covered
	again.OpenRemote(2, remoteID, 0)
	again.table = tables[2] // and another tenure begins at 40
	again.step(seat.Look{})
	if e, ok := again.asked.(seat.ReadAgain); !ok || e.From != 20 || e.Needed != 30 {
		t.Errorf("asked %+v", again.asked)
	}
}

// cutTables are three tables of eu's log: a tenure, the same one with a cut, and that one with
// a second tenure after it.
func cutTables(cut int64) [3]*event.ValidityTable {
	first := event.FirstEpoch(2)
	log := func(list ...event.Tenure) *event.ValidityTable {
		table := new(event.ValidityTable)
		table.Logs[2].List = list
		return table
	}
	open := event.Tenure{Epoch: first}
	ended := event.Tenure{Epoch: first, Ended: true, Cut: []event.Point{{Next: cut}}}
	tables := [3]*event.ValidityTable{log(open), log(ended), log(ended, event.Tenure{Epoch: first + 16, Start: []event.Point{{Next: 2 * cut}}})}
	for i, t := range tables {
		t.Revision = uint64(i + 1)
	}
	return tables
}

// TestNothingIsMissingBelowWhatIsNeeded: a journal that was lost begins where the logs are needed
// from; that they begin there, too, is no gap.
func TestNothingIsMissingBelowWhatIsNeeded(t *testing.T) {
	needed := event.Vector{1: {Next: 3}, 2: {Next: 10}}
	barriers := seat.NoBarriers()
	barriers[1] = 2
	l := newLossy(t, seat.InputsStart{
		Committed: event.Vector{1: {Next: 5}, 2: {Next: 20}}, Keys: needed, Sinks: []seat.SinkStart{{Applied: needed, Barriers: barriers}},
	})
	if from := l.OpenLocal(3); from != 3 {
		t.Errorf("the own log is read from %d", from)
	}
	if from := l.OpenRemote(2, remoteID, 10); from != 10 {
		t.Errorf("the copy is read from %d", from)
	}
	l.wantReports()
	if len(l.Status().Gaps) != 0 || !l.Wants(1) || !l.Wants(2) {
		t.Error("held")
	}
}
