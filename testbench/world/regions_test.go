package world_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

const (
	flights = "flights" // entities, lww
	notes   = "notes"   // entities, keep
	github  = "github"  // events
)

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// problem demands that err is the problem of a code and status.
func problem(t *testing.T, err error, status int, code string) *client.Problem {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != status || p.Code != code {
		t.Fatalf("got %v, want %d %s", err, status, code)
	}
	return p
}

func entity(t *testing.T, r *world.Region, topic, key string, opts ...world.Option) client.Entity {
	t.Helper()
	e, err := r.Entity(topic, key, opts...)
	if err != nil {
		t.Fatalf("read entity %s of %s in %s: %v", key, topic, r.Name, err)
	}
	return e
}

func records(t *testing.T, r *world.Region, topic, view string) []client.Record {
	t.Helper()
	all, err := r.Records(topic, view)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// of are the records with a key.
func of(all []client.Record, key string) []client.Record {
	return slices.DeleteFunc(slices.Clone(all), func(r client.Record) bool { return r.Key.Text() != key })
}

// conflicts are the feed's records about a key.
func conflicts(t *testing.T, r *world.Region, topic, key string) []client.Conflict {
	t.Helper()
	all, err := r.Conflicts(topic)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(c client.Conflict) bool { return c.Key.Text() != key })
}

func TestTwoRegions(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	w.Run("a write here is read there with its token", readThereWithToken)
	w.Run("a retry in the own region is the first answer again", retryHere)
	w.Run("a retry in the other region after replication has the first one's coordinates", retryThere)
	w.Run("another request under a used key is refused in both regions", reusedKey)
	w.Run("an update that saw what it replaces is no conflict", updateThatSaw)
	w.Run("a tombstone deletes the entity in both regions", tombstone)
	w.Run("a raw value keeps its bytes, type and headers", rawValue)
	w.Run("lines of a stream are answered in order, each for itself", stream)
	w.Run("a follower goes on in the other region with its cursor, each event once", movedFollower)
	w.Run("an unknown topic is 404 and nothing is made", unknownTopic)
	w.Run("neither remote nor derived topics are replicated", onlyLocalTopics)
}

func TestCutLinks(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	w.Run("a retry in the other region is a twin: one effect, and a feed record", twinEvents)
	w.Run("a twin of an update has one effect on the entity", twinUpdates)
	w.Run("concurrent updates show the same bytes and are told once", concurrentUpdates)
	w.Run("keep shows both values and reports no conflict", keptSiblings)
	w.Run("a link that is cut does not stop either region", cutLinkAlone)
}

func readThereWithToken(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	a := us.Put(flights, "DTW", `{"delay":66}`)
	if a.Region != "us" || a.Unit != "air/us" || a.Epoch != 17 || a.Header.Get("Geogate-Token") != a.Token || a.Pending {
		t.Fatalf("answer %s, headers %v", a.Raw, a.Header)
	}
	there := entity(t, eu, flights, "DTW", world.Token(a.Token))
	if there.Value.Text() != `{"delay":66}` || there.Dot != a.Dot || there.ID != a.ID || there.Version != a.Dot || len(there.Siblings) != 0 {
		t.Fatalf("entity %s, answer %s", there.Raw, a.Raw)
	}
	if here := entity(t, us, flights, "DTW", world.Token(a.Token)); here.Raw != there.Raw {
		t.Fatalf("us shows %s, eu %s", here.Raw, there.Raw)
	}
	if got := there.Header.Get("ETag"); got != `"`+there.Version+`"` {
		t.Fatalf("ETag %s, version %s", got, there.Version)
	}
}

func retryHere(t *testing.T, w *world.World) {
	us := w.Region("us")
	first := us.Put(github, "octo", `1`, world.Idem("own"))
	again := us.Put(github, "octo", `1`, world.Idem("own"))
	if first.Replayed || !first.Pending || !again.Replayed || again.Pending || again.Raw != first.Raw || again.Token != again.Header.Get("Geogate-Token") {
		t.Fatalf("first %s %v\nagain %s %v", first.Raw, first.Header, again.Raw, again.Header)
	}
	if n := len(of(records(t, us, github, "local"), "octo")); n != 1 {
		t.Fatalf("%d records in the log", n)
	}
}

func retryThere(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	first := us.Put(github, "cat", `{"n":1}`, world.Idem("there"))
	w.Settle()
	again := eu.Put(github, "cat", `{"n":1}`, world.Idem("there"))
	if !again.Replayed || again.Raw != first.Raw {
		t.Fatalf("first %s\nagain %s, replayed %v", first.Raw, again.Raw, again.Replayed)
	}
	for _, r := range w.Regions() {
		if n := len(of(records(t, r, github, "merged"), "cat")); n != 1 {
			t.Fatalf("%d records in the merged view of %s", n, r.Name)
		}
	}
}

func reusedKey(t *testing.T, w *world.World) {
	us := w.Region("us")
	us.Put(github, "reuse", `1`, world.Idem("reuse"))
	w.Settle()
	for _, r := range w.Regions() {
		key := "reuse"
		_, err := r.Store(limit(t), client.Write{Topic: github, Key: key, Value: []byte(`2`), Idem: "reuse"})
		if p := problem(t, err, 422, "IDEMPOTENCY_KEY_REUSED"); p.FirstUsed == "" {
			t.Fatal("no first_used")
		}
	}
}

func updateThatSaw(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	a := us.Put(flights, "SEEN", `1`)
	entity(t, eu, flights, "SEEN", world.Token(a.Token)) // eu has applied it
	b := eu.Put(flights, "SEEN", `2`)
	e := entity(t, us, flights, "SEEN", world.Token(b.Token))
	if e.Version != b.Dot || e.Value.Text() != "2" {
		t.Fatalf("entity %s", e.Raw)
	}
	for _, r := range w.Regions() {
		if c := conflicts(t, r, flights, "SEEN"); len(c) != 0 {
			t.Fatalf("feed of %s: %+v", r.Name, c)
		}
	}
}

func tombstone(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	us.Put(flights, "GONE", `1`)
	d := us.Delete(flights, "GONE")
	for _, r := range w.Regions() {
		_, err := r.Entity(flights, "GONE", world.Token(d.Token))
		if p := problem(t, err, 404, "ENTITY_UNKNOWN"); p.Version != d.Dot {
			t.Fatalf("version %q in %s, want %s", p.Version, r.Name, d.Dot)
		}
	}
	_, err := us.Entity(flights, "NEVER")
	if p := problem(t, err, 404, "ENTITY_UNKNOWN"); p.Version != "" {
		t.Fatalf("unknown entity has version %q", p.Version)
	}
	again := us.Put(flights, "GONE", `2`)
	if e := entity(t, eu, flights, "GONE", world.Token(again.Token)); e.Value.Text() != "2" {
		t.Fatalf("entity %s", e.Raw)
	}
}

func rawValue(t *testing.T, w *world.World) {
	us := w.Region("us")
	value := []byte("\x00raw\xff")
	raw, _, err := us.Instance(0).Do(limit(t), http.MethodPost, "/v1/topics/github/records?key=raw", value, http.Header{
		"Content-Type": {"application/x-thing"}, "Kafka-Header-Src": {"here"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	for _, r := range w.Regions() {
		got := of(records(t, r, github, "origin:us"), "raw")
		if len(got) != 1 || got[0].Value.Type != "binary" || got[0].Value.Text() != base64.StdEncoding.EncodeToString(value) {
			t.Fatalf("%s shows %+v after %s", r.Name, got, raw)
		}
		headers := ""
		for _, h := range got[0].Headers {
			v, _ := base64.StdEncoding.DecodeString(*h.Value)
			headers += h.Name + "=" + string(v) + ";"
		}
		if headers != "src=here;content-type=application/x-thing;" {
			t.Fatalf("headers %q in %s", headers, r.Name)
		}
	}
}

func stream(t *testing.T, w *world.World) {
	us := w.Region("us")
	lines := []string{
		`{"key":{"type":"string","data":"line"},"value":{"type":"json","data":0},"idempotency_key":"mine"}`,
		`{"key":{"type":"string","data":"line"},"value":{"type":"json","data":1}}`,
		`{"key":{"type":"string","data":"line"},"value":`,
		`{"key":null,"value":null}`,
		`{"key":{"type":"string","data":"line"},"value":{"type":"json","data":2}}`,
	}
	h := http.Header{"Content-Type": {"application/x-ndjson"}, "Idempotency-Key": {"batch"}}
	send := func() []string {
		raw, _, err := us.Instance(0).Do(limit(t), http.MethodPost, "/v1/topics/github/records", []byte(strings.Join(lines, "\n")), h)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(raw)), "\n")
	}
	first := send()
	if len(first) != len(lines) {
		t.Fatalf("%d answers to %d lines: %q", len(first), len(lines), first)
	}
	for i, want := range []string{`"offset":`, `"offset":`, `"code":"MALFORMED"`, `"code":"INVALID_RECORD"`, `"offset":`} {
		if !strings.Contains(first[i], want) || strings.HasPrefix(first[i], fmt.Sprintf(`{"index":%d,`, i)) == (i < 2 || i > 3) {
			t.Errorf("line %d: %s", i, first[i])
		}
	}
	if again := send(); again[0] != first[0] || again[1] != first[1] || again[4] != first[4] {
		t.Fatalf("again %q\nfirst %q", again, first)
	}
	var values []string
	for _, r := range of(records(t, us, github, "local"), "line") {
		values = append(values, r.Value.Text())
	}
	if !slices.Equal(values, []string{"0", "1", "2"}) {
		t.Fatalf("log has %v", values)
	}
}

func movedFollower(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	for i := range 10 {
		w.Regions()[i%2].Put(github, "follow", fmt.Sprint(i))
	}
	w.Settle()
	want := len(records(t, us, github, "merged"))
	first, err := us.Client().Follow(limit(t), github, "earliest", "20s")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	got, err := first.Take(want / 2)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	for i := range 4 {
		w.Regions()[i%2].Put(github, "follow", fmt.Sprint(10+i))
	}
	want += 4
	second, err := eu.Client().Follow(limit(t), github, first.Cursor, "20s")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	rest, err := second.Take(want - len(got))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, r := range append(got, rest...) {
		if seen[r.Dot] {
			t.Fatalf("%s twice", r.Dot)
		}
		seen[r.Dot] = true
	}
	w.Settle()
	for _, r := range w.Regions() {
		p, err := r.Page(limit(t), github, "merged", second.Cursor, 10)
		if err != nil || len(p.Records) != 0 || !p.End {
			t.Fatalf("after the last cursor in %s: %+v, %v", r.Name, p, err)
		}
	}
}

func unknownTopic(t *testing.T, w *world.World) {
	us := w.Region("us")
	key := "k"
	for _, topic := range []string{"nothing", "us.flights", "eu.flights", "flights.merged", "_geogate.control", "_geogate.state.flights"} {
		_, err := us.Try(limit(t), client.Write{Topic: topic, Key: key, Value: []byte(`1`)})
		problem(t, err, 404, "TOPIC_UNKNOWN")
		_, err = us.Records(topic, "merged")
		p := problem(t, err, 404, "TOPIC_UNKNOWN")
		if want := map[string]string{
			"eu.flights": "view=origin:eu", "flights.merged": "view=merged", "_geogate.control": "internal topic",
		}[topic]; !strings.Contains(p.Detail, want) {
			t.Fatalf("%s: %s", topic, p.Detail)
		}
	}
	if _, err := us.Read(limit(t), "nothing", true); err == nil {
		t.Fatal("the topic exists")
	}
}

func onlyLocalTopics(t *testing.T, w *world.World) {
	w.Settle()
	for _, r := range w.Regions() {
		other := map[string]string{"us": "eu", "eu": "us"}[r.Name]
		var want []string
		for _, topic := range []string{flights, github, notes} {
			want = append(want, topic, topic+".merged", other+"."+topic)
		}
		slices.Sort(want)
		var got []string
		topics, err := r.Topics(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		for name, entry := range topics {
			if !strings.HasPrefix(name, "_geogate.") {
				got = append(got, name)
			} else if len(entry.Links) > 0 && entry.Role == "local" {
				t.Errorf("%s in %s is %+v", name, r.Name, entry)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%s has %v, want %v", r.Name, got, want)
		}
		if e := topics[other+"."+flights]; e.Role != "remote" || e.Origin != other || e.Of != flights {
			t.Errorf("%+v", e)
		}
		if e := topics[flights+".merged"]; e.Role != "derived" || e.Use != "merged" || e.Of != flights {
			t.Errorf("%+v", e)
		}
		if e := topics[flights]; e.Role != "local" || len(e.Links) != 1 || e.Links[0].State != "included" || e.Domain != "air" {
			t.Errorf("%+v", e)
		}
	}
}

func twinEvents(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	a, b := us.Put(github, "twin", `1`, world.Idem("twin")), eu.Put(github, "twin", `1`, world.Idem("twin"))
	if a.Replayed || b.Replayed || a.ID == b.ID {
		t.Fatalf("us %s\neu %s", a.Raw, b.Raw)
	}
	w.HealAll()
	w.Settle()
	smaller, larger := a, b
	if b.Stamp < a.Stamp {
		smaller, larger = b, a
	}
	for i, r := range w.Regions() {
		if got := of(records(t, r, github, "merged"), "twin"); len(got) != 1 {
			t.Fatalf("%d records in the merged view of %s: %+v", len(got), r.Name, got)
		}
		got := conflicts(t, r, github, "twin")
		if len(got) != 1 || got[0].Reason != "cross-region-duplicate" || got[0].Lost.Dot != larger.Dot || got[0].Won.Dot != smaller.Dot {
			t.Fatalf("feed of %s: %+v, %s stands", r.Name, got, smaller.Dot)
		}
		// Each region goes on to replay its own record.
		again := r.Put(github, "twin", `1`, world.Idem("twin"))
		if own := []client.Answer{a, b}[i]; !again.Replayed || again.Raw != own.Raw {
			t.Fatalf("%s replays %s, its own is %s", r.Name, again.Raw, own.Raw)
		}
	}
}

func twinUpdates(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	a, b := us.Put(flights, "TWIN", `1`, world.Idem("e-twin")), eu.Put(flights, "TWIN", `1`, world.Idem("e-twin"))
	w.HealAll()
	w.Settle()
	stands := a
	if b.Stamp < a.Stamp {
		stands = b
	}
	for _, r := range w.Regions() {
		if e := entity(t, r, flights, "TWIN"); e.Version != stands.Dot || len(e.Siblings) != 0 {
			t.Fatalf("%s shows %s, %s stands", r.Name, e.Raw, stands.Dot)
		}
	}
	// Who saw either copy has seen the write.
	next := us.Put(flights, "TWIN", `2`)
	if e := entity(t, eu, flights, "TWIN", world.Token(next.Token)); e.Version != next.Dot {
		t.Fatalf("entity %s, want %s alone", e.Raw, next.Dot)
	}
}

func concurrentUpdates(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	a, b := us.Put(flights, "BOTH", `"us"`), eu.Put(flights, "BOTH", `"eu"`)
	w.HealAll()
	w.Settle()
	won, lost := a, b
	if a.Stamp < b.Stamp {
		won, lost = b, a
	}
	here, there := entity(t, us, flights, "BOTH"), entity(t, eu, flights, "BOTH")
	if here.Raw != there.Raw {
		t.Fatalf("us %s\neu %s", here.Raw, there.Raw)
	}
	if here.Version != b.Dot+"+"+a.Dot || here.Dot != won.Dot || here.Value.Text() != `"`+won.Region+`"` {
		t.Fatalf("entity %s, %s won", here.Raw, won.Dot)
	}
	if len(here.Siblings) != 1 || here.Siblings[0].Dot != lost.Dot || here.Siblings[0].Op != "put" || here.Siblings[0].Value != nil {
		t.Fatalf("siblings %+v", here.Siblings)
	}
	got := conflicts(t, w.Region(lost.Region), flights, "BOTH")
	if len(got) != 1 || got[0].Reason != "concurrent" || got[0].Rule == nil || *got[0].Rule != "lww" || got[0].Lost.Dot != lost.Dot || got[0].Won.Dot != won.Dot ||
		got[0].Lost.Region != lost.Region || got[0].Lost.ID != lost.ID || got[0].Won.Stamp != won.Stamp {
		t.Fatalf("feed of %s: %+v", lost.Region, got)
	}
	if got := conflicts(t, w.Region(won.Region), flights, "BOTH"); len(got) > 1 {
		t.Fatalf("feed of %s: %+v", won.Region, got)
	}
	// A write that saw both leaves one.
	last := us.Put(flights, "BOTH", `"one"`)
	if e := entity(t, eu, flights, "BOTH", world.Token(last.Token)); e.Version != last.Dot || len(e.Siblings) != 0 {
		t.Fatalf("entity %s", e.Raw)
	}
}

func keptSiblings(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	a, b := us.Put(notes, "todo", `"us"`), eu.Put(notes, "todo", `"eu"`)
	w.HealAll()
	w.Settle()
	here, there := entity(t, us, notes, "todo"), entity(t, eu, notes, "todo")
	if here.Raw != there.Raw || here.Version != b.Dot+"+"+a.Dot || here.Policy != "keep" {
		t.Fatalf("us %s\neu %s", here.Raw, there.Raw)
	}
	if len(here.Siblings) != 1 || here.Siblings[0].Value == nil || here.Siblings[0].Value.Text() == here.Value.Text() {
		t.Fatalf("siblings of %s", here.Raw)
	}
	for _, r := range w.Regions() {
		if c := conflicts(t, r, notes, "todo"); len(c) != 0 {
			t.Fatalf("feed of %s: %+v", r.Name, c)
		}
	}
}

func cutLinkAlone(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	w.Cut("us", "eu")
	a := us.Put(github, "alone", `1`)
	b := eu.Put(github, "alone", `2`)
	// The other direction goes on.
	w.Eventually("the link from eu", func() error {
		if n := len(of(records(t, us, github, "merged"), "alone")); n != 2 {
			return fmt.Errorf("us shows %d of %s and %s", n, a.Dot, b.Dot)
		}
		return nil
	})
	w.Eventually("the fold of eu", func() error { // which need not be before the link
		if n := len(of(records(t, eu, github, "merged"), "alone")); n != 1 {
			return fmt.Errorf("eu shows %d over a cut link", n)
		}
		return nil
	})
	// A read there with us's token is told to wait, and then refused.
	_, _, err := eu.Instance(0).Do(limit(t), http.MethodGet, "/v1/topics/github/records?wait=200ms", nil, http.Header{"Geogate-Token": {a.Token}})
	if p := problem(t, err, 503, "STALE_VIEW"); !p.Retriable {
		t.Fatalf("%+v", p)
	}
	w.Heal("us", "eu")
	w.Settle()
	if n := len(of(records(t, eu, github, "merged"), "alone")); n != 2 {
		t.Fatalf("eu shows %d after the link was healed", n)
	}
}
