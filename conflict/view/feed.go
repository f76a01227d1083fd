package view

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// The value of a record of the conflict feed, as pinned for GET /v1/conflicts.
type (
	conflictRecord struct {
		Topic  string          `json:"topic"`
		Key    *feedKey        `json:"key"`
		Reason conflict.Reason `json:"reason"`
		Rule   *string         `json:"rule"` // null on events topics: stamps decide
		Lost   feedParty       `json:"lost"`
		Won    feedParty       `json:"won"`
	}
	feedKey struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	feedParty struct {
		Dot    string  `json:"dot"`
		ID     *string `json:"id"` // null: came without a gateway
		Region string  `json:"region"`
		Stamp  string  `json:"stamp"`
	}
)

func appendConflict(topic string, c *conflict.Conflict, names event.RegionNames) ([]byte, error) {
	x := conflictRecord{Topic: topic, Key: feedKeyOf(c.Key), Reason: c.Reason, Lost: feedPartyOf(c.Lost, names), Won: feedPartyOf(c.Won, names)}
	if c.Rule != 0 {
		rule := conflict.PolicyOf(c.Rule).Name
		x.Rule = &rule
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(x); err != nil {
		return nil, fmt.Errorf("encode conflict record: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func feedKeyOf(key []byte) *feedKey {
	switch {
	case key == nil:
		return nil
	case utf8.Valid(key):
		return &feedKey{"string", string(key)}
	}
	return &feedKey{"binary", base64.StdEncoding.EncodeToString(key)}
}

func feedPartyOf(p conflict.Party, names event.RegionNames) feedParty {
	x := feedParty{Dot: p.At.Format(names), Region: names.Name(p.At.Region), Stamp: p.Stamp.String()}
	if !p.ID.IsZero() {
		id := p.ID.String()
		x.ID = &id
	}
	return x
}
