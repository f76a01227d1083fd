package ownership_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// deaf is a register that stores everything and whose watch brings nothing, so that
// the watch is requested again and again.
type deaf struct {
	t        *testing.T
	mu       sync.Mutex
	seq      uint64
	watches  int
	watching bool
	closed   bool
	enough   chan struct{} // closed when the watch was started a few times
}

// use fails when the register is used after it was closed.
func (r *deaf) use() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.t.Error("the register is used after it was closed")
	}
}

func (r *deaf) Open(context.Context) (ownership.Opened, error) {
	r.use()
	return ownership.Opened{Created: 1}, nil
}

func (r *deaf) Write(context.Context, ownership.Write) (ownership.Outcome, uint64) {
	r.use()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	return ownership.Stored, r.seq
}

func (r *deaf) Read(context.Context, string) (ownership.Seen, bool) { return ownership.Seen{}, false }
func (r *deaf) Broadcast(ownership.Broadcast)                       { r.use() }
func (r *deaf) Ask(string, uint64)                                  { r.use() }
func (r *deaf) Reconnect()                                          { r.use() }
func (r *deaf) Voters(context.Context) (all, reachable int, err error) {
	return 1, 1, nil
}
func (r *deaf) LastWrite() time.Duration { return 0 }

func (r *deaf) Watch(ctx context.Context, _ uint64, _ func(ownership.Seen)) error {
	r.use()
	r.mu.Lock()
	if r.watching {
		r.t.Error("a watch begins before the one before it has ended")
	}
	r.watching = true
	if r.watches++; r.watches == 5 {
		close(r.enough)
	}
	r.mu.Unlock()
	<-ctx.Done()
	for range 1000 {
		runtime.Gosched()
	}
	r.mu.Lock()
	r.watching = false
	r.mu.Unlock()
	return ctx.Err()
}

func (r *deaf) Raise(context.Context, uint64) (uint64, error) { return 0, nil }

func (r *deaf) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// noMirror is a copy in Kafka of which nothing is known.
type noMirror struct{}

func (noMirror) Load(context.Context) (ownership.Memory, error) { return ownership.Memory{}, nil }
func (noMirror) Abandon(context.Context, string) error          { return nil }
func (noMirror) See(context.Context, ownership.Seen)            {}
func (noMirror) Run(ctx context.Context) error                  { <-ctx.Done(); return nil }

// TestOneWatchAtATime: a watch that is requested again begins when the one before
// has ended, and nothing uses the register after Run has closed it.
func TestOneWatchAtATime(t *testing.T) {
	topology, err := router.NewTopology(twoRegions...)
	if err != nil {
		t.Fatal(err)
	}
	r := &deaf{t: t, enough: make(chan struct{})}
	var connected func()
	c, err := ownership.NewClient(ownership.ClientConfig{
		Region: "us", ID: 1, Regions: topology, Instance: "us-0", Policy: &ownership.Policy{}, DataDir: t.TempDir(),
		Lease:  ownership.LeaseConfig{Duration: 12 * time.Second, Margin: time.Second, Renew: 5 * time.Millisecond, Timeout: 5 * time.Millisecond},
		Dial:   func(h ownership.Handlers) (ownership.Register, error) { connected = h.Connected; return r, nil },
		Voters: 1, Mirror: noMirror{}, Logs: logs{end: 7}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	<-r.enough
	connected()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !r.closed {
		t.Error("the register is not closed")
	}
}
