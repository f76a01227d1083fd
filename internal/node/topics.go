package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
)

const (
	compacted = "compact"
	deleted   = "delete"
	// forever is deleted without an end to retention.
	forever = "delete, for ever"

	discoverEvery = 2 * time.Second // local topics become known within this
	topicTimeout  = 15 * time.Second
)

// registry is what the instance knows of the topics that geogate writes.
type registry interface {
	// Registered reads the registry to its end and looks a name up.
	Registered(ctx context.Context, name string) (control.Topic, bool, error)
}

// topics makes the topics that are geogate's, checks those that the policy
// declares, and knows the region's local ones.
type topics struct {
	region   string
	owned    bool // there is an ownership register
	topology *router.Topology
	policy   *ownership.Policy
	client   *kgo.Client // writes the registry
	admin    *kadm.Client
	registry registry
	follower *control.Follower
	own      event.RegionID
	window   time.Duration // of idempotency keys
	log      *slog.Logger

	prepared atomic.Bool // the declared topics are there

	mu      sync.Mutex
	known   kadm.TopicDetails
	derived map[derivedOf]*derivation
	local   map[string]control.TopicID // what the registry, read to its end, did not have
}

// derivedOf is a local topic as it was when something was derived from it: made
// anew, it may have other partitions.
type derivedOf struct {
	name       string
	id         control.TopicID
	partitions int32
}

// derivation makes a topic's derived topics once; later callers wait for it.
type derivation struct {
	done chan struct{}
	err  error
}

func newTopics(cfg Config, topology *router.Topology, policy *ownership.Policy, client *kgo.Client, log *slog.Logger) *topics {
	return &topics{
		region: cfg.Region, owned: cfg.NATS.Register(), window: cfg.Idempotency.Window, topology: topology, policy: policy,
		client: client, admin: kadm.NewClient(client), log: log,
		derived: make(map[derivedOf]*derivation), local: make(map[string]control.TopicID),
	}
}

// spec is a topic to be made or checked.
type spec struct {
	name       string
	partitions int32
	cleanup    string
	mayHave    bool // more partitions than that
}

// settings are what the topic is created with.
func (s spec) settings() map[string]*string {
	cleanup, none := s.cleanup, "-1"
	if s.cleanup == forever {
		cleanup = deleted
		return map[string]*string{"cleanup.policy": &cleanup, "retention.ms": &none, "retention.bytes": &none}
	}
	return map[string]*string{"cleanup.policy": &cleanup}
}

// internals are the topics that every instance of the region needs.
func (t *topics) internals() []spec {
	out := []spec{
		{name: control.TopicControl, partitions: 1, cleanup: compacted},
		{name: control.TopicTopics, partitions: 1, cleanup: compacted},
		{name: control.TopicIncarnations, partitions: 1, cleanup: compacted},
		{name: control.TopicConflicts, partitions: control.ConflictPartitions, cleanup: deleted},
	}
	if t.owned {
		out = append(out,
			spec{name: mirror.OwnershipTopic, partitions: 1, cleanup: forever},
			spec{name: mirror.OwnersTopic, partitions: 1, cleanup: compacted})
	}
	for _, r := range t.topology.Others(t.region) {
		out = append(out,
			spec{name: control.ControlFrom(r.Name), partitions: 1, cleanup: compacted},
			spec{name: control.PositionsFrom(r.Name), partitions: control.LinkPartitions, cleanup: compacted},
			spec{name: control.RunsFrom(r.Name), partitions: control.LinkPartitions, cleanup: compacted},
		)
	}
	return out
}

// prepareInternal makes the internal topics. It comes before anything reads them.
func (t *topics) prepareInternal(ctx context.Context) error {
	for _, s := range t.internals() {
		if err := t.ensure(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// prepareDeclared makes or checks the topics that the policy declares, with what
// is derived from them. It comes after the registry has been read.
func (t *topics) prepareDeclared(ctx context.Context) error {
	for _, d := range t.policy.Declared() {
		if x, ok, err := t.registry.Registered(ctx, d.Topic); err != nil {
			return err
		} else if ok {
			return fmt.Errorf("declare topic %s: %w: geogate writes a topic of that name itself (%s); declare another name", d.Topic, errBlocked, describe(x))
		}
		s := spec{name: d.Topic, partitions: d.Partitions, cleanup: deleted, mayHave: t.policy.Domain(d.Topic).Kind == ownership.Events}
		if err := t.ensure(ctx, s); err != nil {
			return fmt.Errorf("declare topic: %w", err)
		}
		if err := t.checkRetention(ctx, d.Topic); err != nil {
			return fmt.Errorf("declare topic: %w", err)
		}
		if err := t.refresh(ctx); err != nil {
			return err
		}
		topic, err := t.Topic(ctx, d.Topic)
		if err != nil {
			return fmt.Errorf("declare topic %s: %w", d.Topic, err)
		}
		if err := t.derive(ctx, topic); err != nil {
			return err
		}
	}
	t.prepared.Store(true)
	return nil
}

// coming tells whether a topic that is not there yet will be in a moment: a
// client must not be told that it is unknown.
func (t *topics) coming(name string) bool {
	return !t.prepared.Load() && slices.ContainsFunc(t.policy.Declared(), func(d ownership.Declared) bool { return d.Topic == name })
}

// ensure makes a topic, or checks that the one that exists is as it must be.
func (t *topics) ensure(ctx context.Context, s spec) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	resp, err := t.admin.CreateTopics(ctx, s.partitions, -1, s.settings(), s.name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", s.name, err)
	}
	switch err := resp[s.name].Err; {
	case err == nil:
		t.log.Info("created topic", "topic", s.name, "partitions", s.partitions)
		return t.awaitLeaders(ctx, s)
	case !errors.Is(err, kerr.TopicAlreadyExists):
		return fmt.Errorf("create topic %s: %w (%s)", s.name, err, resp[s.name].ErrMessage)
	}
	return t.check(ctx, s)
}

// awaitLeaders returns when every partition can be written.
func (t *topics) awaitLeaders(ctx context.Context, s spec) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ends, err := t.admin.ListEndOffsets(ctx, s.name)
		if err == nil && len(ends[s.name]) == int(s.partitions) && ends.Error() == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await leaders of topic %s: %w", s.name, ctx.Err())
		case <-tick.C:
		}
	}
}

func (t *topics) check(ctx context.Context, s spec) error {
	all, err := t.admin.ListTopics(ctx, s.name)
	if err != nil {
		return fmt.Errorf("check topic %s: %w", s.name, err)
	}
	if n := len(all[s.name].Partitions); n != 0 && n != int(s.partitions) && !(s.mayHave && n > int(s.partitions)) {
		return fmt.Errorf("check topic %s: %w: it has %d partitions and must have %d, as in every region; recreate it or correct the policy", s.name, errMismatch, n, s.partitions)
	}
	cleanup, err := t.cleanup(ctx, s.name)
	if err != nil {
		return err
	}
	if strings.Contains(cleanup, compacted) != (s.cleanup == compacted) {
		return fmt.Errorf("check topic %s: %w: cleanup.policy is %s and must be %s", s.name, errMismatch, cleanup, s.cleanup)
	}
	return nil
}

func (t *topics) cleanup(ctx context.Context, name string) (string, error) {
	policy, err := t.config(ctx, name, "cleanup.policy")
	return cmp.Or(policy, deleted), err
}

// config is a setting of a topic, "" if the broker does not say.
func (t *topics) config(ctx context.Context, name, key string) (string, error) {
	configs, err := t.admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return "", fmt.Errorf("describe topic %s: %w", name, err)
	}
	c, err := configs.On(name, nil)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		return "", fmt.Errorf("describe topic %s: %w", name, err)
	}
	for _, kv := range c.Configs {
		if kv.Key == key && kv.Value != nil {
			return *kv.Value, nil
		}
	}
	return "", nil
}

// derive makes the state and the merged topic of a local topic, once.
func (t *topics) derive(ctx context.Context, topic gateway.Topic) error {
	of := derivedOf{topic.Name, topic.ID, topic.Partitions}
	t.mu.Lock()
	d, begun := t.derived[of]
	if !begun {
		d = &derivation{done: make(chan struct{})}
		t.derived[of] = d
	}
	t.mu.Unlock()
	if !begun {
		d.err = t.deriveNow(ctx, topic)
		if d.err != nil {
			t.mu.Lock()
			delete(t.derived, of) // the next one tries again
			t.mu.Unlock()
		}
		close(d.done)
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("derive topics of %s: %w", topic.Name, ctx.Err())
	}
}

func (t *topics) deriveNow(ctx context.Context, topic gateway.Topic) error {
	entities := topic.Domain.Kind == ownership.Entity
	if entities {
		cleanup, err := t.cleanup(ctx, topic.Name)
		if err != nil {
			return err
		}
		if strings.Contains(cleanup, compacted) {
			return fmt.Errorf("derive topics of %s: %w: entity topics must have cleanup.policy=delete, for compaction could keep a void record and drop a valid one; the state topic keeps what retention drops", topic.Name, errBlocked)
		}
	}
	if err := t.checkKind(ctx, topic); err != nil {
		return err
	}
	merged := spec{name: router.Merged(topic.Name), partitions: topic.Partitions, cleanup: deleted}
	if entities {
		merged.cleanup = compacted
	}
	for _, d := range []struct {
		spec
		use control.Use
	}{
		{spec{name: control.StateOf(topic.Name), partitions: topic.Partitions, cleanup: compacted}, control.UseState},
		{merged, control.UseMerged},
	} {
		if err := t.ensureDerived(ctx, d.spec, d.use, topic.Name); err != nil {
			return fmt.Errorf("derive topics of %s: %w", topic.Name, err)
		}
	}
	return nil
}

// errBlocked says that something of the operator's stands where geogate would
// write; what it is stays untouched.
var errBlocked = errors.New("blocked")

// errMismatch says that a topic exists and is not as it must be.
var errMismatch = errors.New("mismatch")

// final tells whether trying again is in vain until an operator has changed
// something.
func final(err error) bool {
	return errors.Is(err, errMismatch) || errors.Is(err, errBlocked) || errors.Is(err, ErrRefused)
}

// refused makes an error that is final one that wraps ErrRefused.
func refused(err error) error {
	if errors.Is(err, ErrRefused) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// ensureDerived registers a derived topic before it exists, so that no link ever
// takes it for a local one, and makes it.
func (t *topics) ensureDerived(ctx context.Context, s spec, use control.Use, of string) error {
	if err := router.CheckTopic(s.name); err != nil {
		return err
	}
	x, ok, err := t.registry.Registered(ctx, s.name)
	if err != nil {
		return err
	}
	if !ok {
		if all, err := t.admin.ListTopics(ctx, s.name); err != nil {
			return fmt.Errorf("look up topic %s: %w", s.name, err)
		} else if all.Has(s.name) {
			return fmt.Errorf("%w: a local topic %s exists already, and geogate never mixes its records in; copy that topic to a new name and delete it", errBlocked, s.name)
		}
		x = control.Topic{Name: s.name, Kind: control.KindDerived, Use: use, Of: of}
		if err := t.register(ctx, x); err != nil {
			return err
		}
	} else if x.Kind != control.KindDerived || x.Use != use || x.Of != of {
		return fmt.Errorf("%w: topic %s is %s", errBlocked, s.name, describe(x))
	}
	if err := t.ensure(ctx, s); err != nil {
		return err
	}
	all, err := t.admin.ListTopics(ctx, s.name)
	if err != nil {
		return fmt.Errorf("look up topic %s: %w", s.name, err)
	}
	if id := control.TopicID(all[s.name].ID); id != x.ID {
		x.ID = id
		return t.register(ctx, x)
	}
	return nil
}

// registerMetrics writes a record of the registry.
func (t *topics) register(ctx context.Context, x control.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	return control.Register(ctx, t.client, x)
}

func describe(x control.Topic) string {
	if x.Kind == control.KindRemote {
		return "a copy of " + x.Source + " by link " + x.Link
	}
	return "derived from " + x.Of
}

// Run keeps the list of topics fresh.
func (t *topics) Run(ctx context.Context) error {
	tick := time.NewTicker(discoverEvery)
	defer tick.Stop()
	for {
		if err := t.refresh(ctx); err != nil && ctx.Err() == nil {
			t.log.Warn("list topics", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (t *topics) refresh(ctx context.Context) error {
	all, err := t.admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	t.mu.Lock()
	t.known = all
	t.mu.Unlock()
	return nil
}

// Topic implements gateway.Topics: it finds a local topic, asking the cluster
// when the name is not in the list yet.
func (t *topics) Topic(ctx context.Context, name string) (gateway.Topic, error) {
	if router.Internal(name) {
		return gateway.Topic{}, t.unknown(name, control.Topic{})
	}
	if router.CheckTopic(name) != nil {
		return gateway.Topic{}, fmt.Errorf("%w: %s", gateway.ErrTopicUnknown, name)
	}
	t.mu.Lock()
	detail, ok := t.known[name]
	t.mu.Unlock()
	if !ok || detail.Err != nil || len(detail.Partitions) == 0 {
		all, err := t.admin.ListTopics(ctx, name)
		if err != nil {
			return gateway.Topic{}, fmt.Errorf("%w: look up topic %s: %w", gateway.ErrUpstream, name, err)
		}
		if detail = all[name]; !all.Has(name) || len(detail.Partitions) == 0 {
			if t.coming(name) {
				return gateway.Topic{}, fmt.Errorf("declared topic %s is being made: %w", name, seat.ErrNotReady)
			}
			return gateway.Topic{}, fmt.Errorf("%w: %s", gateway.ErrTopicUnknown, name)
		}
		t.mu.Lock()
		if t.known == nil {
			t.known = kadm.TopicDetails{}
		}
		t.known[name] = detail
		t.mu.Unlock()
	}
	if err := t.mustBeLocal(ctx, name, control.TopicID(detail.ID)); err != nil {
		return gateway.Topic{}, err
	}
	return gateway.Topic{Name: name, ID: detail.ID, Partitions: t.partitions(detail), Domain: t.policy.Domain(name)}, nil
}

// partitions is how many of a topic's partitions are used: no more than are
// declared, nor than its state has. Those that were added later are left alone: a
// key that moved to one of them would not find its idempotency key again.
func (t *topics) partitions(detail kadm.TopicDetail) int32 {
	n := int32(len(detail.Partitions))
	for _, d := range t.policy.Declared() {
		if d.Topic == detail.Topic {
			n = min(n, d.Partitions)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if state := t.known[control.StateOf(detail.Topic)]; len(state.Partitions) > 0 {
		n = min(n, int32(len(state.Partitions)))
	}
	return n
}

// grown says which topics in use have partitions that are not used.
func (t *topics) grown() (out []string) {
	t.mu.Lock()
	known := maps.Clone(t.known)
	t.mu.Unlock()
	for _, detail := range known.Sorted() {
		if _, inUse := known[control.StateOf(detail.Topic)]; !inUse {
			continue
		}
		if have, used := len(detail.Partitions), int(t.partitions(detail)); have > used {
			out = append(out, fmt.Sprintf("topic %s has %d partitions, of which the first %d are used; records in the others are not folded", detail.Topic, have, used))
		}
	}
	return out
}

// present is the id of the topic of that name; ok is false when the list of topics
// does not have it.
func (t *topics) present(name string) (id control.TopicID, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	detail, ok := t.known[name]
	return control.TopicID(detail.ID), ok && detail.Err == nil
}

// locals are the region's local topics as far as they are known, in order.
func (t *topics) locals(ctx context.Context) ([]gateway.Topic, error) {
	t.mu.Lock()
	names := t.known.Names()
	t.mu.Unlock()
	slices.Sort(names)
	var out []gateway.Topic
	for _, n := range names {
		topic, err := t.Topic(ctx, n)
		switch {
		case errors.Is(err, gateway.ErrTopicUnknown):
		case err != nil:
			return nil, err
		default:
			out = append(out, topic)
		}
	}
	return out, nil
}

// mustBeLocal asks the registry once for each topic id: names are registered
// before their topics are made, so a topic that was found local stays so.
func (t *topics) mustBeLocal(ctx context.Context, name string, id control.TopicID) error {
	t.mu.Lock()
	local, ok := t.local[name]
	t.mu.Unlock()
	if ok && local == id {
		return nil
	}
	x, ok, err := t.registry.Registered(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: %w", gateway.ErrUpstream, err)
	}
	if ok {
		return t.unknown(name, x)
	}
	t.mu.Lock()
	t.local[name] = id
	t.mu.Unlock()
	return nil
}
