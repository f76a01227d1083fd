package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
)

func TestPartitions(t *testing.T) {
	w := newWorld(t, nil)
	var at int32
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		at = p
		return w.accept(ctx, req, p)
	}
	key := event.HashKey([]byte(event.DefaultIdempotencySecret), "", "github", "k")
	for _, c := range []struct {
		name, topic, body string
		header            []string
		want              int32
	}{
		{"by key", "flights", `{"key":{"type":"string","data":"DTW"},"value":null}`, nil, router.Partition([]byte("DTW"), 6)},
		{"by key, named", "flights", fmt.Sprintf(`{"key":{"type":"string","data":"DTW"},"value":null,"partition":%d}`, router.Partition([]byte("DTW"), 6)), nil, router.Partition([]byte("DTW"), 6)},
		{"by idempotency key", "github", `{"value":{"type":"string","data":""}}`, []string{"Idempotency-Key", "k"}, router.Partition(key[:], 2)},
		{"events: as asked", "github", fmt.Sprintf(`{"key":{"type":"string","data":"a"},"value":null,"partition":%d}`, 1-router.Partition([]byte("a"), 2)), nil, 1 - router.Partition([]byte("a"), 2)},
		{"binary key", "flights", `{"key":{"type":"binary","data":"/w=="},"value":null}`, nil, router.Partition([]byte{0xff}, 6)},
	} {
		if r := w.do(post(c.topic, c.body, c.header...)); r.StatusCode != 200 || at != c.want {
			t.Errorf("%s: status %d, partition %d, want %d", c.name, r.StatusCode, at, c.want)
		}
	}
	seen := map[int32]bool{}
	for range 2 {
		w.do(post("github", `{"value":{"type":"json","data":null}}`))
		seen[at] = true
	}
	if len(seen) != 2 {
		t.Errorf("records without any key went to %v only", seen)
	}
}

func TestRawValues(t *testing.T) {
	w := newWorld(t, nil)
	r := post("flights", "\x00\xffraw", "Content-Type", "Application/X-Thing; v=1", "Kafka-Header-Src", "a b", "Kafka-Header-alpha", "1")
	r.path += "?key=a%2Fb%00"
	if got := w.do(r); got.StatusCode != 200 {
		t.Fatalf("status %d: %s", got.StatusCode, text(t, got))
	}
	q := w.wrote[0]
	if string(q.Key) != "a/b\x00" || string(q.Value) != "\x00\xffraw" || q.ContentType != "Application/X-Thing; v=1" {
		t.Errorf("request %+v", q)
	}
	if len(q.Headers) != 2 || q.Headers[0].Key != "alpha" || q.Headers[1].Key != "src" || string(q.Headers[1].Value) != "a b" {
		t.Errorf("headers %v", q.Headers)
	}
	r = post("github", "", "Content-Type", "text/plain")
	if got := w.do(r); got.StatusCode != 200 || w.wrote[1].Value == nil || w.wrote[1].Key != nil || w.wrote[1].Op != event.Put {
		t.Errorf("empty raw value: %d %+v", got.StatusCode, w.wrote[1])
	}
}

func TestWriteRefusals(t *testing.T) {
	const ok = `{"key":{"type":"string","data":"k"},"value":{"type":"json","data":1}}`
	other := event.Token{Topic: event.HashTopic("other")}.String()
	for _, c := range []struct {
		name    string
		r       request
		status  int
		code    code
		pointer string // of the first error
	}{
		{"not JSON", post("flights", `{"value":`), 400, codeMalformed, ""},
		{"not an object", post("flights", `[1]`), 400, codeMalformed, ""},
		{"empty", post("flights", ` `), 400, codeMalformed, ""},
		{"trailing data", post("flights", ok+` x`), 400, codeMalformed, ""},
		{"unknown member", post("flights", `{"value":null,"a/b~":1}`), 400, codeMalformed, "/a~1b~0"},
		{"unknown member within", post("flights", `{"value":{"type":"string","data":"","x":{}}}`), 400, codeMalformed, "/value/x"},
		{"duplicate member", post("flights", `{"value":null,"value":null}`), 400, codeMalformed, "/value"},
		{"no value", post("flights", `{"key":null}`), 400, codeMalformed, "/value"},
		{"bare value", post("flights", `{"value":1}`), 400, codeMalformed, "/value"},
		{"unknown type", post("flights", `{"value":{"type":"avro","data":""}}`), 400, codeMalformed, "/value/type"},
		{"json key", post("flights", `{"key":{"type":"json","data":1},"value":null}`), 400, codeMalformed, "/key/type"},
		{"no data", post("flights", `{"value":{"type":"json"}}`), 400, codeMalformed, "/value/data"},
		{"string that is a number", post("flights", `{"value":{"type":"string","data":7}}`), 400, codeMalformed, "/value/data"},
		{"half a surrogate", post("flights", `{"value":{"type":"string","data":"\ud800"}}`), 400, codeMalformed, "/value/data"},
		{"half a surrogate in a name", post("flights", `{"\ud800":1}`), 400, codeMalformed, ""},
		{"half a surrogate in a header's name", post("flights", `{"value":null,"headers":[{"name":"\udc00","value":null}]}`), 400, codeMalformed, ""},
		{"base64", post("flights", `{"value":{"type":"binary","data":"a"}}`), 400, codeMalformed, "/value/data"},
		{"base64 with line ends", post("flights", `{"value":{"type":"binary","data":"aGk=\n"}}`), 400, codeMalformed, "/value/data"},
		{"base64 with stray bits", post("flights", `{"value":{"type":"binary","data":"aGl="}}`), 400, codeMalformed, "/value/data"},
		{"header value", post("flights", `{"value":null,"headers":[{"name":"a","value":"!"}]}`), 400, codeMalformed, "/headers/0/value"},
		{"header without value", post("flights", `{"value":null,"headers":[{"name":"a"}]}`), 400, codeMalformed, "/headers/0/value"},
		{"headers", post("flights", `{"value":null,"headers":{}}`), 400, codeMalformed, "/headers"},
		{"partition", post("flights", `{"value":null,"partition":1.0}`), 400, codeMalformed, "/partition"},
		{"negative partition", post("flights", `{"value":null,"partition":-1}`), 400, codeMalformed, "/partition"},
		{"invalid UTF-8", post("flights", "{\"value\":{\"type\":\"string\",\"data\":\"\xff\"}}"), 400, codeMalformed, ""},
		{"control character", post("flights", "{\"value\":{\"type\":\"string\",\"data\":\"\n\"}}"), 400, codeMalformed, ""},
		{"deep", post("flights", `{"value":{"type":"json","data":`+strings.Repeat("[", 65)+strings.Repeat("]", 65)+`}}`), 400, codeMalformed, ""},
		{"reserved header", post("flights", `{"value":null,"headers":[{"name":"GG-h","value":null}]}`), 400, codeReservedHeader, "/headers/0/name"},
		{"reserved raw header", post("flights", "x", "Content-Type", "text/plain", "Kafka-Header-gg-e", "1"), 400, codeReservedHeader, ""},
		{"content-type twice", post("flights", "x", "Content-Type", "text/plain", "Kafka-Header-Content-Type", "1"), 400, codeMalformed, ""},
		{"unknown parameter", request{"POST", "/v1/topics/flights/records?ack=all", map[string]string{"Content-Type": "application/json"}, ok}, 400, codeMalformed, ""},
		{"key twice", request{"POST", "/v1/topics/flights/records?key=a&key=b", map[string]string{"Content-Type": "text/plain"}, "x"}, 400, codeMalformed, ""},
		{"token", post("flights", ok, "Geogate-Token", "zz"), 400, codeMalformed, ""},
		{"token of another topic", post("flights", ok, "Geogate-Token", other), 400, codeMalformed, ""},
		{"empty key", post("flights", ok, "Idempotency-Key", `""`), 400, codeKeyInvalid, ""},
		{"open quote", post("flights", ok, "Idempotency-Key", `"a`), 400, codeKeyInvalid, ""},
		{"parameters", post("flights", ok, "Idempotency-Key", `"a";b`), 400, codeKeyInvalid, ""},
		{"bare with space", post("flights", ok, "Idempotency-Key", `a b`), 400, codeKeyInvalid, ""},
		{"not ASCII", post("flights", ok, "Idempotency-Key", "ä"), 400, codeKeyInvalid, ""},
		{"long key", post("flights", ok, "Idempotency-Key", strings.Repeat("k", 256)), 400, codeKeyInvalid, ""},
		{"key in body", post("flights", `{"value":null,"idempotency_key":""}`), 400, codeKeyInvalid, "/idempotency_key"},
		{"keys that differ", post("flights", `{"value":{"type":"json","data":1},"idempotency_key":"b"}`, "Idempotency-Key", "a"), 400, codeKeyInvalid, "/idempotency_key"},
		{"unknown topic", post("nope", ok), 404, codeTopicUnknown, ""},
		{"unknown topic of a stream", post("nope", ok, "Content-Type", "application/x-ndjson"), 404, codeTopicUnknown, ""},
		{"unknown path", request{"POST", "/v1/nope", nil, ""}, 404, codeNotFound, ""},
		{"slash in a key", get("/v1/topics/flights/entities/a/b"), 404, codeNotFound, ""},
		{"method", request{"PUT", "/v1/topics/flights/records", nil, ""}, 405, codeMethodNotAllowed, ""},
		{"accept", post("flights", ok, "Accept", "text/html"), 406, codeNotAcceptable, ""},
		{"accept with q=0", post("flights", ok, "Accept", "application/json;q=0, text/html"), 406, codeNotAcceptable, ""},
		{"no content type", post("flights", ok, "Content-Type", ""), 415, codeUnsupportedMediaType, ""},
		{"charset", post("flights", ok, "Content-Type", "application/json; charset=latin1"), 415, codeUnsupportedMediaType, ""},
		{"form", post("flights", ok, "Content-Type", "application/x-www-form-urlencoded"), 415, codeUnsupportedMediaType, ""},
		{"form of parts", post("flights", ok, "Content-Type", "multipart/form-data; boundary=x"), 415, codeUnsupportedMediaType, ""},
		{"compressed", post("flights", ok, "Content-Encoding", "gzip"), 415, codeUnsupportedMediaType, ""},
		{"tombstone without key", post("github", `{"value":null}`), 422, codeInvalidRecord, "/key"},
		{"entity without key", post("flights", `{"value":{"type":"json","data":1}}`), 422, codeInvalidRecord, "/key"},
		{"no such partition", post("github", `{"value":{"type":"json","data":1},"partition":2}`), 422, codeInvalidRecord, "/partition"},
		{"contradicting partition", post("flights", fmt.Sprintf(`{"key":{"type":"string","data":"k"},"value":null,"partition":%d}`, (router.Partition([]byte("k"), 6)+1)%6)), 422, codeInvalidRecord, "/partition"},
		{"large record", post("flights", `{"key":{"type":"string","data":"k"},"value":{"type":"string","data":"`+strings.Repeat("x", 1100)+`"}}`), 413, codeRecordTooLarge, ""},
		{"large raw record", post("flights", strings.Repeat("x", 1100), "Content-Type", "text/plain"), 413, codeRecordTooLarge, ""},
		{"large headers", post("flights", `{"key":{"type":"string","data":"k"},"value":null,"headers":[`+strings.Repeat(`{"name":"n","value":"`+strings.Repeat("aGlo", 100)+`"},`, 4)+`{"name":"n","value":null}]}`), 413, codeRecordTooLarge, ""},
		{"large content type", post("flights", strings.Repeat("x", 900), "Content-Type", "text/"+strings.Repeat("x", 120)), 413, codeRecordTooLarge, ""},
		{"large body", post("flights", strings.Repeat("{", 5000)), 413, codeBodyTooLarge, ""},
		{"long record key", post("flights", `{"key":{"type":"string","data":"`+strings.Repeat("k", 65)+`"},"value":null}`), 413, codeKeyTooLarge, ""},
		{"long raw key", request{method: "POST", path: "/v1/topics/flights/records?key=" + strings.Repeat("k", 65), body: "v", header: map[string]string{"Content-Type": "text/plain"}}, 413, codeKeyTooLarge, ""},
		{"many headers", post("flights", `{"value":null,"key":{"type":"string","data":"k"},"headers":[`+strings.Repeat(`{"name":"h","value":null},`, 4)+`{"name":"h","value":null}]}`), 413, codeRecordTooLarge, ""},
		{"long headers", post("flights", ok, "Kafka-Header-h", strings.Repeat("v", 100), "Content-Type", "text/plain"), 413, codeRecordTooLarge, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config, d *Deps) {
				cfg.MaxRecord, cfg.MaxBody = 1024, 4096
				d.Decoder = txn.NewDecoder(txn.Limits{Key: 64, RecordHeaders: 4 + txn.AddedHeaders, HeaderBytes: 64 + txn.AddedHeaderBytes})
			})
			r := do(t, w.s.dataHandler(), c.r)
			p := problemOf(t, r)
			if r.StatusCode != c.status || p["code"] != string(c.code) {
				t.Fatalf("status %d, problem %v", r.StatusCode, p)
			}
			if len(w.wrote) != 0 {
				t.Errorf("written all the same: %+v", w.wrote)
			}
			if c.status == 405 && r.Header.Get("Allow") != "GET, POST, HEAD" {
				t.Errorf("Allow %q", r.Header.Get("Allow"))
			}
			if c.pointer != "" && p["errors"].([]any)[0].(map[string]any)["pointer"] != c.pointer {
				t.Errorf("errors %v, want pointer %s", p["errors"], c.pointer)
			}
			if (c.status == 400 || c.status == 422) && len(p["errors"].([]any)) == 0 {
				t.Errorf("no errors in %v", p)
			}
		})
	}
}

func TestAllMistakesOfARecordAreReported(t *testing.T) {
	_, err := parseRecord([]byte(`{"kye":1,"value":{"type":"binary","data":"?"},"headers":[{"name":"gg-x","value":null},7],"partition":"0"}`), 10)
	var p *problem
	if !errors.As(err, &p) || p.code != codeMalformed {
		t.Fatalf("error %v", err)
	}
	var at []string
	for _, e := range p.fields {
		at = append(at, *e.Pointer)
	}
	if got := strings.Join(at, " "); got != "/kye /value/data /headers/0/name /headers/1 /partition" {
		t.Errorf("pointers %s", got)
	}
}

func TestTwoTokensAreRefused(t *testing.T) {
	w := newWorld(t, nil)
	tok := event.Token{Topic: event.HashTopic("github")}.String()
	req := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/github/records", strings.NewReader("x"))
	req.Header = http.Header{"Content-Type": {"text/plain"}, headerToken: {tok, tok}}
	rec := httptest.NewRecorder()
	w.s.dataHandler().ServeHTTP(rec, req)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), "given 2 times") || len(w.wrote) != 0 {
		t.Errorf("status %d: %s", rec.Code, rec.Body)
	}
}

// TestEnoughMistakes: a record that is wrong in many places is not read to its end, so
// what it costs to refuse one does not grow with it.
func TestEnoughMistakes(t *testing.T) {
	for name, body := range map[string]string{
		"unknown members":      `{"value":null,` + strings.Repeat(`"a":1,`, 30) + `not JSON`,
		"headers of no object": `{"headers":[` + strings.Repeat(`1,`, 30) + `not JSON`,
		"empty headers":        `{"headers":[` + strings.Repeat(`{},`, 30) + `not JSON`,
		"members of a header":  `{"headers":[{` + strings.Repeat(`"x":1,`, 30) + `not JSON`,
		"members of a value":   `{"value":{` + strings.Repeat(`"x":1,`, 30) + `not JSON`,
	} {
		_, err := parseRecord([]byte(body), 100)
		var p *problem
		if !errors.As(err, &p) || len(p.fields) != maxErrors {
			t.Errorf("%s: %d mistakes are reported: %v", name, len(p.fields), err)
		}
	}
}

// TestHeadersAreCounted: the memory of many short headers is bounded before the limits
// of records are looked at.
func TestHeadersAreCounted(t *testing.T) {
	body := func(n int) []byte {
		return []byte(`{"value":null,"headers":[` + strings.Repeat(`{"name":"","value":""},`, n-1) + `{"name":"","value":null}]}`)
	}
	const maxHeaders = 1000
	if rec, err := parseRecord(body(maxHeaders), maxHeaders); err != nil || len(rec.headers) != maxHeaders {
		t.Errorf("%d headers: %v", maxHeaders, err)
	}
	_, err := parseRecord(body(maxHeaders+1), maxHeaders)
	var p *problem
	if !errors.As(err, &p) || p.code != codeRecordTooLarge {
		t.Errorf("%d headers: %v", maxHeaders+1, err)
	}
}
