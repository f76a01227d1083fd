package world_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// TestNativeRecordsWhileFenced: what a native producer writes to a fenced region is in no
// view, then an orphan for good; status says both, and where. Written again as the
// operators' guide says, each is in every view once, also if the list is done twice.
func TestNativeRecordsWhileFenced(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	want := map[string]bool{"before": true}
	us.Put(github, "before", `1`, world.Idem("before"))
	shows(t, w, github, want)
	fence(t, eu, "repos/us", 0)

	const lost = 3
	for i := range lost {
		rec := &kgo.Record{Topic: github, Partition: 1, Key: fmt.Append(nil, "native", i), Value: fmt.Append(nil, i)}
		if err := us.Produce(limit(t), rec); err != nil {
			t.Fatal(err)
		}
	}
	awaitsWarning(t, w, "us", warning.WaitsForRegister, github+"/1", "in us past the cut of repos/us, which nobody owns")
	shows(t, w, github, want)

	unfence(t, eu, "repos/us")
	writesAgain(t, w, us, client.Write{Topic: github, Key: "after", Value: []byte(`1`), Idem: "after"})
	want["after"] = true
	awaitsWarning(t, w, "us", warning.NativeOrphans, github+"/1", fmt.Sprint(lost, " records that came without a gateway while repos/us was fenced"))
	metrics, _, err := us.Client().DoManagement(limit(t), http.MethodGet, "/metrics", nil, nil)
	if err != nil || !containsLine(metrics, fmt.Sprintf("geogate_fold_native_orphans_total{topic=%q} %d", github, lost)) {
		t.Errorf("the metric is not %d: %v", lost, err)
	}
	shows(t, w, github, want)
	st, err := eu.Status(limit(t))
	if err != nil || warns(st.Warnings, warning.NativeOrphans, "", "") {
		t.Errorf("the region whose records they are not warns of them: %v, %v", st.Warnings, err)
	}

	orphans, err := us.Orphans("repos/us")
	if err != nil || len(orphans) != lost {
		t.Fatalf("orphans %+v: %v", orphans, err)
	}
	for range 2 { // as after a failure in the middle
		for i, o := range orphans {
			if o.ID != nil || o.Epoch != nil {
				t.Errorf("orphan %s has id %v and epoch %v", o.Dot, o.ID, o.Epoch)
			}
			us.Put(o.Topic, o.Key.Text(), fmt.Sprint(i), world.Idem(o.Dot))
			want[o.Key.Text()] = true
		}
	}
	shows(t, w, github, want)
}

// containsLine tells whether a text has a line.
func containsLine(text []byte, line string) bool {
	return bytes.Contains(append([]byte("\n"), text...), []byte("\n"+line+"\n"))
}
