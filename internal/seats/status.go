package seats

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

// Warnings says what an operator should know of the seats, in the order of topics and
// partitions.
func (s *Seats) Warnings(out *warning.List) {
	s.mu.Lock()
	unopened := maps.Clone(s.unopened)
	s.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(unopened)) {
		out.Add(warning.TopicBlocked, topic, "its partitions are not all open: %v", unopened[topic])
	}
	s.warnOfExpiry(out)
	for _, h := range s.list() {
		st, subject := h.seat.Status(), name(h.TopicPartition)
		s.warnOfTrouble(out, h, &st)
		for _, r := range slices.Sorted(maps.Keys(st.Held)) {
			wait := st.Held[r]
			what := "held for " + wait.Round(time.Millisecond).String()
			if wait > time.Hour {
				what = "not applied" // too far ahead to wait for
			}
			out.Add(warning.ClockAhead, subject, "events of %s are %s, their stamps are ahead of the wall clock", s.cfg.Topology.Name(r), what)
		}
		for _, r := range slices.Sorted(maps.Keys(st.Unsettled)) {
			out.Add(warning.WaitsForRegister, subject, "%s", s.unsettled(h.TopicPartition, r, st.Unsettled[r]))
		}
		for _, r := range slices.Sorted(maps.Keys(st.Unread)) {
			out.Add(warning.ViewIncomplete, subject, "views lack records of %s, whose copy cannot be read: %s", s.cfg.Topology.Name(r), st.Unread[r])
		}
		if st.CutPending != "" {
			out.Add(warning.CutPending, subject, "a cut in the ownership register is not in force here yet: %s", st.CutPending)
		}
		for _, topic := range slices.Sorted(maps.Keys(st.Refused)) {
			x := st.Refused[topic]
			out.Add(warning.BeyondLimits, fmt.Sprintf("%s/%d", topic, h.Partition),
				"%d batches or records are in no view, the latest at offsets %d to %d: %v", x.Entries, x.From, x.Until-1, x.Err)
		}
		if n := st.Quarantined - min(st.Quarantined, uint64(st.Refused[h.Topic].Entries)); n > 0 {
			why := "they carry headers of a gateway that are not valid"
			if s.cfg.Policy.Domain(h.Topic).Kind == conflict.Entities {
				why = "only a gateway may write a topic of entities, see the metric geogate_fold_quarantined_total for the reasons"
			}
			out.Add(warning.Quarantined, subject, "%d local records are in no view: %s", n, why)
		}
		s.warnOfReplaced(out, h)
		if v := h.view.Status(); v.NativeOrphans > 0 {
			unit := s.cfg.Policy.Domain(h.Topic).Unit(s.cfg.Region)
			out.Add(warning.NativeOrphans, subject, "%d records that came without a gateway while %s was fenced are in no view, the latest at offset %d: list them with geogate owner orphans %s and write again, through a gateway, what is worth keeping",
				v.NativeOrphans, unit, v.NativeOrphan.Offset, unit)
		}
		if st.Foreign > 0 {
			out.Add(warning.ForeignRecords, subject, "%d records in remote topics that no link wrote are quarantined", st.Foreign)
		}
	}
}

// warnOfTrouble says why a partition takes no writes or does not fold. That the
// instance drains, or that the region may not write the unit, is not the partition's.
func (s *Seats) warnOfTrouble(out *warning.List, h *runningSeat, st *seat.Status) {
	t, subject := s.trouble(h.TopicPartition), name(h.TopicPartition)
	if t.held {
		out.Add(warning.PartitionHeld, subject, "the partition is stopped until the instance starts again: %v", t.err)
		return
	}
	again := ""
	if t.count > 0 && (!st.Ready || time.Since(t.at) < isRecent) {
		again = fmt.Sprintf("it was started again %d times, the last time because of: %v", t.count, t.err)
	}
	refused := !h.noLog && errors.Is(h.seat.Admits(), seat.ErrNotReady)
	switch {
	case again != "":
		out.Add(warning.PartitionNotReady, subject, "%s", again)
	case st.Waiting != "":
		out.Add(warning.PartitionNotReady, subject, "no write is stored: %s", st.Waiting)
	case refused && !st.Ready:
		out.Add(warning.PartitionNotReady, subject, "the partition's log is still being read")
	case refused:
		out.Add(warning.PartitionNotReady, subject, "the partition waits for what an earlier owner has written, or for the ownership register")
	case !h.noLog && st.Ready && h.keysUnread():
		out.Add(warning.PartitionNotReady, subject, "writes with an idempotency key are refused until the index of keys has read all that the views have: its store was lost, or it cannot read a copy of another region's log")
	}
	folded := h.view.Status()
	if f := folded.Failing; f != "" {
		out.Add(warning.FoldFailing, subject, "the fold is tried again after: %s", f)
	}
	if why := folded.Unmoved; why != "" {
		out.Add(warning.BaseUnmoved, subject, "%s: a value that the state has to have cannot be read from a log, so the logs are needed from an earlier offset on, and what lies above is kept. It is tried again; do not shorten the retention of the topic and its copies", why)
	}
}

// keysUnread tells whether the index of keys has not read all that is folded.
func (h *runningSeat) keysUnread() bool {
	committed, _ := h.view.Committed() // first: the index is ahead of it
	indexed := h.index.Applied()
	return !indexed.CoversAll(&committed)
}

// warnOfReplaced says which derived topics hold pointers to the log in place of records.
func (s *Seats) warnOfReplaced(out *warning.List, h *runningSeat) {
	all := h.view.Status().Replaced
	for _, topic := range slices.Sorted(maps.Keys(all)) {
		r := all[topic]
		where := "which is not known any more"
		if log, offset, err := h.fetch.place(r.At); err == nil {
			where = fmt.Sprintf("in %s/%d at offset %d", log, h.Partition, offset)
		}
		out.Add(warning.OutputReplaced, name(h.TopicPartition), "%s has pointers to the log in place of %d records since the start, the latest for event %s, %s: %s",
			topic, r.Count, r.At.Format(s.cfg.Topology), where, whyReplaced(topic, r.Code))
	}
}

// whyReplaced says why a topic has no record, and what to do about it.
func whyReplaced(topic string, code int16) string {
	switch code {
	case 0:
		return "the value was in no log of the region any more"
	case kerr.InvalidTimestamp.Code:
		return fmt.Sprintf("it refused the time (INVALID_TIMESTAMP); raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of %s", topic)
	case kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code:
		return fmt.Sprintf("it refused the size (%s); raise max.message.bytes of %s", refusalName(code), topic)
	}
	return fmt.Sprintf("it refused the record (%s); see the broker's log", refusalName(code))
}

// refusalName is Kafka's name of an error code, for warnings and metrics.
func refusalName(code int16) string {
	if err := kerr.TypedErrorForCode(code); err != nil {
		return err.Message
	}
	return "NONE"
}

// unsettled says why the fold does not go on with an origin's log.
func (s *Seats) unsettled(at txn.TopicPartition, r event.RegionID, epoch event.Epoch) string {
	table, name := s.tables.Table(at.Topic, at.Partition), s.cfg.Topology.Name(r)
	unit := s.cfg.Policy.Domain(at.Topic).Unit(name)
	switch {
	case table != nil && table.Revision == 0:
		return "nothing is folded before the ownership register is known"
	case epoch == 0 && table != nil && len(table.Logs[r].List) > 0:
		return fmt.Sprintf("records without a gateway's headers were written in %s past the cut of %s, which nobody owns: they are in no view, and will be orphans once %s owns it again; stop their producers, or have them write through a gateway",
			name, unit, name)
	case epoch == 0:
		return fmt.Sprintf("events of %s wait until %s owns %s: a record without a gateway's headers lies where it never has",
			name, name, unit)
	}
	return fmt.Sprintf("events of %s wait for the ownership register: they carry epoch %d of %s, which is not known here",
		name, epoch, unit)
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
