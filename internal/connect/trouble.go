package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
)

// Kind says why a request or a connection failed. The zero Kind, Unreachable, is all that is
// not known to be one of the others.
type Kind int

// The kinds.
const (
	// Unreachable: the broker does not answer, or with an error that is no refusal.
	Unreachable Kind = iota
	// BadTLS: broker and client do not accept each other's certificates, or one of them does
	// not speak TLS.
	BadTLS
	// NotAuthenticated: the broker does not accept the credentials, or there are none.
	NotAuthenticated
	// NotAuthorized: the broker has authenticated the client, which lacks a right.
	NotAuthorized
)

// Code returns the warning code of a kind.
func (k Kind) Code() warning.Code {
	switch k {
	case BadTLS:
		return warning.KafkaTLS
	case NotAuthenticated:
		return warning.KafkaAuthentication
	case NotAuthorized:
		return warning.KafkaAuthorization
	}
	return warning.KafkaUnreachable
}

// tlsError is an error of a TLS handshake.
type tlsError struct{ err error }

// Error implements error.
func (e *tlsError) Error() string { return "set up TLS: " + e.err.Error() }

// Unwrap returns the error of the library.
func (e *tlsError) Unwrap() error { return e.err }

// errClosed is for a broker that closes the connection during the TLS handshake: it does not
// speak TLS, or is stopping. It does not wrap io.EOF, which means something else to a client.
var errClosed = errors.New("the broker has closed the connection during the TLS handshake")

// credentialsError is an error of SASL on the client's side: there are no credentials, or the
// broker did not prove (SCRAM) that it knows the password.
type credentialsError struct{ err error }

// Error implements error.
func (e *credentialsError) Error() string { return "authenticate: " + e.err.Error() }

// Unwrap returns the error of the mechanism.
func (e *credentialsError) Unwrap() error { return e.err }

// errClosedAuth is for a broker that closes the connection instead of answering whether the
// credentials are right.
var errClosedAuth = &credentialsError{errors.New("the broker has closed the connection")}

// backoffError is the outcome of an attempt that was not made, because the broker has refused
// a moment ago.
type backoffError struct{ err error }

// Error implements error.
func (e *backoffError) Error() string { return "not tried again yet: " + e.err.Error() }

// Unwrap returns the refusal.
func (e *backoffError) Unwrap() error { return e.err }

// KindOf returns the kind of a client's error.
func KindOf(err error) Kind {
	for _, e := range []error{kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed} {
		if errors.Is(err, e) {
			return NotAuthorized
		}
	}
	for _, e := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState} {
		if errors.Is(err, e) {
			return NotAuthenticated
		}
	}
	if _, ok := errors.AsType[*credentialsError](err); ok {
		return NotAuthenticated
	}
	if _, ok := errors.AsType[*tlsError](err); ok {
		return BadTLS
	}
	if isAlert(err) {
		return BadTLS // in TLS 1.3 a broker refuses a certificate after the client is done
	}
	return Unreachable
}

// isAlert tells whether err is a TLS alert of the other side, for which the library has no
// exported type.
func isAlert(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}

// Remedy says what to do about an error of a client; at is the path of the cluster's part of
// the configuration. It is empty where there is nothing to say.
func Remedy(err error, at string) string {
	switch KindOf(err) {
	case NotAuthorized:
		return "give the principal of " + at + " the right that is missing (see Rights on Kafka in the operators' guide)"
	case NotAuthenticated:
		if errors.Is(err, kerr.UnsupportedSaslMechanism) {
			return "the listener does not offer the mechanism: correct " + at + ".sasl.mechanism, or use another listener"
		}
		return "correct " + at + ".sasl, the file that it names, or the broker's accounts"
	case BadTLS:
		return tlsRemedy(err, at)
	}
	if errors.Is(err, errClosed) {
		return "if this persists, the port does not speak TLS: use the port of a listener that does, or remove " + at + ".tls"
	}
	if _, ok := errors.AsType[*kgo.ErrFirstReadEOF](err); ok {
		return "if this persists, the listener requires TLS or SASL: set " + at + ".tls or " + at + ".sasl"
	}
	return ""
}

func tlsRemedy(err error, at string) string {
	at += ".tls"
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the port does not speak TLS: use the port of a listener that does, or remove " + at
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "put the certificate of the authority that signed the broker's certificate into " + at + ".ca_file"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "give the broker a certificate with this name, or set " + at + ".server_name to one that it has"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "renew the broker's certificate, or set this machine's clock"
	}
	if isAlert(err) {
		return "the broker does not accept the client's certificate or TLS version: correct " + at + ".cert_file and key_file, or what the broker trusts"
	}
	return "use the port of a listener that speaks TLS, or correct " + at
}

// Explain returns a client's error and what to do about it, on one line.
func Explain(err error, at string) string {
	if r := Remedy(err, at); r != "" {
		return fmt.Sprintf("%v; %s", err, r)
	}
	return err.Error()
}
