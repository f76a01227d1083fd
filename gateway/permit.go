package gateway

import (
	"errors"
	"sync/atomic"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// writer permits and stores records. It knows nothing of HTTP or of the form in
// which a record came.
type writer struct {
	cfg       Config
	region    string    // name of the own region
	ownership Ownership // nil: this region may write everything
	seats     seatOpener
	m         *metrics
	keys      *event.KeyHasher // under the deployment's secret
	limits    txn.Limits       // of the deployment
	turn      atomic.Uint32    // partition of the next record without any key
	flights   flights
}

// permitted is a write that may be stored; only permits.permit makes one.
type permitted struct {
	topic     *Topic
	partition int32
	// overridesKey: the client chose another partition than the one of the key.
	overridesKey bool
	size         int64 // of the record
	request      seat.Request
}

// keyed tells whether the write has an idempotency key.
func (p *permitted) keyed() bool { return !p.request.Idempotency.IsZero() }

// permits permits the records of one topic that arrived together: what cannot change
// between them is asked once.
type permits struct {
	w     *writer
	topic *Topic
	unit  string // that ownership was asked about last
	may   error  // what it said
	asked bool
}

// permits makes the permits for records of a topic.
func (w *writer) permits(t *Topic) permits { return permits{w: w, topic: t} }

// permit decides whether a record may be stored, and in which partition. Its error is a
// *problem, or one of Ownership.Check.
func (s *permits) permit(rec *record, p *permitted) error {
	w, t := s.w, s.topic
	size, headers := rec.size(), rec.headerBytes()
	switch {
	case size > w.cfg.MaxRecord:
		return newProblem(codeRecordTooLarge, "key, value and headers, with the content type, have %d bytes; the limit is %d (http.max_record)", size, w.cfg.MaxRecord)
	case len(rec.key) > w.limits.Key:
		return newProblem(codeKeyTooLarge, "the key has %d bytes; the limit is %d (limits.key)", len(rec.key), w.limits.Key)
	case len(rec.headers) > w.maxHeaders():
		return tooManyHeaders(w.maxHeaders())
	case headers > w.limits.HeaderBytes-txn.AddedHeaderBytes:
		return newProblem(codeRecordTooLarge, "names and values of the headers have %d bytes; the limit is %d (limits.header_bytes, less those of the gateway)",
			headers, w.limits.HeaderBytes-txn.AddedHeaderBytes)
	case t.Limit.Bytes > 0 && size+headerFrame*int64(len(rec.headers)) > t.Limit.Bytes:
		return newProblem(codeRecordTooLarge, "key, value and headers have %d bytes and %d bytes around them; with what is derived from topic %s the limit is %d, by max.message.bytes of %s",
			size, headerFrame*int64(len(rec.headers)), t.Name, t.Limit.Bytes, t.Limit.Topic)
	case rec.value == nil && rec.key == nil:
		return invalid(codeInvalidRecord, atPointer("/key", "a tombstone (value null) needs a key"))
	}
	p.topic, p.size = t, size
	w.request(t, rec, &p.request)
	var err error
	if p.partition, p.overridesKey, err = w.partition(t, rec, p.request.Idempotency); err != nil {
		return err
	}
	if err := s.mayWrite(rec.key, rec.headers); err != nil {
		return err
	}
	if t.Held != "" {
		return newProblem(codeHeld, "the topic takes no writes because %s; an operator has to give it one number of partitions everywhere", t.Held)
	}
	return nil
}

// headerFrame is more than what a batch has around each header.
const headerFrame = 10

// maxHeaders is how many headers a record may have that is to be written.
func (w *writer) maxHeaders() int { return w.limits.RecordHeaders - txn.AddedHeaders }

func tooManyHeaders(most int) *problem {
	return newProblem(codeRecordTooLarge, "the record has more than %d headers (limits.record_headers, less those of the gateway)", most)
}

// size is what the record takes of the limit Config.MaxRecord.
func (r *record) size() int64 { return int64(len(r.key) + len(r.value) + r.headerBytes()) }

// headerBytes is how long names and values of the headers are, of the content type,
// which is stored as one, too.
func (r *record) headerBytes() (n int) {
	if r.contentType != "" {
		n += len(contentTypeHeader) + len(r.contentType)
	}
	for _, h := range r.headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// request makes what the seat is asked to store.
func (w *writer) request(t *Topic, rec *record, req *seat.Request) {
	req.Request = event.Request{
		Topic: t.Name, Key: rec.key, Op: event.Put, Value: rec.value, Headers: rec.headers, Partition: rec.partition,
	}
	req.Token, req.ContentType = rec.seen, rec.contentType
	if rec.value == nil {
		req.Op = event.Delete
	}
	if rec.idempotency != "" {
		req.Idempotency = w.keys.Hash("", t.Name, rec.idempotency)
		req.Fingerprint = req.Request.Fingerprint()
	}
}

// partition is where a record goes: by its key; without one by its idempotency
// key, so that a retry meets the first try; without both to each in turn.
func (w *writer) partition(t *Topic, rec *record, key event.IdempotencyKey) (p int32, overridesKey bool, err error) {
	entity := t.Domain.Kind == conflict.Entities
	if entity && rec.key == nil {
		return 0, false, invalid(codeInvalidRecord, atPointer("/key", "a record of an entity topic needs a key"))
	}
	if n := t.LocalPartitions(); rec.partition >= n {
		return 0, false, invalid(codeInvalidRecord, atPointer("/partition", "must be below %d, the number of partitions of the topic in this region", n))
	}
	switch {
	case rec.key != nil:
		p = router.Partition(rec.key, t.Partitions)
	case !key.IsZero():
		p = router.Partition(key[:], t.Partitions)
	default:
		p = int32(w.turn.Add(1) % uint32(t.Partitions))
	}
	if rec.partition < 0 || rec.partition == p {
		return p, false, nil
	}
	if entity {
		return 0, false, invalid(codeInvalidRecord, atPointer("/partition", "must be %d, the partition of the key, or null", p))
	}
	return rec.partition, rec.key != nil, nil
}

// unit finds the unit that a record belongs to. A record of a by_key domain whose
// home is no region of the deployment is 422.
func (w *writer) unit(t *Topic, key []byte, headers []event.Header) (string, error) {
	if t.Domain.Mode != ownership.ByKey {
		return t.Domain.Unit(w.region), nil
	}
	home, err := t.Domain.Region(key, headers, t.Name, w.region)
	if err != nil {
		return "", invalid(codeInvalidRecord, atPointer("", "the record's home region cannot be determined: %v", err))
	}
	if _, ok := w.cfg.Topology.ID(home); !ok {
		return "", invalid(codeInvalidRecord, atPointer("", "the record's home is not a region of the deployment"))
	}
	return t.Domain.Unit(home), nil
}

// mayWrite refuses early what the seat would refuse, and what belongs to another
// region's unit, which no seat here is ever asked about.
func (s *permits) mayWrite(key []byte, headers []event.Header) error {
	w, t := s.w, s.topic
	if s.asked && t.Domain.Mode != ownership.ByKey {
		return s.may
	}
	unit, err := w.unit(t, key, headers)
	if err != nil || w.ownership == nil {
		return err
	}
	if s.asked && unit == s.unit {
		return s.may
	}
	err = w.ownership.Check(unit)
	if unit != t.Domain.Unit(w.region) && (err == nil || errors.Is(err, ownership.ErrUnproven)) {
		_, region := ownership.UnitDomain(unit)
		err = &ownership.NotOwnerError{Unit: unit, Owner: region, State: ownership.UnitActive}
	}
	s.unit, s.may, s.asked = unit, inTopic(err, t.Name, w.region), true
	return s.may
}
