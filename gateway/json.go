package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"
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

// scanner walks one JSON text as RFC 8259 defines it: valid UTF-8, no trailing
// commas, no bare control characters. It never decodes numbers and never copies a
// value that it skips, so that what a producer sent is what is stored.
type scanner struct {
	buf []byte
	pos int
}

func (s *scanner) fail(format string, args ...any) error {
	return &syntaxError{s.pos, fmt.Sprintf(format, args...)}
}

func (s *scanner) space() {
	for s.pos < len(s.buf) {
		switch s.buf[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// peek is the next byte after white space, 0 at the end. (A NUL byte is valid
// nowhere in JSON, so the two need not be told apart.)
func (s *scanner) peek() byte {
	s.space()
	if s.pos == len(s.buf) {
		return 0
	}
	return s.buf[s.pos]
}

func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.fail("want %q, have %s", c, s.here())
	}
	s.pos++
	return nil
}

// here names what stands at the position, without showing more than one
// character of what may be a payload.
func (s *scanner) here() string {
	if s.pos >= len(s.buf) {
		return "the end"
	}
	r, _ := utf8.DecodeRune(s.buf[s.pos:])
	return strconv.QuoteRune(r)
}

// end checks that nothing follows.
func (s *scanner) end() error {
	if s.space(); s.pos < len(s.buf) {
		return s.fail("want the end, have %s", s.here())
	}
	return nil
}

// skip passes one value and gives its bytes, from its first to its last
// character. depth is how deep the value lies already.
func (s *scanner) skip(depth int) ([]byte, error) {
	c := s.peek()
	from := s.pos
	var err error
	switch {
	case c == '{':
		err = s.members(depth, func(string, int) error {
			_, err := s.skip(depth + 1)
			return err
		})
	case c == '[':
		err = s.elements(depth, func(int) error {
			_, err := s.skip(depth + 1)
			return err
		})
	case c == '"':
		err = s.skipString()
	case c == '-' || c >= '0' && c <= '9':
		err = s.number()
	default:
		err = s.word()
	}
	return s.buf[from:s.pos:s.pos], err
}

// members passes an object; each is called at a member's value, which it must
// pass, with the member's name and where that name began.
func (s *scanner) members(depth int, each func(name string, at int) error) error {
	return s.list(depth, '{', '}', func(int) error {
		s.space()
		at := s.pos
		name, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return each(name, at)
	})
}

// elements passes an array; each is called at an element, which it must pass.
func (s *scanner) elements(depth int, each func(i int) error) error {
	return s.list(depth, '[', ']', each)
}

func (s *scanner) list(depth int, open, shut byte, each func(i int) error) error {
	if depth >= maxDepth {
		return s.fail("nested deeper than %d", maxDepth)
	}
	if err := s.expect(open); err != nil {
		return err
	}
	if s.peek() == shut {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := each(i); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case shut:
			s.pos++
			return nil
		default:
			return s.fail("want ',' or %q, have %s", shut, s.here())
		}
	}
}

func (s *scanner) word() error {
	for _, w := range []string{"null", "true", "false"} {
		if bytes.HasPrefix(s.buf[s.pos:], []byte(w)) {
			s.pos += len(w)
			return nil
		}
	}
	return s.fail("want a value, have %s", s.here())
}

// null passes the word null if it stands here.
func (s *scanner) null() bool {
	if s.peek() == 'n' && s.word() == nil {
		return true
	}
	return false
}

func (s *scanner) digits() bool {
	from := s.pos
	for s.pos < len(s.buf) && s.buf[s.pos] >= '0' && s.buf[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > from
}

func (s *scanner) take(chars string) bool {
	if s.pos < len(s.buf) && bytes.IndexByte([]byte(chars), s.buf[s.pos]) >= 0 {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) number() error {
	s.take("-")
	if !s.take("0") && !s.digits() {
		return s.fail("want a digit, have %s", s.here())
	}
	if s.take(".") && !s.digits() {
		return s.fail("want a digit after the point, have %s", s.here())
	}
	if s.take("eE") {
		s.take("+-")
		if !s.digits() {
			return s.fail("want a digit of the exponent, have %s", s.here())
		}
	}
	return nil
}

// skipString passes a string without decoding it. Escapes are checked for their
// form alone: RFC 8259 lets an escaped surrogate stand by itself.
func (s *scanner) skipString() error {
	if err := s.expect('"'); err != nil {
		return err
	}
	for s.pos < len(s.buf) {
		switch c := s.buf[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if _, err := s.escape(); err != nil {
				return err
			}
		case c < 0x20:
			return s.fail("bare control character %s in a string", s.here())
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, n := utf8.DecodeRune(s.buf[s.pos:])
			if r == utf8.RuneError && n <= 1 {
				return s.fail("bytes that are not UTF-8")
			}
			s.pos += n
		}
	}
	return s.fail("string without an end")
}

// escape passes one escape and gives its UTF-16 unit.
func (s *scanner) escape() (rune, error) {
	if s.pos+1 >= len(s.buf) {
		return 0, s.fail("string without an end")
	}
	const short, means = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	c := s.buf[s.pos+1]
	if i := bytes.IndexByte([]byte(short), c); i >= 0 {
		s.pos += 2
		return rune(means[i]), nil
	}
	if c != 'u' || s.pos+6 > len(s.buf) {
		return 0, s.fail("unknown escape")
	}
	var r rune
	for _, h := range s.buf[s.pos+2 : s.pos+6] {
		d := bytes.IndexByte([]byte("0123456789abcdef"), h|0x20)
		if d < 0 || h < '0' {
			return 0, s.fail("escape without four hex digits")
		}
		r = r<<4 | rune(d)
	}
	s.pos += 6
	return r, nil
}

// str passes a string and gives what it says. A surrogate without its other half
// has no UTF-8 form and is refused: replaced by something else, it would be
// another key or value than the producer meant.
func (s *scanner) str() (string, error) {
	s.space()
	from := s.pos
	if err := s.skipString(); err != nil {
		return "", err
	}
	raw := s.buf[from+1 : s.pos-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), nil
	}
	in := scanner{buf: s.buf[:s.pos-1], pos: from + 1}
	out := make([]byte, 0, len(raw))
	for in.pos < len(in.buf) {
		if in.buf[in.pos] != '\\' {
			out = append(out, in.buf[in.pos])
			in.pos++
			continue
		}
		r, err := in.rune()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), nil
}

// rune passes one escaped character, of one or two escapes.
func (s *scanner) rune() (rune, error) {
	at := s.pos
	r, err := s.escape()
	if err != nil || r < 0xd800 || r > 0xdfff {
		return r, err
	}
	if r < 0xdc00 && s.pos < len(s.buf) && s.buf[s.pos] == '\\' {
		low, err := s.escape()
		if err != nil {
			return 0, err
		}
		if low >= 0xdc00 && low <= 0xdfff {
			return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), nil
		}
	}
	return 0, &syntaxError{at, "half a surrogate pair"}
}

// embeddable tells whether bytes can stand in an answer as JSON, byte for byte,
// and come back from there as the same value: strictly valid JSON, on one line,
// without white space around it.
func embeddable(b []byte) bool {
	if len(b) == 0 || bytes.IndexByte(b, '\n') >= 0 || bytes.IndexByte(b, '\r') >= 0 {
		return false
	}
	s := scanner{buf: b}
	got, err := s.skip(0)
	return err == nil && len(got) == len(b)
}

// appendString appends a JSON string. Nothing is escaped that need not be.
func appendString[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// object builds one JSON object, its members in the order in which they are
// added. Answers are built with it because their bytes are pinned: the order of
// members, and values that pass as they are.
type object struct{ b []byte }

func (o *object) name(name string) {
	sep := byte(',')
	if len(o.b) == 0 {
		sep = '{'
	}
	o.b = append(appendString(append(o.b, sep), name), ':')
}

func (o *object) str(name, v string)       { o.name(name); o.b = appendString(o.b, v) }
func (o *object) int(name string, v int64) { o.name(name); o.b = strconv.AppendInt(o.b, v, 10) }
func (o *object) uint(name string, v uint64) {
	o.name(name)
	o.b = strconv.AppendUint(o.b, v, 10)
}
func (o *object) bool(name string, v bool)  { o.name(name); o.b = strconv.AppendBool(o.b, v) }
func (o *object) raw(name string, v []byte) { o.name(name); o.b = append(o.b, v...) }
func (o *object) null(name string)          { o.name(name); o.b = append(o.b, "null"...) }
func (o *object) close() []byte {
	if len(o.b) == 0 {
		return append(o.b, "{}"...)
	}
	return append(o.b, '}')
}

// appendKey appends a record key: string if it is UTF-8, else binary. A key is
// never of type json: two spellings of one number would be two entities.
func appendKey(dst, key []byte) []byte { return appendTyped(dst, key, false) }

// appendValue appends a record value: json where it can be embedded, else like a
// key.
func appendValue(dst, value []byte) []byte { return appendTyped(dst, value, true) }

func appendTyped(dst, b []byte, mayJSON bool) []byte {
	switch {
	case b == nil:
		return append(dst, "null"...)
	case mayJSON && embeddable(b):
		dst = append(append(dst, `{"type":"json","data":`...), b...)
	case utf8.Valid(b):
		dst = appendString(append(dst, `{"type":"string","data":`...), b)
	default:
		dst = appendBase64(append(dst, `{"type":"binary","data":`...), b)
	}
	return append(dst, '}')
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}
