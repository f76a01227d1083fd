package event

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// DefaultIdempotencySecret is the idempotency secret of a deployment that has configured
// none. It hides nothing; it only keeps all regions alike.
const DefaultIdempotencySecret = "geogate idempotency v1"

// HashKey makes gg-k: the first 16 bytes of HMAC-SHA-256 under the deployment's
// secret, the same in all regions, over the uvarint-length-prefixed principal,
// topic and key.
func HashKey(secret []byte, principal, topic, key string) IdempotencyKey {
	return NewKeyHasher(secret).Hash(principal, topic, key)
}

// KeyHasher makes many gg-k under one secret, which it reads once. It is safe for
// concurrent use.
type KeyHasher struct{ macs sync.Pool }

// bufferedHash is a hash with room for what goes into it and for what comes out.
type bufferedHash struct {
	hash.Hash
	buf []byte
}

// NewKeyHasher makes a KeyHasher for a secret.
func NewKeyHasher(secret []byte) *KeyHasher {
	secret = bytes.Clone(secret)
	return &KeyHasher{sync.Pool{New: func() any { return &bufferedHash{Hash: hmac.New(sha256.New, secret)} }}}
}

// Hash is HashKey under the hasher's secret.
func (h *KeyHasher) Hash(principal, topic, key string) (k IdempotencyKey) {
	m, _ := h.macs.Get().(*bufferedHash)
	defer h.macs.Put(m)
	m.Reset()
	b := appendPrefixed(appendPrefixed(appendPrefixed(m.buf[:0], principal), topic), key)
	_, _ = m.Write(b) // a hash's Write never fails
	m.buf = m.Sum(b[:0])
	copy(k[:], m.buf)
	return k
}

// Request is what a producer asked for: what a fingerprint covers.
type Request struct {
	Topic     string
	Key       []byte // nil is null
	Op        Op
	Value     []byte // nil is null
	Headers   []Header
	Partition int32 // the partition asked for, or -1
}

// Fingerprint makes gg-f: the first 16 bytes of SHA-256 over the request as
// produced: length-prefixed topic; key (u8 0 = null, or 1 and length-prefixed
// bytes); op u8; value like the key; uvarint header count, each name
// length-prefixed and value like the key; uvarint partition + 1, or 0. Headers
// gg-* and content-type are left out: they are not part of what was asked for.
func (q *Request) Fingerprint() (f Fingerprint) {
	d, _ := digests.Get().(*bufferedHash)
	defer digests.Put(d)
	d.Reset()
	// Large parts go into the hash as they are, the rest by way of the buffer.
	b := appendPrefixed(d.buf[:0], q.Topic)
	b = d.nullable(b, q.Key)
	b = append(b, byte(q.Op))
	b = d.nullable(b, q.Value)
	n := 0
	for _, h := range q.Headers {
		if fingerprinted(h) {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, h := range q.Headers {
		if fingerprinted(h) {
			b = d.nullable(appendPrefixed(b, h.Key), h.Value)
		}
	}
	b = binary.AppendUvarint(b, uint64(q.Partition+1))
	_, _ = d.Write(b)
	d.buf = d.Sum(b[:0])
	copy(f[:], d.buf)
	return f
}

// digests are SHA-256 with room for small parts.
var digests = sync.Pool{New: func() any { return &bufferedHash{Hash: sha256.New()} }}

// nullable is AppendNullable, but a large part takes what was appended so far with it
// into the hash.
func (d *bufferedHash) nullable(b, part []byte) []byte {
	const small = 128
	if len(part) <= small {
		return AppendNullable(b, part)
	}
	b = binary.AppendUvarint(append(b, 1), uint64(len(part)))
	_, _ = d.Write(b)
	_, _ = d.Write(part)
	return b[:0]
}

func fingerprinted(h Header) bool { return !IsReserved(h.Key) && h.Key != "content-type" }
