package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

const (
	us event.RegionID = 1
	eu event.RegionID = 2
)

// world is a gateway over fakes of its ports, and over kfake where records are
// read.
type world struct {
	t      testing.TB
	s      *Server
	topics map[string]Topic

	mu      sync.Mutex
	write   func(context.Context, seat.Request, int32) (seat.Answer, error)
	openErr error
	panics  bool             // Open does
	held    map[string]error // what Open answers for partitions, as flights/3
	listErr error
	// topicErr is what Topic answers, if anything.
	topicErr atomic.Pointer[UnknownTopic]
	wrote    []seat.Request
	atOnce   bool // submissions are accepted at once, and not in wrote
	seats    map[string]*fakeSeat
	changed  chan struct{}
	remote   map[string]control.Topic
	covered  map[int32]control.Covered
	runs     map[int32]map[int64]control.Location // by partition and target offset
	barrier  map[int64]bool                       // by producer id
	ready    error
}

type fakeSeat struct {
	cancels map[*seat.Request]context.CancelFunc // of submissions; w.mu guards it
	last    map[orderPlace]chan struct{}         // closed when the last submission there is answered; w.mu guards it
	w       *world
	p       int32

	behind     chan struct{} // closed when it has caught up; nil always
	incomplete bool

	mu        sync.Mutex
	committed event.Vector
	moved     chan struct{}
	entities  map[string]conflict.State
	cps       []view.Checkpoint
	aliases   map[event.Dot][]event.Dot
	table     *event.ValidityTable
	orphans   map[event.Dot]conflict.Orphaned
	events    map[event.Dot]event.Event
	fetchErr  error // of every Fetch
}

func topologyOf(t testing.TB, names ...string) *router.Topology {
	t.Helper()
	var rs []router.Region
	for i, n := range names {
		rs = append(rs, router.Region{Name: n, ID: event.RegionID(i + 1)})
	}
	top, err := router.NewTopology(rs...)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func newWorld(t testing.TB, change func(*Config, *Deps)) *world {
	t.Helper()
	w := &world{
		t: t, seats: make(map[string]*fakeSeat), changed: make(chan struct{}),
		remote: make(map[string]control.Topic), covered: make(map[int32]control.Covered),
		runs: make(map[int32]map[int64]control.Location), barrier: make(map[int64]bool),
		topics: map[string]Topic{
			"flights": {Name: "flights", ID: [16]byte{1}, Partitions: 6, Domain: ownership.Domain{Name: "air", Kind: conflict.Entities, Mode: ownership.MultiWriter, Rule: event.LWW}},
			"pairs":   {Name: "pairs", ID: [16]byte{2}, Partitions: 6, Domain: ownership.Domain{Name: "pairs", Kind: conflict.Entities, Mode: ownership.MultiWriter, Rule: event.Keep}},
			"github":  {Name: "github", ID: [16]byte{3}, Partitions: 2, Domain: ownership.Domain{Name: "repos", Kind: conflict.Events, Mode: ownership.MultiWriter}},
		},
	}
	w.write = w.accept
	cfg := Config{Region: us, Topology: topologyOf(t, "us", "eu"), Data: ListenerConfig{Listen: "127.0.0.1:0"}, Manage: ListenerConfig{Listen: "127.0.0.1:0"}, Pprof: true}
	deps := Deps{Topics: w, Seats: w, Logs: w, Status: w, Registry: prometheus.NewRegistry(), Configz: []byte("region: us\n")}
	deps.Probes = []Probe{{Name: "tail", Ready: func(context.Context) error { return w.ready }}}
	if change != nil {
		change(&cfg, &deps)
	}
	var err error
	if w.s, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.s.Close)
	return w
}

// withKafka gives a world's server a kfake cluster with topics of two partitions.
func withKafka(t testing.TB, topics ...string) (func(*Config, *Deps), *kgo.Client) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topics...), kfake.SeedTopics(control.ConflictPartitions, control.TopicConflicts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	seeds := kgo.SeedBrokers(c.ListenAddrs()...)
	cl, err := kgo.NewClient(seeds, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return func(cfg *Config, deps *Deps) { deps.Kafka = []kgo.Opt{seeds} }, cl
}

// accept is a seat that stores everything at offset 4711.
func (w *world) accept(_ context.Context, req seat.Request, p int32) (seat.Answer, error) {
	id, stamp := goldenID(), goldenStamp()
	return seat.Answer{
		ID: id, At: event.Dot{Region: us, Partition: p, Offset: 4711}, Stamp: stamp,
		Timestamp: goldenTime, Epoch: event.FirstEpoch(us),
	}, nil
}

const goldenTime = 1795946400123 // 2026-11-29T10:00:00.123Z

func goldenID() event.ID {
	return event.ID{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x7b, 0x7c, 0x3e, 0x9a, 0x51, 0x6f, 0x0d, 0x2f, 0x1b, 0x7e, 0x10}
}

func goldenStamp() hlc.Stamp { return 0x01a226bf497b0007 }

func (w *world) Topic(_ context.Context, name string) (Topic, error) {
	if w.listErr != nil {
		return Topic{}, w.listErr
	}
	if err := w.topicErr.Load(); err != nil {
		return Topic{}, err
	}
	t, ok := w.topics[name]
	if !ok {
		return Topic{}, fmt.Errorf("find topic: %w", ErrTopicUnknown)
	}
	return t, nil
}

func (w *world) List(context.Context) ([]TopicEntry, error) {
	return []TopicEntry{{Name: "flights", Role: "local", Partitions: 6, Domain: "air", Kind: "entity", Policy: "lww", Links: []TopicLink{{"us-eu", "included", `include "*"`}}}}, nil
}

func (w *world) Status(context.Context) (Status, error) {
	return Status{Version: "0.1.0", Time: Time(time.UnixMilli(goldenTime)), Region: "us", Instance: "us-0", Mode: "solo", Residency: Residency{State: "off"}}, nil
}

func (w *world) Open(ctx context.Context, topic string, p int32) (Seat, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.panics {
		panic("secret payload")
	}
	if w.openErr != nil {
		return nil, w.openErr
	}
	if err := w.held[fmt.Sprintf("%s/%d", topic, p)]; err != nil {
		return nil, err
	}
	return w.seat(topic, p), ctx.Err()
}

func (w *world) seat(topic string, p int32) *fakeSeat {
	k := fmt.Sprintf("%s/%d", topic, p)
	if w.seats[k] == nil {
		w.seats[k] = &fakeSeat{
			w: w, p: p, moved: make(chan struct{}), entities: make(map[string]conflict.State), aliases: make(map[event.Dot][]event.Dot),
			cancels: make(map[*seat.Request]context.CancelFunc), last: make(map[orderPlace]chan struct{}),
		}
	}
	return w.seats[k]
}

func (f *fakeSeat) Write(ctx context.Context, req *seat.Request) (seat.Answer, error) {
	f.w.mu.Lock()
	write := f.w.write
	f.w.wrote = append(f.w.wrote, *req)
	f.w.mu.Unlock()
	return write(ctx, *req, f.p)
}

// Submit stores records side by side, but those of one order and record key one after
// the other and none after one that has failed.
func (f *fakeSeat) Submit(ws []seat.Submission) {
	if f.w.atOnce {
		for _, w := range ws {
			w.To.Answered(f.w.accept(context.Background(), *w.Request, f.p))
		}
		return
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, w := range ws {
		ctx, cancel := context.WithDeadline(context.Background(), w.Deadline)
		f.cancels[w.Request] = cancel
		place, done := orderPlace{w.Order, string(w.Request.Key)}, make(chan struct{})
		before := f.last[place]
		f.last[place] = done
		go func() {
			defer close(done)
			defer cancel()
			if before != nil && w.Order != nil && w.Request.Key != nil {
				<-before
			}
			if w.Order.Stops(w.Request.Key) {
				w.To.Answered(seat.Answer{}, seat.ErrAfterFailure)
				return
			}
			a, err := f.Write(ctx, w.Request)
			if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				err = &seat.OutcomeError{HadKey: !w.Request.Idempotency.IsZero()} // the wait has ended, not the write
			}
			var reused *seat.ReusedError
			if w.Order != nil && err != nil && !errors.Is(err, seat.ErrTooLarge) && !errors.As(err, &reused) {
				w.Order.Fail(w.Request.Key)
			}
			w.To.Answered(a, err)
		}()
	}
}

// Cancel ends the context of writes.
func (f *fakeSeat) Cancel(ws []seat.Submission) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, w := range ws {
		if cancel := f.cancels[w.Request]; cancel != nil {
			cancel()
		}
	}
}

// orderPlace is where writes follow each other.
type orderPlace struct {
	order *seat.Order
	key   string
}

func (f *fakeSeat) CaughtUp(ctx context.Context) error {
	if f.behind == nil {
		return nil
	}
	select {
	case <-f.behind:
		return nil
	default:
	}
	select {
	case <-f.behind:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("fold: %w", seat.ErrNotReady)
	}
}

func (f *fakeSeat) Complete() bool { return !f.incomplete }

func (f *fakeSeat) View() View { return f }

func (f *fakeSeat) Committed() (event.Vector, seat.Barriers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.committed, seat.NoBarriers()
}

// commit moves the committed vector, with a checkpoint if at is not negative.
func (f *fakeSeat) commit(v event.Vector, at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.committed = v
	if at >= 0 {
		f.cps = append(f.cps, view.Checkpoint{Offset: at, Vector: v})
	}
	close(f.moved)
	f.moved = make(chan struct{})
}

func (f *fakeSeat) Wait(ctx context.Context, v event.Vector) error {
	for {
		f.mu.Lock()
		ok, moved := f.committed.CoversAll(&v), f.moved
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeSeat) Entity(_ context.Context, key []byte) (conflict.State, bool, error) {
	s, ok := f.entities[string(key)]
	return s, ok, nil
}

func (f *fakeSeat) Checkpoints() []view.Checkpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]view.Checkpoint(nil), f.cps...)
}

func (f *fakeSeat) Aliases(at event.Dot) ([]event.Dot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.aliases[at], nil
}

func (f *fakeSeat) NextAliased(at event.Dot) (next event.Dot, found bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d, aliases := range f.aliases {
		same := d.Region == at.Region && d.Incarnation == at.Incarnation && d.Partition == at.Partition
		if same && len(aliases) > 0 && d.Offset >= at.Offset && (!found || d.Offset < next.Offset) {
			next, found = d, true
		}
	}
	return next, found, nil
}

func (f *fakeSeat) Validity() *event.ValidityTable {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table
}

func (f *fakeSeat) Orphan(at event.Dot) (conflict.Orphaned, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, ok := f.orphans[at]
	return o, ok, nil
}

func (f *fakeSeat) Fetch(_ context.Context, at event.Dot) (event.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ev, ok := f.events[at]
	if f.fetchErr != nil {
		return event.Event{}, f.fetchErr
	}
	if !ok {
		return ev, errors.New("no record is there any more")
	}
	return ev, nil
}

func (w *world) Incarnation(string, event.TopicID, int32) uint16 { return 0 }

func (w *world) IsBarrier(_ context.Context, _ event.TopicID, _ int32, producer int64, _ int16) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.barrier[producer], nil
}

func (w *world) Remote(origin event.RegionID, source string) (control.Topic, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.remote[source]
	return t, ok && origin == eu
}

func (w *world) Locate(_ event.RegionID, _ event.TopicID, p int32, target int64, _ int32) control.Location {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[p][target]
}

func (w *world) TargetOffsetFrom(_ event.RegionID, _ event.TopicID, p int32, inc uint16, source int64) (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	best := int64(-1)
	for target, l := range w.runs[p] {
		if l.State == control.Mapped && l.Source >= source && (best < 0 || target < best) {
			best = target
		}
	}
	return best, best >= 0
}

func (w *world) Covered(_ event.RegionID, _ event.TopicID, p int32) (control.Covered, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.covered[p]
	return c, ok
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// describe tells the fake follower where remote records come from.
func (w *world) describe(p int32, target, source, barrier int64, state control.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[p] == nil {
		w.runs[p] = make(map[int64]control.Location)
	}
	w.runs[p][target] = control.Location{State: state, Source: source, Barrier: barrier}
	close(w.changed)
	w.changed = make(chan struct{})
}

// request is one HTTP request in a test.
type request struct {
	method, path string
	header       map[string]string
	body         string
}

// do sends a request to the data handler.
func (w *world) do(r request) *http.Response { return do(w.t, w.s.dataHandler(), r) }

func do(t testing.TB, h http.Handler, r request) *http.Response {
	t.Helper()
	req := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
	if r.body == "" {
		req.Body = http.NoBody
		req.ContentLength = 0
	}
	req.Host = "127.0.0.1:18081"
	for k, v := range r.header {
		if k == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec.Result()
}

func post(topic, body string, header ...string) request {
	r := request{method: "POST", path: "/v1/topics/" + topic + "/records", body: body, header: map[string]string{"Content-Type": "application/json"}}
	for i := 0; i < len(header); i += 2 {
		r.header[header[i]] = header[i+1]
	}
	return r
}

func get(path string, header ...string) request {
	r := request{method: "GET", path: path, header: map[string]string{}}
	for i := 0; i < len(header); i += 2 {
		r.header[header[i]] = header[i+1]
	}
	return r
}

func text(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// problemOf reads an answer as a problem and checks what every one must have.
func problemOf(t testing.TB, r *http.Response) map[string]any {
	t.Helper()
	body := text(t, r)
	if ct := r.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("content type %q, body %s", ct, body)
	}
	return problemIn(t, []byte(body), r.StatusCode, r.Header.Get("X-Request-Id"))
}

func problemIn(t testing.TB, body []byte, status int, id string) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for _, name := range []string{"type", "title", "status", "detail", "instance", "code", "retriable"} {
		if p[name] == nil || p[name] == "" {
			t.Errorf("problem without %s: %s", name, body)
		}
	}
	if p["status"] != float64(status) || p["instance"] != "urn:request:"+id || id == "" {
		t.Errorf("status %d, id %q, problem %s", status, id, body)
	}
	code, _ := p["code"].(string)
	if p["type"] != "urn:geogate:problem:"+strings.ToLower(strings.ReplaceAll(code, "_", "-")) {
		t.Errorf("type %v of code %s", p["type"], code)
	}
	if _, has := p["errors"].([]any); has != (status == 400 || status == 422) {
		t.Errorf("errors in %s", body)
	}
	return p
}

func compact(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(s)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
