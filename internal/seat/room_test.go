package seat_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/seat"
)

// readyDesk is a desk in a room that has its term.
func readyDesk(t *testing.T, room *seat.Room) *desk {
	t.Helper()
	d := newDesk(t, seat.CoreConfig{})
	d.room = room
	d.restart(seat.CoreConfig{})
	d.write(1, "first")
	d.openTerm(3)
	d.land(d.ref)
	d.readAll()
	d.wantAnswer(d.ref, int64(len(d.log)-1), false)
	return d
}

// TestRoom: clients whose large writes get no answer and who go away make seats of many
// partitions hold no more than the room, and leave some for the others; whatever becomes of
// the writes, all of it comes back.
func TestRoom(t *testing.T) {
	const most, size = 16 << 20, 200 << 10
	room := seat.NewRoom(most)
	large := strings.Repeat("x", size)
	var desks []*desk
	for range 30 {
		d := readyDesk(t, room)
		desks = append(desks, d)
		for range 100 {
			ref := d.write(0, large)
			if r, answered := d.replies[ref]; answered {
				if !errors.Is(r.Err, seat.ErrOverloaded) {
					t.Fatalf("a write without room: %v", r.Err)
				}
				break
			}
			d.step(seat.Cancel{Ref: ref})
			d.wantErr(ref, seat.ErrOutcomeUnknown)
		}
		if held := room.Held(); held > most {
			t.Fatalf("%d bytes are held, more than %d", held, most)
		}
	}
	if held := room.Held(); held < most/2 {
		t.Errorf("%d bytes of %d are held: the room was not tried", held, most)
	}
	if one := desks[0].core.InFlight(); one*size > most/2 {
		t.Errorf("one partition has %d writes, more than half of the room", one)
	}
	other := readyDesk(t, room) // has stored one write in what was left
	before := other.write(1, "first")
	if r := other.replies[before]; r.Err != nil || !r.Answer.Replayed {
		t.Errorf("a replay beside a full room: %+v", r)
	}
	for i, d := range desks {
		if len(d.sent) == 0 {
			continue // it came when no such write had room
		}
		switch i % 3 {
		case 0: // all were stored
			for ref := range d.sent {
				d.land(ref)
			}
			d.readAll()
		case 1: // none, and a barrier says so
			for ref := range d.sent {
				d.step(seat.Produced{Refs: []uint64{ref}, Err: errors.New("no answer")})
			}
			d.openTerm(4)
		default: // certainly not
			for ref := range d.sent {
				d.step(seat.Produced{Refs: []uint64{ref}, Err: seat.ErrRefused})
			}
		}
		if n := d.core.InFlight(); n > 0 {
			t.Errorf("seat %d holds %d writes", i, n)
		}
	}
	if held := room.Held(); held != 0 {
		t.Errorf("%d bytes are held of no write", held)
	}
}

// TestRoomOfEndedSeat: a seat that ends gives back what it held.
func TestRoomOfEndedSeat(t *testing.T) {
	c := fakeCluster(t)
	room := seat.NewRoom(1 << 20)
	in := c.start("us-0", dedupe.NewMemory(), newFolder(), func(cfg *seat.Config) { cfg.Room, cfg.Timeout = room, 100*time.Millisecond }).ready()
	in.mustWrite(1, "a")
	if held := room.Held(); held != 0 {
		t.Errorf("%d bytes are held of a stored write", held)
	}
	c.produceFault(kerr.NotLeaderForPartition, -1)
	if _, err := in.write(2, "b"); !errors.Is(err, seat.ErrOutcomeUnknown) {
		t.Fatalf("write that was sent: %v", err)
	}
	if room.Held() == 0 {
		t.Error("a write that nobody waits for any more is not held")
	}
	in.stop()
	if held := room.Held(); held != 0 {
		t.Errorf("%d bytes are held by a seat that has ended", held)
	}
}
