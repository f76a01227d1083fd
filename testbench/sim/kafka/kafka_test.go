package kafka_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/sim/kafka"
)

// sched keeps markers until the test wants them written.
type sched struct{ markers []func() }

func (s *sched) Now() time.Duration { return 0 }
func (s *sched) Rand() *rand.Rand   { return rand.New(rand.NewPCG(1, 1)) }

func (s *sched) After(d time.Duration, do func()) {
	if d == markerTime {
		s.markers = append(s.markers, do)
	}
}

func (s *sched) writeMarkers() {
	for _, do := range s.markers {
		do()
	}
	s.markers = nil
}

const markerTime = time.Millisecond

var tp = kafka.TP{Topic: "t"}

func cluster(bumps bool) (*kafka.Cluster, *sched) {
	s := &sched{}
	c := kafka.New(kafka.Config{
		Name: "c", Bumps: bumps, Wall: func() int64 { return 0 }, TxnTimeout: time.Minute,
		Marker: func(*rand.Rand) time.Duration { return markerTime },
	}, s)
	c.Create("t", 2, true)
	return c, s
}

func records(keys ...string) []kafka.Record {
	var out []kafka.Record
	for _, k := range keys {
		out = append(out, kafka.Record{Key: []byte(k), Value: []byte("v")})
	}
	return out
}

func keys(t *testing.T, c *kafka.Cluster, committed bool) string {
	t.Helper()
	got, err := c.Fetch(tp, 0, committed, 100)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, r := range got.Records {
		text += map[kafka.Kind]string{kafka.Data: string(r.Key), kafka.Commit: "+", kafka.Abort: "-"}[r.Kind]
	}
	return text
}

func TestMarkersComeAfterOK(t *testing.T) {
	for _, bumps := range []bool{true, false} {
		c, s := cluster(bumps)
		num, epoch, _ := c.InitProducer("id")
		if err := c.AddPartitions("id", num, epoch, tp); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Produce("id", num, epoch, 0, tp, records("a", "b")); err != nil {
			t.Fatal(err)
		}
		next, err := c.EndTxn("id", num, epoch, true)
		if err != nil || (next == epoch) == bumps {
			t.Fatalf("end: epoch %d after %d, %v", next, epoch, err)
		}
		if got := keys(t, c, true); got != "" {
			t.Errorf("committed before the marker: %q", got)
		}
		if _, _, err := c.InitProducer("id"); !errors.Is(err, kafka.ErrConcurrent) {
			t.Errorf("init before the marker: %v", err)
		}
		if !c.MarkersMissing() {
			t.Error("no marker is said to be missing before it is written")
		}
		s.writeMarkers()
		if c.MarkersMissing() {
			t.Error("a marker is said to be missing though all are written")
		}
		if got := keys(t, c, true); got != "ab+" {
			t.Errorf("committed: %q", got)
		}
		if again, err := c.EndTxn("id", num, epoch, true); err != nil || again != next {
			t.Errorf("end repeated: %d, %v", again, err)
		}
	}
}

func TestInitAbortsAndFences(t *testing.T) {
	c, s := cluster(true)
	num, epoch, _ := c.InitProducer("id")
	if _, err := c.Produce("id", num, epoch, 0, tp, records("a")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.InitProducer("id"); !errors.Is(err, kafka.ErrConcurrent) {
		t.Fatalf("init over an open transaction: %v", err)
	}
	s.writeMarkers()
	num2, epoch2, err := c.InitProducer("id")
	if err != nil || num2 != num || epoch2 != epoch+2 {
		t.Fatalf("init: %d %d, %v", num2, epoch2, err)
	}
	if got, all := keys(t, c, true), keys(t, c, false); got != "-" || all != "a-" {
		t.Errorf("log: committed %q, all %q", got, all)
	}
	if _, err := c.Produce("id", num, epoch, 1, tp, records("z")); !errors.Is(err, kafka.ErrFenced) {
		t.Errorf("zombie's produce: %v", err)
	}
	if _, err := c.EndTxn("id", num, epoch, true); !errors.Is(err, kafka.ErrFenced) {
		t.Errorf("zombie's end: %v", err)
	}
}

func TestSequences(t *testing.T) {
	c, _ := cluster(true)
	num, _, _ := c.InitProducer("")
	first, _ := c.Produce("", num, 0, 0, tp, records("a", "b"))
	again, err := c.Produce("", num, 0, 0, tp, records("a", "b"))
	if err != nil || again != first || keys(t, c, false) != "ab" {
		t.Errorf("a repeated batch: base %d, %v, log %q", again, err, keys(t, c, false))
	}
	if _, err := c.Produce("", num, 0, 5, tp, records("x")); !errors.Is(err, kafka.ErrSequence) {
		t.Errorf("a gap in the sequence: %v", err)
	}
}

func TestCompactKeepsNewestAndEnd(t *testing.T) {
	c, _ := cluster(true)
	num, _, _ := c.InitProducer("")
	_, _ = c.Produce("", num, 0, 0, tp, records("a", "b", "a", "c", "a"))
	c.Compact(tp, false)
	if got := keys(t, c, false); got != "bca" {
		t.Errorf("compacted: %q", got)
	}
	if end := c.List(tp, false); end != 5 {
		t.Errorf("end %d", end)
	}
}

func TestTruncationShowsInEpochs(t *testing.T) {
	c, _ := cluster(true)
	num, _, _ := c.InitProducer("")
	_, _ = c.Produce("", num, 0, 0, tp, records("a", "b", "c"))
	c.Truncate(tp, 1)
	other, _, _ := c.InitProducer("")
	_, _ = c.Produce("", other, 0, 0, tp, records("x", "y", "z"))
	if got := keys(t, c, false); got != "axyz" {
		t.Errorf("log %q", got)
	}
	if end := c.EndOfEpoch(tp, 0); end != 1 {
		t.Errorf("epoch 0 ends at %d", end)
	}
	if end := c.EndOfEpoch(tp, 1); end != 4 || c.LeaderEpoch(tp) != 1 {
		t.Errorf("epoch %d ends at %d", c.LeaderEpoch(tp), end)
	}
}
