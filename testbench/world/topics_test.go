package world_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// storedIn writes until the answer names a place in an incarnation of the log.
func storedIn(t *testing.T, w *world.World, r *world.Region, wr client.Write, incarnation string) (a client.Answer) {
	t.Helper()
	w.Eventually("a write to incarnation "+incarnation+" of "+wr.Topic, func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if a, err = r.Try(ctx, wr); err == nil && !strings.HasPrefix(a.Dot, incarnation) {
			err = fmt.Errorf("answer %s", a.Raw)
		}
		return err
	})
	return a
}

// A topic that is deleted and made again under a running gateway is taken up by
// itself, as a new incarnation; keys of the old log are free in it, and the other
// topics go on.
func TestReplacedTopic(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1, Topics: []world.Topic{{Name: "plain", Partitions: 2}}})
	us := w.Region("us")
	key := "a"
	wr := client.Write{Topic: "plain", Key: key, Value: []byte("1"), Idem: "k"}
	first := storedIn(t, w, us, wr, "us/0/")
	if err := us.DeleteTopic("plain"); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the topic to be unknown", func() error {
		_, err := us.Try(limit(t), wr)
		if client.Code(err) != "TOPIC_UNKNOWN" {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	us.Put(flights, "DTW", `1`)
	if err := us.CreateTopic("plain", 2); err != nil {
		t.Fatal(err)
	}
	second := storedIn(t, w, us, wr, "us/1/")
	if second.ID == first.ID {
		t.Fatalf("first %s, second %s", first.Raw, second.Raw)
	}
	again := us.Put("plain", key, `1`, world.Idem("k"))
	if !again.Replayed || again.Raw != second.Raw {
		t.Fatalf("second %s\nagain %s", second.Raw, again.Raw)
	}
	if n := len(of(records(t, us, "plain", "local"), key)); n != 1 {
		t.Fatalf("%d records in the new log", n)
	}
}

// Partitions that a topic gets while it is in use are not used: keys would move to
// where their idempotency keys are not known. That is said, and the instance starts
// with such a topic.
func TestGrownTopic(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1})
	us := w.Region("us")
	first := map[string]client.Answer{}
	for i := range 8 {
		key := fmt.Sprint("k", i)
		first[key] = us.Put(github, key, `1`, world.Idem(key))
	}
	if err := us.GrowTopic(github, 5); err != nil {
		t.Fatal(err)
	}
	told := func() error {
		var st struct{ Warnings []warning.Warning }
		if err := us.Instance(0).Manage(limit(t), "/v1/status", &st); err != nil {
			return err
		}
		if !warns(st.Warnings, warning.PartitionsUnused, "github", "the topic has 5 partitions, of which the first 2 are used") {
			return fmt.Errorf("warnings %v", st.Warnings)
		}
		return nil
	}
	retried := func() {
		t.Helper()
		for key, a := range first {
			if again := us.Put(github, key, `1`, world.Idem(key)); !again.Replayed || again.Raw != a.Raw {
				t.Fatalf("first %s\nagain %s", a.Raw, again.Raw)
			}
		}
	}
	w.Eventually("the warning", told)
	retried()
	w.Stop("us")
	w.StartAgain("us")
	retried()
	w.Eventually("the warning", told)
}
