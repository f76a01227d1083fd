package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

const adminWait = 15 * time.Second

// TopicRuling says what a link does with a topic of its source, and why.
type TopicRuling struct {
	Topic   string `json:"topic"`
	Remote  string `json:"remote,omitempty"`
	Carried bool   `json:"carried"`
	Blocked bool   `json:"blocked"` // wanted, but it cannot be done
	Denied  bool   `json:"denied"`  // wanted, but the residency policy keeps it here
	Reason  string `json:"reason"`
	// KeepsAll is why the copy of a compacted topic is not compacted.
	KeepsAll string `json:"keeps_all,omitempty"`
}

// registry follows a cluster's registry of topics.
type registry struct {
	ask  *leaderClient
	log  *slog.Logger
	id   event.TopicID // of the registry's topic
	next int64

	skipped *warning.Skipped
	region  string
	*control.Registry
}

// newRegistry follows the registry of a region's cluster; region is "" for the own one.
func newRegistry(ask *leaderClient, cfg *Config, region string) *registry {
	var names control.Names // nil: nobody checks them
	if cfg.Topology != nil {
		names = cfg.Topology
	}
	return &registry{ask: ask, log: cfg.Logger, skipped: cfg.Skipped, region: region, Registry: control.NewRegistry(names)}
}

// sync reads to a high watermark listed now: only then does it count that a topic
// is in no record.
//
// A registry that was deleted and made again, or that has lost its end, is read from its
// start. What is known stays known, by the ids of topics: the target's gateway writes it again.
func (g *registry) sync(ctx context.Context, id event.TopicID) error {
	if g.id != id {
		g.id, g.next = id, 0
	}
	err := g.read(ctx)
	if errors.Is(err, kerr.OffsetOutOfRange) && g.next > 0 {
		g.next = 0
		err = g.read(ctx)
	}
	return err
}

func (g *registry) read(ctx context.Context) error {
	next, err := g.ask.readToEnd(ctx, topicPartition{Topic: control.TopicTopics}, g.next, func(r *txn.Record) error {
		if err := g.Apply(r.Key, r.Value); err != nil {
			topic := strings.TrimSpace(g.region + " " + control.TopicTopics)
			if g.skipped.Add(topic, 0, r.Offset, err) {
				g.log.Error("registry record cannot be used and is skipped", "topic", topic, "offset", r.Offset, "err", err)
			}
		}
		return nil
	})
	g.next = next
	if err != nil {
		return fmt.Errorf("read registry: %w", err)
	}
	return nil
}

// discovery finds the topics to copy and makes their remote topics.
type discovery struct {
	cfg            *Config
	matcher        *router.Matcher
	source, target *kgo.Client
	sourceRegistry *registry
	targetRegistry *registry

	rulings             map[string]*residency.Ruling // of the version, so that streams stay as they are
	version             uint64
	announced           map[string]int64 // restricted topics: the control topic's offset after their Restriction
	covered             func() int64     // source offset that the control stream has committed
	lookEvery           time.Duration    // from one look to the next, as of the last one
	announcementPending bool             // an announcement is on its way
	facts               *Facts           // which control records cross
	told                map[string]bool  // topics whose incarnations were announced
	copies              copies
	lagUnknown          bool // what is blocked may be a copy that the link has to continue
}

// look makes one round. Topics are listed before the registry is read: a topic
// is registered before it is made, so whatever was listed is in it.
func (d *discovery) look(ctx context.Context) ([]Stream, []TopicRuling, error) {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	d.refresh()
	d.lagUnknown = false
	here, err := txn.Describe(ctx, d.source)
	if err != nil {
		return nil, nil, fmt.Errorf("list source topics: %w", err)
	}
	there, err := txn.Describe(ctx, d.target)
	if err != nil {
		return nil, nil, fmt.Errorf("list target topics: %w", err)
	}
	d.lookEvery = txn.LookEvery(d.cfg.DiscoverEvery, here, there)
	if t, ok := here[control.TopicTopics]; ok {
		if err := d.sourceRegistry.sync(ctx, t.ID); err != nil {
			return nil, nil, err
		}
	}
	if err := d.targetRegistry.sync(ctx, there[control.TopicTopics].ID); err != nil {
		return nil, nil, err
	}
	if err := d.findCompacted(ctx, d.wanted(here)); err != nil {
		return nil, nil, err
	}
	var streams []Stream
	var rulings []TopicRuling
	known := map[string]FactTopic{}
	for _, name := range slices.Sorted(maps.Keys(here)) {
		t := here[name]
		if name == control.TopicControl {
			streams = append(streams, d.controlStream(t, there)...)
			continue
		}
		if t.Internal || router.Internal(name) {
			continue
		}
		r := d.rule(t, here)
		ruling, err := d.askPolicy(ctx, &r)
		if err != nil {
			return nil, nil, err
		}
		if _, other := d.notLocal(t, here); !other {
			known[name] = FactTopic{ID: t.ID, Partitions: d.span(name, here, there), Shared: d.local(there, name)}
		}
		if r.Carried {
			mine, err := d.carry(ctx, t, there, ruling)
			if err != nil && !concernsTopic(err) {
				return nil, nil, err
			}
			if err != nil {
				r.Carried, r.Blocked, r.Reason = false, true, err.Error()
				var blocked *blockedError
				d.lagUnknown = d.lagUnknown || errors.As(err, &blocked) && blocked.copied
			}
			streams = append(streams, mine...)
			if len(mine) > 0 {
				r.KeepsAll = d.copies.keeps[mine[0].Target]
			}
		} else {
			delete(d.told, name) // what is recorded from now on stays here
		}
		rulings = append(rulings, r)
	}
	d.facts.Know(known)
	return streams, rulings, nil
}

// wanted are the source's topics that the patterns include.
func (d *discovery) wanted(here map[string]txn.Topic) (list []txn.Topic) {
	for name, t := range here {
		if !t.Internal && !router.Internal(name) && d.matcher.Match(name).Included {
			list = append(list, t)
		}
	}
	return list
}

// span is how many partitions the views of a topic can have, as far as source and target
// show: a region folds, and publishes progress of, every partition that any region's log
// has, also if its own has fewer.
func (d *discovery) span(name string, here, there map[string]txn.Topic) int {
	n := len(here[name].Leaders)
	if d.local(there, name) {
		n = max(n, len(there[name].Leaders))
	}
	if d.cfg.Topology == nil {
		return n
	}
	for _, r := range d.cfg.Topology.Regions() {
		remote := router.RemoteName(r.Name, name)
		n = max(n, len(here[remote].Leaders), len(there[remote].Leaders))
	}
	return n
}

// local tells whether the target has a local topic of a name. Its seats wait for
// the progress of every region, also of one whose records do not come.
func (d *discovery) local(there map[string]txn.Topic, name string) bool {
	t, exists := there[name]
	_, registered := d.targetRegistry.Lookup(name, t.ID)
	return exists && !registered
}

// tell announces the incarnations of a topic that begins to be copied. While it was
// not, the link left their records out; of a topic that was copied before, only
// those of later incarnations can be missing.
func (d *discovery) tell(ctx context.Context, t txn.Topic, first bool) error {
	if d.told[t.Name] || d.cfg.Incarnations == nil {
		return nil
	}
	var records []*kgo.Record
	for p := range t.Leaders {
		for _, x := range d.cfg.Incarnations(t.Name, int32(p)) {
			if first || x.Number > 0 {
				records = append(records, &kgo.Record{Topic: control.TopicControl, Key: x.AppendKey(nil), Value: x.AppendValue(nil)})
			}
		}
	}
	if err := store(ctx, d.source, auditWait, records...); err != nil {
		return fmt.Errorf("announce incarnations of %s: %w", t.Name, err)
	}
	d.told[t.Name] = true
	return nil
}

// notLocal tells whether record or name say that a topic of the source is not local.
func (d *discovery) notLocal(t txn.Topic, here map[string]txn.Topic) (control.Topic, bool) {
	x, ok := d.sourceRegistry.Lookup(t.Name, t.ID)
	if !ok && d.cfg.Topology != nil {
		x, ok = d.cfg.Topology.ByName(t.Name, d.cfg.From.Name, func(name string) bool { _, exists := here[name]; return exists })
	}
	return x, ok
}

// rule decides by registry, names and patterns.
func (d *discovery) rule(t txn.Topic, here map[string]txn.Topic) TopicRuling {
	name := t.Name
	r := TopicRuling{Topic: name}
	if reg, ok := d.notLocal(t, here); ok {
		switch reg.Kind {
		case control.KindRemote:
			r.Reason = fmt.Sprintf("remote topic of region %d", reg.Origin)
		case control.KindDerived:
			r.Reason = "derived topic"
		default:
			r.Blocked, r.Reason = true, "its name is one that geogate gives to the topics that it writes, and no usable record in the registry says what it is"
		}
		return r
	}
	m := d.matcher.Match(name)
	r.Reason = m.String()
	if !m.Included {
		return r
	}
	r.Remote = router.RemoteName(d.cfg.From.Name, name)
	if err := router.CheckTopic(r.Remote); err != nil {
		r.Blocked, r.Reason = true, err.Error()
		return r
	}
	r.Carried = true
	return r
}

// blockedError says why a wanted topic is not copied.
type blockedError struct {
	reason string
	copied bool // what is in its way may be the copy itself
}

// Error implements error.
func (e *blockedError) Error() string { return e.reason }

// concernsTopic tells whether an error is about one topic: something stands in its
// way, or the target refuses a request about it. Other topics go on.
func concernsTopic(err error) bool {
	var blocked *blockedError
	var refused *kerr.Error
	return errors.As(err, &blocked) || errors.As(err, &refused)
}

// carry finds or makes the remote topic of a local one and returns its streams.
// The registry record is written before the topic is made: whoever sees the topic
// knows that it is not local.
func (d *discovery) carry(ctx context.Context, t txn.Topic, there map[string]txn.Topic, ruling *residency.Ruling) ([]Stream, error) {
	remote := router.RemoteName(d.cfg.From.Name, t.Name)
	now, exists := there[remote]
	reg, registered := d.targetRegistry.Lookup(remote, now.ID)
	switch {
	case registered && reg.Kind == 0:
		return nil, &blockedError{reason: fmt.Sprintf("the target's record of %s is malformed or deleted, and the gateway there has not found out yet that the topic is the copy; if the topic holds nothing else, delete it there, and it is copied again", remote), copied: true}
	case registered && (reg.Kind != control.KindRemote || reg.Origin != d.cfg.From.ID || reg.Source != t.Name):
		return nil, &blockedError{reason: fmt.Sprintf("the target's registry has %s as another topic", remote)}
	case !registered && exists:
		return nil, &blockedError{reason: fmt.Sprintf("%s exists at the target, whose registry has no record that it is the copy. If it is, the gateway there finds that out; else it is a local topic there, and one of the two needs another name", remote), copied: true}
	case !registered:
		reg = control.Topic{
			Name: remote, Kind: control.KindRemote, Origin: d.cfg.From.ID, Link: d.cfg.Name, Source: t.Name, SourceID: t.ID,
		}
		if err := d.register(ctx, reg); err != nil {
			return nil, err
		}
	}
	created := false
	if reg.ID == (event.TopicID{}) {
		if !exists {
			var err error
			if now, err = d.create(ctx, t, remote); err != nil {
				return nil, err
			}
			exists, created = true, true
		}
		reg.ID = now.ID
		if err := d.register(ctx, reg); err != nil {
			return nil, err
		}
	}
	if exists && now.ID == reg.ID && len(now.Leaders) < len(t.Leaders) {
		if err := d.grow(ctx, remote, len(t.Leaders)); err != nil {
			return nil, err
		}
	}
	if err := d.settleCopy(ctx, t, remote, reg.ID, created); err != nil {
		return nil, err
	}
	if err := d.tell(ctx, t, !registered); err != nil {
		return nil, err
	}
	return d.streams(t, remote, reg, ruling), nil
}

func (d *discovery) streams(t txn.Topic, remote string, reg control.Topic, ruling *residency.Ruling) []Stream {
	out := make([]Stream, len(t.Leaders))
	for i := range out {
		out[i] = Stream{
			Part: Part{t.Name, int32(i)}, Source: t.ID, Registered: reg.SourceID, Remote: remote, Target: reg.ID,
			Ruling: ruling,
		}
		if d.cfg.Incarnation != nil {
			out[i].Incarnation = d.cfg.Incarnation(t.Name, t.ID, int32(i))
		}
	}
	return out
}

// controlStream is the stream of the control topic, which has one partition.
func (d *discovery) controlStream(t txn.Topic, there map[string]txn.Topic) []Stream {
	remote := control.ControlFrom(d.cfg.From.Name)
	now, ok := there[remote]
	if !ok {
		return nil
	}
	return []Stream{{Part: Part{t.Name, 0}, Source: t.ID, Registered: t.ID, Remote: remote, Target: now.ID, Control: true, Facts: d.facts}}
}

func (d *discovery) register(ctx context.Context, t control.Topic) error {
	if err := control.Register(ctx, d.target, t); err != nil {
		return err
	}
	return d.targetRegistry.Apply(t.AppendKey(nil), t.AppendValue(nil))
}

// remoteConfigs are the settings that a remote topic is made with, given those of the
// source topic as its broker applies them: without them records could be refused, or
// vanish early because the target's defaults are others.
//
// The copy of a compacted topic is made to keep everything: an end of retention would lose
// keys. settleCopy says when it is compacted.
func remoteConfigs(source map[string]string) map[string]*string {
	out := map[string]*string{
		"cleanup.policy":         kadm.StringPtr("delete"),
		"message.timestamp.type": kadm.StringPtr("CreateTime"),
	}
	for _, key := range []string{"max.message.bytes", "retention.ms", "retention.bytes"} {
		if v, known := source[key]; known {
			out[key] = &v
		}
	}
	if strings.Contains(source["cleanup.policy"], "compact") {
		out["retention.ms"], out["retention.bytes"] = kadm.StringPtr("-1"), kadm.StringPtr("-1")
	}
	// What the source topic took, whatever its time, the copy takes (KIP-937).
	for _, key := range []string{"message.timestamp.before.max.ms", "message.timestamp.after.max.ms"} {
		if _, known := source[key]; known {
			out[key] = kadm.StringPtr(strconv.FormatInt(math.MaxInt64, 10))
		}
	}
	return out
}

func (d *discovery) create(ctx context.Context, t txn.Topic, remote string) (txn.Topic, error) {
	described, err := kadm.NewClient(d.source).DescribeTopicConfigs(ctx, t.Name)
	if err != nil {
		return txn.Topic{}, fmt.Errorf("describe settings of %s: %w", t.Name, err)
	}
	source := map[string]string{}
	for _, rc := range described {
		for _, c := range rc.Configs {
			if c.Value != nil {
				source[c.Key] = *c.Value
			}
		}
	}
	if err := createTopic(ctx, d.target, remote, int32(len(t.Leaders)), remoteConfigs(source)); err != nil {
		return txn.Topic{}, err
	}
	d.cfg.Logger.Info("created remote topic", "topic", remote, "partitions", len(t.Leaders))
	return awaitTopic(ctx, d.target, remote)
}

func (d *discovery) grow(ctx context.Context, remote string, partitions int) error {
	resp, err := kadm.NewClient(d.target).UpdatePartitions(ctx, partitions, remote)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("add partitions to %s: %w", remote, err)
	}
	d.cfg.Logger.Info("added partitions to remote topic", "topic", remote, "partitions", partitions)
	return nil
}

// createTopic makes a topic; that it exists already is no error.
func createTopic(ctx context.Context, cl *kgo.Client, name string, partitions int32, configs map[string]*string) error {
	resp, err := kadm.NewClient(cl).CreateTopics(ctx, partitions, -1, configs, name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	if r := resp[name]; r.Err != nil && !errors.Is(r.Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w (%s)", name, r.Err, r.ErrMessage)
	}
	return nil
}

// awaitTopic returns a topic that was just made once its partitions have leaders.
func awaitTopic(ctx context.Context, cl *kgo.Client, name string) (txn.Topic, error) {
	for {
		all, err := txn.Describe(ctx, cl, name)
		if t, ok := all[name]; err == nil && ok && len(t.Leaders) > 0 && !slices.Contains(t.Leaders, -1) {
			return t, nil
		}
		if sleep.For(ctx, askPause) != nil {
			return txn.Topic{}, fmt.Errorf("await topic %s: %w", name, errors.Join(ctx.Err(), err))
		}
	}
}
