package register_test

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
)

// dial opens a register of one server.
func dial(t *testing.T, n *embed.NATSServer, h ownership.Handlers) *register.Register {
	t.Helper()
	r, err := register.Dial(register.Config{Dialer: n.Dialer(), Replicas: 1, Timeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := r.Open(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

func startServer(t *testing.T) *embed.NATSServer {
	t.Helper()
	n, err := embed.StartNATS(embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// linger keeps a callback running when its owner has been told to stop.
func linger() {
	for range 10_000 {
		runtime.Gosched()
	}
}

// TestWatchWaitsForItsCallback: when a watch has returned, what its callback touches
// is the caller's alone.
func TestWatchWaitsForItsCallback(t *testing.T) {
	r := dial(t, startServer(t), ownership.Handlers{})
	for i := range 3 {
		o, seq := r.Write(context.Background(), ownership.Write{ID: string(rune('a' + i)), Subject: "own.region.us", Data: []byte(`{"v":1}`)})
		if o != ownership.Stored || seq != uint64(i+1) {
			t.Fatalf("write %d: outcome %d, sequence %d", i, o, seq)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	calls, running := 0, false // of the callback, without a lock
	err := r.Watch(ctx, 0, func(ownership.Seen) {
		calls++
		running = true
		cancel()
		linger()
		running = false
	})
	if err == nil {
		t.Error("a watch that was stopped returns nil")
	}
	before := calls
	linger()
	if running || calls != before || calls == 0 {
		t.Errorf("the callback runs: %t; %d calls when the watch returned, %d now", running, before, calls)
	}
}

// TestCloseWaitsForHandlers: when a register is closed, what its handlers touch is
// the caller's alone.
func TestCloseWaitsForHandlers(t *testing.T) {
	n := startServer(t)
	other := dial(t, n, ownership.Handlers{})
	entered, release := make(chan struct{}), make(chan struct{})
	calls, running := 0, false
	r := dial(t, n, ownership.Handlers{Received: func(ownership.Seen) {
		calls++
		if calls > 1 {
			return
		}
		running = true
		close(entered)
		<-release
		linger()
		running = false
	}})
	for range 5 {
		other.Broadcast(ownership.Broadcast{Subject: "own.region.us", Seq: 7})
	}
	<-entered
	close(release)
	r.Close()
	before := calls
	linger()
	if running || calls != before {
		t.Errorf("a handler runs: %t; %d calls when the register was closed, %d now", running, before, calls)
	}
}
