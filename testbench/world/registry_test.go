package world_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// registryOf is what a region's registry of topics says, by name.
func registryOf(ctx context.Context, t *testing.T, r *world.Region) map[string][]byte {
	t.Helper()
	all, err := r.Read(ctx, control.TopicTopics, true)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]byte)
	for _, rec := range all {
		out[string(rec.Key)] = rec.Value
	}
	return out
}

// TestLostRegistry: a region whose registry of topics was deleted finds out again which
// topics are copies of which, and goes on. Until then the link says that it does not know
// what it lacks, and what is only called like a copy is none.
func TestLostRegistry(t *testing.T) {
	t.Parallel()
	lostRegistry(t, world.Start(t, world.Options{}))
}

func lostRegistry(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	us.AwaitReady()
	eu.AwaitReady()
	for i := range 4 {
		us.Put(flights, fmt.Sprint("a", i), `1`)
		eu.Put(flights, fmt.Sprint("b", i), `1`)
	}
	w.Settle(flights)
	before := registryOf(limit(t), t, eu)
	w.Stop("eu")
	w.Kill("us") // its link remembers nothing
	if err := eu.DeleteTopic(control.TopicTopics); err != nil {
		t.Fatal(err)
	}
	if err := eu.CreateTopic("us.strange", 1); err != nil {
		t.Fatal(err)
	}
	w.StartAgain("us")
	w.Eventually("the link to say that it cannot continue the copies", func() error {
		st, err := us.Status(limit(t))
		if err != nil {
			return err
		}
		for _, x := range st.Warnings {
			if x.Code == "TOPIC_BLOCKED" && len(st.Links) == 1 && st.Links[0].LagRecords == nil && st.Links[0].LagSeconds == nil {
				return nil
			}
		}
		return fmt.Errorf("warnings %v, links %+v", st.Warnings, st.Links)
	})
	w.StartAgain("eu")
	written := us.Put(flights, "a0", `2`)
	eu.AwaitReady()
	eu.Put(flights, "b0", `2`)
	w.Settle(flights)
	if e := entity(t, eu, flights, "a0", world.Token(written.Token)); e.Version != written.Dot {
		t.Errorf("the entity is %s, %s was written", e.Version, written.Dot)
	}
	after := registryOf(limit(t), t, eu)
	for name, value := range before {
		if !bytes.Equal(after[name], value) {
			t.Errorf("the record of %s is %x, it was %x", name, after[name], value)
		}
	}
	if x, ok := after["us.strange"]; ok {
		t.Errorf("what is only called like a copy has the record %x", x)
	}
	if _, err := eu.Try(limit(t), client.Write{Topic: "us.strange", Key: "k", Value: []byte(`1`)}); client.Code(err) != "TOPIC_UNKNOWN" {
		t.Errorf("a write to it: %v", err)
	}
}
