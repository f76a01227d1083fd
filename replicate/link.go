package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
)

const (
	// startRetry and startRetryMost are the pause between two attempts to start, at first and
	// at most.
	startRetry     = 500 * time.Millisecond
	startRetryMost = 4 * time.Second
	// sayEvery is the least time between two lines of the log that say that the link does not start.
	sayEvery = time.Minute

	lagStale = 10 * time.Second // without an answer from the source, lag is unknown

	lookSoon     = 200 * time.Millisecond // after topics were found
	lookSoonMost = time.Second
)

// Link copies the local topics of one region to another. New makes it, Run runs
// it once; Status and Topics may be called at any time.
//
// Goroutines: Run's own looks for topics; one looks at lag; each shard has one
// and its reader's. All end with Run.
type Link struct {
	cfg     Config
	matcher *router.Matcher
	metrics *metrics

	before func(shard int, effect any) error // see shard.before

	mu           sync.Mutex
	shards       []*shard      // guarded by mu, as everything below
	rulings      []TopicRuling // of the last look at the topics
	lagUnknown   bool          // a copy was found that may be the link's to continue
	dataTopics   int           // topics of data that are carried
	discoveries  int           // how often topics were looked for
	err          error
	failingSince time.Time
	lag          lag
}

// New checks the configuration (ErrConfig) and makes a link. It connects to
// nothing before Run.
func New(cfg Config) (*Link, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	m, err := router.NewMatcher(cfg.Include, cfg.Exclude)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l := &Link{cfg: cfg, matcher: m, lag: newLag()}
	if cfg.Registerer != nil {
		l.metrics = newMetrics(l)
		if err := cfg.Registerer.Register(l.metrics); err != nil {
			return nil, fmt.Errorf("register metrics of link %s: %w", cfg.Name, err)
		}
	}
	return l, nil
}

// Run copies until ctx ends, then finishes the transactions under way and returns
// nil. It waits for clusters that cannot be reached. Its errors are final:
// ErrSameCluster, ErrSettings, and ErrGeneration or ErrTakenOver when another
// instance has started to run the link. A shard that stops for another reason stops
// alone.
func (l *Link) Run(ctx context.Context) error {
	source, err := l.cfg.source()
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := l.cfg.target()
	if err != nil {
		return err
	}
	defer target.Close()
	atTarget := newLeaderClient(target, l.cfg.Decoder)
	if l.metrics != nil {
		defer l.cfg.Registerer.Unregister(l.metrics)
	}
	for {
		gen, err := l.start(ctx, source, atTarget)
		if err != nil || ctx.Err() != nil {
			l.setErr(err)
			return err
		}
		err = l.runShards(ctx, source, atTarget, gen)
		if ctx.Err() != nil || !errors.Is(err, errGenerationLost) || tookOver(err) {
			return err
		}
		l.cfg.Logger.Warn("records of the link at the target were deleted; the link starts again", "err", err)
		l.setErr(err)
		if sleep.For(ctx, startRetry) != nil {
			return nil
		}
	}
}

// tookOver tells whether an error of a link says that another instance runs it.
func tookOver(err error) bool { return errors.Is(err, ErrTakenOver) || errors.Is(err, ErrGeneration) }

// start tries until the clusters have answered and the generation is agreed on.
func (l *Link) start(ctx context.Context, source *kgo.Client, target *leaderClient) (Generation, error) {
	var said time.Time
	for pause := startRetry; ; pause = min(2*pause, startRetryMost) {
		var gen Generation
		err := defect.Guard(func() (err error) {
			gen, err = l.tryStart(ctx, source, target)
			return err
		})()
		l.cfg.reportDefect(l.cfg.Logger, "link "+l.cfg.Name, err, "the link has not started, and tries again")
		switch {
		case err == nil:
			l.setErr(nil)
			return gen, nil
		case ctx.Err() != nil:
			return Generation{}, nil
		case errors.Is(err, ErrSameCluster), errors.Is(err, ErrSettings):
			return Generation{}, err
		}
		l.setErr(err)
		if now := time.Now(); now.Sub(said) >= sayEvery {
			l.cfg.Logger.Warn("cannot start the link; will try again", "err", err)
			said = now
		}
		_ = sleep.For(ctx, pause) // the loop looks at the context
	}
}

func (l *Link) setErr(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	switch {
	case err == nil:
		l.failingSince = time.Time{}
	case l.failingSince.IsZero():
		l.failingSince = time.Now()
	}
}

func (l *Link) tryStart(ctx context.Context, source *kgo.Client, target *leaderClient) (Generation, error) {
	from, err := clusterID(ctx, source)
	if err != nil {
		return Generation{}, fmt.Errorf("reach source: %w", err)
	}
	to, there, err := l.lookAtTarget(ctx, target.cl)
	if err != nil {
		return Generation{}, fmt.Errorf("reach target: %w", err)
	}
	if from == to {
		return Generation{}, fmt.Errorf("%w: %s and %s are both %q", ErrSameCluster, l.cfg.From.Name, l.cfg.To.Name, from)
	}
	if err := l.prepareTarget(ctx, target.cl, there); err != nil {
		return Generation{}, err
	}
	target.topics.Remember(there)
	connected := openConnections(ctx, target.cl, there)
	defer connected()
	if l.cfg.Border != nil {
		if err := prepareAudit(ctx, source); err != nil {
			return Generation{}, err
		}
	}
	return l.agree(ctx, target, from)
}

func clusterID(ctx context.Context, cl *kgo.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	m, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return "", err
	}
	if m.Cluster == "" {
		return "", errNoClusterID
	}
	return m.Cluster, nil
}

// openConnections connects to the brokers that lead topics, in the background, so that later
// requests find open connections. The function that it returns waits until all have
// answered.
func openConnections(ctx context.Context, cl *kgo.Client, topics map[string]txn.Topic) (wait func()) {
	leaders := map[int32]bool{}
	for _, t := range topics {
		for _, leader := range t.Leaders {
			leaders[leader] = leader >= 0
		}
	}
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	var all sync.WaitGroup
	for leader, known := range leaders {
		if known {
			all.Go(func() {
				req := kmsg.NewPtrMetadataRequest()
				req.Topics = []kmsg.MetadataRequestTopic{}      // no topics: nil would ask for all
				_, _ = cl.Broker(int(leader)).Request(ctx, req) // whoever needs the connection gets the error, too
			})
		}
	}
	return func() { all.Wait(); cancel() }
}

// internals are the internal topics that the link writes, with their partitions.
func (l *Link) internals() map[string]int32 {
	return map[string]int32{
		l.cfg.positions(): control.LinkPartitions, l.cfg.runs(): control.LinkPartitions,
		control.ControlFrom(l.cfg.From.Name): 1, control.TopicTopics: 1,
	}
}

// lookAtTarget asks the target for its id and the internal topics that it has.
func (l *Link) lookAtTarget(ctx context.Context, target *kgo.Client) (id string, there map[string]txn.Topic, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	id, there, err = txn.DescribeCluster(ctx, target, slices.Collect(maps.Keys(l.internals()))...)
	if err == nil && id == "" {
		err = errNoClusterID
	}
	return id, there, err
}

// errNoClusterID: without ids a link could copy a cluster to itself unnoticed.
var errNoClusterID = errors.New("the cluster does not say its id")

// prepareTarget makes the internal topics that are not there. The target's own gateway
// makes the same ones; either may come first.
func (l *Link) prepareTarget(ctx context.Context, target *kgo.Client, there map[string]txn.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	for name, partitions := range l.internals() {
		if t, exists := there[name]; exists && len(t.Leaders) > 0 && !slices.Contains(t.Leaders, -1) {
			continue
		}
		if err := createCompacted(ctx, target, name, partitions); err != nil {
			return err
		}
		if _, err := awaitTopic(ctx, target, name); err != nil {
			return err
		}
	}
	return nil
}

// createCompacted makes an internal topic with the settings that keep it short, or with its
// policy alone where the target refuses them.
func createCompacted(ctx context.Context, target *kgo.Client, name string, partitions int32) error {
	settings := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	plain := maps.Clone(settings)
	for key, value := range control.CompactedSettings(name != control.TopicTopics) {
		settings[key] = &value
	}
	err := createTopic(ctx, target, name, partitions, settings)
	if errors.Is(err, kerr.InvalidConfig) || errors.Is(err, kerr.PolicyViolation) {
		return createTopic(ctx, target, name, partitions, plain)
	}
	return err
}

// agree carries out an Agreement.
func (l *Link) agree(ctx context.Context, ask *leaderClient, cluster string) (Generation, error) {
	p := txn.New(ask.cl, GenerationID(l.cfg.From.Name, l.cfg.To.Name), txn.Options{Topics: ask.topics})
	a := NewAgreement(l.cfg.Shards, cluster)
	var found *Found
	for {
		effect, err := a.Step(found)
		if err != nil {
			return Generation{}, err
		}
		if l.before != nil {
			if err := l.before(-1, effect); err != nil {
				return Generation{}, err
			}
		}
		found = nil
		switch e := effect.(type) {
		case PeekGeneration:
			var f Found
			f, err = peekGeneration(ctx, ask, l.cfg.positions())
			found = &f
		case InitGeneration:
			err = p.Init(ctx)
		case FindGeneration:
			var f Found
			f, err = findGeneration(ctx, ask, l.cfg.positions(), l.cfg.skipper(l.cfg.Logger))
			found = &f
		case WriteGeneration:
			_, err = p.Commit(ctx, []txn.Record{{
				Topic: l.cfg.positions(), Key: []byte(GenerationKey), Value: e.Record.Append(nil), Timestamp: time.Now().UnixMilli(),
			}})
		case FenceShards:
			for i := range e.Shards {
				old := txn.New(ask.cl, ShardID(l.cfg.From.Name, l.cfg.To.Name, e.Number, i), txn.Options{Topics: ask.topics})
				if err = old.Init(ctx); err != nil {
					break
				}
			}
		case Agreed:
			return e.Record, nil
		}
		if err != nil {
			return Generation{}, fmt.Errorf("agree on a generation: %w", err)
		}
	}
}

// runShards runs the shards and gives them their streams.
func (l *Link) runShards(ctx context.Context, source *kgo.Client, target *leaderClient, gen Generation) error {
	l.mu.Lock()
	l.shards = nil
	l.mu.Unlock()
	for i := range gen.Shards {
		s, err := newShard(&l.cfg, gen, i, source, target)
		if err != nil {
			return err
		}
		if l.before != nil {
			s.before = func(effect any) error { return l.before(i, effect) }
		}
		l.mu.Lock()
		l.shards = append(l.shards, s)
		l.mu.Unlock()
	}
	l.cfg.Logger.Info("link started", "generation", gen.Number, "shards", gen.Shards)
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var shards, others sync.WaitGroup
	errs := make([]error, len(l.shards))
	for i, s := range l.shards {
		shards.Go(func() {
			if errs[i] = l.runShard(wctx, s); errs[i] != nil {
				l.cfg.Logger.Error("shard stopped", "shard", i, "err", errs[i])
			}
			if tookOver(errs[i]) || errors.Is(errs[i], errGenerationLost) {
				cancel() // another instance runs the link, all of it, or it starts again
			}
		})
	}
	others.Go(func() { l.discover(wctx, source, target.cl, gen) })
	others.Go(func() { l.followLag(wctx, source) })
	shards.Wait()
	cancel()
	others.Wait()
	return errors.Join(errs...)
}

// runShard runs a shard to its end. After a panic nothing of it runs any more, and its
// partitions stay as they are until the instance starts again; the process goes on.
func (l *Link) runShard(ctx context.Context, s *shard) error {
	err := defect.Guard(func() error { return s.run(ctx) })()
	if !l.cfg.reportDefect(s.log, fmt.Sprintf("link %s, shard %d", l.cfg.Name, s.number), err, "the shard copies nothing until the instance starts again") {
		return err
	}
	s.setStopped(err)
	<-ctx.Done()
	return nil
}

// discover lists topics, again and again, until ctx ends.
func (l *Link) discover(ctx context.Context, source, target *kgo.Client, gen Generation) {
	d := discovery{
		cfg: &l.cfg, matcher: l.matcher, source: source, target: target,
		sourceRegistry: newRegistry(newLeaderClient(source, l.cfg.Decoder), &l.cfg, ""),
		targetRegistry: newRegistry(newLeaderClient(target, l.cfg.Decoder), &l.cfg, l.cfg.To.Name),
		announced:      map[string]int64{}, covered: l.controlCovered, told: map[string]bool{}, copies: newCopies(),
	}
	d.facts = NewFacts(l.cfg.From, l.cfg.To, l.matcher, l.cfg.Border, l.cfg.Settings)
	if l.cfg.Ready != nil {
		select {
		case <-ctx.Done():
			return
		case <-l.cfg.Ready:
		}
	}
	blocked := map[string]bool{}
	looks := pace{most: l.cfg.DiscoverEvery}
	for ctx.Err() == nil {
		changed := l.policyChanged() // before the policy is asked
		var streams []Stream
		var rulings []TopicRuling
		err := defect.Guard(func() (err error) {
			streams, rulings, err = d.look(ctx)
			return err
		})()
		l.cfg.reportDefect(l.cfg.Logger, "link "+l.cfg.Name, err, "the link does not find new topics")
		if ctx.Err() != nil {
			return
		}
		l.setErr(err)
		if err != nil {
			l.cfg.Logger.Warn("cannot list the topics to copy; will try again", "err", err)
			_ = sleep.For(ctx, startRetry) // the loop looks at the context
			continue                       // streams whose ruling is outdated send nothing meanwhile
		}
		for _, r := range rulings {
			if r.Blocked && !blocked[r.Topic] {
				l.cfg.Logger.Warn("topic is not copied: blocked", "topic", r.Topic, "reason", r.Reason)
			}
			blocked[r.Topic] = r.Blocked
		}
		l.assign(streams, rulings, d.lagUnknown, gen)
		looks.most = max(l.cfg.DiscoverEvery, d.lookEvery)
		wait := looks.next(streams)
		if d.announcementPending {
			wait = min(wait, announceRetry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// pace says when to look for topics again. They are seldom made alone: those of a region
// that starts come one after the other, so whoever has found some looks again soon, a
// few times.
type pace struct {
	most time.Duration
	soon time.Duration
	had  map[Part]event.TopicID // what was found last
}

// next takes what was found, and gives the pause before the next look.
func (p *pace) next(found []Stream) time.Duration {
	has := make(map[Part]event.TopicID, len(found))
	for i := range found {
		has[found[i].Part] = found[i].Target
	}
	if p.had == nil || !maps.Equal(p.had, has) {
		p.soon = lookSoon
	}
	p.had = has
	wait := p.soon
	if p.soon *= 2; wait == 0 || wait > lookSoonMost {
		wait, p.soon = p.most, 0
	}
	return min(wait, p.most)
}

// policyChanged is closed when the policy changes; nil without one.
func (l *Link) policyChanged() <-chan struct{} {
	if l.cfg.Border == nil {
		return nil
	}
	return l.cfg.Border.Changed()
}

// controlCovered is how far the source's control topic has been carried.
func (l *Link) controlCovered() int64 {
	views, _ := l.views()
	for _, v := range views {
		if v.control && v.known {
			return v.covered
		}
	}
	return 0
}

// assign gives each shard the streams of its slots.
func (l *Link) assign(streams []Stream, rulings []TopicRuling, lagUnknown bool, gen Generation) {
	by := make([][]Stream, gen.Shards)
	for i := range streams {
		n := int(streams[i].Slot()) % gen.Shards
		by[n] = append(by[n], streams[i])
	}
	data := 0
	for _, r := range rulings {
		if r.Carried {
			data++
		}
	}
	l.mu.Lock()
	l.rulings, l.dataTopics, l.lagUnknown = rulings, data, lagUnknown
	l.discoveries++
	l.mu.Unlock()
	for i, s := range l.shards {
		s.assign(by[i])
	}
}

// Topics tells for every topic of the source what the link does with it and whether
// it has stopped at a cut, and which include or exclude patterns match nothing.
func (l *Link) Topics() (rulings []TopicRuling, idle []string) {
	views, _ := l.views()
	stopped := l.stoppedEntries(views)
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, len(l.rulings))
	for i, r := range l.rulings {
		names[i] = r.Topic
	}
	rulings = append(rulings, l.rulings...)
	addStopReasons(rulings, stopped)
	return rulings, l.matcher.Idle(names)
}
