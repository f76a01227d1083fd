package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

func TestAnswerIsThePinnedOne(t *testing.T) {
	w := newWorld(t, nil)
	w.write = func(_ context.Context, req seat.Request, p int32) (seat.Answer, error) {
		a, _ := w.accept(context.Background(), req, 3)
		a.Epoch = 17
		return a, nil
	}
	r := w.do(post("flights", `{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":66}},"headers":[{"name":"src","value":"aGk="}],
 "partition":null,"idempotency_key":null}`))
	var seen event.Vector
	seen[us].Next = 4712
	token := event.Token{Topic: event.HashTopic("flights"), Partition: 3, Vector: seen, Stamp: goldenStamp()}.String()
	want := `{"id":"01a226bf-497b-7c3e-9a51-6f0d2f1b7e10","dot":"us/0/3/4711","topic":"flights","region":"us","partition":3,"offset":4711,` +
		`"incarnation":0,"stamp":"01a226bf497b0007","timestamp":"2026-11-29T10:00:00.123Z","unit":"air/us","epoch":17,"ack":"local","token":"` + token + `"}`
	if got := text(t, r); r.StatusCode != 200 || got != want {
		t.Fatalf("status %d\n got %s\nwant %s", r.StatusCode, got, want)
	}
	if r.Header.Get("Geogate-Token") != token || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Request-Id") == "" {
		t.Errorf("headers %v", r.Header)
	}
	if r.Header.Get("Geogate-Dedupe") != "" || r.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("marks on a write without a key: %v", r.Header)
	}
	q := w.wrote[0]
	if string(q.Key) != "DTW" || string(q.Value) != `{"delay":66}` || string(q.Headers[0].Value) != "hi" || q.Op != event.Put || q.Partition != -1 {
		t.Errorf("request %+v", q)
	}
}

func TestKeyedWritesAreMarked(t *testing.T) {
	w := newWorld(t, nil)
	body := `{"value":{"type":"string","data":"x"},"headers":[{"name":"a","value":null}]}`
	r := w.do(post("github", body, "Idempotency-Key", `"k 1"`))
	if r.StatusCode != 200 || r.Header.Get("Geogate-Dedupe") != "pending" || r.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("first answer: %d %v", r.StatusCode, r.Header)
	}
	q := w.wrote[0]
	if q.Idempotency != event.HashKey([]byte(event.DefaultIdempotencySecret), "", "github", "k 1") || q.Fingerprint != q.Request.Fingerprint() {
		t.Errorf("key and fingerprint of %+v", q)
	}
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		a, err := w.accept(ctx, req, p)
		a.Replayed = true
		return a, err
	}
	first := text(t, r)
	r = w.do(post("github", body, "Idempotency-Key", `"k 1"`))
	if r.StatusCode != 200 || r.Header.Get("Geogate-Dedupe") != "" || r.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay: %d %v", r.StatusCode, r.Header)
	}
	if again := text(t, r); again != first {
		t.Errorf("replay %s, first %s", again, first)
	}
	// The key of the body is the same key, and one region has no twins.
	one := newWorld(t, func(c *Config, _ *Deps) { c.Topology = topologyOf(t, "us") })
	r = one.do(post("github", `{"value":{"type":"string","data":"x"},"idempotency_key":"k 1"}`))
	if r.StatusCode != 200 || r.Header.Get("Geogate-Dedupe") != "" || one.wrote[0].Idempotency != q.Idempotency {
		t.Errorf("one region: %d %v", r.StatusCode, r.Header)
	}
}

func TestReplayOfAnotherRegionsRecord(t *testing.T) {
	w := newWorld(t, nil)
	w.write = func(_ context.Context, req seat.Request, p int32) (seat.Answer, error) {
		var c event.Vector
		c[us].Next = 7
		return seat.Answer{ID: goldenID(), At: event.Dot{Region: eu, Partition: 1, Offset: 9}, Stamp: 5 << 16, Epoch: event.FirstEpoch(eu), Context: c, Replayed: true}, nil
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(text(t, w.do(post("github", `{"value":{"type":"json","data":1}}`, "Idempotency-Key", "k")))), &got); err != nil {
		t.Fatal(err)
	}
	if got["region"] != "eu" || got["unit"] != "repos/eu" || got["dot"] != "eu/0/1/9" {
		t.Errorf("answer %v", got)
	}
	token, err := event.ParseToken(got["token"].(string))
	if err != nil || token.Vector[us].Next != 7 || token.Vector[eu].Next != 10 || token.Partition != 1 {
		t.Errorf("token %+v, %v", token, err)
	}
}

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
		{"compressed", post("flights", ok, "Content-Encoding", "gzip"), 415, codeUnsupportedMediaType, ""},
		{"tombstone without key", post("github", `{"value":null}`), 422, codeInvalidRecord, "/key"},
		{"entity without key", post("flights", `{"value":{"type":"json","data":1}}`), 422, codeInvalidRecord, "/key"},
		{"no such partition", post("github", `{"value":{"type":"json","data":1},"partition":2}`), 422, codeInvalidRecord, "/partition"},
		{"contradicting partition", post("flights", fmt.Sprintf(`{"key":{"type":"string","data":"k"},"value":null,"partition":%d}`, (router.Partition([]byte("k"), 6)+1)%6)), 422, codeInvalidRecord, "/partition"},
		{"large record", post("flights", `{"key":{"type":"string","data":"k"},"value":{"type":"string","data":"`+strings.Repeat("x", 1100)+`"}}`), 413, codeRecordTooLarge, ""},
		{"large raw record", post("flights", strings.Repeat("x", 1100), "Content-Type", "text/plain"), 413, codeRecordTooLarge, ""},
		{"large body", post("flights", strings.Repeat("{", 5000)), 413, codeBodyTooLarge, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config, _ *Deps) { cfg.MaxRecord, cfg.MaxBody = 1024, 4096 })
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
	_, err := parseRecord([]byte(`{"kye":1,"value":{"type":"binary","data":"?"},"headers":[{"name":"gg-x","value":null},7],"partition":"0"}`))
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

func TestSeatErrorsBecomeProblems(t *testing.T) {
	used := time.UnixMilli(goldenTime)
	for _, c := range []struct {
		err       error
		status    int
		code      code
		retriable bool
		after     string
	}{
		{seat.ErrInUse, 409, codeKeyInUse, true, "1"},
		{&seat.ReusedError{FirstUsed: used}, 422, codeKeyReused, false, ""},
		{&seat.OutcomeError{HadKey: true}, 503, codeOutcomeUnknown, true, "1"},
		{&seat.OutcomeError{}, 503, codeOutcomeUnknown, false, ""},
		{seat.ErrNotReady, 503, codeNotReady, true, "1"},
		{seat.ErrSuperseded, 503, codeNotReady, true, "1"},
		{seat.ErrDraining, 503, codeDraining, true, "5"},
		{seat.ErrOverloaded, 429, codeOverloaded, true, "1"},
		{seat.ErrDrift, 503, codeClockDrift, true, "5"},
		{seat.ErrUpstream, 503, codeUpstream, true, "2"},
		{ErrUpstream, 503, codeUpstream, true, "2"},
		{seat.ErrTooLarge, 413, codeRecordTooLarge, false, ""},
		{newProblem(codeNotOwner, "air/us is fenced").with("owner", nil), 409, codeNotOwner, false, ""},
		{newProblem(codeOwnershipUnproven, "the lease has run out"), 503, codeOwnershipUnproven, true, "3"},
		{invalid(codeKeyMissing, atHeader("Idempotency-Key", "the topic demands one")), 400, codeKeyMissing, false, ""},
		{errors.New("boom"), 500, codeInternal, false, ""},
	} {
		w := newWorld(t, nil)
		w.write = func(context.Context, seat.Request, int32) (seat.Answer, error) {
			return seat.Answer{}, fmt.Errorf("write: %w", c.err)
		}
		r := w.do(post("flights", `{"key":{"type":"string","data":"k"},"value":null}`, "Idempotency-Key", "k"))
		p := problemOf(t, r)
		if r.StatusCode != c.status || p["code"] != string(c.code) || p["retriable"] != c.retriable || r.Header.Get("Retry-After") != c.after {
			t.Errorf("%v: status %d, after %q, problem %v", c.err, r.StatusCode, r.Header.Get("Retry-After"), p)
		}
		if c.code == codeKeyReused && p["first_used"] != "2026-11-29T10:00:00.123Z" {
			t.Errorf("first_used in %v", p)
		}
		if _, has := p["owner"]; has != (c.code == codeNotOwner) {
			t.Errorf("owner in %v", p)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.WriteTimeout = 50 * time.Millisecond })
	body := post("flights", `{"key":{"type":"string","data":"k"},"value":null}`)
	w.openErr = context.DeadlineExceeded
	if p := problemOf(t, w.do(body)); p["code"] != "NOT_READY" {
		t.Errorf("open timed out: %v", p)
	}
	w.openErr = nil
	w.write = func(ctx context.Context, _ seat.Request, _ int32) (seat.Answer, error) {
		<-ctx.Done()
		return seat.Answer{}, ctx.Err()
	}
	if p := problemOf(t, w.do(body)); p["code"] != "OUTCOME_UNKNOWN" || p["retriable"] != false {
		t.Errorf("write timed out: %v", p)
	}
	w.listErr = fmt.Errorf("list: %w", ErrUpstream)
	if p := problemOf(t, w.do(body)); p["code"] != "UPSTREAM_UNAVAILABLE" {
		t.Errorf("topics cannot be listed: %v", p)
	}
}

func TestPanicIsInternal(t *testing.T) {
	w := newWorld(t, nil)
	w.write = func(context.Context, seat.Request, int32) (seat.Answer, error) { panic("secret payload") }
	r := w.do(post("flights", `{"key":{"type":"string","data":"k"},"value":null}`))
	if p := problemOf(t, r); p["code"] != "INTERNAL" || strings.Contains(fmt.Sprint(p), "secret") {
		t.Errorf("problem %v", p)
	}
}

func TestRequestIDs(t *testing.T) {
	w := newWorld(t, nil)
	for given, echoed := range map[string]bool{
		"01a226bf-4a00-7000-8000-000000000001": true, "a:b~c.d_e": true,
		"": false, "a b": false, "a\x01": false, strings.Repeat("a", 129): false, "ü": false,
	} {
		r := w.do(get("/v1/nope", "X-Request-Id", given))
		if got := r.Header.Get("X-Request-Id"); (got == given) != echoed || got == "" {
			t.Errorf("id %q answered with %q", given, got)
		}
	}
}

func TestInflightBudget(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody, c.MaxInflight = 1024, 1024, 1500 })
	entered, leave := make(chan struct{}), make(chan struct{})
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		close(entered)
		<-leave
		return w.accept(ctx, req, p)
	}
	big := post("github", strings.Repeat("x", 1000), "Content-Type", "text/plain")
	first := make(chan *http.Response)
	go func() { first <- w.do(big) }()
	<-entered
	r := w.do(big)
	if p := problemOf(t, r); r.StatusCode != 429 || p["code"] != "OVERLOADED" || r.Header.Get("Retry-After") == "" {
		t.Errorf("over the budget: %d %v", r.StatusCode, p)
	}
	close(leave)
	if r := <-first; r.StatusCode != 200 {
		t.Errorf("first: %d", r.StatusCode)
	}
	if held := w.s.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
	w.write = w.accept
	if r := w.do(big); r.StatusCode != 200 {
		t.Errorf("after: %d", r.StatusCode)
	}
}

func TestChunkedBodies(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody = 200<<10, 200<<10 })
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	send := func(n int) *http.Response {
		req, err := http.NewRequest("POST", srv.URL+"/v1/topics/github/records", io.LimitReader(neverEnding('x'), int64(n)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/plain")
		r, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r
	}
	if r := send(150 << 10); r.StatusCode != 200 || len(w.wrote[0].Value) != 150<<10 {
		t.Errorf("chunked: %d", r.StatusCode)
	}
	if r := send(201 << 10); r.StatusCode != 413 || len(w.wrote) != 1 {
		t.Errorf("chunked and too large: %d", r.StatusCode)
	}
	if w.s.bodies.held.Load() != 0 {
		t.Error("bytes are still held")
	}
}

// A body whose chunks are none is told so; one that only stops is a client that
// has gone.
func TestBrokenChunks(t *testing.T) {
	w := newWorld(t, nil)
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	for tail, want := range map[string]string{"zz\r\n": "MALFORMED", "": ""} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /v1/topics/github/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"+tail)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(got), want) || (want == "") != (len(got) == 0) {
			t.Errorf("chunk %q: %q, %v", tail, got, err)
		}
		_ = conn.Close()
	}
	if len(w.wrote) != 0 || w.s.bodies.held.Load() != 0 {
		t.Errorf("%d records written, %d bytes held", len(w.wrote), w.s.bodies.held.Load())
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

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestStream(t *testing.T) {
	w := newWorld(t, nil)
	var mu sync.Mutex
	order := map[string][]string{}
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		mu.Lock()
		order[string(req.Key)] = append(order[string(req.Key)], string(req.Value))
		mu.Unlock()
		if string(req.Value) == "409" {
			return seat.Answer{}, seat.ErrInUse
		}
		a, err := w.accept(ctx, req, p)
		a.Timestamp = int64(len(req.Value))
		return a, err
	}
	lines := []string{
		`{"key":{"type":"string","data":"a"},"value":{"type":"string","data":"1"}}`,
		`{"value":null,"x":0}`,
		``,
		`{"key":{"type":"string","data":"a"},"value":{"type":"string","data":"22"},"idempotency_key":"own"}`,
		`{"key":{"type":"string","data":"b"},"value":{"type":"string","data":"409"}}`,
		`not json`,
		`{"key":{"type":"string","data":"a"},"value":{"type":"string","data":"4444"}}`,
	}
	r := w.do(post("flights", strings.Join(lines, "\n"), "Content-Type", "application/x-ndjson", "Idempotency-Key", "batch"))
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("Geogate-Dedupe") != "" || r.Header.Get("Geogate-Token") != "" {
		t.Fatalf("status %d, header %v", r.StatusCode, r.Header)
	}
	got := strings.Split(strings.TrimSuffix(text(t, r), "\n"), "\n")
	if len(got) != 6 {
		t.Fatalf("%d answers: %q", len(got), got)
	}
	for i, want := range []string{"0.001", "1 400 MALFORMED", "0.002", "4 409 IDEMPOTENCY_KEY_IN_USE", "5 400 MALFORMED", "0.004"} {
		var a struct {
			Timestamp string
			Index     int
			Status    int
			Problem   json.RawMessage
		}
		if err := json.Unmarshal([]byte(got[i]), &a); err != nil {
			t.Fatal(err)
		}
		have := strings.TrimSuffix(strings.TrimPrefix(a.Timestamp, "1970-01-01T00:00:0"), "Z")
		if a.Problem != nil {
			have = fmt.Sprintf("%d %d %s", a.Index, a.Status, problemIn(t, a.Problem, a.Status, r.Header.Get("X-Request-Id"))["code"])
		}
		if have != want {
			t.Errorf("answer %d: %s, want %s", i, have, want)
		}
	}
	if o := strings.Join(order["a"], " "); o != "1 22 4444" {
		t.Errorf("stored in the order %s", o)
	}
	keys := map[event.IdempotencyKey]bool{}
	for _, q := range w.wrote {
		keys[q.Idempotency] = true
	}
	for _, k := range []string{"batch#0", "own", "batch#4", "batch#6"} {
		if !keys[event.HashKey([]byte(event.DefaultIdempotencySecret), "", "flights", k)] {
			t.Errorf("no write has the key %s", k)
		}
	}
	if w.s.bodies.held.Load() != 0 {
		t.Error("bytes are still held")
	}
}

func TestStreamLimits(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody = 100, 256<<10 })
	long := `{"value":{"type":"string","data":"` + strings.Repeat("x", 80<<10) + `"}}`
	short := `{"value":{"type":"json","data":1}}`
	r := w.do(post("github", long+"\n"+short+"\n", "Content-Type", "application/x-ndjson"))
	got := strings.Split(strings.TrimSpace(text(t, r)), "\n")
	if len(got) != 2 || !strings.Contains(got[0], "RECORD_TOO_LARGE") || !strings.Contains(got[1], `"ack":"local"`) {
		t.Errorf("answers %.300q", got)
	}
	many := strings.Repeat(short+"\n", 256<<10/len(short))
	req := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/github/records", io.NopCloser(strings.NewReader(many)))
	req.ContentLength = -1
	req.Header.Set("Content-Type", "application/x-ndjson")
	rec := httptest.NewRecorder()
	w.s.dataHandler().ServeHTTP(rec, req)
	got = strings.Split(strings.TrimSpace(rec.Body.String()), "\n")
	if last := got[len(got)-1]; !strings.Contains(last, "BODY_TOO_LARGE") || len(got) < 5_000 {
		t.Errorf("%d answers, last %s", len(got), last)
	}
	if w.s.bodies.held.Load() != 0 {
		t.Error("bytes are still held")
	}
}

// TestStreamIsDuplex writes a line only after the answer to the one before.
func TestStreamIsDuplex(t *testing.T) {
	w := newWorld(t, nil)
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	in, out := io.Pipe()
	req, err := http.NewRequest("POST", srv.URL+"/v1/topics/github/records", in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	go func() { _, _ = io.WriteString(out, `{"value":{"type":"json","data":0}}`+"\n") }()
	r, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	answers := bufio.NewScanner(r.Body)
	for i := range 5 {
		if !answers.Scan() || !strings.Contains(answers.Text(), `"ack":"local"`) {
			t.Fatalf("answer %d: %q, %v", i, answers.Text(), answers.Err())
		}
		fmt.Fprintf(out, `{"value":{"type":"json","data":%d}}`+"\n", i+1)
	}
	out.Close()
	if !answers.Scan() || answers.Scan() {
		t.Errorf("not exactly one answer more: %q", answers.Text())
	}
}

func TestStreamWaitsForAnOverloadedSeat(t *testing.T) {
	w := newWorld(t, nil)
	tries := 0
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		if tries++; tries < 3 {
			return seat.Answer{}, seat.ErrOverloaded
		}
		return w.accept(ctx, req, p)
	}
	r := w.do(post("github", `{"value":{"type":"json","data":1}}`, "Content-Type", "application/x-ndjson"))
	if got := text(t, r); !strings.Contains(got, `"ack":"local"`) || tries != 3 {
		t.Errorf("after %d tries: %s", tries, got)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	streamed := make(chan struct{})
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		if string(req.Value) == "slow" {
			once.Do(func() { close(entered) })
			<-leave
		} else {
			close(streamed)
		}
		return w.accept(ctx, req, p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.s.Run(ctx) }()
	url := "http://" + w.s.DataAddr() + "/v1/topics/github/records"
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	type result struct {
		status int
		body   string
	}
	send := func(body io.Reader, media string) result {
		r, err := client.Post(url, media, body)
		if err != nil {
			return result{0, err.Error()}
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return result{r.StatusCode, string(b)}
	}
	// One write in flight, and one stream of which a line is answered.
	slow := make(chan result, 1)
	go func() { slow <- send(strings.NewReader("slow"), "text/plain") }()
	<-entered
	in, out := io.Pipe()
	stream := make(chan result, 1)
	go func() { stream <- send(in, "application/x-ndjson") }()
	fmt.Fprintln(out, `{"value":{"type":"json","data":1}}`)
	<-streamed
	stops := make(chan struct{})
	w.s.drain.onStop(func() { close(stops) })
	cancel()
	<-stops
	if r := send(strings.NewReader("late"), "text/plain"); r.status != 503 || !strings.Contains(r.body, "DRAINING") {
		t.Errorf("late write: %+v", r)
	}
	if r := do(t, w.s.managementHandler(), get("/readyz")); r.StatusCode != 503 {
		t.Errorf("readyz while draining: %d", r.StatusCode)
	}
	r := <-stream
	if lines := strings.Split(strings.TrimSpace(r.body), "\n"); len(lines) != 2 || !strings.Contains(lines[0], `"ack"`) || !strings.Contains(lines[1], "DRAINING") {
		t.Errorf("stream: %+v", r)
	}
	close(leave)
	if r := <-slow; r.status != 200 {
		t.Errorf("write in flight: %+v", r)
	}
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := net.Dial("tcp", w.s.DataAddr()); err == nil {
		t.Error("the listener is still open")
	}
}

// TestRunWaitsForWhatItAbandons: a stream whose line is not stored within the drain
// is told so, and nothing of it runs once Run has returned.
func TestRunWaitsForWhatItAbandons(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Drain = time.Millisecond })
	entered := make(chan struct{})
	var left atomic.Bool
	w.write = func(ctx context.Context, _ seat.Request, _ int32) (seat.Answer, error) {
		close(entered)
		<-ctx.Done()
		left.Store(true)
		return seat.Answer{}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answered := make(chan string, 1)
	go func() {
		r, err := client.Post("http://"+w.s.DataAddr()+"/v1/topics/github/records", "application/x-ndjson", strings.NewReader(`{"value":{"type":"json","data":1},"idempotency_key":"k"}`+"\n"))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		answered <- string(b)
	}()
	<-entered
	cancel()
	if err := <-ended; err != nil || !left.Load() {
		t.Errorf("run ended with %v; the write has ended: %t", err, left.Load())
	}
	if a := <-answered; !strings.Contains(a, "OUTCOME_UNKNOWN") {
		t.Errorf("the line was answered %q", a)
	}
}
