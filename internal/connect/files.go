package connect

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/geogate/geogate/internal/secret"
	"github.com/geogate/geogate/internal/strict"
)

// loaded is what connections are made with: a configuration and the contents of its files. It
// is immutable.
type loaded struct {
	tls       *tls.Config    // nil: in the clear
	mechanism sasl.Mechanism // nil: no SASL
	sum       [sha256.Size]byte
	expires   time.Time // when the own certificate ends; zero: there is none
}

// maxFile bounds a file of certificates: the name of a large file may be given by mistake.
const maxFile = 4 << 20

// contents are the bytes of a configuration's files, by the last part of their paths in it.
type contents map[string][]byte

// read reads all files that c names.
func (c *Config) read() (contents, error) {
	var bad strict.Problems
	out := contents{}
	for _, f := range c.Files() {
		if *f.Name == "" {
			continue
		}
		key := f.At[len(f.At)-1].(string)
		var b []byte
		var err error
		switch key {
		case "ca_file", "cert_file", "token_ca_file", "truststore":
			b, err = readPublic(*f.Name)
		default:
			b, err = c.readSecret(key, *f.Name)
		}
		if err != nil {
			bad.Add(f.At, "%v", err)
		}
		out[key] = b
	}
	if c.Secrets.Password != "" {
		out["password_file"] = []byte(c.Secrets.Password)
	}
	if c.Secrets.ClientSecret != "" {
		out["client_secret_file"] = []byte(c.Secrets.ClientSecret)
	}
	return out, bad.Err()
}

// readSecret reads a file that only its owner may read, except for a key store of Java: that is
// not text, and is protected by its password.
func (c *Config) readSecret(key, name string) ([]byte, error) {
	if key == "keystore" && c.Stores.Key.Type != StorePEM {
		return readPublic(name)
	}
	return secret.ReadIssued(name)
}

func readPublic(name string) ([]byte, error) {
	f, err := secret.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes, which no file of certificates needs", name, maxFile)
	}
	return b, err
}

// sum is a checksum, by which a change of the files is seen.
func (c contents) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, key := range []string{"ca_file", "cert_file", "key_file", "password_file", "token_file", "client_secret_file", "token_ca_file", "credentials_file", "truststore", "keystore"} {
		fmt.Fprintf(h, "%s %d\n", key, len(c[key]))
		h.Write(c[key])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// load parses the files. Errors are [strict.Problems].
func (c *Config) load(files contents) (*loaded, error) {
	var bad strict.Problems
	l := &loaded{sum: files.sum()}
	if c.TLS != nil {
		l.tls, l.expires = c.TLS.load(&bad, files)
		c.Stores.apply(&bad, l.tls, files)
		if len(l.tls.Certificates) > 0 {
			l.expires = l.tls.Certificates[0].Leaf.NotAfter
		}
	}
	if c.SASL != nil {
		l.mechanism = c.SASL.load(&bad, files)
	}
	if err := bad.Err(); err != nil {
		return nil, err
	}
	return l, nil
}

func (t *TLS) load(bad *strict.Problems, files contents) (cfg *tls.Config, expires time.Time) {
	at := strict.At("tls")
	cfg = &tls.Config{MinVersion: versions()[t.MinVersion], ServerName: t.ServerName}
	if t.CAFile != "" {
		cfg.RootCAs = pool(bad, at.And("ca_file"), t.CAFile, files["ca_file"])
	}
	if t.CertFile == "" {
		return cfg, time.Time{}
	}
	if block, _ := pem.Decode(files["key_file"]); block != nil && (block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "") {
		bad.Add(at.And("key_file"), "the key in %s is encrypted; decrypt it with openssl pkey -in %s -out PLAIN, and let nobody else read the result", t.KeyFile, t.KeyFile)
		return cfg, time.Time{}
	}
	pair, err := tls.X509KeyPair(files["cert_file"], files["key_file"])
	if err != nil {
		bad.Add(at.And("cert_file"), "%s and key_file, %s, are not a certificate and its key in PEM: %v", t.CertFile, t.KeyFile, err)
		return cfg, time.Time{}
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, pair.Leaf.NotAfter
}

// pool returns the certificates of a file.
func pool(bad *strict.Problems, at strict.Path, name string, pemText []byte) *x509.CertPool {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pemText) {
		bad.Add(at, "%s has no certificate in PEM; convert one in another form with openssl x509 -inform der", name)
	}
	return p
}
