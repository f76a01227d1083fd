//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// retryWait is how long a client asks again with the same key: long enough
	// for a killed gateway to come back.
	retryWait  = 60 * time.Second
	retryPause = 100 * time.Millisecond
)

// write is one record to send.
type write struct {
	topic string
	key   string
	idem  string
	value []byte // nil deletes
	// headers are the record's; their order stays.
	headers []header
}

// header is one record header to send.
type header struct{ name, value string }

// typed is a key or value as the API shows it.
type typed struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// answer is the body of a stored write.
type answer struct {
	ID        string `json:"id"`
	Dot       string `json:"dot"`
	Topic     string `json:"topic"`
	Region    string `json:"region"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Stamp     string `json:"stamp"`
	Unit      string `json:"unit"`
	Epoch     uint64 `json:"epoch"`
	Token     string `json:"token"`

	raw      []byte // the body as sent
	single   bool   // an answer to one record, not a line of a stream
	replayed bool   // header Idempotent-Replayed
	pending  bool   // header Geogate-Dedupe
	token    string // header Geogate-Token
}

// problem is an answer that is not a success.
type problem struct {
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	Retriable bool   `json:"retriable"`
	Version   string `json:"version"` // of a deleted entity

	// Of NOT_OWNER:
	Unit  string  `json:"unit"`
	Owner *string `json:"owner"`
	Epoch uint64  `json:"epoch"`
	State string  `json:"state"`
}

func (p *problem) Error() string {
	return fmt.Sprintf("%d %s (retriable %v): %s", p.Status, p.Code, p.Retriable, p.Detail)
}

// body is the request document of a write. It is put together by hand because
// the value's bytes must go over exactly as they stand in the data.
func (w write) body(withKey bool) []byte {
	b := append([]byte(`{"key":{"type":"string","data":`), quoted(w.key)...)
	if w.value == nil {
		b = append(b, `},"value":null`...)
	} else {
		b = append(b, `},"value":{"type":"json","data":`...)
		b = append(append(b, w.value...), '}')
	}
	for i, h := range w.headers {
		b = append(b, map[bool]string{true: `,"headers":[`, false: `,`}[i == 0]...)
		b = append(append(b, `{"name":`...), quoted(h.name)...)
		b = append(append(b, `,"value":`...), quoted(base64.StdEncoding.EncodeToString([]byte(h.value)))...)
		b = append(b, '}')
		if i == len(w.headers)-1 {
			b = append(b, ']')
		}
	}
	if withKey {
		b = append(append(b, `,"idempotency_key":`...), quoted(w.idem)...)
	}
	return append(b, '}')
}

// quoted is a JSON string; a Go string always has one.
func quoted(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}

// do sends one request and returns the whole answer. Anything but 2xx is a
// *problem.
func (w *world) do(ctx context.Context, method, url string, body []byte, header http.Header) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := w.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode/100 != 2 {
		p := &problem{Status: resp.StatusCode}
		if err := json.Unmarshal(raw, p); err != nil {
			p.Detail = fmt.Sprintf("not a problem document: %.200q", raw)
		}
		return nil, resp.Header, p
	}
	return raw, resp.Header, nil
}

// put sends one write with its idempotency key, once.
func (w *world) put(ctx context.Context, r *region, wr write) (answer, error) {
	h := http.Header{
		"Content-Type":    {"application/json"},
		"Idempotency-Key": {`"` + wr.idem + `"`},
	}
	raw, got, err := w.do(ctx, http.MethodPost, r.data+"/v1/topics/"+wr.topic+"/records", wr.body(false), h)
	if err != nil {
		return answer{}, err
	}
	a := answer{
		raw: raw, single: true, token: got.Get("Geogate-Token"),
		replayed: got.Get("Idempotent-Replayed") == "true", pending: got.Get("Geogate-Dedupe") == "pending",
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return answer{}, fmt.Errorf("decode answer %.200q: %w", raw, err)
	}
	return a, nil
}

// mayRetry tells whether the same request may be sent again: the connection
// broke, or the answer says so.
func mayRetry(err error) bool {
	var p *problem
	if errors.As(err, &p) {
		return p.Retriable
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// store sends a write until it is answered, as a careful client does: the same
// key again after every broken connection and every retriable refusal.
func (w *world) store(ctx context.Context, r *region, wr write) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, retryWait)
	defer cancel()
	var last error
	for {
		a, err := w.put(ctx, r, wr)
		if err == nil {
			return a, nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if !mayRetry(err) || !pause(ctx, retryPause) {
			return answer{}, fmt.Errorf("write %s to %s in %s: %w", wr.idem, wr.topic, r.name, errors.Join(last, ctx.Err()))
		}
	}
}

// storeAll sends a stream of writes as NDJSON and sends those lines again that
// were not answered with a success.
func (w *world) storeAll(ctx context.Context, r *region, writes []write) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, retryWait)
	defer cancel()
	answers := make([]answer, len(writes))
	open := make([]int, len(writes))
	for i := range open {
		open[i] = i
	}
	var last error
	for {
		var err error
		open, err = w.stream(ctx, r, writes, open, answers)
		if len(open) == 0 {
			return answers, nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if err != nil && !mayRetry(err) || !pause(ctx, retryPause) {
			return nil, fmt.Errorf("write %d lines from %s to %s in %s: %w", len(open), writes[open[0]].idem, writes[0].topic, r.name, errors.Join(last, ctx.Err()))
		}
	}
}

// stream sends the open lines in one request, fills in their answers and
// returns those still open, with the reason of one of them.
func (w *world) stream(ctx context.Context, r *region, writes []write, open []int, answers []answer) ([]int, error) {
	var body bytes.Buffer
	for _, i := range open {
		body.Write(writes[i].body(true))
		body.WriteByte('\n')
	}
	raw, _, err := w.do(ctx, http.MethodPost, r.data+"/v1/topics/"+writes[0].topic+"/records", body.Bytes(),
		http.Header{"Content-Type": {"application/x-ndjson"}})
	if err != nil {
		return open, err
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	sc.Buffer(nil, 1<<20)
	var left []int
	at := 0
	for ; at < len(open) && sc.Scan(); at++ {
		var line struct {
			answer
			Status  int      `json:"status"`
			Problem *problem `json:"problem"`
		}
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			return append(left, open[at:]...), fmt.Errorf("decode answer line %.200q: %w", sc.Bytes(), err)
		}
		if line.Problem != nil {
			left, err = append(left, open[at]), line.Problem
			if !line.Problem.Retriable {
				return append(left, open[at+1:]...), err
			}
			continue
		}
		a := line.answer
		a.raw, a.token = bytes.Clone(sc.Bytes()), a.Token
		answers[open[at]] = a
	}
	return append(left, open[at:]...), err
}

// pause waits, or returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// entity reads one entity, waiting until the token's dot is applied.
func (w *world) entity(ctx context.Context, r *region, topic, key, token string) (body []byte, etag string, err error) {
	h := http.Header{}
	if token != "" {
		h.Set("Geogate-Token", token)
	}
	body, got, err := w.do(ctx, http.MethodGet, r.data+"/v1/topics/"+topic+"/entities/"+url.PathEscape(key), nil, h)
	return body, got.Get("ETag"), err
}

// shownRecord is a record as the API shows it.
type shownRecord struct {
	ID     string `json:"id"`
	Dot    string `json:"dot"`
	Region string `json:"region"`
	Key    *typed `json:"key"`
	Value  *typed `json:"value"`

	Cursor    string `json:"cursor"`    // when following
	Heartbeat bool   `json:"heartbeat"` // when following
}

type page struct {
	Records []shownRecord `json:"records"`
	Next    string        `json:"next"`
	End     bool          `json:"end"`
}

// merged reads a region's whole merged view, page by page, until its end.
func (w *world) merged(ctx context.Context, r *region, topic string) (all []shownRecord, next string, err error) {
	next = "earliest"
	for {
		q := url.Values{"view": {"merged"}, "from": {next}, "limit": {"500"}, "wait": {"1s"}}
		raw, _, err := w.do(ctx, http.MethodGet, r.data+"/v1/topics/"+topic+"/records?"+q.Encode(), nil, nil)
		if err != nil {
			return nil, "", fmt.Errorf("read merged view of %s in %s from %.40s: %w", topic, r.name, next, err)
		}
		var p page
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, "", fmt.Errorf("decode records: %w", err)
		}
		all = append(all, p.Records...)
		if p.End && len(p.Records) == 0 {
			return all, p.Next, nil
		}
		next = p.Next
	}
}

// conflict is a record of the conflict feed.
type conflict struct {
	Topic  string `json:"topic"`
	Key    *typed `json:"key"`
	Reason string `json:"reason"`
	Rule   string `json:"rule"`
	Lost   ref    `json:"lost"`
	Won    ref    `json:"won"`
}

type ref struct {
	Dot    string `json:"dot"`
	ID     string `json:"id"`
	Region string `json:"region"`
	Stamp  string `json:"stamp"`
}

// conflicts reads a region's whole feed of a topic.
func (w *world) conflicts(ctx context.Context, r *region, topic string) (all []conflict, err error) {
	next := "earliest"
	for {
		q := url.Values{"topic": {topic}, "from": {next}, "limit": {"500"}}
		raw, _, err := w.do(ctx, http.MethodGet, r.data+"/v1/conflicts?"+q.Encode(), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("read conflicts of %s in %s: %w", topic, r.name, err)
		}
		var p struct {
			Conflicts []conflict `json:"conflicts"`
			Next      string     `json:"next"`
			End       bool       `json:"end"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("decode conflicts: %w", err)
		}
		all = append(all, p.Conflicts...)
		if p.End {
			return all, nil
		}
		next = p.Next
	}
}

// linkStatus is what the status says of a link; a nil number is unknown.
type linkStatus struct {
	Name       string            `json:"name"`
	From       string            `json:"from"`
	To         string            `json:"to"`
	State      string            `json:"state"`
	LagRecords *int64            `json:"lag_records"`
	LagSeconds *float64          `json:"lag_seconds"`
	Copied     int64             `json:"copied"`
	Parked     []json.RawMessage `json:"parked"`
}

// link returns the status of a region's outgoing link.
func (w *world) link(ctx context.Context, r *region) (linkStatus, error) {
	raw, _, err := w.do(ctx, http.MethodGet, r.manage+"/v1/status", nil, nil)
	if err != nil {
		return linkStatus{}, fmt.Errorf("read status of %s: %w", r.name, err)
	}
	var s struct {
		Region string       `json:"region"`
		Links  []linkStatus `json:"links"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return linkStatus{}, fmt.Errorf("decode status: %w", err)
	}
	for _, l := range s.Links {
		if l.From == r.name {
			return l, nil
		}
	}
	return linkStatus{}, fmt.Errorf("status of %s names no link from it: %s", r.name, raw)
}
