//go:build unix

package connect_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/pki"
)

// issuer signs tokens, and gives them to a client that knows its secret.
type issuer struct {
	*httptest.Server
	key    *ecdsa.PrivateKey
	secret atomic.Value
}

func startIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.secret.Store("secret-of-gateway")
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		if id != "gateway" || secret != i.secret.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_client"}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": i.token(time.Hour), "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(i.Close)
	return i
}

func part(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// token is one for the user oauth that ends after a time.
func (i *issuer) token(life time.Duration) string {
	now := time.Now()
	text := part(map[string]any{"alg": "ES256", "typ": "JWT", "kid": "k"}) + "." +
		part(map[string]any{"sub": "oauth", "aud": "kafka", "scope": "kafka", "iat": now.Add(-time.Minute).Unix(), "exp": now.Add(life).Unix()})
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	if err != nil {
		panic(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// keys is what a broker checks tokens with.
func (i *issuer) keys() []byte {
	point, err := i.key.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	b, err := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "alg": "ES256",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
	if err != nil {
		panic(err)
	}
	return b
}

// secured is a real broker with listeners of all kinds.
type secured struct {
	*apache.Broker
	ca  *pki.Authority
	oid *issuer
}

func startSecured(t *testing.T, ca *pki.Authority, oid *issuer) (*secured, error) {
	dir := t.TempDir()
	until := time.Now().Add(30 * 24 * time.Hour)
	good, expired := ca.Sign(t, until, "127.0.0.1"), ca.Sign(t, time.Now().Add(-time.Hour), "127.0.0.1")
	jwks := "file://" + pki.Put(t, dir, "jwks.json", oid.keys())
	p := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": pki.Put(t, dir, "server.pem", append(good.KeyPEM, good.CertPEM...)),
		"ssl.truststore.type": "PEM", "ssl.truststore.location": pki.Put(t, dir, "ca.pem", ca.PEM()),
		"listener.name.mtls.ssl.client.auth":          "required",
		"listener.name.expired.ssl.keystore.type":     "PEM",
		"listener.name.expired.ssl.keystore.location": pki.Put(t, dir, "expired.pem", append(expired.KeyPEM, expired.CertPEM...)),
		"sasl.enabled.mechanisms":                     "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"authorizer.class.name":                       "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                 "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true",
		"sasl.oauthbearer.jwks.endpoint.url": jwks, "sasl.oauthbearer.expected.audience": "kafka",
	}
	for mechanism, jaas := range map[string]string{
		"plain":         `plain.PlainLoginModule required user_p="pass-of-p"`,
		"scram-sha-256": "scram.ScramLoginModule required", "scram-sha-512": "scram.ScramLoginModule required",
		"oauthbearer": "oauthbearer.OAuthBearerLoginModule required",
	} {
		p["listener.name.sasl."+mechanism+".sasl.jaas.config"] = "org.apache.kafka.common.security." + jaas + ";"
	}
	p["listener.name.sasl.oauthbearer.sasl.server.callback.handler.class"] = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
	b, err := apache.Start(t.Context(), apache.Config{
		Dir: filepath.Join(dir, "kafka"), HeapMB: 512, Properties: p,
		Listeners: map[string]string{"TLS": "SSL", "MTLS": "SSL", "EXPIRED": "SSL", "SASL": "SASL_SSL"},
		Format: []string{
			"--add-scram", "SCRAM-SHA-256=[name=s256,password=pass-of-s256]",
			"--add-scram", "SCRAM-SHA-512=[name=s512,password=pass-of-s512]",
		},
		Java: []string{"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + jwks},
	})
	if err != nil {
		return nil, err
	}
	return &secured{b, ca, oid}, nil
}

// admin is the client that may do all, over the listener in the clear.
func (s *secured) admin(t *testing.T) *kadm.Client {
	t.Helper()
	cl, err := txn.NewClient(kgo.SeedBrokers(s.Seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// reach is a connection to one of the listeners, with its files in dir.
func (s *secured) reach(t *testing.T, dir, listener string, sasl *connect.SASL) connect.Config {
	t.Helper()
	return connect.Config{Seeds: []string{s.Listener(listener)}, TLS: &connect.TLS{CAFile: pki.Put(t, dir, "ca.pem", s.ca.PEM())}, SASL: sasl}
}

// own adds a certificate of its own to a connection.
func (s *secured) own(t *testing.T, dir string, cfg connect.Config, until time.Time) connect.Config {
	t.Helper()
	c := s.ca.Sign(t, until, "gateway")
	cfg.TLS.CertFile, cfg.TLS.KeyFile = pki.Put(t, dir, "c.pem", c.CertPEM), pki.Put(t, dir, "k.pem", c.KeyPEM)
	return cfg
}

// row is a way to reach a listener, and what makes a broker refuse it.
type row struct {
	cfg  connect.Config
	bad  func() // puts files of which the broker refuses connections
	good func() // puts the right ones back
	want string // a warning with the wrong ones
}

func (s *secured) rows(t *testing.T) map[string]row {
	out := make(map[string]row)
	login := func(mechanism, user string) {
		dir := t.TempDir()
		file := pki.Put(t, dir, "pw", []byte("pass-of-"+user+"\n"))
		out[mechanism] = row{
			cfg:  s.reach(t, dir, "SASL", &connect.SASL{Mechanism: mechanism, Username: user, PasswordFile: file}),
			bad:  func() { pki.Put(t, dir, "pw", []byte("wrong-secret")) },
			good: func() { pki.Put(t, dir, "pw", []byte("pass-of-"+user)) },
			want: "KAFKA_AUTHENTICATION eu",
		}
	}
	login(connect.Plain, "p")
	login(connect.Scram256, "s256")
	login(connect.Scram512, "s512")

	dir := t.TempDir()
	out["mutual TLS"] = row{
		cfg:  s.own(t, dir, s.reach(t, dir, "MTLS", nil), time.Now().Add(30*24*time.Hour)),
		bad:  func() { s.own(t, dir, s.reach(t, dir, "MTLS", nil), time.Now().Add(-time.Hour)) },
		good: func() { s.own(t, dir, s.reach(t, dir, "MTLS", nil), time.Now().Add(30*24*time.Hour)) },
		want: "KAFKA_TLS eu",
	}
	tokenDir := t.TempDir()
	out["token file"] = row{
		cfg:  s.reach(t, tokenDir, "SASL", &connect.SASL{Mechanism: connect.OAuthBearer, TokenFile: pki.Put(t, tokenDir, "token", []byte(s.oid.token(time.Hour)))}),
		bad:  func() { pki.Put(t, tokenDir, "token", []byte(s.oid.token(-time.Hour))) },
		good: func() { pki.Put(t, tokenDir, "token", []byte(s.oid.token(time.Hour))) },
		want: "KAFKA_AUTHENTICATION eu",
	}
	clientDir := t.TempDir()
	out["client credentials"] = row{
		cfg: s.reach(t, clientDir, "SASL", &connect.SASL{
			Mechanism: connect.OAuthBearer, TokenURL: s.oid.URL, ClientID: "gateway", ClientSecretFile: pki.Put(t, clientDir, "secret", []byte("secret-of-gateway")),
		}),
		bad:  func() { pki.Put(t, clientDir, "secret", []byte("wrong-secret")) },
		good: func() { pki.Put(t, clientDir, "secret", []byte("secret-of-gateway")) },
		want: "invalid_client",
	}
	tlsDir := t.TempDir()
	out["TLS"] = row{
		cfg:  s.reach(t, tlsDir, "TLS", nil),
		bad:  func() { pki.Put(t, tlsDir, "ca.pem", pki.New(t, "somebody else").PEM()) },
		good: func() { pki.Put(t, tlsDir, "ca.pem", s.ca.PEM()) },
		want: "KAFKA_TLS eu",
	}
	return out
}

// TestApacheMechanisms produces and consumes over each mechanism of a real broker, changes
// the files to what the broker refuses, and back; then copies between two such clusters while
// a certificate is replaced and a right is revoked.
func TestApacheMechanisms(t *testing.T) {
	apache.Require(t)
	ca, oid := pki.New(t, "brokers"), startIssuer(t)
	var here, there *secured
	var both errgroup.Group
	both.Go(func() (err error) { here, err = startSecured(t, ca, oid); return err })
	both.Go(func() (err error) { there, err = startSecured(t, ca, oid); return err })
	err := both.Wait()
	for _, s := range []*secured{here, there} {
		if s != nil {
			t.Cleanup(func() { _ = s.Kill() })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := here.admin(t).CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	for name, r := range here.rows(t) {
		t.Run(name, func(t *testing.T) { r.play(t) })
	}
	t.Run("expired broker", func(t *testing.T) {
		c, _ := open(t, here.reach(t, t.TempDir(), "EXPIRED", nil))
		if err := roundTrip(t, c); connect.KindOf(err) != connect.BadTLS {
			t.Errorf("connected with an expired certificate: %v", err)
		}
		if got := codes(c); !strings.Contains(got, "renew the broker's certificate") {
			t.Errorf("warnings: %s", got)
		}
	})
	t.Run("mechanism that the broker has not", func(t *testing.T) {
		dir := t.TempDir()
		file := pki.Put(t, dir, "aws", []byte("[default]\naws_access_key_id = A\naws_secret_access_key = B\n"))
		t.Setenv("AWS_REGION", "eu-central-1")
		c, _ := open(t, here.reach(t, dir, "SASL", &connect.SASL{Mechanism: connect.AWSMSKIAM, CredentialsFile: file}))
		if err := roundTrip(t, c); !errors.Is(err, kerr.UnsupportedSaslMechanism) {
			t.Errorf("got %v", err)
		}
		if got := codes(c); !strings.Contains(got, "regions.eu.kafka.sasl.mechanism") {
			t.Errorf("warnings: %s", got)
		}
	})
	for _, typ := range []string{connect.StoreJKS, connect.StorePKCS12} {
		t.Run("stores of Java, "+typ, func(t *testing.T) { playStores(t, here, typ) })
	}
	t.Run("link", func(t *testing.T) { playLink(t, here, there) })
}

// playStores connects with stores that Java's own tool has made.
func playStores(t *testing.T, s *secured, typ string) {
	dir := t.TempDir()
	ours := s.ca.Sign(t, time.Now().Add(30*24*time.Hour), "gateway").Pair(t)
	raw, err := pkcs12.Modern.Encode(ours.PrivateKey, ours.Leaf, nil, "changeit")
	if err != nil {
		t.Fatal(err)
	}
	trust, own := filepath.Join(dir, "trust"), filepath.Join(dir, "own")
	for _, args := range [][]string{
		{"-importcert", "-noprompt", "-alias", "ca", "-file", pki.Put(t, dir, "ca.pem", s.ca.PEM()), "-keystore", trust, "-storetype", typ, "-storepass", "changeit"},
		{
			"-importkeystore", "-noprompt", "-srckeystore", pki.Put(t, dir, "raw.p12", raw), "-srcstoretype", "PKCS12", "-srcstorepass", "changeit",
			"-destkeystore", own, "-deststoretype", typ, "-deststorepass", "changeit",
		},
	} {
		if out, err := exec.CommandContext(t.Context(), "keytool", args...).CombinedOutput(); err != nil {
			t.Fatalf("keytool %v: %v: %s", args, err, out)
		}
	}
	c, _ := open(t, connect.Config{
		Seeds: []string{s.Listener("MTLS")}, TLS: &connect.TLS{},
		Stores: connect.Stores{Trust: &connect.Store{File: trust, Type: typ, Password: "changeit"}, Key: &connect.Store{File: own, Type: typ, Password: "changeit"}},
	})
	if err := roundTrip(t, c); err != nil {
		t.Fatal(err)
	}
}

func (r row) play(t *testing.T) {
	c, said := open(t, r.cfg)
	if err := roundTrip(t, c); err != nil {
		t.Fatal(err)
	}
	reads := func(n int) func() bool {
		return func() bool { return strings.Count(said.String(), "have changed; new connections") >= n }
	}
	r.bad()
	eventually(t, "the wrong file to be read", reads(1))
	if err := roundTrip(t, c); connect.KindOf(err) == connect.Unreachable {
		t.Errorf("not told from a broker that does not answer: %v", err)
	}
	if got := codes(c); !strings.Contains(got, r.want) {
		t.Errorf("warnings have no %q: %s", r.want, got)
	}
	before := strings.Count(said.String(), "have changed; new connections")
	r.good()
	eventually(t, "the right file to be read", reads(before+1))
	var err error
	eventually(t, "connections to be made again", func() bool { err = roundTrip(t, c); return err == nil })
	for _, secret := range []string{"wrong-secret", "pass-of-", "secret-of-gateway", "eyJ"} {
		if strings.Contains(said.String(), secret) {
			t.Errorf("a secret is in the log: %s", said)
		}
	}
}

// playLink copies from one cluster, reached with a certificate, to another, with a password.
func playLink(t *testing.T, here, there *secured) {
	nearDir, farDir := t.TempDir(), t.TempDir()
	near, nearLog := open(t, here.own(t, nearDir, here.reach(t, nearDir, "MTLS", nil), time.Now().Add(time.Hour)))
	far, _ := open(t, there.reach(t, farDir, "SASL", &connect.SASL{Mechanism: connect.Scram512, Username: "s512", PasswordFile: pki.Put(t, farDir, "pw", []byte("pass-of-s512"))}))
	level := slog.LevelError + 1
	if os.Getenv("GEOGATE_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	link, err := replicate.New(replicate.Config{
		From: router.Region{Name: "us", ID: 1}, To: router.Region{Name: "eu", ID: 2}, Source: near.Opts("link"), Target: far.Opts("link"),
		Include: []string{"t"}, DiscoverEvery: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- link.Run(ctx) }()
	defer func() { cancel(); <-done }()
	copied := func(why string) {
		t.Helper()
		target := link.Status().Copied + 1
		cl, err := txn.NewClient(kgo.SeedBrokers(here.Seeds()...))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte(why)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		eventually(t, why, func() bool { return link.Status().Copied >= target })
	}
	copied("the first records")

	here.own(t, nearDir, here.reach(t, nearDir, "MTLS", nil), time.Now().Add(30*24*time.Hour))
	eventually(t, "the new certificate", func() bool { return strings.Contains(nearLog.String(), "have changed; new connections") })
	copied("a record with a new certificate")

	denied := kadm.NewACLs().Topics("us.t").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite).Deny("User:s512").DenyHosts("*")
	if _, err := there.admin(t).CreateACLs(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	cl, err := txn.NewClient(kgo.SeedBrokers(here.Seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	before := link.Status().Copied
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("denied")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the link to say that a right is missing", func() bool { return connect.KindOf(link.Status().Cause) == connect.NotAuthorized })
	if code := connect.KindOf(link.Status().Cause).Code(); code != warning.KafkaAuthorization {
		t.Errorf("code %s", code)
	}
	if got := link.Status().Copied; got != before {
		t.Errorf("copied %d records without the right", got-before)
	}
	if _, err := there.admin(t).DeleteACLs(t.Context(), kadm.NewACLs().Topics("us.t").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite).Deny("User:s512").DenyHosts("*").Allow().AllowHosts()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record that was denied", func() bool { return link.Status().Copied > before })
}
