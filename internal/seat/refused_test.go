package seat_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
)

var errRefused = errors.New("beyond a limit")

func refused(from, span int64) seat.Entry {
	return seat.Entry{Offset: from, Span: span, LeaderEpoch: 0, Refused: errRefused}
}

// TestInputsStepOverBatches: a batch that was refused takes its offsets in the origin's
// log, all at once, and nothing else; in a remote topic once all of it is described.
func TestInputsStepOverBatches(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{})
	b.step(seat.Fetched{Origin: 1, Entries: slices.Concat(entries(0, 0, "a"), []seat.Entry{refused(1, 1_000_000)}, entries(1_000_001, 0, "b"))})
	b.indexed = 2_000_000
	b.step(seat.Look{})
	b.want("a valid", " quarantined", "b valid")

	b = newBench(t, false, seat.InputsStart{})
	b.copies.shift, b.copies.described = 10, 4
	b.OpenRemote(2, event.TopicID{9}, 0)
	b.step(seat.Fetched{Origin: 2, Entries: slices.Concat(entries(0, 0, "a"), []seat.Entry{refused(1, 4)}, entries(5, 0, "b"))})
	b.want("a valid")
	b.copies.described = 100
	b.step(seat.Look{})
	b.want(" quarantined", "b valid")
}

// gap is copiesOfEU with a hole in the origin's log after a target offset.
type gap struct {
	*copiesOfEU
	after, hole int64
}

func (g gap) Locate(r event.RegionID, id event.TopicID, p int32, target int64, epoch int32) control.Location {
	loc := g.copiesOfEU.Locate(r, id, p, target, epoch)
	if target > g.after {
		loc.Source += g.hole
	}
	return loc
}

// TestInputsSplitForeignStretches: offsets of a refused batch that come from more than one
// stretch of the origin's log keep their places.
func TestInputsSplitForeignStretches(t *testing.T) {
	b := newBench(t, false, seat.InputsStart{})
	in := seat.NewInputs(seat.InputsConfig{Region: 1}, seat.InputsSurroundings{
		Copies: gap{b.copies, 2, 100}, Clock: hlc.NewClock(time.Now, hlc.Bounds{}), Indexed: func() event.Point { return event.Point{} },
		LastBarrier: func(int64) int64 { return seat.NoBarrier },
	}, seat.InputsStart{Barriers: seat.NoBarriers()})
	in.OpenRemote(2, event.TopicID{9}, 0)
	var nexts []int64
	for _, e := range in.Step(time.Unix(1000, 0), seat.Fetched{Origin: 2, Entries: append([]seat.Entry{refused(0, 6)}, entries(6, 0, "b")...)}) {
		if f, ok := e.(seat.FoldItems); ok {
			for _, it := range f.Items {
				nexts = append(nexts, it.Next.Next)
			}
		}
	}
	if want := []int64{1, 2, 3, 106, 107}; !slices.Equal(nexts, want) {
		t.Errorf("places up to %v, want %v", nexts, want)
	}
}

func TestSeatStepsOverWhatIsBeyondLimits(t *testing.T) { beyondLimits(fakeCluster(t)) }

// beyondLimits writes native records beyond limits: they stop neither writes
// nor the fold, now or after a restart, and are in the status.
func beyondLimits(c *cluster) {
	t := c.t
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	in.mustWrite(1, "a")
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, r := range []*kgo.Record{
		{Key: []byte(strings.Repeat("k", txn.DefaultKey+1)), Value: []byte("long key")},
		{Key: []byte("k"), Headers: make([]kgo.RecordHeader, txn.DefaultRecordHeaders+1), Value: []byte("many headers")},
		{Key: []byte(strings.Repeat("k", txn.DefaultKey)), Value: []byte("fits")},
	} {
		r.Topic, r.Partition = c.topic, partition
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	in.mustWrite(2, "b")
	f.until(t, "both writes", func() bool { return slices.Equal(f.values(1), []string{"a", "fits", "b"}) })
	check := func(in *instance) {
		t.Helper()
		eventually(t, "the status", func() bool {
			st := in.seat.Status()
			return st.Refused[c.topic].Entries == 2 && errors.Is(st.Refused[c.topic].Err, txn.ErrBeyondLimits) && st.Quarantined == 2
		})
	}
	check(in)
	in.stop()
	in = c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	in.mustWrite(3, "c")
	check(in)
}
