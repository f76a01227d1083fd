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
	"github.com/geogate/geogate/router"
)

// Code names a problem; programs branch on it. The list is pinned: a code never
// changes its status or its meaning.
type Code string

// The codes. Those that no request can meet yet (NotOwner, OwnershipUnproven,
// KeyMissing) come from seats and topics that know ownership and required keys.
const (
	Malformed            Code = "MALFORMED"
	ReservedHeader       Code = "RESERVED_HEADER"
	CursorInvalid        Code = "CURSOR_INVALID"
	KeyInvalid           Code = "IDEMPOTENCY_KEY_INVALID"
	KeyMissing           Code = "IDEMPOTENCY_KEY_MISSING"
	NotFound             Code = "NOT_FOUND"
	TopicUnknown         Code = "TOPIC_UNKNOWN"
	EntityUnknown        Code = "ENTITY_UNKNOWN"
	MethodNotAllowed     Code = "METHOD_NOT_ALLOWED"
	NotAcceptable        Code = "NOT_ACCEPTABLE"
	NotOwner             Code = "NOT_OWNER"
	KeyInUse             Code = "IDEMPOTENCY_KEY_IN_USE"
	CursorExpired        Code = "CURSOR_EXPIRED"
	BodyTooLarge         Code = "BODY_TOO_LARGE"
	RecordTooLarge       Code = "RECORD_TOO_LARGE"
	UnsupportedMediaType Code = "UNSUPPORTED_MEDIA_TYPE"
	KeyReused            Code = "IDEMPOTENCY_KEY_REUSED"
	InvalidRecord        Code = "INVALID_RECORD"
	Overloaded           Code = "OVERLOADED"
	Internal             Code = "INTERNAL"
	Upstream             Code = "UPSTREAM_UNAVAILABLE"
	Draining             Code = "DRAINING"
	NotReady             Code = "NOT_READY"
	ClockDrift           Code = "CLOCK_DRIFT"
	StaleView            Code = "STALE_VIEW"
	OwnershipUnproven    Code = "OWNERSHIP_UNPROVEN"
	OutcomeUnknown       Code = "OUTCOME_UNKNOWN"
)

// kind is what all problems of a code have in common.
type kind struct {
	status     int
	title      string
	retriable  bool // sending the same request again is safe and may help
	retryAfter int  // seconds for Retry-After; 0 leaves the header out
}

// kind looks a code up; a code that is not in the table is a defect of ours.
func (c Code) kind() kind {
	switch c {
	case Malformed:
		return kind{400, "The request is malformed", false, 0}
	case ReservedHeader:
		return kind{400, "The record has a header with the reserved prefix gg-", false, 0}
	case CursorInvalid:
		return kind{400, "The cursor does not belong to this read", false, 0}
	case KeyInvalid:
		return kind{400, "The idempotency key is not valid", false, 0}
	case KeyMissing:
		return kind{400, "This topic takes only writes with an idempotency key", false, 0}
	case NotFound:
		return kind{404, "There is no such resource", false, 0}
	case TopicUnknown:
		return kind{404, "The topic is not known in this region", false, 0}
	case EntityUnknown:
		return kind{404, "The entity has no value", false, 0}
	case MethodNotAllowed:
		return kind{405, "The resource does not have this method", false, 0}
	case NotAcceptable:
		return kind{406, "No acceptable media type can be given", false, 0}
	case NotOwner:
		return kind{409, "This region may not write this unit", false, 0}
	case KeyInUse:
		return kind{409, "A write with this idempotency key is in flight", true, 1}
	case CursorExpired:
		return kind{410, "Records after the cursor are no longer kept", false, 0}
	case BodyTooLarge:
		return kind{413, "The body is too large", false, 0}
	case RecordTooLarge:
		return kind{413, "The record is too large", false, 0}
	case UnsupportedMediaType:
		return kind{415, "The body's media type or encoding is not supported", false, 0}
	case KeyReused:
		return kind{422, "The idempotency key was used for another request", false, 0}
	case InvalidRecord:
		return kind{422, "The topic does not take this record", false, 0}
	case Overloaded:
		return kind{429, "The gateway has too much in flight", true, 1}
	case Upstream:
		return kind{503, "Kafka cannot be reached; nothing was stored", true, 2}
	case Draining:
		return kind{503, "The gateway is stopping; nothing was stored", true, 5}
	case NotReady:
		return kind{503, "The partition is not ready; nothing was stored", true, 1}
	case ClockDrift:
		return kind{503, "The clock is out of bounds; nothing was stored", true, 5}
	case StaleView:
		return kind{503, "This region has not applied what the request has seen", true, 1}
	case OwnershipUnproven:
		return kind{503, "Ownership is not proven at the moment; nothing was stored", true, 3}
	case OutcomeUnknown:
		return kind{503, "Whether the record was stored is not known", false, 0}
	}
	return kind{500, "The gateway has a defect", false, 0}
}

// FieldError says what is wrong where: one of Pointer (a JSON pointer into the
// record), Parameter and Header is where.
type FieldError struct {
	Pointer   *string `json:"pointer,omitempty"`
	Parameter string  `json:"parameter,omitempty"`
	Header    string  `json:"header,omitempty"`
	Detail    string  `json:"detail"`
}

func atPointer(pointer, format string, args ...any) FieldError {
	return FieldError{Pointer: &pointer, Detail: fmt.Sprintf(format, args...)}
}

func atParameter(name, format string, args ...any) FieldError {
	return FieldError{Parameter: name, Detail: fmt.Sprintf(format, args...)}
}

func atHeader(name, format string, args ...any) FieldError {
	return FieldError{Header: name, Detail: fmt.Sprintf(format, args...)}
}

// Problem is a request's failure as the client sees it. It is an error, so that
// whatever knows best what went wrong can say it. Detail never holds values or
// keys of records.
type Problem struct {
	Code      Code
	Detail    string
	Retriable bool         // the code's, but for OUTCOME_UNKNOWN
	Errors    []FieldError // on 400 and 422
	Members   []Member     // what the code adds, in order
}

// Member is a member that a problem has beyond those that all have.
type Member struct {
	Name  string
	Value any // as encoding/json writes it
}

// Error implements error.
func (p *Problem) Error() string { return "gateway: " + string(p.Code) + ": " + p.Detail }

// problem makes a problem of a code with that code's own retriable.
func problem(c Code, format string, args ...any) *Problem {
	return &Problem{Code: c, Detail: fmt.Sprintf(format, args...), Retriable: c.kind().retriable}
}

// wrong makes a 400 or 422 with what is wrong in detail.
func wrong(c Code, errs ...FieldError) *Problem {
	p := problem(c, "")
	p.Errors = errs
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
	p.Detail = b.String()
	return p
}

func (p *Problem) with(name string, value any) *Problem {
	p.Members = append(p.Members, Member{name, value})
	return p
}

// append appends the problem's JSON. instance is the request's id.
func (p *Problem) append(dst []byte, instance string) []byte {
	k := p.Code.kind()
	var o object
	o.str("type", "urn:geogate:problem:"+strings.ReplaceAll(strings.ToLower(string(p.Code)), "_", "-"))
	o.str("title", k.title)
	o.int("status", int64(k.status))
	o.str("detail", p.Detail)
	o.str("instance", "urn:request:"+instance)
	o.str("code", string(p.Code))
	o.bool("retriable", p.Retriable)
	for _, m := range p.Members {
		o.raw(m.Name, marshal(m.Value))
	}
	if k.status == http.StatusBadRequest || k.status == http.StatusUnprocessableEntity {
		errs := p.Errors
		if errs == nil {
			errs = []FieldError{}
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
func (p *Problem) write(w http.ResponseWriter, instance string) {
	k := p.Code.kind()
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

func (p *Problem) retryAfter() int {
	if p.Code == OutcomeUnknown && p.Retriable {
		return 1
	}
	return p.Code.kind().retryAfter
}

// asProblem is the one place where an error of any part of the process becomes
// what a client sees. An error that it does not know is a defect; its text stays
// in the log.
func asProblem(err error) *Problem {
	var p *Problem
	var reused *seat.ReusedError
	var outcome *seat.OutcomeError
	var unknown *UnknownTopic
	var foreign *router.NotOwnerError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &reused):
		p := wrong(KeyReused, atHeader("Idempotency-Key", "the key was first used for another request at %s", formatTime(reused.FirstUsed.UnixMilli())))
		return p.with("first_used", formatTime(reused.FirstUsed.UnixMilli()))
	case errors.As(err, &outcome):
		return outcomeUnknown(outcome.HadKey)
	case errors.As(err, &unknown):
		return problem(TopicUnknown, "%s", unknown.Detail)
	case errors.As(err, &foreign):
		return notOwner(foreign)
	case errors.Is(err, router.ErrUnproven):
		return problem(OwnershipUnproven, "the region's claim or its lease is not confirmed at the moment")
	case errors.Is(err, ErrTopicUnknown):
		return problem(TopicUnknown, "the topic does not exist in this region; writes and reads create none")
	case errors.Is(err, seat.ErrInUse):
		return problem(KeyInUse, "the first write with this key has no result yet; ask again for it")
	case errors.Is(err, ErrUnread):
		return problem(NotReady, "the ownership register has not been read yet")
	case errors.Is(err, seat.ErrNotReady):
		return problem(NotReady, "the partition's seat is catching up with its log")
	case errors.Is(err, seat.ErrSuperseded):
		return problem(NotReady, "another instance of the region has taken the partition's seat")
	case errors.Is(err, seat.ErrDraining), errors.Is(err, context.Canceled):
		return problem(Draining, "the instance is stopping; send the request to another one or again later")
	case errors.Is(err, seat.ErrOverloaded):
		return problem(Overloaded, "the partition has too many writes in flight")
	case errors.Is(err, seat.ErrDrift), errors.Is(err, hlc.ErrDrift), errors.Is(err, hlc.ErrAhead):
		return problem(ClockDrift, "the region's clock and its wall clock, or the request's token, are too far apart")
	case errors.Is(err, seat.ErrTooLarge):
		return problem(RecordTooLarge, "the record is larger than the topic takes")
	case errors.Is(err, ErrStale), errors.Is(err, context.DeadlineExceeded):
		return problem(StaleView, "what the token or cursor has seen has not arrived here within the wait")
	case errors.Is(err, seat.ErrUpstream), errors.Is(err, ErrUpstream):
		return problem(Upstream, "the region's Kafka cluster does not answer as it should")
	case errors.Is(err, ErrExpired):
		return problem(CursorExpired, "retention has passed the cursor; begin again with from=earliest or from=latest")
	}
	return problem(Internal, "see the gateway's log for this request")
}

func outcomeUnknown(hadKey bool) *Problem {
	p := problem(OutcomeUnknown, "the record may or may not be stored; without an idempotency key only reading the topic can tell")
	if hadKey {
		p.Detail = "the record may or may not be stored; send the same request with the same key for the true result"
	}
	p.Retriable = hadKey
	return p
}

// inTopic adds the topic and the region to a refusal by ownership, which knows
// neither. Other errors stay as they are.
func inTopic(err error, topic, region string) error {
	var foreign *router.NotOwnerError
	if !errors.As(err, &foreign) {
		return err
	}
	p := notOwner(foreign)
	p.Members = append([]Member{{"topic", topic}, {"region", region}}, p.Members...)
	return p
}

func notOwner(e *router.NotOwnerError) *Problem {
	p := problem(NotOwner, "%s", e.Error()).with("unit", e.Unit).with("owner", orNull(e.Owner))
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

// formatTime is a record timestamp as answers show it: RFC 3339, UTC,
// milliseconds. Kafka's "no timestamp", -1, is shown as it is counted.
func formatTime(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// formatID is an event id as answers show it, null for a record that came
// without a gateway.
func (o *object) id(name string, id event.ID) {
	if id.IsZero() {
		o.null(name)
		return
	}
	o.str(name, id.String())
}
