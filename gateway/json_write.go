package gateway

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// appendString appends a JSON string. Nothing is escaped that need not be.
func appendString[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for plain, i := 0, 0; ; i++ {
		if i < len(text) && text[i] >= 0x20 && text[i] != '"' && text[i] != '\\' {
			continue
		}
		dst = append(dst, text[plain:i]...)
		plain = i + 1
		if i == len(text) {
			break
		}
		switch c := text[i]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
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
