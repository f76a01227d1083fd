package world_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// The first read of a topic that nobody has declared shows what native producers
// have put there: it is not empty because the fold has only just started.
func TestFirstReadOfNativeRecords(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1})
	us := w.Region("us")
	for i := range 5 { // a new topic each time: only the first read can be wrong
		topic := fmt.Sprint("native", i)
		if err := us.CreateTopic(topic, 3); err != nil {
			t.Fatal(err)
		}
		for k := range 30 {
			if err := us.Produce(limit(t), &kgo.Record{Topic: topic, Key: fmt.Append(nil, k), Value: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		var page client.Page
		w.Eventually("the first answer", func() (err error) { // which may be that the log is still being read
			page, err = us.Page(limit(t), topic, "merged", "", 1000)
			return err
		})
		if len(page.Records) != 30 || page.Records[0].ID != nil {
			t.Fatalf("the first read shows %d records, end %v", len(page.Records), page.End)
		}
	}
}

// Native records on a topic of entities are not folded, and status says so.
func TestNativeRecordsOfEntities(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1, Unlinked: true})
	us := w.Region("us")
	if err := us.Produce(limit(t), &kgo.Record{Topic: flights, Key: []byte("DTW"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the warning", func() error {
		st, err := us.Status(limit(t))
		if err == nil && !warns(st.Warnings, warning.Quarantined, "flights/", "1 local records are in no view: only a gateway may write a topic of entities") {
			err = fmt.Errorf("warnings %v", st.Warnings)
		}
		return err
	})
	if _, err := us.Entity(flights, "DTW"); client.Code(err) != "ENTITY_UNKNOWN" {
		t.Fatalf("got %v", err)
	}
}

// refuses demands that the instance ends with ErrRefused, and why.
func refuses(w *world.World, r *world.Region, why string) {
	w.Eventually("the refusal", func() error {
		if err := r.Instance(0).Ended(); !errors.Is(err, node.ErrRefused) || !strings.Contains(err.Error(), why) {
			return fmt.Errorf("ended with %v", err)
		}
		return nil
	})
}

// A declared topic with another number of partitions is a start refused.
func TestDeclaredTopicThatDiffers(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1, Topics: []world.Topic{{Name: flights, Partitions: 3}}})
	refuses(w, w.Region("us"), "it has 3 partitions and must have 2")
}

// A topic's kind cannot change, and the refusal says that this is what it is.
func TestChangedKind(t *testing.T) {
	t.Parallel()
	changed := filepath.Join(t.TempDir(), "changed.yaml")
	policy := strings.Replace(world.DefaultOwnership, `["github"], kind: events, mode: multi_writer`, `["github"], kind: entity, mode: multi_writer, policy: lww`, 1)
	if err := os.WriteFile(changed, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	change := false
	w := world.Start(t, world.Options{Regions: 1, Configure: func(c *node.Config) {
		if change {
			c.Policies.Ownership = changed
		}
	}})
	us := w.Region("us")
	us.Put(github, "a", `1`)
	w.Stop("us")
	change = true
	w.StartAgain("us")
	refuses(w, us, "it was of kind events before (cleanup.policy of github.merged is delete) and the policy now says entity")
}

// A region's id cannot change: under another one it would take its own events for
// somebody else's.
func TestChangedRegionID(t *testing.T) {
	t.Parallel()
	change := false
	w := world.Start(t, world.Options{Regions: 1, Configure: func(c *node.Config) {
		r := c.Regions["us"]
		if r.ID = 1; change {
			r.ID = 7
		}
		c.Regions["us"] = r
	}})
	us := w.Region("us")
	us.Put(github, "a", `1`)
	w.Stop("us")
	change = true
	w.StartAgain("us")
	refuses(w, us, "belongs to the region with id 1, and the configuration gives this region id 7")
}
