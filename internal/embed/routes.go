package embed

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

const (
	// routeName is who the other server of a route is.
	routeName = "geogate-register"
	// routeHandshake bounds the handshake of a route. A loaded machine takes its time,
	// and a failed one is tried again.
	routeHandshake = 5 * time.Second
)

// routeTLS makes the configuration of connections between servers that share a secret.
// All derive the same key and certificate from it, and take nobody else's: the secret
// itself is sent to no one, so a process that takes a stopped server's port learns
// nothing.
func routeTLS(secret []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "geogate nats routes 1", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive key of nats routes: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	// The same bytes everywhere: its signature is deterministic. It says nothing of when
	// it is valid, which is as long as the secret is.
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: routeName}, DNSNames: []string{routeName},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, cert, cert, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make certificate of nats routes: %w", err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make certificate of nats routes: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: routeName, RootCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}},
	}, nil
}
