package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// FuzzRecord holds the record parser against encoding/json, and what it accepts
// against what an answer makes of it.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":66}},"headers":[{"name":"src","value":"aGk="}],"partition":null,"idempotency_key":null}`,
		`{"value":null}`, `{"value":{"data":"\ud83d\ude00\u0000","type":"string"}}`, `{"value":{"type":"binary","data":"/w=="},"partition":3,"idempotency_key":"k"}`,
		`[[[[`, `{"value":{"type":"json","data":-0.5e+10}}`, `{"a":1,"a":2}`, "\x00", `{"headers":[{}]}`, `{"\ud800":0}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		rec, err := parseRecord(body, 100)
		if !bytes.Equal(body, sent) {
			t.Fatalf("reading %q has changed it to %q", sent, body)
		}
		if err != nil {
			var p *problem
			if !errors.As(err, &p) || len(p.fields) == 0 && p.code != codeRecordTooLarge {
				t.Fatalf("error %v", err)
			}
			if !json.Valid(p.append(nil, "x")) {
				t.Fatalf("problem is no JSON: %s", p.append(nil, "x"))
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("accepted %q", body)
		}
		var o object
		o.name("key")
		o.b = appendKey(o.b, rec.key)
		o.name("value")
		o.b = appendValue(o.b, rec.value)
		o.name("headers")
		o.b = append(o.b, '[')
		for i := range rec.headers {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			o.b = appendHeader(o.b, &rec.headers[i])
		}
		o.b = append(o.b, ']')
		again, err := parseRecord(o.close(), 100)
		if err != nil {
			t.Fatalf("%s of %q: %v", o.b, body, err)
		}
		if !same(again.key, rec.key) || !same(again.value, rec.value) || len(again.headers) != len(rec.headers) {
			t.Fatalf("%q came back as %s", body, o.b)
		}
		for i := range rec.headers {
			if again.headers[i].Key != rec.headers[i].Key || !same(again.headers[i].Value, rec.headers[i].Value) {
				t.Fatalf("header %d of %q came back as %s", i, body, o.b)
			}
		}
	})
}

// FuzzScanRecord holds the scan, which knows only what is right, against the parser that
// explains: both read the same records alike, and only a name or a header's string with an
// escape is left to the latter.
func FuzzScanRecord(f *testing.F) {
	for _, s := range []string{
		`{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":[66,-1.5e+7,true,false,null,"\u00e9\n"]}},"headers":[{"name":"src","value":"aGk="}],"partition":null,"idempotency_key":null}`,
		` { "headers" : [ { "value" : null , "name" : "" } , {"name":"b","value":""} ] , "value" : null } `, `{"value":{"data":"\ud83d\ude00\u0000","type":"string"}}`,
		`{"value":{"type":"binary","data":"/w=="},"partition":3,"idempotency_key":"k"}`, `{"value":{"type":"string","data":"\ud800"}}`,
		`{"\u0076alue":null}`, `{"value":null,"headers":[{"name":"GG-x","value":null}]}`, `{"value":null,"value":null}`, `{"value":null,"partition":-0}`,
		`{"value":{"type":"json","data":` + strings.Repeat(`[{"a":`, 32) + `1` + strings.Repeat(`}]`, 32) + `}}`,
		`{"value":{"type":"json","data":` + strings.Repeat(`[{"a":`, 32) + `[]` + strings.Repeat(`}]`, 32) + `}}`,
		"{\"value\":{\"type\":\"string\",\"data\":\"0123456\x1f9\"}}", "{\"value\":{\"type\":\"string\",\"data\":\"0123456\x7f\u00e99\"}}", `{"value":null}{`, `{"value":{"type":"json","data":01}}`,
	} {
		f.Add([]byte(s), 100)
	}
	f.Add([]byte(`{"value":null,"headers":[{"name":"a","value":null}]}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, maxHeaders int) {
		maxHeaders = max(maxHeaders, 0)
		sent := bytes.Clone(body)
		got := &record{partition: -1}
		ok := scanRecord(body, maxHeaders, got)
		if !bytes.Equal(body, sent) {
			t.Fatalf("reading %q has changed it to %q", sent, body)
		}
		want, err := explainRecord(body, maxHeaders)
		if !ok {
			if err == nil && !bytes.ContainsRune(body, '\\') {
				t.Fatalf("%q is left to the parser, which finds nothing wrong with it", body)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q is read, but: %v", body, err)
		}
		if !same(got.key, want.key) || !same(got.value, want.value) || got.partition != want.partition || got.idempotency != want.idempotency || len(got.headers) != len(want.headers) {
			t.Fatalf("%q is read as %+v, want %+v", body, got, want)
		}
		for i, h := range want.headers {
			if got.headers[i].Key != h.Key || !same(got.headers[i].Value, h.Value) {
				t.Fatalf("header %d of %q is read as %v, want %v", i, body, got.headers[i], h)
			}
		}
	})
}

// FuzzScanJSON holds the scan of a value against encoding/json.
func FuzzScanJSON(f *testing.F) {
	for _, s := range []string{`{}`, ` [1, 2.5e-3,"\u00e4"] `, `"\ud800"`, `01`, `1.`, `-`, `tru`, `{"a":}`, `[1,]`, "\"\x7f\"", `nul`, `{"a" :1}x`, `{"a":[{"b":[]},{}]}`, `[}`, `1e`, `"\u00g0"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := newJSONScan(b)
		if ok {
			var raw []byte
			if raw, ok = s.value(); ok && !json.Valid(raw) {
				t.Fatalf("%q begins with %q", b, raw)
			}
			ok = ok && s.end()
		}
		if want := json.Valid(b) && utf8.Valid(b) && !deep(b); ok != want {
			t.Fatalf("%q: %v", b, ok)
		}
	})
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// FuzzJSON holds the reader against encoding/json, which is laxer about UTF-8
// and depth only.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{}`, ` [1, 2.5e-3,"\u00e4"] `, `"\ud800"`, `01`, `1.`, `-`, `tru`, `{"a":}`, `[1,]`, "\"\x7f\"", "\xef\xbb\xbf1", `nul`, `{"a" :1}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := newJSONReader(b)
		if err == nil {
			_, err = in.value()
		}
		if err == nil {
			err = in.end()
		}
		if want := json.Valid(b) && utf8.Valid(b) && !deep(b); (err == nil) != want {
			t.Fatalf("%q: %v", b, err)
		}
		if got := embeddable(b); got != slowlyEmbeddable(b) || got && (!json.Valid(b) || bytes.ContainsAny(b, "\r\n") || len(bytes.TrimSpace(b)) != len(b)) {
			t.Fatalf("%q is embeddable: %v", b, got)
		}
		q := appendString(nil, string(b))
		if want := slowString(nil, b); !bytes.Equal(q, want) || !bytes.Equal(appendString(nil, b), want) {
			t.Fatalf("%q as a string is %s, want %s", b, q, want)
		}
		if utf8.Valid(b) {
			if back, err := unquote(q); err != nil || back != string(b) {
				t.Fatalf("%q as a string is %s and comes back as %q, %v", b, q, back, err)
			}
		}
	})
}

// deep counts brackets outside strings; b is valid JSON.
func deep(b []byte) bool {
	depth, most, quoted := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
			most = max(most, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return most > maxDepth
}

// FuzzStream sends any body as NDJSON: every line is answered once, in order.
func FuzzStream(f *testing.F) {
	f.Add([]byte(`{"value":{"type":"json","data":1}}`+"\n\n{}\n"), `"k"`)
	f.Add([]byte("{\n"), "")
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody = 64, 512 })
		r := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/github/records", bytes.NewReader(body))
		r.Header["Content-Type"] = []string{"application/x-ndjson"}
		if key != "" {
			r.Header["Idempotency-Key"] = []string{key}
		}
		rec := httptest.NewRecorder()
		w.s.dataHandler().ServeHTTP(rec, r)
		if rec.Code != 200 {
			if rec.Header().Get("Content-Type") != "application/problem+json" || !json.Valid(rec.Body.Bytes()) {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
			return
		}
		want := 0
		for _, l := range bytes.Split(body, []byte("\n")) {
			if len(bytes.TrimSpace(l)) > 0 {
				want++
			}
		}
		got := 0
		for _, l := range strings.Split(strings.TrimSuffix(rec.Body.String(), "\n"), "\n") {
			if l == "" {
				continue
			}
			if !json.Valid([]byte(l)) {
				t.Fatalf("answer %s", l)
			}
			got++
		}
		if got != want {
			t.Fatalf("%d answers for %d lines of %q: %s", got, want, body, rec.Body)
		}
		if w.s.bodies.total() != 0 {
			t.Fatal("bytes are still held")
		}
	})
}

// FuzzHeaders sends any headers and parameters with a raw write and a read.
func FuzzHeaders(f *testing.F) {
	f.Add(`"a\"b"`, "application/json;q=0.5, */*", "text/plain", "token", "key=a", "id")
	f.Add(`k`, "", "application/json; charset=utf-8", "", "%", "")
	f.Fuzz(func(t *testing.T, key, accept, media, token, query, id string) {
		w := newWorld(t, nil)
		for _, method := range []string{"POST", "GET"} {
			r := httptest.NewRequest(method, "http://127.0.0.1/v1/topics/flights/records", strings.NewReader("x"))
			r.URL.RawQuery = query
			r.Header = map[string][]string{
				"Idempotency-Key": {key}, "Accept": {accept}, "Content-Type": {media}, "Geogate-Token": {token}, "X-Request-Id": {id},
			}
			if method == "GET" {
				r.URL.Path = "/v1/topics/flights/entities"
			}
			rec := httptest.NewRecorder()
			w.s.dataHandler().ServeHTTP(rec, r)
			if rec.Code == 500 || rec.Header().Get("X-Request-Id") == "" || !json.Valid(rec.Body.Bytes()) {
				t.Fatalf("%s: %d %s", method, rec.Code, rec.Body)
			}
			if rec.Code != 200 && rec.Header().Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%s: %d %v", method, rec.Code, rec.Header())
			}
		}
		if k, err := parseIdempotencyKey([]string{key}); err == nil && checkIdempotencyKey(k) != nil {
			t.Fatalf("key %q read as %q", key, k)
		}
	})
}

// FuzzConflictsTopic shows any record of the conflict feed: as an object that members can
// be added to, or not at all.
func FuzzConflictsTopic(f *testing.F) {
	f.Add([]byte(`{"topic":"flights","key":null,"reason":"twin","rule":null,"lost":{},"won":{}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"topic":"flights","cursor":"x"}`))
	f.Add([]byte("\x01"))
	f.Fuzz(func(t *testing.T, value []byte) {
		var skipped warning.Skipped
		j := conflictFeed{s: &Server{deps: Deps{Skipped: &skipped}}}
		out, shown, err := j.show(t.Context(), &txn.Entry{Record: txn.Record{Topic: control.TopicConflicts, Value: value}}, nil)
		if err != nil || shown != (skipped.Total() == 0) {
			t.Fatalf("%q is shown %v, skipped %d, %v", value, shown, skipped.Total(), err)
		}
		if !shown {
			return
		}
		out = append(out, `,"cursor":"c"}`...)
		var line struct{ Topic, Cursor string }
		if json.Unmarshal(out, &line) != nil || line.Topic == "" || line.Cursor != "c" || bytes.ContainsAny(out, "\r\n") {
			t.Fatalf("%q becomes %q", value, out)
		}
	})
}

// FuzzCursor reads any text as a cursor of each view.
func FuzzCursor(f *testing.F) {
	f.Add(event.Cursor{View: event.MergedView, Topic: event.HashTopic("t"), Visible: us, At: map[int32]event.Vector{0: vector(1, 2), placeBit: vector(3, 0)}}.String())
	f.Add(event.Cursor{View: event.ConflictView, Topic: event.HashTopic("t"), Visible: us, At: map[int32]event.Vector{3: vector(1, 0)}}.String())
	f.Add("latest")
	f.Add("ARDjuYpNoxoSfQEBA\rAADAQEtW92P")
	f.Fuzz(func(t *testing.T, text string) {
		s := &Server{cfg: Config{Region: us, Topology: topologyOf(t, "us", "eu")}}
		for _, view := range []event.View{event.MergedView, event.OriginView(us), event.OriginView(eu), event.ConflictView} {
			from, err := s.parseFrom(text, "t", view)
			var p *problem
			if err != nil && (!errors.As(err, &p) || p.code != codeCursorInvalid) {
				t.Fatalf("error %v", err)
			}
			if err == nil && from.given && from.cursor.String() != text {
				t.Fatalf("%q reads as %q", text, from.cursor)
			}
		}
	})
}
