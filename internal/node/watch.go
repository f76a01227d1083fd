package node

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	watchEvery   = 2 * time.Second
	watchTimeout = 3 * time.Second
)

// watch reports whether the region's own Kafka answers.
type watch struct {
	client *kgo.Client
	region string
	down   atomic.Bool
}

// Run pings the cluster every two seconds.
func (w *watch) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, watchTimeout)
		err := w.client.Ping(ask)
		cancel()
		if ctx.Err() == nil {
			w.down.Store(err != nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Ready is the readiness that hangs on Kafka.
func (w *watch) Ready(context.Context) error {
	if w.down.Load() {
		return errors.New("the region's own Kafka does not answer")
	}
	return nil
}

// quiet lets a client's warnings and errors through and drops its information:
// a client logs every reconnection, and these clients reconnect by design.
func quiet(log *slog.Logger) *slog.Logger { return slog.New(quietHandler{log.Handler()}) }

type quietHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quietHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

// WithAttrs implements slog.Handler.
func (q quietHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return quietHandler{q.Handler.WithAttrs(as)}
}

// WithGroup implements slog.Handler.
func (q quietHandler) WithGroup(g string) slog.Handler { return quietHandler{q.Handler.WithGroup(g)} }
