package gateway

import (
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/geogate/geogate/router/ownership"
)

// dataHandler is the handler of the data listener, for producers and consumers.
func (s *Server) dataHandler() http.Handler {
	return &mux{s, newOrigin(s.cfg.Data, "http.allowed_hosts"), s.unread, s.dataRoutes(), s.managementRoutes(), "management"}
}

func (s *Server) dataRoutes() []route {
	get := func(h handler) map[string]handler { return map[string]handler{http.MethodGet: h} }
	return []route{
		{"records", []string{"v1", "topics", "*", "records"}, map[string]handler{
			http.MethodPost: s.measured(s.writeRecords), http.MethodGet: s.readRecords,
		}},
		{"entities", []string{"v1", "topics", "*", "entities"}, get(s.entityByQuery)},
		{"entity", []string{"v1", "topics", "*", "entities", "*"}, get(s.entityByPath)},
		{"conflicts", []string{"v1", "conflicts"}, get(s.readConflicts)},
		{"ownership", []string{"v1", "ownership"}, get(s.readOwnership)},
		{"orphans", []string{"v1", "ownership", "orphans"}, get(s.readOrphans)},
		{"topic ownership", []string{"v1", "topics", "*", "ownership"}, get(s.topicOwnership)},
	}
}

// managementHandler is the handler of the management listener, for probes and operators.
func (s *Server) managementHandler() http.Handler {
	return &mux{s, newOrigin(s.cfg.Manage, "management.allowed_hosts"), nil, s.managementRoutes(), s.dataRoutes(), "data"}
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
		{"forget", []string{"v1", "topics", "*", "forget"}, map[string]handler{http.MethodPost: s.forget}},
		{"incidents", []string{"v1", "incidents"}, get(s.incidents)},
		{"incident", []string{"v1", "incidents", "*"}, get(s.incident)},
		{"incident act", []string{"v1", "incidents", "*", "accept"}, map[string]handler{http.MethodPost: s.acceptIncident}},
		{"fence", []string{"v1", "fence"}, map[string]handler{http.MethodPost: s.command(ownership.VerbFence)}},
		{"register", []string{"v1", "register"}, get(s.registerReport)},
		{"register act", []string{"v1", "register", "*"}, map[string]handler{http.MethodPost: s.registerAct}},
		{"unfence", []string{"v1", "unfence"}, map[string]handler{http.MethodPost: s.command(ownership.VerbUnfence)}},
		{"retire", []string{"v1", "retire"}, map[string]handler{http.MethodPost: s.command(ownership.VerbRetire)}},
		{"return", []string{"v1", "return"}, map[string]handler{http.MethodPost: s.command(ownership.VerbReturn)}},
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
