package seats

import (
	"fmt"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router/ownership"
)

// Warnings are what an operator should know of the seats, one line each.
func (s *Seats) Warnings() (out []string) {
	for _, h := range s.list() {
		st := h.seat.Status()
		for r, wait := range st.Held {
			what := "held for " + wait.Round(time.Millisecond).String()
			if wait > time.Hour {
				what = "not applied" // too far ahead to wait for
			}
			out = append(out, fmt.Sprintf("%s/%d: events of %s are %s, their stamps are ahead of the wall clock", h.Topic, h.Partition, s.cfg.Topology.Name(r), what))
		}
		for r, epoch := range st.Unsettled {
			out = append(out, s.unsettled(h.TopicPartition, r, epoch))
		}
		if st.CutPending != "" {
			out = append(out, fmt.Sprintf("%s/%d: a cut in the ownership register is not in force here yet: %s", h.Topic, h.Partition, st.CutPending))
		}
		if st.Quarantined > 0 {
			out = append(out, fmt.Sprintf("%s/%d: %d local records that the gateway did not write are quarantined: only it may write an entity topic", h.Topic, h.Partition, st.Quarantined))
		}
		if st.Foreign > 0 {
			out = append(out, fmt.Sprintf("%s/%d: %d records in remote topics that no link wrote are quarantined", h.Topic, h.Partition, st.Foreign))
		}
	}
	return out
}

// unsettled says why the fold does not go on with an origin's log.
func (s *Seats) unsettled(at txn.TopicPartition, r event.RegionID, epoch event.Epoch) string {
	table, name := s.tables.Table(at.Topic, at.Partition), s.cfg.Topology.Name(r)
	unit := s.cfg.Policy.Domain(at.Topic).Unit(name)
	switch {
	case table != nil && table.Revision == 0:
		return fmt.Sprintf("%s/%d: nothing is folded before the ownership register is known", at.Topic, at.Partition)
	case epoch == 0:
		return fmt.Sprintf("%s/%d: events of %s wait until %s owns %s: a record without a gateway's headers lies where it never has",
			at.Topic, at.Partition, name, name, unit)
	}
	return fmt.Sprintf("%s/%d: events of %s wait for the ownership register: they carry epoch %d of %s, which is not known here",
		at.Topic, at.Partition, name, epoch, unit)
}

// OrphanCounts counts what the region's views have met, by unit.
func (s *Seats) OrphanCounts() map[string]uint64 {
	out := make(map[string]uint64)
	for _, h := range s.list() {
		domain, met := s.cfg.Policy.Domain(h.Topic), h.view.Status().Orphans
		for _, r := range s.cfg.Topology.Regions() {
			out[domain.Unit(r.Name)] += uint64(met[r.ID])
		}
	}
	return out
}

// Orphans calls fn for the orphans of a unit that the views have met, in order and from
// after a place on, until fn returns false.
func (s *Seats) Orphans(unit string, after gateway.OrphanPlace, fn func(gateway.OrphanPlace, *conflict.Orphaned) bool) error {
	more := true
	for _, h := range s.list() {
		domain := s.cfg.Policy.Domain(h.Topic)
		if name, _ := ownership.UnitDomain(unit); !more || domain.Name != name {
			continue
		}
		err := h.view.Orphans(func(x conflict.Orphaned) bool {
			at := gateway.OrphanPlace{Topic: h.Topic, At: x.At}
			if at.Compare(after) > 0 && domain.Unit(s.cfg.Topology.Name(x.At.Region)) == unit {
				more = fn(at, &x)
			}
			return more
		})
		if err != nil {
			return fmt.Errorf("list orphans of %s/%d: %w", h.Topic, h.Partition, err)
		}
	}
	return nil
}
