package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
)

// incidents shows what the region has lost to operators, and takes their decisions.
type incidents struct {
	keeper   *control.Incidents
	topology *router.Topology
}

var _ gateway.Incidents = (*incidents)(nil)

// List implements gateway.Incidents.
func (n *incidents) List() []gateway.Incident {
	all := n.keeper.All()
	out := make([]gateway.Incident, len(all))
	for i := range all {
		out[i] = n.show(&all[i])
	}
	return out
}

// Get implements gateway.Incidents.
func (n *incidents) Get(id string) (gateway.Incident, error) {
	e, err := n.find(id)
	if err != nil {
		return gateway.Incident{}, err
	}
	return n.show(&e), nil
}

func (n *incidents) find(id string) (incident.Entry, error) {
	x, err := incident.ParseID(id)
	if err != nil {
		return incident.Entry{}, gateway.ErrIncidentUnknown
	}
	e, ok := n.keeper.Get(x)
	if !ok {
		return e, gateway.ErrIncidentUnknown
	}
	return e, nil
}

// Accept implements gateway.Incidents.
func (n *incidents) Accept(ctx context.Context, id string, to int64, by, reason string) (gateway.Incident, error) {
	e, err := n.find(id)
	if err != nil {
		return gateway.Incident{}, err
	}
	e, err = n.keeper.Accept(ctx, incident.Acceptance{ID: e.ID(), Until: to + 1, At: time.Now(), By: by, Reason: reason})
	switch {
	case errors.Is(err, control.ErrIncidentGrown):
		err = fmt.Errorf("%w: it has grown to offset %d since; look at it again", gateway.ErrNotAccepted, e.Until-1)
	case errors.Is(err, control.ErrIncidentEnded):
		err = fmt.Errorf("%w: it is %s already", gateway.ErrNotAccepted, e.State(time.Now(), n.keeper.Window()))
	case err != nil:
		err = fmt.Errorf("accept incident %s: %w: %w", id, gateway.ErrUpstream, err)
	}
	return n.show(&e), err
}

// lostBeginning reports that a topic of geogate's own has lost its beginning. What was
// accepted is not reported again; what was deleted since then is another incident.
func (n *incidents) lostBeginning(t retention.Topic, partition int32, start int64) {
	p := incident.Place{Kind: incident.Internal, Log: t.ID, Partition: partition}
	from, until := n.keeper.Missing(p, start)
	if from >= until {
		return
	}
	p.From = from
	n.keeper.Report(incident.Incident{Place: p, Topic: t.Name, Name: t.Name, Until: until, Found: time.Now()})
}

// show is an incident as operators see it.
func (n *incidents) show(e *incident.Entry) gateway.Incident {
	region := n.topology.Name(e.Origin)
	out := gateway.Incident{
		ID: e.ID().String(), Kind: e.Kind.String(), Topic: e.Topic, Partition: e.Partition, Log: e.Name,
		From: e.From, To: e.Until - 1, Count: e.Count(), Since: gateway.Time(e.Found),
		State: string(e.State(time.Now(), n.keeper.Window())), Detail: e.Meaning(n.topology.Name), Remedy: e.Remedy(), Consequence: e.Consequence(n.topology.Name),
	}
	if e.Origin != 0 {
		out.Region = region
	}
	if e.To != 0 {
		out.Target = n.topology.Name(e.To)
	}
	if a := e.Acceptance; a != nil {
		out.Accepted = &gateway.IncidentAcceptance{By: a.By, At: gateway.Time(a.At), Reason: a.Reason, To: a.Until - 1}
	}
	return out
}

// Warnings implements warner.
func (n *incidents) Warnings(out *warning.List) {
	now := time.Now()
	all := n.keeper.All()
	for i := range all {
		e := &all[i]
		if e.State(now, n.keeper.Window()) != incident.Open {
			continue
		}
		out.Add(warning.Gap, fmt.Sprintf("%s/%d", e.Topic, e.Partition), "%s: geogate incident show %s says what to do",
			e.Meaning(n.topology.Name), e.ID())
	}
}

var (
	incidentsDesc = prometheus.NewDesc("geogate_incidents", "Incidents by kind and state: records that were deleted before they were read.", []string{"kind", "state"}, nil)
	lostDesc      = prometheus.NewDesc("geogate_incident_lost_records", "Offsets that were deleted before they were read, by kind, in open incidents.", []string{"kind"}, nil)
)

// Describe implements prometheus.Collector.
func (n *incidents) Describe(out chan<- *prometheus.Desc) {
	out <- incidentsDesc
	out <- lostDesc
}

// Collect implements prometheus.Collector.
func (n *incidents) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	type key struct {
		kind  incident.Kind
		state incident.State
	}
	count, lost := make(map[key]int), make(map[incident.Kind]int64)
	all := n.keeper.All()
	for i := range all {
		e := &all[i]
		state := e.State(now, n.keeper.Window())
		if count[key{e.Kind, state}]++; state == incident.Open {
			lost[e.Kind] += e.Count()
		}
	}
	for _, k := range incident.Kinds() {
		for _, s := range []incident.State{incident.Open, incident.Accepted, incident.Expired} {
			out <- prometheus.MustNewConstMetric(incidentsDesc, prometheus.GaugeValue, float64(count[key{k, s}]), k.String(), string(s))
		}
		out <- prometheus.MustNewConstMetric(lostDesc, prometheus.GaugeValue, float64(lost[k]), k.String())
	}
}
