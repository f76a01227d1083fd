package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

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
	Timestamp string  `json:"timestamp"`
	Policy    string  `json:"policy"`
	Siblings  []Party `json:"siblings"`

	Raw    string      `json:"-"` // the body as it came
	Header http.Header `json:"-"`
}

// Entity reads an entity; with a token, once the region has applied it, for which
// it waits no longer than wait ("" is the API's default). A deleted or unknown one
// is a *Problem ENTITY_UNKNOWN.
func (c Client) Entity(ctx context.Context, topic, key, token, wait string) (Entity, error) {
	q := url.Values{"key": {key}}
	if wait != "" {
		q.Set("wait", wait)
	}
	h := http.Header{}
	if token != "" {
		h.Set("Geogate-Token", token)
	}
	raw, got, err := c.Do(ctx, http.MethodGet, "/v1/topics/"+url.PathEscape(topic)+"/entities?"+q.Encode(), nil, h)
	if err != nil {
		return Entity{}, err
	}
	e := Entity{Raw: string(raw), Header: got}
	return e, Decode(raw, &e)
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
	Timestamp string  `json:"timestamp"`
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
func (c Client) Page(ctx context.Context, topic, view, from string, limit int) (p Page, err error) {
	q := url.Values{"view": {view}, "from": {from}, "limit": {fmt.Sprint(limit)}}
	raw, _, err := c.Do(ctx, http.MethodGet, recordsPath(topic)+"?"+q.Encode(), nil, nil)
	if err != nil {
		return p, err
	}
	return p, Decode(raw, &p)
}

// Records reads a whole view as it stands now, page by page.
func (c Client) Records(ctx context.Context, topic, view string) ([]Record, error) {
	var all []Record
	for from := "earliest"; ; {
		p, err := c.Page(ctx, topic, view, from, 500)
		if err != nil {
			return nil, fmt.Errorf("read view %s of %s from %.40s: %w", view, topic, from, err)
		}
		all = append(all, p.Records...)
		if p.End {
			return all, nil
		}
		if len(p.Records) == 0 && p.Next == from {
			return nil, fmt.Errorf("read view %s of %s: it neither ends nor goes on from %.40s", view, topic, from)
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
func (c Client) Conflicts(ctx context.Context, topic string) ([]Conflict, error) {
	var all []Conflict
	for from := "earliest"; ; {
		q := url.Values{"topic": {topic}, "from": {from}, "limit": {"500"}}
		var p struct {
			Conflicts []Conflict `json:"conflicts"`
			Next      string     `json:"next"`
			End       bool       `json:"end"`
		}
		if err := c.Get(ctx, "/v1/conflicts?"+q.Encode(), &p); err != nil {
			return nil, fmt.Errorf("read conflicts of %s: %w", topic, err)
		}
		all = append(all, p.Conflicts...)
		if p.End {
			return all, nil
		}
		from = p.Next
	}
}
