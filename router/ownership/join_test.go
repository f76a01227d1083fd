package ownership

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// TestJoin: epochs become one only where nobody could judge a record otherwise by it.
func TestJoin(t *testing.T) {
	ended := func(owner string, epoch event.Epoch, start, cut []Extent) Tenure {
		return Tenure{Epoch: epoch, Owner: owner, Start: start, Ended: true, Cut: cut}
	}
	at := func(offsets ...int64) []Extent { return []Extent{extent("t", 0, offsets...)} }
	judged := func(from, to int64) []JudgedLog {
		return []JudgedLog{{Topic: "t", From: event.Point{Next: from}, To: event.Point{Next: to}}}
	}
	eu := func(epoch event.Epoch, start, cut []Extent) Tenure { return ended("eu", epoch, start, cut) }
	open := Tenure{Epoch: 82, Owner: "eu", Start: at(30)}
	for name, c := range map[string]struct {
		history []Tenure
		logs    []JudgedLog
		want    []event.Epoch // of what is left; the first of joined ones after it
	}{
		"follow each other":      {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), open}, judged(0, 20), []event.Epoch{34, 18, 82, 0}},
		"three":                  {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), eu(50, at(20), at(30)), open}, judged(0, 30), []event.Epoch{50, 18, 82, 0}},
		"the rest later":         {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), eu(50, at(20), at(30)), open}, judged(0, 20), []event.Epoch{34, 18, 50, 0, 82, 0}},
		"an orphan before":       {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), eu(50, at(20), at(30)), open}, judged(10, 30), []event.Epoch{18, 0, 50, 34, 82, 0}},
		"an orphan inside":       {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), open}, judged(11, 20), []event.Epoch{18, 0, 34, 0, 82, 0}},
		"a gap":                  {[]Tenure{eu(18, nil, at(10)), eu(34, at(11), at(20)), open}, judged(0, 20), []event.Epoch{18, 0, 34, 0, 82, 0}},
		"not judged":             {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), open}, judged(0, 19), []event.Epoch{18, 0, 34, 0, 82, 0}},
		"nothing is known":       {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), open}, nil, []event.Epoch{18, 0, 34, 0, 82, 0}},
		"a partition is missing": {[]Tenure{eu(18, nil, at(10, 1)), eu(34, at(10, 1), at(20, 2)), open}, judged(0, 20), []event.Epoch{18, 0, 34, 0, 82, 0}},
		"a new topic has orphans": {
			[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20)), open},
			append(judged(0, 20), JudgedLog{Topic: "new", From: event.Point{Next: 3}, To: event.Point{Next: 9}}),
			[]event.Epoch{18, 0, 34, 0, 82, 0},
		},
		"a topic was made again": {
			[]Tenure{eu(18, nil, at(10)), eu(34, []Extent{extent("t", 1, 4)}, []Extent{extent("t", 1, 20)}), open},
			[]JudgedLog{{Topic: "t", To: event.Point{Incarnation: 1, Next: 20}}},
			[]event.Epoch{18, 0, 34, 0, 82, 0},
		},
		"another owner between": {
			[]Tenure{eu(18, nil, at(10)), ended("us", 33, at(1), at(5)), eu(34, at(10), at(20)), open},
			judged(0, 20),
			[]event.Epoch{33, 0, 34, 18, 82, 0},
		},
		"another owner's cut leaves something out": {
			[]Tenure{ended("us", 17, nil, at(-1, 7)), eu(18, nil, at(10)), ended("us", 33, at(1, 7), at(5, 7)), eu(34, at(10), at(20)), open},
			judged(0, 20),
			[]event.Epoch{17, 0, 18, 0, 33, 0, 34, 0, 82, 0},
		},
		"left out by the cut, to the end of the second": {
			[]Tenure{eu(18, nil, nil), eu(34, at(10), nil), open}, judged(0, 30), []event.Epoch{34, 18, 82, 0},
		},
		"left out by the cut, and not judged to the end of the second": {
			[]Tenure{eu(18, nil, nil), eu(34, at(10), nil), open}, judged(0, 20), []event.Epoch{18, 0, 34, 0, 82, 0},
		},
		"the last": {[]Tenure{eu(18, nil, at(10)), eu(34, at(10), at(20))}, judged(0, 20), []event.Epoch{18, 0, 34, 0}},
	} {
		before := encode(c.history)
		got := join(c.history, "eu", c.logs)
		var epochs []event.Epoch
		for _, e := range got {
			epochs = append(epochs, e.Epoch, e.First)
		}
		if string(encode(epochs)) != string(encode(c.want)) {
			t.Errorf("%s: %v, want %v", name, epochs, c.want)
		}
		if string(encode(c.history)) != string(before) {
			t.Errorf("%s: the history itself was changed", name)
		}
	}
}

// TestJoinedHistories: a repair takes a history with joined epochs and one in which they are
// still apart for the same, and finds where they contradict each other.
func TestJoinedHistories(t *testing.T) {
	at := func(offset int64) []Extent { return []Extent{extent("t", 0, offset)} }
	apart := []Tenure{
		{Epoch: 18, Owner: "eu", Ended: true, Cut: at(10)},
		{Epoch: 34, Owner: "eu", Start: at(10), Ended: true, Cut: at(20)},
		{Epoch: 50, Owner: "eu", Start: at(20)},
	}
	joined := []Tenure{{First: 18, Epoch: 34, Owner: "eu", Ended: true, Cut: at(20)}, {Epoch: 50, Owner: "eu", Start: at(20)}}
	for name, pair := range map[string][2][]Tenure{"apart first": {apart, joined}, "joined first": {joined, apart}, "both": {joined, joined}, "apart, earlier": {apart[:1], joined}, "apart, half": {apart[:2], joined}} {
		got, err := joinHistories(pair[0], pair[1])
		if err != nil || !sameHistory(got, joined) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	wrongCut, without := []Tenure{apart[0], {Epoch: 34, Owner: "eu", Start: at(10), Ended: true, Cut: at(21)}, apart[2]}, []Tenure{apart[0], apart[2]}
	for name, other := range map[string][]Tenure{"another cut": wrongCut, "an epoch is missing": without} {
		if got, err := joinHistories(other, joined); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
