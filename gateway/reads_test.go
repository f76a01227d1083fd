package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// page is an answer of GET …/records.
type page struct {
	Records []struct {
		Dot    string
		ID     *string
		Op     string
		Key    json.RawMessage
		Value  json.RawMessage
		Cursor string
	}
	Next string
	End  bool
}

func (p page) dots() string {
	var out []string
	for _, r := range p.Records {
		out = append(out, r.Dot)
	}
	return strings.Join(out, " ")
}

func (w *world) page(path string, header ...string) page {
	w.t.Helper()
	r := w.do(get(path, header...))
	body := text(w.t, r)
	var p page
	if err := json.Unmarshal([]byte(body), &p); err != nil || r.StatusCode != 200 {
		w.t.Fatalf("%s: status %d, %v, %s", path, r.StatusCode, err, body)
	}
	return p
}

func produce(t testing.TB, cl *kgo.Client, topic string, p int32, key, value []byte, hs []event.Header) int64 {
	t.Helper()
	rec := &kgo.Record{Topic: topic, Partition: p, Key: key, Value: value, Headers: event.ToHeaders[kgo.RecordHeader](hs), Timestamp: time.UnixMilli(goldenTime)}
	if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return rec.Offset
}

// stamped is an event as a gateway of a region writes it.
func stamped(r event.RegionID, p int32, offset, barrier int64, key, value string) event.Event {
	ev := event.Event{
		Envelope: event.Envelope{ID: goldenID(), Region: r, Barrier: barrier, Epoch: event.FirstEpoch(r), Stamp: goldenStamp() + event.Stamp(offset), Op: event.Put},
		At:       event.Dot{Region: r, Partition: p, Offset: offset}, Stamped: true, Key: []byte(key), Value: []byte(value), Timestamp: goldenTime,
	}
	if value == "" {
		ev.Op, ev.Value = event.Delete, nil
	}
	return ev
}

// merge puts an event into a merged topic.
func merge(t testing.TB, cl *kgo.Client, topic string, rule event.Rule, ev event.Event) int64 {
	t.Helper()
	m := conflict.Merged{Event: &ev, Rule: rule}
	return produce(t, cl, router.Merged(topic), ev.At.Partition, ev.Key, ev.Value, m.Headers())
}

// logged puts an event into a log as a gateway writes it.
func logged(t testing.TB, cl *kgo.Client, topic string, ev event.Event) int64 {
	t.Helper()
	return produce(t, cl, topic, ev.At.Partition, ev.Key, ev.Value, ev.Envelope.Append(ev.Headers))
}

func vector(usNext, euNext int64) (v event.Vector) {
	v[us].Next, v[eu].Next = usNext, euNext
	return v
}

// TestCursorClaimsNoMoreThanWasRead: a fold step's commit is answered before its
// markers are written, so the committed vector may be ahead of the end that a
// committed reader can reach. The cursor at that end must not cover the rest, and the
// answer must not say that it is the end.
func TestCursorClaimsNoMoreThanWasRead(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", `1`))
	w.seat("github", 0).commit(vector(1, 0), 1)
	w.seat("github", 0).commit(vector(3, 2), 3) // two more records, markers to come
	p := w.page("/v1/topics/github/records?from=earliest")
	if len(p.Records) != 1 || p.End {
		t.Fatalf("page %+v", p)
	}
	merge(t, cl, "github", 0, stamped(us, 0, 2, 0, "a", `2`))
	merge(t, cl, "github", 0, stamped(eu, 0, 1, 0, "b", `3`))
	if got := w.page("/v1/topics/github/records?from=" + p.Next).dots(); got != "us/0/0/2 eu/0/0/1" {
		t.Errorf("behind the cursor: %q", got)
	}
}

// TestEndCoversWhatWasApplied: a read that meets a commit whose marker is still on its
// way waits for it, or says that there is more.
func TestEndCoversWhatWasApplied(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	w.seat("github", 0).commit(vector(2, 0), 2) // markers to come
	pages := make(chan string)
	go func() {
		defer close(pages)
		for next, end := "earliest", false; !end; {
			p := w.page("/v1/topics/github/records?from=" + next)
			pages <- p.dots()
			next, end = p.Next, p.End
		}
	}()
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", `1`))
	merge(t, cl, "github", 0, stamped(us, 0, 1, 0, "a", `2`))
	var got []string
	for dots := range pages {
		got = append(got, strings.Fields(dots)...)
	}
	if want := []string{"us/0/0/0", "us/0/0/1"}; !slices.Equal(got, want) {
		t.Errorf("up to the end: %v, want %v", got, want)
	}
}

func TestMergedEventsOnceEach(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	for i := range int64(3) {
		merge(t, cl, "github", 0, stamped(us, 0, i, 0, "a", fmt.Sprint(i)))
	}
	merge(t, cl, "github", 0, stamped(eu, 0, 7, 0, "b", `"eu"`))
	merge(t, cl, "github", 0, stamped(us, 1, 4, 0, "c", `{"x": 1}`))
	w.seat("github", 0).commit(vector(5, 8), 4)
	w.seat("github", 1).commit(vector(6, 0), 1)

	var got []string
	next, pages := "earliest", 0
	for {
		p := w.page("/v1/topics/github/records?limit=2&from=" + next)
		got = append(got, p.dots())
		next = p.Next
		if pages++; p.End || pages > 9 {
			break
		}
	}
	all := strings.Fields(strings.Join(got, " "))
	if len(all) != 5 || pages != 3 {
		t.Errorf("%d pages: %v", pages, got)
	}
	seen := map[string]bool{}
	for _, d := range all {
		seen[d] = true
	}
	for _, d := range []string{"us/0/0/0", "us/0/0/1", "us/0/0/2", "eu/0/0/7", "us/0/1/4"} {
		if !seen[d] {
			t.Errorf("%s is missing from %v", d, all)
		}
	}
	// At the end the cursor claims all that is committed, also what shows nothing.
	c, err := event.ParseCursor(next)
	if err != nil || c.At[0] != vector(5, 8) || c.At[1] != vector(6, 0) || c.Visible != us {
		t.Errorf("cursor %+v, %v", c, err)
	}
	p := w.page("/v1/topics/github/records?from=" + next)
	if len(p.Records) != 0 || !p.End {
		t.Errorf("after the end: %+v", p)
	}
	// latest begins where the view stands.
	p = w.page("/v1/topics/github/records?from=latest")
	if len(p.Records) != 0 || !p.End {
		t.Errorf("latest: %+v", p)
	}
	merge(t, cl, "github", 0, stamped(us, 0, 5, 0, "a", "5"))
	if p = w.page("/v1/topics/github/records?from=" + p.Next); p.dots() != "us/0/0/5" {
		t.Errorf("after latest: %+v", p)
	}
}

func TestMergedCursorMovesBetweenRegions(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	inUS := newWorld(t, with)
	withEU, clEU := withKafka(t, "github.merged")
	inEU := newWorld(t, func(c *Config, d *Deps) { withEU(c, d); c.Region = eu })

	// us emitted its own copy of a retried write; eu emitted its own one first.
	merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", "0"))
	merge(t, cl, "github", 0, stamped(us, 0, 1, 0, "twin", "1"))
	merge(t, cl, "github", 0, stamped(eu, 0, 1, 0, "b", "2"))
	inUS.seat("github", 0).commit(vector(2, 0), -1)

	merge(t, clEU, "github", 0, stamped(eu, 0, 0, 0, "twin", "1"))
	merge(t, clEU, "github", 0, stamped(eu, 0, 1, 0, "b", "2"))
	merge(t, clEU, "github", 0, stamped(us, 0, 0, 0, "a", "0"))
	merge(t, clEU, "github", 0, stamped(us, 0, 2, 0, "c", "3"))
	s := inEU.seat("github", 0)
	s.aliases[event.Dot{Region: eu, Offset: 0}] = []event.Dot{{Region: us, Offset: 1}}

	first := inUS.page("/v1/topics/github/records?limit=2")
	if first.dots() != "us/0/0/0 us/0/0/1" {
		t.Fatalf("in us: %s", first.dots())
	}
	r := inEU.do(get("/v1/topics/github/records?wait=30ms&from=" + first.Next))
	if p := problemOf(t, r); r.StatusCode != 503 || p["code"] != "STALE_VIEW" {
		t.Errorf("not covered yet: %v", p)
	}
	go s.commit(vector(3, 2), -1)
	if p := inEU.page("/v1/topics/github/records?wait=5s&from=" + first.Next); p.dots() != "eu/0/0/1 us/0/0/2" || !p.End {
		t.Errorf("in eu: %s", p.dots())
	}
}

func TestMergedEntities(t *testing.T) {
	with, cl := withKafka(t, "flights.merged")
	two := func(c *Config, d *Deps) { with(c, d) }
	w := newWorld(t, two)
	f := w.topics["flights"]
	f.Partitions = 2
	w.topics["flights"] = f
	// Dots that do not rise: a correction shows an older value again.
	offsets := []int64{3, 1, 4, 2}
	for i, o := range offsets {
		merge(t, cl, "flights", event.LWW, stamped(us, 0, o, 0, fmt.Sprint("k", o), fmt.Sprint(i)))
	}
	merge(t, cl, "flights", event.LWW, stamped(us, 0, 9, 0, "gone", ""))
	s := w.seat("flights", 0)
	s.commit(vector(4, 0), 2)
	s.commit(vector(10, 0), 5)

	var got []string
	next := "earliest"
	for range 6 {
		p := w.page("/v1/topics/flights/records?limit=1&from=" + next)
		got = append(got, p.dots())
		next = p.Next
		if p.End {
			break
		}
	}
	if s := strings.Join(got, ","); s != "us/0/0/3,us/0/0/1,us/0/0/4,us/0/0/2,us/0/0/9" {
		t.Errorf("records %s", s)
	}
	// In the middle of a stretch the vector is that of the checkpoint before, so
	// another region begins there; this region goes on at the very record.
	p := w.page("/v1/topics/flights/records?limit=3")
	c, err := event.ParseCursor(p.Next)
	if err != nil || c.At[0] != vector(4, 0) {
		t.Errorf("cursor %+v, %v", c, err)
	}
	if p = w.page("/v1/topics/flights/records?from=" + p.Next); p.dots() != "us/0/0/2 us/0/0/9" || p.Records[1].Op != "del" || string(p.Records[1].Value) != "null" {
		t.Errorf("after three: %+v", p)
	}
	c.Visible = eu
	for p := range c.At {
		if p >= placeBit {
			delete(c.At, p)
		}
	}
	if p = w.page("/v1/topics/flights/records?from=" + c.String()); p.dots() != "us/0/0/4 us/0/0/2 us/0/0/9" {
		t.Errorf("with a cursor from elsewhere: %s", p.dots())
	}
	// A place that cannot be right is left aside.
	c.Visible = us
	c.At[placeBit] = vector(7777, 0)
	if p = w.page("/v1/topics/flights/records?from=" + c.String()); p.dots() != "us/0/0/4 us/0/0/2 us/0/0/9" {
		t.Errorf("with a place behind the end: %s", p.dots())
	}
}

func TestLargeRecordsStillCome(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	big := strings.Repeat("x", 700<<10)
	for i := range int64(14) {
		merge(t, cl, "github", 0, stamped(us, 0, i, 0, "a", big))
	}
	w.seat("github", 0).commit(vector(14, 0), 14)
	total, next := 0, "earliest"
	for range 14 {
		p := w.page("/v1/topics/github/records?from=" + next)
		if total += len(p.Records); p.End {
			break
		}
		if len(p.Records) == 0 {
			t.Fatal("a page without a record that is not the end")
		}
		next = p.Next
	}
	if total != 14 {
		t.Errorf("%d records", total)
	}
}

func TestLongPoll(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	p := w.page("/v1/topics/github/records?wait=20ms")
	if len(p.Records) != 0 || !p.End || p.Next == "" {
		t.Fatalf("empty: %+v", p)
	}
	go merge(t, cl, "github", 0, stamped(us, 0, 0, 0, "a", "1"))
	if p = w.page("/v1/topics/github/records?wait=10s&from=" + p.Next); p.dots() != "us/0/0/0" {
		t.Errorf("waited for: %+v", p)
	}
}

func TestTopicsThatDoNotExistYet(t *testing.T) {
	with, _ := withKafka(t)
	w := newWorld(t, with)
	for _, view := range []string{"merged", "origin:eu"} {
		if p := w.page("/v1/topics/github/records?view=" + view); len(p.Records) != 0 || !p.End {
			t.Errorf("%s: %+v", view, p)
		}
	}
	r := w.do(get("/v1/conflicts"))
	if body := text(t, r); r.StatusCode != 200 || !strings.HasPrefix(body, `{"conflicts":[],"next":"`) || !strings.HasSuffix(body, `,"end":true}`) {
		t.Errorf("conflicts: %d %s", r.StatusCode, body)
	}
}

// marker writes a data-less transaction's marker by way of a transaction with
// one record that is aborted or committed; kgo does not end empty ones.
func marker(t testing.TB, seeds kgo.Opt, topic string, p int32, id string) {
	t.Helper()
	cl, err := kgo.NewClient(seeds, kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, topic, p, nil, []byte("by "+id), nil)
	if err := cl.EndTransaction(context.Background(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
}

func TestLocalLog(t *testing.T) {
	var seeds kgo.Opt
	with, cl := withKafka(t, "github")
	w := newWorld(t, func(c *Config, d *Deps) { with(c, d); seeds = d.Kafka[0] })
	everyMarkerIsABarrier(w)
	marker(t, seeds, "github", 0, "one")                                           // record 0, barrier 1
	logged(t, cl, "github", stamped(us, 0, 2, 1, "a", "2"))                        // valid
	marker(t, seeds, "github", 0, "two")                                           // record 3, barrier 4
	logged(t, cl, "github", stamped(us, 0, 5, 1, "late", "5"))                     // void: 4 lies between
	logged(t, cl, "github", stamped(us, 0, 6, 4, "b", "6"))                        // valid
	logged(t, cl, "github", stamped(us, 0, 7, 9, "ahead", "7"))                    // void: barrier not before it
	produce(t, cl, "github", 0, nil, []byte("native"), []event.Header{{Key: "h"}}) // 8, no envelope
	produce(t, cl, "github", 0, nil, []byte("forged"), []event.Header{{Key: "gg-v", Value: []byte{1}}})
	want := []string{"us/0/0/0", "us/0/0/2", "us/0/0/3", "us/0/0/6", "us/0/0/8"}
	p := w.page("/v1/topics/github/records?view=local")
	if p.dots() != strings.Join(want, " ") || !p.End {
		t.Errorf("local: %s", p.dots())
	}
	if p.Records[4].ID != nil || p.Records[1].ID == nil || string(p.Records[4].Key) != "null" {
		t.Errorf("ids and keys: %+v", p.Records)
	}
	// From every place in the log the verdicts are the same, with and without
	// what earlier readers have learnt.
	for from := range int64(10) {
		for _, fresh := range []bool{true, false} {
			if fresh {
				w.s.scans = barrierCache{}
			}
			var at event.Vector
			at[us].Next = from
			c := event.Cursor{View: event.OriginView(us), Topic: event.HashTopic("github"), Visible: eu, At: map[int32]event.Vector{0: at}}
			var rest []string
			for _, d := range want {
				dot, _ := event.ParseDot(d, w.s.cfg.Topology)
				if dot.Offset >= from {
					rest = append(rest, d)
				}
			}
			for _, view := range []string{"local", "origin:us"} {
				if p := w.page("/v1/topics/github/records?limit=1000&view=" + view + "&from=" + c.String()); p.dots() != strings.Join(rest, " ") {
					t.Errorf("%s from %d (fresh %v): %s, want %v", view, from, fresh, p.dots(), rest)
				}
			}
		}
	}
	// Page by page.
	var got []string
	next := "earliest"
	for range 9 {
		p := w.page("/v1/topics/github/records?view=local&limit=1&from=" + next)
		if got = append(got, p.dots()); p.End {
			break
		}
		next = p.Next
	}
	if s := strings.TrimSpace(strings.Join(got, " ")); s != strings.Join(want, " ") {
		t.Errorf("one by one: %s", s)
	}
	var beyond event.Vector
	beyond[us].Next = 99
	c := event.Cursor{View: event.OriginView(us), Topic: event.HashTopic("github"), Visible: us, At: map[int32]event.Vector{0: beyond}}
	if p := problemOf(t, w.do(get("/v1/topics/github/records?view=local&wait=1ms&from="+c.String()))); p["code"] != "STALE_VIEW" {
		t.Errorf("behind the end: %v", p)
	}
}

func everyMarkerIsABarrier(w *world) {
	for id := range int64(1000) {
		w.barrier[id] = true
	}
	w.s.deps.Logs = allBarriers{w}
}

type allBarriers struct{ *world }

func (allBarriers) IsBarrier(context.Context, event.TopicID, int32, int64, int16) (bool, error) {
	return true, nil
}

func TestRemoteLog(t *testing.T) {
	with, cl := withKafka(t, "eu.github")
	w := newWorld(t, with)
	w.remote["github"] = control.Topic{Name: "eu.github", ID: [16]byte{9}}
	logged(t, cl, "eu.github", stamped(eu, 0, 10, 4, "a", "0"))
	logged(t, cl, "eu.github", stamped(eu, 0, 11, 2, "void", "1"))
	produce(t, cl, "eu.github", 0, nil, []byte("foreign"), nil)
	logged(t, cl, "eu.github", stamped(eu, 0, 15, 4, "b", "3"))
	w.describe(0, 0, 10, 4, control.Mapped)
	w.describe(0, 1, 11, 4, control.Mapped)
	w.describe(0, 2, 0, 0, control.Foreign)
	p := w.page("/v1/topics/github/records?view=origin:eu")
	if p.dots() != "eu/0/0/10" || p.End {
		t.Errorf("not all is described: %s, end %v", p.dots(), p.End)
	}
	go w.describe(0, 3, 15, 4, control.Mapped)
	p = w.page("/v1/topics/github/records?view=origin:eu&wait=10s&from=" + p.Next)
	if p.dots() != "eu/0/0/15" || !p.End {
		t.Errorf("rest: %s, end %v", p.dots(), p.End)
	}
	// An idle link moves the cursor on.
	w.covered[0] = control.Covered{Source: event.Point{Next: 40}, Target: 4}
	p = w.page("/v1/topics/github/records?view=origin:eu&from=" + p.Next)
	c, err := event.ParseCursor(p.Next)
	if err != nil || c.At[0] != vector(0, 40) || c.View != event.OriginView(eu) {
		t.Errorf("cursor %+v, %v", c, err)
	}
	if p = w.page("/v1/topics/github/records?view=origin:eu&from=" + p.Next); len(p.Records) != 0 || !p.End {
		t.Errorf("covered: %+v", p)
	}
	c.At[0] = vector(0, 41)
	if p := problemOf(t, w.do(get("/v1/topics/github/records?view=origin:eu&wait=1ms&from="+c.String()))); p["code"] != "STALE_VIEW" {
		t.Errorf("not copied yet: %v", p)
	}
	// The cursor that eu gives of its own log is the same one.
	c.At[0] = vector(0, 11)
	c.Visible = eu
	if p := w.page("/v1/topics/github/records?view=origin:eu&from=" + c.String()); p.dots() != "eu/0/0/15" {
		t.Errorf("with eu's cursor: %s", p.dots())
	}
	if p = w.page("/v1/topics/github/records?view=origin:eu&from=latest"); len(p.Records) != 0 {
		t.Errorf("latest: %s", p.dots())
	}
}

func TestRetentionIsNoSilentGap(t *testing.T) {
	with, cl := withKafka(t, "github", "github.merged")
	w := newWorld(t, with)
	for i := range int64(4) {
		logged(t, cl, "github", stamped(us, 0, i, 0, "a", "x"))
		merge(t, cl, "github", 0, stamped(us, 0, i, 0, "a", "x"))
	}
	w.seat("github", 0).commit(vector(1, 0), 1)
	local := w.page("/v1/topics/github/records?view=local&limit=1").Next
	mergedAt := w.page("/v1/topics/github/records?limit=1").Next
	trim(t, cl, 3, "github", "github.merged")
	for _, path := range []string{"view=local&from=" + local, "from=" + mergedAt} {
		r := w.do(get("/v1/topics/github/records?" + path))
		if p := problemOf(t, r); r.StatusCode != 410 || p["code"] != "CURSOR_EXPIRED" {
			t.Errorf("%s: %v", path, p)
		}
	}
	for _, view := range []string{"local", "merged"} {
		if p := w.page("/v1/topics/github/records?view=" + view); p.dots() != "us/0/0/3" {
			t.Errorf("%s from earliest: %s", view, p.dots())
		}
	}
}
