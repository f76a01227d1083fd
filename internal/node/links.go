package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/replicate"
)

// linkRun is one link of the instance with what status remembers of it.
type linkRun struct {
	*replicate.Link
	name string

	mu     sync.Mutex
	since  map[gateway.ParkedStatus]time.Time      // of what is parked now, with a zero Since
	unread map[txn.TopicPartition]replicate.Unread // as far as it was known last
}

// Run runs the link. A link that another instance has taken over means that this
// one has been replaced; every other final error is one of configuration.
func (l *linkRun) Run(ctx context.Context) error {
	err := l.Link.Run(ctx)
	if errors.Is(err, replicate.ErrTakenOver) || errors.Is(err, replicate.ErrGeneration) {
		return fmt.Errorf("link %s: %w: %w", l.name, ErrSuperseded, err)
	}
	if errors.Is(err, replicate.ErrSameCluster) || errors.Is(err, replicate.ErrSettings) {
		return fmt.Errorf("link %s: %w: %w", l.name, ErrRefused, err)
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", l.name, err)
	}
	return nil
}

// status is the link as the management API shows it.
func (l *linkRun) status(now time.Time) gateway.LinkStatus {
	s := l.Status()
	st := gateway.LinkStatus{
		Name: s.Name, From: s.From, To: s.To, State: string(s.State), Topics: s.Topics,
		LagRecords: s.LagRecords, LagSeconds: s.LagSeconds,
		Copied: uint64(s.Copied), ControlRecords: uint64(s.ControlRecords), PassedBatches: uint64(s.Passed), OpenedBatches: uint64(s.Opened), Denied: uint64(s.Denied),
		Orphans: uint64(s.Orphans),
	}
	for _, x := range s.Stopped {
		st.Stopped = append(st.Stopped, gateway.StoppedStatus{Topic: x.Topic, Partition: x.Partition, Unit: x.Unit, Offset: x.Offset, Reason: x.Reason})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	parked := make(map[gateway.ParkedStatus]time.Time)
	for _, p := range s.Parked {
		k := gateway.ParkedStatus{Topic: p.Topic, Partition: p.Partition, Reason: p.Reason}
		since, ok := l.since[k]
		if !ok {
			since = now
		}
		parked[k] = since
		k.Since = gateway.Time(since)
		st.Parked = append(st.Parked, k)
	}
	l.since = parked
	return st
}

// Warnings implements warner.
func (l *linkRun) Warnings(out *warning.List) {
	s := l.Status()
	if s.Error != "" {
		out.Add(warning.LinkFailed, l.name, "%s", s.Error)
	}
	if s.Cause != nil && connect.KindOf(s.Cause) == connect.NotAuthorized {
		out.Add(warning.KafkaAuthorization, l.name, "%s", connect.Explain(s.Cause, "link "+l.name))
	}
	for _, p := range s.Parked {
		out.Add(warning.LinkParked, fmt.Sprintf("%s %s/%d", l.name, p.Topic, p.Partition), "%s", p.Reason)
	}
	rulings, idle := l.Topics()
	for _, r := range rulings {
		if r.Blocked {
			out.Add(warning.TopicBlocked, l.name+" "+r.Topic, "the link does not copy the topic: %s", r.Reason)
		}
	}
	for _, r := range rulings {
		if r.KeepsAll != "" {
			out.Add(warning.CopyKeepsAll, l.name+" "+r.Topic, "the topic is compacted, its copy %s keeps all records: %s", r.Remote, r.KeepsAll)
		}
	}
	for _, p := range idle {
		out.Add(warning.PatternUnmatched, l.name, "pattern %q matches no topic", p)
	}
}

// addUnread adds what the link still has to read of the region's own topics. While it cannot
// find out how far it has copied, it has copied what it knew last, or more.
func (l *linkRun) addUnread(out map[txn.TopicPartition][]retention.Need) {
	now, failing := l.Unread(), l.Status().Error != ""
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.unread
	l.unread = make(map[txn.TopicPartition]replicate.Unread)
	for _, x := range now {
		p := txn.TopicPartition{Topic: x.Topic, Partition: x.Partition}
		if old, ok := before[p]; !x.Known && ok {
			x = old
		}
		l.unread[p] = x
	}
	for p, x := range before {
		if _, listed := l.unread[p]; !listed && failing {
			l.unread[p] = x
		}
	}
	for p, x := range l.unread {
		if x.Known {
			out[p] = append(out[p], retention.Need{Reader: "link " + l.name, Next: x.Next, Until: x.Until})
		}
	}
}

// topic is what the link does with a local topic, and why.
func (l *linkRun) topic(name string) gateway.TopicLink {
	rulings, _ := l.Topics()
	for _, r := range rulings {
		if r.Topic != name {
			continue
		}
		state := "excluded"
		switch {
		case r.Blocked:
			state = "blocked"
		case r.Denied:
			state = "denied"
		case r.Carried:
			state = "included"
		}
		return gateway.TopicLink{Link: l.name, State: state, Rule: r.Reason}
	}
	return gateway.TopicLink{Link: l.name, State: "excluded", Rule: "not looked at yet"}
}
