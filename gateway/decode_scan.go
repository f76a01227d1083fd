package gateway

import (
	"encoding/base64"
	"strconv"

	"github.com/geogate/geogate/internal/event"
)

// scanRecord reads one record object in which nothing is wrong, and takes memory only for
// what cannot share the text's. Where it reads nothing (ok is false), parser finds out
// what is wrong, or reads it: a member's name with an escape, for one.
func scanRecord(text []byte, maxHeaders int, rec *record) (ok bool) {
	in, ok := newJSONScan(text)
	if !ok {
		return false
	}
	p := recordScan{jsonScan: in, rec: rec, maxHeaders: maxHeaders}
	return p.record() && p.end()
}

// recordScan is parser for what is right.
type recordScan struct {
	jsonScan
	rec        *record
	maxHeaders int
}

// The members of objects, as bits of which were met.
const (
	metKey = 1 << iota
	metValue
	metHeaders
	metPartition
	metIdempotency
	metType
	metData
	metName
)

// meet tells whether a member is met for the first time.
func meet(met *int, bit int) bool {
	again := *met&bit != 0
	*met |= bit
	return !again
}

func (p *recordScan) record() bool {
	met := 0
	return p.members(func(name []byte) (ok bool) {
		switch string(name) {
		case "key":
			p.rec.key, ok = p.typed(false)
			return ok && meet(&met, metKey)
		case "value":
			p.rec.value, ok = p.typed(true)
			return ok && meet(&met, metValue)
		case "headers":
			return meet(&met, metHeaders) && (p.null() || p.elements(p.header))
		case "partition":
			return meet(&met, metPartition) && p.partition()
		case "idempotency_key":
			return meet(&met, metIdempotency) && p.idempotencyKey()
		}
		return false
	}) && met&metValue != 0
}

// typed reads a key or value: null, or an object with type and data.
func (p *recordScan) typed(mayJSON bool) (b []byte, ok bool) {
	if p.null() {
		return nil, true
	}
	var kind, data []byte
	met := 0
	ok = p.members(func(name []byte) (ok bool) {
		switch string(name) {
		case "type":
			kind, _, ok = p.str()
			return ok && meet(&met, metType)
		case "data":
			data, ok = p.value()
			return ok && meet(&met, metData)
		}
		return false
	})
	if !ok || met != metType|metData {
		return nil, false
	}
	switch string(kind) {
	case `"json"`:
		return data, mayJSON
	case `"string"`:
		return unquoteBytes(data)
	case `"binary"`:
		return unquoteBase64(data)
	}
	return nil, false
}

// unquoteBytes gives what a value says that is a string; without escapes it shares the
// value's memory.
func unquoteBytes(raw []byte) (b []byte, ok bool) {
	if raw[0] != '"' {
		return nil, false
	}
	n := len(raw) - 1
	if plainLength(raw[1:]) == n-1 {
		return raw[1:n:n], true
	}
	text, err := unquote(raw)
	return []byte(text), err == nil
}

var strictBase64 = base64.StdEncoding.Strict()

// unquoteBase64 decodes a value that is a string of base64 without escapes.
func unquoteBase64(raw []byte) (b []byte, ok bool) {
	if raw[0] != '"' {
		return nil, false
	}
	raw = raw[1 : len(raw)-1]
	b = make([]byte, strictBase64.DecodedLen(len(raw)))
	n, err := strictBase64.Decode(b, raw)
	return b[:n], err == nil
}

func (p *recordScan) header() bool {
	if len(p.rec.headers) == p.maxHeaders {
		return false
	}
	var h event.Header
	met := 0
	ok := p.members(func(name []byte) (ok bool) {
		switch string(name) {
		case "name":
			raw, escaped, ok := p.str()
			if !ok || escaped {
				return false
			}
			h.Key = string(raw[1 : len(raw)-1])
			return meet(&met, metName) && !event.IsReserved(h.Key)
		case "value":
			if !p.null() {
				raw, _, ok := p.str()
				if !ok {
					return false
				}
				if h.Value, ok = unquoteBase64(raw); !ok {
					return false
				}
			}
			return meet(&met, metValue)
		}
		return false
	})
	p.rec.headers = append(p.rec.headers, h)
	return ok && met == metName|metValue
}

func (p *recordScan) partition() bool {
	if p.null() {
		return true
	}
	raw, ok := p.value()
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(string(raw), 10, 32)
	p.rec.partition = int32(n)
	return err == nil && n >= 0
}

func (p *recordScan) idempotencyKey() bool {
	if p.null() {
		return true
	}
	raw, escaped, ok := p.str()
	if !ok || escaped {
		return false
	}
	p.rec.idempotency = string(raw[1 : len(raw)-1])
	return checkIdempotencyKey(p.rec.idempotency) == nil
}
