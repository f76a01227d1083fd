package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// sourceView is what a feed reads: a Kafka topic, which of its records a reader
// sees, and the reader's cursor after each.
type sourceView interface {
	// topic is the Kafka topic that is read; "" while there is none.
	topic() string
	// derived tells whether the region's own fold writes the topic.
	derived() bool
	// start is the first offset to read of each partition, given what its log
	// has. Partitions without a start are not read.
	start(ctx context.Context, logs map[int32]span) (map[int32]int64, error)
	// beforeListing is called before the ends are listed: only what was complete by
	// then may be claimed by the cursor once those ends are reached.
	beforeListing()
	// written gives the offsets below which each partition was written when
	// beforeListing was called. A commit is answered before its marker lies in the
	// log, so the ends that are listed may lie below.
	written() map[int32]int64
	// reached is called when a partition was read below next.
	reached(partition int32, next int64)
	// show takes the next record of a partition and appends it to dst, without the
	// brace that closes it; shown is false if the reader does not see it. After
	// errUndecided the same record is given again. The record is valid during the call.
	show(ctx context.Context, rec *txn.Entry, dst []byte) (out []byte, shown bool, err error)
	// lacks are the partitions that a reader does not see, or not all of what was read
	// of them, in ascending order.
	lacks() []int32
	// appendCursor appends the place after all records that show has taken.
	appendCursor(dst []byte) []byte
	// close is called once, when nothing more is read.
	close()
}

// applied waits until this region has applied what a token, if there is one, has
// seen. It gives the topic as it is then.
func (s *Server) applied(ctx context.Context, t Topic, token *event.Token, wait time.Duration) (Topic, error) {
	if token == nil {
		return t, nil
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	t, known, err := s.spanning(within, t, token.Partition)
	switch {
	case err != nil:
		return t, err
	case !known:
		return t, invalid(codeMalformed, atHeader(headerToken, "the token names partition %d, the topic has %d", token.Partition, t.ViewPartitions()))
	}
	st, err := s.seats.open(ctx, t, token.Partition)
	if err != nil {
		return t, err
	}
	return t, await(within, st.View(), token.Vector)
}

// maxPartition is more than Kafka numbers partitions to.
const maxPartition = 1 << 20

// spanning waits until the view of an events topic has a partition: another region's log
// may have one that nothing is known of here yet. known is false if no view of the topic
// can ever have it.
func (s *Server) spanning(ctx context.Context, t Topic, partition int32) (_ Topic, known bool, err error) {
	for partition >= t.ViewPartitions() {
		if t.Domain.Kind != conflict.Events || partition >= maxPartition {
			return t, false, nil
		}
		if pause(ctx, retryEvery, nil) != nil {
			return t, true, fmt.Errorf("partition %d is not known here yet: %w", partition, errStale)
		}
		now, err := s.deps.Topics.Topic(ctx, t.Name)
		if err != nil {
			return t, true, err
		}
		t = now
	}
	return t, true, nil
}

// await waits until a view covers a vector; a wait of nothing asks once.
func await(ctx context.Context, view View, v event.Vector) error {
	if have, _ := view.Committed(); have.CoversAll(&v) {
		return nil
	}
	return view.Wait(ctx, v)
}

// openView opens the view that a read asks for, once this region has applied
// what the client has seen: its token, and its cursor.
func (s *Server) openView(ctx context.Context, rd *reading) (*feed, error) {
	t, err := s.deps.Topics.Topic(ctx, rd.topic)
	if err != nil {
		return nil, err
	}
	if t, err = s.applied(ctx, t, rd.token, rd.stale); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, rd.stale)
	defer cancel()
	for p := range rd.from.cursor.At {
		if rd.view != event.MergedView || p >= placeBit {
			continue
		}
		now, known, err := s.spanning(wait, t, p)
		switch {
		case err != nil:
			return nil, err
		case !known:
			return nil, invalidCursor("it names partition %d, the topic has %d", p, t.ViewPartitions())
		}
		t = now
	}
	for {
		changed := s.deps.Logs.Changed()
		j, err := s.recordView(ctx, wait, t, rd)
		if err != nil {
			return nil, err
		}
		// Listing is not what the client's patience is for.
		f, err := s.newFeed(ctx, j, rd)
		if !errors.Is(err, errStale) {
			return f, err
		}
		if pause(wait, retryEvery, changed) != nil {
			return nil, err
		}
	}
}

// recordView makes a view of a topic's records. wait bounds the wait for the
// merged view to cover the cursor.
func (s *Server) recordView(ctx, wait context.Context, t Topic, rd *reading) (sourceView, error) {
	switch {
	case rd.view == event.MergedView:
		return s.newMerged(ctx, wait, t, rd.from)
	case rd.view == event.OriginView(s.cfg.Region):
		return s.newOwnLog(t, rd.from), nil
	}
	return s.newRemoteLog(t, event.RegionID(rd.view), rd.from), nil
}

// validity judges the records of a read by the newest intervals that are known of
// the ownership register. It belongs to one read.
type validity struct {
	s      *Server
	topic  string
	tables map[int32]*event.ValidityTable
}

func (s *Server) newValidity(topic string) validity {
	return validity{s: s, topic: topic, tables: make(map[int32]*event.ValidityTable)}
}

// refresh drops the tables, so that the next records ask for new ones.
func (c *validity) refresh() { clear(c.tables) }

// judge judges a record. If the table at hand cannot tell yet, the newest one is
// asked before the reader has to wait.
func (c *validity) judge(ev *event.Event) event.Judgement {
	if c.s.deps.Ownership == nil {
		return event.Authoritative
	}
	p := ev.At.Partition
	table, known := c.tables[p]
	if known {
		if judgement := table.Judge(ev.At, ev.Epoch); judgement != event.Unsettled {
			return judgement
		}
	}
	table = c.s.deps.Ownership.Intervals(c.topic, p)
	c.tables[p] = table
	return table.Judge(ev.At, ev.Epoch)
}
