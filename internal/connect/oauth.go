package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	// fetchTimeout bounds one request for a token or for credentials, for which a connection waits.
	fetchTimeout = 10 * time.Second
	// renewBefore is how long before its end a token is renewed.
	renewBefore = 30 * time.Second
	// tokenPause is how long a token endpoint that has failed is not asked again.
	tokenPause = 2 * time.Second
)

// tokenEndpoint requests tokens with a client's id and secret. All Kafka clients of a cluster
// share one token, and one request for it.
type tokenEndpoint struct {
	cfg    clientcredentials.Config
	client *http.Client

	mu     sync.Mutex
	last   *oauth2.Token
	err    error     // of the last request, if it failed
	failed time.Time // when it did
}

func newTokenEndpoint(s *SASL, secret string) *tokenEndpoint {
	params := url.Values{}
	if s.Audience != "" {
		params.Set("audience", s.Audience)
	}
	return &tokenEndpoint{
		cfg:    clientcredentials.Config{ClientID: s.ClientID, ClientSecret: secret, TokenURL: s.TokenURL, Scopes: s.Scopes, EndpointParams: params},
		client: &http.Client{Timeout: fetchTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect }},
	}
}

// errRedirect is for a token endpoint that sends elsewhere, where the secret must not be sent.
var errRedirect = errors.New("the token endpoint redirects; give the URL that it redirects to")

// trust accepts only certificates of the endpoint that lead to one of roots.
func (e *tokenEndpoint) trust(roots *x509.CertPool) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	e.client.Transport = t
}

// token returns the last token, or requests a new one before that expires. While one caller
// waits for the answer, the others wait for that caller.
func (e *tokenEndpoint) token(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.last != nil && (e.last.Expiry.IsZero() || now.Before(e.last.Expiry.Add(-renewBefore))) {
		return e.last.AccessToken, nil
	}
	if e.err != nil && now.Sub(e.failed) < tokenPause {
		return "", e.err
	}
	t, err := e.cfg.Token(context.WithValue(ctx, oauth2.HTTPClient, e.client))
	if err == nil && t.AccessToken == "" {
		err = errors.New("the answer has no access_token")
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return "", &tokenError{e.cfg.TokenURL, err} // says nothing of the endpoint: others may ask at once
	}
	if err != nil {
		e.err, e.failed = &tokenError{e.cfg.TokenURL, err}, now
		return "", e.err
	}
	e.last, e.err = t, nil
	return t.AccessToken, nil
}

// tokenError says why there is no token. It leaves out the body of the endpoint's answer, which
// may have a secret in it.
type tokenError struct {
	url string
	err error
}

// Error implements error.
func (e *tokenError) Error() string {
	var refused *oauth2.RetrieveError
	switch {
	case !errors.As(e.err, &refused):
		return fmt.Sprintf("ask %s for a token: %v", e.url, e.err)
	case refused.ErrorCode != "":
		return fmt.Sprintf("ask %s for a token: %s: %.200s", e.url, refused.ErrorCode, refused.ErrorDescription)
	case refused.Response != nil:
		return fmt.Sprintf("ask %s for a token: status %s", e.url, refused.Response.Status)
	}
	return fmt.Sprintf("ask %s for a token: the answer is not a token", e.url)
}

// Unwrap returns the error of the library.
func (e *tokenError) Unwrap() error { return e.err }
