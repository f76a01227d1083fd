package world_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// incomplete is the header with which an answer says what it lacks.
const incomplete = "Geogate-Incomplete"

// allKeys reads a merged view to its end and gives the keys of its records, and what the
// first page says it lacks.
func allKeys(ctx context.Context, r *world.Region, topic string) (keys map[string]int, lacks string, err error) {
	keys = map[string]int{}
	for from, end := "earliest", false; !end; {
		raw, h, err := r.Client().Do(ctx, http.MethodGet, "/v1/topics/"+topic+"/records?view=merged&limit=1000&from="+from, nil, nil)
		if err != nil {
			return nil, "", err
		}
		var p client.Page
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, "", err
		}
		for _, x := range p.Records {
			keys[x.Key.Text()]++
		}
		lacks, from, end = h.Get(incomplete), p.Next, p.End
	}
	return keys, lacks, nil
}

// shows waits until both regions show each key once and say that nothing is lacking.
func shows(t *testing.T, w *world.World, topic string, want map[string]bool) {
	t.Helper()
	for _, name := range []string{"us", "eu"} {
		w.Eventually(fmt.Sprintf("%d records in %s", len(want), name), func() error {
			keys, lacks, err := allKeys(limit(t), w.Region(name), topic)
			if err != nil {
				return err
			}
			for k := range want {
				if keys[k] != 1 {
					return fmt.Errorf("key %s is shown %d times", k, keys[k])
				}
			}
			if len(keys) != len(want) || lacks != "" {
				return fmt.Errorf("%d keys, lacks %q", len(keys), lacks)
			}
			return nil
		})
	}
}

// awaitsWarning waits until a region's status has a warning.
func awaitsWarning(t *testing.T, w *world.World, region string, code warning.Code, subject, detail string) {
	t.Helper()
	w.Eventually(fmt.Sprintf("%s in %s", code, region), func() error {
		st, err := w.Region(region).Status(limit(t))
		if err == nil && !warns(st.Warnings, code, subject, detail) {
			err = fmt.Errorf("warnings %v", st.Warnings)
		}
		return err
	})
}

// A topic of events that has 2 partitions in one region and 3 in the other is whole in the
// views of both, native records included; what differs is said, and not once a second in
// the log. Restarts without stores change nothing.
func TestUnevenTopicOfEvents(t *testing.T) {
	t.Parallel()
	const topic = "uneven"
	w := world.Start(t, world.Options{Register: true, Topics: []world.Topic{{Name: topic, Partitions: 2, Region: "us"}, {Name: topic, Partitions: 3, Region: "eu"}}})
	us, eu := w.Region("us"), w.Region("eu")
	want := map[string]bool{}
	round := func(name string) {
		t.Helper()
		for i := range 12 {
			for _, r := range []*world.Region{us, eu} {
				key := fmt.Sprint(name, r.Name, i)
				r.Put(topic, key, `1`, world.Idem(key))
				want[key] = true
			}
		}
		for p := range int32(3) {
			key := fmt.Sprint(name, "native", p)
			if err := eu.Produce(limit(t), &kgo.Record{Topic: topic, Partition: p, Key: []byte(key), Value: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			want[key] = true
		}
		shows(t, w, topic, want)
	}
	round("a")
	awaitsWarning(t, w, "us", warning.PartitionsUneven, topic, "the topic has 2 partitions in us and 3 in eu")
	awaitsWarning(t, w, "eu", warning.PartitionsUneven, topic, "the topic has 3 partitions in eu and 2 in us")

	// A token of a partition that the other region has not is understood.
	var a client.Answer
	for i := 0; a.Partition != 2; i++ {
		key := fmt.Sprint("token", i)
		a = eu.Put(topic, key, `1`)
		want[key] = true
	}
	w.Eventually("the read with the token", func() error {
		raw, _, err := us.Client().Do(limit(t), http.MethodGet, "/v1/topics/"+topic+"/records?view=merged&limit=1000&wait=10s", nil, http.Header{"Geogate-Token": {a.Token}})
		var p client.Page
		if err == nil {
			err = json.Unmarshal(raw, &p)
		}
		for _, x := range p.Records {
			if x.Dot == a.Dot {
				return nil
			}
		}
		if err == nil {
			t.Errorf("a read with the token of %s lacks it", a.Dot)
		}
		return err
	})

	for _, r := range []*world.Region{us, eu} {
		w.Kill(r.Name)
		w.DeleteStore(r.Name)
		w.StartAgain(r.Name)
	}
	round("b")
	if n := w.Logged("cannot read a remote partition"); n > 20 {
		t.Errorf("%d lines in the logs about partitions that a region does not have", n)
	}
}

// A topic of events grows in one region while both use it: the new partitions are in both
// views at once, also of readers that follow, and take writes where they are named. Keys
// stay where they are, so that retries are recognised.
func TestTopicOfEventsGrows(t *testing.T) {
	t.Parallel()
	const topic = "grows"
	w := world.Start(t, world.Options{Register: true, Topics: []world.Topic{{Name: topic, Partitions: 2}}})
	us, eu := w.Region("us"), w.Region("eu")
	want, first := map[string]bool{}, map[string]client.Answer{}
	for i := range 8 {
		for _, r := range []*world.Region{us, eu} {
			key := fmt.Sprint(r.Name, i)
			first[key] = r.Put(topic, key, `1`, world.Idem(key))
			want[key] = true
		}
	}
	shows(t, w, topic, want)
	ctx := limit(t)
	followed := map[string]*client.Stream{}
	for _, r := range []*world.Region{us, eu} {
		s, err := r.Client().Follow(ctx, topic, "latest", "10s")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		followed[r.Name] = s
	}

	if err := us.GrowTopic(topic, 5); err != nil {
		t.Fatal(err)
	}
	const added = 3
	for p := range int32(added) {
		key := fmt.Sprint("native", p)
		w.Eventually("a record in a new partition", func() error {
			return us.Produce(limit(t), &kgo.Record{Topic: topic, Partition: 2 + p, Key: []byte(key), Value: []byte("1")})
		})
		want[key] = true
	}
	shows(t, w, topic, want)
	for name, s := range followed {
		seen, err := s.Take(added)
		if err != nil || len(seen) != added {
			t.Fatalf("who follows in %s sees %d of %d records in new partitions: %v", name, len(seen), added, err)
		}
	}
	awaitsWarning(t, w, "eu", warning.PartitionsUneven, topic, "the topic has 2 partitions in eu and 5 in us")
	awaitsWarning(t, w, "us", warning.PartitionsUneven, topic, "spreads keys over the first 2")

	w.Eventually("a write to a new partition", func() error {
		body := []byte(`{"key":{"type":"string","data":"named"},"value":{"type":"json","data":1},"partition":4,"idempotency_key":"named"}`)
		_, _, err := us.Client().Do(limit(t), http.MethodPost, "/v1/topics/"+topic+"/records", body, http.Header{"Content-Type": {"application/json"}})
		return err
	})
	want["named"] = true
	retried := func() {
		t.Helper()
		for _, r := range []*world.Region{us, eu} {
			for i := range 8 {
				key := fmt.Sprint(r.Name, i)
				if again := r.Put(topic, key, `1`, world.Idem(key)); !again.Replayed || again.Raw != first[key].Raw {
					t.Fatalf("first %s\nagain %s", first[key].Raw, again.Raw)
				}
			}
		}
		shows(t, w, topic, want)
	}
	retried()
	for _, r := range []*world.Region{us, eu} {
		w.Stop(r.Name)
		w.StartAgain(r.Name)
	}
	retried()

	// The other region follows, and what it only folded it writes from now on.
	if err := eu.GrowTopic(topic, 5); err != nil {
		t.Fatal(err)
	}
	w.Eventually("a write to a partition that was only folded", func() error {
		body := []byte(`{"key":{"type":"string","data":"late"},"value":{"type":"json","data":1},"partition":4,"idempotency_key":"late"}`)
		_, _, err := eu.Client().Do(limit(t), http.MethodPost, "/v1/topics/"+topic+"/records", body, http.Header{"Content-Type": {"application/json"}})
		return err
	})
	want["late"] = true
	shows(t, w, topic, want)
}

// A topic of entities whose regions have different numbers of partitions takes no writes
// in any of them, says why, and still answers what is known, saying what may be lacking.
func TestUnevenTopicOfEntities(t *testing.T) {
	t.Parallel()
	const topic = "things.a"
	policy := world.DefaultOwnership + `  - {name: things, match: ["things.*"], kind: entity, mode: multi_writer, policy: lww}
`
	w := world.Start(t, world.Options{Ownership: policy, Topics: []world.Topic{{Name: topic, Partitions: 2, Region: "us"}}})
	us, eu := w.Region("us"), w.Region("eu")
	us.Put(topic, "k", `1`)
	if err := eu.CreateTopic(topic, 3); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*world.Region{us, eu} {
		awaitsWarning(t, w, r.Name, warning.PartitionsDiffer, topic, "so the topic is held")
		w.Eventually("the refusal in "+r.Name, func() error {
			_, err := r.Try(limit(t), client.Write{Topic: topic, Key: "other", Value: []byte(`1`)})
			if client.Code(err) == "PARTITION_HELD" && !client.MayRetry(err) {
				return nil
			}
			return fmt.Errorf("a write is answered: %v", err)
		})
	}
	raw, h, err := us.Client().Do(limit(t), http.MethodGet, "/v1/topics/"+topic+"/entities/k", nil, nil)
	if err != nil || h.Get(incomplete) == "" {
		t.Errorf("the entity is answered %s, lacking %q: %v", raw, h.Get(incomplete), err)
	}
	if _, err := eu.Entity(topic, "k"); client.Code(err) != "ENTITY_UNKNOWN" {
		t.Errorf("the entity of the other region is answered: %v", err)
	}
	keys, lacks, err := allKeys(limit(t), us, topic)
	if err != nil || keys["k"] != 1 || lacks != topic+"/0, "+topic+"/1" {
		t.Errorf("records %v, lacking %q: %v", keys, lacks, err)
	}
}

// A region that is away is fenced by one whose own log has fewer partitions: the cut is
// what that one has folded, in every partition, so nothing that it shows is taken back, and
// the region goes on where it was.
func TestFenceOfUnevenTopic(t *testing.T) {
	t.Parallel()
	const topic = "uneven"
	w := world.Start(t, world.Options{Register: true, Topics: []world.Topic{{Name: topic, Partitions: 2, Region: "us"}, {Name: topic, Partitions: 3, Region: "eu"}}})
	us, eu := w.Region("us"), w.Region("eu")
	want := map[string]bool{}
	third := 0
	for i := range 20 {
		key := fmt.Sprint("k", i)
		if a := eu.Put(topic, key, `1`, world.Idem(key)); a.Partition == 2 {
			third++
		}
		want[key] = true
	}
	if third == 0 {
		t.Fatal("no key lies in the partition that only one region has")
	}
	shows(t, w, topic, want)
	w.Kill("eu")
	fence(t, us, "default/eu", ownership.ResultLoss)
	check := func() {
		t.Helper()
		w.Eventually("the view of us", func() error {
			keys, lacks, err := allKeys(limit(t), us, topic)
			if err == nil && (len(keys) != len(want) || lacks != "") {
				err = fmt.Errorf("%d keys of %d, lacks %q", len(keys), len(want), lacks)
			}
			return err
		})
	}
	check()
	w.StartAgain("eu")
	unfence(t, us, "default/eu")
	for i := range 6 {
		key := fmt.Sprint("again", i)
		writesAgain(t, w, eu, client.Write{Topic: topic, Key: key, Value: []byte(`1`), Idem: key})
		want[key] = true
	}
	shows(t, w, topic, want)
	orphans, err := eu.Orphans("default/eu")
	if err != nil || len(orphans) != 0 {
		t.Errorf("orphans %+v: %v", orphans, err)
	}
}
