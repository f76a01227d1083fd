package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// Write is one record to be written.
type Write struct {
	Topic string
	Key   string
	NoKey bool   // the key is null
	Value []byte // JSON, sent as it stands; nil deletes
	// Idem is the idempotency key, Token the client's; "" is none.
	Idem, Token string
	// Headers are the record's own; their order stays.
	Headers []Header
}

// Header is one header of a record to be written.
type Header struct{ Name, Value string }

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

	Raw string `json:"-"` // the body, or the line of a stream, as it came

	// Of an answer to one record, not of a line of a stream:
	Header   http.Header `json:"-"` // nil for a line
	Replayed bool        `json:"-"` // header Idempotent-Replayed
	Pending  bool        `json:"-"` // header Geogate-Dedupe
}

// document is the write as the API takes it. It is put together by hand because
// the value's bytes must go over exactly as they stand.
func (w *Write) document(withIdem bool) []byte {
	b := []byte(`{"key":`)
	if w.NoKey {
		b = append(b, `null`...)
	} else {
		b = fmt.Appendf(b, `{"type":"string","data":%s}`, Quote(w.Key))
	}
	if w.Value == nil {
		b = append(b, `,"value":null`...)
	} else {
		b = fmt.Appendf(b, `,"value":{"type":"json","data":%s}`, w.Value)
	}
	for i, h := range w.Headers {
		b = append(b, map[bool]string{true: `,"headers":[`, false: `,`}[i == 0]...)
		b = fmt.Appendf(b, `{"name":%s,"value":%s}`, Quote(h.Name), Quote(base64.StdEncoding.EncodeToString([]byte(h.Value))))
	}
	if len(w.Headers) > 0 {
		b = append(b, ']')
	}
	if withIdem && w.Idem != "" {
		b = fmt.Appendf(b, `,"idempotency_key":%s`, Quote(w.Idem))
	}
	return append(b, '}')
}

// Quote is a string in JSON; a Go string always has one.
func Quote(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}

func recordsPath(topic string) string { return "/v1/topics/" + url.PathEscape(topic) + "/records" }

// Try sends a write once.
func (c Client) Try(ctx context.Context, w Write) (Answer, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if w.Idem != "" {
		h.Set("Idempotency-Key", `"`+w.Idem+`"`)
	}
	if w.Token != "" {
		h.Set("Geogate-Token", w.Token)
	}
	raw, got, err := c.Do(ctx, http.MethodPost, recordsPath(w.Topic), w.document(false), h)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{
		Raw: string(raw), Header: got,
		Replayed: got.Get("Idempotent-Replayed") == "true", Pending: got.Get("Geogate-Dedupe") == "pending",
	}
	return a, Decode(raw, &a)
}

// MayRetry tells whether the same request may be sent again: the connection broke,
// or the answer says so.
func MayRetry(err error) bool {
	var p *Problem
	if errors.As(err, &p) {
		return p.Retriable
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func (c Client) pause() time.Duration { return cmp.Or(c.Retry, 100*time.Millisecond) }

// Store sends a write until it is answered or ctx ends, as a careful client does:
// again after every refusal that says so and, with an idempotency key, after every
// broken connection. The error names the last refusal.
func (c Client) Store(ctx context.Context, w Write) (Answer, error) {
	var last error
	for {
		a, err := c.Try(ctx, w)
		if err == nil {
			return a, nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		again := MayRetry(err) && (w.Idem != "" || Code(err) != "")
		if !again || sleep.For(ctx, c.pause()) != nil {
			return Answer{}, fmt.Errorf("write %s to %s: %w", w.Idem, w.Topic, errors.Join(last, ctx.Err()))
		}
	}
}

// StoreAll sends writes of one topic, each with an idempotency key, as one stream,
// and sends those lines again that were not answered with a success.
func (c Client) StoreAll(ctx context.Context, writes []Write) ([]Answer, error) {
	return c.storeAll(ctx, writes, c.stream)
}

// StoreBatch is StoreAll with a JSON batch in place of a stream.
func (c Client) StoreBatch(ctx context.Context, writes []Write) ([]Answer, error) {
	return c.storeAll(ctx, writes, c.batch)
}

// storeAll has send send the writes until all are stored. send is told which are open; it
// fills in answers and returns those that still are, with the reason of one of them.
func (c Client) storeAll(ctx context.Context, writes []Write, send func(context.Context, []Write, []int, []Answer) ([]int, error)) ([]Answer, error) {
	answers := make([]Answer, len(writes))
	open := make([]int, len(writes))
	for i := range open {
		open[i] = i
	}
	var last error
	for {
		var err error
		open, err = send(ctx, writes, open, answers)
		if len(open) == 0 {
			return answers, nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if err != nil && !MayRetry(err) || sleep.For(ctx, c.pause()) != nil {
			return nil, fmt.Errorf("write %d records from %s to %s: %w", len(open), writes[open[0]].Idem, writes[0].Topic, errors.Join(last, ctx.Err()))
		}
	}
}

// stream sends the open writes as lines of one request.
func (c Client) stream(ctx context.Context, writes []Write, open []int, answers []Answer) ([]int, error) {
	var body bytes.Buffer
	for _, i := range open {
		body.Write(writes[i].document(true))
		body.WriteByte('\n')
	}
	raw, _, err := c.Do(ctx, http.MethodPost, recordsPath(writes[0].Topic), body.Bytes(), http.Header{"Content-Type": {"application/x-ndjson"}})
	if err != nil {
		return open, err
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	var got []json.RawMessage
	for len(got) < len(open) && lines.Scan() {
		got = append(got, bytes.Clone(lines.Bytes()))
	}
	return take(got, open, answers)
}

// batch sends the open writes as one JSON document.
func (c Client) batch(ctx context.Context, writes []Write, open []int, answers []Answer) ([]int, error) {
	body := []byte(`{"records":[`)
	for i, at := range open {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, writes[at].document(true)...)
	}
	raw, _, err := c.Do(ctx, http.MethodPost, recordsPath(writes[0].Topic), append(body, "]}"...), http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return open, err
	}
	var got struct {
		Results []json.RawMessage `json:"results"`
	}
	if err := Decode(raw, &got); err != nil {
		return open, err
	}
	if len(got.Results) != len(open) {
		return open, fmt.Errorf("a batch of %d records has %d results", len(open), len(got.Results))
	}
	return take(got.Results, open, answers)
}

// take fills in the answers to the open writes, as far as there are any. It returns the
// writes that are still open, with the reason of one of them; a reason that stays ends it.
func take(got []json.RawMessage, open []int, answers []Answer) (left []int, err error) {
	for i, raw := range got {
		var one struct {
			Answer
			Status  int      `json:"status"`
			Problem *Problem `json:"problem"`
		}
		if err := Decode(raw, &one); err != nil {
			return append(left, open[i:]...), err
		}
		if one.Problem != nil {
			left, err = append(left, open[i]), one.Problem
			if !one.Problem.Retriable {
				return append(left, open[i+1:]...), err
			}
			continue
		}
		answers[open[i]] = one.Answer
		answers[open[i]].Raw = string(raw)
	}
	return append(left, open[len(got):]...), err
}
