package world

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/client"
)

// Status asks the region's newest instance how it is.
func (r *Region) Status(ctx context.Context) (s gateway.Status, err error) {
	if err := r.last().Manage(ctx, "/v1/status", &s); err != nil {
		return s, fmt.Errorf("read status of %s: %w", r.Name, err)
	}
	return s, nil
}

// Topics asks the region's newest instance about its topics.
func (r *Region) Topics(ctx context.Context) (map[string]gateway.TopicEntry, error) {
	var list gateway.TopicList
	if err := r.last().Manage(ctx, "/v1/topics", &list); err != nil {
		return nil, fmt.Errorf("list topics of %s: %w", r.Name, err)
	}
	out := make(map[string]gateway.TopicEntry, len(list.Topics))
	for _, t := range list.Topics {
		out[t.Name] = t
	}
	return out, nil
}

// Committed is how far the region's merged view of a topic has folded each
// origin's log, by partition. A cursor at the end of the view says it.
func (r *Region) Committed(ctx context.Context, topic string) (map[int32]event.Vector, error) {
	p, err := r.Page(ctx, topic, "merged", "latest", 1)
	if err != nil {
		return nil, fmt.Errorf("read end of %s in %s: %w", topic, r.Name, err)
	}
	c, err := event.ParseCursor(p.Next)
	if err != nil {
		return nil, err
	}
	const parts = 1 << 30 // entries above are a region's own place in its merged topic
	out := make(map[int32]event.Vector)
	for p, v := range c.At {
		if p < parts {
			out[p] = v
		}
	}
	return out, nil
}

// AwaitSettled waits until every region has folded all that is in the declared
// topics, and those named besides, of every region, and no link lags. It returns
// what is missing when ctx ends first.
func (w *World) AwaitSettled(ctx context.Context, topics ...string) error {
	policy, err := ownership.LoadPolicy(w.policy)
	if err != nil {
		return err
	}
	for _, d := range policy.Declared() {
		topics = append(topics, d.Topic)
	}
	return client.Poll(ctx, pollEvery, func() error {
		for _, topic := range topics {
			if err := w.settled(ctx, topic); err != nil {
				return err
			}
		}
		for _, r := range w.regions {
			if err := r.idle(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// Settle is AwaitSettled within the usual patience; it fails the test.
func (w *World) Settle(topics ...string) {
	w.t.Helper()
	ctx, cancel := w.context()
	defer cancel()
	if err := w.AwaitSettled(ctx, topics...); err != nil {
		w.t.Fatalf("the world does not settle: %v", err)
	}
}

// settled tells what of a topic some region has not folded.
func (w *World) settled(ctx context.Context, topic string) error {
	want := make(map[int32]event.Vector)
	for _, r := range w.regions {
		ends, err := r.admin.ListEndOffsets(ctx, topic)
		if err := errors.Join(err, ends.Error()); err != nil {
			return fmt.Errorf("list ends of %s in %s: %w", topic, r.Name, err)
		}
		ends.Each(func(o kadm.ListedOffset) {
			v := want[o.Partition]
			v[r.ID].Next = o.Offset
			want[o.Partition] = v
		})
	}
	for _, r := range w.regions {
		have, err := r.Committed(ctx, topic)
		if err != nil {
			return err
		}
		for p, v := range want {
			if at := have[p]; at != v {
				return fmt.Errorf("%s has folded %s of partition %d of %s, the logs end at %s", r.Name, show(w, &at), p, topic, show(w, &v))
			}
		}
	}
	return nil
}

// show is a vector for people.
func show(w *World, v *event.Vector) string {
	text := ""
	for _, r := range w.regions {
		text += fmt.Sprintf(" %s:%d/%d", r.Name, v[r.ID].Incarnation, v[r.ID].Next)
	}
	return text
}

// idle tells why the region's links are not at the end of what they carry.
func (r *Region) idle(ctx context.Context) error {
	if r.w.options.Unlinked {
		return nil
	}
	s, err := r.Status(ctx)
	if err != nil {
		return err
	}
	found := 0
	for _, l := range s.Links {
		if l.From != r.Name {
			continue
		}
		found++
		switch {
		case l.State != "running" || len(l.Parked) > 0:
			return fmt.Errorf("link %s is %s, parked %v", l.Name, l.State, l.Parked)
		case l.LagRecords == nil || l.LagSeconds == nil:
			return fmt.Errorf("link %s does not know its lag", l.Name)
		case *l.LagRecords != 0:
			return fmt.Errorf("link %s lags by %d records", l.Name, *l.LagRecords)
		}
	}
	if found != len(r.w.regions)-1 {
		return fmt.Errorf("status of %s names %d links from it", r.Name, found)
	}
	return nil
}
