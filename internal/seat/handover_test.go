package seat_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// places are judged items of the own log, one for each value.
func places(from int64, values string) (out []seat.Read) {
	for i, v := range values {
		at := from + int64(i)
		out = append(out, seat.Read{Item: judged.Item{
			Origin: 1, Verdict: judged.Valid, Next: event.Point{Next: at + 1}, Barrier: seat.NoBarrier,
			Event: event.Event{At: event.Dot{Region: 1, Offset: at}, Value: []byte(string(v))},
		}})
	}
	return out
}

// stretch is the first and the last offset of places.
func stretch(of []seat.Read) string {
	if len(of) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d-%d", of[0].Item.Next.Next-1, of[len(of)-1].Item.Next.Next-1)
}

func TestHandover(t *testing.T) {
	const none, away = "none", "not here"
	type take struct {
		from int64
		want string
	}
	put := func(from, first int64, values string) seat.HandOver {
		return seat.HandOver{Stretch: seat.Stretch{From: from, Places: places(first, values)}}
	}
	for _, tc := range []struct {
		name  string
		limit int
		puts  []seat.HandOver
		takes []take
	}{
		{"nothing was judged", 1 << 20, nil, []take{{5, none}, {4, away}, {9, none}}},
		{"in order", 1 << 20, []seat.HandOver{put(5, 5, "abc"), put(5, 8, "de")}, []take{{5, "5-7"}, {8, "8-9"}, {10, none}}},
		{"what was folded before is left out", 1 << 20, []seat.HandOver{put(5, 5, "abc"), put(5, 8, "de")}, []take{{9, "9-9"}, {10, none}}},
		{"who is behind reads on", 1 << 20, []seat.HandOver{put(5, 5, "abc")}, []take{{3, away}, {4, away}, {5, "5-7"}}},
		{"a transaction", 1 << 20, []seat.HandOver{put(5, 5, "abc"), put(9, 9, "ef")}, []take{{5, away}, {8, away}, {9, "9-10"}}},
		{"nothing behind a transaction", 1 << 20, []seat.HandOver{put(5, 5, "abc"), put(9, 9, "")}, []take{{8, away}, {9, none}}},
		{"what was dropped is not here", 1000, []seat.HandOver{put(5, 5, "a"), put(5, 6, "b")}, []take{{5, away}, {6, "6-6"}, {7, none}}},
		{"too much at once", 1000, []seat.HandOver{put(5, 5, "abc")}, []take{{5, away}, {7, away}, {8, none}}},
		{"a hole", 1 << 20, []seat.HandOver{put(5, 90, "ab")}, []take{{5, "90-91"}, {92, none}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := seat.NewHandover(5, tc.limit)
			for _, p := range tc.puts {
				h.Put(p)
			}
			for _, k := range tc.takes {
				items, ok := h.Take(k.from)
				got := stretch(items)
				if !ok {
					got = away
				}
				if got != k.want {
					t.Errorf("from %d: %s, want %s", k.from, got, k.want)
				}
			}
		})
	}
}

// TestReadbackHandsOver: what lies above the latest record in a transaction is handed
// over, markers with it; a log that lost its tail begins again above what was read.
func TestReadbackHandsOver(t *testing.T) {
	back := seat.NewReadback(seat.InputsConfig{Region: 1}, hlc.NewClock(time.Now, hlc.Bounds{}), 10, seat.NoBarrier)
	handed := func(es ...seat.Entry) string {
		t.Helper()
		var out []string
		for _, e := range back.Step(seat.Fetched{Origin: 1, Entries: es}) {
			if e, ok := e.(seat.HandOver); ok {
				out = append(out, fmt.Sprintf("%d: %s", e.From, stretch(e.Places)))
			}
		}
		return strings.Join(out, ", ")
	}
	transactional := func(from int64, values string) []seat.Entry {
		es := entries(from, 0, values)
		for i := range es {
			es[i].Transactional = true
		}
		return es
	}
	abort := seat.Entry{Offset: 18, Control: []byte{0, 0, 0, 0}}
	for _, tc := range []struct {
		entries []seat.Entry
		want    string
	}{
		{entries(10, 0, "ab"), "10: 10-11"},
		{slices.Concat(entries(12, 0, "c"), transactional(13, "x"), entries(14, 0, "d"), transactional(15, "y"), entries(16, 0, "ef")), "16: 16-17"},
		{[]seat.Entry{abort}, "16: 18-18"},
		{transactional(19, "z"), "20: none"},
		{entries(30, 0, "g"), "20: 30-30"},
		{entries(25, 0, "hi"), "31: none"},
		{entries(40, 0, "j"), "31: 40-40"},
		{[]seat.Entry{refused(41, 5)}, "31: 45-45"},
	} {
		if got := handed(tc.entries...); got != tc.want {
			t.Errorf("%d-: handed over %q, want %q", tc.entries[0].Offset, got, tc.want)
		}
	}
}

// TestHandoverGivesWhatIsCommitted plays logs of plain and transactional records, of which
// transactions commit, abort or stay open, against a fold that lags now and then: it is
// given what a committed reader of the whole log gives, in the same order and with the
// same verdicts, and nothing above the last stable offset but what no transaction holds up.
func TestHandoverGivesWhatIsCommitted(t *testing.T) {
	taken, read := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		log := drawLog(r, 60)
		cfg := seat.InputsConfig{Region: 1}
		clock := hlc.NewClock(time.Now, hlc.Bounds{})
		back := seat.NewReadback(cfg, clock, 0, seat.NoBarrier)
		handover := seat.NewHandover(0, 600*(1+r.IntN(8)))
		b := newBench(t, false, seat.InputsStart{})
		b.indexed = 0
		at, next := 0, int64(-1) // the Readback has; what reads committed, -1 nobody
		for steps := 0; steps < 10_000 && (at < len(log) || b.LocalNext() < log.stable(len(log))); steps++ {
			if n := min(r.IntN(7), len(log)-at); n > 0 {
				for _, e := range back.Step(seat.Fetched{Origin: 1, Entries: log.entries(at, at+n, nil)}) {
					switch e := e.(type) {
					case seat.IndexKeys:
						b.indexed = e.Applied[1].Next
					case seat.HandOver:
						handover.Put(e)
					}
				}
				at += n
			}
			if !b.Wants(1) || r.IntN(3) == 0 {
				b.step(seat.Look{})
				continue
			}
			from := b.LocalNext()
			if items, ok := handover.Take(from); ok {
				taken, next = taken+len(items), -1
				b.step(seat.Judged{Places: items})
				continue
			}
			next = max(next, from)
			if to := min(log.stable(at), next+int64(r.IntN(5))); next < to {
				b.step(seat.Fetched{Origin: 1, Entries: log.entries(int(next), int(to), log.aborted)})
				read, next = read+1, to
			}
		}
		b.step(seat.Look{})
		var want []string
		for _, e := range log.entries(0, int(log.stable(len(log))), log.aborted) {
			if e.Control == nil {
				want = append(want, string(e.Value)+" valid")
			}
		}
		given := slices.DeleteFunc(b.given, func(s string) bool { return strings.HasPrefix(s, "1 to ") })
		if !slices.Equal(given, want) {
			t.Fatalf("seed %d: the fold was given %q, want %q; log %v", seed, given, want, log)
		}
	}
	if taken < 1000 || read < 1000 {
		t.Errorf("only %d places were handed over and %d stretches read", taken, read)
	}
}

// drawnLog is a log of records, markers and what became of each transaction.
type drawnLog []drawnEntry

type drawnEntry struct {
	txn    int // 0: a plain record
	marker bool
	commit bool
}

func drawLog(r *rand.Rand, n int) (log drawnLog) {
	var open []int
	seldom := 8 << r.IntN(4) // are there transactions
	for next := 1; len(log) < n; {
		switch r.IntN(seldom) {
		case 0:
			open = append(open, next)
			log = append(log, drawnEntry{txn: next})
			next++
		case 1:
			if len(open) > 0 {
				log = append(log, drawnEntry{txn: open[r.IntN(len(open))]})
			}
		case 2:
			if len(open) > 0 {
				i := r.IntN(len(open))
				log = append(log, drawnEntry{txn: open[i], marker: true, commit: r.IntN(2) == 0})
				open = slices.Delete(open, i, i+1)
			}
		default:
			log = append(log, drawnEntry{})
		}
	}
	return log
}

// stable is the last stable offset while the log ends at end.
func (l drawnLog) stable(end int) int64 {
	for i := range l[:end] {
		if e := l[i]; e.txn > 0 && !e.marker && !slices.ContainsFunc(l[i:end], func(x drawnEntry) bool { return x.txn == e.txn && x.marker }) {
			return int64(i)
		}
	}
	return int64(end)
}

func (l drawnLog) aborted(txn int) bool {
	return slices.Contains(l, drawnEntry{txn: txn, marker: true})
}

// entries are those of a stretch, without the records of transactions that leave says.
func (l drawnLog) entries(from, to int, leave func(txn int) bool) (out []seat.Entry) {
	for i := from; i < to; i++ {
		x := l[i]
		e := entries(int64(i), 0, string(rune('a'+i%26)))[0]
		e.Transactional = x.txn > 0
		switch {
		case x.marker: // an abort: nobody asks whether it is a barrier
			e.Control, e.Value = []byte{0, 0, 0, 0}, nil
		case x.txn > 0 && leave != nil && leave(x.txn):
			continue
		}
		out = append(out, e)
	}
	return out
}
