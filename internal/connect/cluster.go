package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/plugin/kslog"

	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/warning"
)

const (
	// dialTimeout bounds a connection's beginning, with TLS.
	dialTimeout = 10 * time.Second
	// logEvery is the least time between two log lines about the same kind of failure.
	logEvery = time.Minute
	// expiresSoon is how long before the end of a certificate an operator is told: a week has
	// a working day in it.
	expiresSoon = 7 * 24 * time.Hour
)

// Cluster is one Kafka cluster and how it is reached.
type Cluster struct {
	name    string      // of the region
	path    strict.Path // of its part of the configuration
	at      string      // the same for messages
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	files   atomic.Pointer[loaded]
	brokers brokers
	reload  reload

	logMu  sync.Mutex
	logged map[Kind]time.Time
}

// Check reads the files that a configuration names, as Open does. The error is a
// [*strict.Problems] with paths below at.
func Check(cfg Config, at strict.Path) error {
	_, err := open(&cfg, at)
	return err
}

// Open reads the files that a configuration names; it does not connect. The region's name
// is for messages; at is the path of the cluster's part of the configuration. The error is a
// [*strict.Problems] with paths below it.
func Open(region string, at strict.Path, cfg Config, log *slog.Logger) (*Cluster, error) {
	l, err := open(&cfg, at)
	if err != nil {
		return nil, err
	}
	c := &Cluster{name: region, path: at, at: at.String(), cfg: cfg, log: log.With("region", region), now: time.Now, logged: make(map[Kind]time.Time)}
	c.files.Store(l)
	c.reload.seen = l.sum
	return c, nil
}

func open(cfg *Config, at strict.Path) (*loaded, error) {
	files, err := cfg.read()
	if err == nil {
		var l *loaded
		if l, err = cfg.load(files); err == nil {
			return l, nil
		}
	}
	return nil, below(err, at)
}

// below puts a path before those of problems.
func below(err error, at strict.Path) error {
	var problems *strict.Problems
	if errors.As(err, &problems) {
		for i := range problems.All {
			problems.All[i].Path = at.And(problems.All[i].Path...)
		}
	}
	return err
}

// Seeds are the addresses that clients ask first.
func (c *Cluster) Seeds() []string { return c.cfg.Seeds }

// Opts are what every client of the cluster is made with. The client's id, the first
// argument, is for the brokers' logs and ours.
func (c *Cluster) Opts(clientID string) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.cfg.Seeds...),
		kgo.ClientID(clientID),
		kgo.Dialer(c.dial),
		kgo.WithHooks((*hooks)(c)),
		kgo.WithLogger(kslog.New(quiet(c.log.With("client", clientID)))),
	}
	if c.cfg.SASL != nil {
		opts = append(opts, kgo.SASL((*mechanism)(c)))
	}
	return opts
}

// dial connects to a broker, or to where the configuration says that it is.
func (c *Cluster) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := c.brokers.backoff(addr, c.now()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	to := addr
	if mapped, ok := c.cfg.AddressMap[addr]; ok {
		to = mapped
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, to)
	if err != nil {
		return nil, err
	}
	cfg := c.files.Load().tls
	if cfg == nil {
		return conn, nil
	}
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr) // not the tunnel's
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("split address of broker: %w", err)
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		switch {
		case ctx.Err() != nil || isTimeout(err):
			return nil, fmt.Errorf("set up TLS with %s: %w", to, err)
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
			return nil, errClosed
		}
		return nil, &tlsError{err}
	}
	c.brokers.connected(addr, secure.ConnectionState().PeerCertificates[0].NotAfter)
	return &countedConn{Conn: secure, closed: func() { c.brokers.disconnected(addr, c.now()) }}, nil
}

// countedConn calls a function when it is closed, once.
type countedConn struct {
	net.Conn
	closed func()
	once   sync.Once
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// mechanism authenticates with the secrets that were read last.
type mechanism Cluster

// Name implements sasl.Mechanism.
func (m *mechanism) Name() string { return m.files.Load().mechanism.Name() }

// Authenticate implements sasl.Mechanism.
func (m *mechanism) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	s, first, err := m.files.Load().mechanism.Authenticate(ctx, host)
	if err != nil {
		return nil, nil, &credentialsError{err}
	}
	return session{s}, first, nil
}

type session struct{ sasl.Session }

// Challenge implements sasl.Session.
func (s session) Challenge(b []byte) (bool, []byte, error) {
	done, next, err := s.Session.Challenge(b)
	if err != nil {
		err = &credentialsError{err}
	}
	return done, next, err
}

// hooks see the outcome of every attempt to connect.
type hooks Cluster

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (h *hooks) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	c := (*Cluster)(h)
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return // the client gave up, whatever the broker would have said
	}
	addr := address(meta)
	if c.brokers.takeClosedAuth(addr) && errors.Is(err, io.EOF) {
		err = errClosedAuth
	}
	c.brokers.note(addr, err, c.now())
	if err == nil {
		return
	}
	if KindOf(err) != Unreachable {
		c.reload.look() // a secret that was changed may be in the file already
	}
	c.logFailure(addr, err)
}

// OnBrokerRead implements kgo.HookBrokerRead: some brokers answer wrong credentials by closing
// the connection.
func (h *hooks) OnBrokerRead(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	const saslAuthenticate = 36
	if key == saslAuthenticate && errors.Is(err, io.EOF) {
		h.brokers.setClosedAuth(address(meta))
	}
}

func address(meta kgo.BrokerMetadata) string {
	return net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
}

// logFailure logs why a broker was not reached, once a minute for each kind of failure.
func (c *Cluster) logFailure(addr string, err error) {
	kind, now := KindOf(err), c.now()
	c.logMu.Lock()
	last, ok := c.logged[kind]
	again := !ok || now.Sub(last) >= logEvery
	if again {
		c.logged[kind] = now
	}
	c.logMu.Unlock()
	if !again {
		return
	}
	attrs := []any{"broker", addr, "code", string(kind.Code()), "err", err}
	if to, ok := c.cfg.AddressMap[addr]; ok {
		attrs = append(attrs, "address", to)
	}
	if r := Remedy(err, c.at); r != "" {
		attrs = append(attrs, "remedy", r)
	}
	c.log.Warn("cannot connect to a broker; will try again", attrs...)
}

// Reason is why a broker cannot be reached, with what to do about it; empty if none is known.
func (c *Cluster) Reason() string {
	if x, ok := c.brokers.troubles(c.now())[Unreachable]; ok {
		return x.addr + ": " + Explain(x.err, c.at)
	}
	return ""
}

// Refusal is why a broker refuses TLS or the credentials, with what to do about it; nil if
// none does.
func (c *Cluster) Refusal() error {
	all := c.brokers.troubles(c.now())
	for _, k := range []Kind{BadTLS, NotAuthenticated} {
		if x, ok := all[k]; ok {
			return fmt.Errorf("broker %s: %w; %s", x.addr, x.err, Remedy(x.err, c.at))
		}
	}
	return nil
}

// Warnings appends what an operator should know: brokers that refuse, files that cannot be
// used, certificates that end soon. Brokers that do not answer are not among them: whoever
// needs the cluster reports that.
func (c *Cluster) Warnings(out *warning.List) {
	now := c.now()
	all := c.brokers.troubles(now)
	for _, k := range []Kind{BadTLS, NotAuthenticated} {
		if x, ok := all[k]; ok {
			more := ""
			if x.brokers > 1 {
				more = fmt.Sprintf(" and %d more brokers", x.brokers-1)
			}
			out.Add(k.Code(), c.name, "%s%s: %s", x.addr, more, Explain(x.err, c.at))
		}
	}
	if err := c.reload.failed(); err != nil {
		out.Add(warning.ConnectionFile, c.name, "the previous files stay in use: %v", err)
	}
	if end := c.files.Load().expires; !end.IsZero() && end.Sub(now) < expiresSoon {
		out.Add(warning.CertificateExpires, c.name, "%s.tls.cert_file %s at %s; put a new certificate and its key into the files; they are read again without a restart", c.at, ends(end, now), end.UTC().Format(time.RFC3339))
	}
	if addr, end := c.brokers.endsFirst(now); !end.IsZero() && end.Sub(now) < expiresSoon {
		out.Add(warning.CertificateExpires, c.name+" "+addr, "the broker's certificate %s at %s; no connection to it can be made after that; renew it", ends(end, now), end.UTC().Format(time.RFC3339))
	}
}

// ends says that a certificate ends, or has ended.
func ends(end, now time.Time) string {
	if now.After(end) {
		return "has expired"
	}
	return "expires"
}
