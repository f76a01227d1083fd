package seat_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/seat"
)

// produceFault fails produces into the seat's partition.
func (c *cluster) produceFault(err *kerr.Error, count int) *kfake.FaultHandle {
	return c.fake.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: c.topic, Partitions: []int32{partition}, Err: err, Count: count,
	})
}

// eventually polls what no channel tells.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestLostAcknowledgement: the broker appends and answers that it timed out.
func TestLostAcknowledgement(t *testing.T) {
	c := fakeCluster(t)
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	in.mustWrite(1, "a")
	h := c.produceFault(kerr.RequestTimedOut, 3)
	b := in.mustWrite(2, "b")
	if h.Hits() == 0 {
		t.Fatal("no produce was answered with a time-out")
	}
	if again := in.mustWrite(2, "b"); again.At != b.At || !again.Replayed {
		t.Errorf("replay %+v, first %+v", again, b)
	}
	d := in.mustWrite(3, "c")
	if d.At.Offset != b.At.Offset+1 {
		t.Errorf("the record lies twice in the log: %+v then %+v", b, d)
	}
}

// TestProducerIDLost: the broker does not know the producer any more, so nobody
// knows what became of the record. A barrier decides.
func TestProducerIDLost(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	in.mustWrite(1, "a")
	c.produceFault(kerr.OutOfOrderSequenceNumber, 1)
	if _, err := in.write(2, "b"); !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("write whose record never landed: %v", err)
	}
	b := in.mustWrite(2, "b")
	if b.Replayed || b.At.Offset != 3 || in.seat.LastBarrier(3) != 2 {
		t.Errorf("retry %+v behind barrier %d", b, in.seat.LastBarrier(3))
	}
}

// TestRefusedRecord: a broker that says no is believed when it can mean nothing else. What
// was sent just before may not be acknowledged yet: then a barrier decides.
func TestRefusedRecord(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	in.mustWrite(1, "a")
	h := c.produceFault(kerr.MessageTooLarge, -1)
	eventually(t, "a refusal", func() bool {
		_, err := in.write(2, "b")
		if !errors.Is(err, seat.ErrTooLarge) && !errors.Is(err, seat.ErrNotReady) {
			t.Fatalf("refused write: %v", err)
		}
		return errors.Is(err, seat.ErrTooLarge)
	})
	h.Remove()
	if b := in.mustWrite(2, "b"); b.Replayed {
		t.Errorf("retry %+v", b)
	}
}

// TestProduceOutlivesItsRequest: the client goes away, the write goes on.
func TestProduceOutlivesItsRequest(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	in.mustWrite(1, "a")
	h := c.produceFault(kerr.NotLeaderForPartition, -1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := in.seat.Write(ctx, request(2, "b"))
		done <- err
	}()
	eventually(t, "the write to be in flight", func() bool { return in.seat.Status().InFlight == 1 && h.Hits() > 0 })
	if _, err := in.write(2, "b"); !errors.Is(err, seat.ErrInUse) {
		t.Errorf("the same key in flight: %v", err)
	}
	cancel()
	var unknown *seat.OutcomeError
	if err := <-done; !errors.As(err, &unknown) || !unknown.HadKey {
		t.Errorf("write whose client has gone: %v", err)
	}
	if _, err := in.write(2, "b"); !errors.Is(err, seat.ErrInUse) {
		t.Errorf("the same key still in flight: %v", err)
	}
	h.Remove()
	eventually(t, "the true result", func() bool {
		a, err := in.write(2, "b")
		if err != nil && !errors.Is(err, seat.ErrInUse) {
			t.Fatal(err)
		}
		return err == nil && a.Replayed && a.At.Offset == 2
	})
}

func TestDeadline(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder(), func(cfg *seat.Config) { cfg.Timeout = 200 * time.Millisecond }).ready()
	h := c.fake.Fault(kfake.Fault{Topic: control.TopicControl, Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: -1})
	if _, err := in.write(1, "a"); !errors.Is(err, seat.ErrNotReady) || errors.Is(err, seat.ErrOutcomeUnknown) {
		t.Errorf("write that waits for its barrier: %v", err)
	}
	h.Remove()
	eventually(t, "a term", func() bool { _, err := in.write(1, "a"); return err == nil })
	h = c.produceFault(kerr.NotLeaderForPartition, -1)
	if _, err := in.write(0, "b"); !errors.Is(err, seat.ErrOutcomeUnknown) {
		t.Errorf("write that was sent: %v", err)
	}
	drained := make(chan error, 1)
	go func() { drained <- in.seat.Drain(t.Context()) }()
	eventually(t, "draining", func() bool { _, err := in.write(3, "c"); return errors.Is(err, seat.ErrDraining) })
	select {
	case err := <-drained:
		t.Errorf("drained with a write in flight: %v", err)
	default:
	}
	h.Remove()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}
