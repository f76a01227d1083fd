//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
)

// fakeRegion answers writes: a key that it has not seen is refused once as
// retriable, then stored; "bad" is refused for good.
func fakeRegion(t *testing.T) (*world, *region, map[string]int) {
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
	return &world{http: srv.Client()}, &region{name: "us", data: srv.URL}, tries
}

func TestStoreAllAsksAgainForOpenLinesOnly(t *testing.T) {
	w, r, tries := fakeRegion(t)
	writes := []write{{topic: "t", idem: "a"}, {topic: "t", idem: "torn"}, {topic: "t", idem: "c"}}
	answers, err := w.storeAll(t.Context(), r, writes)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.ID != writes[i].idem {
			t.Errorf("answer %d is %q's, want %q's", i, a.ID, writes[i].idem)
		}
	}
	if tries["a"] != 2 || tries["torn"] != 2 || tries["c"] < 2 {
		t.Errorf("tries %v", tries)
	}
	if _, err := w.storeAll(t.Context(), r, []write{{topic: "t", idem: "a"}, {topic: "t", idem: "bad"}}); err == nil || !strings.Contains(err.Error(), "INVALID_RECORD") {
		t.Errorf("a line refused for good: %v", err)
	}
}

func TestBodyKeepsBytes(t *testing.T) {
	value := `{"a" : 1.50,"b":"<\u00e9>"}`
	wr := write{topic: "t", key: "k/\"1\"", idem: "f:1", value: []byte(value)}
	var doc struct {
		Key   typed  `json:"key"`
		Value typed  `json:"value"`
		Idem  string `json:"idempotency_key"`
	}
	if err := json.Unmarshal(wr.body(true), &doc); err != nil {
		t.Fatal(err)
	}
	if string(doc.Value.Data) != value || doc.Idem != "f:1" || string(doc.Key.Data) != `"k/\"1\""` {
		t.Errorf("body %s", wr.body(true))
	}
	if wr.value = nil; !bytes.Contains(wr.body(false), []byte(`"value":null`)) {
		t.Errorf("deletion %s", wr.body(false))
	}
}

// TestReadOriginJudges writes a log with two terms by hand: a record of the
// first term that comes late is void, and an aborted marker is no barrier.
func TestReadOriginJudges(t *testing.T) {
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
	o, err := readOrigin(ctx, &region{name: "us", id: 1, broker: nil, kafkaPort: portOf(t, k.Seeds()[0])}, "t")
	if err != nil {
		t.Fatal(err)
	}
	var void []int64
	for _, rec := range o.all {
		if rec.void {
			void = append(void, rec.At.Offset)
		}
	}
	if fmt.Sprint(void) != "[0 8 10]" || o.barriers != 2 || len(o.all) != 8 {
		t.Errorf("void %v of %d records, %d barriers", void, len(o.all), o.barriers)
	}
}

func stamped(barrier int64) *kgo.Record {
	e := event.Envelope{Region: 1, Barrier: barrier, Epoch: event.FirstEpoch(1), Stamp: 1 << 16, Op: event.Put, ID: event.ID{1}}
	return &kgo.Record{Key: []byte("k"), Value: []byte("v"), Headers: event.ToHeaders[kgo.RecordHeader](e.Append(nil))}
}

func portOf(t *testing.T, addr string) (port int) {
	t.Helper()
	if _, err := fmt.Sscanf(addr, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	return port
}
