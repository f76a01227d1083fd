package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// fakeRegion answers writes: a key that it has not seen is refused once as
// retriable, then stored; "bad" is refused for good.
func fakeRegion(t *testing.T) (client.Client, map[string]int) {
	t.Helper()
	tries := make(map[string]int) // one request at a time: no lock needed
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		sc := bufio.NewScanner(req.Body)
		for i := 0; sc.Scan(); i++ {
			var line struct {
				Idem string `json:"idempotency_key"`
			}
			if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
				t.Errorf("line %q: %v", sc.Bytes(), err)
			}
			tries[line.Idem]++
			switch {
			case line.Idem == "bad":
				fmt.Fprintf(rw, `{"index":%d,"status":422,"problem":{"status":422,"code":"INVALID_RECORD","retriable":false}}`+"\n", i)
			case tries[line.Idem] == 1:
				fmt.Fprintf(rw, `{"index":%d,"status":503,"problem":{"status":503,"code":"NOT_READY","retriable":true}}`+"\n", i)
			default:
				fmt.Fprintf(rw, `{"dot":"us/0/0/%d","id":%q}`+"\n", tries[line.Idem], line.Idem)
			}
			if tries[line.Idem] == 1 && line.Idem == "torn" {
				return // the rest of the request goes unanswered
			}
		}
	}))
	t.Cleanup(srv.Close)
	return client.Client{HTTP: srv.Client(), Address: client.At(srv.URL, ""), Retry: time.Millisecond}, tries
}

func TestStoreAllAsksAgainForOpenLinesOnly(t *testing.T) {
	c, tries := fakeRegion(t)
	writes := []client.Write{{Topic: "t", Idem: "a"}, {Topic: "t", Idem: "torn"}, {Topic: "t", Idem: "c"}}
	answers, err := c.StoreAll(t.Context(), writes)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.ID != writes[i].Idem {
			t.Errorf("answer %d is %q's, want %q's", i, a.ID, writes[i].Idem)
		}
	}
	if tries["a"] != 2 || tries["torn"] != 2 || tries["c"] < 2 {
		t.Errorf("tries %v", tries)
	}
	if _, err := c.StoreAll(t.Context(), []client.Write{{Topic: "t", Idem: "a"}, {Topic: "t", Idem: "bad"}}); err == nil || !strings.Contains(err.Error(), "INVALID_RECORD") {
		t.Errorf("a line refused for good: %v", err)
	}
}

// TestStoreBatchAsksAgainForOpenRecordsOnly: of a batch that is stored in part, only what
// is open is sent again.
func TestStoreBatchAsksAgainForOpenRecordsOnly(t *testing.T) {
	tries := make(map[string]int)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		var batch struct {
			Records []struct {
				Idem string `json:"idempotency_key"`
			}
		}
		if err := json.NewDecoder(req.Body).Decode(&batch); err != nil || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("batch of type %s: %v", req.Header.Get("Content-Type"), err)
		}
		var results []string
		for i, r := range batch.Records {
			switch tries[r.Idem]++; {
			case r.Idem == "bad":
				results = append(results, fmt.Sprintf(`{"index":%d,"status":422,"problem":{"status":422,"code":"INVALID_RECORD","retriable":false}}`, i))
			case r.Idem == "late" && tries[r.Idem] < 3:
				results = append(results, fmt.Sprintf(`{"index":%d,"status":503,"problem":{"status":503,"code":"NOT_READY","retriable":true}}`, i))
			default:
				results = append(results, fmt.Sprintf(`{"id":%q}`, r.Idem))
			}
		}
		rw.WriteHeader(http.StatusMultiStatus)
		fmt.Fprintf(rw, `{"results":[%s]}`, strings.Join(results, ","))
	}))
	t.Cleanup(srv.Close)
	c := client.Client{HTTP: srv.Client(), Address: client.At(srv.URL, ""), Retry: time.Millisecond}
	answers, err := c.StoreBatch(t.Context(), []client.Write{{Topic: "t", Idem: "a"}, {Topic: "t", Idem: "late"}, {Topic: "t", Idem: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	if answers[0].ID != "a" || answers[1].ID != "late" || answers[2].ID != "c" || tries["a"] != 1 || tries["late"] != 3 || tries["c"] != 1 {
		t.Errorf("answers %+v, tries %v", answers, tries)
	}
	if _, err := c.StoreBatch(t.Context(), []client.Write{{Topic: "t", Idem: "bad"}}); err == nil || !strings.Contains(err.Error(), "INVALID_RECORD") {
		t.Errorf("a record refused for good: %v", err)
	}
}

// TestWritesAreSentUnchanged: the value's bytes are those that were given, and what
// is absent is null.
func TestWritesAreSentUnchanged(t *testing.T) {
	var body string
	var header http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		body, header = string(raw), req.Header
		rw.Header().Set("Idempotent-Replayed", "true")
		fmt.Fprint(rw, `{"id":"x"}`)
	}))
	t.Cleanup(srv.Close)
	c := client.Client{HTTP: srv.Client(), Address: client.At(srv.URL, "")}
	for _, tt := range []struct {
		write client.Write
		want  string
	}{
		{
			client.Write{Key: "k/\"1\"", Value: []byte(`{"a" : 1.50,"b":"<\u00e9>"}`), Idem: "f:1", Token: "tok"},
			`{"key":{"type":"string","data":"k/\"1\""},"value":{"type":"json","data":{"a" : 1.50,"b":"<\u00e9>"}}}`,
		},
		{
			client.Write{NoKey: true, Headers: []client.Header{{Name: "a", Value: "x"}, {Name: "b"}}},
			`{"key":null,"value":null,"headers":[{"name":"a","value":"eA=="},{"name":"b","value":""}]}`,
		},
	} {
		tt.write.Topic = "t"
		a, err := c.Try(t.Context(), tt.write)
		if err != nil || body != tt.want {
			t.Errorf("%v, body %s, want %s", err, body, tt.want)
		}
		if a.ID != "x" || !a.Replayed || a.Pending || a.Raw != `{"id":"x"}` {
			t.Errorf("answer %+v", a)
		}
		idem, token := header.Get("Idempotency-Key"), header.Get("Geogate-Token")
		if tt.write.Idem == "" && idem+token != "" || tt.write.Idem != "" && (idem != `"f:1"` || token != "tok") {
			t.Errorf("idempotency key %q, token %q", idem, token)
		}
	}
}

// TestStoreRetries: a refusal for good ends it, one that is retriable does not, and
// without an idempotency key neither does a broken connection go on.
func TestStoreRetries(t *testing.T) {
	answers := make(chan string, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		switch next := <-answers; next {
		case "break":
			panic(http.ErrAbortHandler)
		case "retry", "refuse":
			rw.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(rw, `{"code":"CODE","retriable":%t}`, next == "retry")
		default:
			fmt.Fprint(rw, `{"id":"x"}`)
		}
	}))
	t.Cleanup(srv.Close)
	c := client.Client{HTTP: srv.Client(), Address: client.At(srv.URL, ""), Retry: time.Millisecond}
	for _, tt := range []struct {
		idem    string
		answers []string
		left    int
		ok      bool
	}{
		{"i", []string{"retry", "break", "retry", "done"}, 0, true},
		{"", []string{"retry", "done"}, 0, true},
		{"", []string{"break", "done"}, 1, false},
		{"i", []string{"refuse", "done"}, 1, false},
	} {
		for _, a := range tt.answers {
			answers <- a
		}
		_, err := c.Store(t.Context(), client.Write{Topic: "t", Idem: tt.idem})
		if (err == nil) != tt.ok || len(answers) != tt.left {
			t.Errorf("%q, %v: %v, %d answers left", tt.idem, tt.answers, err, len(answers))
		}
		for len(answers) > 0 {
			<-answers
		}
	}
}

// TestFollowerGoesOn: a follower whose connection breaks asks again from its
// cursor, counts how often it was told to wait, and ends with a refusal for good.
func TestFollowerGoesOn(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		from := req.URL.Query().Get("from")
		asked = append(asked, from)
		switch from {
		case "earliest":
			fmt.Fprintln(rw, `{"dot":"1","cursor":"a"}`+"\n"+`{"heartbeat":true,"cursor":"b"}`)
		case "b":
			if len(asked) == 2 {
				rw.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(rw, `{"code":"STALE_VIEW","retriable":true}`)
				return
			}
			fmt.Fprintln(rw, `{"dot":"2","cursor":"c"}`)
		default:
			rw.WriteHeader(http.StatusGone)
			fmt.Fprint(rw, `{"code":"CURSOR_EXPIRED"}`)
		}
	}))
	t.Cleanup(srv.Close)
	c := client.Client{HTTP: srv.Client(), Address: client.At(srv.URL, ""), Retry: time.Millisecond}
	f := c.Keep(t.Context(), "t", "earliest")
	defer f.End()
	err := client.Poll(t.Context(), time.Millisecond, func() error {
		if !f.Ended() {
			return errors.New("goes on")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, cursor, err := f.End()
	if len(got) != 2 || got[0].Dot != "1" || got[1].Dot != "2" || cursor != "c" || client.Code(err) != "CURSOR_EXPIRED" {
		t.Errorf("got %+v, cursor %s, %v", got, cursor, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n, stale := f.Count(); n != 2 || stale != 1 || !slices.Equal(asked, []string{"earliest", "b", "b", "c"}) {
		t.Errorf("%d records, %d times stale, asked %q", n, stale, asked)
	}
}

// TestOriginJudges writes a log with two terms by hand: a record of the
// first term that comes late is void, and an aborted marker is no barrier.
func TestOriginJudges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	k, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	open := func(opts ...kgo.Opt) *kgo.Client {
		c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(k.Seeds()...), kgo.DefaultProduceTopic("t"))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := open()
	if _, err := kadm.NewClient(c).CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	term := open(kgo.TransactionalID("own"))
	// marker ends a transaction; the library adds a partition only with a
	// record, so the record before each marker is part of this test's log.
	marker := func(how kgo.TransactionEndTry, barrier int64) {
		if err := term.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := term.ProduceSync(ctx, stamped(barrier)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := term.EndTransaction(ctx, how); err != nil {
			t.Fatal(err)
		}
	}
	put := func(barrier int64) {
		if err := c.ProduceSync(ctx, stamped(barrier)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	marker(kgo.TryCommit, 0) // 0 record (names a barrier not before it), 1 barrier
	put(1)                   // 2 valid
	marker(kgo.TryAbort, 1)  // 3 valid by the rule, 4 abort marker: no barrier
	put(1)                   // 5 valid
	marker(kgo.TryCommit, 1) // 6 valid, 7 barrier
	put(1)                   // 8 void: barrier 7 lies between
	put(7)                   // 9 valid
	put(12)                  // 10 void: its barrier does not lie before it
	log, barriers, err := client.Origin(ctx, k.Seeds(), 1, "t")
	if err != nil {
		t.Fatal(err)
	}
	var void []int64
	for _, rec := range log {
		if rec.Void {
			void = append(void, rec.At.Offset)
		}
	}
	if fmt.Sprint(void) != "[0 8 10]" || barriers != 2 || len(log) != 8 {
		t.Errorf("void %v of %d records, %d barriers", void, len(log), barriers)
	}
}

func stamped(barrier int64) *kgo.Record {
	e := event.Envelope{Region: 1, Barrier: barrier, Epoch: event.FirstEpoch(1), Stamp: 1 << 16, Op: event.Put, ID: event.ID{1}}
	return &kgo.Record{Key: []byte("k"), Value: []byte("v"), Headers: event.ToHeaders[kgo.RecordHeader](e.Append(nil))}
}
