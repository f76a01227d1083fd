package gateway

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
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
