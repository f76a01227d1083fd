package control_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

const slot = 5

func positionRecord(p offsets.Position) (key, value []byte) {
	return offsets.AppendPositionKey(nil, topicB, 3), p.Append(nil)
}

func runsRecord(rs ...offsets.Run) (key, value []byte) {
	return offsets.AppendKey(nil, topicA, 3, rs[0].Target), offsets.AppendRuns(nil, rs)
}

type linksDesk struct {
	t *testing.T
	*control.LinkIndex
}

func (d linksDesk) position(p offsets.Position) {
	d.t.Helper()
	p.Target, p.TargetEpoch, p.SourceEpoch = topicA, max(p.TargetEpoch, 0), -1
	k, v := positionRecord(p)
	if ok, err := d.ApplyPosition(slot, k, v); !ok || err != nil {
		d.t.Fatalf("TakePosition = %v, %v", ok, err)
	}
}

func (d linksDesk) runs(rs ...offsets.Run) {
	d.t.Helper()
	k, v := runsRecord(rs...)
	if err := d.ApplyRuns(k, v); err != nil {
		d.t.Fatal(err)
	}
}

func (d linksDesk) want(target int64, state control.State) control.Location {
	d.t.Helper()
	loc := d.Locate(topicA, 3, target, 0)
	if loc.State != state {
		d.t.Errorf("Locate(%d) = %+v, want state %d", target, loc, state)
	}
	return loc
}

// TestMarkerOrder is the history of that name: the position's transaction is
// visible, its runs are not yet.
func TestMarkerOrder(t *testing.T) {
	d := linksDesk{t, control.NewLinkIndex()}
	d.want(16, control.Pending)
	d.position(offsets.Position{SourceCovered: 20, TargetCovered: 20, Barrier: 4})
	d.RunsReadTo(slot, 1)
	d.want(16, control.Pending)
	listed := d.BeginListing()
	d.want(16, control.Pending)
	listed(map[int32]int64{slot: 2})
	d.want(16, control.Pending)
	d.runs(offsets.Run{Target: 16, Source: 15, Count: 2, Barrier: 4, Barriers: []int64{4}})
	if loc := d.want(17, control.Mapped); loc.Source != 16 || loc.Barrier != 4 {
		t.Errorf("Locate(17) = %+v", loc)
	}
	d.want(18, control.Pending)
	if _, ok := d.Covered(topicA, 3); ok {
		t.Error("covered before the runs were read")
	}
	d.RunsReadTo(slot, 2)
	d.want(18, control.Foreign)
	d.want(20, control.Pending)
	if cov, ok := d.Covered(topicA, 3); !ok || cov != (control.Covered{Source: event.Point{Next: 20}, Barrier: 4, Target: 20}) {
		t.Errorf("Covered = %+v, %v", cov, ok)
	}
}

// TestAListingBeforeThePositionDoesNotCount: the slot is read to an end that was
// listed too early.
func TestAListingBeforeThePositionDoesNotCount(t *testing.T) {
	d := linksDesk{t, control.NewLinkIndex()}
	d.position(offsets.Position{SourceCovered: 5, TargetCovered: 5, Barrier: -1})
	listed := d.BeginListing()
	d.position(offsets.Position{SourceCovered: 20, TargetCovered: 20, Barrier: -1})
	listed(map[int32]int64{slot: 1})
	d.RunsReadTo(slot, 9)
	d.want(4, control.Foreign)
	d.want(16, control.Pending)
	if len(d.SlotsToList()) != 1 {
		t.Errorf("unlisted slots: %v", d.SlotsToList())
	}
	d.BeginListing()(map[int32]int64{slot: 9})
	d.want(16, control.Foreign)
	if len(d.SlotsToList()) != 0 {
		t.Errorf("unlisted slots: %v", d.SlotsToList())
	}
}

func TestLaterLeaderEpochWaits(t *testing.T) {
	d := linksDesk{t, control.NewLinkIndex()}
	d.runs(offsets.Run{Target: 0, Source: 0, Count: 9, Barrier: -1})
	d.position(offsets.Position{SourceCovered: 9, TargetCovered: 9, Barrier: -1, TargetEpoch: 2})
	if loc := d.Locate(topicA, 3, 4, 3); loc.State != control.Pending {
		t.Errorf("a batch of a later leader epoch: %+v", loc)
	}
	for _, epoch := range []int32{-1, 1, 2} {
		if loc := d.Locate(topicA, 3, 4, epoch); loc.State != control.Mapped {
			t.Errorf("epoch %d: %+v", epoch, loc)
		}
	}
}

// TestTruncatedTarget: the link lowers target-covered, cuts its runs, and writes on
// with another difference.
func TestTruncatedTarget(t *testing.T) {
	d := linksDesk{t, control.NewLinkIndex()}
	ready := func() {
		d.BeginListing()(map[int32]int64{slot: 1})
		d.RunsReadTo(slot, 1)
	}
	d.runs(offsets.Run{Target: 0, Source: 0, Count: 6, Barrier: -1})
	d.runs(offsets.Run{Target: 7, Source: 6, Count: 4, Barrier: -1})
	d.position(offsets.Position{SourceCovered: 10, TargetCovered: 12, Barrier: -1})
	ready()
	d.want(8, control.Mapped)
	d.position(offsets.Position{SourceCovered: 5, TargetCovered: 5, Barrier: -1})
	d.want(8, control.Pending)
	d.runs(offsets.Run{Target: 0, Source: 0, Count: 5, Barrier: -1})
	ready()
	d.want(4, control.Mapped)
	d.want(5, control.Pending)
	d.want(8, control.Pending)
	d.runs(offsets.Run{Target: 6, Source: 5, Count: 5, Barrier: -1})
	d.position(offsets.Position{SourceCovered: 10, TargetCovered: 12, Barrier: -1})
	ready()
	d.want(5, control.Foreign)
	if loc := d.want(8, control.Mapped); loc.Source != 7 {
		t.Errorf("Locate(8) = %+v after the truncation", loc)
	}
}

// TestLinksProperty lets a link write transactions into a remote log with foreign
// records in it, their parts becoming visible in any order, and holds every
// verdict on every offset against the truth.
func TestLinksProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := control.NewLinkIndex()
		type txn struct {
			pos  offsets.Position
			runs []offsets.Run
		}
		truth := map[int64]int64{} // target → source; foreign ones are absent
		var txns []txn
		target, source := int64(0), int64(0)
		for range rapid.IntRange(1, 8).Draw(t, "transactions") {
			var x txn
			for range rapid.IntRange(0, 2).Draw(t, "runs") {
				source += rapid.Int64Range(0, 2).Draw(t, "gap")
				r := offsets.Run{Target: target, Source: source, Count: rapid.Int64Range(1, 3).Draw(t, "count"), Barrier: -1}
				for i := range r.Count {
					truth[r.Target+i] = r.Source + i
				}
				target, source = r.TargetEnd()+rapid.Int64Range(0, 2).Draw(t, "foreign"), r.SourceEnd()+1
				x.runs = append(x.runs, r)
			}
			target++ // marker
			x.pos = offsets.Position{SourceCovered: source, TargetCovered: target, Target: topicA, Barrier: -1, TargetEpoch: -1, SourceEpoch: -1}
			txns = append(txns, x)
		}
		posRead, runsRead, runsVisible, visible := 0, 0, 0, 0
		listed := func(map[int32]int64) {}
		for range 200 {
			switch rapid.IntRange(0, 4).Draw(t, "act") {
			case 0:
				runsVisible = min(runsVisible+1, len(txns))
			case 1: // a position is readable only when its transaction has ended
				if visible < len(txns) {
					visible++
				}
			case 2:
				if posRead < visible {
					p := txns[posRead].pos
					k, v := positionRecord(p)
					if ok, err := l.ApplyPosition(slot, k, v); !ok || err != nil {
						t.Fatal(ok, err)
					}
					posRead++
				}
			case 3:
				if runsRead < runsVisible {
					if rs := txns[runsRead].runs; len(rs) > 0 {
						for _, r := range rs { // one record a run: any packing must do
							k, v := runsRecord(r)
							if err := l.ApplyRuns(k, v); err != nil {
								t.Fatal(err)
							}
						}
					}
					runsRead++
					l.RunsReadTo(slot, int64(runsRead))
				}
			case 4:
				// The high watermark shows everything that was written before a
				// visible position, markers or not.
				listed(map[int32]int64{slot: int64(visible)})
				listed = l.BeginListing()
			}
			at := rapid.Int64Range(0, target).Draw(t, "offset")
			loc := l.Locate(topicA, 3, at, -1)
			want, own := truth[at]
			if loc.State == control.Mapped && (!own || loc.Source != want) {
				t.Fatalf("Locate(%d) = %+v, truth %d %v", at, loc, want, own)
			}
			if loc.State == control.Foreign && own {
				t.Fatalf("Locate(%d) = foreign, but it was copied from %d", at, want)
			}
			if cov, ok := l.Covered(topicA, 3); ok {
				for tg := range truth {
					if tg < cov.Target && l.Locate(topicA, 3, tg, -1).State != control.Mapped {
						t.Fatalf("covered to %d, but %d is not mapped", cov.Target, tg)
					}
				}
			}
		}
	})
}

func TestBarriersAbortMarkerAndCompaction(t *testing.T) {
	var b control.BarrierIndex
	m := control.Marker{Topic: topicA, Partition: 3, Producer: 103, Epoch: 4}
	if _, ok := b.Resolve(m, 2); ok {
		t.Error("a verdict before the topic was read to the listed end")
	}
	// The record of an earlier epoch of the same producer was compacted away or
	// not: it must not matter.
	b.Add(control.Barrier{Topic: topicA, Partition: 3, ProducerID: 103, ProducerEpoch: 1})
	b.Add(control.Barrier{Topic: topicA, Partition: 4, ProducerID: 103, ProducerEpoch: 4})
	b.ReadTo(2)
	if v, ok := b.Resolve(m, 2); v || !ok {
		t.Errorf("Resolve = %v, %v for an unknown epoch", v, ok)
	}
	b.Add(control.Barrier{Topic: topicA, Partition: 3, ProducerID: 103, ProducerEpoch: 6})
	for epoch, want := range map[int16]bool{6: true, 7: true, 8: false, 5: false} {
		m.Epoch = epoch
		b.ReadTo(3)
		if v, ok := b.Resolve(m, 3); v != want || !ok {
			t.Errorf("marker of epoch %d: %v, %v", epoch, v, ok)
		}
	}
}
