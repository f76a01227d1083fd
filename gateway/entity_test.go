package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

// goldenLive is the state of interfaces.md 3: two live values, us wins.
func goldenLive(p int32) conflict.State {
	won := stamped(us, p, 4711, 0, "DTW", `{"delay":66}`)
	won.Stamp = goldenStamp()
	lost := stamped(eu, p, 93, 0, "DTW", `{"delay":0}`)
	lost.Stamp = 0x01a226bf49700000
	lost.ID = event.ID{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x70, 0x7f, 0x11, 0x8c, 0x02, 0x1d, 0x2e, 0x3f, 0x40, 0x51, 0x62}
	return conflict.State{Live: []conflict.Live{{Event: won}, {Event: lost}}}
}

func TestEntityIsThePinnedOne(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("DTW"), 6)
	s := w.seat("flights", p)
	s.entities["DTW"] = goldenLive(p)
	s.committed = vector(4712, 94)
	want := strings.ReplaceAll(compact(t, `{"topic":"flights","key":{"type":"string","data":"DTW"},"partition":3,"version":"eu/0/3/93+us/0/3/4711",
 "value":{"type":"json","data":{"delay":66}},"dot":"us/0/3/4711","id":"01a226bf-497b-7c3e-9a51-6f0d2f1b7e10","region":"us",
 "stamp":"01a226bf497b0007","timestamp":"2026-11-29T10:00:00.123Z","policy":"lww",
 "siblings":[{"dot":"eu/0/3/93","id":"01a226bf-4970-7f11-8c02-1d2e3f405162","region":"eu","stamp":"01a226bf49700000","op":"put"}]}`), "/0/3/", "/0/"+string(rune('0'+p))+"/")
	want = strings.Replace(want, `"partition":3`, `"partition":`+string(rune('0'+p)), 1)
	version := strings.Split(strings.Split(want, `"version":"`)[1], `"`)[0]
	for _, path := range []string{"/entities/DTW", "/entities/%44TW", "/entities?key=DTW"} {
		r := w.do(get("/v1/topics/flights" + path))
		if got := text(t, r); r.StatusCode != 200 || got != want {
			t.Errorf("%s: %d\n got %s\nwant %s", path, r.StatusCode, got, want)
		}
		if r.Header.Get("ETag") != `"`+version+`"` {
			t.Errorf("ETag %s", r.Header.Get("ETag"))
		}
		token, err := event.ParseToken(r.Header.Get("Geogate-Token"))
		if err != nil || token.Vector != vector(4712, 94) || token.Partition != p {
			t.Errorf("token %+v, %v", token, err)
		}
	}
	for tag, status := range map[string]int{
		`"` + version + `"`: 304, `W/"` + version + `"`: 304, `"x", "` + version + `"`: 304, `*`: 304, `"x"`: 200, version: 200,
	} {
		r := w.do(get("/v1/topics/flights/entities/DTW", "If-None-Match", tag))
		if body := text(t, r); r.StatusCode != status || (status == 304) != (body == "") || r.Header.Get("ETag") == "" || r.Header.Get("X-Request-Id") == "" {
			t.Errorf("If-None-Match %s: %d %q", tag, r.StatusCode, body)
		}
	}
	r := w.do(request{method: "HEAD", path: "/v1/topics/flights/entities/DTW"})
	if r.StatusCode != 200 || r.Header.Get("ETag") == "" {
		t.Errorf("HEAD: %d", r.StatusCode)
	}
}

func TestDeletedEntity(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("DTW"), 6)
	state := goldenLive(p)
	state.Live[0].Event.Op, state.Live[0].Event.Value = event.Delete, nil
	w.seat("flights", p).entities["DTW"] = state
	r := w.do(get("/v1/topics/flights/entities/DTW"))
	prob := problemOf(t, r)
	if r.StatusCode != 404 || prob["code"] != "ENTITY_UNKNOWN" || !strings.HasPrefix(prob["version"].(string), "eu/0/") {
		t.Errorf("problem %v", prob)
	}
	if _, has := problemOf(t, w.do(get("/v1/topics/flights/entities/other")))["version"]; has {
		t.Error("an unknown entity has a version")
	}
}

func TestKeepShowsSiblingValues(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("DTW"), 6)
	w.seat("pairs", p).entities["DTW"] = goldenLive(p)
	var got struct {
		Policy   string
		Siblings []struct{ Value, Op json.RawMessage }
	}
	if err := json.Unmarshal([]byte(text(t, w.do(get("/v1/topics/pairs/entities/DTW")))), &got); err != nil {
		t.Fatal(err)
	}
	if got.Policy != "keep" || len(got.Siblings) != 1 || string(got.Siblings[0].Value) != `{"type":"json","data":{"delay":0}}` {
		t.Errorf("entity %+v", got)
	}
}

// TestValuesThatAreInTheLogOnly: an entity whose state lacks values is shown as one that has
// them, and where the log has lost the value, the answer says so; it is not unknown.
func TestValuesThatAreInTheLogOnly(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("DTW"), 6)
	for _, topic := range []string{"flights", "pairs"} { // lww, keep
		s := w.seat(topic, p)
		s.events = make(map[event.Dot]event.Event)
		s.entities["DTW"] = goldenLive(p)
		want := text(t, w.do(get("/v1/topics/"+topic+"/entities/DTW")))
		short := goldenLive(p)
		for i := range short.Live {
			ev := &short.Live[i].Event
			s.events[ev.At] = *ev
			ev.Value, ev.Headers, ev.LeftOut = nil, nil, true
		}
		s.entities["DTW"] = short
		for range 2 { // what was read is not kept in the state
			if r := w.do(get("/v1/topics/" + topic + "/entities/DTW")); r.StatusCode != 200 || text(t, r) != want {
				t.Errorf("%s: status %d", topic, r.StatusCode)
			}
		}
		if !short.Live[0].Event.LeftOut {
			t.Error("the read changed the state")
		}
		s.mu.Lock()
		s.fetchErr = errors.New("timed out")
		s.mu.Unlock()
		r := w.do(get("/v1/topics/" + topic + "/entities/DTW"))
		if prob := problemOf(t, r); r.StatusCode != 503 || prob["code"] != "UPSTREAM_UNAVAILABLE" || prob["retriable"] != true {
			t.Errorf("%s: the log cannot be read: %v", topic, prob)
		}
		s.mu.Lock()
		s.fetchErr = fmt.Errorf("fetch: %w", view.ErrGone)
		s.mu.Unlock()
		r = w.do(get("/v1/topics/" + topic + "/entities/DTW"))
		if prob := problemOf(t, r); r.StatusCode != 410 || prob["code"] != "VALUE_GONE" || prob["retriable"] != false || prob["version"] == nil {
			t.Errorf("%s: the log has lost it: %v", topic, prob)
		}
	}
}

func TestKeysOfEveryKind(t *testing.T) {
	w := newWorld(t, nil)
	for key, path := range map[string]string{
		"Codertocat/Hello-World": "/Codertocat%2FHello-World",
		"":                       "?key=",
		".":                      "?key=.",
		"..":                     "?key=..",
		"a b+c":                  "/a%20b+c",
		"\xff\x00":               "/%FF%00",
		"ü":                      "/%C3%BC",
		"%2F":                    "/%252F",
	} {
		p := router.Partition([]byte(key), 6)
		st := goldenLive(p)
		w.seat("flights", p).entities[key] = st
		r := w.do(get("/v1/topics/flights/entities" + path))
		var got struct{ Key json.RawMessage }
		body := text(t, r)
		if err := json.Unmarshal([]byte(body), &got); err != nil || r.StatusCode != 200 || string(got.Key) != string(appendKey(nil, []byte(key))) {
			t.Errorf("key %q at %s: %d %s", key, path, r.StatusCode, body)
		}
	}
}

func TestReadYourWrites(t *testing.T) { synctest.Test(t, readYourWrites) }

func readYourWrites(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("DTW"), 6)
	s := w.seat("flights", p)
	s.entities["DTW"] = goldenLive(p)
	token := event.Token{Topic: event.HashTopic("flights"), Partition: p, Vector: vector(4712, 0), Stamp: goldenStamp()}.String()
	answered := make(chan *http.Response, 1)
	go func() { answered <- w.do(get("/v1/topics/flights/entities/DTW?wait=10s", "Geogate-Token", token)) }()
	s.commit(vector(4711, 0), -1)
	synctest.Wait()
	select {
	case r := <-answered:
		t.Fatalf("answered %d before the write was applied", r.StatusCode)
	default:
	}
	s.commit(vector(4712, 0), -1)
	if r := <-answered; r.StatusCode != 200 {
		t.Errorf("status %d: %s", r.StatusCode, text(t, r))
	}
	if r := w.do(get("/v1/topics/flights/entities/DTW?wait=0s", "Geogate-Token", token)); r.StatusCode != 200 {
		t.Errorf("covered, wait of nothing: %d", r.StatusCode)
	}
}

func TestViewErrors(t *testing.T) {
	w := newWorld(t, nil)
	for err, code := range map[error]code{seat.ErrNotReady: codeNotReady, seat.ErrSuperseded: codeNotReady, context.Canceled: codeDraining, errors.New("x"): codeInternal} {
		w.openErr = err
		if p := problemOf(t, w.do(get("/v1/topics/flights/entities/DTW"))); p["code"] != string(code) {
			t.Errorf("%v: %v", err, p)
		}
	}
}

// A view that has not folded yet what the topic holds is waited for, and then
// refused, never shown as an empty one.
func TestViewThatHasNotStarted(t *testing.T) {
	with, _ := withKafka(t)
	w := newWorld(t, with)
	started := make(chan struct{})
	for p := range int32(2) {
		w.seat("github", p).behind = started
	}
	w.seat("flights", router.Partition([]byte("DTW"), 6)).behind = started
	for _, path := range []string{"/v1/topics/github/records?wait=0s", "/v1/topics/flights/entities/DTW?wait=5ms"} {
		if p := problemOf(t, w.do(get(path))); p["code"] != string(codeNotReady) || p["retriable"] != true {
			t.Errorf("%s: %v", path, p)
		}
	}
	close(started)
	if p := w.page("/v1/topics/github/records?wait=0s"); !p.End {
		t.Errorf("caught up: %+v", p)
	}
	if p := problemOf(t, w.do(get("/v1/topics/flights/entities/DTW?wait=0s"))); p["code"] != string(codeEntityUnknown) {
		t.Errorf("caught up: %v", p)
	}
}
