//go:build unix

package main

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// words are what half of a value is made of: like the texts and names of real records,
// they compress, but not to nothing.
var words = func() (out []string) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 4000 {
		b := make([]byte, 3+rng.IntN(9))
		for i := range b {
			b[i] = "eeetaoinshrdlucmfwypvbgk"[rng.IntN(24)]
		}
		out = append(out, string(b))
	}
	return out
}()

// value is a JSON object of about size bytes; half of it are words, half is random.
func value(rng *rand.Rand, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size+32), `{"id":%d,"at":"2026-11-%02dT%02d:%02d:%02d.%03dZ","amount":%.2f,"text":"`,
		rng.Uint32(), 1+rng.IntN(30), rng.IntN(24), rng.IntN(60), rng.IntN(60), rng.IntN(1000), rng.Float64()*1000)
	for len(b) < size/2 {
		b = append(append(b, words[rng.IntN(len(words))]...), ' ')
	}
	b = append(b, `","data":"`...)
	raw := make([]byte, max(0, size-len(b)-2)*3/4)
	for i := range raw {
		raw[i] = byte(rng.Uint32())
	}
	return append(base64.StdEncoding.AppendEncode(b, raw), `"}`...)
}

// keyDigits is the length of the part of an idempotency key that changes.
const keyDigits = 16

// putKey writes n as keyDigits hexadecimal digits.
func putKey(b []byte, n uint64) {
	for i := keyDigits - 1; i >= 0; i-- {
		b[i] = "0123456789abcdef"[n&15]
		n >>= 4
	}
}

// record is the document of a record without an idempotency key.
func record(key string, val []byte) []byte {
	b := append([]byte(`{"key":{"type":"string","data":`), strconv.Quote(key)...)
	return append(append(append(b, `},"value":{"type":"json","data":`...), val...), `}}`...)
}

// stream is the body of an NDJSON stream in chunks of HTTP, each with several lines,
// sent over and over. Its lines get their idempotency keys from the request's header.
type stream struct {
	chunks [][]byte
	lines  []int // of each chunk
	bytes  []int // of each chunk, without its frame
}

// newStream makes n lines. Record keys are those of keyOf.
func newStream(rng *rand.Rand, n, size int, keyOf func(i int) string) *stream {
	const perChunk = 56 << 10
	s := &stream{}
	var text []byte
	lines := 0
	flush := func() {
		if lines == 0 {
			return
		}
		chunk := fmt.Appendf(nil, "%x\r\n", len(text))
		s.chunks, s.lines, s.bytes = append(s.chunks, append(append(chunk, text...), "\r\n"...)), append(s.lines, lines), append(s.bytes, len(text))
		text, lines = text[:0], 0
	}
	for i := range n {
		text = append(append(text, record(keyOf(i), value(rng, size))...), '\n')
		if lines++; len(text) >= perChunk {
			flush()
		}
	}
	flush()
	return s
}

// request is one that is sent over and over, each time with other idempotency keys.
type request struct {
	bytes   []byte
	keys    []int // where the changing digits of the keys are
	records int
}

// next puts new idempotency keys into the request and returns its bytes.
func (r *request) next(key func() uint64) []byte {
	for _, at := range r.keys {
		putKey(r.bytes[at:], key())
	}
	return r.bytes
}

// single is a request with one record.
func single(topic, key string, val []byte) *request {
	body := record(key, val)
	head := fmt.Appendf(nil, "POST /v1/topics/%s/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: \"bench-", topic, len(body))
	at := len(head)
	head = append(append(head, "0000000000000000\"\r\n\r\n"...), body...)
	return &request{bytes: head, keys: []int{at}, records: 1}
}

// batch is a request with many records in one JSON document.
func batch(rng *rand.Rand, topic string, n, size int, keyOf func(i int) string) *request {
	body := []byte(`{"records":[`)
	r := &request{records: n}
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		one := record(keyOf(i), value(rng, size))
		body = append(append(body, one[:len(one)-1]...), `,"idempotency_key":"bench-`...)
		r.keys = append(r.keys, len(body))
		body = append(body, `0000000000000000"}`...)
	}
	body = append(body, `]}`...)
	head := fmt.Appendf(nil, "POST /v1/topics/%s/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", topic, len(body))
	for i := range r.keys {
		r.keys[i] += len(head)
	}
	r.bytes = append(head, body...)
	return r
}

// lookup is a request for an entity.
func lookup(topic, key string) []byte {
	return fmt.Appendf(nil, "GET /v1/topics/%s/entities/%s HTTP/1.1\r\nHost: localhost\r\n\r\n", topic, key)
}
