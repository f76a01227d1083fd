package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/geogate/geogate/internal/dirlock"
	"github.com/geogate/geogate/internal/sleep"
)

const (
	// natsReady bounds the wait for a started server. A kept three-node state
	// takes up to 9 s to elect a leader, but a connection is accepted long
	// before that.
	natsReady = 15 * time.Second
	// natsMemory bounds JetStream's memory streams; the register is on disk.
	natsMemory = 16 << 20
	// routePing is how often a server pings another.
	routePing = 2 * time.Second
)

// NATS says how an embedded server is named, stored and joined to others.
type NATS struct {
	// Name is the server's name, unique in a cluster.
	Name string
	// ClusterListen is the host:port for other servers of the cluster; empty
	// for one server alone.
	ClusterListen string
	// Routes are the other servers' addresses (nats-route://host:port).
	Routes []string
	// Advertise is the cluster address told to peers; empty means
	// ClusterListen.
	Advertise string
	// StoreDir holds JetStream's streams. It is created when missing.
	StoreDir string
	// Secret is shared by all servers of a cluster, which needs one: who does not have
	// it can join as no server. It has been checked.
	Secret []byte
	// Publish and Subscribe are the subjects that clients may use; where both are empty,
	// all.
	Publish, Subscribe []string
}

// NATSServer is a running embedded server.
type NATSServer struct {
	srv       *server.Server
	release   func() error
	clustered bool

	once sync.Once
	err  error
}

// StartNATS starts a server with JetStream under c.StoreDir. Clients connect in
// process, through Dialer, and in no other way. JetStream syncs every
// write before it acknowledges it, because a register that forgets an
// acknowledged claim is worse than a slow one.
func StartNATS(c NATS) (*NATSServer, error) {
	clients := &inProcessOnly{permissions: c.permissions()}
	opts, err := c.options(clients)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("create nats directory: %w", err)
	}
	release, err := dirlock.Take(c.StoreDir, dirlock.Patience, nil)
	if err != nil {
		return nil, err
	}
	if err := c.free(); err != nil {
		return nil, errors.Join(err, release())
	}
	remember := func() error { return nil }
	if c.ClusterListen != "" { // one server alone is no voter: a register that it has lost is noticed as such
		if remember, err = checkIdentity(c.StoreDir, c.Name); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configure embedded nats: %w", err), release())
	}
	clients.system = srv.SystemAccount
	srv.Start()
	if !srv.ReadyForConnections(natsReady) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, errors.Join(fmt.Errorf("start embedded nats %s: not ready after %s", c.Name, natsReady), release())
	}
	if err := remember(); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, errors.Join(err, release())
	}
	return &NATSServer{srv: srv, release: release, clustered: c.ClusterListen != ""}, nil
}

// free tries the cluster's address: the server itself would try for ever without a message.
func (c NATS) free() error {
	if c.ClusterListen == "" {
		return nil
	}
	ln, err := net.Listen("tcp", c.ClusterListen)
	if err != nil {
		return fmt.Errorf("start embedded nats %s: %w", c.Name, err)
	}
	return ln.Close()
}

// options turns c into the server's own configuration.
func (c NATS) options(clients *inProcessOnly) (*server.Options, error) {
	if c.StoreDir == "" {
		return nil, errors.New("start embedded nats: no store directory")
	}
	if c.Name == "" {
		return nil, errors.New("start embedded nats: no server name")
	}
	opts := &server.Options{
		CustomClientAuthentication: clients,
		ServerName:                 c.Name,
		DontListen:                 true,
		JetStream:                  true,
		StoreDir:                   c.StoreDir,
		JetStreamMaxMemory:         natsMemory,
		SyncAlways:                 true,
		NoSigs:                     true, // signals belong to the process
		NoLog:                      true,
	}
	if c.ClusterListen == "" {
		if len(c.Routes) > 0 {
			return nil, errors.New("start embedded nats: routes without a cluster address")
		}
		return opts, nil
	}
	if len(c.Secret) == 0 {
		return nil, errors.New("start embedded nats: a cluster address without a secret")
	}
	routes, err := routeTLS(c.Secret)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(c.ClusterListen)
	if err != nil {
		return nil, fmt.Errorf("parse nats cluster address: %w", err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("parse nats cluster port %q: %w", port, err)
	}
	if number == 0 {
		number = server.RANDOM_PORT
	}
	// The server talks to others only once it listens for clients, so it
	// listens where nobody gets in.
	opts.DontListen, opts.Host, opts.Port = false, "127.0.0.1", server.RANDOM_PORT
	opts.Cluster = server.ClusterOpts{
		Name: "geogate", Host: host, Port: number, Advertise: c.Advertise,
		NoAdvertise: true, // clients are in process: they have no use for other servers' addresses
		// One connection for each pair of servers, and a silent one is noticed well
		// within a lease.
		PoolSize: -1, PingInterval: routePing,
		TLSConfig: routes, TLSTimeout: routeHandshake.Seconds(),
	}
	for _, r := range c.Routes {
		u, err := url.Parse(r)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("parse nats route %q: want nats-route://host:port", r)
		}
		opts.Routes = append(opts.Routes, u)
	}
	return opts, nil
}

// permissions are what clients may do; nil: everything.
func (c NATS) permissions() *server.Permissions {
	if len(c.Publish)+len(c.Subscribe) == 0 {
		return nil
	}
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: c.Publish},
		Subscribe: &server.SubjectPermission{Allow: c.Subscribe},
	}
}

// inProcessOnly lets clients of this process in, and no others.
type inProcessOnly struct {
	permissions *server.Permissions
	system      func() *server.Account
}

// Check implements server.Authentication.
func (p *inProcessOnly) Check(c server.ClientAuthentication) bool {
	if at := c.RemoteAddress(); at == nil || at.Network() != "pipe" {
		return false
	}
	user := &server.User{Permissions: p.permissions}
	if c.GetOpts().Username == systemUser {
		user = &server.User{Username: systemUser, Account: p.system()}
	}
	c.RegisterUser(user)
	return true
}

// NATSDialer opens connections to an embedded server inside the process. It
// satisfies nats.InProcessConnProvider: nats.InProcessServer(d) is the option
// that makes a client use it.
type NATSDialer struct{ srv *server.Server }

// InProcessConn returns the client's end of a new connection.
func (d NATSDialer) InProcessConn() (net.Conn, error) {
	conn, err := d.srv.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("dial embedded nats: %w", err)
	}
	return conn, nil
}

// Dialer returns what a client needs to connect.
func (s *NATSServer) Dialer() NATSDialer { return NATSDialer{s.srv} }

// Ready reports whether the server takes part in its cluster: nil, or what is
// missing.
func (s *NATSServer) Ready() error {
	if h := s.srv.Healthz(&server.HealthzOptions{JSServerOnly: true}); h.Error != "" {
		return fmt.Errorf("embedded nats: %s", h.Error)
	}
	if s.clustered && s.srv.NumRoutes() == 0 {
		return errors.New("embedded nats: no other server of the cluster is reachable, or it has another secret")
	}
	return nil
}

// Routes is how many connections with other servers of the cluster there are.
func (s *NATSServer) Routes() int { return s.srv.NumRoutes() }

// Leads reports whether the server leads a stream at the moment, as far as it
// knows.
func (s *NATSServer) Leads(stream string) bool {
	return s.srv.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream)
}

// StepDown hands the lead of a stream that the server leads to another one.
func (s *NATSServer) StepDown(stream string) error {
	if err := s.srv.JetStreamStepdownStream(server.DEFAULT_GLOBAL_ACCOUNT, stream); err != nil {
		return fmt.Errorf("step down from %s: %w", stream, err)
	}
	return nil
}

// handOverWait is the pause between two looks whether another server leads.
const handOverWait = 10 * time.Millisecond

// HandOver hands what the server leads to other servers of its cluster, if it leads
// anything, and returns when it leads nothing any more, or when ctx ends. A server that
// stops without it leaves a cluster that has no leader for seconds.
func (s *NATSServer) HandOver(ctx context.Context, streams ...string) error {
	if !s.clustered {
		return nil
	}
	for asked := false; ; asked = true {
		leads := false
		for _, stream := range streams {
			if s.Leads(stream) {
				leads = true
				if !asked {
					_ = s.StepDown(stream) // whether it worked is seen below
				}
			}
		}
		if s.srv.JetStreamIsLeader() {
			leads = true
			if !asked {
				_, _ = s.system(ctx, "$JS.API.META.LEADER.STEPDOWN", "")
			}
		}
		if !leads {
			return nil
		}
		if err := sleep.For(ctx, handOverWait); err != nil {
			return fmt.Errorf("hand the lead of the nats cluster over: %w", err)
		}
	}
}

// Close stops the server, waits until its stores are closed and releases the
// directory. Further calls return what the first did.
func (s *NATSServer) Close() error {
	s.once.Do(func() {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		if err := s.release(); err != nil {
			s.err = fmt.Errorf("release nats directory: %w", err)
		}
	})
	return s.err
}
