package seat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
)

const (
	remote    = "eu.flights"
	partition = 1
)

// cluster is a broker, embedded or real, with the topics that a seat needs. A test
// has its own local topic.
type cluster struct {
	t     testing.TB
	seeds []string
	topic string
	fake  *kfake.Cluster // nil for a real one
	admin *kadm.Client
	ids   map[string]event.TopicID
}

func fakeCluster(t testing.TB) *cluster {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) }) // runs last
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return prepare(t, c.ListenAddrs(), c, "flights")
}

func prepare(t testing.TB, seeds []string, fake *kfake.Cluster, topic string) *cluster {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	c := &cluster{t: t, seeds: seeds, topic: topic, fake: fake, admin: kadm.NewClient(cl), ids: map[string]event.TopicID{}}
	compact := "compact"
	for name, n := range map[string]int32{
		topic: 2, remote: 2, control.TopicControl: 1, control.TopicTopics: 1, control.TopicIncarnations: 1,
		control.ControlFrom("eu"): 1, control.PositionsFrom("eu"): 4, control.RunsFrom("eu"): 4,
	} {
		var configs map[string]*string
		if name != topic && name != remote {
			configs = map[string]*string{"cleanup.policy": &compact}
		}
		resp, err := c.admin.CreateTopic(t.Context(), n, 1, configs, name)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			t.Fatal(err)
		}
		c.ids[name] = resp.ID
	}
	return c
}

// folder stands in for the view: it remembers what it was given.
type folder struct {
	mu       sync.Mutex
	vector   event.Vector
	barriers seat.Barriers
	items    []judged.Item
	table    *event.ValidityTable
	moved    chan struct{}
}

func newFolder() *folder { return &folder{barriers: seat.NoBarriers(), moved: make(chan struct{})} }

func (f *folder) Committed() (event.Vector, seat.Barriers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.vector, f.barriers
}

func (f *folder) Context([]byte) (event.Vector, uint16, error) {
	v, _ := f.Committed()
	return v, 0, nil
}

func (f *folder) Confirm(context.Context) error { return nil }

func (f *folder) Fold(_ context.Context, items []judged.Item) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range items {
		f.items = append(f.items, it)
		switch revokes := it.Verdict == judged.Orphan && it.Validity != nil; {
		case it.Verdict == judged.Cuts:
			f.table = it.Validity
			continue
		case revokes && f.vector[it.Origin].Compare(it.Next) < 0:
			return fmt.Errorf("item of region %d up to %v is revoked before it is folded", it.Origin, it.Next)
		case revokes:
			continue
		case f.vector[it.Origin].Compare(it.Next) >= 0:
			return fmt.Errorf("item of region %d up to %v again", it.Origin, it.Next)
		}
		f.vector[it.Origin], f.barriers[it.Origin] = it.Next, it.Barrier
	}
	close(f.moved)
	f.moved = make(chan struct{})
	return nil
}

func (f *folder) Validity() *event.ValidityTable {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table
}

// values lists the values of valid items folded of an origin.
func (f *folder) values(r event.RegionID) (vs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range f.items {
		if it.Origin == r && it.Verdict == judged.Valid {
			vs = append(vs, string(it.Event.Value))
		}
	}
	return vs
}

// until waits for the fold to satisfy ok.
func (f *folder) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		f.mu.Lock()
		moved := f.moved
		f.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-moved:
		case <-deadline:
			t.Fatalf("waited in vain for %s; folded to %v", what, f.vector)
		}
	}
}

// instance is one process of region us.
type instance struct {
	t        testing.TB
	seat     *seat.Seat
	follower *control.Follower
	producer *seat.Producer
	folder   *folder
	store    dedupe.Store
	clock    *hlc.Clock
	index    *dedupe.Index
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	ended    chan error // the seat's
}

// start runs an instance over a store and what a fold has committed.
func (c *cluster) start(name string, store dedupe.Store, f *folder, tune ...func(*seat.Config)) *instance {
	t := c.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	opts := []kgo.Opt{kgo.SeedBrokers(c.seeds...)}
	var err error
	in := &instance{t: t, folder: f, store: store, clock: hlc.NewClock(time.Now, hlc.Bounds{}), ended: make(chan error, 1)}
	in.follower, err = control.New(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Opts: opts})
	must(err)
	tail, err := seat.NewTail(seat.TailConfig{Opts: opts, Control: in.follower})
	must(err)
	in.producer, err = seat.NewProducer(900<<10, false, opts...)
	must(err)
	in.index, err = dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, store)
	must(err)
	cfg := seat.Config{
		Topic: c.topic, ID: c.ids[c.topic], Partition: partition, Region: 1, Regions: []event.RegionID{1, 2},
		Control: in.follower, Tail: tail, Producer: in.producer, Index: in.index, Folder: f, Clock: in.clock,
		Opener: seat.NewOpener(in.producer, c.topic, c.ids[c.topic], partition, name, txn.Options{}, nil),
	}
	for _, fn := range tune {
		fn(&cfg)
	}
	in.seat, err = seat.New(cfg)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	in.cancel = cancel
	in.wg.Go(func() { _ = in.follower.Run(ctx) })
	in.wg.Go(func() { _ = tail.Run(ctx) })
	in.wg.Go(func() { in.ended <- in.seat.Run(ctx) })
	t.Cleanup(in.stop)
	return in
}

// stop ends the process as a kill would: nothing is drained.
func (in *instance) stop() {
	in.cancel()
	in.wg.Wait()
	in.producer.Close()
}

// store appends a record to the own log, past the seat.
func (in *instance) append(c *cluster, r seat.Record) {
	in.t.Helper()
	rec := &kgo.Record{
		Topic: c.topic, Partition: partition, Key: r.Key, Value: r.Value,
		Headers: event.ToHeaders[kgo.RecordHeader](r.Headers), Timestamp: time.UnixMilli(r.Timestamp),
	}
	if err := in.producer.Client().ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		in.t.Fatal(err)
	}
}

func (in *instance) ready() *instance {
	in.t.Helper()
	select {
	case <-in.seat.Ready():
	case <-time.After(time.Minute):
		in.t.Fatal("the seat does not get ready")
	}
	return in
}

// indexed waits until the index has read again what is folded: keys are not taken for free
// before.
func (in *instance) indexed() *instance {
	in.t.Helper()
	deadline := time.After(time.Minute)
	for {
		committed, _ := in.folder.Committed()
		if applied := in.index.Applied(); applied.CoversAll(&committed) {
			return in
		}
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			in.t.Fatalf("folded %v, indexed %v", committed, in.index.Applied())
		}
	}
}

func request(key byte, value string) *seat.Request {
	q := &seat.Request{Request: event.Request{
		Topic: "flights", Key: []byte("DTW"), Op: event.Put, Value: []byte(value), Partition: -1,
		Headers: []event.Header{{Key: "src", Value: []byte("x")}, {Key: "src", Value: nil}},
	}}
	if key != 0 {
		q.Idempotency, q.Fingerprint = event.IdempotencyKey{key}, q.Request.Fingerprint()
	}
	return q
}

func (in *instance) write(key byte, value string) (seat.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return in.seat.Write(ctx, request(key, value))
}

func (in *instance) mustWrite(key byte, value string) seat.Answer {
	in.t.Helper()
	a, err := in.write(key, value)
	if err != nil {
		in.t.Fatalf("write %q: %v", value, err)
	}
	return a
}

// life is the straight path: barrier, produce, read back, answer, replay, fold.
func life(c *cluster) {
	t := c.t
	store, f := dedupe.NewMemory(), newFolder()
	in := c.start("us-0", store, f).ready()
	if in.seat.LastBarrier(100) != seat.NoBarrier {
		t.Error("a barrier was written before the first write")
	}
	a := in.mustWrite(1, "a")
	if a.At != (event.Dot{Region: 1, Partition: partition, Offset: 1}) || a.Epoch != 17 || a.Replayed {
		t.Errorf("first answer %+v", a)
	}
	if in.seat.LastBarrier(1) != 0 || in.seat.LastBarrier(0) != seat.NoBarrier {
		t.Errorf("last barrier below 1: %d", in.seat.LastBarrier(1))
	}
	b := in.mustWrite(0, "b")
	if b.Stamp <= a.Stamp || b.At.Offset != 2 {
		t.Errorf("second answer %+v", b)
	}
	replay := in.mustWrite(1, "a")
	a.Replayed = true
	if replay != a {
		t.Errorf("replay %+v, first %+v", replay, a)
	}
	var reused *seat.ReusedError
	if _, err := in.write(1, "other"); !errors.As(err, &reused) || reused.FirstUsed != a.Stamp.Time() {
		t.Errorf("key with another body: %v", err)
	}
	f.until(t, "two events folded", func() bool { return len(f.values(1)) == 2 })
	if f.items[0].Verdict != judged.Skip || f.items[0].Barrier != 0 || f.items[1].Barrier != 0 {
		t.Errorf("folded %+v", f.items)
	}
	ev := f.items[1].Event
	if ev.ID != a.ID || ev.Timestamp != a.Timestamp || len(ev.Headers) != 2 || ev.Headers[1].Value != nil || string(ev.Key) != "DTW" {
		t.Errorf("event %+v", ev)
	}
	if cl, ok := in.seat.Claims(); !ok || cl.End.Next != 3 || cl.Closed < b.Stamp {
		t.Errorf("claims %+v, %v", cl, ok)
	}
	in.stop()
	if err := <-in.ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	if _, err := in.write(2, "c"); !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("write to a stopped seat: %v", err)
	}
	restarts(c, store, f, a)
}

// restarts goes on after a kill with the store kept, then with it deleted.
func restarts(c *cluster, store dedupe.Store, f *folder, a seat.Answer) {
	t := c.t
	t.Helper()
	for i, s := range []dedupe.Store{store, dedupe.NewMemory()} {
		in := c.start("us-0", s, f).ready()
		if replay := in.mustWrite(1, "a"); replay != a {
			t.Errorf("restart %d: replay %+v, first %+v", i, replay, a)
		}
		if st := in.seat.Status(); st.Term != seat.NoBarrier {
			t.Errorf("restart %d: a term is held before the first new write: %+v", i, st)
		}
		next := in.mustWrite(byte(10+i), "again")
		if in.seat.LastBarrier(next.At.Offset) != next.At.Offset-1 {
			t.Errorf("restart %d: answer %+v, last barrier %d", i, next, in.seat.LastBarrier(next.At.Offset))
		}
		if in.seat.LastBarrier(1) != 0 {
			t.Errorf("restart %d: the first barrier is forgotten", i)
		}
		if next.Stamp <= a.Stamp {
			t.Errorf("restart %d: stamp %v after %v", i, next.Stamp, a.Stamp)
		}
		f.until(t, "the new write", func() bool { return len(f.values(1)) >= 3+i })
		in.stop()
	}
	if got := f.values(1); len(got) != 4 {
		t.Errorf("folded %q", got)
	}
}

// takeOver lets a second instance write while the first runs on.
func takeOver(c *cluster) {
	t := c.t
	one := c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	one.mustWrite(1, "a")
	fold := newFolder()
	two := c.start("us-1", dedupe.NewMemory(), fold).ready()
	if a := two.mustWrite(1, "a"); !a.Replayed {
		t.Errorf("the second instance does not know the key: %+v", a)
	}
	if _, err := one.write(2, "still mine"); err != nil {
		t.Errorf("the first lost its seat before the second wrote: %v", err)
	}
	b := two.mustWrite(3, "b")
	select {
	case err := <-one.ended:
		if !errors.Is(err, seat.ErrSuperseded) {
			t.Errorf("first instance ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the first instance did not notice")
	}
	if _, err := one.write(4, "late"); !errors.Is(err, seat.ErrSuperseded) || !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("write to the superseded seat: %v", err)
	}
	// What the first had under way lands behind the barrier: void for everyone.
	env := event.Envelope{ID: event.ID{9}, Region: 1, Barrier: 0, Epoch: 17, Stamp: b.Stamp + 1, Op: event.Put, Key: event.IdempotencyKey{5}}
	two.append(c, seat.Record{Key: []byte("DTW"), Value: []byte("zombie"), Headers: env.Append(nil), Timestamp: 1})
	if a := two.mustWrite(5, "mine"); a.Replayed {
		t.Errorf("a void record holds its key: %+v", a)
	}
	fold.until(t, "the last write", func() bool { vs := fold.values(1); return len(vs) > 0 && vs[len(vs)-1] == "mine" })
	if got := fmt.Sprint(fold.values(1)); got != "[a still mine b mine]" {
		t.Errorf("folded %s", got)
	}
	if st := two.seat.Status(); st.Void != 1 {
		t.Errorf("status %+v", st)
	}
}

// foreignTransaction leaves another producer's transaction open in the partition:
// answers go on, the fold waits.
func foreignTransaction(c *cluster) {
	t := c.t
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	in.mustWrite(1, "a")
	f.until(t, "the first", func() bool { return len(f.values(1)) == 1 })
	open, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.TransactionalID("foreign"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: c.topic, Partition: partition, Key: []byte("x"), Value: []byte("foreign")}
	if err := open.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b := in.mustWrite(2, "b")
	if b.At.Offset != r.Offset+1 {
		t.Errorf("answer %+v behind foreign record %d", b, r.Offset)
	}
	if got := f.values(1); len(got) != 1 {
		t.Errorf("folded above the last stable offset: %q", got)
	}
	if err := open.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	f.until(t, "the second", func() bool { return len(f.values(1)) == 2 })
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r = &kgo.Record{Topic: c.topic, Partition: partition, Key: []byte("x"), Value: []byte("committed")}
	if err := open.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := open.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	in.mustWrite(3, "c") // a foreign commit marker lies before it: no barrier
	f.until(t, "the last", func() bool { return len(f.values(1)) == 4 })
	if got := fmt.Sprint(f.values(1)); got != "[a b committed c]" {
		t.Errorf("folded %s", got)
	}
}

func TestLife(t *testing.T)               { life(fakeCluster(t)) }
func TestTakeOver(t *testing.T)           { takeOver(fakeCluster(t)) }
func TestForeignTransaction(t *testing.T) { foreignTransaction(fakeCluster(t)) }
