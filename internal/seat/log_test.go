package seat_test

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

func TestLogVerdicts(t *testing.T) {
	record := func(offset, barrier int64, inc uint16) *event.Event {
		return &event.Event{
			Envelope: event.Envelope{Region: 1, Incarnation: inc, Barrier: barrier},
			At:       event.Dot{Region: 1, Incarnation: 2, Offset: offset}, Stamped: true,
		}
	}
	l := seat.NewLog(1, 2, seat.NoBarrier)
	check := func(name string, ev *event.Event, err error, want judged.Verdict) {
		t.Helper()
		if got := l.Record(ev, err); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	check("under a barrier that this reader cannot know", record(5, 3, 2), nil, judged.Valid)
	l.Marker(6, true)
	check("under the last barrier", record(7, 6, 2), nil, judged.Valid)
	check("under an earlier one", record(7, 3, 2), nil, judged.Void)
	l.Marker(8, false)
	check("behind a marker that is no barrier", record(9, 6, 2), nil, judged.Valid)
	check("its barrier at its own place", record(9, 9, 2), nil, judged.Void)
	check("its barrier behind it", record(9, 12, 2), nil, judged.Void)
	check("of another incarnation", record(9, 6, 1), nil, judged.Void)
	check("broken envelope", record(9, 3, 2), event.ErrMalformed, judged.Quarantined)
	unstamped := &event.Event{At: event.Dot{Region: 1, Incarnation: 2, Offset: 9}}
	check("without a gateway", unstamped, nil, judged.Valid)
	l.Rule = func(ev *event.Event) bool { return ev.Stamped }
	check("without a gateway, where the topic's rule forbids it", unstamped, nil, judged.Quarantined)
	check("void goes before the rule", record(9, 3, 2), nil, judged.Void)
	if l.Last() != 6 {
		t.Errorf("last barrier %d", l.Last())
	}
	l.Begin(3)
	if l.Last() != seat.NoBarrier || l.Incarnation() != 3 {
		t.Errorf("a new incarnation begins with barrier %d of %d", l.Last(), l.Incarnation())
	}
}

func TestOnlyCommitMarkersAsk(t *testing.T) {
	for key, want := range map[string]bool{
		"\x00\x00\x00\x01": true, "\x00\x00\x00\x00": false, "\x00\x00\x00\x02": false, "\x00\x00": false, "": false,
	} {
		if got := seat.Asks([]byte(key)); got != want {
			t.Errorf("Asks(%x) = %v", key, got)
		}
	}
}
