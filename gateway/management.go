package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/geogate/geogate/router"
)

// Data is the handler of the data listener, for producers and consumers.
func (s *Server) Data() http.Handler {
	return &mux{s, s.dataRoutes(), s.managementRoutes(), "management"}
}

func (s *Server) dataRoutes() []route {
	get := func(h handler) map[string]handler { return map[string]handler{http.MethodGet: h} }
	return []route{
		{"records", []string{"v1", "topics", "*", "records"}, map[string]handler{
			http.MethodPost: s.writeRecords, http.MethodGet: s.readRecords,
		}},
		{"entities", []string{"v1", "topics", "*", "entities"}, get(s.entityByQuery)},
		{"entity", []string{"v1", "topics", "*", "entities", "*"}, get(s.entityByPath)},
		{"conflicts", []string{"v1", "conflicts"}, get(s.readConflicts)},
		{"ownership", []string{"v1", "ownership"}, get(s.readOwnership)},
		{"orphans", []string{"v1", "ownership", "orphans"}, get(s.readOrphans)},
		{"topic ownership", []string{"v1", "topics", "*", "ownership"}, get(s.topicOwnership)},
	}
}

// Management is the handler of the management listener, for probes and operators.
func (s *Server) Management() http.Handler {
	return &mux{s, s.managementRoutes(), s.dataRoutes(), "data"}
}

func (s *Server) managementRoutes() []route {
	get := func(h handler) map[string]handler { return map[string]handler{http.MethodGet: h} }
	metrics := promhttp.HandlerFor(s.deps.Registry, promhttp.HandlerOpts{})
	routes := []route{
		{"livez", []string{"livez"}, get(s.livez)},
		{"readyz", []string{"readyz"}, get(s.readyz)},
		{"metrics", []string{"metrics"}, get(standard(metrics.ServeHTTP))},
		{"configz", []string{"configz"}, get(s.configz)},
		{"status", []string{"v1", "status"}, get(s.status)},
		{"topics", []string{"v1", "topics"}, get(s.topics)},
		{"ownership", []string{"v1", "ownership"}, get(s.readOwnership)},
		{"orphans", []string{"v1", "ownership", "orphans"}, get(s.readOrphans)},
		{"topic ownership", []string{"v1", "topics", "*", "ownership"}, get(s.topicOwnership)},
		{"fence", []string{"v1", "fence"}, map[string]handler{http.MethodPost: s.command(router.VerbFence)}},
		{"unfence", []string{"v1", "unfence"}, map[string]handler{http.MethodPost: s.command(router.VerbUnfence)}},
	}
	if s.cfg.Pprof {
		both := func(h http.HandlerFunc) map[string]handler {
			return map[string]handler{http.MethodGet: standard(h), http.MethodPost: standard(h)}
		}
		routes = append(routes,
			route{"pprof", []string{"debug", "pprof", ""}, both(pprof.Index)},
			route{"pprof", []string{"debug", "pprof", "cmdline"}, both(pprof.Cmdline)},
			route{"pprof", []string{"debug", "pprof", "profile"}, both(pprof.Profile)},
			route{"pprof", []string{"debug", "pprof", "symbol"}, both(pprof.Symbol)},
			route{"pprof", []string{"debug", "pprof", "trace"}, both(pprof.Trace)},
			route{"pprof", []string{"debug", "pprof", "*"}, both(pprof.Index)},
		)
	}
	return routes
}

// standard serves a handler of net/http's own shape.
func standard(h http.HandlerFunc) handler {
	return func(c *call) error {
		h(c.w, c.r)
		return nil
	}
}

// livez says that the process turns: nothing that it depends on is asked.
func (s *Server) livez(c *call) error { return c.send("text/plain; charset=utf-8", []byte("ok\n")) }

// probeTime bounds one probe, so that a readiness check answers within the time
// that whoever asks has.
const probeTime = 2 * time.Second

// askProbes asks the probes one after the other and gives each answer to note.
func askProbes(ctx context.Context, probes []Probe, note func(name string, err error)) {
	for _, p := range probes {
		bounded, cancel := context.WithTimeout(ctx, probeTime)
		note(p.Name, p.Ready(bounded))
		cancel()
	}
}

func noteUnready(b *strings.Builder, name string, err error) { fmt.Fprintf(b, "[-]%s %v\n", name, err) }

// readyz says whether this instance can serve: 200, or 503 with what cannot. With
// ?verbose every part is listed.
func (s *Server) readyz(c *call) error {
	q, err := c.query("verbose")
	if err != nil {
		return err
	}
	var all, bad strings.Builder
	note := func(name string, err error) {
		if err == nil {
			fmt.Fprintf(&all, "[+]%s ok\n", name)
			return
		}
		for _, b := range []*strings.Builder{&all, &bad} {
			noteUnready(b, name, err)
		}
	}
	askProbes(c.r.Context(), s.deps.Probes, note)
	if s.drain.stopping() {
		note("gateway", fmt.Errorf("draining"))
	} else {
		note("gateway", nil)
	}
	if bad.Len() > 0 {
		h := c.w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		c.w.WriteHeader(http.StatusServiceUnavailable)
		text := bad.String()
		if q.Has("verbose") {
			text = all.String()
		}
		_, _ = c.w.Write([]byte(text))
		return nil
	}
	c.w.Header().Set("Cache-Control", "no-store")
	if q.Has("verbose") {
		return c.send("text/plain; charset=utf-8", []byte(all.String()))
	}
	return c.send("text/plain; charset=utf-8", []byte("ok\n"))
}

func (s *Server) configz(c *call) error {
	return c.send("text/plain; charset=utf-8", s.deps.Configz)
}

func (s *Server) status(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	st, err := s.deps.Status.Status(c.r.Context())
	if err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(st.complete()), '\n'))
}

func (s *Server) topics(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	list, err := s.deps.Topics.List(c.r.Context())
	if err != nil {
		return err
	}
	if list == nil {
		list = []TopicEntry{}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(TopicList{Topics: list, End: true}), '\n'))
}
