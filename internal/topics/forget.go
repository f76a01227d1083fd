package topics

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// MayForget says whether there is something to forget of a local topic that was deleted:
// nil, or an error that wraps gateway.ErrNotForgotten with the reason.
func (c *Catalogue) MayForget(ctx context.Context, name string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", gateway.ErrNotForgotten, fmt.Sprintf(format, args...))
	}
	if router.Internal(name) || router.CheckTopic(name) != nil {
		return refuse("%q is no name of a local topic", name)
	}
	for _, d := range c.policy.Declared() {
		if d.Topic == name {
			return refuse("the ownership policy declares topic %s, so it is made again at the next start; take it out of the policy first", name)
		}
	}
	if err := c.Refresh(ctx); err != nil {
		return err
	}
	if _, exists := c.ID(name); exists {
		return refuse("topic %s exists; delete it first, if nobody needs its records any more", name)
	}
	if _, _, err := c.registry.Registered(ctx, name, event.TopicID{}); err != nil { // reads to the end
		return err
	}
	if len(c.derivedFrom(name)) == 0 {
		return refuse("nothing is known of a topic %s", name)
	}
	return nil
}

// derivedFrom are the records of what was derived from a topic.
func (c *Catalogue) derivedFrom(name string) (out []control.Topic) {
	for _, x := range c.follower.Topics() {
		if x.Kind == control.KindDerived && x.Of == name {
			out = append(out, x)
		}
	}
	return out
}

// Forget deletes what was derived from a local topic that was deleted, and gives the names.
// It may be called again after an error. No seat of the topic may run.
func (c *Catalogue) Forget(ctx context.Context, name string) (deleted []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	for _, x := range c.derivedFrom(name) {
		resp, err := c.admin.DeleteTopic(ctx, x.Name)
		if err == nil {
			err = resp.Err
		}
		if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return deleted, fmt.Errorf("delete topic %s: %w", x.Name, err)
		}
		if err := control.Deregister(ctx, c.client, x); err != nil {
			return deleted, err
		}
		deleted = append(deleted, x.Name)
	}
	c.mu.Lock()
	for of := range c.derived {
		if of.name == name {
			delete(c.derived, of)
		}
	}
	delete(c.blocked, name)
	delete(c.local, name)
	c.mu.Unlock()
	c.log.Info("forgot a deleted topic", "topic", name, "deleted", deleted)
	return deleted, c.Refresh(ctx)
}
