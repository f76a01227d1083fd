package ownership_test

import (
	"testing"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/natscluster"
)

// TestIsolatedLeaderRefusesWhatHolds: a leader that was cut off refuses, until it notices,
// a write whose condition holds at the new leader. So a refusal says that something may be
// newer, and never that something is: who is refused reads again (ownership.Conflict).
func TestIsolatedLeaderRefusesWhatHolds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("an election takes 4 to 9 s")
	}
	c := startCluster(t)
	var at [natscluster.Size]*register.Register
	for i := range at {
		at[i], _ = dial(t, c, time.Second, i)
	}
	subject := ownership.RegionSubject("r1")
	write := func(server int, id string, expect uint64) (ownership.Outcome, uint64) {
		return at[server].Write(t.Context(), ownership.Write{ID: id, Subject: subject, Data: []byte(id), Guard: subject, Expect: expect})
	}
	var first uint64
	until(t, patience, "a first record", func() (ok bool) {
		is, seq := write(0, "first", 0)
		first = seq
		return is == ownership.Stored
	})
	old := c.Leader(streamName)
	if old < 0 {
		t.Skip("the leader has changed")
	}
	c.Isolate(old)
	defer c.Rejoin(old)
	var second uint64
	until(t, patience, "a record at the new leader", func() bool {
		is, seq := write((old+1)%natscluster.Size, "second", first)
		second = seq
		return is == ownership.Stored
	})
	switch is, _ := write(old, "third", second); is {
	case ownership.Stored:
		t.Error("a leader that was cut off stores")
	case ownership.Conflict:
		t.Log("refused, although the condition holds at the new leader")
	}
	c.Rejoin(old)
	until(t, patience, "the write, once the server is back", func() bool {
		is, _ := write(old, "fourth", second)
		return is == ownership.Stored
	})
}
