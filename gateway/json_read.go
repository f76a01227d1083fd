package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds how deep a JSON value may nest, so that no input can exhaust
// the stack of a reader, ours or anyone's after us.
const maxDepth = 64

// syntaxError is what is wrong with a text that is not JSON, and where.
type syntaxError struct {
	offset int
	what   string
}

// Error implements error.
func (e *syntaxError) Error() string { return fmt.Sprintf("offset %d: %s", e.offset, e.what) }

// jsonReader walks one JSON text as RFC 8259 defines it. It never decodes numbers
// and gives values as they are in the text, so that what a producer sent is
// what is stored.
type jsonReader struct {
	text []byte
	dec  *jsontext.Decoder
}

// What jsontext refuses beyond RFC 8259 is allowed here: a name that a value has
// twice, and an escaped surrogate without its other half. Bytes that are not
// UTF-8 come under the same option; newJSONReader refuses them.
func grammar() []jsontext.Options {
	return []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
}

func newJSONReader(text []byte) (*jsonReader, error) {
	if at := invalidUTF8(text); at >= 0 {
		return nil, &syntaxError{at, "bytes that are not UTF-8"}
	}
	// From a bytes.Buffer jsontext reads in place, and writes nothing into it.
	return &jsonReader{text: text, dec: jsontext.NewDecoder(bytes.NewBuffer(text), grammar()...)}, nil
}

// invalidUTF8 is where a text stops being UTF-8, or negative.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// fail makes an error of jsontext one that says where and what, without showing
// more of the text than the character or escape at fault.
func (r *jsonReader) fail(err error) error {
	var bad *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &syntaxError{len(r.text), "the text ends too early"}
	case errors.As(err, &bad):
		return &syntaxError{int(bad.ByteOffset), bad.Err.Error()}
	}
	return &syntaxError{int(r.dec.InputOffset()), err.Error()}
}

// kind is how the next value begins: one of { [ " 0 n t f, or something else at
// the end and where no value begins.
func (r *jsonReader) kind() jsontext.Kind { return r.dec.PeekKind() }

// end checks that nothing follows the value that was read.
func (r *jsonReader) end() error {
	switch _, err := r.dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return r.fail(err)
	}
	return &syntaxError{int(r.dec.InputOffset()), "more data follows the value"}
}

// value passes one value and gives its bytes, from its first to its last
// character; they share memory with the text.
func (r *jsonReader) value() ([]byte, error) {
	v, err := r.dec.ReadValue()
	if err != nil {
		return nil, r.fail(err)
	}
	end := int(r.dec.InputOffset())
	raw := r.text[end-len(v) : end : end]
	if at := tooDeep(raw); at >= 0 {
		return nil, &syntaxError{end - len(v) + at, fmt.Sprintf("nested deeper than %d", maxDepth)}
	}
	return raw, nil
}

// null passes the word null if it comes next.
func (r *jsonReader) null() bool {
	if r.kind() != 'n' {
		return false
	}
	_, err := r.dec.ReadToken()
	return err == nil
}

// str passes a string and gives what it says.
func (r *jsonReader) str() (string, error) {
	raw, err := r.value()
	if err != nil {
		return "", err
	}
	text, err := unquote(raw)
	if err != nil {
		return "", &syntaxError{int(r.dec.InputOffset()) - len(raw), err.Error()}
	}
	return text, nil
}

// unquote gives what a JSON string says. A surrogate without its other half has
// no UTF-8 form and is refused: replaced by something else, it would be another
// key or value than the producer meant.
func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "", errors.New("half of a surrogate pair has no UTF-8 form")
	}
	return string(text), nil
}

// members passes an object; each is called at a member's value, which it must
// pass, with the member's name.
func (r *jsonReader) members(each func(name string) error) error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.fail(err)
	}
	for r.kind() == '"' {
		name, err := r.str()
		if err != nil {
			return err
		}
		if err := each(name); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return r.fail(err)
}

// elements passes an array; each is called at an element, which it must pass.
func (r *jsonReader) elements(each func(i int) error) error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.fail(err)
	}
	for i := 0; r.kind() != ']'; i++ {
		if err := each(i); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return r.fail(err)
}

// tooDeep is where a value nests deeper than maxDepth, or negative. raw is valid
// JSON.
func tooDeep(raw []byte) int {
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			if depth++; depth > maxDepth {
				return i
			}
		case ']', '}':
			depth--
		}
	}
	return -1
}

// embeddable tells whether bytes can be put into an answer as JSON, byte for byte,
// and come back from there as the same value: strictly valid JSON, on one line,
// without white space around it.
func embeddable(b []byte) bool {
	if len(b) == 0 || isSpace(b[0]) || isSpace(b[len(b)-1]) || bytes.IndexByte(b, '\n') >= 0 || bytes.IndexByte(b, '\r') >= 0 {
		return false
	}
	s, ok := newJSONScan(b)
	if !ok {
		return false
	}
	_, ok = s.value()
	return ok && s.end()
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }
