package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Limits of the HTTP servers that no configuration changes. A header may carry a
// whole set of Kafka headers; nobody needs ten seconds to send it.
const (
	maxHeader    = 64 << 10
	headerTime   = 10 * time.Second
	idleTime     = 2 * time.Minute
	bodyTime     = time.Minute      // without one more byte of a body
	streamTime   = 10 * time.Minute // without one more line of a stream
	answerTime   = 30 * time.Second // without the client taking one more part of an answer
	shutdownTime = 2 * time.Second  // for connections to close once all is answered
)

// Server is the HTTP edge of one instance.
type Server struct {
	cfg    Config
	own    string // name of the own region
	deps   Deps
	log    *slog.Logger
	warned rate.Sometimes // writes warnings about refused requests
	m      *metrics
	budget *semaphore.Weighted // bytes of bodies in flight
	held   atomic.Int64        // of budget, for the metric
	logs   *pool
	scans  barrierCache
	turn   atomic.Uint32 // where the next record without any key goes

	data, manage net.Listener

	writes sync.WaitGroup // write requests being answered

	mu      sync.Mutex           // guards what follows, and orders ending against writes.Add
	ending  bool                 // the server was told to end
	atDrain map[*func()]struct{} // to be called then
}

// New binds both listeners, so that an address in use is an error now and a port
// 0 is known; nothing is served before Run.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure gateway: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Server{
		cfg: cfg, own: cfg.Topology.Name(cfg.Region), deps: deps, log: deps.Logger,
		budget: semaphore.NewWeighted(cfg.MaxInflight), atDrain: make(map[*func()]struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.m = newMetrics(s)
	s.logs = newPool(deps.Kafka, cfg.MaxReaders)
	var err error
	if s.data, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen for data: %w", err)
	}
	if s.manage, err = net.Listen("tcp", cfg.Manage); err != nil {
		_ = s.data.Close()
		return nil, fmt.Errorf("listen for management: %w", err)
	}
	if err := s.m.register(deps.Registry); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives up a server that was never run.
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
// not finished after Config.Drain is cut off. It returns nil after a drain, an
// error if a listener fails.
func (s *Server) Run(ctx context.Context) error {
	defer s.logs.close()
	data := s.server(s.Data())
	manage := s.server(s.Management())
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
	s.stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
	defer cancel()
	s.waitWrites(end)
	shutdown(end, data)
	shutdown(end, manage)
	for ; left > 0; left-- {
		err = errors.Join(err, <-failed)
	}
	return err
}

// stop makes every later write DRAINING and ends followed streams.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for f := range s.atDrain {
		(*f)()
	}
	clear(s.atDrain)
}

// draining tells whether the server was told to end.
func (s *Server) draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// onDrain has f called when the server is told to end, at once if it was already,
// unless forget comes first. f must not block.
func (s *Server) onDrain(f func()) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		f()
		return func() {}
	}
	s.atDrain[&f] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.atDrain, &f)
	}
}

// begin counts a write request in, unless the server drains.
func (s *Server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return problem(Draining, "the instance is stopping; send the request to another one or again later")
	}
	s.writes.Add(1)
	return nil
}

func (s *Server) waitWrites(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.writes.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (s *Server) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
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
