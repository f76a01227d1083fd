package gateway

import (
	"errors"
	"strconv"
	"strings"

	"github.com/geogate/geogate/internal/event"
)

// maxErrors bounds how many mistakes of one record are reported. After as many the
// rest is not read.
const maxErrors = 20

// errEnough ends the reading of a record that has maxErrors mistakes.
var errEnough = errors.New("gateway: enough mistakes")

// parser reads a record object and collects everything that is wrong with its
// members; what is wrong with the JSON itself ends it at once.
type parser struct {
	*jsonReader
	rec        record
	maxHeaders int // how many a record may have
	errs       []fieldError
	reserved   bool // one of errs is about a reserved header
	badKey     bool // one of errs is about the idempotency key
}

// parseRecord reads one record object (application/json, or a line of NDJSON) with at
// most so many headers: short ones take many times as much memory as they have bytes.
// The record shares memory with body. The error is a *problem.
func parseRecord(body []byte, maxHeaders int) (*record, error) {
	rec := &record{partition: -1}
	if scanRecord(body, maxHeaders, rec) {
		return rec, nil
	}
	return explainRecord(body, maxHeaders)
}

// explainRecord is parseRecord for what scanRecord does not read: it says all that is
// wrong. It takes several times as long.
func explainRecord(body []byte, maxHeaders int) (*record, error) {
	in, err := newJSONReader(body)
	p := parser{jsonReader: in, rec: record{partition: -1}, maxHeaders: maxHeaders}
	if err == nil {
		err = p.record()
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, p.failure(err)
	}
	if len(p.errs) == 0 {
		return &p.rec, nil
	}
	code := codeMalformed
	if len(p.errs) == 1 && p.reserved {
		code = codeReservedHeader
	} else if len(p.errs) == 1 && p.badKey {
		code = codeKeyInvalid
	}
	return nil, invalid(code, p.errs...)
}

// failure is what a client is told of an error that has ended the reading.
func (p *parser) failure(err error) error {
	var bad *syntaxError
	if errors.As(err, &bad) {
		return invalid(codeMalformed, atPointer("", "%s", bad))
	}
	return err
}

// complain notes a mistake at a JSON pointer.
func (p *parser) complain(pointer, format string, args ...any) {
	if len(p.errs) < maxErrors {
		p.errs = append(p.errs, atPointer(pointer, format, args...))
	}
}

// enough is errEnough once there are enough mistakes.
func (p *parser) enough() error {
	if len(p.errs) >= maxErrors {
		return errEnough
	}
	return nil
}

// fields passes an object that may have only the members of known, each at most
// once. A value that is not an object is passed whole and complained about.
func (p *parser) fields(pointer string, known map[string]func(at string) error) (seen map[string]bool, err error) {
	if p.kind() != '{' {
		_, err := p.value()
		p.complain(pointer, "must be an object")
		return nil, err
	}
	seen = make(map[string]bool, len(known))
	err = p.members(func(name string) error {
		if err := p.enough(); err != nil {
			return err
		}
		at := pointer + "/" + escapePointer(name)
		read := known[name]
		if read == nil || seen[name] {
			if read == nil {
				p.complain(at, "unknown member")
			} else {
				p.complain(at, "duplicate member")
			}
			_, err := p.value()
			return err
		}
		seen[name] = true
		return read(at)
	})
	return seen, err
}

func (p *parser) record() error {
	seen, err := p.fields("", map[string]func(string) error{
		"key": func(at string) (err error) { p.rec.key, err = p.typed(at, false); return err },
		"value": func(at string) (err error) {
			p.rec.value, err = p.typed(at, true)
			return err
		},
		"headers":         p.headers,
		"partition":       p.partition,
		"idempotency_key": p.idempotencyKey,
	})
	if err != nil {
		return err
	}
	if seen != nil && !seen["value"] {
		p.complain("/value", "missing (null is a tombstone)")
	}
	return p.end()
}

// typed reads a key or value: null, or an object with type and data. Which of
// the two comes first does not matter, so data is judged at the end.
func (p *parser) typed(pointer string, mayJSON bool) ([]byte, error) {
	if p.null() {
		return nil, nil
	}
	var kind string
	var data []byte
	before := len(p.errs)
	seen, err := p.fields(pointer, map[string]func(string) error{
		"type": func(at string) (err error) { kind, err = p.text(at); return err },
		"data": func(string) (err error) { data, err = p.value(); return err },
	})
	if err != nil || seen == nil {
		return nil, err
	}
	for _, name := range []string{"type", "data"} {
		if !seen[name] {
			p.complain(pointer+"/"+name, "missing")
		}
	}
	if len(p.errs) > before {
		return nil, nil
	}
	switch {
	case kind == "json" && mayJSON:
		return data, nil
	case kind == "json":
		p.complain(pointer+"/type", "the type of a key must be string or binary")
		return nil, nil
	case kind == "string" || kind == "binary":
	default:
		p.complain(pointer+"/type", "must be json, string or binary")
		return nil, nil
	}
	if data[0] != '"' {
		p.complain(pointer+"/data", "must be a string")
		return nil, nil
	}
	text, err := unquote(data)
	if err != nil {
		p.complain(pointer+"/data", "must not hold half of a surrogate pair: it has no UTF-8 form")
		return nil, nil
	}
	if kind == "string" {
		return []byte(text), nil
	}
	b, ok := decodeBase64(text)
	if !ok {
		p.complain(pointer+"/data", "%s", wantBase64)
	}
	return b, nil
}

const wantBase64 = "must be base64 (standard alphabet, with padding)"

// decodeBase64 decodes standard base64 with padding, and only its one canonical form.
func decodeBase64(text string) (b []byte, ok bool) {
	b, err := strictBase64.DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	return b, true
}

// text reads a string; anything else is passed and complained about.
func (p *parser) text(pointer string) (string, error) {
	if p.kind() != '"' {
		_, err := p.value()
		p.complain(pointer, "must be a string")
		return "", err
	}
	return p.str()
}

func (p *parser) headers(pointer string) error {
	if p.kind() != '[' {
		if p.null() {
			return nil
		}
		_, err := p.value()
		p.complain(pointer, "must be an array")
		return err
	}
	return p.elements(func(i int) error {
		if err := p.enough(); err != nil {
			return err
		}
		if i == p.maxHeaders {
			return tooManyHeaders(p.maxHeaders)
		}
		return p.header(pointer, i)
	})
}

// header reads one header. A record may have many thousands of them, so it makes
// pointers only for complaints.
func (p *parser) header(pointer string, i int) error {
	at := func(member string) string { return pointer + "/" + strconv.Itoa(i) + member }
	if p.kind() != '{' {
		_, err := p.value()
		p.complain(at(""), "must be an object")
		return err
	}
	var h event.Header
	var named, valued bool
	err := p.members(func(member string) (err error) {
		switch {
		case member == "name" && !named:
			named = true
			return p.headerName(&h, at)
		case member == "value" && !valued:
			valued = true
			return p.headerValue(&h, at)
		case member == "name", member == "value":
			p.complain(at("/"+member), "duplicate member")
		default:
			p.complain(at("/"+escapePointer(member)), "unknown member")
		}
		if err := p.enough(); err != nil {
			return err
		}
		_, err = p.value()
		return err
	})
	if err != nil {
		return err
	}
	if !named {
		p.complain(at("/name"), "missing")
	}
	if !valued {
		p.complain(at("/value"), "missing")
	}
	p.rec.headers = append(p.rec.headers, h)
	return nil
}

func (p *parser) headerName(h *event.Header, at func(string) string) (err error) {
	if p.kind() != '"' {
		_, err = p.text(at("/name"))
		return err
	}
	if h.Key, err = p.str(); err != nil {
		return err
	}
	if event.IsReserved(h.Key) {
		p.complain(at("/name"), "names with the prefix %s are reserved", event.Prefix)
		p.reserved = true
	}
	return nil
}

func (p *parser) headerValue(h *event.Header, at func(string) string) error {
	if p.null() {
		return nil
	}
	if p.kind() != '"' {
		_, err := p.text(at("/value"))
		return err
	}
	text, err := p.str()
	if err != nil {
		return err
	}
	var ok bool
	if h.Value, ok = decodeBase64(text); !ok {
		p.complain(at("/value"), "%s", wantBase64)
	}
	return nil
}

func (p *parser) partition(pointer string) error {
	if p.null() {
		return nil
	}
	raw, err := p.value()
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(raw), 10, 32)
	if err != nil || n < 0 {
		p.complain(pointer, "must be a partition number or null")
		return nil
	}
	p.rec.partition = int32(n)
	return nil
}

func (p *parser) idempotencyKey(pointer string) error {
	if p.null() {
		return nil
	}
	before := len(p.errs)
	key, err := p.text(pointer)
	if err != nil || len(p.errs) > before {
		return err
	}
	if err := checkIdempotencyKey(key); err != nil {
		p.complain(pointer, "%s", err)
		p.badKey = true
	}
	p.rec.idempotency = key
	return nil
}

// escapePointer escapes a member's name for a JSON pointer (RFC 6901). A long
// name is cut: it only has to be found.
func escapePointer(name string) string {
	const most = 100
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	if !strings.ContainsAny(name, "~/") {
		return name
	}
	return pointerEscapes.Replace(name)
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")
