package node

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// Status implements gateway.StatusSource.
func (n *Node) Status(context.Context) (gateway.Status, error) {
	st := gateway.Status{
		Version: Version, Time: gateway.Time(time.Now()),
		Region: n.cfg.Region, Instance: n.cfg.Instance, Mode: n.cfg.NATS.Mode,
	}
	st.Residency, st.Warnings = n.residencyStatus()
	reach := map[string]string{n.cfg.Region: "ok"}
	if n.kafka.down.Load() {
		reach[n.cfg.Region] = "unreachable"
		st.Warnings = append(st.Warnings, "the region's own Kafka does not answer")
	}
	for _, l := range n.links {
		s := l.status(time.Now())
		st.Links = append(st.Links, s)
		reach[s.To] = "ok"
		if l.Status().Error != "" {
			reach[s.To] = "unreachable"
		}
		st.Warnings = append(st.Warnings, l.warnings()...)
	}
	for _, r := range n.topology.Regions() {
		kafka := reach[r.Name]
		if kafka == "" {
			kafka = "unreachable" // no link of ours leads there
		}
		st.Regions = append(st.Regions, gateway.RegionStatus{Name: r.Name, ID: uint8(r.ID), State: "UP", Kafka: kafka})
	}
	n.registerStatus(&st)
	if m := n.control.Malformed(); m > 0 {
		st.Warnings = append(st.Warnings, fmt.Sprintf("%d control records do not parse and are passed over; see the log", m))
	}
	st.Warnings = append(st.Warnings, n.topics.grown()...)
	for _, h := range n.seats.list() {
		s := h.seat.Status()
		for r, wait := range s.Held {
			what := "held for " + wait.Round(time.Millisecond).String()
			if wait > time.Hour {
				what = "not applied" // too far ahead to wait for
			}
			st.Warnings = append(st.Warnings, fmt.Sprintf("%s/%d: events of %s are %s, their stamps are ahead of the wall clock", h.topic, h.partition, n.topology.Name(r), what))
		}
		for r, epoch := range s.Unsettled {
			st.Warnings = append(st.Warnings, n.unsettled(h.place, r, epoch))
		}
		if s.Uncut != "" {
			st.Warnings = append(st.Warnings, fmt.Sprintf("%s/%d: a cut that the ownership register has is not in force here: %s", h.topic, h.partition, s.Uncut))
		}
		if s.Quarantined > 0 {
			st.Warnings = append(st.Warnings, fmt.Sprintf("%s/%d: %d local records that the gateway did not write are quarantined: only it may write an entity topic", h.topic, h.partition, s.Quarantined))
		}
		if s.Foreign > 0 {
			st.Warnings = append(st.Warnings, fmt.Sprintf("%s/%d: %d records in remote topics that no link wrote are quarantined", h.topic, h.partition, s.Foreign))
		}
	}
	return st, nil
}

// unsettled says why the fold does not go on with an origin's log.
func (n *Node) unsettled(at place, r event.RegionID, epoch event.Epoch) string {
	table, name := n.intervals(at.topic, at.partition), n.topology.Name(r)
	unit := n.policy.Domain(at.topic).Unit(name)
	switch {
	case table != nil && table.Revision == 0:
		return fmt.Sprintf("%s/%d: nothing is folded before the ownership register is known", at.topic, at.partition)
	case epoch == 0:
		return fmt.Sprintf("%s/%d: events of %s wait until %s owns %s: a record without a gateway's headers lies where it never has",
			at.topic, at.partition, name, name, unit)
	}
	return fmt.Sprintf("%s/%d: events of %s wait for the ownership register: they carry epoch %d of %s, which is not known here",
		at.topic, at.partition, name, epoch, unit)
}

// List implements gateway.Topics.
func (t *topicList) List(ctx context.Context) ([]gateway.TopicEntry, error) {
	if err := t.refresh(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", gateway.ErrUpstream, err)
	}
	t.mu.Lock()
	known := maps.Clone(t.known) // a look-up adds to it
	t.mu.Unlock()
	var out []gateway.TopicEntry
	for _, name := range known.Names() {
		e := gateway.TopicEntry{Name: name, Partitions: int32(len(known[name].Partitions))}
		x, registered := t.follower.Topic(name)
		switch {
		case router.Internal(name):
			e.Role = "internal"
			if registered {
				e.Of, e.Use = x.Of, x.Use.String()
			}
		case registered && x.Kind == control.KindRemote:
			e.Role, e.Origin, e.Of = "remote", t.topology.Name(x.Origin), x.Source
		case registered:
			e.Role, e.Of, e.Use = "derived", x.Of, x.Use.String()
		default:
			d := t.policy.Domain(name)
			e.Role, e.Domain, e.Kind = "local", d.Name, d.Kind.String()
			if d.Rule != 0 {
				e.Policy = d.Rule.String()
			}
			for _, l := range t.links {
				e.Links = append(e.Links, l.topic(name))
			}
		}
		out = append(out, e)
	}
	return out, nil
}
