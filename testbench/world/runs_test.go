package world_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// TestRunsEndWithTheirLog: when a copy's records are deleted, the runs that describe them are
// deleted from the topic of runs, and from the instance. Copying and reading go on, also
// after starts with the store and without it.
func TestRunsEndWithTheirLog(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{RetentionEvery: 50 * time.Millisecond, Topics: []world.Topic{{Name: "readings", Partitions: 1}}})
	us, eu := w.Region("us"), w.Region("eu")
	put := func(from, n int) {
		t.Helper()
		for i := from; i < from+n; i++ { // a transaction of the link each, more or less
			us.Put("readings", fmt.Sprint("k", i), `1`)
			copied(t, w, us, eu, "readings", fmt.Sprint("k", i))
		}
		w.Settle()
	}
	// described are the ends of the records of runs that are not deleted.
	described := func() (ends []int64) {
		t.Helper()
		recs, err := eu.Read(limit(t), control.RunsFrom("us"), true)
		if err != nil {
			t.Fatal(err)
		}
		last := map[string][]byte{}
		for _, r := range client.Data(recs) {
			last[string(r.Key)] = r.Value
		}
		for key, value := range last {
			_, _, first, err := offsets.ParseKey([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			if value == nil {
				continue
			}
			runs, err := offsets.ParseRuns(first, value)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, runs[len(runs)-1].TargetEnd())
		}
		return ends
	}
	put(0, 10)
	if n := len(described()); n < 5 {
		t.Fatalf("10 records are described by %d records", n)
	}
	trim(t, eu, "us.readings", 4)
	starts, _, err := eu.Starts("us.readings")
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("runs of deleted records to be deleted", func() error {
		below := 0
		for _, end := range described() {
			if end <= starts[0] {
				below++
			}
		}
		if below > 1 { // one is kept: it says that what was before it is gone
			return fmt.Errorf("%d records of runs end below %d", below, starts[0])
		}
		return nil
	})
	put(10, 3)
	for i, stop := range []func(){
		func() { w.Kill("eu") },
		func() { w.Stop("eu"); w.DeleteStore("eu") },
	} {
		stop()
		w.StartAgain("eu")
		eu.AwaitReady()
		put(13+i, 1)
		recs, err := eu.Records("readings", "origin:us")
		if err != nil || len(recs) == 0 || string(recs[len(recs)-1].Key.Data) != fmt.Sprintf("%q", fmt.Sprint("k", 13+i)) {
			t.Fatalf("records of us in eu: %+v, %v", recs, err)
		}
	}
}
