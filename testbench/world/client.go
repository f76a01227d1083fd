package world

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
)

// Write is one record to be written.
type Write struct {
	Topic string
	Key   *string // nil is null
	Value []byte  // JSON; nil deletes
	// Idem is the idempotency key, Token the client's; "" is none.
	Idem, Token string
	// Headers are the record's own, each name and value.
	Headers [][2]string
}

// Option changes a write or a read.
type Option func(*Write)

// Idem gives the write an idempotency key.
func Idem(key string) Option { return func(w *Write) { w.Idem = key } }

// Token makes the request carry a token.
func Token(token string) Option { return func(w *Write) { w.Token = token } }

// Header gives the record a header.
func Header(name, value string) Option {
	return func(w *Write) { w.Headers = append(w.Headers, [2]string{name, value}) }
}

// NoKey leaves the record key out.
func NoKey() Option { return func(w *Write) { w.Key = nil } }

// Answer is the body of a stored write, with its headers.
type Answer struct {
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

	Raw      string      `json:"-"` // the body as it came
	Header   http.Header `json:"-"`
	Replayed bool        `json:"-"` // header Idempotent-Replayed
	Pending  bool        `json:"-"` // header Geogate-Dedupe
}

// Problem is an answer that is no success.
type Problem struct {
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	Retriable bool   `json:"retriable"`
	Version   string `json:"version"`    // of a deleted entity
	FirstUsed string `json:"first_used"` // of a reused idempotency key

	// Of a unit that the region may not write: owner "" is nobody.
	Unit  string `json:"unit"`
	Owner string `json:"owner"`
	Epoch uint64 `json:"epoch"`
	State string `json:"state"`

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

// Typed is a key or value as the API shows it.
type Typed struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// Text is the key or value as text: a string's characters, else the bytes of its
// JSON. Null is "".
func (v *Typed) Text() string {
	if v == nil {
		return ""
	}
	var s string
	if v.Type != "json" && json.Unmarshal(v.Data, &s) == nil {
		return s
	}
	return string(v.Data)
}

// errAway says that the instance does not run.
var errAway = errors.New("instance does not run")

func (in *Instance) data() (string, error) {
	n := in.node.Load()
	if n == nil {
		return "", errAway
	}
	return "http://" + n.DataAddr(), nil
}

// Do sends one request to an instance's data listener and returns the whole
// answer. Anything but 2xx is a *Problem.
func (in *Instance) Do(ctx context.Context, method, path string, body []byte, header http.Header) ([]byte, http.Header, error) {
	base, err := in.data()
	if err != nil {
		return nil, nil, err
	}
	return in.region.w.do(ctx, method, base+path, body, header)
}

// Manage asks an instance's management listener.
func (in *Instance) Manage(ctx context.Context, path string, into any) error {
	n := in.node.Load()
	if n == nil {
		return errAway
	}
	raw, _, err := in.region.w.do(ctx, http.MethodGet, "http://"+n.ManagementAddr()+path, nil, nil)
	if err != nil {
		return err
	}
	return decode(raw, into)
}

func decode(raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode answer %.200q: %w", raw, err)
	}
	return nil
}

func (w *World) do(ctx context.Context, method, url string, body []byte, header http.Header) ([]byte, http.Header, error) {
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
		return nil, resp.Header, problemOf(resp, raw)
	}
	return raw, resp.Header, nil
}

func problemOf(resp *http.Response, raw []byte) *Problem {
	p := &Problem{Status: resp.StatusCode, Header: resp.Header}
	if json.Unmarshal(raw, p) != nil || p.Code == "" {
		p.Detail = fmt.Sprintf("no problem document: %.200q", raw)
	}
	return p
}

// body is the write's document. The value's bytes go over as they are.
func (wr *Write) body() []byte {
	key := []byte("null")
	if wr.Key != nil {
		text, _ := json.Marshal(*wr.Key) // a Go string always has a JSON form
		key = fmt.Appendf(nil, `{"type":"string","data":%s}`, text)
	}
	value := []byte("null")
	if wr.Value != nil {
		value = fmt.Appendf(nil, `{"type":"json","data":%s}`, wr.Value)
	}
	headers := make([]map[string]any, len(wr.Headers))
	for i, h := range wr.Headers {
		headers[i] = map[string]any{"name": h[0], "value": []byte(h[1])} // bytes become base64
	}
	list, _ := json.Marshal(headers)
	return fmt.Appendf(nil, `{"key":%s,"value":%s,"headers":%s}`, key, value, list)
}

func (wr *Write) header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if wr.Idem != "" {
		h.Set("Idempotency-Key", `"`+wr.Idem+`"`)
	}
	if wr.Token != "" {
		h.Set("Geogate-Token", wr.Token)
	}
	return h
}

func answerOf(raw []byte, h http.Header) (Answer, error) {
	a := Answer{
		Raw: string(raw), Header: h,
		Replayed: h.Get("Idempotent-Replayed") == "true", Pending: h.Get("Geogate-Dedupe") == "pending",
	}
	return a, decode(raw, &a)
}

// Try sends a write once. It may be called from any goroutine.
func (in *Instance) Try(ctx context.Context, wr Write) (Answer, error) {
	raw, h, err := in.Do(ctx, http.MethodPost, "/v1/topics/"+url.PathEscape(wr.Topic)+"/records", wr.body(), wr.header())
	if err != nil {
		return Answer{}, err
	}
	return answerOf(raw, h)
}

// Store sends a write until it is answered, as a careful client does: again after
// every refusal that says so and, with an idempotency key, after a broken
// connection. It may be called from any goroutine.
func (in *Instance) Store(ctx context.Context, wr Write) (a Answer, err error) {
	var final error
	polled := poll(ctx, func() error {
		a, err = in.Try(ctx, wr)
		var p *Problem
		if err != nil && (errors.As(err, &p) && !p.Retriable || p == nil && wr.Idem == "") {
			final = err
			return nil
		}
		return err
	})
	return a, errors.Join(final, polled)
}

// Try is [Instance.Try] of the region's newest instance.
func (r *Region) Try(ctx context.Context, wr Write) (Answer, error) { return r.last().Try(ctx, wr) }

// Store is [Instance.Store] of the region's newest instance.
func (r *Region) Store(ctx context.Context, wr Write) (Answer, error) { return r.last().Store(ctx, wr) }

// Put stores a value under a key, or fails the test. A partition that is not
// ready yet is waited for.
func (r *Region) Put(topic, key, value string, opts ...Option) Answer {
	r.w.t.Helper()
	return r.put(Write{Topic: topic, Key: &key, Value: []byte(value)}, opts)
}

// Delete stores a tombstone, or fails the test.
func (r *Region) Delete(topic, key string, opts ...Option) Answer {
	r.w.t.Helper()
	return r.put(Write{Topic: topic, Key: &key}, opts)
}

func (r *Region) put(wr Write, opts []Option) Answer {
	r.w.t.Helper()
	for _, o := range opts {
		o(&wr)
	}
	ctx, cancel := r.w.context()
	defer cancel()
	a, err := r.Store(ctx, wr)
	if err != nil {
		r.w.t.Fatalf("write to %s in %s: %v", wr.Topic, r.Name, err)
	}
	return a
}

// Party is one write in an entity's siblings or in a conflict.
type Party struct {
	Dot    string `json:"dot"`
	ID     string `json:"id"`
	Region string `json:"region"`
	Stamp  string `json:"stamp"`
	Op     string `json:"op"`    // siblings
	Value  *Typed `json:"value"` // siblings under keep
}

// Entity is an entity as the API shows it.
type Entity struct {
	Topic     string  `json:"topic"`
	Key       *Typed  `json:"key"`
	Partition int32   `json:"partition"`
	Version   string  `json:"version"`
	Value     *Typed  `json:"value"`
	Dot       string  `json:"dot"`
	ID        string  `json:"id"`
	Region    string  `json:"region"`
	Stamp     string  `json:"stamp"`
	Policy    string  `json:"policy"`
	Siblings  []Party `json:"siblings"`

	Raw    string      `json:"-"`
	Header http.Header `json:"-"`
}

// Entity reads an entity; with a token, once the region has applied it. A deleted
// or unknown one is a *Problem ENTITY_UNKNOWN.
func (r *Region) Entity(topic, key string, opts ...Option) (Entity, error) {
	var wr Write
	for _, o := range opts {
		o(&wr)
	}
	ctx, cancel := r.w.context()
	defer cancel()
	h := http.Header{}
	if wr.Token != "" {
		h.Set("Geogate-Token", wr.Token)
	}
	raw, got, err := r.last().Do(ctx, http.MethodGet, "/v1/topics/"+topic+"/entities?wait=20s&key="+url.QueryEscape(key), nil, h)
	if err != nil {
		return Entity{}, err
	}
	e := Entity{Raw: string(raw), Header: got}
	return e, decode(raw, &e)
}

// Record is a record as the API shows it.
type Record struct {
	Topic     string  `json:"topic"`
	Region    string  `json:"region"`
	Partition int32   `json:"partition"`
	Offset    int64   `json:"offset"`
	Dot       string  `json:"dot"`
	ID        *string `json:"id"`
	Stamp     string  `json:"stamp"`
	Op        string  `json:"op"`
	Key       *Typed  `json:"key"`
	Value     *Typed  `json:"value"`
	Headers   []struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	} `json:"headers"`

	Cursor    string `json:"cursor"`    // on followed streams
	Heartbeat bool   `json:"heartbeat"` // on followed streams
}

// Page is one answer of a read of records.
type Page struct {
	Records []Record `json:"records"`
	Next    string   `json:"next"`
	End     bool     `json:"end"`
}

// Page reads one page of a view: merged, local or origin:<region>.
func (r *Region) Page(ctx context.Context, topic, view, from string, limit int) (p Page, err error) {
	q := url.Values{"view": {view}, "from": {from}, "limit": {fmt.Sprint(limit)}}
	raw, _, err := r.last().Do(ctx, http.MethodGet, "/v1/topics/"+topic+"/records?"+q.Encode(), nil, nil)
	if err != nil {
		return p, err
	}
	return p, decode(raw, &p)
}

// Records reads a whole view as it stands now, page by page.
func (r *Region) Records(topic, view string) ([]Record, error) {
	ctx, cancel := r.w.context()
	defer cancel()
	var all []Record
	for from := "earliest"; ; {
		p, err := r.Page(ctx, topic, view, from, 500)
		if err != nil {
			return nil, fmt.Errorf("read view %s of %s in %s: %w", view, topic, r.Name, err)
		}
		all = append(all, p.Records...)
		if p.End {
			return all, nil
		}
		if len(p.Records) == 0 && p.Next == from {
			return nil, fmt.Errorf("view %s of %s in %s stands still before its end", view, topic, r.Name)
		}
		from = p.Next
	}
}

// Conflict is a record of the conflict feed.
type Conflict struct {
	Topic  string  `json:"topic"`
	Key    *Typed  `json:"key"`
	Reason string  `json:"reason"`
	Rule   *string `json:"rule"`
	Lost   Party   `json:"lost"`
	Won    Party   `json:"won"`
}

// Conflicts reads the region's whole feed of a topic.
func (r *Region) Conflicts(topic string) ([]Conflict, error) {
	ctx, cancel := r.w.context()
	defer cancel()
	var all []Conflict
	for from := "earliest"; ; {
		q := url.Values{"topic": {topic}, "from": {from}, "limit": {"500"}}
		raw, _, err := r.last().Do(ctx, http.MethodGet, "/v1/conflicts?"+q.Encode(), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("read conflicts of %s in %s: %w", topic, r.Name, err)
		}
		var p struct {
			Conflicts []Conflict `json:"conflicts"`
			Next      string     `json:"next"`
			End       bool       `json:"end"`
		}
		if err := decode(raw, &p); err != nil {
			return nil, err
		}
		all = append(all, p.Conflicts...)
		if p.End {
			return all, nil
		}
		from = p.Next
	}
}

// readyWithin bounds the wait for an instance that was started.
const readyWithin = 20 * time.Second

// AwaitReady waits until the region's newest instance says that it can serve.
func (r *Region) AwaitReady() {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	err := poll(ctx, func() error {
		n := r.last().node.Load()
		if n == nil {
			return errAway
		}
		_, _, err := r.w.do(ctx, http.MethodGet, "http://"+n.ManagementAddr()+"/readyz", nil, nil)
		return err
	})
	if err != nil {
		r.w.t.Fatalf("%s is not ready: %v", r.Name, err)
	}
}
