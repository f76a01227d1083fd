package world_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/gateway"
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

// TestForgottenTopic: of a topic that was deleted everything goes when an operator asks
// for it, and only then; a topic of that name starts from nothing.
func TestForgottenTopic(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1})
	us := w.Region("us")
	forget := func(topic string) (result gateway.ForgetResult) {
		t.Helper()
		raw, _, err := us.Client().DoManagement(limit(t), "POST", "/v1/topics/"+topic+"/forget", []byte("{}"), http.Header{"Content-Type": {"application/json"}})
		if err == nil {
			err = client.Decode(raw, &result)
		}
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	if err := us.CreateTopic("plain", 2); err != nil {
		t.Fatal(err)
	}
	us.Put("plain", "a", `1`, world.Idem("k"))
	for topic, why := range map[string]string{"plain": "exists", "flights": "declares", "nothing": "nothing is known", "_geogate.topics": "no name of a local topic"} {
		if r := forget(topic); r.Exit != 3 || !strings.Contains(r.Detail, why) || len(r.Deleted) > 0 {
			t.Errorf("forget %s: %+v", topic, r)
		}
	}
	if err := us.DeleteTopic("plain"); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the deletion to be known", func() error {
		if r := forget("plain"); r.Exit != 0 || !slices.Contains(r.Deleted, "plain.merged") || !slices.Contains(r.Deleted, "_geogate.state.plain") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	w.Eventually("nothing of it to be left", func() error {
		entries, _, err := us.Client().DoManagement(limit(t), "GET", "/v1/topics", nil, nil)
		if err == nil && strings.Contains(string(entries), "plain") {
			err = fmt.Errorf("topics %s", entries)
		}
		for _, x := range status(t, us).Warnings {
			if strings.HasPrefix(x.Subject, "plain") {
				err = fmt.Errorf("warning %s", x)
			}
		}
		return err
	})
	if r := forget("plain"); r.Exit != 3 {
		t.Errorf("forgotten twice: %+v", r)
	}
	if err := us.CreateTopic("plain", 3); err != nil {
		t.Fatal(err)
	}
	var fresh client.Answer
	w.Eventually("a write to the new topic", func() (err error) {
		fresh, err = us.Try(limit(t), client.Write{Topic: "plain", Key: "a", Value: []byte(`1`), Idem: "k"})
		return err
	})
	if fresh.Replayed {
		t.Errorf("the key is known: %s", fresh.Raw)
	}
	w.Eventually("the new view", func() error {
		all, err := us.Records("plain", "merged")
		if err == nil && (len(all) != 1 || all[0].Dot != fresh.Dot) {
			err = fmt.Errorf("shows %+v", all)
		}
		return err
	})
}

// Keys do not go to partitions that a topic gets while it is in use: they would move to
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
		if !warns(st.Warnings, warning.PartitionsUneven, "github", "spreads keys over the first 2") {
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
