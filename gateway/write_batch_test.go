package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
)

func batchOf(records ...string) string { return `{"records":[` + strings.Join(records, ",") + `]}` }

// results are what the records of a batch were answered: codes, or "ok".
func results(t *testing.T, body string) (codes []string) {
	t.Helper()
	var got struct {
		Results []struct {
			Ack     string
			Index   int
			Status  int
			Problem *struct {
				Code   string
				Status int
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for i, r := range got.Results {
		switch {
		case r.Ack == "local" && r.Problem == nil:
			codes = append(codes, "ok")
		case r.Problem == nil || r.Index != i || r.Status != r.Problem.Status:
			t.Errorf("result %d: %+v", i, r)
		default:
			codes = append(codes, r.Problem.Code)
		}
	}
	return codes
}

// TestBatchIsThePinnedOne: all stored is 200 with the answers of single records, else 207.
func TestBatchIsThePinnedOne(t *testing.T) {
	w := newWorld(t, nil)
	one := text(t, w.do(post("flights", lineOf("a", "1"))))
	r := w.do(post("flights", batchOf(lineOf("a", "1"), lineOf("a", "2")), "Idempotency-Key", "b"))
	if got := text(t, r); r.StatusCode != 200 || got != `{"results":[`+one+`,`+one+`]}` || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, %s", r.StatusCode, got)
	}
	for name := range map[string]bool{headerToken: true, "Geogate-Dedupe": true, "Idempotent-Replayed": true} {
		if r.Header.Get(name) != "" {
			t.Errorf("header %s is about one record: %s", name, r.Header.Get(name))
		}
	}
	own := strings.TrimSuffix(lineOf("a", "3"), "}") + `,"idempotency_key":"own"}`
	r = w.do(post("flights", " { \"records\" :\n["+own+" , "+lineOf("b", "4")+`, {"vlaue":null}, 7 ] } `, "Idempotency-Key", "c"))
	body := text(t, r)
	if got := results(t, body); r.StatusCode != 207 || !slices.Equal(got, []string{"ok", "ok", "MALFORMED", "MALFORMED"}) {
		t.Errorf("status %d, results %v", r.StatusCode, got)
	}
	if !strings.Contains(body, `{"index":2,"status":400,"problem":{"type":"urn:geogate:problem:malformed"`) || !strings.Contains(body, `"pointer":"/vlaue"`) {
		t.Errorf("body %s", body)
	}
	keys := map[event.IdempotencyKey]bool{}
	for _, q := range w.wrote {
		keys[q.Idempotency] = true
	}
	for _, k := range []string{"b#0", "b#1", "own", "c#1"} {
		if !keys[event.HashKey([]byte(event.DefaultIdempotencySecret), "", "flights", k)] {
			t.Errorf("no write has the key %s", k)
		}
	}
	if r := w.do(post("flights", `{"records":[]}`)); r.StatusCode != 200 || text(t, r) != `{"results":[]}` {
		t.Errorf("an empty batch: %d", r.StatusCode)
	}
	r = w.do(post("flights", batchOf(`{}`, `{}`)))
	if got := results(t, text(t, r)); r.StatusCode != 207 || !slices.Equal(got, []string{"MALFORMED", "MALFORMED"}) {
		t.Errorf("nothing is stored: %d %v", r.StatusCode, got)
	}
	if w.s.bodies.total() != 0 || w.s.unread.total() != 0 {
		t.Error("bytes are still held")
	}
}

// TestBatchRefusals: what is wrong with a batch as a whole is one problem, and nothing of it
// is stored.
func TestBatchRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		topic, body string
		code        string
		pointer     string
	}{
		"cut off":          {"flights", `{"records":[` + lineOf("a", "1") + `,{"value":`, "MALFORMED", ""},
		"no comma":         {"flights", `{"records":[` + lineOf("a", "1") + lineOf("a", "2") + `]}`, "MALFORMED", ""},
		"trailing":         {"flights", batchOf(lineOf("a", "1")) + "x", "MALFORMED", ""},
		"not UTF-8":        {"flights", batchOf(lineOf("a", "1"), "{\"value\":{\"type\":\"string\",\"data\":\"\xff\"}}"), "MALFORMED", ""},
		"unknown member":   {"flights", `{"records":[` + lineOf("a", "1") + `],"atomic":true}`, "MALFORMED", "/atomic"},
		"records twice":    {"flights", `{"records":[` + lineOf("a", "1") + `],"records":[]}`, "MALFORMED", "/records"},
		"no array":         {"flights", `{"records":` + lineOf("a", "1") + `}`, "MALFORMED", "/records"},
		"unknown topic":    {"nope", batchOf(lineOf("a", "1")), "TOPIC_UNKNOWN", ""},
		"too many records": {"flights", batchOf(slices.Repeat([]string{lineOf("a", "1")}, maxBatchRecords+1)...), "BODY_TOO_LARGE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			p := problemOf(t, w.do(post(tt.topic, tt.body)))
			if p["code"] != tt.code || len(w.wrote) != 0 {
				t.Errorf("problem %v, %d records written", p, len(w.wrote))
			}
			if tt.pointer != "" && p["errors"].([]any)[0].(map[string]any)["pointer"] != tt.pointer {
				t.Errorf("errors %v", p["errors"])
			}
			if w.s.bodies.total() != 0 || w.s.unread.total() != 0 {
				t.Error("bytes are still held")
			}
		})
	}
}

// TestBatchKeepsTheOrder: records of one key are stored in the batch's order, and none
// after one that may yet be stored; the largest batch is stored whole.
func TestBatchKeepsTheOrder(t *testing.T) {
	w := newWorld(t, nil)
	var mu sync.Mutex
	stored := map[string][]string{}
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		if string(req.Value) == "fails" {
			return seat.Answer{}, seat.ErrUpstream
		}
		stored[string(req.Key)] = append(stored[string(req.Key)], string(req.Value))
		return w.accept(ctx, req, p)
	}
	r := w.do(post("flights", batchOf(lineOf("a", "1"), lineOf("a", "fails"), lineOf("b", "2"), lineOf("a", "3"))))
	body := text(t, r)
	if got := results(t, body); r.StatusCode != 207 || !slices.Equal(got, []string{"ok", "UPSTREAM_UNAVAILABLE", "ok", "NOT_READY"}) {
		t.Errorf("status %d, results %v", r.StatusCode, got)
	}
	if !strings.Contains(body, "an earlier record of this batch was not stored") || len(stored["a"]) != 1 {
		t.Errorf("stored %v, answered %s", stored, body)
	}
	var records, want []string
	for i := range maxBatchRecords {
		records, want = append(records, lineOf("c", fmt.Sprint(i))), append(want, fmt.Sprint(i))
	}
	r = w.do(post("flights", batchOf(records...)))
	if got := results(t, text(t, r)); r.StatusCode != 200 || len(got) != maxBatchRecords || !slices.Equal(stored["c"], want) {
		t.Errorf("status %d, %d results, %d stored", r.StatusCode, len(got), len(stored["c"]))
	}
}

// TestCanceledBatch: when the client of a batch has gone, nothing of it stays in flight.
func TestCanceledBatch(t *testing.T) {
	w := newWorld(t, nil)
	entered := make(chan struct{})
	w.write = func(ctx context.Context, _ seat.Request, _ int32) (seat.Answer, error) {
		close(entered)
		<-ctx.Done()
		return seat.Answer{}, ctx.Err()
	}
	w.running()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url("/v1/topics/flights/records"), strings.NewReader(batchOf(lineOf("a", "1"), lineOf("a", "2"))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if r, err := clientOf(t, "127.0.0.2").Do(req); !errors.Is(err, context.Canceled) {
		t.Fatalf("answer %v, %v", r, err)
	}
	eventually(t, "the end of the batch", func() bool {
		return w.s.writer.flights.inUse() == 0 && w.s.unread.total() == 0
	})
}

// FuzzBatch holds the reading of a batch against encoding/json and against the reading of
// its records one by one.
func FuzzBatch(f *testing.F) {
	for _, s := range []string{
		batchOf(lineOf("a", "1"), `{"value":null}`, `{}`, `[[{"}":"]"}]]`), `{"records":[]}`, `{"records":[1,]}`, `{"records":null}`, `{"records":[{"value":null}]}x`,
		`{"records":[],"records":[]}`, `{"records":[{"v":"\u00g0"}]}`, "{\"records\":[\"\xff\"]}", `{"records":[{"\u0076alue":null}],"\u0061":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !isBatch(body) {
			return
		}
		type read struct {
			rec   record
			wrong error
		}
		var got []read
		head := &writeHead{maxHeaders: txn.DefaultRecordHeaders}
		err := decodeBatch(head, body, func(rec *record, wrong error) { got = append(got, read{*rec, wrong}) })
		var p *problem
		if err != nil && (!errors.As(err, &p) || len(p.fields) == 0 && p.code != codeBodyTooLarge) {
			t.Fatalf("error %v of %q", err, body)
		}
		members := map[string]json.RawMessage{}
		var raws []json.RawMessage
		valid := utf8.Valid(body) && json.Unmarshal(body, &members) == nil && len(members) == 1 && json.Unmarshal(members["records"], &raws) == nil && members["records"][0] == '['
		if err == nil && !valid {
			t.Fatalf("%q is read as a batch", body)
		}
		if err != nil {
			if valid && bytes.Count(body, []byte(`"records"`)) == 1 && !bytes.ContainsRune(body, '\\') {
				t.Fatalf("%q is refused: %v", body, err)
			}
			return
		}
		if len(got) != len(raws) {
			t.Fatalf("%d records of %q", len(got), body)
		}
		for i, raw := range raws {
			want, err := parseRecord(raw, head.maxHeaders)
			if (err == nil) != (got[i].wrong == nil) {
				t.Fatalf("record %d of %q: %v, by itself %v", i, body, got[i].wrong, err)
			}
			if err == nil && (!same(got[i].rec.key, want.key) || !same(got[i].rec.value, want.value) || got[i].rec.idempotency != want.idempotency) {
				t.Fatalf("record %d of %q is %+v", i, body, got[i].rec)
			}
		}
	})
}

// TestDoubleInOneRequest: a record with the idempotency key of an earlier one of the same
// batch or stream, which is still in flight, is that one's replay, or another record under
// its key; what comes after it is stored. One whose key is in use elsewhere is waited for no
// longer than that takes.
func TestDoubleInOneRequest(t *testing.T) {
	w := newWorld(t, nil)
	var mu sync.Mutex
	known := map[event.IdempotencyKey]string{}
	ended := map[event.IdempotencyKey]bool{}
	foreign := event.HashKey([]byte(event.DefaultIdempotencySecret), "", "flights", "foreign")
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		mu.Lock()
		first, doubled := known[req.Idempotency]
		switch {
		case req.Idempotency == foreign, doubled && !ended[req.Idempotency]:
			ended[req.Idempotency] = true // by the time that anybody asks again
			mu.Unlock()
			return seat.Answer{}, seat.ErrInUse
		case doubled && first != string(req.Value):
			mu.Unlock()
			return seat.Answer{}, &seat.ReusedError{}
		}
		known[req.Idempotency] = string(req.Value)
		mu.Unlock()
		a, err := w.accept(ctx, req, p)
		a.Replayed = doubled
		return a, err
	}
	under := func(record, key string) string {
		return strings.TrimSuffix(record, "}") + `,"idempotency_key":"` + key + `"}`
	}
	for name, send := range map[string]func(...string) []string{
		"batch": func(records ...string) []string {
			return results(t, text(t, w.do(post("flights", batchOf(records...), "Idempotency-Key", "b"))))
		},
		"stream": func(lines ...string) []string { return w.streamed("flights", lines) },
	} {
		got := send(under(lineOf("a", "1"), name), under(lineOf("a", "1"), name), under(lineOf("a", "2"), name), lineOf("a", "3"+name),
			under(lineOf("b", "1"), "foreign"), lineOf("b", "2"), lineOf("c", "1"+name))
		if want := []string{"ok", "ok", "IDEMPOTENCY_KEY_REUSED", "ok", "IDEMPOTENCY_KEY_IN_USE", "NOT_READY", "ok"}; !slices.Equal(got, want) {
			t.Errorf("%s: answers %v, want %v", name, got, want)
		}
	}
}
