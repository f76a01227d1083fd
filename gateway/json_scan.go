package gateway

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// jsonScan passes over JSON (RFC 8259) in one go and takes no memory. It knows only what
// is right: where something is not, it says so and no more, and a jsonReader finds out
// what and where. What both take is the same.
type jsonScan struct {
	text []byte // valid UTF-8
	at   int    // what was passed
}

func newJSONScan(text []byte) (s jsonScan, ok bool) { return jsonScan{text: text}, utf8.Valid(text) }

// next passes white space and gives the character after it, 0 at the end.
func (s *jsonScan) next() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take passes white space and then c, if it is next.
func (s *jsonScan) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// end tells whether nothing but white space is left.
func (s *jsonScan) end() bool {
	s.next()
	return s.at == len(s.text)
}

// word passes a word.
func (s *jsonScan) word(w string) bool {
	if rest := s.text[s.at:]; len(rest) < len(w) || string(rest[:len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

// null passes the word null if it comes next.
func (s *jsonScan) null() bool { return s.next() == 'n' && s.word("null") }

// str passes a string and gives it with its quotes.
func (s *jsonScan) str() (raw []byte, escaped, ok bool) {
	if !s.take('"') {
		return nil, false, false
	}
	begin := s.at - 1
	for {
		s.at += plainLength(s.text[s.at:])
		if s.at == len(s.text) {
			return nil, false, false
		}
		switch s.text[s.at] {
		case '"':
			s.at++
			return s.text[begin:s.at:s.at], escaped, true
		case '\\':
			escaped = true
			if !s.escape() {
				return nil, false, false
			}
		default: // a control character
			return nil, false, false
		}
	}
}

// plainLength is how many bytes a string goes on before a quote, an escape or a control
// character.
func plainLength(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		// The lowest byte with its high bit set in stop is exact: a borrow reaches only
		// the bytes above one that is found.
		x := binary.LittleEndian.Uint64(b[i:])
		quote, escape := x^'"'*ones, x^'\\'*ones
		stop := ((x-0x20*ones)&^x | (quote-ones)&^quote | (escape-ones)&^escape) & highs
		if stop != 0 {
			return i + bits.TrailingZeros64(stop)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return i
}

// escape passes one escape of a string.
func (s *jsonScan) escape() bool {
	rest := s.text[s.at+1:]
	if len(rest) == 0 {
		return false
	}
	switch rest[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at += 2
		return true
	case 'u':
		if len(rest) < 5 {
			return false
		}
		for _, c := range rest[1:5] {
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return false
			}
		}
		s.at += 6
		return true
	}
	return false
}

// digits passes digits, of which there must be one.
func (s *jsonScan) digits() bool {
	begin := s.at
	for s.at < len(s.text) && s.text[s.at]-'0' <= 9 {
		s.at++
	}
	return s.at > begin
}

// skip passes one of two characters, if it is next.
func (s *jsonScan) skip(a, b byte) bool {
	if s.at == len(s.text) || s.text[s.at] != a && s.text[s.at] != b {
		return false
	}
	s.at++
	return true
}

// number passes a number.
func (s *jsonScan) number() bool {
	s.skip('-', '-')
	if !s.skip('0', '0') && !s.digits() {
		return false
	}
	if s.skip('.', '.') && !s.digits() {
		return false
	}
	if s.skip('e', 'E') {
		s.skip('+', '-')
		return s.digits()
	}
	return true
}

// value passes one value that does not nest too deep and gives its bytes, from its first
// to its last character; they share memory with the text.
func (s *jsonScan) value() (raw []byte, ok bool) {
	var objects uint64 // bit d-1: at depth d lies an object, else an array
	depth := 0
	s.next()
	begin := s.at
	for {
		switch c := s.next(); c {
		case '{', '[':
			if depth == maxDepth {
				return nil, false
			}
			s.at++
			objects &^= 1 << depth
			closing := byte(']')
			if c == '{' {
				objects, closing = objects|1<<depth, '}'
			}
			depth++
			if s.next() != closing {
				if c == '{' && !s.name() {
					return nil, false
				}
				continue
			}
			s.at++
			depth--
		default:
			if !s.scalar(c) {
				return nil, false
			}
		}
		if !s.closes(&depth, objects) {
			return nil, false
		}
		if depth == 0 {
			return s.text[begin:s.at:s.at], true
		}
	}
}

// scalar passes a value that does not nest, whose first character is c.
func (s *jsonScan) scalar(c byte) bool {
	switch c {
	case '"':
		_, _, ok := s.str()
		return ok
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

// name passes a member's name and its colon.
func (s *jsonScan) name() bool {
	_, _, ok := s.str()
	return ok && s.take(':')
}

// closes passes what follows a value: the ends of what it is the last part of, and up to
// where the next value begins unless nothing is open any more.
func (s *jsonScan) closes(depth *int, objects uint64) bool {
	for *depth > 0 {
		object := objects>>(*depth-1)&1 == 1
		switch c := s.next(); {
		case c == ',':
			s.at++
			return !object || s.name()
		case c == '}' && object, c == ']' && !object:
			s.at++
			*depth--
		default:
			return false
		}
	}
	return true
}

// members passes an object whose members have names without escapes; each is called at a
// member's value, which it must pass, with the member's name.
func (s *jsonScan) members(each func(name []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		name, escaped, ok := s.str()
		if !ok || escaped || !s.take(':') || !each(name[1:len(name)-1]) {
			return false
		}
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// elements passes an array; each is called at an element, which it must pass.
func (s *jsonScan) elements(each func() bool) bool {
	if !s.take('[') {
		return false
	}
	if s.take(']') {
		return true
	}
	for each() {
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
	return false
}
