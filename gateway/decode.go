package gateway

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/geogate/geogate/internal/event"
)

// kafkaHeader begins the names of HTTP headers that become a raw value's record
// headers.
const kafkaHeader = "Kafka-Header-"

// contentTypeHeader is the record header that a raw value's Content-Type becomes.
const contentTypeHeader = "content-type"

// record is one write as the client asked for it. Every form of a write is
// decoded to it; nothing in it has been held against a topic yet.
type record struct {
	key         []byte // nil is null
	value       []byte // nil is null: a tombstone
	headers     []event.Header
	partition   int32        // -1: not asked for
	idempotency string       // "" is none
	contentType string       // of a raw value
	seen        *event.Token // what the client has seen; nil is not told
}

// decodeRecord makes the record of a request with one: a JSON record, or the
// value itself. The record shares memory with body. The error is a *problem.
func decodeRecord(head *writeHead, body []byte) (rec *record, err error) {
	if head.media != typeJSON {
		rec, err = rawRecord(head, body)
	} else {
		rec, err = parseRecord(body, head.maxHeaders)
	}
	if err != nil {
		return nil, err
	}
	rec.seen = head.seen
	switch {
	case head.idempotency != "" && rec.idempotency != "" && head.idempotency != rec.idempotency:
		return nil, invalid(codeKeyInvalid, atPointer("/idempotency_key", "it differs from the header Idempotency-Key; send one of them"))
	case head.idempotency != "":
		rec.idempotency = head.idempotency
	}
	return rec, nil
}

// decodeLine reads a line of a stream into rec, which is empty; index counts the lines.
func decodeLine(head *writeHead, line []byte, index int, rec *record) error {
	if !scanRecord(line, head.maxHeaders, rec) {
		slow, err := explainRecord(line, head.maxHeaders)
		if err != nil {
			return err
		}
		*rec = *slow
	}
	head.complete(rec, index)
	return nil
}

// complete adds what the head says to one of several records.
func (head *writeHead) complete(rec *record, index int) {
	rec.seen = head.seen
	if rec.idempotency == "" && head.idempotency != "" {
		rec.idempotency = head.idempotency + "#" + strconv.Itoa(index)
	}
}

// rawRecord makes the record of a body that is the value itself.
func rawRecord(head *writeHead, body []byte) (*record, error) {
	rec := &record{value: body, partition: -1, contentType: head.header.Get("Content-Type")}
	if head.query.Has("key") {
		rec.key = []byte(head.query.Get("key"))
	}
	// HTTP's header names have no case and net/http keeps no order between them;
	// sorted lower-case names make a retry the same request.
	for _, name := range slices.Sorted(maps.Keys(head.header)) {
		short, ok := strings.CutPrefix(name, kafkaHeader)
		if !ok {
			continue
		}
		short = strings.ToLower(short)
		if event.IsReserved(short) {
			return nil, invalid(codeReservedHeader, atHeader(name, "names with the prefix %s are reserved", event.Prefix))
		}
		if short == contentTypeHeader {
			return nil, invalid(codeMalformed, atHeader(name, "not taken: the record's content-type is the request's Content-Type"))
		}
		for _, v := range head.header[name] {
			rec.headers = append(rec.headers, event.Header{Key: short, Value: []byte(v)})
		}
	}
	return rec, nil
}
