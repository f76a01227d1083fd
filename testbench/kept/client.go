package kept

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// pollEvery is the distance between two questions about what must come about.
const pollEvery = 50 * time.Millisecond

// Region is a running region as its clients and operators reach it.
type Region struct {
	Name             string
	Data, Management string   // base URLs
	Seeds            []string // of its Kafka
	HTTP             *http.Client
}

// Reply is the whole answer to a request.
type Reply struct {
	Status   int
	Body     []byte
	Replayed bool // the header Idempotent-Replayed
}

// Code is the code of a problem, "" if the reply is none.
func (r Reply) Code() string {
	var p struct {
		Code string `json:"code"`
	}
	if r.Status/100 == 2 || json.Unmarshal(r.Body, &p) != nil {
		return ""
	}
	return p.Code
}

// retriable tells whether the same request may be answered otherwise.
func (r Reply) retriable() bool {
	var p struct {
		Retriable bool `json:"retriable"`
	}
	return r.Status/100 != 2 && json.Unmarshal(r.Body, &p) == nil && p.Retriable
}

// Err is nil for a reply of success.
func (r Reply) Err() error {
	if r.Status/100 == 2 {
		return nil
	}
	return fmt.Errorf("%d %s: %.300s", r.Status, r.Code(), r.Body)
}

// Do sends one request.
func (r *Region) Do(ctx context.Context, method, address string, body []byte, header http.Header) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return Reply{}, fmt.Errorf("make request: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := r.HTTP.Do(req)
	if err != nil {
		return Reply{}, fmt.Errorf("ask %s: %w", r.Name, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return Reply{}, fmt.Errorf("read answer of %s: %w", r.Name, err)
	}
	return Reply{Status: resp.StatusCode, Body: raw, Replayed: resp.Header.Get("Idempotent-Replayed") == "true"}, nil
}

// Get reads a path of the data listener, or of the management listener if that is
// the base, into a value.
func (r *Region) Get(ctx context.Context, base, path string, q url.Values, into any) error {
	address := base + path
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	reply, err := r.Do(ctx, http.MethodGet, address, nil, nil)
	if err == nil {
		err = reply.Err()
	}
	if err == nil {
		err = json.Unmarshal(reply.Body, into)
	}
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", path, r.Name, err)
	}
	return nil
}

// Write is a request to store a record: Body is the document of POST
// /v1/topics/{topic}/records.
type Write struct {
	Topic string `json:"topic"`
	Idem  string `json:"idempotency_key,omitempty"`
	Body  string `json:"body"` // a string, so that its bytes stay as they were sent
}

// Send sends a write once.
func (r *Region) Send(ctx context.Context, w Write) (Reply, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if w.Idem != "" {
		h.Set("Idempotency-Key", w.Idem)
	}
	return r.Do(ctx, http.MethodPost, r.Data+"/v1/topics/"+url.PathEscape(w.Topic)+"/records", []byte(w.Body), h)
}

// Store sends a write again until it is stored, as long as the refusals say that
// nothing was stored and that it may help. A write whose outcome is unknown is sent
// again only if it has a key.
func (r *Region) Store(ctx context.Context, w Write) (reply Reply, err error) {
	var last error
	err = Poll(ctx, func() error {
		if reply, last = r.Send(ctx, w); last == nil {
			last = reply.Err()
		}
		if reply.retriable() || reply.Status == 0 && w.Idem != "" {
			return last
		}
		return nil
	})
	err = cmp.Or(err, last)
	if err != nil {
		return reply, fmt.Errorf("write to %s in %s: %w", w.Topic, r.Name, err)
	}
	return reply, nil
}

// Command posts a fence or an unfence and waits for its end.
func (r *Region) Command(ctx context.Context, verb string, arguments map[string]string) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	reply, err := r.Do(ctx, http.MethodPost, r.Management+"/v1/"+verb, body, http.Header{"Content-Type": {"application/json"}})
	if err == nil {
		err = reply.Err()
	}
	var result struct {
		Exit int `json:"exit"`
	}
	if err == nil {
		err = json.Unmarshal(reply.Body, &result)
	}
	if err == nil && result.Exit != 0 && result.Exit != exitOrphans {
		err = fmt.Errorf("exit %d: %s", result.Exit, reply.Body)
	}
	if err != nil {
		return fmt.Errorf("%s %v in %s: %w", verb, arguments, r.Name, err)
	}
	return nil
}

// exitOrphans is the exit code of a fence that may have left orphans.
const exitOrphans = 10

// Poll asks until there is no error, or returns the last one when ctx ends.
func Poll(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
