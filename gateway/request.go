package gateway

import (
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// Media types and headers of the API.
const (
	typeJSON    = "application/json"
	typeNDJSON  = "application/x-ndjson"
	headerToken = "Geogate-Token"
)

// call is one request on its way through a handler.
type call struct {
	w    *answer
	r    *http.Request
	rc   *http.ResponseController
	id   string   // X-Request-Id
	args []string // the path's variable segments, decoded
	peer peer     // whom it counts for

	measured bool // its records are measured one by one, not the request

	partTime time.Duration // in which a part of a body or answer has to move
	patience time.Duration // for a share of unread
	unread   *shares       // of answers that wait to be read; nil: not limited
}

// writeHead is what a write says beside its body.
type writeHead struct {
	topic       string
	maxHeaders  int         // of a record
	media       string      // of the body, in lower case, without parameters
	header      http.Header // of the request
	query       url.Values
	idempotency string       // the header's key; "" is none
	seen        *event.Token // what the client has seen; nil is not told
}

// writeHead reads what a write says beside its body, and refuses a body that it
// says is longer than most.
func (c *call) writeHead(most int64, maxHeaders int) (h *writeHead, err error) {
	h = &writeHead{topic: c.args[0], header: c.r.Header, maxHeaders: maxHeaders}
	if h.media, err = c.contentType(); err != nil {
		return nil, err
	}
	if n := c.r.ContentLength; n > most {
		return nil, newProblem(codeBodyTooLarge, "the body has %d bytes; the limit is %d (http.max_body)", n, most)
	}
	answers, parameters := []string{typeJSON}, []string{"key"}
	switch h.media {
	case typeNDJSON:
		answers, parameters = []string{typeNDJSON, typeJSON}, nil
	case typeJSON:
		parameters = nil
	}
	if _, err = c.accept(answers...); err != nil {
		return nil, err
	}
	if h.query, err = c.query(parameters...); err != nil {
		return nil, err
	}
	if h.seen, err = c.token(h.topic); err != nil {
		return nil, err
	}
	h.idempotency, err = parseIdempotencyKey(c.r.Header.Values("Idempotency-Key"))
	return h, err
}

// query reads the request's parameters: each at most once, and none that the
// resource does not know: a misspelt one would silently take its default.
func (c *call) query(known ...string) (url.Values, error) {
	if c.r.URL.RawQuery == "" {
		return nil, nil // which has no parameter
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, invalid(codeMalformed, fieldError{Parameter: "", Detail: "the query string is not valid"})
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name):
			return nil, invalid(codeMalformed, atParameter(name, "unknown parameter"))
		case len(q[name]) > 1:
			return nil, invalid(codeMalformed, atParameter(name, "given %d times", len(q[name])))
		}
	}
	return q, nil
}

// accept picks the offered media type that the request's Accept header prefers,
// the first of equals, or fails with 406.
func (c *call) accept(offered ...string) (string, error) {
	lines := c.r.Header.Values("Accept")
	if len(lines) == 0 {
		return offered[0], nil
	}
	best, bestQ := "", 0.0
	for _, o := range offered {
		if q := quality(strings.Join(lines, ","), o); q > bestQ {
			best, bestQ = o, q
		}
	}
	if best == "" {
		return "", newProblem(codeNotAcceptable, "this resource is available as %s", strings.Join(offered, ", "))
	}
	return best, nil
}

// quality is how much an Accept header wants a media type, by the most specific
// range that names it (RFC 9110, 12.5.1).
func quality(accept, media string) float64 {
	major, _, _ := strings.Cut(media, "/")
	bestRank, q := 0, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		rank := map[string]int{media: 3, major + "/*": 2, "*/*": 1}[strings.ToLower(strings.TrimSpace(name))]
		if rank <= bestRank {
			continue
		}
		bestRank, q = rank, 1
		for p := range strings.SplitSeq(params, ";") {
			k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
			if f, err := strconv.ParseFloat(v, 64); err == nil && strings.EqualFold(k, "q") {
				q = f
			}
		}
	}
	return q
}

// contentType is the media type of the body, in lower case, without parameters.
func (c *call) contentType() (string, error) {
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		c.w.Header().Set("Accept-Encoding", "identity")
		return "", newProblem(codeUnsupportedMediaType, "compressed bodies are not supported; send the body without Content-Encoding")
	}
	lines := c.r.Header.Values("Content-Type")
	if len(lines) != 1 {
		return "", newProblem(codeUnsupportedMediaType, "the request needs one Content-Type: %s, %s, or that of a raw value", typeJSON, typeNDJSON)
	}
	media, params, err := mime.ParseMediaType(lines[0])
	if err != nil || !strings.Contains(media, "/") {
		return "", newProblem(codeUnsupportedMediaType, "the Content-Type is not a valid media type")
	}
	if media == "application/x-www-form-urlencoded" || media == "multipart/form-data" {
		return "", newProblem(codeUnsupportedMediaType, "a form is not a record (curl sends one by default with -d, and with -F); send Content-Type %s for a record, application/octet-stream for a raw value", typeJSON)
	}
	if charset := params["charset"]; (media == typeJSON || media == typeNDJSON) && charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", newProblem(codeUnsupportedMediaType, "JSON must be UTF-8")
	}
	return media, nil
}

// token reads the header Geogate-Token; none is nil.
func (c *call) token(topic string) (*event.Token, error) {
	lines := c.r.Header.Values(headerToken)
	switch {
	case len(lines) > 1:
		return nil, invalid(codeMalformed, atHeader(headerToken, "given %d times", len(lines)))
	case len(lines) == 0 || lines[0] == "":
		return nil, nil
	}
	t, err := event.ParseToken(lines[0])
	if err != nil {
		return nil, invalid(codeMalformed, atHeader(headerToken, "not a valid token"))
	}
	if t.Topic != event.HashTopic(topic) {
		return nil, invalid(codeMalformed, atHeader(headerToken, "the token belongs to another topic"))
	}
	return &t, nil
}

// requestID takes the client's own id if a header, a URN and a log line can hold
// it as it is, else makes one.
func requestID(given string) string {
	const most = 128
	valid := len(given) > 0 && len(given) <= most
	for i := 0; valid && i < len(given); i++ {
		c := given[i]
		valid = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~:", c) >= 0
	}
	if valid {
		return given
	}
	id, err := event.NewID()
	if err != nil {
		return "none" // without randomness nothing else works either
	}
	return id.String()
}
