package connect_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/pki"
)

// server is a broker with TLS whose certificate can be replaced.
type server struct {
	*kfake.Cluster
	ca   *pki.Authority
	cert atomic.Pointer[tls.Certificate]
}

func (s *server) use(p pki.Signed, t *testing.T) {
	pair := p.Pair(t)
	s.cert.Store(&pair)
}

func start(t *testing.T, clientAuth tls.ClientAuthType, opts ...kfake.Opt) *server {
	t.Helper()
	s := &server{ca: pki.New(t, "brokers")}
	s.use(s.ca.Sign(t, time.Now().Add(30*24*time.Hour), "127.0.0.1", "kafka.example"), t)
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.TLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil },
		ClientAuth:     clientAuth, ClientCAs: s.ca.Pool(),
	}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s.Cluster = c
	return s
}

// config reaches the server with TLS; its files are in dir.
func (s *server) config(t *testing.T, dir string) connect.Config {
	return connect.Config{Seeds: s.ListenAddrs(), TLS: &connect.TLS{CAFile: pki.Put(t, dir, "ca.pem", s.ca.PEM())}}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// open opens a connection, which is run until the test ends.
func open(t *testing.T, cfg connect.Config) (*connect.Cluster, *lines) {
	t.Helper()
	said := &lines{}
	c, err := connect.Open("eu", strict.At("regions", "eu", "kafka"), cfg, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c, said
}

// roundTrip produces and consumes a record with a client of its own.
func roundTrip(t *testing.T, c *connect.Cluster) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	cl, err := txn.NewClient(append(c.Opts("test"), kgo.ConsumeTopics("t"), kgo.RetryTimeout(3*time.Second), kgo.RecordDeliveryTimeout(3*time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err != nil {
		return err
	}
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr(); err != nil {
		return err
	}
	fs := cl.PollFetches(ctx)
	if err := fs.Err(); err != nil {
		return err
	}
	if fs.NumRecords() == 0 {
		return errors.New("nothing consumed")
	}
	return nil
}

// codes are the warnings of a cluster, as code: detail.
func codes(c *connect.Cluster) string {
	var l warning.List
	c.Warnings(&l)
	var out []string
	for _, w := range l.All() {
		out = append(out, string(w.Code)+" "+w.Subject+": "+w.Detail)
	}
	return strings.Join(out, "\n")
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !is() {
		if sleep.For(ctx, 20*time.Millisecond) != nil {
			t.Fatal("waited in vain for " + what)
		}
	}
}

func TestMechanisms(t *testing.T) {
	t.Parallel()
	s := start(t, tls.NoClientCert, kfake.EnableSASL(), kfake.Superuser("PLAIN", "p", "pass-of-p"),
		kfake.Superuser("SCRAM-SHA-256", "s256", "pass-of-s256"), kfake.Superuser("SCRAM-SHA-512", "s512", "pass-of-s512"))
	for user, mechanism := range map[string]string{"p": connect.Plain, "s256": connect.Scram256, "s512": connect.Scram512} {
		t.Run(mechanism, func(t *testing.T) {
			dir := t.TempDir()
			cfg := s.config(t, dir)
			password := "pass-of-" + user
			cfg.SASL = &connect.SASL{Mechanism: mechanism, Username: user, PasswordFile: pki.Put(t, dir, "pw", []byte(password+"\n"))}
			c, said := open(t, cfg)
			if err := roundTrip(t, c); err != nil {
				t.Fatal(err)
			}
			if got := codes(c); got != "" {
				t.Errorf("warnings: %s", got)
			}

			// A connection that is made after the file has changed has the new password; the broker
			// refuses it, and that is said with the place of the mistake, and without the password.
			pki.Put(t, dir, "pw", []byte("wrong-secret"))
			eventually(t, "the file to be read", func() bool { return strings.Contains(said.String(), "have changed; new connections") })
			err := roundTrip(t, c)
			if err == nil || c.Refusal() == nil {
				t.Fatalf("with a wrong password: %v", err)
			}
			got := codes(c)
			if !strings.HasPrefix(got, "KAFKA_AUTHENTICATION eu: "+s.ListenAddrs()[0]) || !strings.Contains(got, "correct regions.eu.kafka.sasl") {
				t.Errorf("warnings: %s", got)
			}
			if n := strings.Count(said.String(), "cannot connect to a broker"); n != 1 {
				t.Errorf("said %d times: %s", n, said)
			}
			for _, secret := range []string{"wrong-secret", password} {
				if strings.Contains(got+said.String()+err.Error(), secret) {
					t.Errorf("the password was told: %s\n%s\n%v", got, said, err)
				}
			}

			// With the right one again it works at once, whatever the pause.
			pki.Put(t, dir, "pw", []byte(password))
			eventually(t, "the file to be read", func() bool { return strings.Count(said.String(), "have changed; new connections") == 2 })
			if err := roundTrip(t, c); err != nil {
				t.Fatal(err)
			}
			if got := codes(c); got != "" {
				t.Errorf("warnings after that: %s", got)
			}
		})
	}
}

// A broker that refuses is asked once for all attempts of a second or more.
func TestRefusedIsNotAskedAgainAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, tls.NoClientCert, kfake.EnableSASL(), kfake.Superuser("PLAIN", "p", "right"))
	var asked atomic.Int64
	s.ControlKey(36, func(kmsg.Request) (kmsg.Response, error, bool) { asked.Add(1); s.KeepControl(); return nil, nil, false })
	dir := t.TempDir()
	cfg := s.config(t, dir)
	cfg.SASL = &connect.SASL{Mechanism: connect.Plain, Username: "p", PasswordFile: pki.Put(t, dir, "pw", []byte("wrong"))}
	c, _ := open(t, cfg)
	for range 20 {
		cl, err := txn.NewClient(c.Opts("test")...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := cl.Ping(ctx); err == nil || c.Refusal() == nil {
			t.Errorf("ping: %v", err)
		}
		cancel()
		cl.Close()
	}
	if n := asked.Load(); n == 0 || n > 4 {
		t.Errorf("20 clients asked the broker %d times", n)
	}
}

func TestTLSRefusals(t *testing.T) {
	t.Parallel()
	other := pki.New(t, "somebody else")
	for name, tt := range map[string]struct {
		auth tls.ClientAuthType
		cert func(*server) pki.Signed
		cfg  func(t *testing.T, s *server, dir string, cfg *connect.Config)
		want []string
	}{
		"expired": {
			cert: func(s *server) pki.Signed { return s.ca.Sign(t, time.Now().Add(-time.Hour), "127.0.0.1") },
			want: []string{"KAFKA_TLS eu", "has expired", "renew the broker's certificate"},
		},
		"unknown authority": {
			cfg: func(t *testing.T, _ *server, dir string, cfg *connect.Config) {
				cfg.TLS.CAFile = pki.Put(t, dir, "other.pem", other.PEM())
			},
			want: []string{"KAFKA_TLS eu", "unknown authority", "regions.eu.kafka.tls.ca_file"},
		},
		"another name": {
			cert: func(s *server) pki.Signed { return s.ca.Sign(t, time.Now().Add(time.Hour), "elsewhere.example") },
			want: []string{"KAFKA_TLS eu", "regions.eu.kafka.tls.server_name"},
		},
		"no certificate of ours": {
			auth: tls.RequireAndVerifyClientCert,
			want: []string{"KAFKA_TLS eu", "certificate required", "regions.eu.kafka.tls.cert_file"},
		},
		"our certificate has expired": {
			auth: tls.RequireAndVerifyClientCert,
			cfg: func(t *testing.T, s *server, dir string, cfg *connect.Config) {
				ours := s.ca.Sign(t, time.Now().Add(-time.Minute), "gateway")
				cfg.TLS.CertFile, cfg.TLS.KeyFile = pki.Put(t, dir, "c.pem", ours.CertPEM), pki.Put(t, dir, "k.pem", ours.KeyPEM)
			},
			want: []string{"KAFKA_TLS eu", "CERTIFICATE_EXPIRES eu", "has expired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := start(t, tt.auth), t.TempDir()
			if tt.cert != nil {
				s.use(tt.cert(s), t)
			}
			cfg := s.config(t, dir)
			if tt.cfg != nil {
				tt.cfg(t, s, dir, &cfg)
			}
			c, _ := open(t, cfg)
			err := roundTrip(t, c)
			if connect.KindOf(err) != connect.BadTLS {
				t.Errorf("kind %d of %v", connect.KindOf(err), err)
			}
			for _, want := range tt.want {
				if got := codes(c); !strings.Contains(got, want) {
					t.Errorf("warnings have no %q: %s", want, got)
				}
			}
			if c.Refusal() == nil {
				t.Error("not refused")
			}
		})
	}
}

// A port without TLS, and one with TLS that is reached without, are no refusals: a broker
// that stops does the same. What they may be is said.
func TestTLSOnOneSide(t *testing.T) {
	t.Parallel()
	s := start(t, tls.NoClientCert)
	c, _ := open(t, connect.Config{Seeds: s.ListenAddrs()})
	if err := roundTrip(t, c); err == nil {
		t.Error("connected without TLS")
	}
	if got := c.Reason(); !strings.Contains(got, "regions.eu.kafka.tls") {
		t.Errorf("without TLS: %s", got)
	}

	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for {
			conn, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, 4)) // as a broker does, which then finds the request too large
			conn.Close()
		}
	}()
	cfg := s.config(t, t.TempDir())
	cfg.Seeds = []string{plain.Addr().String()}
	c, _ = open(t, cfg)
	if err := roundTrip(t, c); err == nil {
		t.Error("TLS without TLS")
	}
	if got := c.Reason(); !strings.Contains(got, "does not speak TLS") || c.Refusal() != nil {
		t.Errorf("TLS to a port without: %s, %v", got, c.Refusal())
	}
}

// The own certificate is replaced while clients are connected: connections go on, new ones
// have the new one. A file that does not fit changes nothing and is reported until it fits.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	s := start(t, tls.RequireAndVerifyClientCert)
	dir := t.TempDir()
	cfg := s.config(t, dir)
	soon := s.ca.Sign(t, time.Now().Add(time.Hour), "gateway")
	cfg.TLS.CertFile, cfg.TLS.KeyFile = pki.Put(t, dir, "c.pem", soon.CertPEM), pki.Put(t, dir, "k.pem", soon.KeyPEM)
	c, _ := open(t, cfg)
	if err := roundTrip(t, c); err != nil {
		t.Fatal(err)
	}
	if got := codes(c); !strings.Contains(got, "CERTIFICATE_EXPIRES eu: regions.eu.kafka.tls.cert_file expires at") {
		t.Errorf("an hour before the end: %s", got)
	}
	open, err := txn.NewClient(c.Opts("long")...)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := open.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}

	pki.Put(t, dir, "c.pem", []byte("no certificate"))
	eventually(t, "the warning", func() bool { return strings.Contains(codes(c), "CONNECTION_FILE eu: ") })
	if got := codes(c); !strings.Contains(got, "regions.eu.kafka.tls.cert_file: "+filepath.Join(dir, "c.pem")) {
		t.Errorf("a bad file: %s", got)
	}
	if err := roundTrip(t, c); err != nil {
		t.Fatalf("with the certificate of before: %v", err)
	}

	late := s.ca.Sign(t, time.Now().Add(30*24*time.Hour), "gateway")
	pki.Put(t, dir, "c.pem", late.CertPEM)
	pki.Put(t, dir, "k.pem", late.KeyPEM)
	eventually(t, "the new certificate", func() bool { return !strings.Contains(codes(c), "cert_file") })
	if err := roundTrip(t, c); err != nil {
		t.Fatal(err)
	}
	if err := open.Ping(t.Context()); err != nil {
		t.Fatalf("the connection of before: %v", err)
	}
}

// A broker behind a tunnel: it is reached where the map says, and its certificate must have
// its own name. What it advertises is mapped as well.
func TestAddressMap(t *testing.T) {
	t.Parallel()
	s := start(t, tls.NoClientCert)
	real := s.ListenAddrs()[0]
	tunnel, through := forward(t, real)
	cfg := s.config(t, t.TempDir())
	cfg.Seeds = []string{"kafka.example:9093"}
	cfg.AddressMap = map[string]string{"kafka.example:9093": tunnel, real: tunnel}
	c, _ := open(t, cfg)
	if err := roundTrip(t, c); err != nil {
		t.Fatal(err)
	}
	if through.Load() < 2 {
		t.Errorf("%d connections through the tunnel, want those to the seed and to the broker", through.Load())
	}
	s.use(s.ca.Sign(t, time.Now().Add(30*24*time.Hour), "kafka.example"), t) // not that of the tunnel, 127.0.0.1
	cl, err := txn.NewClient(c.Opts("test")...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(t.Context()); err != nil {
		t.Errorf("a certificate for the seed: %v", err)
	}
	s.use(s.ca.Sign(t, time.Now().Add(time.Hour), "tunnel.example"), t)
	if err := roundTrip(t, c); connect.KindOf(err) != connect.BadTLS {
		t.Errorf("a certificate for the tunnel instead of the broker: %v", err)
	}
}

// forward is a tunnel to an address, with how many connections went through.
func forward(t *testing.T, to string) (addr string, through *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	through = new(atomic.Int64)
	var all sync.WaitGroup
	t.Cleanup(func() { ln.Close(); all.Wait() })
	all.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			through.Add(1)
			all.Go(func() { defer near.Close(); _, _ = io.Copy(near, far) })
			all.Go(func() { defer far.Close(); _, _ = io.Copy(far, near) })
		}
	})
	return ln.Addr().String(), through
}

// What cannot be used is refused before anything is connected, with the path of the member
// and the file.
func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	ca := pki.New(t, "ca")
	one, two := ca.Sign(t, time.Now().Add(time.Hour), "a"), ca.Sign(t, time.Now().Add(time.Hour), "b")
	put := func(name string, b []byte) string { return pki.Put(t, dir, name, b) }
	cert, key, otherKey := put("c.pem", one.CertPEM), put("k.pem", one.KeyPEM), put("k2.pem", two.KeyPEM)
	empty := put("empty", []byte("\n"))
	encrypted := put("enc.pem", []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	ini := put("aws", []byte("[default]\naws_access_key_id = AKIA\n"))
	for name, tt := range map[string]struct {
		cfg  connect.Config
		want string
	}{
		"absent":    {connect.Config{TLS: &connect.TLS{CAFile: dir + "/none"}}, "regions.us.kafka.tls.ca_file: open " + dir + "/none"},
		"no pem":    {connect.Config{TLS: &connect.TLS{CAFile: ini}}, "tls.ca_file: " + ini + " has no certificate in PEM"},
		"other key": {connect.Config{TLS: &connect.TLS{CertFile: cert, KeyFile: otherKey}}, "tls.cert_file: " + cert},
		"swapped":   {connect.Config{TLS: &connect.TLS{CertFile: key, KeyFile: key}}, "tls.cert_file: " + key},
		"encrypted": {connect.Config{TLS: &connect.TLS{CertFile: cert, KeyFile: encrypted}}, "openssl pkey -in " + encrypted},
		"empty":     {connect.Config{SASL: &connect.SASL{Mechanism: connect.Plain, PasswordFile: empty}}, "sasl.password_file: the secret in " + empty + " has 0 bytes"},
		"iam":       {connect.Config{SASL: &connect.SASL{Mechanism: connect.AWSMSKIAM, CredentialsFile: ini}}, "sasl.credentials_file: "},
		"profile":   {connect.Config{SASL: &connect.SASL{Mechanism: connect.AWSMSKIAM, CredentialsFile: ini, Profile: "x"}}, "profile x in " + ini},
	} {
		t.Run(name, func(t *testing.T) {
			err := connect.Check(tt.cfg, strict.At("regions", "us", "kafka"))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// Trouble with many brokers is one warning, and what an operator reads is bounded.
func TestManyBrokers(t *testing.T) {
	t.Parallel()
	s := start(t, tls.NoClientCert)
	s.use(s.ca.Sign(t, time.Now().Add(-time.Hour), "127.0.0.1"), t)
	cfg := s.config(t, t.TempDir())
	cfg.Seeds = nil
	cfg.AddressMap = map[string]string{}
	for i := range 5 {
		name := fmt.Sprintf("kafka-%d.example:9093", i)
		cfg.Seeds = append(cfg.Seeds, name)
		cfg.AddressMap[name] = s.ListenAddrs()[0]
	}
	c, said := open(t, cfg)
	_ = roundTrip(t, c)
	got := codes(c)
	if strings.Count(got, "KAFKA_TLS") != 1 || !strings.Contains(got, "kafka-0.example:9093 and 4 more brokers: ") {
		t.Errorf("warnings: %s", got)
	}
	if n := strings.Count(said.String(), "cannot connect to a broker"); n != 1 {
		t.Errorf("said %d times: %s", n, said)
	}
}
