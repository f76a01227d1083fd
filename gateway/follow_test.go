package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// trim deletes the records of partition 0 below an offset, as retention does.
func trim(t testing.TB, cl *kgo.Client, below int64, topics ...string) {
	t.Helper()
	var os kadm.Offsets
	for _, topic := range topics {
		os.Add(kadm.Offset{Topic: topic, Partition: 0, At: below})
	}
	rs, err := kadm.NewClient(cl).DeleteRecords(context.Background(), os)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, func(c *Config, d *Deps) { with(c, d); c.Heartbeat = 50 * time.Millisecond })
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", `{"n":0}`))
	w.seat("github", 0).commit(vector(1, 0), 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	open := func(from string) (*http.Response, *bufio.Scanner) {
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/topics/github/records?follow=true&from="+from, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/x-ndjson")
		r, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("X-Request-Id") == "" {
			t.Fatalf("status %d, header %v", r.StatusCode, r.Header)
		}
		return r, bufio.NewScanner(r.Body)
	}
	type lineOf struct {
		Dot, Cursor string
		Heartbeat   bool
	}
	next := func(sc *bufio.Scanner, beats bool) lineOf {
		t.Helper()
		for sc.Scan() {
			var l lineOf
			if err := json.Unmarshal(sc.Bytes(), &l); err != nil || l.Cursor == "" {
				t.Fatalf("line %s: %v", sc.Text(), err)
			}
			if l.Heartbeat == beats {
				return l
			}
		}
		t.Fatalf("the stream has ended: %v", sc.Err())
		return lineOf{}
	}
	r, sc := open("earliest")
	first := next(sc, false)
	if first.Dot != "us/0/0/0" {
		t.Errorf("first line %+v", first)
	}
	next(sc, true)
	w.seat("github", 0).commit(vector(1, 5), 1)
	for { // the heartbeat's cursor moves though nothing is shown
		c, err := event.ParseCursor(next(sc, true).Cursor)
		if err == nil && c.At[0] == vector(1, 5) {
			break
		}
	}
	merge(t, cl, "github", 1, stamped(us, 1, 0, 0, "b", "1"))
	if l := next(sc, false); l.Dot != "us/0/1/0" {
		t.Errorf("second line %+v", l)
	}
	// Another reader goes on from a line's cursor.
	r2, sc2 := open(first.Cursor)
	if l := next(sc2, false); l.Dot != "us/0/1/0" {
		t.Errorf("resumed with %+v", l)
	}
	w.s.drain.stop()
	for sc.Scan() {
	}
	if sc.Err() != nil {
		t.Errorf("the stream did not end cleanly: %v", sc.Err())
	}
	r.Body.Close()
	r2.Body.Close()
	srv.Close() // waits for the requests
	if n, held := w.s.follows.total(), w.s.unread.total(); n != 0 || held != 0 {
		t.Errorf("%d streams are left open, %d bytes held", n, held)
	}
}

func TestReadersAreBounded(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, func(c *Config, d *Deps) { with(c, d); c.MaxReaders = 1 })
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", "0"))
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	r, err := srv.Client().Get(srv.URL + "/v1/topics/github/records?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n := w.s.follows.total(); n != 1 {
		t.Fatalf("%d streams are open", n)
	}
	got := w.do(get("/v1/topics/github/records?follow=true"))
	if p := problemOf(t, got); got.StatusCode != 429 || p["code"] != "OVERLOADED" {
		t.Errorf("second stream: %v", p)
	}
	// Pages have slots of their own.
	if got := w.do(get("/v1/topics/github/records")); got.StatusCode != 200 {
		t.Errorf("a page beside the stream: %d", got.StatusCode)
	}
	w.s.patience = time.Millisecond
	w.s.reads.take(peerN(1), 1)
	got = w.do(get("/v1/topics/github/records"))
	if p := problemOf(t, got); got.StatusCode != 429 || p["code"] != "OVERLOADED" {
		t.Errorf("second page: %v", p)
	}
	w.s.reads.give(peerN(1), 1)
	if got := w.do(get("/v1/topics/github/records")); got.StatusCode != 200 {
		t.Errorf("a page after the other one: %d", got.StatusCode)
	}
}

func TestConflictFeed(t *testing.T) {
	with, cl := withKafka(t)
	slot := func(p int32) int32 { return router.ConflictsPartition("flights", p) }
	w := newWorld(t, with)
	golden := compact(t, `{"topic":"flights","key":{"type":"string","data":"DTW"},"reason":"concurrent","rule":"lww",
 "lost":{"dot":"eu/0/3/93","id":"01a226bf-4970-7f11-8c02-1d2e3f405162","region":"eu","stamp":"01a226bf49700000"},
 "won":{"dot":"us/0/3/4711","id":"01a226bf-497b-7c3e-9a51-6f0d2f1b7e10","region":"us","stamp":"01a226bf497b0007"}}`)
	produce(t, cl, control.TopicConflicts, slot(0), nil, []byte(golden), nil)
	produce(t, cl, control.TopicConflicts, slot(0), nil, []byte(`{"topic":"other"}`), nil)
	produce(t, cl, control.TopicConflicts, slot(0), nil, []byte(`not json`), nil)
	produce(t, cl, control.TopicConflicts, slot(1), nil, []byte(`{"topic":"flights","reason":"revoked"}`), nil)
	type answer struct {
		Conflicts []json.RawMessage
		Next      string
		End       bool
	}
	read := func(query string) (a answer) {
		r := w.do(get("/v1/conflicts" + query))
		if err := json.Unmarshal([]byte(text(t, r)), &a); err != nil || r.StatusCode != 200 {
			t.Fatalf("%s: %d %v", query, r.StatusCode, err)
		}
		return a
	}
	if a := read(""); len(a.Conflicts) != 3 || !a.End {
		t.Errorf("all: %s", a.Conflicts)
	}
	a := read("?topic=flights&limit=1")
	if len(a.Conflicts) != 1 || a.End {
		t.Fatalf("first of flights: %+v", a)
	}
	b := read("?topic=flights&limit=100&from=" + a.Next)
	if len(b.Conflicts) != 1 || !b.End {
		t.Fatalf("second of flights: %+v", b)
	}
	both := string(a.Conflicts[0]) + string(b.Conflicts[0])
	if !strings.Contains(both, golden) || !strings.Contains(both, `"revoked"`) {
		t.Errorf("conflicts %s", both)
	}
	for _, from := range []string{a.Next, "x"} {
		r := w.do(get("/v1/conflicts?topic=github&from=" + from))
		if p := problemOf(t, r); r.StatusCode != 400 || p["code"] != "CURSOR_INVALID" {
			t.Errorf("from %s: %v", from, p)
		}
	}
	if p := problemOf(t, w.do(get("/v1/conflicts?topic=nope"))); p["code"] != "TOPIC_UNKNOWN" {
		t.Errorf("unknown topic: %v", p)
	}
}

func TestReadRefusals(t *testing.T) {
	w := newWorld(t, nil)
	cursor := func(change func(*event.Cursor)) string {
		c := event.Cursor{View: event.MergedView, Topic: event.HashTopic("github"), Visible: us, At: map[int32]event.Vector{0: vector(1, 0)}}
		change(&c)
		return c.String()
	}
	good := cursor(func(*event.Cursor) {})
	damaged := good[:len(good)-1] + map[bool]string{true: "A", false: "B"}[good[len(good)-1] != 'A']
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		code       code
	}{
		{"view", "github/records?view=all", nil, 400, codeMalformed},
		{"region", "github/records?view=origin:mars", nil, 400, codeMalformed},
		{"limit 0", "github/records?limit=0", nil, 400, codeMalformed},
		{"limit", "github/records?limit=many", nil, 400, codeMalformed},
		{"large limit", "github/records?limit=10001", nil, 400, codeMalformed},
		{"wait", "github/records?wait=10", nil, 400, codeMalformed},
		{"long wait", "github/records?wait=2m", nil, 400, codeMalformed},
		{"negative wait", "github/records?wait=-1s", nil, 400, codeMalformed},
		{"follow", "github/records?follow=1", nil, 400, codeMalformed},
		{"misspelt", "github/records?form=latest", nil, 400, codeMalformed},
		{"twice", "github/records?from=latest&from=earliest", nil, 400, codeMalformed},
		{"query", "github/records?from=%zz", nil, 400, codeMalformed},
		{"cursor", "github/records?from=abc", nil, 400, codeCursorInvalid},
		{"damaged cursor", "github/records?from=" + damaged, nil, 400, codeCursorInvalid},
		{"other topic", "flights/records?from=" + good, nil, 400, codeCursorInvalid},
		{"other view", "github/records?view=local&from=" + good, nil, 400, codeCursorInvalid},
		{"unknown region", "github/records?from=" + cursor(func(c *event.Cursor) { c.Visible = 9 }), nil, 400, codeCursorInvalid},
		{"unknown origin", "github/records?from=" + cursor(func(c *event.Cursor) {
			var v event.Vector
			v[9].Next = 1
			c.At[0] = v
		}), nil, 400, codeCursorInvalid},
		{"wrong origin", "github/records?view=local&from=" + cursor(func(c *event.Cursor) {
			c.View, c.At[0] = event.OriginView(us), vector(0, 1)
		}), nil, 400, codeCursorInvalid},
		{"partition that another region may have", "github/records?wait=0s&from=" + cursor(func(c *event.Cursor) { c.At[7] = vector(1, 0) }), nil, 503, codeStaleView},
		{"no such partition", "flights/records?from=" + cursor(func(c *event.Cursor) {
			c.Topic, c.At[7] = event.HashTopic("flights"), vector(1, 0)
		}), nil, 400, codeCursorInvalid},
		{"no partition at all", "github/records?from=" + cursor(func(c *event.Cursor) { c.At[maxPartition] = vector(1, 0) }), nil, 400, codeCursorInvalid},
		{"unknown topic", "nope/records", nil, 404, codeTopicUnknown},
		{"no entities", "github/entities/a", nil, 404, codeEntityUnknown},
		{"no such entity", "flights/entities/a", nil, 404, codeEntityUnknown},
		{"entity of unknown topic", "nope/entities/a", nil, 404, codeTopicUnknown},
		{"no key", "flights/entities", nil, 400, codeMalformed},
		{"empty path key", "flights/entities/", nil, 404, codeNotFound},
		{"accept", "github/records", []string{"Accept", "text/event-stream"}, 406, codeNotAcceptable},
		{"follow as JSON", "github/records?follow=true", []string{"Accept", "application/json"}, 406, codeNotAcceptable},
		{"entity as text", "flights/entities/a", []string{"Accept", "text/plain"}, 406, codeNotAcceptable},
		{"token", "flights/entities/a", []string{"Geogate-Token", "!"}, 400, codeMalformed},
		{"token of another topic", "flights/entities/a", []string{"Geogate-Token", event.Token{Topic: event.HashTopic("github")}.String()}, 400, codeMalformed},
		{"token of no partition", "flights/entities/a", []string{"Geogate-Token", event.Token{Topic: event.HashTopic("flights"), Partition: 6}.String()}, 400, codeMalformed},
		{"token not applied", "flights/entities/a?wait=0s", []string{"Geogate-Token", event.Token{Topic: event.HashTopic("flights"), Vector: vector(0, 4)}.String()}, 503, codeStaleView},
		{"cursor not applied", "github/records?wait=0s&from=" + good, nil, 503, codeStaleView},
	} {
		r := w.do(get("/v1/topics/"+c.path, c.header...))
		if p := problemOf(t, r); r.StatusCode != c.status || p["code"] != string(c.code) {
			t.Errorf("%s: status %d, problem %v", c.name, r.StatusCode, p)
		}
	}
}

func TestUpstreamIsGone(t *testing.T) {
	w := newWorld(t, func(_ *Config, d *Deps) {
		d.Kafka = []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.RequestRetries(0), kgo.RetryTimeout(50 * time.Millisecond)}
	})
	r := w.do(get("/v1/topics/github/records?view=local"))
	if p := problemOf(t, r); r.StatusCode != 503 || p["code"] != "UPSTREAM_UNAVAILABLE" {
		t.Errorf("problem %v", p)
	}
}

func TestReadRecordCanBeWrittenAgain(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	values := [][]byte{[]byte(`{"n":12345678901234567890,"b":1,"a":{"x":1.0}}`), []byte("text\n\t\"q\" \u2028"), {0xff, 0}, nil, {}, []byte(" 1"), []byte("{\n}")}
	for i, v := range values {
		ev := stamped(us, 0, int64(i), 0, "k", "x")
		ev.Value, ev.Headers = v, []event.Header{{Key: "a", Value: []byte{0xfe}}, {Key: "a"}, {Key: "", Value: []byte{}}}
		if v == nil {
			ev.Op = event.Delete
		}
		merge(t, cl, "github", 0, ev)
	}
	for i, raw := range rawRecords(t, w, "/v1/topics/github/records") {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatal(err)
		}
		var o object
		for _, name := range []string{"key", "value", "headers"} {
			// From the bytes themselves: encoding/json must not touch them.
			o.raw(name, members[name])
		}
		rec, err := parseRecord(o.close(), 10)
		if err != nil {
			t.Fatalf("record %d, %s: %v", i, raw, err)
		}
		if (rec.value == nil) != (values[i] == nil) || string(rec.value) != string(values[i]) || string(rec.key) != "k" {
			t.Errorf("record %d came back as %q", i, rec.value)
		}
		if len(rec.headers) != 3 || string(rec.headers[0].Value) != "\xfe" || rec.headers[1].Value != nil || rec.headers[2].Value == nil {
			t.Errorf("headers came back as %v", rec.headers)
		}
	}
}

func rawRecords(t *testing.T, w *world, path string) []json.RawMessage {
	t.Helper()
	var p struct{ Records []json.RawMessage }
	if err := json.Unmarshal([]byte(text(t, w.do(get(path)))), &p); err != nil {
		t.Fatal(err)
	}
	return p.Records
}

func TestRecordIsThePinnedOne(t *testing.T) {
	with, cl := withKafka(t, "flights.merged")
	w := newWorld(t, with)
	f := w.topics["flights"]
	f.Partitions = 2
	w.topics["flights"] = f
	ev := stamped(us, 1, 4711, 0, "DTW", `{"delay":66}`)
	ev.Stamp = goldenStamp()
	merge(t, cl, "flights", event.LWW, ev)
	want := compact(t, `{"topic":"flights","region":"us","partition":1,"offset":4711,"incarnation":0,"dot":"us/0/1/4711",
  "id":"01a226bf-497b-7c3e-9a51-6f0d2f1b7e10","stamp":"01a226bf497b0007","timestamp":"2026-11-29T10:00:00.123Z","op":"put",
  "key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":66}},"headers":[]}`)
	body := text(t, w.do(get("/v1/topics/flights/records")))
	if !strings.HasPrefix(body, `{"records":[`+want+`],"next":"`) || !strings.HasSuffix(body, `","end":true}`) {
		t.Errorf("answer %s", body)
	}
	lines := text(t, w.do(get("/v1/topics/flights/records", "Accept", "application/x-ndjson")))
	if !strings.HasPrefix(lines, strings.TrimSuffix(want, "}")+`,"cursor":"`) || strings.Count(lines, "\n") != 1 {
		t.Errorf("lines %s", lines)
	}
}
