package node

import (
	"context"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/topics"
)

// Status implements gateway.StatusSource.
func (n *Node) Status(context.Context) (gateway.Status, error) {
	st := gateway.Status{
		Version: Version, Time: gateway.Time(time.Now()),
		Region: n.cfg.Region, Instance: n.cfg.Instance, Mode: n.cfg.NATS.Mode,
	}
	st.Residency = n.residencyStatus()
	reach := map[string]string{n.cfg.Region: "ok"}
	if n.kafka.down.Load() {
		reach[n.cfg.Region] = "unreachable"
	}
	for _, l := range n.links {
		s := l.status(time.Now())
		st.Links = append(st.Links, s)
		reach[s.To] = "ok"
		if l.Status().Error != "" {
			reach[s.To] = "unreachable"
		}
	}
	for _, r := range n.topology.Regions() {
		kafka := reach[r.Name]
		if kafka == "" {
			kafka = "unreachable" // no link of this instance leads there
		}
		st.Regions = append(st.Regions, gateway.RegionStatus{Name: r.Name, ID: uint8(r.ID), State: "UP", Kafka: kafka})
	}
	n.registerStatus(&st)
	n.gatewayStatus(&st)
	st.Frontiers = n.seats.Frontiers()
	st.Warnings = n.warnings().All()
	return st, nil
}

// topicList is the catalogue with what the links do with its topics.
type topicList struct {
	*topics.Catalogue
	links []*linkRun
}

// List implements gateway.Topics.
func (t *topicList) List(ctx context.Context) ([]gateway.TopicEntry, error) {
	all, err := t.Entries(ctx)
	for i := range all {
		if all[i].Role != topics.RoleLocal {
			continue
		}
		for _, l := range t.links {
			all[i].Links = append(all[i].Links, l.topic(all[i].Name))
		}
	}
	return all, err
}
