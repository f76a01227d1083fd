package seats

import (
	"testing"
	"time"

	"github.com/geogate/geogate/internal/txn"
)

// TestLagCountsFromWhenARecordWasThere: the age of a lag is that of the oldest record
// that is not folded, not the time since something was.
func TestLagCountsFromWhenARecordWasThere(t *testing.T) {
	at := time.Unix(1e9, 0)
	var l lag
	for _, step := range []struct {
		name        string
		after       time.Duration
		end, folded int64
		records     int64
		oldest      time.Duration
	}{
		{"nothing there", 0, 10, 10, 0, 0},
		{"three more", 2 * time.Second, 13, 10, 3, 0},
		{"they wait", 2 * time.Second, 13, 10, 3, 2 * time.Second},
		{"others come", 2 * time.Second, 20, 10, 10, 4 * time.Second},
		{"the first are folded", 2 * time.Second, 20, 13, 7, 2 * time.Second},
		{"a part of the others", 2 * time.Second, 20, 15, 5, 4 * time.Second},
		{"all, and more than was listed", time.Second, 20, 21, 0, 0},
	} {
		at = at.Add(step.after)
		if l.look(at, step.end, step.folded); l.records != step.records || l.oldest(at) != step.oldest {
			t.Errorf("%s: %d records, the oldest waits for %s, want %d and %s", step.name, l.records, l.oldest(at), step.records, step.oldest)
		}
	}
}

func TestLongLagIsBounded(t *testing.T) {
	at := time.Unix(1e9, 0)
	var l lag
	for i := range int64(10 * mostMarks) {
		l.look(at.Add(time.Duration(i)*time.Second), 1+i, 0)
	}
	last := at.Add(10 * mostMarks * time.Second)
	if len(l.marks) > mostMarks || l.oldest(last) != last.Sub(at) {
		t.Errorf("%d marks, the oldest waits for %s", len(l.marks), l.oldest(last))
	}
	if l.look(last, 10*mostMarks, 10*mostMarks-1); l.records != 1 || l.oldest(last) < 0 {
		t.Errorf("%d records wait for %s", l.records, l.oldest(last))
	}
	if l.look(last, 10*mostMarks, 10*mostMarks); l.records != 0 || l.oldest(last) != 0 || len(l.marks) != 0 {
		t.Errorf("nothing is left, and %d records wait for %s", l.records, l.oldest(last))
	}
}

// TestLagsAreLookedAtWhileSomebodyAsks: what was looked at long ago is not known.
func TestLagsAreLookedAtWhileSomebodyAsks(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := &lags{asked: make(chan struct{}, 1)}
	if l.wanted(now) || l.byTopic(now) != nil || !l.wanted(now) || len(l.asked) != 1 {
		t.Fatal("a question is not noticed, or is answered without a look")
	}
	o := new(originLags)
	o[1].look(now, 5, 2)
	o[2].look(now.Add(time.Second), 9, 8)
	p := &originLags{}
	p[1].look(now.Add(time.Second), 4, 0)
	l.seats, l.lookAt = map[txn.TopicPartition]*originLags{{Topic: "t", Partition: 0}: o, {Topic: "t", Partition: 1}: p}, now.Add(time.Second)
	if got := l.byTopic(now.Add(3 * time.Second)); len(got) != 1 || got["t"] != (topicLag{8, 3}) {
		t.Errorf("%+v", got)
	}
	if got := l.byTopic(now.Add(time.Minute)); got != nil || l.wanted(now.Add(time.Minute+lagAsked)) {
		t.Errorf("an old look counts: %+v", got)
	}
}
