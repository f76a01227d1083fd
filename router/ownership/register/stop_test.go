package register_test

import (
	"context"
	"fmt"
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

// TestWatchIsWholeOverReconnections: a watch that is followed as the client does it
// brings every message once and in order, however often the connection is replaced
// while a message is handed over.
func TestWatchIsWholeOverReconnections(t *testing.T) {
	const messages, every = 200, 25
	n := startServer(t)
	writer := dial(t, n, ownership.Handlers{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range messages {
		subject := fmt.Sprintf("own.unit.%d", i/32) // the register keeps 64 of each
		if o, _ := writer.Write(ctx, ownership.Write{ID: fmt.Sprint(i), Subject: subject, Data: []byte("{}")}); o != ownership.Stored {
			t.Fatalf("write %d: outcome %d", i, o)
		}
	}
	r := dial(t, n, ownership.Handlers{})
	last := uint64(0)
	for last < messages {
		wctx, stop := context.WithCancel(ctx)
		err := r.Watch(wctx, last, func(s ownership.Seen) {
			if s.Seq != last+1 {
				t.Errorf("message %d comes after %d", s.Seq, last)
			}
			last = s.Seq
			if last%every == 0 {
				r.Reconnect()
				linger()
			}
			if last == messages {
				stop()
			}
		})
		stop()
		if ctx.Err() != nil {
			t.Fatalf("the watch ends with message %d of %d: %v", last, messages, err)
		}
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
