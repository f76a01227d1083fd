package seats

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
)

// Seats implements ownership.UnitLogs.
var _ ownership.UnitLogs = (*Seats)(nil)

// topicsOf are the local topics of a unit's domain, freshly listed.
func (s *Seats) topicsOf(ctx context.Context, unit string) ([]gateway.Topic, error) {
	if err := s.cfg.Topics.Refresh(ctx); err != nil {
		return nil, err
	}
	all, err := s.cfg.Topics.Local(ctx)
	if err != nil {
		return nil, err
	}
	domain, _ := ownership.UnitDomain(unit)
	var out []gateway.Topic
	for _, t := range all {
		if t.Domain.Name == domain {
			out = append(out, t)
		}
	}
	return out, nil
}

// Ends implements ownership.UnitLogs.
func (s *Seats) Ends(ctx context.Context, unit string) ([]ownership.Extent, error) {
	topics, err := s.topicsOf(ctx, unit)
	if err != nil || len(topics) == 0 {
		return nil, err
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	ends, err := s.admin.ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list where the logs of %s end: %w", unit, err)
	}
	var out extents
	for _, t := range topics {
		for p := range t.LocalPartitions() {
			e, ok := ends.Lookup(t.Name, p)
			if !ok {
				return nil, fmt.Errorf("list where the logs of %s end: no answer for %s/%d", unit, t.Name, p)
			}
			out.set(t.Name, s.cfg.Control.Incarnation(t.Name, t.ID, p), p, e.Offset)
		}
	}
	return out, nil
}

// Settle implements ownership.UnitLogs.
func (s *Seats) Settle(ctx context.Context, unit string) error {
	domain, _ := ownership.UnitDomain(unit)
	for _, h := range s.list() {
		if s.cfg.Policy.Domain(h.Topic).Name == domain {
			h.seat.Settle()
		}
	}
	return ctx.Err()
}

// Applied implements ownership.UnitLogs: the most of this region's committed vectors,
// of what has arrived where nothing folds, and of what other regions have
// published. A topic of which no other region is given anything is left out: that
// nobody has applied it says nothing.
//
// What a seat promises of the region's log stands still from when this instance knows that
// the epoch is over, so it lies in what is listed here. A seat that is only being opened may
// have another instance before it, which does not know; then there is an error.
func (s *Seats) Applied(ctx context.Context, unit, region string) ([]ownership.Extent, error) {
	topics, err := s.topicsOf(ctx, unit)
	if err != nil {
		return nil, err
	}
	origin, ok := s.cfg.Topology.ID(region)
	if !ok {
		return nil, fmt.Errorf("region %s is not one of the deployment", region)
	}
	var out extents
	for _, t := range topics {
		for p := range t.ViewPartitions() {
			if !s.given(t, p, origin) {
				continue
			}
			if at := (txn.TopicPartition{Topic: t.Name, Partition: p}); s.isOpening(at) {
				return nil, fmt.Errorf("partition %s is being opened", name(at))
			}
			at := s.appliedAt(t, p, origin)
			out.set(t.Name, at.Incarnation, p, at.Next)
		}
	}
	return out, nil
}

// isOpening tells whether a partition's seat is there and does not know yet what is folded,
// and nothing has gone wrong with it.
func (s *Seats) isOpening(at txn.TopicPartition) bool {
	h := s.find(at)
	if h == nil || s.trouble(at).count > 0 {
		return false
	}
	select {
	case <-h.view.Ready():
		return false
	default:
		return true
	}
}

// given reports whether any region gets records of an origin's topic: the
// residency policy lets at least some of them leave, and there is a remote topic
// here, or another region has published that it has applied some.
func (s *Seats) given(t gateway.Topic, p int32, origin event.RegionID) bool {
	for _, r := range s.cfg.Topology.Others(s.cfg.Topology.Name(origin)) {
		if g := s.cfg.Guard; g != nil {
			rule := g.Rule(t.Name, s.cfg.Topology.Name(origin), r.Name)
			if rule.Effect == residency.Deny && rule.Rule != residency.StoppedRule {
				continue
			}
		}
		if r.ID == s.cfg.ID {
			if _, made := s.cfg.Control.Remote(origin, t.Name); made {
				return true
			}
		} else if told, ok := s.cfg.Control.Progress(r.ID, t.Name, p); ok && told.Promised[origin] != (event.Point{}) {
			return true
		}
	}
	return false
}

func (s *Seats) appliedAt(t gateway.Topic, p int32, origin event.RegionID) event.Point {
	var most event.Point
	take := func(at event.Point) {
		if most.Compare(at) < 0 {
			most = at
		}
	}
	if h := s.find(txn.TopicPartition{Topic: t.Name, Partition: p}); h != nil {
		v, _ := h.view.Committed()
		take(v[origin])
	} else if remote, ok := s.cfg.Control.Remote(origin, t.Name); ok {
		if c, ok := s.cfg.Control.Covered(origin, remote.ID, p); ok {
			take(c.Source)
		}
	}
	for _, r := range s.cfg.Topology.Regions() {
		if r.ID == origin {
			continue
		}
		progress, ok := s.cfg.Control.Progress(r.ID, t.Name, p)
		told, possible := progress.Promised[origin], s.cfg.Control.MayReach(origin, t.Name, p)
		switch {
		case !ok:
		case told.Next > possible:
			s.cfg.Logger.Error("a region claims to have applied more of another's log than can be there; the claim does not count",
				"region", r.Name, "origin", s.cfg.Topology.Name(origin), "topic", t.Name, "partition", p, "claims", told.Next, "possible", possible)
		default:
			take(told)
		}
	}
	return most
}

// extents collects offsets by topic and incarnation.
type extents []ownership.Extent

func (e *extents) set(topic string, incarnation uint16, partition int32, offset int64) {
	for i := range *e {
		if x := &(*e)[i]; x.Topic == topic && x.Incarnation == incarnation {
			x.Offsets = grow(x.Offsets, partition)
			x.Offsets[partition] = offset
			return
		}
	}
	offsets := grow(nil, partition)
	offsets[partition] = offset
	*e = append(*e, ownership.Extent{Topic: topic, Incarnation: incarnation, Offsets: offsets})
}

func grow(offsets []int64, partition int32) []int64 {
	for int(partition) >= len(offsets) {
		offsets = append(offsets, -1)
	}
	return offsets
}
