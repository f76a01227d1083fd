package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ProbeServer is the management listener of a process that is no gateway: livez,
// readyz and metrics.
type ProbeServer struct {
	listener net.Listener
	server   *http.Server
	drain    drain
}

// NewProbeServer binds a loopback address; nothing is served before Run.
func NewProbeServer(l ListenerConfig, probes []Probe, metrics prometheus.Gatherer, log *slog.Logger) (*ProbeServer, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	l.MaxConnections = cmp.Or(l.MaxConnections, managementConnections)
	ln, err := l.listen(func() {})
	if err != nil {
		return nil, fmt.Errorf("listen for management: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { readiness(w, r, probes) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	p := &ProbeServer{listener: ln}
	origin := newOrigin(l, "management.allowed_hosts")
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.drain.beginRequest()
		defer p.drain.endRequest()
		forbidSniffing(w.Header())
		if refused := origin.check(r); refused != nil {
			refused.write(w, requestID(r.Header.Get("X-Request-Id")))
			return
		}
		mux.ServeHTTP(w, r)
	})
	p.server = newHTTPServer(counted, log)
	return p, nil
}

func readiness(w http.ResponseWriter, r *http.Request, probes []Probe) {
	var bad strings.Builder
	askProbes(r.Context(), probes, func(name string, err error) {
		if err != nil {
			noteUnready(&bad, name, err)
		}
	})
	w.Header().Set("Cache-Control", "no-store")
	if bad.Len() > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, bad.String())
		return
	}
	fmt.Fprintln(w, "ok")
}

// Addr is where it listens.
func (p *ProbeServer) Addr() string { return p.listener.Addr().String() }

// Run serves until ctx is done. When it returns, no request runs any more.
func (p *ProbeServer) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- serve(p.server, p.listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	shutdown(ctx, p.server)
	return errors.Join(<-failed, p.drain.waitAborted(ctx))
}
