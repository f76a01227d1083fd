package topics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
)

// Cleanup policies that topics are made with.
const (
	compacted = "compact"
	deleted   = "delete"
	// forever is deleted without an end to retention.
	forever = "delete, for ever"
)

// spec is a topic to be made or checked.
type spec struct {
	name       string
	partitions int32
	cleanup    string
	mayHave    bool              // more partitions than that
	grows      bool              // gets them where it has fewer
	configs    map[string]string // further settings
	tuned      map[string]string // settings of an internal topic that keep it short
}

// settings are what the topic is created with.
func (s spec) settings() map[string]*string {
	cleanup, none := s.cleanup, "-1"
	if s.cleanup == forever {
		cleanup = deleted
		return map[string]*string{"cleanup.policy": &cleanup, "retention.ms": &none, "retention.bytes": &none}
	}
	out := map[string]*string{"cleanup.policy": &cleanup}
	for key, value := range s.configs {
		out[key] = &value
	}
	return out
}

// internals are the topics that every instance of the region needs.
func (c *Catalogue) internals() []spec {
	out := []spec{
		{name: control.TopicControl, partitions: 1, cleanup: compacted, tuned: control.CompactedSettings(true)},
		{name: control.TopicTopics, partitions: 1, cleanup: compacted, tuned: control.CompactedSettings(false)},
		{name: control.TopicIncarnations, partitions: 1, cleanup: compacted, tuned: control.CompactedSettings(false)},
		{name: control.TopicConflicts, partitions: control.ConflictPartitions, cleanup: deleted},
	}
	if c.register {
		out = append(out,
			spec{name: mirror.OwnershipTopic, partitions: 1, cleanup: forever},
			spec{name: mirror.OwnersTopic, partitions: 1, cleanup: compacted, tuned: control.CompactedSettings(false)})
	}
	for _, r := range c.topology.Others(c.region) {
		out = append(out,
			spec{name: control.ControlFrom(r.Name), partitions: 1, cleanup: compacted, tuned: control.CompactedSettings(true)},
			spec{name: control.PositionsFrom(r.Name), partitions: control.LinkPartitions, cleanup: compacted, tuned: control.CompactedSettings(true)},
			spec{name: control.RunsFrom(r.Name), partitions: control.LinkPartitions, cleanup: compacted, tuned: control.CompactedSettings(true)},
		)
	}
	return out
}

// PrepareInternal makes the internal topics. It comes before anything reads them.
func (c *Catalogue) PrepareInternal(ctx context.Context) error {
	all := c.internals()
	if err := atOnce(len(all), func(i int) error { return c.ensure(ctx, all[i]) }); err != nil {
		return err
	}
	c.tune(ctx, all)
	return nil
}

// topicsAtOnce is how many topics are made or checked at a time.
const topicsAtOnce = 8

// atOnce does something n times, some of them at a time. The error is the first by number.
func atOnce(n int, do func(i int) error) error {
	errs := make([]error, n)
	var g errgroup.Group
	g.SetLimit(topicsAtOnce)
	for i := range n {
		g.Go(func() error { errs[i] = do(i); return nil })
	}
	_ = g.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// PrepareDeclared makes or checks the topics that the policy declares, with what
// is derived from them. It comes after the registry has been read.
func (c *Catalogue) PrepareDeclared(ctx context.Context) error {
	declared := c.policy.Declared()
	if err := atOnce(len(declared), func(i int) error { return c.prepareDeclared(ctx, declared[i]) }); err != nil {
		return err
	}
	// One list for all: a topic that was made just now is not in an older one.
	if err := c.Refresh(ctx); err != nil {
		return err
	}
	err := atOnce(len(declared), func(i int) error {
		topic, err := c.Topic(ctx, declared[i].Topic)
		if err != nil {
			return fmt.Errorf("declare topic %s: %w", declared[i].Topic, err)
		}
		return c.Derive(ctx, topic)
	})
	if err != nil {
		return err
	}
	c.prepared.Store(true)
	return nil
}

// prepareDeclared makes or checks one topic that the policy declares.
func (c *Catalogue) prepareDeclared(ctx context.Context, d ownership.Declared) error {
	x, ok, err := c.registry.Registered(ctx, d.Topic, event.TopicID{})
	switch {
	case err != nil:
		return err
	case ok:
		return fmt.Errorf("declare topic %s: %w: geogate writes a topic of that name itself (%s); declare another name", d.Topic, gateway.ErrTopicBlocked, describe(x))
	}
	s := spec{name: d.Topic, partitions: d.Partitions, cleanup: deleted, mayHave: c.policy.Domain(d.Topic).Kind == conflict.Events}
	if err := c.ensure(ctx, s); err != nil {
		return fmt.Errorf("declare topic: %w", err)
	}
	if err := c.checkRetention(ctx, d.Topic); err != nil {
		return fmt.Errorf("declare topic: %w", err)
	}
	return nil
}

// ensure makes a topic, or checks that the one that exists is as it must be.
func (c *Catalogue) ensure(ctx context.Context, s spec) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	resp, err := c.admin.CreateTopics(ctx, s.partitions, -1, s.settings(), s.name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", s.name, err)
	}
	switch err := resp[s.name].Err; {
	case err == nil:
		c.log.Info("created topic", "topic", s.name, "partitions", s.partitions)
		return c.awaitLeaders(ctx, s)
	case errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.PolicyViolation), errors.Is(err, kerr.InvalidConfig),
		errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("create topic %s: %w: the cluster refuses it: %w (%s)", s.name, gateway.ErrTopicBlocked, err, resp[s.name].ErrMessage)
	case !errors.Is(err, kerr.TopicAlreadyExists):
		return fmt.Errorf("create topic %s: %w: %w (%s)", s.name, gateway.ErrUpstream, err, resp[s.name].ErrMessage)
	}
	return c.check(ctx, s)
}

// Pauses between two questions of awaitLeaders: each is about all partitions of a topic,
// and a broker that is creating a thousand of them has no time to answer many.
const (
	firstLeaderPause = 20 * time.Millisecond
	lastLeaderPause  = time.Second
)

// awaitLeaders returns when every partition can be written.
func (c *Catalogue) awaitLeaders(ctx context.Context, s spec) error {
	for pause := firstLeaderPause; ; pause = min(2*pause, lastLeaderPause) {
		ends, err := c.admin.ListEndOffsets(ctx, s.name)
		if err == nil && len(ends[s.name]) == int(s.partitions) && ends.Error() == nil {
			return nil
		}
		if err := sleep.For(ctx, pause); err != nil {
			return fmt.Errorf("await leaders of topic %s: %w", s.name, err)
		}
	}
}

// Derive makes the state and the merged topic of a local topic, once.
func (c *Catalogue) Derive(ctx context.Context, topic gateway.Topic) error {
	of := derivedOf{topic.Name, topic.ID, topic.ViewPartitions()}
	c.mu.Lock()
	d, started := c.derived[of]
	if !started {
		d = &derivation{done: make(chan struct{})}
		c.derived[of] = d
	}
	c.mu.Unlock()
	if !started {
		d.err = c.deriveNow(ctx, topic)
		if refusal := Refusal(d.err); refusal != nil && !errors.Is(d.err, gateway.ErrTopicBlocked) {
			d.err = fmt.Errorf("%w: %w", gateway.ErrTopicBlocked, d.err)
		}
		c.mu.Lock()
		delete(c.blocked, topic.Name)
		if d.err != nil || c.ungrown[topic.Name] != "" {
			delete(c.derived, of) // the next one tries again
		}
		if d.err != nil {
			if errors.Is(d.err, gateway.ErrTopicBlocked) {
				c.blocked[topic.Name] = d.err.Error()
			}
		}
		c.mu.Unlock()
		close(d.done)
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("derive topics of %s: %w", topic.Name, ctx.Err())
	}
}

func (c *Catalogue) deriveNow(ctx context.Context, topic gateway.Topic) error {
	entities := topic.Domain.Kind == conflict.Entities
	if entities {
		cleanup, err := c.cleanup(ctx, topic.Name)
		if err != nil {
			return err
		}
		if strings.Contains(cleanup, compacted) {
			return fmt.Errorf("derive topics of %s: %w: entity topics must have cleanup.policy=delete, for compaction could keep a void record and drop a valid one; the state topic keeps what retention drops", topic.Name, gateway.ErrTopicBlocked)
		}
	}
	if err := c.checkKind(ctx, topic); err != nil {
		return err
	}
	local, err := c.configs(ctx, topic.Name)
	if err != nil {
		return err
	}
	state, merged := c.derivedSpecs(topic, local)
	c.mu.Lock()
	_, folded := c.known[state.name]
	c.mu.Unlock()
	_, recorded := c.follower.Record(merged.name)
	switch {
	case recorded:
	case folded: // or the state topic is all that came of an attempt
		if folded, err = c.hasRecords(ctx, state.name); err == nil && !folded {
			var foreign bool
			foreign, err = c.hasRecords(ctx, merged.name)
			folded = !foreign
		}
	default: // a topic that can have no merged topic gets no state topic either
		_, err = c.lookUpDerived(ctx, &merged, control.UseMerged, topic.Name, false)
	}
	if err != nil {
		return fmt.Errorf("derive topics of %s: %w", topic.Name, err)
	}
	for _, d := range []struct {
		*spec
		use control.Use
	}{
		{&state, control.UseState},
		{&merged, control.UseMerged},
	} {
		if err := c.ensureDerived(ctx, d.spec, d.use, topic, folded); err != nil {
			return fmt.Errorf("derive topics of %s: %w", topic.Name, err)
		}
	}
	if min(state.partitions, merged.partitions) == topic.ViewPartitions() {
		c.mu.Lock()
		delete(c.ungrown, topic.Name)
		c.mu.Unlock()
	}
	_, err = c.follow(ctx, topic)
	if err != nil {
		c.log.Warn("the settings of what is derived from a topic are not all as they should be", "topic", topic.Name, "err", err)
	}
	return nil
}

// derivedOf is a local topic as it was when something was derived from it: recreated,
// it may have other partitions.
type derivedOf struct {
	name       string
	id         event.TopicID
	partitions int32
}

// derivation makes a topic's derived topics once; later callers wait for it.
type derivation struct {
	done chan struct{}
	err  error
}

// hasRecords tells whether anything was written to a topic; not to one that is not there.
func (c *Catalogue) hasRecords(ctx context.Context, name string) (bool, error) {
	ends, err := c.admin.ListEndOffsets(ctx, name)
	if err == nil {
		err = ends.Error()
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the ends of topic %s: %w", name, err)
	}
	for _, end := range ends[name] {
		if end.Offset > 0 {
			return true, nil
		}
	}
	return false, nil
}

// foundDerived is what there is under the name of a derived topic.
type foundDerived struct {
	exists     bool
	id         event.TopicID
	partitions int32
	record     control.Topic // of the registry, Kind 0 if there is none
}

// lookUpDerived finds what there is under the name of a derived topic, and refuses what
// geogate may not write to. Of a topic that was folded, what bears the derived name is
// geogate's, also if its record was lost.
func (c *Catalogue) lookUpDerived(ctx context.Context, s *spec, use control.Use, of string, folded bool) (f foundDerived, err error) {
	if err := router.CheckTopic(s.name); err != nil {
		return f, fmt.Errorf("%w: %w", gateway.ErrTopicBlocked, err)
	}
	all, err := c.admin.ListTopics(ctx, s.name)
	if err != nil {
		return f, fmt.Errorf("look up topic %s: %w", s.name, err)
	}
	f.exists, f.id, f.partitions = all.Has(s.name), event.TopicID(all[s.name].ID), int32(len(all[s.name].Partitions))
	x, ok, err := c.registry.Registered(ctx, s.name, f.id)
	switch {
	case err != nil:
		return f, err
	case ok && x.Kind != 0 && (x.Kind != control.KindDerived || x.Use != use || x.Of != of):
		return f, fmt.Errorf("%w: topic %s is %s", gateway.ErrTopicBlocked, s.name, describe(x))
	case !ok && f.exists && !folded:
		return f, fmt.Errorf("%w: a local topic %s exists already, and geogate never mixes its records in; copy that topic to a new name and delete it", gateway.ErrTopicBlocked, s.name)
	}
	f.record = x
	return f, nil
}

// ensureDerived registers a derived topic before it exists, so that no link ever
// takes it for a local one, and makes it.
func (c *Catalogue) ensureDerived(ctx context.Context, s *spec, use control.Use, topic gateway.Topic, folded bool) error {
	of := topic.Name
	f, err := c.lookUpDerived(ctx, s, use, of, folded)
	if err != nil {
		return err
	}
	x := f.record
	_, recorded := c.follower.Record(s.name)
	if !recorded || x.Kind == 0 {
		x = control.Topic{Name: s.name, ID: f.id, Kind: control.KindDerived, Use: use, Of: of}
	}
	unpinned := use == control.UseState && x.Partitions == 0
	if unpinned { // before the topic grows, which told it until then
		x.Partitions = topic.Partitions
		if folded && !recorded {
			c.log.Warn("the registry has no record any more of over how many partitions keys of a topic are spread; it is as many as there are now",
				"topic", of, "partitions", x.Partitions)
		}
	}
	if !recorded || unpinned {
		if err := c.enter(ctx, x); err != nil {
			return err
		}
	}
	if unpinned {
		if err := c.awaitRecord(ctx, x); err != nil {
			return err
		}
	}
	if s.grows && f.exists {
		c.grow(ctx, s, of, f.partitions)
	}
	if err := c.ensure(ctx, *s); err != nil {
		return err
	}
	all, err := c.admin.ListTopics(ctx, s.name)
	if err != nil {
		return fmt.Errorf("look up topic %s: %w", s.name, err)
	}
	if id := event.TopicID(all[s.name].ID); id != x.ID {
		x.ID = id
		return c.enter(ctx, x)
	}
	return nil
}

// restore writes the records again that were deleted while their topics exist: other
// programs that read the registry would take those topics for local ones.
func (c *Catalogue) restore(ctx context.Context) error {
	for _, x := range c.follower.Deleted() {
		if id, ok := c.ID(x.Name); !ok || id != x.ID {
			continue
		}
		c.log.Warn("the registry's record of a topic was deleted while the topic exists; it is written again", "topic", x.Name, "is", describe(x))
		if err := c.enter(ctx, x); err != nil {
			return err
		}
	}
	for _, x := range c.unrecorded() {
		c.log.Warn("the registry has no usable record of a topic that another region's link has written to; it is written again", "topic", x.Name, "is", describe(x))
		if err := c.enter(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// unrecorded are the copies of other regions' topics without a usable record, because it was
// deleted or written over before this instance has read it, or the whole registry was
// deleted: what is called like a copy, and is what that region's link has noted its positions
// in, is that copy.
func (c *Catalogue) unrecorded() (out []control.Topic) {
	c.mu.Lock()
	known := maps.Clone(c.known)
	c.mu.Unlock()
	for _, r := range c.topology.Others(c.region) {
		for name, detail := range known {
			source, ok := strings.CutPrefix(name, router.RemoteName(r.Name, ""))
			id := event.TopicID(detail.ID)
			if !ok || detail.Err != nil || router.CheckTopic(source) != nil {
				continue
			}
			if x, ok := c.follower.Topic(name, id); ok && x.Kind != 0 {
				continue
			}
			if sourceID, ok := c.follower.CopyOf(r.ID, id); ok {
				out = append(out, control.Topic{
					Name: name, ID: id, Kind: control.KindRemote, Origin: r.ID, Link: r.Name + "-" + c.region, Source: source, SourceID: sourceID,
				})
			}
		}
	}
	return out
}

// enter writes a record of the registry.
func (c *Catalogue) enter(ctx context.Context, x control.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	return control.Register(ctx, c.client, x)
}
