package seats

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// CaughtUp implements ownership.UnitLogs. An instance that is starting has not caught up
// before it has read what the other regions told, and opened all partitions that they fold.
func (s *Seats) CaughtUp(ctx context.Context) (lacking string, err error) {
	select {
	case <-s.cfg.Control.Ready():
	default:
		return "the control topics, where other regions tell what they have folded, have not been read yet", nil
	}
	told := s.cfg.Control.ToldElsewhere()
	if others, _ := s.regionsThatCounted(); len(told) == 0 && len(others) > 0 {
		return "no other region has told yet what it has folded", nil // a new Kafka has no copies yet
	}
	for _, at := range told {
		h := s.find(at)
		if h == nil {
			return fmt.Sprintf("%s: other regions fold the partition, and it is not open here", name(at)), nil
		}
		if lacking := s.lacks(h); lacking != "" {
			return fmt.Sprintf("%s: %s", name(at), lacking), nil
		}
	}
	return "", ctx.Err()
}

// lacks says what a partition that other regions fold has not caught up with since the region
// was returned, "" if it has everything.
func (s *Seats) lacks(h *runningSeat) string {
	others, fenced := s.regionsThatCounted()
	if s.isOpening(h.TopicPartition) {
		return "it is being opened"
	}
	table := s.tables.Table(h.Topic, h.Partition)
	if table == nil || table.Revision == 0 || table.IsRetired(s.cfg.ID) {
		return "the register has not been read so far"
	}
	c := conflict.CatchUpWith(others, func(r event.RegionID) bool { return fenced[r] }, table.Revision,
		func(r event.RegionID) []conflict.Told { return s.told(h.TopicPartition, r) })
	if c.Unheard != 0 {
		return fmt.Sprintf("region %s has not said yet that it waits for this one again (revision %d of the register)", s.cfg.Topology.Name(c.Unheard), table.Revision)
	}
	vector, _ := h.view.Committed()
	if origin, lacks := c.Lacks(vector, table); lacks {
		return fmt.Sprintf("of the log of %s there is everything below offset %d here, and the others have settled what lies below %d",
			s.cfg.Topology.Name(origin), vector[origin].Next, c.Lowest[origin].Next)
	}
	return ""
}

// regionsThatCounted are the other regions that are neither retired nor have yet to catch up
// themselves, and which of them are fenced.
func (s *Seats) regionsThatCounted() (ids []event.RegionID, fenced map[event.RegionID]bool) {
	fenced = make(map[event.RegionID]bool)
	regions := s.client.Tokens().Regions
	for _, r := range s.cfg.Topology.Others(s.cfg.Region) {
		switch regions[r.Name].Record.State {
		case ownership.RegionRetired, ownership.RegionReturned:
			continue
		case ownership.RegionFenced:
			fenced[r.ID] = true
		}
		ids = append(ids, r.ID)
	}
	return ids, fenced
}
