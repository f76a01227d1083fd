package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

const (
	// DiscoverEvery is how long a change of the topics may stay unknown; up to three times
	// as long where there are more than a thousand partitions (txn.LookEvery).
	DiscoverEvery = 2 * time.Second
	// RoleLocal is the role of an entry that is the region's own.
	RoleLocal = "local"

	topicTimeout = 15 * time.Second
)

// registry is what the instance knows of the topics that geogate writes.
type registry interface {
	// Registered reads the registry to its end and looks up a topic that exists under
	// an id, or the name alone if the id is 0.
	Registered(ctx context.Context, name string, id event.TopicID) (control.Topic, bool, error)
}

// Config of a Catalogue.
type Config struct {
	// Region and ID are the own region's.
	Region string
	ID     event.RegionID
	// Register reports whether there is an ownership register, which has topics too.
	Register bool
	Topology *router.Topology
	Policy   *ownership.Policy
	// Client reaches the own region's Kafka and writes the registry.
	Client *kgo.Client
	// Control follows the registry. PrepareInternal alone does without it.
	Control *control.Follower
	// Window is how long idempotency keys are remembered; no topic may forget sooner.
	Window time.Duration
	Logger *slog.Logger
}

// Catalogue makes the topics that are geogate's, checks those that the policy
// declares, and knows the region's local ones. It is safe for concurrent use.
type Catalogue struct {
	region   string
	register bool // there is an ownership register
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
	changed chan struct{} // closed and replaced when known has other topics, or other partitions
	derived map[derivedOf]*derivation
	differs map[string]string              // derived topics, and what of their settings is not as it should be
	blocked map[string]string              // local topics of which nothing can be derived, and why
	ungrown map[string]string              // local topics whose derived topics lack partitions, and why
	said    string                         // of ungrown, in the log
	limits  map[string]gateway.RecordLimit // of local topics of which something was derived
	local   map[string]event.TopicID       // what the registry, read to its end, did not have
}

// New makes a catalogue, which knows no topic before it runs or is asked for one.
func New(cfg Config) *Catalogue {
	return &Catalogue{
		region: cfg.Region, own: cfg.ID, register: cfg.Register, window: cfg.Window, topology: cfg.Topology, policy: cfg.Policy,
		client: cfg.Client, admin: kadm.NewClient(cfg.Client), registry: follower{cfg.Control}, follower: cfg.Control, log: cfg.Logger,
		changed: make(chan struct{}), derived: make(map[derivedOf]*derivation), blocked: make(map[string]string), differs: make(map[string]string), limits: make(map[string]gateway.RecordLimit), ungrown: make(map[string]string), local: make(map[string]event.TopicID),
	}
}

// follower answers what the registry says, reading it to its end for a "no".
type follower struct{ *control.Follower }

// Registered implements registry.
func (f follower) Registered(ctx context.Context, name string, id event.TopicID) (control.Topic, bool, error) {
	if x, ok := f.Topic(name, id); ok {
		return x, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	if err := f.Sync(ctx); err != nil {
		return control.Topic{}, false, fmt.Errorf("read registry: %w", err)
	}
	x, ok := f.Topic(name, id)
	return x, ok, nil
}

// coming reports whether a topic that is not there yet will be in a moment: a
// client must not be told that it is unknown.
func (c *Catalogue) coming(name string) bool {
	return !c.prepared.Load() && slices.ContainsFunc(c.policy.Declared(), func(d ownership.Declared) bool { return d.Topic == name })
}

func describe(x control.Topic) string {
	switch x.Kind {
	case 0:
		return "without a usable record in the registry"
	case control.KindRemote:
		return "a copy of " + x.Source + " by link " + x.Link
	}
	return "derived from " + x.Of
}

// Run keeps the list of topics fresh.
func (c *Catalogue) Run(ctx context.Context) error {
	look, settings := time.NewTimer(DiscoverEvery), time.NewTicker(followEvery)
	defer look.Stop()
	defer settings.Stop()
	for {
		wait, err := c.refresh(ctx)
		look.Reset(wait)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot list topics; will try again", "err", err)
		} else if err := c.restore(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot restore deleted records of the registry; will try again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-settings.C:
			if err := c.followSettings(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("cannot compare the settings of all topics; will try again", "err", err)
			}
		}
	}
}

// Refresh lists the topics.
func (c *Catalogue) Refresh(ctx context.Context) error {
	_, err := c.refresh(ctx)
	return err
}

// refresh lists the topics, and says when to do so again.
func (c *Catalogue) refresh(ctx context.Context) (again time.Duration, err error) {
	found, refused, err := txn.DescribeAll(ctx, c.client)
	if err != nil {
		return DiscoverEvery, fmt.Errorf("list topics: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !sameTopics(c.known, found, refused) {
		c.known = detailsOf(found, refused)
		close(c.changed)
		c.changed = make(chan struct{})
	}
	return txn.LookEvery(DiscoverEvery, found), nil
}

// Changed returns a channel that is closed when a list of topics has others than the one
// before, or other partitions. Take it before looking at what is waited for.
func (c *Catalogue) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// sameTopics tells whether the known topics are those that were found, with the same
// partitions, and those that the cluster has refused to tell of.
func sameTopics(known kadm.TopicDetails, found map[string]txn.Topic, refused map[string]error) bool {
	n := len(refused)
	for name := range refused {
		if known[name].Err == nil {
			return false
		}
	}
	for name, t := range found {
		if t.Internal {
			continue
		}
		n++
		if x, ok := known[name]; !ok || x.ID != t.ID || len(x.Partitions) != len(t.Leaders) || x.Err != nil {
			return false
		}
	}
	return n == len(known)
}

// detailsOf is what the catalogue keeps of topics. The brokers' own are none of them.
func detailsOf(found map[string]txn.Topic, refused map[string]error) kadm.TopicDetails {
	all := make(kadm.TopicDetails, len(found)+len(refused))
	for name, t := range found {
		if t.Internal {
			continue
		}
		d := kadm.TopicDetail{Topic: name, ID: t.ID, Partitions: make(kadm.PartitionDetails, len(t.Leaders))}
		for p := range t.Leaders {
			d.Partitions[int32(p)] = kadm.PartitionDetail{Topic: name, Partition: int32(p)}
		}
		all[name] = d
	}
	for name, err := range refused {
		all[name] = kadm.TopicDetail{Topic: name, Err: err}
	}
	return all
}

// Topic implements gateway.Topics: it finds a local topic, asking the cluster
// when the name is not in the list yet.
func (c *Catalogue) Topic(ctx context.Context, name string) (gateway.Topic, error) {
	if router.Internal(name) {
		return gateway.Topic{}, c.unknown(name, control.Topic{})
	}
	if router.CheckTopic(name) != nil {
		return gateway.Topic{}, fmt.Errorf("%w: %s", gateway.ErrTopicUnknown, name)
	}
	c.mu.Lock()
	detail, ok := c.known[name]
	c.mu.Unlock()
	if !ok || detail.Err != nil || len(detail.Partitions) == 0 {
		all, err := c.admin.ListTopics(ctx, name)
		if err != nil {
			return gateway.Topic{}, fmt.Errorf("%w: look up topic %s: %w", gateway.ErrUpstream, name, err)
		}
		if detail = all[name]; !all.Has(name) || len(detail.Partitions) == 0 {
			if c.coming(name) {
				return gateway.Topic{}, fmt.Errorf("declared topic %s is being created: %w", name, seat.ErrNotReady)
			}
			return gateway.Topic{}, fmt.Errorf("%w: %s", gateway.ErrTopicUnknown, name)
		}
		c.mu.Lock()
		if c.known == nil {
			c.known = kadm.TopicDetails{}
		}
		c.known[name] = detail
		c.mu.Unlock()
	}
	if err := c.mustBeLocal(ctx, name, event.TopicID(detail.ID)); err != nil {
		return gateway.Topic{}, err
	}
	return c.limited(c.describe(detail)), nil
}

// Warnings says which topics cannot be used, or not as they are.
func (c *Catalogue) Warnings(out *warning.List) {
	c.mu.Lock()
	known, blocked, differs, ungrown := maps.Clone(c.known), maps.Clone(c.blocked), maps.Clone(c.differs), maps.Clone(c.ungrown)
	c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(blocked)) {
		out.Add(warning.TopicBlocked, name, "the region cannot make what it derives from the topic: %s", blocked[name])
	}
	for _, name := range slices.Sorted(maps.Keys(differs)) {
		if differs[name] != "" {
			out.Add(warning.SettingsDiffer, name, "%s", differs[name])
		}
	}
	for _, detail := range known.Sorted() {
		c.warnOfPartitions(out, detail, ungrown[detail.Topic])
	}
}

// Needed are the topics that the instance may need, with what they are to it. Topics that
// only clients read are not among them.
func (c *Catalogue) Needed() (out []retention.Topic) {
	internal := make(map[string]retention.Use)
	for _, s := range c.internals() {
		switch s.cleanup {
		case compacted:
			internal[s.name] = retention.Latest
		case forever:
			internal[s.name] = retention.Forever
		}
	}
	c.mu.Lock()
	known := maps.Clone(c.known)
	c.mu.Unlock()
	for name, detail := range known {
		x, registered := c.follower.Topic(name, event.TopicID(detail.ID))
		if !registered && !router.Internal(name) {
			x, registered = c.byName(name)
		}
		compactable := func(topic string) bool { return c.policy.Domain(topic).Kind == conflict.Events }
		switch use := internal[name]; {
		case use != 0:
			out = append(out, retention.Topic{Name: name, ID: detail.ID, Use: use})
		case registered && x.Kind == control.KindDerived && x.Use == control.UseState:
			out = append(out, retention.Topic{Name: name, ID: detail.ID, Use: retention.Latest})
		case registered && x.Kind == control.KindRemote:
			out = append(out, retention.Topic{Name: name, ID: detail.ID, Use: retention.Log, Compactable: compactable(x.Source)})
		case !registered && !router.Internal(name):
			out = append(out, retention.Topic{Name: name, ID: detail.ID, Use: retention.Log, Compactable: compactable(name)})
		}
	}
	return out
}

// ID is the id of the topic of that name; ok is false when the list of topics
// does not have it.
func (c *Catalogue) ID(name string) (id event.TopicID, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	detail, ok := c.known[name]
	return event.TopicID(detail.ID), ok && detail.Err == nil
}

// HasPartition tells whether a local topic has a partition, as far as the list of topics
// goes.
func (c *Catalogue) HasPartition(topic string, partition int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(partition) < len(c.known[topic].Partitions)
}

// Local are the region's local topics as far as they are known, in order.
func (c *Catalogue) Local(ctx context.Context) ([]gateway.Topic, error) {
	c.mu.Lock()
	names := c.known.Names()
	c.mu.Unlock()
	slices.Sort(names)
	var out []gateway.Topic
	for _, n := range names {
		topic, err := c.Topic(ctx, n)
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
func (c *Catalogue) mustBeLocal(ctx context.Context, name string, id event.TopicID) error {
	c.mu.Lock()
	local, ok := c.local[name]
	c.mu.Unlock()
	if ok && local == id {
		return nil
	}
	x, ok, err := c.registry.Registered(ctx, name, id)
	if err != nil {
		return fmt.Errorf("%w: %w", gateway.ErrUpstream, err)
	}
	if !ok {
		x, ok = c.byName(name)
	}
	if ok {
		return c.unknown(name, x)
	}
	c.mu.Lock()
	c.local[name] = id
	c.mu.Unlock()
	return nil
}

// byName is [router.Topology.ByName] of a topic of this region.
func (c *Catalogue) byName(name string) (control.Topic, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topology.ByName(name, c.region, c.known.Has)
}

// Entries describes every topic of the region, sorted by name, but for what links do
// with it.
func (c *Catalogue) Entries(ctx context.Context) ([]gateway.TopicEntry, error) {
	if err := c.Refresh(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", gateway.ErrUpstream, err)
	}
	c.mu.Lock()
	known := maps.Clone(c.known) // a look-up adds to it
	blocked := maps.Clone(c.blocked)
	c.mu.Unlock()
	var out []gateway.TopicEntry
	for _, name := range known.Names() {
		e := gateway.TopicEntry{Name: name, Partitions: int32(len(known[name].Partitions))}
		x, registered := c.follower.Topic(name, event.TopicID(known[name].ID))
		if !registered && !router.Internal(name) {
			x, registered = c.byName(name)
		}
		switch {
		case router.Internal(name):
			e.Role = "internal"
			if registered {
				e.Of, e.Use = x.Of, x.Use.String()
			}
		case registered && x.Kind == 0:
			e.Role = "unknown"
		case registered && x.Kind == control.KindRemote:
			e.Role, e.Origin, e.Of = "remote", c.topology.Name(x.Origin), x.Source
		case registered:
			e.Role, e.Of, e.Use = "derived", x.Of, x.Use.String()
		default:
			d := c.policy.Domain(name)
			e.Role, e.Domain, e.Kind, e.Blocked = RoleLocal, d.Name, d.Kind.String(), blocked[name]
			if d.Rule != 0 {
				e.Policy = conflict.PolicyOf(d.Rule).Name
			}
		}
		out = append(out, e)
	}
	return out, nil
}
