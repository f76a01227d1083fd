package connect

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/geogate/geogate/internal/strict"
)

// The types of key and trust stores.
const (
	StorePEM    = "PEM"
	StorePKCS12 = "PKCS12"
	StoreJKS    = "JKS"
)

// Store is a trust store or key store of a Java client: a file with certificates, or with a
// private key and its certificate.
type Store struct {
	File string
	// Type is StorePEM, StorePKCS12 or StoreJKS. A file of one of the last two types may have
	// the form of the other, as in Java.
	Type string
	// Password opens the file, and KeyPassword the key in it; the latter is Password if empty.
	Password, KeyPassword string
	// At is where a configuration names the file.
	At strict.Path
}

// Stores are the trust store and key store of a Java client's settings.
type Stores struct {
	// Trust has the certificates that brokers' certificates must lead to, Key the own
	// certificate. Nil: as without stores.
	Trust, Key *Store
}

// errNoKey and errNoCertificate are for a key store given as trust store, and the reverse.
var (
	errNoKey         = errors.New("it has no private key with a certificate")
	errNoCertificate = errors.New("it has no trusted certificate")
)

// apply puts the contents of the stores into a TLS configuration.
func (s *Stores) apply(bad *strict.Problems, cfg *tls.Config, files contents) {
	if s.Trust != nil {
		roots, err := s.Trust.trusted(files["truststore"])
		if err != nil {
			bad.Add(s.Trust.At, "open trust store %s: %v", s.Trust.File, err)
		}
		cfg.RootCAs = roots
	}
	if s.Key != nil {
		pair, err := s.Key.own(files["keystore"])
		if err != nil {
			bad.Add(s.Key.At, "open key store %s: %v", s.Key.File, err)
			return
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
}

// isJKS tells by the first bytes whether a file is a Java key store (JKS).
func isJKS(b []byte) bool { return bytes.HasPrefix(b, []byte{0xFE, 0xED, 0xFE, 0xED}) }

// trusted returns the certificates of a trust store.
func (s *Store) trusted(b []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	var certs []*x509.Certificate
	var err error
	switch {
	case s.Type == StorePEM:
		if !pool.AppendCertsFromPEM(b) {
			return nil, errNoCertificate
		}
		return pool, nil
	case isJKS(b):
		certs, err = s.trustedJKS(b)
	default:
		certs, err = pkcs12.DecodeTrustStore(b, s.Password)
	}
	if err != nil {
		return nil, err
	}
	if len(certs) == 0 {
		return nil, errNoCertificate
	}
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, nil
}

func (s *Store) openJKS(b []byte) (keystore.KeyStore, error) {
	ks := keystore.New()
	err := ks.Load(bytes.NewReader(b), []byte(s.Password))
	return ks, err
}

func (s *Store) trustedJKS(b []byte) ([]*x509.Certificate, error) {
	ks, err := s.openJKS(b)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for _, alias := range ks.Aliases() {
		if !ks.IsTrustedCertificateEntry(alias) {
			continue
		}
		e, err := ks.GetTrustedCertificateEntry(alias)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", alias, err)
		}
		c, err := x509.ParseCertificate(e.Certificate.Content)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", alias, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// own returns the certificate and key of a key store.
func (s *Store) own(b []byte) (tls.Certificate, error) {
	switch {
	case s.Type == StorePEM:
		pair, err := tls.X509KeyPair(b, b)
		return pair, err
	case isJKS(b):
		return s.ownJKS(b)
	}
	key, cert, chain, err := pkcs12.DecodeChain(b, s.Password)
	if err != nil {
		return tls.Certificate{}, err
	}
	raw := [][]byte{cert.Raw}
	for _, c := range chain {
		raw = append(raw, c.Raw)
	}
	return pairOf(raw, key)
}

func (s *Store) ownJKS(b []byte) (tls.Certificate, error) {
	ks, err := s.openJKS(b)
	if err != nil {
		return tls.Certificate{}, err
	}
	password := s.KeyPassword
	if password == "" {
		password = s.Password
	}
	for _, alias := range ks.Aliases() {
		if !ks.IsPrivateKeyEntry(alias) {
			continue
		}
		e, err := ks.GetPrivateKeyEntry(alias, []byte(password))
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("read key %s: %w", alias, err)
		}
		key, err := x509.ParsePKCS8PrivateKey(e.PrivateKey)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("read key %s: %w", alias, err)
		}
		var raw [][]byte
		for _, c := range e.CertificateChain {
			raw = append(raw, c.Content)
		}
		return pairOf(raw, key)
	}
	return tls.Certificate{}, errNoKey
}

// pairOf joins a certificate chain with its key, and checks that they match.
func pairOf(chain [][]byte, key crypto.PrivateKey) (tls.Certificate, error) {
	if len(chain) == 0 {
		return tls.Certificate{}, errNoKey
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	var certs []byte
	for _, c := range chain {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	return tls.X509KeyPair(certs, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
