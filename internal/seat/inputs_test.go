package seat_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// copiesOfEU is what is known of eu's log in this region: the record at target t is
// the one at source t+shift.
type copiesOfEU struct {
	described int64 // targets below are described
	shift     int64
	barrier   int64
	covered   *control.Covered
	confirmed int32
}

func (c *copiesOfEU) Locate(_ event.RegionID, _ event.TopicID, _ int32, target int64, _ int32) control.Location {
	if target >= c.described {
		return control.Location{State: control.Pending}
	}
	return control.Location{State: control.Mapped, Source: target + c.shift, Barrier: c.barrier}
}

func (c *copiesOfEU) Confirmed(_ event.RegionID, _ event.TopicID, _ int32, epoch int32) bool {
	return epoch <= c.confirmed
}

func (c *copiesOfEU) Covered(event.RegionID, event.TopicID, int32) (control.Covered, bool) {
	if c.covered == nil {
		return control.Covered{}, false
	}
	return *c.covered, true
}

func (c *copiesOfEU) TargetOffsetFrom(_ event.RegionID, _ event.TopicID, _ int32, _ uint16, source int64) (int64, bool) {
	t := source - c.shift
	return t, t < c.described
}

// bench drives an Inputs of us by hand.
type bench struct {
	*seat.Inputs
	t       *testing.T
	now     time.Time
	copies  *copiesOfEU
	clock   *hlc.Clock
	indexed int64
	ready   bool  // the own log was read back to its end
	barrier int64 // its last
	table   *event.ValidityTable
	asked   seat.InputEffect // the newest question
	given   []string         // to the fold
	sinks   []string
	reports func(seat.ReportGap) // nil: nobody wants them
}

func newBench(t *testing.T, register bool, at seat.InputsStart) *bench {
	t.Helper()
	b := newBenchOf(t, seat.InputsConfig{Region: 1}, register, at)
	b.OpenLocal(0)
	return b
}

func newBenchOf(t *testing.T, cfg seat.InputsConfig, register bool, at seat.InputsStart, with ...func(*seat.InputsSurroundings)) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Unix(1000, 0), copies: &copiesOfEU{described: 100, confirmed: 9, barrier: seat.NoBarrier}, indexed: 100, barrier: seat.NoBarrier, clock: hlc.NewClock(time.Now, hlc.Bounds{})}
	env := seat.InputsSurroundings{
		Copies: b.copies, Clock: b.clock,
		Indexed:     func() event.Point { return event.Point{Next: b.indexed} },
		Ready:       func() bool { return b.ready },
		LastBarrier: func(int64) int64 { return b.barrier },
	}
	if register {
		env.Table = func() *event.ValidityTable { return b.table }
	}
	for _, f := range with {
		f(&env)
	}
	if at.Barriers == (seat.Barriers{}) {
		at.Barriers = seat.NoBarriers()
	}
	b.Inputs = seat.NewInputs(cfg, env, at)
	return b
}

func (b *bench) step(ev seat.InputEvent) {
	b.t.Helper()
	b.asked = nil
	for _, e := range b.Step(b.now, ev) {
		switch e := e.(type) {
		case seat.AddToSinks:
			b.sinks = append(b.sinks, texts(e.Items)...)
		case seat.FoldItems:
			b.given = append(b.given, texts(e.Items)...)
		case seat.AskBarrier, seat.AskEpochEnd, seat.ReadAgain, seat.ReportCutPending:
			b.asked = e
		case seat.ReportGap:
			if b.reports != nil {
				b.reports(e)
			}
		}
	}
}

// want compares what the fold was given since with what it should be.
func (b *bench) want(given ...string) {
	b.t.Helper()
	if !slices.Equal(b.given, given) {
		b.t.Errorf("the fold was given %q, want %q", b.given, given)
	}
	b.given = nil
}

func texts(items []judged.Item) (out []string) {
	for i := range items {
		it := &items[i]
		switch {
		case it.Verdict == judged.Cuts:
			out = append(out, fmt.Sprintf("cuts %d", it.Validity.Revision))
		case it.Verdict == judged.Skip:
			out = append(out, fmt.Sprintf("%d to %d", it.Origin, it.Next.Next))
		case it.Validity != nil:
			out = append(out, fmt.Sprintf("%s revoked", it.Event.Value))
		default:
			out = append(out, fmt.Sprintf("%s %v", it.Event.Value, it.Verdict))
		}
	}
	return out
}

// entries are records with one-letter values from an offset on.
func entries(from int64, epoch int32, values string) (out []seat.Entry) {
	for i, v := range values {
		out = append(out, seat.Entry{Offset: from + int64(i), LeaderEpoch: epoch, Key: []byte("k"), Value: []byte(string(v)), Timestamp: 1})
	}
	return out
}

func marker(offset int64) seat.Entry {
	return seat.Entry{Offset: offset, Control: []byte{0, 0, 0, 1}, Producer: 7, ProducerEpoch: 3}
}

// TestInputsWaitForMarkers: what comes after a commit marker waits until it is known
// whether it is a barrier, and it is asked once.
func TestInputsWaitForMarkers(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{})
	later := marker(9)
	later.Producer, later.Control = 8, []byte{0, 0, 0, 0} // an abort marker asks nothing
	next := marker(10)
	next.ProducerEpoch = 4
	b.step(seat.Fetched{Origin: 1, Entries: append(entries(0, 0, "a"), marker(1), entries(2, 0, "b")[0], later, next)})
	if want := (seat.AskBarrier{Offset: 1, Producer: 7, Epoch: 3, More: []seat.ProducerEpoch{{Producer: 7, Epoch: 4}}}); !reflect.DeepEqual(b.asked, want) {
		t.Errorf("asked %#v", b.asked)
	}
	b.want("a valid")
	b.step(seat.Look{})
	b.step(seat.BarrierKnown{Offset: 5, Barrier: true}) // of another marker
	if b.asked != nil || b.Wants(1) {
		t.Errorf("asked again %#v, wants more %v", b.asked, b.Wants(1))
	}
	b.want()
	b.step(seat.BarrierKnown{Offset: 1, Barrier: true})
	b.want("1 to 2", "b valid", "1 to 10") // the next marker waits again
}

// Inputs rest while nothing waits for the wall, for a description or for another try.
func TestInputsRest(t *testing.T) {
	b := newBench(t, true, seat.InputsStart{})
	rests := func(when string, want bool) {
		t.Helper()
		if got := b.Resting(); got != want {
			t.Errorf("%s: resting %v", when, got)
		}
	}
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Look{})
	rests("with nothing read", true)
	b.step(seat.Fetched{Origin: 1, Entries: entries(0, 0, "a")})
	rests("with a record that the register must settle", false)
	b = newBench(t, false, seat.InputsStart{})
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Fetched{Origin: 1, Entries: entries(0, 0, "a")})
	rests("with all passed on", true)
	b.copies.described = 0
	b.step(seat.Fetched{Origin: 2, Entries: entries(0, 0, "b")})
	rests("with a record that no run describes", false)
	b.copies.described = 100
	b.step(seat.Look{})
	rests("with that described", true)
	b.copies.covered = &control.Covered{Source: event.Point{Next: 50}, Target: 40, Barrier: seat.NoBarrier, Epoch: -1}
	rests("with a position ahead of what was read", false)
}

// TestInputsFollowTheIndex: the own log is passed on as far as its Readback has
// indexed it, a remote one as far as it is described.
func TestInputsFollowTheIndex(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{})
	b.indexed, b.copies.described = 1, 1
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Fetched{Origin: 1, Entries: entries(0, 0, "ab")})
	b.step(seat.Fetched{Origin: 2, Entries: entries(0, 0, "xy")})
	b.want("a valid", "x valid")
	b.indexed, b.copies.described = 2, 2
	b.step(seat.Look{})
	b.want("b valid", "y valid")
}

// TestInputsGate: while an index lags behind the fold, it is fed, and the fold gets
// nothing new, of no origin.
func TestInputsGate(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{
		Committed: event.Vector{1: {Next: 1}, 2: {Next: 2}},
		Sinks:     []seat.SinkStart{{Barriers: seat.NoBarriers()}}, Keys: event.Vector{1: {Next: 1}, 2: {Next: 2}},
	})
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Fetched{Origin: 1, Entries: entries(0, 0, "ab")})
	b.want()
	b.step(seat.Fetched{Origin: 2, Entries: entries(0, 0, "xyz")})
	b.step(seat.Look{})
	if want := []string{"a valid", "x valid", "y valid", "b valid", "z valid"}; !slices.Equal(b.sinks, want) {
		t.Errorf("the index was given %q, want %q", b.sinks, want)
	}
	b.want("b valid", "z valid")
}

// TestInputsDoubtNewerEpoch: a position of a newer leader epoch counts only when the
// end of the older one says that nothing read is lost, and nothing was read meanwhile.
func TestInputsDoubtNewerEpoch(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{})
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Fetched{Origin: 2, Entries: entries(0, 1, "xy")})
	b.want("x valid", "y valid")
	b.copies.covered = &control.Covered{Source: event.Point{Next: 9}, Barrier: seat.NoBarrier, Target: 2, Epoch: 2}
	b.step(seat.Look{})
	if b.asked != (seat.AskEpochEnd{Origin: 2, Epoch: 1}) {
		t.Fatalf("asked %#v", b.asked)
	}
	for _, answer := range []seat.EpochEnd{{Origin: 2, Epoch: 1}, {Origin: 2, Epoch: 1, End: 1, OK: true}} {
		b.step(answer) // nobody could tell; the second record is lost
		if b.asked != nil {
			t.Errorf("asked at once again: %#v", b.asked)
		}
		b.want()
		b.step(seat.Look{})
		if b.asked == nil {
			t.Fatal("not asked again")
		}
	}
	b.step(seat.Fetched{Origin: 2, Entries: entries(1, 2, "y")}) // the consumer came back
	b.want("2 to 9")
	b.step(seat.EpochEnd{Origin: 2, Epoch: 1, End: 2, OK: true}) // of before
	b.want()
}

// TestInputsTakeTableOver: a table is in force only when all that it revokes was
// given; while a log is read again nothing is passed on, and what an earlier reading
// still brings does not count.
func TestInputsTakeTableOver(t *testing.T) {
	b := newBench(t, true, seat.InputsStart{})
	b.copies.shift, b.copies.barrier = 1, 0
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.table = table(1)
	b.step(seat.Look{})
	b.want("cuts 1")
	b.step(seat.Fetched{Origin: 2, Entries: stamped(0, 34, "xyz")})
	b.want() // of an epoch that is not known
	if got := b.Status().Unsettled[2]; got != 34 {
		t.Errorf("waits for epoch %d", got)
	}
	b.table = table(2, func(a *event.ValidityTable) { cut(a, 2, 0, 34, 0) })
	b.step(seat.Look{})
	b.want("cuts 2", "x valid", "y valid", "z valid")
	b.table = table(3, func(a *event.ValidityTable) { cut(a, 2, 0, 34, 0); cut(a, 2, 2, 50, -1) })
	b.copies.covered = &control.Covered{Source: event.Point{Next: 3}, Barrier: 0, Target: 2}
	b.step(seat.Look{})
	if _, ok := b.asked.(seat.ReportCutPending); !ok || b.Status().CutPending == "" {
		t.Errorf("the copy is not described to the end, and it is not said: %#v", b.asked)
	}
	b.copies.covered.Source.Next, b.copies.covered.Target = 4, 3
	b.step(seat.Look{})
	if b.asked != nil {
		t.Errorf("tried again at once: %#v", b.asked)
	}
	b.now = b.now.Add(time.Second)
	b.step(seat.Look{})
	first, ok := b.asked.(seat.ReadAgain)
	if !ok || first.Origin != 2 || first.From != 1 || first.To != 3 {
		t.Fatalf("asked %#v", b.asked)
	}
	b.step(seat.RereadEnded{Number: first.Number, Err: errors.New("no leader")})
	b.now = b.now.Add(time.Second)
	b.step(seat.Look{})
	second := b.asked.(seat.ReadAgain)
	b.step(seat.Reread{Number: first.Number, Entries: stamped(1, 34, "y")})
	b.step(seat.RereadEnded{Number: first.Number})
	b.step(seat.Reread{Number: second.Number, Entries: stamped(1, 34, "yz")})
	if b.Wants(1) || b.Wants(2) {
		t.Error("wants more while a table is taken over")
	}
	b.want()
	b.step(seat.RereadEnded{Number: second.Number})
	b.want("y revoked", "z revoked", "cuts 3")
	if b.Status().CutPending != "" {
		t.Errorf("still pending: %s", b.Status().CutPending)
	}
}

// TestInputsTakeTableOverLater: what a table revokes in the own log is known once that was
// read back, or what is left of it; and who waits for another log is not given it again.
func TestInputsTakeTableOverLater(t *testing.T) {
	first := table(1)
	for name, readBack := range map[string]func(*bench){
		"indexed": func(b *bench) { b.indexed = 3 },
		"at end":  func(b *bench) { b.ready = true },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true, seat.InputsStart{Committed: event.Vector{1: {Next: 3}, 2: {Next: 2}}, Table: first, Keys: event.Vector{2: {Next: 2}}})
			b.indexed, b.barrier = 2, 0
			b.table = table(3, func(a *event.ValidityTable) { cut(a, 1, 0, 33, -1); cut(a, 2, 0, 34, -1) })
			b.step(seat.Look{})
			if b.asked != nil || b.Status().CutPending != "" {
				t.Fatalf("asked %#v, pending %q before all barriers are known", b.asked, b.Status().CutPending)
			}
			readBack(b)
			b.step(seat.Look{})
			own, ok := b.asked.(seat.ReadAgain)
			if !ok || own.Origin != 1 || own.From != 0 || own.To != 3 {
				t.Fatalf("asked %#v", b.asked)
			}
			b.step(seat.Reread{Number: own.Number, Entries: ownStamped(1, 17, "ab")})
			b.step(seat.RereadEnded{Number: own.Number})
			if _, ok := b.asked.(seat.ReportCutPending); !ok {
				t.Fatalf("eu's log is not there, asked %#v", b.asked)
			}
			b.want("a revoked", "b revoked")
			b.OpenRemote(2, event.TopicID{2}, 0)
			b.copies.covered = &control.Covered{Source: event.Point{Next: 2}, Barrier: 0, Target: 2}
			b.now = b.now.Add(time.Second)
			b.step(seat.Look{})
			eu, ok := b.asked.(seat.ReadAgain)
			if !ok || eu.Origin != 2 {
				t.Fatalf("asked %#v", b.asked)
			}
			b.step(seat.RereadEnded{Number: eu.Number})
			b.want("cuts 3")
		})
	}
}

// TestInputsNewerTableRevokesAgain: what was given for a table that was never in force is
// given for the next one as well.
func TestInputsNewerTableRevokesAgain(t *testing.T) {
	b := newBench(t, true, seat.InputsStart{Committed: event.Vector{1: {Next: 3}, 2: {Next: 2}}, Table: table(1), Keys: event.Vector{2: {Next: 2}}})
	b.barrier = 0
	for _, revision := range []uint64{3, 4} {
		b.table = table(revision, func(a *event.ValidityTable) { cut(a, 1, 0, 33, -1); cut(a, 2, 0, 34, -1) })
		b.now = b.now.Add(time.Second)
		b.step(seat.Look{})
		own, ok := b.asked.(seat.ReadAgain)
		if !ok || own.Origin != 1 || own.From != 0 {
			t.Fatalf("asked %#v", b.asked)
		}
		b.step(seat.Reread{Number: own.Number, Entries: ownStamped(1, 17, "ab")})
		b.step(seat.RereadEnded{Number: own.Number})
		b.want("a revoked", "b revoked")
	}
}

// TestInputsRevokeWhileTheyRead: what a late cut revokes is given to the fold while the log
// is read again, and not again if that fails on the way, so that memory holds a little of it
// however much there is.
func TestInputsRevokeWhileTheyRead(t *testing.T) {
	const orphans = 2000 // behind the barrier at 0
	b := newBench(t, true, seat.InputsStart{Committed: event.Vector{1: {Next: 1 + orphans}}, Table: table(1)})
	b.indexed, b.barrier = 1+orphans, 0
	b.table = table(3, func(a *event.ValidityTable) { cut(a, 1, 0, 33, -1) })
	text := strings.Repeat("x", orphans)
	given, most := 0, 0
	for try := 0; given < orphans; try++ {
		if try > 4 {
			t.Fatalf("%d of %d were revoked", given, orphans)
		}
		b.now = b.now.Add(time.Second)
		b.step(seat.Look{})
		own, ok := b.asked.(seat.ReadAgain)
		if from := min(int64(given), 1) * int64(given+1); !ok || own.From != from {
			t.Fatalf("with %d revoked, asked %#v", given, b.asked)
		}
		for at := max(own.From, 1); at <= orphans; {
			n := min(70, orphans+1-at)
			b.step(seat.Reread{Number: own.Number, Entries: ownStamped(at, 17, text[:n])})
			at += n
			given += len(b.given)
			most = max(most, int(at)-1-given)
			b.given = nil
			if try < 2 && at > own.From+700 {
				b.step(seat.RereadEnded{Number: own.Number, Err: errors.New("no leader")})
				break
			}
			if at > orphans {
				b.step(seat.RereadEnded{Number: own.Number})
				given += len(b.given) - 1 // the table
				if last := b.given[len(b.given)-1]; last != "cuts 3" {
					t.Errorf("the last is %q", last)
				}
			}
		}
	}
	if given != orphans || most >= 700 {
		t.Errorf("%d of %d were revoked, at most %d were kept", given, orphans, most)
	}
}

// stamped are records of eu's gateway under an epoch.
func stamped(from int64, epoch event.Epoch, values string) []seat.Entry {
	return stampedBy(event.Envelope{Region: 2, Epoch: epoch}, from, values)
}

// ownStamped are records of the own gateway, behind barrier 0.
func ownStamped(from int64, epoch event.Epoch, values string) []seat.Entry {
	return stampedBy(event.Envelope{Region: 1, Epoch: epoch, Barrier: 0}, from, values)
}

func stampedBy(env event.Envelope, from int64, values string) []seat.Entry {
	out := entries(from, 0, values)
	for i := range out {
		env.ID, env.Stamp, env.Op = event.ID{byte(out[i].Offset + 1)}, hlc.FromMillis(1), event.Put
		out[i].Headers = env.Append(nil)
	}
	return out
}

// TestReadback: the index has a place before the core is told of it, a record inside
// a transaction keeps no key, and the seat is ready at the listed end.
func TestReadback(t *testing.T) {
	back := seat.NewReadback(seat.InputsConfig{Region: 1}, hlc.NewClock(time.Now, hlc.Bounds{}), 0, seat.NoBarrier)
	foreign := entries(0, 0, "f")[0]
	foreign.Transactional = true
	effects := slices.Clone(back.Step(seat.Fetched{Origin: 1, Entries: []seat.Entry{foreign, marker(1)}}))
	if len(effects) != 4 {
		t.Fatalf("effects %#v", effects)
	}
	if x, ok := effects[0].(seat.IndexKeys); !ok || len(x.Copies) != 0 || x.Applied[1].Next != 1 {
		t.Errorf("first %#v", effects[0])
	}
	if x, ok := effects[1].(seat.HandOver); !ok || x.From != 1 || len(x.Places) != 0 {
		t.Errorf("handed over %#v", effects[1])
	}
	if x, ok := effects[2].(seat.ReadPlaces); !ok || len(x.Places) != 1 {
		t.Errorf("then %#v", effects[2])
	}
	if effects := back.Step(seat.EndListed{End: 2}); len(effects) != 0 {
		t.Errorf("ready before the end: %#v", effects)
	}
	effects = slices.Clone(back.Step(seat.BarrierKnown{Offset: 1, Barrier: true}))
	if x := effects[0].(seat.IndexKeys); len(x.Barriers) != 1 || x.Barriers[0].Offset != 1 {
		t.Errorf("barriers %#v", x)
	}
	if effects[len(effects)-1] != (seat.BeReady{}) {
		t.Errorf("not ready at the end: %#v", effects)
	}
}

// TestStampsWithoutGateway: what a producer without a gateway takes for the time moves no
// clock, whatever it is, in its own region or in another. What gateways stamped does.
func TestStampsWithoutGateway(t *testing.T) {
	now := time.Now()
	foreign := entries(0, 0, "abcdefgh")
	for i, ms := range []int64{
		math.MinInt64, -1, now.Unix(), now.UnixMilli() + 3000, now.UnixMilli() + 3600_000, now.UnixMicro(), now.UnixNano(), math.MaxInt64,
	} {
		foreign[i].Timestamp = ms
	}
	ours := event.Envelope{ID: event.ID{1}, Region: 1, Epoch: event.FirstEpoch(1), Stamp: hlc.FromMillis(now.UnixMilli() + 1000), Op: event.Put}
	theirs := ours
	theirs.ID, theirs.Region, theirs.Epoch = event.ID{2}, 2, event.FirstEpoch(2)

	clock := hlc.NewClock(time.Now, hlc.Bounds{})
	back := seat.NewReadback(seat.InputsConfig{Region: 1}, clock, 0, seat.NoBarrier)
	back.Step(seat.Fetched{Origin: 1, Entries: slices.Clone(foreign)})
	if at := clock.Last(); at != 0 {
		t.Errorf("the own log's records without a gateway moved the clock to %v", at)
	}
	stamped := entries(8, 0, "i")
	stamped[0].Headers = ours.Append(nil)
	back.Step(seat.Fetched{Origin: 1, Entries: slices.Clone(stamped)})
	if clock.Last() != ours.Stamp {
		t.Errorf("the clock is at %v and the log at %v", clock.Last(), ours.Stamp)
	}

	b := newBench(t, false, seat.InputsStart{})
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Fetched{Origin: 2, Entries: foreign})
	b.want("a valid", "b valid", "c valid", "d valid", "e valid", "f valid", "g valid", "h valid")
	if at := b.clock.Last(); at != 0 {
		t.Errorf("records without a gateway of another region moved the clock to %v", at)
	}
	stamped[0].Headers = theirs.Append(nil)
	b.step(seat.Fetched{Origin: 2, Entries: slices.Clone(stamped)})
	if b.clock.Last() != theirs.Stamp {
		t.Errorf("the clock is at %v and the other region at %v", b.clock.Last(), theirs.Stamp)
	}
}

// TestInputsWithoutALog: where the own topic lacks the partition, what other regions have is
// folded, whatever a topic of that name had folded before, and a cut finds nothing of the
// own log to revoke.
func TestInputsWithoutALog(t *testing.T) {
	before := event.Vector{1: {Next: 40}, 2: {Next: 3}}
	b := newBenchOf(t, seat.InputsConfig{Region: 1, NoLog: true}, true, seat.InputsStart{Committed: before, Keys: before})
	b.table = &event.ValidityTable{Revision: 1}
	b.table.Logs[1] = event.Tenures{Known: 34, List: []event.Tenure{{Epoch: 17, Ended: true, Cut: []event.Point{{Next: 9}}}}}
	b.table.Logs[2] = event.Tenures{Known: 18, List: []event.Tenure{{Epoch: 18}}}
	b.OpenRemote(2, event.TopicID{2}, 0)
	b.step(seat.Look{})
	b.step(seat.Fetched{Origin: 2, Entries: stamped(3, 18, "de")})
	if b.asked != nil {
		t.Errorf("it asks %#v", b.asked)
	}
	b.want("cuts 1", "d valid", "e valid")
}

// TestReadbackStart: at the lower of index and fold, with the barrier below it.
func TestReadbackStart(t *testing.T) {
	last := func(offset int64) int64 { return offset - 10 }
	none := func(int64) int64 { return seat.NoBarrier }
	for _, x := range []struct {
		applied, committed event.Point
		last               func(int64) int64
		from, barrier      int64
	}{
		{event.Point{Next: 20}, event.Point{Next: 30}, last, 20, 10},
		{event.Point{Next: 40}, event.Point{Next: 30}, none, 30, 5},
		{event.Point{Incarnation: 1, Next: 40}, event.Point{Next: 30}, none, 0, seat.NoBarrier},
	} {
		if from, barrier := seat.ReadbackStart(0, x.applied, x.committed, 5, x.last); from != x.from || barrier != x.barrier {
			t.Errorf("start of %v and %v: %d, %d", x.applied, x.committed, from, barrier)
		}
	}
}

// TestAttempt: a barrier is announced and acknowledged before its transaction ends;
// what fails after the producer id is known may still leave a marker.
func TestAttempt(t *testing.T) {
	bad := errors.New("no answer")
	outcomes := []seat.AttemptEvent{
		seat.ProducerInited{Producer: 7, Epoch: 4}, seat.PartitionAdded{}, seat.BarrierAnnounced{}, seat.TxnEnded{Epoch: 5},
	}
	wants := []seat.AttemptEffect{seat.AddPartition{}, seat.AnnounceBarrier{Producer: 7, Epoch: 4}, seat.EndTxn{}, seat.Finish{}}
	failures := []seat.AttemptEvent{
		seat.ProducerInited{Err: bad}, seat.PartitionAdded{Err: bad}, seat.BarrierAnnounced{Err: bad}, seat.TxnEnded{Err: bad},
	}
	for fails := range len(outcomes) + 1 {
		a, effects := seat.NewAttempt(3, false)
		for i, ok := range outcomes {
			if i == fails {
				effects = a.Step(failures[i])
				break
			}
			if effects = a.Step(ok); fmt.Sprintf("%T", effects[0]) != fmt.Sprintf("%T", wants[i]) {
				t.Fatalf("after %#v: %#v", ok, effects)
			}
		}
		if _, aborts := effects[0].(seat.AbortTxn); aborts != (fails == 2) {
			t.Errorf("step %d fails: %#v", fails, effects)
		}
		switch ev := effects[len(effects)-1].(seat.Finish).Event.(type) {
		case seat.Opened:
			if fails < len(outcomes) || ev.Attempt != 3 || ev.Producer != 7 || !slices.Equal(ev.Epochs, []int16{4, 5}) {
				t.Errorf("step %d fails: %+v", fails, ev)
			}
		case seat.Unopened:
			if fails == len(outcomes) || ev.Attempt != 3 || (ev.Producer == 7) != (fails > 0) || (len(ev.Epochs) == 1) != (fails > 0) {
				t.Errorf("step %d fails: %+v", fails, ev)
			}
		}
	}
}
