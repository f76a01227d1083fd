package connect

import (
	"context"
	"log/slog"
)

// quiet lets a client's warnings and errors through and drops its information: a client logs
// every reconnection, and some reconnect by design. Connections that cannot be made and
// requests that fail because a broker refuses are dropped too: [Cluster.logFailure] logs them
// once a minute, with what to do.
func quiet(log *slog.Logger) *slog.Logger { return slog.New(quietHandler{log.Handler()}) }

type quietHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quietHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (q quietHandler) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "unable to open connection to broker", "unable to initialize sasl", "unable to request api versions":
		return nil
	}
	refused := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		refused = ok && (KindOf(err) == BadTLS || KindOf(err) == NotAuthenticated)
		return !refused
	})
	if refused {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quietHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return quietHandler{q.Handler.WithAttrs(as)}
}

// WithGroup implements slog.Handler.
func (q quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{q.Handler.WithGroup(name)}
}
