package gateway

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// call is one request on its way through a handler.
type call struct {
	w    *answer
	r    *http.Request
	rc   *http.ResponseController
	id   string   // X-Request-Id
	args []string // the path's variable segments, decoded
}

// handler serves one method of a route. The error it returns is answered, unless
// the answer has begun.
type handler func(c *call) error

// route is a resource: a path whose segments are literal, or "*" for one that
// varies, and its methods.
type route struct {
	name    string // in metrics and logs
	path    []string
	methods map[string]handler
}

// mux serves routes. Paths are split before they are decoded, and never cleaned
// or redirected: a key may hold any byte, slashes and dots included.
type mux struct {
	s      *Server
	routes []route

	// others are the routes of the other listener, and other is its name: who
	// asks the wrong one is told.
	others []route
	other  string
}

// errGone ends a request whose client has gone: there is nobody to answer.
var errGone = errors.New("gateway: client has gone")

// ServeHTTP implements http.Handler.
func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	a := &answer{ResponseWriter: w}
	c := &call{w: a, r: r, rc: http.NewResponseController(w), id: requestID(r.Header.Get("X-Request-Id"))}
	a.Header().Set("X-Request-Id", c.id)
	rt, args := find(m.routes, r.URL.EscapedPath())
	name := "none"
	if rt != nil {
		name = rt.name
	}
	c.args = args
	defer func() {
		m.s.m.request(name, a.status, time.Since(began))
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			m.s.log.Error("request panicked", "request_id", c.id, "route", name, "panic", v, "stack", string(debug.Stack()))
			m.fail(c, name, problem(Internal, "see the gateway's log for this request"))
		}
	}()
	var err error
	if rt != nil {
		err = c.dispatch(rt)
	} else {
		err = m.nowhere(r.URL.EscapedPath())
	}
	if err != nil {
		m.fail(c, name, err)
	}
}

// nowhere is the problem of a path that no route has.
func (m *mux) nowhere(path string) error {
	if rt, _ := find(m.others, path); rt != nil {
		return problem(NotFound, "this resource is on the %s listener, which has another port", m.other)
	}
	if path == "/" {
		return problem(NotFound, "nothing is here; /v1/topics/{topic}/records and the like are on the data listener, /readyz, /metrics and /v1/status on the management listener")
	}
	return problem(NotFound, "no resource has this path; slashes within a key are written %%2F")
}

func (c *call) dispatch(rt *route) error {
	method := c.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h := rt.methods[method]
	if h == nil {
		allow := slices.Sorted(maps.Keys(rt.methods))
		if rt.methods[http.MethodGet] != nil {
			allow = append(allow, http.MethodHead)
		}
		c.w.Header().Set("Allow", strings.Join(allow, ", "))
		return problem(MethodNotAllowed, "this resource has %s", strings.Join(allow, ", "))
	}
	return h(c)
}

func find(routes []route, path string) (*route, []string) {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i := range routes {
		if args, ok := match(routes[i].path, segments); ok {
			return &routes[i], args
		}
	}
	return nil, nil
}

func match(pattern, segments []string) (args []string, ok bool) {
	if len(pattern) != len(segments) {
		return nil, false
	}
	for i, want := range pattern {
		got, err := url.PathUnescape(segments[i])
		switch {
		case err != nil:
			return nil, false
		case want == "*" && got == "":
			return nil, false
		case want == "*":
			args = append(args, got)
		case got != want:
			return nil, false
		}
	}
	return args, true
}

// fail answers with err's problem, or cuts an answer that has begun so that the
// client cannot take it for whole.
func (m *mux) fail(c *call, route string, err error) {
	if errors.Is(err, errGone) || c.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	p := asProblem(err)
	level := slog.LevelDebug
	switch {
	case p.Code == Internal:
		level = slog.LevelError
	case p.Code.kind().status >= 500:
		level = slog.LevelWarn
	}
	attrs := []any{"request_id", c.id, "route", route, "code", string(p.Code)}
	if level > slog.LevelDebug {
		attrs = append(attrs, "err", err) // what a client got wrong can quote what it sent
	}
	write := func() { m.s.log.Log(c.r.Context(), level, "request refused", attrs...) }
	if level == slog.LevelWarn {
		m.s.warned.Do(write) // an outage refuses thousands; the metric counts all
	} else {
		write()
	}
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	m.s.m.refused(p.Code)
	p.write(c.w, c.id)
}

// requestID takes a client's own id if it can stand in a header, a URN and a log
// line as it is, else makes one.
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

// answer remembers whether an answer has begun, and with what status.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// send answers 200 with a whole body.
func (c *call) send(contentType string, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.writeDeadline(answerTime)
	c.w.WriteHeader(http.StatusOK)
	if _, err := c.w.Write(body); err != nil {
		return errGone
	}
	return nil
}

// Deadlines are set where a body is read or an answer written, since a stream has
// no whole time. A writer without deadlines (in a test) has none to miss.
func (c *call) readDeadline(d time.Duration)  { _ = c.rc.SetReadDeadline(time.Now().Add(d)) }
func (c *call) writeDeadline(d time.Duration) { _ = c.rc.SetWriteDeadline(time.Now().Add(d)) }

// query reads the request's parameters: each at most once, and none that the
// resource does not know, since a misspelt one would be a silent default.
func (c *call) query(known ...string) (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, wrong(Malformed, FieldError{Parameter: "", Detail: "the query is not well formed"})
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name):
			return nil, wrong(Malformed, atParameter(name, "unknown parameter"))
		case len(q[name]) > 1:
			return nil, wrong(Malformed, atParameter(name, "the parameter stands %d times", len(q[name])))
		}
	}
	return q, nil
}

// accept picks the first of the offered media types that the request takes best,
// or fails with 406.
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
		return "", problem(NotAcceptable, "this resource gives %s", strings.Join(offered, ", "))
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
