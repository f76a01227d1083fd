package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

const (
	typeJSON    = "application/json"
	typeNDJSON  = "application/x-ndjson"
	headerToken = "Geogate-Token"
	kafkaHeader = "Kafka-Header-"
)

// writeRecords is POST /v1/topics/{topic}/records. Its order is: limits, parse,
// validate, topic, partition, seat.
func (s *Server) writeRecords(c *call) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.writes.Done()
	media, err := c.contentType()
	if err != nil {
		return err
	}
	if n := c.r.ContentLength; n > s.cfg.MaxBody {
		return problem(BodyTooLarge, "the body has %d bytes, at most %d are taken", n, s.cfg.MaxBody)
	}
	if media == typeNDJSON {
		return s.writeStream(c)
	}
	if _, err := c.accept(typeJSON); err != nil {
		return err
	}
	body, release, err := s.body(c)
	if err != nil {
		return err
	}
	defer release()
	rec, err := s.parse(c, media, body)
	if err != nil {
		return err
	}
	token, err := c.token(c.args[0])
	if err != nil {
		return err
	}
	topic, err := s.deps.Topics.Topic(c.r.Context(), c.args[0])
	if err != nil {
		return err
	}
	a, err := s.store(c.r.Context(), topic, rec, token)
	if err != nil {
		return err
	}
	out, given := s.answer(topic, &a)
	h := c.w.Header()
	h.Set(headerToken, given)
	switch {
	case a.Replayed:
		h.Set("Idempotent-Replayed", "true")
	case rec.idempotency != "" && len(s.cfg.Topology.Regions()) > 1:
		h.Set("Geogate-Dedupe", "pending")
	}
	return c.send(typeJSON, out)
}

// parse reads a body that is one record and checks what needs no topic.
func (s *Server) parse(c *call, media string, body []byte) (*record, error) {
	key, err := parseIdempotencyKey(c.r.Header.Values("Idempotency-Key"))
	if err != nil {
		return nil, err
	}
	var rec record
	if media == typeJSON {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		rec, err = parseRecord(body)
	} else {
		rec, err = c.rawRecord(body)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case key != "" && rec.idempotency != "" && key != rec.idempotency:
		return nil, wrong(KeyInvalid, atPointer("/idempotency_key", "the header Idempotency-Key names another key"))
	case key != "":
		rec.idempotency = key
	}
	return &rec, s.check(&rec)
}

// check holds a record against the rules that all topics have.
func (s *Server) check(rec *record) error {
	switch n := rec.size(); {
	case n > s.cfg.MaxRecord:
		return problem(RecordTooLarge, "key, value and headers have %d bytes, at most %d are taken", n, s.cfg.MaxRecord)
	case rec.value == nil && rec.key == nil:
		return wrong(InvalidRecord, atPointer("/key", "a tombstone (value null) needs a key"))
	}
	return nil
}

// store puts a checked record into its partition's seat.
func (s *Server) store(ctx context.Context, t Topic, rec *record, token *event.Token) (seat.Answer, error) {
	req := s.request(t, rec, token)
	p, err := s.partition(t, rec, req.Idempotency)
	if err != nil {
		return seat.Answer{}, err
	}
	if err := s.mayWrite(t, rec); err != nil {
		return seat.Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WriteTimeout)
	defer cancel()
	st, err := s.seat(ctx, t, p)
	if err != nil {
		return seat.Answer{}, err
	}
	a, err := st.Write(ctx, &req)
	err = s.refused(t, err)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		// The wait has ended, not the produce.
		return a, &seat.OutcomeError{HadKey: rec.idempotency != ""}
	}
	if err == nil {
		s.m.wrote(a.Replayed)
	}
	return a, err
}

// seat finds a partition's seat, with its view loaded. Nothing was handed over
// when it fails.
func (s *Server) seat(ctx context.Context, t Topic, p int32) (Seat, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WriteTimeout)
	defer cancel()
	st, err := s.deps.Seats.Open(ctx, t.Name, p)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("open seat: %w: %w", seat.ErrNotReady, err)
	}
	return st, err
}

func (s *Server) request(t Topic, rec *record, token *event.Token) seat.Request {
	req := seat.Request{
		Request: event.Request{
			Topic: t.Name, Key: rec.key, Op: event.Put, Value: rec.value, Headers: rec.headers, Partition: rec.partition,
		},
		Token: token, ContentType: rec.contentType,
	}
	if rec.value == nil {
		req.Op = event.Delete
	}
	if rec.idempotency != "" {
		req.Idempotency = event.HashKey(s.cfg.Secret, "", t.Name, rec.idempotency)
		req.Fingerprint = req.Request.Fingerprint()
	}
	return req
}

// partition is where a record goes: by its key; by its idempotency key, so that a
// retry meets the first try; else wherever.
func (s *Server) partition(t Topic, rec *record, key event.IdempotencyKey) (int32, error) {
	entity := t.Domain.Kind == router.Entity
	if entity && rec.key == nil {
		return 0, wrong(InvalidRecord, atPointer("/key", "a record of an entity topic needs a key"))
	}
	if rec.partition >= t.Partitions {
		return 0, wrong(InvalidRecord, atPointer("/partition", "the topic has %d partitions", t.Partitions))
	}
	var p int32
	switch {
	case rec.key != nil:
		p = router.Partition(rec.key, t.Partitions)
	case !key.IsZero():
		p = router.Partition(key[:], t.Partitions)
	default:
		p = int32(s.turn.Add(1) % uint32(t.Partitions))
	}
	if rec.partition < 0 || rec.partition == p {
		return p, nil
	}
	if entity {
		return 0, wrong(InvalidRecord, atPointer("/partition", "the key belongs to partition %d", p))
	}
	return rec.partition, nil
}

// answer is the body of a 200 and its token: a pure function of the record as it
// stands in the log, so that a replay gives the same bytes.
func (s *Server) answer(t Topic, a *seat.Answer) (body []byte, token string) {
	region := s.cfg.Topology.Name(a.At.Region)
	seen := a.Context
	seen.Advance(a.At)
	token = event.Token{Topic: event.HashTopic(t.Name), Partition: a.At.Partition, Vector: seen, Stamp: a.Stamp}.String()
	var o object
	o.id("id", a.ID)
	o.str("dot", a.At.Format(s.cfg.Topology))
	o.str("topic", t.Name)
	o.str("region", region)
	o.int("partition", int64(a.At.Partition))
	o.int("offset", a.At.Offset)
	o.uint("incarnation", uint64(a.At.Incarnation))
	o.str("stamp", a.Stamp.String())
	o.str("timestamp", formatTime(a.Timestamp))
	o.str("unit", t.Domain.Unit(region))
	o.uint("epoch", uint64(a.Epoch))
	o.str("ack", "local")
	o.str("token", token)
	return o.close(), token
}

// contentType is the media type of the body, in lower case, without parameters.
func (c *call) contentType() (string, error) {
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		c.w.Header().Set("Accept-Encoding", "identity")
		return "", problem(UnsupportedMediaType, "bodies are taken without Content-Encoding")
	}
	lines := c.r.Header.Values("Content-Type")
	if len(lines) != 1 {
		return "", problem(UnsupportedMediaType, "the request needs one Content-Type: %s, %s, or that of a raw value", typeJSON, typeNDJSON)
	}
	media, params, err := mime.ParseMediaType(lines[0])
	if err != nil || !strings.Contains(media, "/") {
		return "", problem(UnsupportedMediaType, "the Content-Type is not a media type")
	}
	if media == "application/x-www-form-urlencoded" {
		return "", problem(UnsupportedMediaType, "a form is no record (curl -d sends this type by default): want Content-Type %s for a record, application/octet-stream for a raw value", typeJSON)
	}
	if charset := params["charset"]; (media == typeJSON || media == typeNDJSON) && charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", problem(UnsupportedMediaType, "JSON is taken in UTF-8 only")
	}
	return media, nil
}

// rawRecord makes the record of a body that is the value itself.
func (c *call) rawRecord(body []byte) (record, error) {
	q, err := c.query("key")
	if err != nil {
		return record{}, err
	}
	rec := record{value: body, partition: -1, contentType: c.r.Header.Get("Content-Type")}
	if q.Has("key") {
		rec.key = []byte(q.Get("key"))
	}
	// HTTP's header names have no case and net/http keeps no order between them;
	// sorted lower-case names make a retry the same request.
	for _, name := range slices.Sorted(maps.Keys(c.r.Header)) {
		short, ok := strings.CutPrefix(name, kafkaHeader)
		if !ok {
			continue
		}
		short = strings.ToLower(short)
		if _, reserved := event.Reserved([]event.Header{{Key: short}}); reserved {
			return record{}, wrong(ReservedHeader, atHeader(name, "names with the prefix %s are reserved", event.Prefix))
		}
		if short == "content-type" {
			return record{}, wrong(Malformed, atHeader(name, "the record's content-type is that of the request"))
		}
		for _, v := range c.r.Header[name] {
			rec.headers = append(rec.headers, event.Header{Key: short, Value: []byte(v)})
		}
	}
	return rec, nil
}

// token reads the header Geogate-Token; none is nil.
func (c *call) token(topic string) (*event.Token, error) {
	lines := c.r.Header.Values(headerToken)
	switch {
	case len(lines) > 1:
		return nil, wrong(Malformed, atHeader(headerToken, "the header stands %d times", len(lines)))
	case len(lines) == 0 || lines[0] == "":
		return nil, nil
	}
	t, err := event.ParseToken(lines[0])
	if err != nil {
		return nil, wrong(Malformed, atHeader(headerToken, "not a token of this version"))
	}
	if t.Topic != event.HashTopic(topic) {
		return nil, wrong(Malformed, atHeader(headerToken, "the token belongs to another topic"))
	}
	return &t, nil
}

// body reads the request's body whole, within max_body and the byte budget, which
// is asked before anything is read. release gives the bytes back.
func (s *Server) body(c *call) (body []byte, release func(), err error) {
	const step = 64 << 10
	var held int64
	giveBack := func() { s.give(held) }
	defer func() {
		if err != nil {
			giveBack()
		}
	}()
	take := func(n int64) error {
		if !s.take(n) {
			return problem(Overloaded, "the bodies in flight take the %d bytes there are for them", s.cfg.MaxInflight)
		}
		held += n
		return nil
	}
	if n := c.r.ContentLength; n >= 0 {
		if err := take(n); err != nil {
			return nil, nil, err
		}
		body = make([]byte, n)
		for got := 0; got < len(body); {
			c.readDeadline(bodyTime)
			m, err := c.r.Body.Read(body[got:])
			if got += m; got < len(body) && err != nil {
				return nil, nil, cut(err)
			}
		}
		return body, giveBack, nil
	}
	for {
		if int64(len(body)) > s.cfg.MaxBody {
			return nil, nil, problem(BodyTooLarge, "the body has more than %d bytes", s.cfg.MaxBody)
		}
		if cap(body) == len(body) {
			if err := take(step); err != nil {
				return nil, nil, err
			}
			body = slices.Grow(body, step)
			if more := int64(cap(body)) - held; more > 0 {
				if err := take(more); err != nil {
					return nil, nil, err
				}
			}
		}
		c.readDeadline(bodyTime)
		m, err := c.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+m]
		switch {
		case errors.Is(err, io.EOF) && int64(len(body)) <= s.cfg.MaxBody:
			return body, giveBack, nil
		case err != nil && !errors.Is(err, io.EOF):
			return nil, nil, cut(err)
		}
	}
}

// cut is what ends a request whose body cannot be read: nothing, when the client
// has gone or was too slow; a problem, when it is there and its chunks are not as
// HTTP has them.
func cut(err error) error {
	var broken net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, &broken) {
		return errGone
	}
	return wrong(Malformed, FieldError{Detail: "the body is not framed as HTTP/1.1 has it"})
}

// take takes bytes of the budget if they are there.
func (s *Server) take(n int64) bool {
	ok := s.budget.TryAcquire(n)
	if ok {
		s.held.Add(n)
	}
	return ok
}

// give gives bytes of the budget back.
func (s *Server) give(n int64) {
	s.budget.Release(n)
	s.held.Add(-n)
}

var _ http.Handler = (*mux)(nil)
