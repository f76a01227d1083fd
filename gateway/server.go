package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// Limits of the HTTP servers that no configuration changes. A header may carry a
// whole set of Kafka headers; nobody needs ten seconds to send it.
const (
	maxHeader    = 64 << 10
	headerTime   = 10 * time.Second
	idleTime     = 2 * time.Minute
	partTime     = 30 * time.Second // for a client to send or to take a part
	streamTime   = 10 * time.Minute // without one more line of a stream
	shutdownTime = 2 * time.Second  // for connections to close once all is answered
	abortTime    = 10 * time.Second // for requests to end once their connections are closed
)

// Server is the HTTP edge of one instance.
type Server struct {
	cfg     Config
	region  string // name of the own region
	dedupes bool   // there are other regions, which may have a twin of a keyed write
	deps    Deps
	log     *slog.Logger
	warned  rate.Sometimes // writes warnings about refused requests
	m       *metrics
	bodies  *shares // bytes of bodies
	unread  *shares // bytes of answers of the data listener
	reads   *shares // reads of a page that are open
	follows *shares // followed streams that are open
	drain   drain
	seats   seatOpener
	writer  writer
	logs    *pool
	scans   barrierCache

	partTime time.Duration // the constant, unless a test shortens it
	patience time.Duration // likewise, unreadPatience

	data, manage *limitedListener
}

// New binds both listeners, so that an address in use is an error now and a port
// 0 is known; nothing is served before Run.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure gateway: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Server{
		cfg: cfg, region: cfg.Topology.Name(cfg.Region), dedupes: len(cfg.Topology.Regions()) > 1, deps: deps, log: deps.Logger,
		bodies: newShares(cfg.MaxInflight), unread: newShares(cfg.MaxInflight),
		reads: newShares(int64(cfg.MaxReaders)), follows: newShares(int64(cfg.MaxReaders)),
		seats: seatOpener{deps.Seats, cfg.WriteTimeout}, partTime: partTime, patience: unreadPatience,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.m = newMetrics(s)
	if s.deps.Decoder == nil {
		s.deps.Decoder = txn.NewDecoder(txn.Limits{})
	}
	s.writer = writer{limits: s.deps.Decoder.Limits(), cfg: cfg, region: s.region, ownership: deps.Ownership, seats: s.seats, m: s.m, keys: event.NewKeyHasher(cfg.Secret)}
	s.logs = newPool(&s.deps, s.log)
	var err error
	if s.data, err = cfg.Data.listen(s.m.refusedConnection("data")); err != nil {
		return nil, fmt.Errorf("listen for data: %w", err)
	}
	if s.manage, err = cfg.Manage.listen(s.m.refusedConnection("management")); err != nil {
		_ = s.data.Close()
		return nil, fmt.Errorf("listen for management: %w", err)
	}
	s.m.gauges = append(s.m.gauges, connections("data", s.data.open), connections("management", s.manage.open))
	if err := s.m.register(deps.Registry); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the listeners of a server that was never run.
func (s *Server) Close() {
	_ = s.data.Close()
	_ = s.manage.Close()
	s.logs.close()
}

// DataAddr is where the data listener listens.
func (s *Server) DataAddr() string { return s.data.Addr().String() }

// ManageAddr is where the management listener listens.
func (s *Server) ManageAddr() string { return s.manage.Addr().String() }

// Run serves both listeners until ctx is done, then drains: new writes get 503
// DRAINING while those in flight are answered, followed streams end, and what is
// not finished after Config.Drain is cut off. When it returns, no request runs any
// more. It returns nil after a drain, an error if a listener fails or a request
// does not end.
func (s *Server) Run(ctx context.Context) error {
	defer s.logs.close()
	data := newHTTPServer(s.dataHandler(), s.log)
	manage := newHTTPServer(s.managementHandler(), s.log)
	failed := make(chan error, 2)
	go func() { failed <- serve(data, s.data) }()
	go func() { failed <- serve(manage, s.manage) }()
	var err error
	left := 2
	select {
	case err = <-failed:
		left--
	case <-ctx.Done():
	}
	s.drain.stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
	defer cancel()
	s.drain.waitWrites(end)
	s.drain.giveUp()
	shutdown(end, data)
	shutdown(end, manage)
	for ; left > 0; left-- {
		err = errors.Join(err, <-failed)
	}
	return errors.Join(err, s.drain.waitAborted(ctx))
}

func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func serve(srv *http.Server, ln net.Listener) error {
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// shutdown lets answers reach their clients and then cuts what is left.
func shutdown(ctx context.Context, srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close()
	}
}
