package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

// A topic that is held takes no writes, which no retry changes. Its reads answer what is
// known and name what may lack records, in a header: the body of an entity is the same in
// every region.
func TestHeldTopic(t *testing.T) {
	with, cl := withKafka(t, "flights.merged")
	w := newWorld(t, with)
	p := router.Partition([]byte("DTW"), 6)
	w.seat("flights", p).entities["DTW"] = goldenLive(p)
	free := w.do(get("/v1/topics/flights/entities/DTW"))
	merge(t, cl, "flights", event.LWW, stamped(us, 0, 0, 0, "a", "1"))
	w.seat("flights", 0).commit(vector(1, 0), 1)

	held := w.topics["flights"]
	held.Held = "the topic has 6 partitions in us and 3 in eu"
	w.topics["flights"] = held
	r := w.do(post("flights", `{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":1}}`))
	if prob := problemOf(t, r); r.StatusCode != 503 || prob["code"] != "PARTITION_HELD" || prob["retriable"] != false || !strings.Contains(prob["detail"].(string), held.Held) {
		t.Errorf("a write is answered %v", prob)
	}
	if len(w.wrote) != 0 {
		t.Errorf("%d writes reached the seat", len(w.wrote))
	}
	r = w.do(get("/v1/topics/flights/entities/DTW"))
	if body := text(t, r); r.StatusCode != 200 || body != text(t, free) || r.Header.Get("Geogate-Incomplete") != fmt.Sprintf("flights/%d", p) {
		t.Errorf("status %d, header %v, body %s", r.StatusCode, r.Header, body)
	}
	if free.Header.Get("Geogate-Incomplete") != "" {
		t.Errorf("a topic that is not held lacks %s", free.Header.Get("Geogate-Incomplete"))
	}
	r = w.do(get("/v1/topics/flights/entities/other"))
	if prob := problemOf(t, r); prob["code"] != "ENTITY_UNKNOWN" || r.Header.Get("Geogate-Incomplete") == "" {
		t.Errorf("an entity that is not known here: %v, header %v", prob, r.Header)
	}
	r = w.do(get("/v1/topics/flights/records?from=earliest"))
	if r.StatusCode != 200 || r.Header.Get("Geogate-Incomplete") != "flights/0, flights/1, flights/2, flights/3, flights/4, flights/5" {
		t.Errorf("status %d, header %v", r.StatusCode, r.Header)
	}
}

// Partitions that cannot be read now do not take the others away: the answer says which,
// the cursor keeps their place, and they are read on from there when they work again.
func TestReadLacksAPartition(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", "0"))
	merge(t, cl, "github", 0, stamped(us, 1, 0, 0, "b", "0"))
	w.seat("github", 0).commit(vector(1, 0), 1)
	w.seat("github", 1).commit(vector(1, 0), 1)
	both := w.page("/v1/topics/github/records?from=earliest")
	if len(both.Records) != 2 {
		t.Fatalf("page %+v", both)
	}
	merge(t, cl, "github", 0, stamped(us, 0, 1, 0, "a", "1"))
	merge(t, cl, "github", 0, stamped(us, 1, 1, 0, "b", "1"))
	w.seat("github", 0).commit(vector(2, 0), 2)
	w.seat("github", 1).commit(vector(2, 0), 2)
	for _, why := range []error{seat.ErrHeld, ErrTopicBlocked} {
		w.held = map[string]error{"github/1": fmt.Errorf("open: %w", why)}
		r := w.do(get("/v1/topics/github/records?from=" + both.Next))
		if r.StatusCode != 200 || r.Header.Get("Geogate-Incomplete") != "github/1" {
			t.Errorf("%v: status %d, header %v", why, r.StatusCode, r.Header)
		}
		lacking := w.page("/v1/topics/github/records?from=" + both.Next)
		if lacking.dots() != "us/0/0/1" {
			t.Errorf("%v: page %+v", why, lacking)
		}
		w.held = nil
		if rest := w.page("/v1/topics/github/records?from=" + lacking.Next); rest.dots() != "us/0/1/1" || !rest.End {
			t.Errorf("%v: the rest is %+v", why, rest)
		}
	}
	w.seat("github", 0).incomplete = true // another region's log of it cannot be read
	r := w.do(get("/v1/topics/github/records?from=earliest"))
	if r.StatusCode != 200 || r.Header.Get("Geogate-Incomplete") != "github/0" {
		t.Errorf("a seat that is not complete: status %d, header %v", r.StatusCode, r.Header)
	}
	w.held = map[string]error{"github/0": seat.ErrHeld, "github/1": seat.ErrHeld}
	r = w.do(get("/v1/topics/github/records?from=earliest"))
	if prob := problemOf(t, r); prob["code"] != "PARTITION_HELD" {
		t.Errorf("with nothing to read: %v", prob)
	}
}

// The view of an events topic spans more partitions than keys are spread over, and than
// the own log has: all are read, those of the log are written where a record names one.
func TestViewSpansMorePartitions(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	topic := w.topics["github"]
	topic.Partitions, topic.Local, topic.Span = 1, 1, 2
	w.topics["github"] = topic
	merge(t, cl, "github", 0, stamped(eu, 1, 0, 0, "b", "0"))
	w.seat("github", 1).commit(vector(0, 1), 1)
	p := w.page("/v1/topics/github/records?from=earliest", "Geogate-Token", event.Token{Topic: event.HashTopic("github"), Partition: 1, Vector: vector(0, 1)}.String())
	if p.dots() != "eu/0/1/0" || !p.End {
		t.Errorf("page %+v", p)
	}
	write := func(partition int) int {
		return w.do(post("github", fmt.Sprintf(`{"key":{"type":"string","data":"k"},"value":{"type":"json","data":1},"partition":%d}`, partition))).StatusCode
	}
	if status := write(1); status != 422 {
		t.Errorf("a write to a partition of another region's log: %d", status)
	}
	topic.Local = 2
	w.topics["github"] = topic
	if status := write(1); status != 200 {
		t.Errorf("a write to a partition that keys are not spread over: %d", status)
	}
	for i := range 20 {
		if r := w.do(post("github", fmt.Sprintf(`{"key":{"type":"string","data":"%d"},"value":{"type":"json","data":1}}`, i))); !strings.Contains(text(t, r), `"partition":0`) {
			t.Errorf("key %d went elsewhere", i)
		}
	}
}
