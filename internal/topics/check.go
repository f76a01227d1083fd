package topics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// ErrRefused is wrapped by errors that say that the instance must not run as the
// cluster and the configuration are; it has changed nothing that matters.
var ErrRefused = errors.New("start refused")

// errMismatch says that a topic exists and is not as it must be.
var errMismatch = errors.New("mismatch")

// Refusal gives an error that only an operator can mend, so that trying again is in
// vain, as one that wraps ErrRefused; it is nil for any other error.
func Refusal(err error) error {
	switch {
	case errors.Is(err, ErrRefused):
		return err
	case errors.Is(err, errMismatch), errors.Is(err, gateway.ErrTopicBlocked):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// check refuses a topic that exists and is not as it must be.
func (c *Catalogue) check(ctx context.Context, s spec) error {
	all, err := c.admin.ListTopics(ctx, s.name)
	if err != nil {
		return fmt.Errorf("check topic %s: %w", s.name, err)
	}
	if n := len(all[s.name].Partitions); n != 0 && n != int(s.partitions) && !(s.mayHave && n > int(s.partitions)) {
		return fmt.Errorf("check topic %s: %w: it has %d partitions and must have %d, as in every region; recreate it or correct the policy", s.name, errMismatch, n, s.partitions)
	}
	cleanup, err := c.cleanup(ctx, s.name)
	if err != nil {
		return err
	}
	if strings.Contains(cleanup, compacted) != (s.cleanup == compacted) {
		return fmt.Errorf("check topic %s: %w: cleanup.policy is %s and must be %s", s.name, errMismatch, cleanup, s.cleanup)
	}
	return nil
}

func (c *Catalogue) cleanup(ctx context.Context, name string) (string, error) {
	policy, err := c.config(ctx, name, "cleanup.policy")
	return cmp.Or(policy, deleted), err
}

// config is a setting of a topic, "" if the broker does not say.
func (c *Catalogue) config(ctx context.Context, name, key string) (string, error) {
	configs, err := c.configs(ctx, name)
	return configs[key], err
}

// checkRetention refuses a topic that forgets records sooner than idempotency keys:
// a rebuilt index would take a retry for a new write.
func (c *Catalogue) checkRetention(ctx context.Context, name string) error {
	text, err := c.config(ctx, name, "retention.ms")
	if err != nil {
		return err
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || time.Duration(ms) >= c.window/time.Millisecond {
		return nil // no number, or none that is too small
	}
	return fmt.Errorf("check topic %s: %w: retention.ms is %d, below the idempotency window of %s; raise it or lower idempotency.window", name, ErrRefused, ms, c.window)
}

// checkKind refuses a topic whose kind is not the one that it was first used with:
// what was derived from it has the other kind's form. The merged topic tells, for
// only that of entities is compacted.
func (c *Catalogue) checkKind(ctx context.Context, topic gateway.Topic) error {
	merged := router.Merged(topic.Name)
	all, err := c.admin.ListTopics(ctx, merged)
	if err != nil {
		return fmt.Errorf("look up topic %s: %w", merged, err)
	}
	if !all.Has(merged) {
		return nil
	}
	x, ok, err := c.registry.Registered(ctx, merged, event.TopicID(all[merged].ID))
	if err != nil || !ok || x.Kind != control.KindDerived || x.Of != topic.Name {
		return err // whatever has the name is the next one's trouble
	}
	cleanup, err := c.cleanup(ctx, merged)
	if err != nil {
		return err
	}
	was := conflict.Events
	if strings.Contains(cleanup, compacted) {
		was = conflict.Entities
	}
	if was == topic.Domain.Kind {
		return nil
	}
	return fmt.Errorf("check topic %s: %w: it was of kind %s before (cleanup.policy of %s is %s) and the policy now says %s; a topic's kind cannot change: use a new topic",
		topic.Name, errMismatch, was, merged, cleanup, topic.Domain.Kind)
}
