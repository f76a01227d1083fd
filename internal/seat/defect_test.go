package seat_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// panickingIndex panics where the core asks it.
type panickingIndex struct{ seat.KeyIndex }

func (panickingIndex) FindAll([]event.IdempotencyKey, event.Stamp, *event.ValidityTable) ([]*event.Copy, error) {
	panic("no such key can be")
}

// panickingFolder panics where the inputs hand over.
type panickingFolder struct{ seat.Folder }

func (panickingFolder) Fold(context.Context, []judged.Item) error {
	var none []judged.Item
	_ = none[len(none)]
	return nil
}

// TestPanicEndsTheSeatAlone: a panic in any of a seat's goroutines, or in a caller's that
// runs the core, is the seat's error; no lock stays held and no write waits.
func TestPanicEndsTheSeatAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		tune  func(*seat.Config)
		wants error // of the write, nil for any
	}{
		{"core", func(c *seat.Config) { c.Index = panickingIndex{c.Index} }, seat.ErrHeld},
		{"inputs", func(c *seat.Config) { c.Folder = panickingFolder{c.Folder} }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := fakeCluster(t)
			in := c.start("us-0", dedupe.NewMemory(), newFolder(), tt.tune).ready()
			if _, err := in.write(1, "a"); tt.wants != nil && !errors.Is(err, tt.wants) {
				t.Errorf("the write is answered %v", err)
			}
			var d *defect.Error
			select {
			case err := <-in.ended:
				if !errors.As(err, &d) {
					t.Fatalf("the seat ends with %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the seat does not end")
			}
			if err := in.seat.Admits(); err == nil || tt.wants != nil && !errors.Is(err, tt.wants) {
				t.Errorf("afterwards it admits writes: %v", err)
			}
			if st := in.seat.Status(); st.Superseded {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// TestAdmits: what a write would be answered is known before it comes.
func TestAdmits(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder())
	if err := in.seat.Admits(); err != nil && !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("a seat that starts: %v", err)
	}
	in.ready()
	if err := in.seat.Admits(); err != nil {
		t.Errorf("a seat that is ready: %v", err)
	}
	if err := in.seat.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := in.seat.Admits(); !errors.Is(err, seat.ErrDraining) {
		t.Errorf("a seat that drains: %v", err)
	}
	in.stop()
	if err := in.seat.Admits(); !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("a seat that has ended: %v", err)
	}
}
