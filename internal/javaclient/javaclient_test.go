package javaclient_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"github.com/twmb/franz-go/pkg/kfake"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/javaclient"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate/mm2"
	"github.com/geogate/geogate/testbench/pki"
)

func read(t testing.TB, src, prefix string) (connect.Config, []javaclient.Problem) {
	t.Helper()
	all, err := settings(src)
	if err != nil {
		t.Fatal(err)
	}
	return javaclient.Connection(all, prefix)
}

// settings reads a file as mm2 does.
func settings(src string) (out []javaclient.Setting, err error) {
	all, err := mm2.ReadProperties("f", []byte(src))
	for _, s := range all {
		out = append(out, javaclient.Setting(s))
	}
	return out, err
}

func TestConnection(t *testing.T) {
	cfg, problems := read(t, `
clusters = us, eu
us.bootstrap.servers = a:9092, b:9092
eu.bootstrap.servers = c:9093
eu.security.protocol = SASL_SSL
eu.sasl.mechanism = SCRAM-SHA-512
eu.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="geogate" \
    password="p\\"a;s=s";
eu.ssl.truststore.location = /etc/trust.p12
eu.ssl.truststore.type = PKCS12
eu.ssl.truststore.password = changeit
`, "eu.")
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	if cfg.Seeds[0] != "c:9093" || cfg.SASL.Mechanism != connect.Scram512 || cfg.SASL.Username != "geogate" || cfg.Secrets.Password != `p"a;s=s` {
		t.Errorf("got %+v", cfg)
	}
	if s := cfg.Stores.Trust; s == nil || s.File != "/etc/trust.p12" || s.Type != connect.StorePKCS12 || s.Password != "changeit" {
		t.Errorf("trust store %+v", s)
	}
	if text := fmt.Sprintf("%v %+v %#v", cfg.Secrets, cfg.Secrets, cfg.Secrets); strings.Contains(text, "a;s") {
		t.Errorf("printed: %s", text)
	}
	if cfg, problems := read(t, "bootstrap.servers=a:1,b:2", ""); len(problems) != 0 || cfg.TLS != nil || cfg.SASL != nil || len(cfg.Seeds) != 2 {
		t.Errorf("plaintext: %+v %v", cfg, problems)
	}
	cfg, problems = read(t, `bootstrap.servers=a:1
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=https://id.example/token
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="g" clientSecret='s' scope="a b" extension_logicalCluster="lkc";
`, "")
	if len(problems) != 0 || cfg.SASL.ClientID != "g" || cfg.Secrets.ClientSecret != "s" || len(cfg.SASL.Scopes) != 2 || cfg.SASL.Extensions["logicalCluster"] != "lkc" {
		t.Errorf("oauth: %+v %v", cfg.SASL, problems)
	}
	cfg, problems = read(t, `bootstrap.servers=a:1
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=file:///run/token
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required extension_logicalCluster="lkc";
`, "")
	if len(problems) != 0 || cfg.SASL.TokenFile != "/run/token" || cfg.SASL.Extensions["logicalCluster"] != "lkc" {
		t.Errorf("token file: %+v %v", cfg.SASL, problems)
	}
	cfg, problems = read(t, `bootstrap.servers=a:1
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
`, "")
	if len(problems) != 0 || cfg.SASL.Mechanism != connect.AWSMSKIAM {
		t.Errorf("iam: %+v %v", cfg.SASL, problems)
	}
}

// What cannot be used is said with line and key, and never with a secret.
func TestProblems(t *testing.T) {
	const plain = "org.apache.kafka.common.security.plain.PlainLoginModule required "
	for name, tt := range map[string]struct{ src, want string }{
		"no brokers":     {"a=1", "line 0: bootstrap.servers: names no brokers"},
		"protocol":       {"bootstrap.servers=a:1\nsecurity.protocol=TLS", "line 2: security.protocol: \"TLS\" is none of"},
		"kerberos":       {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.jaas.config=x.Krb5LoginModule required;", "line 3: sasl.mechanism: GSSAPI is not supported"},
		"no jaas":        {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "sasl.jaas.config: is missing"},
		"no semicolon":   {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=" + plain + `username="u" password="hunter2"`, "line 4: sasl.jaas.config: the value ends in the middle"},
		"open quote":     {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=" + plain + `username="u" password="hunter2;`, "line 4: sasl.jaas.config: the value ends in the middle"},
		"other module":   {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=" + plain + `username="u" password="hunter2";`, "needs the module ScramLoginModule"},
		"no password":    {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=" + plain + `username="u";`, "needs username and password"},
		"no host check":  {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.endpoint.identification.algorithm=", "line 3: ssl.endpoint.identification.algorithm: names in certificates are always checked"},
		"store type":     {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.truststore.location=/x\nssl.truststore.type=BKS", "line 4: ssl.truststore.type: \"BKS\" is none of PEM, PKCS12, JKS"},
		"store password": {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.truststore.location=/x", "line 3: ssl.truststore.location: a store of type JKS needs ssl.truststore.password"},
		"old TLS":        {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.enabled.protocols=TLSv1.1", "has neither TLSv1.2 nor TLSv1.3"},
		"inline":         {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.keystore.key=hunter2", "line 3: ssl.keystore.key: certificates and keys are read from files"},
		"provider":       {"bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.truststore.location=/x\nssl.truststore.password=${file:/opt/hunter2:x}", "line 4: ssl.truststore.password: a value from a configuration provider"},
		"open endpoint":  {"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=http://id.example/t\nsasl.jaas.config=a.OAuthBearerLoginModule required clientId=a clientSecret=hunter2;", "line 4: sasl.oauthbearer.token.endpoint.url: must begin with https"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := read(t, tt.src, "")
			text := fmt.Sprint(problems)
			if !strings.Contains(text, tt.want) {
				t.Errorf("got %s, want %s", text, tt.want)
			}
			if strings.Contains(text, "hunter2") {
				t.Errorf("a secret is told: %s", text)
			}
		})
	}
}

func blocks(t *testing.T, s pki.Signed) (cert, key []byte) {
	t.Helper()
	c, _ := pem.Decode(s.CertPEM)
	k, _ := pem.Decode(s.KeyPEM)
	return c.Bytes, k.Bytes
}

// jks makes both kinds of stores in Java's own form.
func jks(t *testing.T, ca []byte, s pki.Signed, password string) (trust, own []byte) {
	t.Helper()
	cert, key := blocks(t, s)
	block, _ := pem.Decode(ca)
	store := func(set func(*keystore.KeyStore) error) []byte {
		ks := keystore.New()
		if err := set(&ks); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := ks.Store(&b, []byte(password)); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	trust = store(func(ks *keystore.KeyStore) error {
		return ks.SetTrustedCertificateEntry("ca", keystore.TrustedCertificateEntry{CreationTime: time.Now(), Certificate: keystore.Certificate{Type: "X509", Content: block.Bytes}})
	})
	own = store(func(ks *keystore.KeyStore) error {
		return ks.SetPrivateKeyEntry("me", keystore.PrivateKeyEntry{CreationTime: time.Now(), PrivateKey: key, CertificateChain: []keystore.Certificate{{Type: "X509", Content: cert}}}, []byte(password))
	})
	return trust, own
}

func p12(t *testing.T, ca []byte, s pki.Signed, password string) (trust, own []byte) {
	t.Helper()
	block, _ := pem.Decode(ca)
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if trust, err = pkcs12.Modern.EncodeTrustStore([]*x509.Certificate{root}, password); err != nil {
		t.Fatal(err)
	}
	pair := s.Pair(t)
	if own, err = pkcs12.Modern.Encode(pair.PrivateKey, pair.Leaf, nil, password); err != nil {
		t.Fatal(err)
	}
	return trust, own
}

// TestStores connects with mutual TLS by stores of each type, and refuses a wrong password.
func TestStores(t *testing.T) {
	ca := pki.New(t, "ca")
	server := ca.Sign(t, time.Now().Add(30*24*time.Hour), "127.0.0.1").Pair(t)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	ours := ca.Sign(t, time.Now().Add(30*24*time.Hour), "gateway")
	for _, tt := range []struct {
		typ  string
		make func(*testing.T, []byte, pki.Signed, string) (trust, own []byte)
	}{
		{connect.StoreJKS, jks},
		{connect.StorePKCS12, p12},
		{connect.StorePEM, func(_ *testing.T, ca []byte, s pki.Signed, _ string) ([]byte, []byte) {
			return ca, append(bytes.Clone(s.KeyPEM), s.CertPEM...)
		}},
		{connect.StoreJKS, p12}, // as Java reads it
	} {
		trust, own := tt.make(t, ca.PEM(), ours, "changeit")
		dir := t.TempDir()
		src := fmt.Sprintf("bootstrap.servers=%s\nsecurity.protocol=SSL\nssl.truststore.location=%s\nssl.truststore.type=%s\nssl.keystore.location=%s\nssl.keystore.type=%s\n",
			broker.ListenAddrs()[0], pki.Put(t, dir, "trust", trust), tt.typ, pki.Put(t, dir, "own", own), tt.typ)
		password := func(p string) string {
			if tt.typ == connect.StorePEM {
				return ""
			}
			return "ssl.truststore.password=" + p + "\nssl.keystore.password=" + p + "\n"
		}
		cfg, problems := read(t, src+password("changeit"), "")
		if len(problems) != 0 {
			t.Fatal(problems)
		}
		c, err := connect.Open("eu", strict.At("eu"), cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%s: %v", tt.typ, err)
		}
		cl, err := txn.NewClient(c.Opts("test")...)
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", tt.typ, err)
		}
		cl.Close()
		if tt.typ == connect.StorePEM {
			continue
		}
		cfg, _ = read(t, src+password("wrong-secret"), "")
		err = connect.Check(cfg, strict.At("eu"))
		if err == nil || !strings.Contains(err.Error(), "ssl.truststore.location") || !strings.Contains(err.Error(), "open key store") || strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("%s with a wrong password: %v", tt.typ, err)
		}
	}
}

// FuzzConnection: whatever a file has, there is a connection or a problem, and no secret is told.
func FuzzConnection(f *testing.F) {
	f.Add("bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=x.PlainLoginModule required username=\"u\" password='p\\'q';")
	f.Add("bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.truststore.location=/x\nssl.truststore.type=PEM\nssl.keystore.location=/y\nssl.keystore.password=z")
	f.Add("bootstrap.servers=a:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file:///t\nsasl.jaas.config=x.OAuthBearerLoginModule required;")
	f.Fuzz(func(t *testing.T, src string) {
		all, err := settings(src)
		if err != nil {
			return
		}
		cfg, problems := javaclient.Connection(all, "")
		if len(problems) > 0 {
			return
		}
		if len(cfg.Seeds) == 0 {
			t.Fatal("no brokers and no problem")
		}
		if cfg.SASL != nil && cfg.SASL.Mechanism == "" {
			t.Fatal("SASL without a mechanism and no problem")
		}
		if s := cfg.SASL; s != nil && strings.HasPrefix(s.Mechanism, "scram") && (s.Username == "" || cfg.Secrets.Password == "") {
			t.Fatal("no credentials and no problem")
		}
	})
}
