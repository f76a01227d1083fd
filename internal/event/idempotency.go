package event

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// DefaultIdempotencySecret is the idempotency secret of a deployment that has configured
// none. It hides nothing; it only keeps all regions alike.
const DefaultIdempotencySecret = "geogate idempotency v1"

// HashKey makes gg-k: the first 16 bytes of HMAC-SHA-256 under the deployment's
// secret, the same in all regions, over the uvarint-length-prefixed principal,
// topic and key.
func HashKey(secret []byte, principal, topic, key string) IdempotencyKey {
	m := hmac.New(sha256.New, secret)
	var b []byte
	for _, s := range []string{principal, topic, key} {
		b = AppendPrefixed(b, []byte(s))
	}
	m.Write(b)
	return IdempotencyKey(m.Sum(nil)[:16])
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
func (q *Request) Fingerprint() Fingerprint {
	b := AppendPrefixed(nil, []byte(q.Topic))
	b = AppendNullable(b, q.Key)
	b = append(b, byte(q.Op))
	b = AppendNullable(b, q.Value)
	n := 0
	for _, h := range q.Headers {
		if fingerprinted(h) {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, h := range q.Headers {
		if fingerprinted(h) {
			b = AppendNullable(AppendPrefixed(b, []byte(h.Key)), h.Value)
		}
	}
	b = binary.AppendUvarint(b, uint64(q.Partition+1))
	sum := sha256.Sum256(b)
	return Fingerprint(sum[:16])
}

func fingerprinted(h Header) bool {
	_, reserved := Reserved([]Header{h})
	return !reserved && h.Key != "content-type"
}
