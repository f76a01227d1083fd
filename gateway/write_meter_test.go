package gateway

import (
	"context"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/seat"
)

func TestWriteMeterLooksBackFiveMinutes(t *testing.T) {
	m := newWriteMeter()
	now := time.Unix(1e9, 0)
	flights := m.of("flights")
	if m.of("flights") != flights {
		t.Error("a topic has two meters")
	}
	for i := range 100 {
		took := 2 * time.Millisecond
		if i >= 98 {
			took = 300 * time.Millisecond
		}
		flights.stored(now.Add(time.Duration(i)*time.Second), took)
	}
	flights.refused(now, codeNotReady)
	flights.refused(now.Add(200*time.Second), codeNotReady)
	m.of("idle")
	look := func(after time.Duration) []WriteStatus { return m.status(now.Add(after)) }

	all := look(200 * time.Second)
	if len(all) != 1 || all[0].Topic != "flights" || all[0].Stored != 100 || !maps.Equal(all[0].Refused, map[string]int{"NOT_READY": 2}) || all[0].Seconds != 300 {
		t.Fatalf("%+v", all)
	}
	if p50, p99 := *all[0].P50, *all[0].P99; p50 < 2 || p50 > 2*1.2 || p99 < 300 || p99 > 300*1.2 {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
	// Slots are of ten seconds: the first five have left.
	if all = look(345 * time.Second); all[0].Stored != 50 || all[0].Refused["NOT_READY"] != 1 {
		t.Errorf("%+v", all)
	}
	if all = look(400 * time.Second); len(all) != 1 || all[0].Stored != 0 || all[0].P50 != nil {
		t.Errorf("%+v", all)
	}
	if all = look(time.Hour); all != nil {
		t.Errorf("%+v", all)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.seconds, m.refusals)
	families, err := reg.Gather()
	if err != nil || len(families) != 2 {
		t.Fatal(families, err)
	}
	if n := families[0].GetMetric()[0].GetCounter().GetValue(); n != 2 || families[0].GetName() != "geogate_write_refusals_total" {
		t.Errorf("%v of %s", n, families[0].GetName())
	}
	for _, f := range families[1].GetMetric() {
		if h := f.GetHistogram(); f.GetLabel()[0].GetValue() == "flights" && (h.GetSampleCount() != 100 || len(h.GetPositiveSpan()) == 0) {
			t.Errorf("%v", h)
		}
	}
}

// TestLatencyBuckets: a latency is never shown shorter than it was, nor by a fifth longer.
func TestLatencyBuckets(t *testing.T) {
	for took := time.Microsecond; took < 20*time.Second; took += took/7 + 1 {
		ms := float64(took) / float64(time.Millisecond)
		if end := endOf(bucketOf(took)); end < ms-.01 || took > leastLatency && end > ms*1.2+.01 {
			t.Fatalf("%s is shown as %v ms", took, end)
		}
	}
	if got := endOf(bucketOf(time.Hour)); got < 20_000 {
		t.Errorf("an hour is shown as %v ms", got)
	}
}

// TestWritesAreMeasuredByTopic: a stored record, a replay, which is none, refusals of a
// topic that exists, and one that does not, which is nothing to remember.
func TestWritesAreMeasuredByTopic(t *testing.T) {
	w := newWorld(t, nil)
	body := `{"value":{"type":"string","data":"x"}}`
	w.do(post("github", body))
	replays := w.write
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		a, err := w.accept(ctx, req, p)
		a.Replayed = true
		return a, err
	}
	w.do(post("github", body, "Idempotency-Key", "k"))
	w.write = func(context.Context, seat.Request, int32) (seat.Answer, error) {
		return seat.Answer{}, seat.ErrNotReady
	}
	w.do(post("github", body))
	w.write = replays
	w.do(post("github", `{"vlaue":1}`))
	w.do(post("nowhere", body))
	w.do(post("nowhere", `{"vlaue":1}`))

	// Lines and records of batches are measured one by one.
	w.do(post("flights", `{"key":{"type":"string","data":"a"},"value":{"type":"json","data":1}}`+"\n{}\n"+`{"key":{"type":"string","data":"b"},"value":{"type":"json","data":1}}`+"\n", "Content-Type", "application/x-ndjson"))
	w.do(post("flights", `{"records":[{"key":{"type":"string","data":"a"},"value":{"type":"json","data":1}},{"value":{"type":"json","data":1}}]}`))

	var status Status
	r := do(t, w.s.managementHandler(), get("/v1/status"))
	if err := json.Unmarshal([]byte(text(t, r)), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Writes) != 2 {
		t.Fatalf("%+v", status.Writes)
	}
	if many := status.Writes[0]; many.Topic != "flights" || many.Stored != 3 || !maps.Equal(many.Refused, map[string]int{"MALFORMED": 1, "INVALID_RECORD": 1}) {
		t.Errorf("%+v", many)
	}
	got := status.Writes[1]
	if got.Topic != "github" || got.Stored != 1 || got.P50 == nil || *got.P50 != *got.P99 || !maps.Equal(got.Refused, map[string]int{"NOT_READY": 1, "MALFORMED": 1}) {
		t.Errorf("%+v", got)
	}
}
