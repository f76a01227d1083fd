package seat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/txn"
)

// errOverrun ends a seat whose own log was deleted faster than it was read.
var errOverrun = errors.New("records of the log were deleted before they were read")

// missing is InputsSurroundings.Missing.
func (s *Seat) missing(kind incident.Kind, log event.TopicID, from, until int64) (int64, int64) {
	if s.cfg.Incidents == nil {
		return from, until
	}
	return s.cfg.Incidents.Missing(incident.Place{Kind: kind, Log: log, Partition: s.cfg.Partition, From: from}, until)
}

// report records an incident: a log has lost records of an origin.
func (s *Seat) report(kind incident.Kind, p txn.TopicPartition, origin event.RegionID, log event.TopicID, from, until int64) {
	if s.cfg.Incidents == nil {
		s.cfg.Logger.Error("records that are needed were deleted", "kind", kind, "topic", p.Topic, "partition", p.Partition, "from", from, "until", until)
		return
	}
	s.cfg.Incidents.Report(incident.Incident{
		Place: incident.Place{Kind: kind, Log: log, Partition: p.Partition, From: from},
		Topic: s.cfg.Topic, Name: p.Topic, Origin: origin, Until: until, Found: s.cfg.Wall(),
	})
}

// reportKeys records an incident: a log has lost records that the index of keys lacks. It
// records none if they are older than the idempotency window: because the first record that
// is left is older, or because the fold has had them all and its last stamp is older.
func (s *Seat) reportKeys(ctx context.Context, p txn.TopicPartition, origin event.RegionID, log event.TopicID, from, until int64) error {
	oldest := s.cfg.Wall().Add(-s.cfg.Window).UnixMilli()
	if s.cfg.LastStamp != nil && s.foldedAll(origin, p, until) && s.cfg.LastStamp().Time().UnixMilli() < oldest {
		return nil
	}
	at, err := offsetOf(ctx, p, func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
		return s.cfg.Tail.inputs.admin.ListOffsetsAfterMilli(ctx, oldest, topics...)
	})
	if err != nil {
		return fmt.Errorf("list the first record of %s/%d within the idempotency window: %w", p.Topic, p.Partition, err)
	}
	first, err := s.firstRecord(ctx, p)
	if err != nil {
		return err
	}
	// If the first record that is left is older than the window, so are those before it.
	if first >= 0 && (at < 0 || first < at) {
		return nil
	}
	s.report(incident.Keys, p, origin, log, from, until)
	return nil
}

// foldedAll tells whether the fold has had everything of an origin's log below an offset of
// the partition that it is read from.
func (s *Seat) foldedAll(origin event.RegionID, p txn.TopicPartition, until int64) bool {
	committed, _ := s.cfg.Folder.Committed()
	if origin == s.cfg.Region {
		return offsetIn(committed[origin], s.incarnation) >= until
	}
	topic, ok := s.cfg.Control.Remote(origin, s.cfg.Topic)
	if !ok || topic.Name != p.Topic {
		return false
	}
	cov, ok := s.cfg.Control.Covered(origin, topic.ID, s.cfg.Partition)
	if ok && committed[origin].Compare(cov.Source) >= 0 {
		return cov.Target >= until
	}
	t, ok := s.cfg.Control.TargetOffsetFrom(origin, topic.ID, s.cfg.Partition, committed[origin].Incarnation, committed[origin].Next)
	return ok && t >= until
}

// firstRecord is the offset of the first record that a log has left, -1 if there is none.
func (s *Seat) firstRecord(ctx context.Context, p txn.TopicPartition) (int64, error) {
	at, err := offsetOf(ctx, p, func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
		return s.cfg.Tail.inputs.admin.ListOffsetsAfterMilli(ctx, 0, topics...)
	})
	if err != nil {
		return 0, fmt.Errorf("list the first record of %s/%d: %w", p.Topic, p.Partition, err)
	}
	_, end, err := s.cfg.Tail.inputs.bounds(ctx, p)
	if err != nil {
		return 0, err
	}
	if at >= end {
		return -1, nil
	}
	return at, nil
}

// checkEnd returns an error while the own log lacks records at its end that were read before,
// and while an incident that says so is open: what was written there since is not what was
// there. known is how far the log was read.
func (s *Seat) checkEnd(ctx context.Context, end, known int64) error {
	if s.cfg.NoLog {
		return nil
	}
	p := s.cfg.topicPartition()
	var x *incident.Entry
	if s.cfg.Incidents != nil {
		x = s.cfg.Incidents.Truncated(s.cfg.ID, s.cfg.Partition)
	}
	switch {
	case x != nil:
		return fmt.Errorf("the log has lost its end, offsets %d to %d, which were read before: geogate incident show %s says what to do", x.From, x.Until-1, x.ID())
	case end >= known:
		return nil
	}
	// The high watermark alone may lag behind the log for a while after a broker's start.
	last, err := s.cfg.Tail.local.lastOffset(ctx, p)
	switch {
	case err != nil:
		return fmt.Errorf("the log ends at %d and was read to %d: %w", end, known, err)
	case last >= known:
		return fmt.Errorf("the log ends at %d and was read to %d; its high watermark is not there yet", end, known)
	}
	from, until := s.missing(incident.Truncated, s.cfg.ID, last, known)
	if from >= until {
		return fmt.Errorf("the log ends at %d and was read to %d; that is accepted, and the partition goes on once the log ends there again", last, known)
	}
	s.report(incident.Truncated, p, s.cfg.Region, s.cfg.ID, from, until)
	return fmt.Errorf("the log ends at %d and was read to %d: records are lost; see geogate incident list", last, known)
}

// keysLost is Surroundings.KeysLost.
func (s *Seat) keysLost() bool {
	return s.cfg.Incidents != nil && s.cfg.Incidents.KeysLost(s.cfg.Topic, s.cfg.Partition) != nil
}

// reportGap carries out a ReportGap.
func (in *inputs) reportGap(ctx context.Context, e ReportGap) error {
	s := in.seat
	p := s.cfg.topicPartition()
	if e.Origin != s.cfg.Region {
		b := in.remote[e.Origin]
		if b == nil || b.topic.ID != e.Log {
			return nil // it is not open any more
		}
		p = b.TopicPartition
	}
	if e.Kind != incident.Keys {
		s.report(e.Kind, p, e.Origin, e.Log, e.From, e.Until)
		return nil
	}
	err := s.reportKeys(ctx, p, e.Origin, e.Log, e.From, e.Until)
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("cannot find out how old deleted records are; their idempotency keys are taken to be within the window",
			"topic", p.Topic, "partition", p.Partition, "err", err)
		s.report(e.Kind, p, e.Origin, e.Log, e.From, e.Until)
		err = nil
	}
	return err
}

// reportDeleted records an incident, and returns an error, if a log has lost records that
// may have to be taken out again and nobody has accepted that.
func (in *inputs) reportDeleted(e ReadAgain, log event.TopicID, p txn.TopicPartition, first int64) error {
	need, until := in.seat.missing(incident.Cut, log, e.Needed, min(first, e.To))
	if need < until {
		in.seat.report(incident.Cut, p, e.Origin, log, need, until)
		return fmt.Errorf("offsets %d to %d of %s/%d were deleted, see geogate incident list", need, until-1, p.Topic, p.Partition)
	}
	return nil
}

// followLoss opens logs again to see where they begin now: those whose next records were
// deleted before they were fetched, and those with a gap, which grows while retention goes on.
func (in *inputs) followLoss(ctx context.Context) error {
	s := in.seat
	gaps := in.core.Gaps()
	again := len(gaps) > 0 && time.Since(in.listed) >= lookEvery
	if again {
		in.listed = time.Now()
	}
	if _, held := gaps[s.cfg.Region]; held && again || in.local != nil && in.local.ended() && in.core.Wants(s.cfg.Region) {
		in.closeLocal()
		if err := in.beginLocal(ctx); err != nil { // it comes here again
			s.cfg.Logger.Debug("cannot find out where a log begins; will try again", "topic", s.cfg.Topic, "partition", s.cfg.Partition, "err", err)
		}
	}
	for r, b := range in.remote {
		_, held := gaps[r]
		if held = held && again; !held && !(b.ended() && in.core.Wants(r)) {
			continue
		}
		if held {
			first, _, err := s.cfg.Tail.inputs.bounds(ctx, b.TopicPartition)
			if err != nil || first <= gaps[r].Until {
				continue // it is looked at again
			}
		}
		b.close()
		delete(in.remote, r)
	}
	return nil
}

// errNotOpen says that a log cannot be read at the moment.
var errNotOpen = errors.New("the log is closed and will be opened again")

// epochEnd lists where a leader epoch of a remote partition ends.
func (in *inputs) epochEnd(ctx context.Context, e AskEpochEnd) EpochEnd {
	b := in.remote[e.Origin]
	if b == nil { // closed, to be opened again
		return EpochEnd{Origin: e.Origin, Epoch: e.Epoch}
	}
	p := b.TopicPartition
	var req kadm.OffsetForLeaderEpochRequest
	req.Add(p.Topic, p.Partition, e.Epoch)
	got, err := in.seat.cfg.Tail.inputs.admin.OffsetForLeaderEpoch(ctx, req)
	at, ok := got[p.Topic][p.Partition]
	if err == nil {
		err = at.Err
	}
	if err != nil || !ok {
		in.seat.cfg.Logger.Warn("cannot list the end of a leader epoch", "topic", p.Topic, "partition", p.Partition, "epoch", e.Epoch, "err", err)
		return EpochEnd{Origin: e.Origin, Epoch: e.Epoch}
	}
	return EpochEnd{Origin: e.Origin, Epoch: e.Epoch, End: at.EndOffset, OK: true}
}
