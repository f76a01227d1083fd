package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router/ownership"
)

// code names a problem; programs branch on it. The list is pinned: a code never
// changes its status or its meaning.
type code string

// The codes. All are answered somewhere in this package but IDEMPOTENCY_KEY_MISSING:
// it is kept for topics that require a key, and no topic does yet.
const (
	codeMalformed            code = "MALFORMED"
	codeReservedHeader       code = "RESERVED_HEADER"
	codeCursorInvalid        code = "CURSOR_INVALID"
	codeKeyInvalid           code = "IDEMPOTENCY_KEY_INVALID"
	codeKeyMissing           code = "IDEMPOTENCY_KEY_MISSING"
	codeForeignOrigin        code = "FOREIGN_ORIGIN"
	codeNotFound             code = "NOT_FOUND"
	codeTopicUnknown         code = "TOPIC_UNKNOWN"
	codeEntityUnknown        code = "ENTITY_UNKNOWN"
	codeMethodNotAllowed     code = "METHOD_NOT_ALLOWED"
	codeNotAcceptable        code = "NOT_ACCEPTABLE"
	codeNotOwner             code = "NOT_OWNER"
	codeKeyInUse             code = "IDEMPOTENCY_KEY_IN_USE"
	codeTopicBlocked         code = "TOPIC_BLOCKED"
	codeIncidentChanged      code = "INCIDENT_CHANGED"
	codeCursorExpired        code = "CURSOR_EXPIRED"
	codeValueGone            code = "VALUE_GONE"
	codeBodyTooLarge         code = "BODY_TOO_LARGE"
	codeRecordTooLarge       code = "RECORD_TOO_LARGE"
	codeKeyTooLarge          code = "KEY_TOO_LARGE"
	codeUnsupportedMediaType code = "UNSUPPORTED_MEDIA_TYPE"
	codeHostNotAllowed       code = "HOST_NOT_ALLOWED"
	codeKeyReused            code = "IDEMPOTENCY_KEY_REUSED"
	codeInvalidRecord        code = "INVALID_RECORD"
	codeOverloaded           code = "OVERLOADED"
	codeInternal             code = "INTERNAL"
	codeUpstream             code = "UPSTREAM_UNAVAILABLE"
	codeDraining             code = "DRAINING"
	codeNotReady             code = "NOT_READY"
	codeHeld                 code = "PARTITION_HELD"
	codeKeysLost             code = "KEYS_LOST"
	codeClockDrift           code = "CLOCK_DRIFT"
	codeStaleView            code = "STALE_VIEW"
	codeOwnershipUnproven    code = "OWNERSHIP_UNPROVEN"
	codeOutcomeUnknown       code = "OUTCOME_UNKNOWN"
)

// kind is what all problems of a code have in common.
type kind struct {
	status     int
	title      string
	retriable  bool // sending the same request again is safe and may help
	retryAfter int  // seconds for Retry-After; 0 leaves the header out
}

// kind looks a code up; one that is not in the table is INTERNAL.
func (c code) kind() kind {
	switch c {
	case codeMalformed:
		return kind{400, "The request is malformed", false, 0}
	case codeReservedHeader:
		return kind{400, "The record has a header with the reserved prefix gg-", false, 0}
	case codeCursorInvalid:
		return kind{400, "The cursor does not belong to this read", false, 0}
	case codeKeyInvalid:
		return kind{400, "The idempotency key is not valid", false, 0}
	case codeKeyMissing:
		return kind{400, "This topic takes only writes with an idempotency key", false, 0}
	case codeForeignOrigin:
		return kind{403, "A page of another origin may not do this", false, 0}
	case codeNotFound:
		return kind{404, "There is no such resource", false, 0}
	case codeTopicUnknown:
		return kind{404, "The topic is not known in this region", false, 0}
	case codeEntityUnknown:
		return kind{404, "The entity has no value", false, 0}
	case codeMethodNotAllowed:
		return kind{405, "The resource does not have this method", false, 0}
	case codeNotAcceptable:
		return kind{406, "No acceptable media type can be given", false, 0}
	case codeNotOwner:
		return kind{409, "This region may not write this unit", false, 0}
	case codeKeyInUse:
		return kind{409, "A write with this idempotency key is in flight", true, 1}
	case codeTopicBlocked:
		return kind{409, "Something stands in the way of this topic", false, 0}
	case codeIncidentChanged:
		return kind{409, "The incident has changed or has ended", false, 0}
	case codeCursorExpired:
		return kind{410, "Records after the cursor are no longer kept", false, 0}
	case codeValueGone:
		return kind{410, "The entity's value is no longer kept", false, 0}
	case codeBodyTooLarge:
		return kind{413, "The body is too large", false, 0}
	case codeRecordTooLarge:
		return kind{413, "The record is too large", false, 0}
	case codeKeyTooLarge:
		return kind{413, "The key is too large", false, 0}
	case codeUnsupportedMediaType:
		return kind{415, "The body's media type or encoding is not supported", false, 0}
	case codeHostNotAllowed:
		return kind{421, "The Host header does not name this listener", false, 0}
	case codeKeyReused:
		return kind{422, "The idempotency key was used for another request", false, 0}
	case codeInvalidRecord:
		return kind{422, "The topic does not take this record", false, 0}
	case codeOverloaded:
		return kind{429, "The gateway has too much in flight", true, 1}
	}
	return c.unavailable()
}

// unavailable is kind of what is answered 503.
func (c code) unavailable() kind {
	switch c {
	case codeUpstream:
		return kind{503, "Kafka cannot be reached; nothing was stored", true, 2}
	case codeDraining:
		return kind{503, "The gateway is stopping; nothing was stored", true, 5}
	case codeNotReady:
		return kind{503, "The partition is not ready; nothing was stored", true, 1}
	case codeHeld:
		return kind{503, "The partition is held; nothing was stored", false, 0}
	case codeKeysLost:
		return kind{503, "Idempotency keys were lost; nothing was stored", false, 0}
	case codeClockDrift:
		return kind{503, "The clock is out of bounds; nothing was stored", true, 5}
	case codeStaleView:
		return kind{503, "This region has not applied what the request has seen", true, 1}
	case codeOwnershipUnproven:
		return kind{503, "Ownership is not proven at the moment; nothing was stored", true, 3}
	case codeOutcomeUnknown:
		return kind{503, "Whether the record was stored is not known", false, 0}
	}
	return kind{500, "The gateway has a defect", false, 0}
}

// fieldError says what is wrong where: one of Pointer (a JSON pointer into the
// record), Parameter and Header is where.
type fieldError struct {
	Pointer   *string `json:"pointer,omitempty"`
	Parameter string  `json:"parameter,omitempty"`
	Header    string  `json:"header,omitempty"`
	Detail    string  `json:"detail"`
}

func atPointer(pointer, format string, args ...any) fieldError {
	return fieldError{Pointer: &pointer, Detail: fmt.Sprintf(format, args...)}
}

func atParameter(name, format string, args ...any) fieldError {
	return fieldError{Parameter: name, Detail: fmt.Sprintf(format, args...)}
}

func atHeader(name, format string, args ...any) fieldError {
	return fieldError{Header: name, Detail: fmt.Sprintf(format, args...)}
}

// problem is a request's failure as the client sees it. It is an error, so that
// the code that knows best what went wrong can say it. detail never holds values or
// keys of records.
type problem struct {
	code      code
	detail    string
	retriable bool         // the code's own, except for OUTCOME_UNKNOWN
	fields    []fieldError // on 400 and 422
	members   []member     // what the code adds, in order
}

// member is a member that a problem has beyond those that all have.
type member struct {
	name  string
	value any // as encoding/json writes it
}

// Error implements error.
func (p *problem) Error() string { return "gateway: " + string(p.code) + ": " + p.detail }

// newProblem makes a problem of a code with that code's own retriable.
func newProblem(c code, format string, args ...any) *problem {
	return &problem{code: c, detail: fmt.Sprintf(format, args...), retriable: c.kind().retriable}
}

// invalid makes a 400 or 422 that says what is wrong with each part of the request.
func invalid(c code, errs ...fieldError) *problem {
	p := newProblem(c, "")
	p.fields = errs
	var b strings.Builder
	for i, e := range errs {
		if i > 0 {
			b.WriteString("; ")
		}
		switch {
		case e.Pointer != nil && *e.Pointer != "":
			b.WriteString(*e.Pointer + ": ")
		case e.Parameter != "":
			b.WriteString("parameter " + e.Parameter + ": ")
		case e.Header != "":
			b.WriteString("header " + e.Header + ": ")
		}
		b.WriteString(e.Detail)
	}
	p.detail = b.String()
	return p
}

func (p *problem) with(name string, value any) *problem {
	p.members = append(p.members, member{name, value})
	return p
}

// append appends the problem's JSON. instance is the request's id.
func (p *problem) append(dst []byte, instance string) []byte {
	k := p.code.kind()
	var o object
	o.str("type", "urn:geogate:problem:"+strings.ReplaceAll(strings.ToLower(string(p.code)), "_", "-"))
	o.str("title", k.title)
	o.int("status", int64(k.status))
	o.str("detail", p.detail)
	o.str("instance", "urn:request:"+instance)
	o.str("code", string(p.code))
	o.bool("retriable", p.retriable)
	for _, m := range p.members {
		o.raw(m.name, marshal(m.value))
	}
	if k.status == http.StatusBadRequest || k.status == http.StatusUnprocessableEntity {
		errs := p.fields
		if errs == nil {
			errs = []fieldError{}
		}
		o.raw("errors", marshal(errs))
	}
	return append(dst, o.close()...)
}

// marshal is encoding/json without its escapes for HTML. Its values are our own
// types and always have a JSON form.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("gateway: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// write sends the problem as the answer.
func (p *problem) write(w http.ResponseWriter, instance string) {
	k := p.code.kind()
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if after := p.retryAfter(); after > 0 {
		h.Set("Retry-After", strconv.Itoa(after))
	}
	body := p.append(nil, instance)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(k.status)
	_, _ = w.Write(body) // the client has gone: nobody is left to tell
}

func (p *problem) retryAfter() int {
	if p.code == codeOutcomeUnknown && p.retriable {
		return 1
	}
	return p.code.kind().retryAfter
}

// asProblem is the one place where an error of any part of the process becomes
// what a client sees. An error that it does not know is a defect; its text stays
// in the log.
func asProblem(err error) *problem {
	var p *problem
	var reused *seat.ReusedError
	var outcome *seat.OutcomeError
	var unknown *UnknownTopic
	var foreign *ownership.NotOwnerError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &reused):
		p := invalid(codeKeyReused, atHeader("Idempotency-Key", "the key was first used for another request at %s", formatTime(reused.FirstUsed.UnixMilli())))
		return p.with("first_used", formatTime(reused.FirstUsed.UnixMilli()))
	case errors.As(err, &outcome):
		return outcomeUnknown(outcome.HadKey)
	case errors.As(err, &unknown):
		return newProblem(codeTopicUnknown, "%s", unknown.Detail)
	case errors.As(err, &foreign):
		return notOwner(foreign)
	case errors.Is(err, ownership.ErrUnproven):
		return newProblem(codeOwnershipUnproven, "the ownership register has not confirmed this region's ownership or lease in time; retry")
	case errors.Is(err, ErrTopicUnknown):
		return newProblem(codeTopicUnknown, "the topic does not exist in this region; writes and reads do not create topics")
	case errors.Is(err, ErrTopicBlocked):
		return newProblem(codeTopicBlocked, "the region cannot make what it derives from the topic; an operator finds the reason with geogate topic list")
	case errors.Is(err, seat.ErrInUse):
		return newProblem(codeKeyInUse, "the first write with this key is still in flight; send the same request again for its result")
	case errors.Is(err, ErrUnread):
		return newProblem(codeNotReady, "the instance has not read the ownership register yet; retry")
	case errors.Is(err, seat.ErrHeld):
		return newProblem(codeHeld, "the instance has stopped the partition; geogate status says why, and other partitions go on")
	case errors.Is(err, seat.ErrKeysLost):
		return newProblem(codeKeysLost, "the region has lost records that may have this idempotency key, so it cannot tell whether the write was stored before; writes without a key are stored, geogate incident list says more")
	case errors.Is(err, seat.ErrNotReady):
		return newProblem(codeNotReady, "the instance is still reading the partition's log; retry")
	case errors.Is(err, seat.ErrSuperseded):
		return newProblem(codeNotReady, "another instance of the region has taken over the partition")
	case errors.Is(err, seat.ErrDraining), errors.Is(err, context.Canceled):
		return newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	case errors.Is(err, seat.ErrOverloaded):
		return newProblem(codeOverloaded, "the partition has too many writes in flight; retry")
	case errors.Is(err, seat.ErrDrift), errors.Is(err, hlc.ErrDrift), errors.Is(err, hlc.ErrAhead):
		return newProblem(codeClockDrift, "the region's clock is too far from the wall clock, or behind the request's token; check the time synchronisation of its hosts")
	case errors.Is(err, seat.ErrTooLarge):
		return newProblem(codeRecordTooLarge, "the record is larger than the topic's limit (max.message.bytes)")
	case errors.Is(err, errStale), errors.Is(err, context.DeadlineExceeded):
		return newProblem(codeStaleView, "this region has not applied everything that the token or cursor covers within the wait; retry, or wait longer (parameter wait)")
	case errors.Is(err, seat.ErrUpstream), errors.Is(err, ErrUpstream):
		return newProblem(codeUpstream, "the region's Kafka cluster cannot be reached, or answers with errors; retry")
	case errors.Is(err, errExpired):
		return newProblem(codeCursorExpired, "retention has deleted records after the cursor; restart with from=earliest or from=latest")
	}
	return newProblem(codeInternal, "unexpected error; the gateway's log has it under the request's id")
}

func outcomeUnknown(hadKey bool) *problem {
	p := newProblem(codeOutcomeUnknown, "the record may or may not be stored; without an idempotency key only reading the topic can tell")
	if hadKey {
		p.detail = "the record may or may not be stored; send the same request with the same key for the true result"
	}
	p.retriable = hadKey
	return p
}

// inTopic adds the topic and the region to a refusal by ownership, which knows
// neither. Other errors stay as they are.
func inTopic(err error, topic, region string) error {
	var foreign *ownership.NotOwnerError
	if !errors.As(err, &foreign) {
		return err
	}
	p := notOwner(foreign)
	p.members = append([]member{{"topic", topic}, {"region", region}}, p.members...)
	return p
}

func notOwner(e *ownership.NotOwnerError) *problem {
	p := newProblem(codeNotOwner, "%s", e.Error()).with("unit", e.Unit).with("owner", orNull(e.Owner))
	var epoch *uint64 // null where the register has nothing of the unit
	if e.Epoch != 0 {
		n := uint64(e.Epoch)
		epoch = &n
	}
	return p.with("epoch", epoch).with("state", string(e.State))
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// The first and the last millisecond that RFC 3339 can write.
const (
	firstMillis = -62167219200000 // 0000-01-01
	lastMillis  = 253402300799999 // 9999-12-31
)

// formatTime is a record timestamp as answers show it: RFC 3339, UTC,
// milliseconds. Kafka's "no timestamp", -1, is shown as it is counted; what lies before the
// year 0 or after the year 9999, as from producers that count microseconds, as the first or
// the last time that can be written.
func formatTime(ms int64) string { return string(appendTime(nil, ms)) }

// appendTime appends what formatTime gives.
func appendTime(dst []byte, ms int64) []byte {
	ms = min(max(ms, firstMillis), lastMillis)
	return time.UnixMilli(ms).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}

// id is an event id as answers show it, null for a record that came
// without a gateway.
func (o *object) id(name string, id event.ID) {
	o.name(name)
	o.b = appendID(o.b, id)
}

// appendID appends an event's id as JSON; the zero id is null.
func appendID(dst []byte, id event.ID) []byte {
	if id.IsZero() {
		return append(dst, "null"...)
	}
	return append(id.Append(append(dst, '"')), '"')
}
