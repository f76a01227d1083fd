package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router/ownership"
)

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
	if w.s.bodies.total() != 0 {
		t.Error("bytes are still held")
	}
}

// TestTopicLimits: a record that the topic, or something derived from it, does not take is
// refused before it is stored, in every form of a write, and the answer names the setting.
func TestTopicLimits(t *testing.T) {
	w := newWorld(t, nil)
	w.mu.Lock()
	x := w.topics["github"]
	x.Limit = RecordLimit{Bytes: 100, Topic: "github.merged"}
	w.topics["github"] = x
	w.mu.Unlock()
	record := func(n int) string { return `{"value":{"type":"string","data":"` + strings.Repeat("x", n) + `"}}` }
	headers := `{"value":{"type":"string","data":"x"},"headers":[` + strings.TrimSuffix(strings.Repeat(`{"name":"h","value":null},`, 10), ",") + `]}`
	for _, body := range []string{record(101), headers} {
		r := w.do(post("github", body, "Content-Type", "application/json"))
		if p := problemOf(t, r); r.StatusCode != 413 || p["code"] != "RECORD_TOO_LARGE" || p["retriable"] != false || !strings.Contains(p["detail"].(string), "the limit is 100, by max.message.bytes of github.merged") {
			t.Errorf("answer %v", p)
		}
	}
	got := strings.Split(strings.TrimSpace(text(t, w.do(post("github", record(101)+"\n"+record(100)+"\n", "Content-Type", "application/x-ndjson")))), "\n")
	if len(got) != 2 || !strings.Contains(got[0], "RECORD_TOO_LARGE") || !strings.Contains(got[1], `"ack":"local"`) {
		t.Errorf("answers %.300q", got)
	}
	if w.mu.Lock(); len(w.wrote) != 1 {
		t.Errorf("%d records were stored", len(w.wrote))
	}
	w.mu.Unlock()
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
	if w.s.bodies.total() != 0 {
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

// TestStreamSeesChanges: what a stream's lines may do is asked again when more of them
// arrive.
func TestStreamSeesChanges(t *testing.T) {
	may := &permission{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = may })
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	in, out := io.Pipe()
	req, err := http.NewRequest("POST", srv.URL+"/v1/topics/github/records", in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	line := func() { fmt.Fprintln(out, `{"value":{"type":"json","data":0}}`) }
	go line()
	r, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	answers := bufio.NewScanner(r.Body)
	next := func(want string) {
		t.Helper()
		if !answers.Scan() || !strings.Contains(answers.Text(), want) {
			t.Fatalf("answer %q, %v; want %s", answers.Text(), answers.Err(), want)
		}
	}
	next(`"ack":"local"`)
	may.set(&ownership.NotOwnerError{Unit: "repos/us", State: ownership.UnitFenced})
	line()
	next("NOT_OWNER")
	may.set(nil)
	line()
	next(`"ack":"local"`)
	w.topicErr.Store(&UnknownTopic{Topic: "github", Detail: "it was deleted"})
	line()
	next("TOPIC_UNKNOWN")
	w.topicErr.Store(nil)
	line()
	next(`"ack":"local"`)
	out.Close()
	if answers.Scan() {
		t.Errorf("one answer more: %q", answers.Text())
	}
}

// permission is an Ownership that may change its mind.
type permission struct {
	Ownership
	err atomic.Pointer[ownership.NotOwnerError]
}

func (p *permission) set(err *ownership.NotOwnerError) { p.err.Store(err) }

func (p *permission) Check(string) error {
	if err := p.err.Load(); err != nil {
		return err
	}
	return nil
}

// TestUnreadStream: a client that sends lines and does not take the answers holds only its
// share of what waits to be read, and others of the same address go on.
func TestUnreadStream(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody, c.MaxInflight = 1<<10, 2<<20, 4<<20 })
	w.atOnce = true
	w.running()
	c := ask(t, "127.0.0.2", w.s.DataAddr(), "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nContent-Length: 2000000\n\n")
	go func() { // it blocks once nothing more is read
		for {
			if _, err := fmt.Fprint(c, strings.Repeat(`{"value":{"type":"json","data":0}}`+"\n", 100)); err != nil {
				return
			}
		}
	}()
	eventually(t, "a full window", func() bool { return w.s.unread.total() >= 3<<19 })
	for range 3 {
		if n := w.s.unread.total(); n > 2<<20 {
			t.Errorf("unread answers hold %d bytes", n)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("/v1/topics/github/records"), strings.NewReader(`{"value":{"type":"json","data":0}}`+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		if got := status(t, clientOf(t, "127.0.0.3"), req); got != 200 {
			t.Errorf("a stream beside one that is not read: %d", got)
		}
	}
}

// TestStreamBuffers: what resting streams keep to read many lines at a time counts for their
// address like bodies; streams for which there is no room read fewer at a time.
func TestStreamBuffers(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody, c.MaxInflight = 1<<10, 64<<10, 512<<10 })
	w.atOnce = true
	w.running()
	type open struct {
		net.Conn
		answers *bufio.Scanner
	}
	var all []open
	exchange := func(c open, lines int) {
		t.Helper()
		if _, err := fmt.Fprint(c, strings.Repeat(`{"value":{"type":"json","data":0}}`+"\n", lines)); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < lines; {
			if !c.answers.Scan() {
				t.Fatalf("%d answers of %d: %v", got, lines, c.answers.Err())
			}
			if strings.Contains(c.answers.Text(), `"ack":"local"`) {
				got++
			} else if strings.Contains(c.answers.Text(), `"problem"`) {
				t.Fatal(c.answers.Text())
			}
		}
	}
	for range 8 {
		conn := ask(t, "127.0.0.2", w.s.DataAddr(), "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nContent-Length: 60000\n\n")
		c := open{conn, bufio.NewScanner(conn)}
		all = append(all, c)
		exchange(c, 50)
	}
	const most = 4 * streamBuffer // half of what there is
	eventually(t, "buffers alone", func() bool { n := w.s.bodies.total(); return n > 0 && n <= most && n%streamBuffer == 0 })
	for _, c := range all {
		exchange(c, 50)
	}
	for _, c := range all {
		_ = c.Close()
	}
	eventually(t, "nothing held", func() bool { return w.s.bodies.total() == 0 })
}
