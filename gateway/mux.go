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
	"strings"
	"time"
)

// handler serves one method of a route. The error it returns is answered, unless
// the answer has started.
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
	origin *origin
	unread *shares // nil: its connections are few
	routes []route

	// others are the routes of the other listener, and other is its name: a client
	// that asks the wrong listener is told which one to ask.
	others []route
	other  string
}

// errGone ends a request whose client has closed the connection.
var errGone = errors.New("gateway: client has gone")

// ServeHTTP implements http.Handler.
func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.s.drain.beginRequest()
	defer m.s.drain.endRequest()
	began := time.Now()
	a := &answer{ResponseWriter: w}
	c := &call{
		w: a, r: r, rc: http.NewResponseController(w), id: requestID(r.Header.Get("X-Request-Id")), peer: peerOf(r.RemoteAddr),
		partTime: m.s.partTime, patience: m.s.patience, unread: m.unread,
	}
	a.Header().Set("X-Request-Id", c.id)
	forbidSniffing(a.Header())
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
			m.fail(c, name, newProblem(codeInternal, "unexpected error; the gateway's log has it under the request's id"))
		}
	}()
	if err := m.serve(c, rt); err != nil {
		m.fail(c, name, err)
	}
}

// serve answers a request for a route; nil is one that there is not.
func (m *mux) serve(c *call, rt *route) error {
	if p := m.origin.check(c.r); p != nil {
		return p
	}
	if rt == nil {
		return m.notFound(c.r.URL.EscapedPath())
	}
	return c.dispatch(rt)
}

// notFound is the problem of a path that no route has.
func (m *mux) notFound(path string) error {
	if rt, _ := find(m.others, path); rt != nil {
		return newProblem(codeNotFound, "this resource is served by the %s listener, which has another port", m.other)
	}
	if path == "/" {
		return newProblem(codeNotFound, "there is no resource at /; /v1/topics/{topic}/records and the like are on the data listener, /readyz, /metrics and /v1/status on the management listener")
	}
	return newProblem(codeNotFound, "no resource has this path; write slashes within a key as %%2F")
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
		return newProblem(codeMethodNotAllowed, "this resource supports %s", strings.Join(allow, ", "))
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

// fail answers with err's problem. An answer that has started is cut off instead, so
// that the client cannot take it for complete.
func (m *mux) fail(c *call, route string, err error) {
	if errors.Is(err, errGone) || c.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	p := asProblem(err)
	level := slog.LevelDebug
	switch {
	case p.code == codeInternal:
		level = slog.LevelError
	case p.code.kind().status >= 500:
		level = slog.LevelWarn
	}
	attrs := []any{"request_id", c.id, "route", route, "code", string(p.code)}
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
	m.s.m.refused(p.code)
	p.write(c.w, c.id)
}
