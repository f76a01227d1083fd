package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// Client talks to one gateway. Its methods may be called from any goroutine.
type Client struct {
	HTTP *http.Client
	// Address gives the gateway's listeners before each request, since another start
	// may have others. Its error is that of the request.
	Address func() (Address, error)
	// Retry is how long Store waits before it asks again; 0 is 100 ms.
	Retry time.Duration
}

// Address is where a gateway listens: base URLs.
type Address struct{ Data, Management string }

// At gives the same address each time.
func At(data, management string) func() (Address, error) {
	return func() (Address, error) { return Address{data, management}, nil }
}

// NewHTTP returns a client for many requests at a time that decodes nothing on its
// own.
func NewHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
}

// Problem is an answer that is not a success.
type Problem struct {
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	Retriable bool   `json:"retriable"`
	Version   string `json:"version"`    // of a deleted entity
	FirstUsed string `json:"first_used"` // of a reused idempotency key

	// Of a unit that the region may not write; no owner is nobody.
	Unit  string  `json:"unit"`
	Owner *string `json:"owner"`
	Epoch uint64  `json:"epoch"`
	State string  `json:"state"`

	Header http.Header `json:"-"`
}

// Error implements error.
func (p *Problem) Error() string {
	return fmt.Sprintf("%d %s (retriable %v): %s", p.Status, p.Code, p.Retriable, p.Detail)
}

// Code is the problem code in an error, "" if it is no Problem.
func Code(err error) string {
	var p *Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return ""
}

// Do sends one request to the data listener and returns the whole answer. Anything
// but 2xx is a *Problem.
func (c Client) Do(ctx context.Context, method, path string, body []byte, header http.Header) ([]byte, http.Header, error) {
	at, err := c.Address()
	if err != nil {
		return nil, nil, err
	}
	return c.whole(ctx, method, at.Data+path, body, header)
}

// DoManagement is Do for the management listener.
func (c Client) DoManagement(ctx context.Context, method, path string, body []byte, header http.Header) ([]byte, http.Header, error) {
	at, err := c.Address()
	if err != nil {
		return nil, nil, err
	}
	return c.whole(ctx, method, at.Management+path, body, header)
}

// whole sends a request to a URL and reads the whole answer.
func (c Client) whole(ctx context.Context, method, target string, body []byte, header http.Header) ([]byte, http.Header, error) {
	resp, err := c.open(ctx, method, target, body, header)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read answer: %w", err)
	}
	return raw, resp.Header, nil
}

// open sends a request and returns a successful answer with its body still open.
func (c Client) open(ctx context.Context, method, target string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err // it names method and URL
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read problem: %w", err)
	}
	p := &Problem{Status: resp.StatusCode, Header: resp.Header}
	if json.Unmarshal(raw, p) != nil || p.Code == "" {
		p.Detail = fmt.Sprintf("not a problem document: %.200q", raw)
	}
	return nil, p
}

// Get reads a document of the data listener.
func (c Client) Get(ctx context.Context, path string, into any) error {
	raw, _, err := c.Do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	return Decode(raw, into)
}

// Manage reads a document of the management listener.
func (c Client) Manage(ctx context.Context, path string, into any) error {
	raw, _, err := c.DoManagement(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	return Decode(raw, into)
}

// Decode decodes the document of an answer.
func Decode(raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode answer %.200q: %w", raw, err)
	}
	return nil
}

// ReadyForReads is Ready without what only writes need.
func (c Client) ReadyForReads(ctx context.Context) error {
	_, _, err := c.DoManagement(ctx, http.MethodGet, "/readyz?for=read", nil, nil)
	return err
}

// Ready asks whether the gateway can serve, writes included; nil is yes.
func (c Client) Ready(ctx context.Context) error {
	_, _, err := c.DoManagement(ctx, http.MethodGet, "/readyz", nil, nil)
	return err
}

// Orphan is one of the list of a unit's orphans.
type Orphan struct {
	Dot     string  `json:"dot"`
	Topic   string  `json:"topic"`
	Key     *Typed  `json:"key"`
	ID      *string `json:"id"`
	Stamp   string  `json:"stamp"`
	Epoch   *uint64 `json:"epoch"`
	Op      string  `json:"op"`
	Instead *string `json:"instead"`
}

// OrphanPage is one page of that list.
type OrphanPage struct {
	Orphans []Orphan `json:"orphans"`
	Next    string   `json:"next"`
	End     bool     `json:"end"`
}

// Orphans lists the orphans of a unit that the region has met.
func (c Client) Orphans(ctx context.Context, unit string) ([]Orphan, error) {
	var all []Orphan
	for from := ""; ; {
		q := url.Values{"unit": {unit}, "limit": {"100"}}
		if from != "" {
			q.Set("from", from)
		}
		var page OrphanPage
		if err := c.Manage(ctx, "/v1/ownership/orphans?"+q.Encode(), &page); err != nil {
			return nil, fmt.Errorf("list orphans of %s: %w", unit, err)
		}
		all = append(all, page.Orphans...)
		if page.End {
			return all, nil
		}
		if page.Next == from {
			return nil, fmt.Errorf("list of orphans of %s does not go on from %s", unit, from)
		}
		from = page.Next
	}
}

// Poll asks every so often until there is no error, or returns the last one when
// ctx ends.
func Poll(ctx context.Context, every time.Duration, ask func() error) error {
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if sleep.For(ctx, every) != nil {
			return err
		}
	}
}
