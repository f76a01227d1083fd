package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/geogate/geogate/internal/strict"
)

// put writes a file that its owner alone may read.
func put(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// load makes a connection's mechanism of its files, as Open does.
func (c *Config) mustLoad(t *testing.T) *loaded {
	t.Helper()
	files, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.load(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// TestAWSMSKIAM holds what is sent against fixed texts, and against what AWS's own signer
// makes of the same request.
func TestAWSMSKIAM(t *testing.T) {
	const host = "b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com"
	for name, tt := range map[string]struct {
		file, profile, token, golden string
	}{
		"keys": {
			file:   "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY\n",
			golden: `{"action":"kafka-cluster:Connect","host":"b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com","user-agent":"geogate","version":"2020_10_22","x-amz-algorithm":"AWS4-HMAC-SHA256","x-amz-credential":"AKIDEXAMPLE/20000101/eu-central-1/kafka-cluster/aws4_request","x-amz-date":"20000101T000000Z","x-amz-expires":"900","x-amz-signature":"6981418a1c43474f3f8ed6402b2f579ae28f9db4ac68dc570b0cc6c00a78f7b1","x-amz-signedheaders":"host"}`,
		},
		"session of a profile": {
			file:    "[default]\naws_access_key_id = X\naws_secret_access_key = Y\n[msk]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY\naws_session_token = AQoDYXdzEPT//wEXAMPLE==\n",
			profile: "msk", token: "AQoDYXdzEPT//wEXAMPLE==", golden: `{"action":"kafka-cluster:Connect","host":"b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com","user-agent":"geogate","version":"2020_10_22","x-amz-algorithm":"AWS4-HMAC-SHA256","x-amz-credential":"AKIDEXAMPLE/20000101/eu-central-1/kafka-cluster/aws4_request","x-amz-date":"20000101T000000Z","x-amz-expires":"900","x-amz-security-token":"AQoDYXdzEPT//wEXAMPLE==","x-amz-signature":"de842f8e62b45f04414a20cc3c963c4ead273dfca179cf46b8577b06dfd8272a","x-amz-signedheaders":"host"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{SASL: &SASL{Mechanism: AWSMSKIAM, CredentialsFile: put(t, "aws", tt.file), Profile: tt.profile}}
			l := cfg.mustLoad(t)
			synctest.Test(t, func(t *testing.T) { // its clock starts at 2000-01-01 UTC
				_, sent, err := l.mechanism.Authenticate(t.Context(), host+":9098")
				if err != nil {
					t.Fatal(err)
				}
				if l.mechanism.Name() != "AWS_MSK_IAM" {
					t.Errorf("mechanism %s", l.mechanism.Name())
				}
				if string(sent) != tt.golden {
					t.Errorf("sent\n%s\nwant\n%s", sent, tt.golden)
				}
				var fields map[string]string
				if err := json.Unmarshal(sent, &fields); err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/?Action=kafka-cluster%3AConnect&X-Amz-Expires=900", nil)
				if err != nil {
					t.Fatal(err)
				}
				creds := aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", SessionToken: tt.token}
				signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), creds, req, emptyHash, "kafka-cluster", "eu-central-1", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				u, err := url.Parse(signed)
				if err != nil {
					t.Fatal(err)
				}
				for key := range u.Query() {
					if have, want := fields[strings.ToLower(key)], u.Query().Get(key); have != want {
						t.Errorf("%s is %s, AWS's signer says %s", key, have, want)
					}
				}
			})
		})
	}
}

// What does not come from a file comes from where the AWS SDK looks, which is asked
// again when it has expired.
func TestAWSCredentialsOfTheEnvironment(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-env")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	cfg := Config{SASL: &SASL{Mechanism: AWSMSKIAM}}
	_, sent, err := cfg.mustLoad(t).mechanism.Authenticate(t.Context(), "b-1.demo.kafka.us-east-1.amazonaws.com:9098")
	if err != nil || !strings.Contains(string(sent), "AKIDENV/") || strings.Contains(string(sent), "secret-of-env") {
		t.Errorf("sent %s, %v", sent, err)
	}
}

// endpoint is a token endpoint with TLS.
type endpoint struct {
	*httptest.Server
	asked  atomic.Int64
	secret atomic.Value // of client gateway
	life   atomic.Int64 // of tokens, in seconds
	fail   atomic.Int64 // status, 0 none
	form   atomic.Value // of the last question
}

func startEndpoint(t *testing.T) *endpoint {
	e := &endpoint{}
	e.secret.Store("right")
	e.life.Store(3600)
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := e.asked.Add(1)
		_ = r.ParseForm()
		e.form.Store(r.Form)
		w.Header().Set("Content-Type", "application/json")
		id, secret, ok := r.BasicAuth()
		if !ok {
			id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
		}
		if status := e.fail.Load(); status != 0 {
			http.Error(w, "told: "+secret, int(status))
			return
		}
		if id != "gateway" || secret != e.secret.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": "invalid_client", "error_description": "no such client"})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "token-" + string(rune('0'+n)), "token_type": "Bearer", "expires_in": e.life.Load()})
	}))
	e.Config.ErrorLog = log.New(io.Discard, "", 0) // a test is refused on purpose
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) config(t *testing.T) Config {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	return Config{SASL: &SASL{
		Mechanism: OAuthBearer, TokenURL: e.URL + "/token", ClientID: "gateway", ClientSecretFile: put(t, "secret", "right\n"),
		Scopes: []string{"kafka", "write"}, Audience: "cluster", TokenCAFile: put(t, "ca.pem", string(ca)), Extensions: map[string]string{"logicalCluster": "lkc-1"},
	}}
}

// TestClientCredentials: tokens are asked for once, and again before they end.
func TestClientCredentials(t *testing.T) {
	e := startEndpoint(t)
	cfg := e.config(t)
	m := cfg.mustLoad(t).mechanism
	for range 3 {
		_, sent, err := m.Authenticate(t.Context(), "kafka:9093")
		if err != nil || string(sent) != "n,,\x01auth=Bearer token-1\x01logicalCluster=lkc-1\x01\x01" {
			t.Fatalf("sent %q, %v", sent, err)
		}
	}
	form := e.form.Load().(url.Values)
	if form.Get("grant_type") != "client_credentials" || form.Get("scope") != "kafka write" || form.Get("audience") != "cluster" {
		t.Errorf("asked with %v", form)
	}

	e.life.Store(int64(renewBefore/time.Second) - 1) // ends too soon to be kept
	m = cfg.mustLoad(t).mechanism
	for want := range 2 {
		_, sent, err := m.Authenticate(t.Context(), "kafka:9093")
		if err != nil || !bytes.Contains(sent, []byte("token-"+string(rune('2'+want)))) {
			t.Fatalf("sent %q, %v", sent, err)
		}
	}
}

// TestTokenRefused: why there is no token is told, what the endpoint has answered is not, and
// an endpoint that fails is left alone for a moment.
func TestTokenRefused(t *testing.T) {
	e := startEndpoint(t)
	cfg := e.config(t)
	m := cfg.mustLoad(t).mechanism
	e.secret.Store("another")
	_, _, err := m.Authenticate(t.Context(), "kafka:9093")
	if err == nil || !strings.Contains(err.Error(), "invalid_client: no such client") {
		t.Errorf("a wrong secret: %v", err)
	}
	asked := e.asked.Load()
	if _, _, err := m.Authenticate(t.Context(), "kafka:9093"); err == nil || e.asked.Load() != asked {
		t.Errorf("asked again at once: %v", err)
	}

	e.fail.Store(http.StatusBadGateway)
	_, _, err = cfg.mustLoad(t).mechanism.Authenticate(t.Context(), "kafka:9093")
	if err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") || strings.Contains(err.Error(), "right") {
		t.Errorf("a broken endpoint: %v", err)
	}

	cfg.SASL.TokenCAFile = ""
	_, _, err = cfg.mustLoad(t).mechanism.Authenticate(t.Context(), "kafka:9093")
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an endpoint that nobody knows: %v", err)
	}

	moved := httptest.NewServer(http.RedirectHandler(e.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	cfg = e.config(t)
	cfg.SASL.TokenURL = moved.URL
	_, _, err = cfg.mustLoad(t).mechanism.Authenticate(t.Context(), "kafka:9093")
	if !errors.Is(err, errRedirect) {
		t.Errorf("a redirect: %v", err)
	}
}

// TestTokenOfACallerThatGaveUp: who gives up while a token is asked for does not keep others
// from asking.
func TestTokenOfACallerThatGaveUp(t *testing.T) {
	e := startEndpoint(t)
	cfg := e.config(t)
	m := cfg.mustLoad(t).mechanism
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.Authenticate(ctx, "kafka:9093"); !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v", err)
	}
	if _, _, err := m.Authenticate(t.Context(), "kafka:9093"); err != nil {
		t.Errorf("the next caller: %v", err)
	}
}

// A token file is sent as it is; one that is replaced is a new mechanism.
func TestTokenFile(t *testing.T) {
	cfg := Config{SASL: &SASL{Mechanism: OAuthBearer, TokenFile: put(t, "token", "abc.def\n")}}
	_, sent, err := cfg.mustLoad(t).mechanism.Authenticate(context.Background(), "kafka:9093")
	if err != nil || string(sent) != "n,,\x01auth=Bearer abc.def\x01\x01" {
		t.Errorf("sent %q, %v", sent, err)
	}
}

// TestPause: a broker that refuses is left alone longer each time, at most for 15 s; several
// attempts at a time are one.
func TestPause(t *testing.T) {
	var b brokers
	now := time.Unix(0, 0)
	refused := &credentialsError{errors.New("no")}
	for i, want := range []time.Duration{1, 2, 4, 8, 15, 15, 15} {
		for range 3 {
			b.note("a:1", refused, now)
		}
		want *= time.Second
		if b.backoff("a:1", now.Add(want-1)) == nil || b.backoff("a:1", now.Add(want)) != nil {
			t.Errorf("refusal %d: not held for %s", i+1, want)
		}
		now = now.Add(want)
	}
	if b.backoff("b:1", now) != nil {
		t.Error("another broker is held")
	}
	b.note("a:1", refused, now)
	b.release()
	if b.backoff("a:1", now) != nil {
		t.Error("held after new secrets")
	}
	b.note("a:1", errors.New("connection refused"), now)
	if b.backoff("a:1", now) != nil {
		t.Error("a broker that does not answer is held")
	}
	if got := b.troubles(now.Add(forgetAfter + 1)); len(got) != 0 {
		t.Errorf("after %s without an attempt there is %v", forgetAfter, got)
	}
}

// TestSuccessWhileHeldBack: an attempt that was not made because of a refusal tells nothing
// when another connection has succeeded before it is noted.
func TestSuccessWhileHeldBack(t *testing.T) {
	var c Cluster
	now := time.Unix(0, 0)
	c.now = func() time.Time { return now }
	c.brokers.note("a:1", &credentialsError{errors.New("no")}, now)
	notTried := c.brokers.backoff("a:1", now)
	c.brokers.note("a:1", nil, now)
	c.brokers.note("a:1", notTried, now)
	if got := c.brokers.troubles(now); len(got) != 0 || c.Reason() != "" {
		t.Errorf("a broker that was reached is in %v", got)
	}
}

// TestCertificatesOfBrokersThatLeft: a broker's certificate counts while a connection is open,
// and for a while after that, in which one may be made again.
func TestCertificatesOfBrokersThatLeft(t *testing.T) {
	var b brokers
	now := time.Unix(0, 0)
	b.connected("a:1", now.Add(time.Hour))
	b.connected("a:1", now.Add(time.Hour))
	b.connected("b:1", now.Add(2*time.Hour))
	want := func(addr string, end time.Duration) {
		t.Helper()
		if got, at := b.endsFirst(now); got != addr || !at.Equal(time.Unix(0, 0).Add(end)) {
			t.Errorf("at %s the certificate of %s ends first, at %s", now, got, at)
		}
	}
	now = now.Add(10 * time.Minute)
	b.disconnected("a:1", now)
	now = now.Add(forgetAfter + 1)
	want("a:1", time.Hour)
	b.disconnected("a:1", now)
	want("a:1", time.Hour)
	now = now.Add(forgetAfter + 1)
	want("b:1", 2*time.Hour)
}

// TestValidate has what the table of the schema has not: texts with their paths.
func TestValidate(t *testing.T) {
	cfg := Config{
		Seeds: []string{"a"}, TLS: &TLS{CertFile: "c"}, SASL: &SASL{Mechanism: "scram-sha-521", Username: "u"},
		AddressMap: map[string]string{"x:1": "y"},
	}
	var bad strict.Problems
	cfg.Validate(&bad, strict.At("k"))
	got := bad.Error()
	for _, want := range []string{
		`k.seeds[0]: "a" is not host:port`, `k.tls.cert_file: needs key_file`, `k.sasl.mechanism: unknown mechanism "scram-sha-521"; did you mean "scram-sha-512"?`,
		`k.address_map."x:1": "y" is not host:port`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	cfg = Config{SASL: &SASL{Mechanism: OAuthBearer, TokenURL: "http://id.example/token", ClientID: "a", ClientSecretFile: "s"}}
	bad = strict.Problems{}
	cfg.Validate(&bad, strict.At("k"))
	if !strings.Contains(bad.Error(), "k.sasl.token_url: must begin with https") {
		t.Errorf("a secret in the clear: %s", bad.Error())
	}
	cfg.SASL.TokenURL = "http://127.0.0.1:1/token"
	bad = strict.Problems{}
	if cfg.Validate(&bad, strict.At("k")); bad.Err() != nil {
		t.Errorf("on this machine: %s", bad.Error())
	}
}
