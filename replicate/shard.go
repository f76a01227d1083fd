package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/txn"
)

const (
	// readWait is how long a read may go without progress: longer than the time-out of the
	// transactions of others, which may be open there.
	readWait   = 45 * time.Second
	finishWait = 2 * time.Second // for a transaction under way when the link is stopped
)

// shard carries out what a Core decides. Its goroutines are that of run and those
// of its reader.
type shard struct {
	cfg    *Config
	number int
	gen    Generation
	log    *slog.Logger

	source, fetch, target *kgo.Client
	atSource, atTarget    *leaderClient
	producer              *txn.Producer
	reader                *reader
	assigned              chan []Stream
	streams               []Stream        // that were assigned; only handle touches them
	intervalsChanged      <-chan struct{} // closed when the register may know more of them; likewise
	began                 time.Time       // of the last transaction; likewise
	took                  time.Duration   // that it took; likewise

	// before is called before each effect is carried out; an error ends the shard
	// on the spot, as a kill would. Only tests set it.
	before func(effect any) error

	mu           sync.Mutex
	core         *Core  // guarded by mu, as everything below
	version      uint64 // of the policy that the core knows of
	commits      int64
	resets       int64
	lastErr      error
	failingSince time.Time // since when nothing has succeeded, zero while all is well
	stopErr      error
}

// newShard makes a shard of a link. It fetches over a client of its own, and all shards but
// the first have one for the target, too: the first uses the link's, whose connections are
// open already.
func newShard(cfg *Config, gen Generation, number int, source *kgo.Client, atTarget *leaderClient) (*shard, error) {
	s := &shard{
		cfg: cfg, number: number, gen: gen, source: source,
		log:      cfg.Logger.With("shard", number),
		assigned: make(chan []Stream, 1),
		core:     NewCore(cfg.coreConfig(gen, number)),
	}
	var err error
	if s.fetch, err = cfg.source(); err != nil {
		return nil, err
	}
	s.target, s.atTarget = atTarget.cl, atTarget
	if number > 0 {
		if s.target, err = cfg.target(); err != nil {
			s.fetch.Close()
			return nil, err
		}
		s.atTarget = newLeaderClient(s.target, cfg.Decoder)
	}
	s.atSource = newLeaderClient(source, cfg.Decoder)
	s.producer = txn.New(s.target, ShardID(cfg.From.Name, cfg.To.Name, gen.Number, number), txn.Options{Topics: s.atTarget.topics})
	s.reader = newReader(s.fetch, max(cfg.FetchBytes/gen.Shards, minPartFetch), cfg.Barriers, s.log)
	return s, nil
}

// assign replaces the shard's streams; it never waits.
func (s *shard) assign(streams []Stream) {
	select {
	case <-s.assigned:
	default:
	}
	s.assigned <- streams
}

// run works until ctx ends (nil) or the core stops.
func (s *shard) run(ctx context.Context) error {
	defer s.fetch.Close()
	if s.number > 0 {
		defer s.target.Close()
	}
	rctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.reader.guard(func() { s.reader.run(rctx) }) })
	defer wg.Wait()
	defer stop()

	err := s.handle(ctx, Start{})
	for err == nil {
		var ev any
		if ev, err = s.wait(ctx); ev == nil {
			break
		}
		err = s.handle(ctx, ev)
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		err = nil
	}
	s.setStopped(err)
	return err
}

// setStopped says in the status why the shard has ended.
func (s *shard) setStopped(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopErr = err
}

// wait returns the next event, nil when ctx ends or the reader is broken.
func (s *shard) wait(ctx context.Context) (any, error) {
	s.mu.Lock()
	wake, idle := s.core.Wake(), s.core.phase == phaseIdle
	s.mu.Unlock()
	var timer, pauseOver <-chan time.Time
	if !wake.IsZero() {
		t := time.NewTimer(max(time.Until(wake), 0))
		defer t.Stop()
		timer = t.C
	}
	var fetched <-chan struct{} // only an idle shard takes more: that is the back-pressure
	if idle {
		fetched = s.reader.ready
	}
	if left := transactionPause(time.Since(s.began), s.took); idle && left > 0 {
		t := time.NewTimer(left)
		defer t.Stop()
		fetched, pauseOver = s.reader.enough, t.C
	}
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-s.reader.broken:
		return nil, err
	case streams := <-s.assigned:
		return Assigned{streams}, nil
	case <-s.intervalsChanged:
		return Tick{}, nil
	case <-fetched:
		return s.reader.take(), nil
	case <-pauseOver:
		return s.reader.take(), nil
	case <-timer:
		return Tick{}, nil
	}
}

// handle gives the core an event and carries out what follows from it, until it
// is at rest.
func (s *shard) handle(ctx context.Context, ev any) error {
	queue := []any{ev}
	for len(queue) > 0 {
		s.mu.Lock()
		now := time.Now().Round(0) // wall clock: a suspended machine counts
		effects := append(s.applyPolicyVersion(now), s.applyIntervals(now, queue[0])...)
		effects = append(effects, s.core.Step(now, queue[0])...)
		s.observe(queue[0])
		s.mu.Unlock()
		queue = queue[1:]
		for _, e := range effects {
			if s.before != nil {
				if err := s.before(e); err != nil {
					return err
				}
			}
			next, err := s.carryOut(ctx, e)
			if err != nil {
				return err
			}
			if next != nil {
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// applyPolicyVersion tells the core of a change of the policy, before anything that follows
// the change; mu is held.
func (s *shard) applyPolicyVersion(now time.Time) []any {
	if s.cfg.Border == nil {
		return nil
	}
	v := s.cfg.Border.Version()
	if v == s.version {
		return nil
	}
	s.version = v
	return s.core.Step(now, PolicyChanged{v})
}

// applyIntervals tells the core what the register knows of its streams, whenever that
// may be more than before, ahead of an event; mu is held.
func (s *shard) applyIntervals(now time.Time, ev any) []any {
	if s.cfg.Intervals == nil {
		return nil
	}
	if a, ok := ev.(Assigned); ok {
		s.streams = a.Streams
	} else {
		select {
		case <-s.intervalsChanged:
		default:
			return nil
		}
	}
	s.intervalsChanged = s.cfg.IntervalsChanged() // before it is asked: nothing is missed
	authorities := make(map[Part]*event.ValidityTable, len(s.streams))
	for i := range s.streams {
		if st := &s.streams[i]; !st.Control {
			authorities[st.Part] = s.cfg.Intervals(st.Topic, st.Number)
		}
	}
	return s.core.Step(now, IntervalsChanged{authorities})
}

// observe keeps what status shows.
func (s *shard) observe(ev any) {
	var err error
	switch ev := ev.(type) {
	case Inited:
		err = ev.Err
	case GenerationRead:
		err = ev.Err
	case PositionsRead:
		err = ev.Err
	case Listed:
		err = ev.Err
	case Produced:
		err = ev.Err
	case Audited:
		err = ev.Err
	case Ended:
		if err = ev.Err; err == nil {
			s.commits++
		}
	default:
		return
	}
	if s.core.phase == phaseBackoff {
		s.resets++
		if s.failingSince.IsZero() {
			s.failingSince = time.Now()
		}
		s.lastErr = err
		s.log.Warn("restart the shard: initialise its producer and read its positions again", "err", err)
	} else if s.core.phase == phaseIdle {
		s.failingSince, s.lastErr = time.Time{}, nil
	}
}

// carryOut carries out one effect and returns the event that ends it, if any.
func (s *shard) carryOut(ctx context.Context, effect any) (any, error) {
	switch e := effect.(type) {
	case Init:
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return Inited{s.producer.Init(ctx)}, nil
	case ReadGeneration:
		found, err := findGeneration(ctx, s.atTarget, s.cfg.positions(), s.cfg.skipper(s.log))
		return GenerationRead{found, err}, nil
	case ReadPositions:
		return s.readPositions(ctx), nil
	case List:
		return Listed{Listings: s.list(ctx, e.Streams)}, nil
	case Read:
		s.reader.read(e.Number, e.From)
	case Leave:
		s.reader.leave(e.Part)
	case Audit:
		return Audited{s.audit(ctx, e.Decided)}, nil
	case Produce:
		return s.produce(ctx, e)
	case End:
		tctx, release := txn.WithGrace(ctx, finishWait)
		defer release()
		tctx, stop := s.cancelOnCut(tctx)
		defer stop()
		_, err := s.producer.End(tctx, true)
		if errors.Is(context.Cause(tctx), errCut) && err != nil {
			err = errCut
		}
		s.took = time.Since(s.began)
		return Ended{err}, nil
	case Report:
		x := e.Incident
		if e.Ended {
			why := "the log still has all that was copied"
			if x.Kind == RetentionGap {
				why = "what was lost was accepted"
			}
			s.log.Warn("an incident on a link has ended, and the partition goes on", "because", why,
				"kind", x.Kind.String(), "topic", x.Topic, "partition", x.Partition)
			break
		}
		s.cfg.reportDefect(s.log, fmt.Sprintf("%s %s/%d", s.cfg.Name, x.Topic, x.Partition), e.Cause, "the link has parked the partition")
		if x.Kind == RetentionGap && s.cfg.Incidents != nil {
			s.cfg.Incidents.Report(s.core.lost(x))
		}
		s.log.Error("incident on a link", "kind", x.Kind.String(), "topic", x.Topic, "partition", x.Partition,
			"from", x.From, "until", x.Until, "parked", x.Kind.Parks(), "detail", x.Detail)
	case Stop:
		return nil, e.Err
	default:
		return nil, fmt.Errorf("replicate: effect %T", effect)
	}
	return nil, nil
}

func (s *shard) produce(ctx context.Context, e Produce) (any, error) {
	s.mu.Lock()
	first := s.core.phase == phaseProduce
	s.mu.Unlock()
	if first {
		if ctx.Err() != nil {
			return nil, ctx.Err() // nothing of this transaction was sent
		}
		s.began = time.Now()
	}
	tctx, release := txn.WithGrace(ctx, finishWait)
	defer release()
	tctx, stop := s.cancelOnPolicyChange(tctx, &e)
	defer stop()
	tctx, release = s.cancelOnCut(tctx)
	defer release()
	out := Produced{}
	if out.Produced, out.Err = s.producer.Produce(tctx, e.Batches); out.Err != nil {
		if cause := context.Cause(tctx); errors.Is(cause, errPolicyChanged) || errors.Is(cause, errCut) {
			out.Err = cause
		}
		return out, nil
	}
	// After the produce: a leader that changed in between shows.
	parts := make([]topicPartition, len(e.Check))
	for i, c := range e.Check {
		parts[i] = topicPartition{Topic: c.Remote, Partition: c.Number}
	}
	listed := s.atTarget.listOffsets(tctx, latest, false, parts)
	out.Epochs = make(map[Part]int32, len(parts))
	for i, c := range e.Check {
		l := listed[parts[i]]
		if l.err != nil {
			out.Err = fmt.Errorf("list epoch of %s/%d: %w", c.Remote, c.Number, l.err)
			return out, nil
		}
		if l.epoch >= 0 {
			out.Epochs[c.Part] = l.epoch
		}
	}
	return out, nil
}

var errPolicyChanged = errors.New("replicate: the residency policy has changed while records were being sent")

// cancelOnPolicyChange ends ctx when the policy changes under which records are being sent. A
// target that is away makes that last, and what was allowed when it began may not
// be when it is back. What is on its way by then stays aborted.
func (s *shard) cancelOnPolicyChange(ctx context.Context, e *Produce) (context.Context, func()) {
	if s.cfg.Border == nil || !slices.ContainsFunc(e.Check, func(st Stream) bool { return st.Ruling != nil }) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	changed := s.cfg.Border.Changed() // before the version is asked: nothing is missed
	if s.cfg.Border.Version() != s.version {
		cancel(errPolicyChanged)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-changed:
			cancel(errPolicyChanged)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}

var errCut = errors.New("replicate: records that were being sent lie past a cut that became known")

// cancelOnCut ends ctx when a cut becomes known that takes out records of the
// transaction under way. A produce or a commit to a target that is away can last longer
// than a fence takes; sent again, it would copy records that the link knows are orphans.
// If the commit went through all the same, the committed position says so.
func (s *shard) cancelOnCut(ctx context.Context) (context.Context, func()) {
	if s.cfg.Intervals == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			changed := s.cfg.IntervalsChanged() // before they are asked: nothing is missed
			s.mu.Lock()
			cut := s.core.planCut(s.cfg.Intervals)
			s.mu.Unlock()
			if cut {
				cancel(errCut)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}

// findGeneration finds the record, read to a high watermark that is no older than the call.
// A record that cannot be read is skipped; it is an error only if there is no other.
func findGeneration(ctx context.Context, a *leaderClient, topic string, skip func(at topicPartition, offset int64, err error)) (Found, error) {
	g := generationReader{topic: topic, skip: skip}
	return g.found(a.readWithoutWaiting(ctx, topicPartition{Topic: topic}, g.counts, g.take))
}

// peekGeneration finds what is committed of the record now.
func peekGeneration(ctx context.Context, a *leaderClient, topic string) (Found, error) {
	g := generationReader{topic: topic, skip: func(topicPartition, int64, error) {}} // findGeneration reports them
	_, _, err := a.readStable(ctx, topicPartition{Topic: topic}, 0, g.take)
	return g.found(err)
}

// generationReader finds the newest generation record among those of its partition.
type generationReader struct {
	topic     string
	skip      func(at topicPartition, offset int64, err error)
	newest    Found
	malformed error
}

func (g *generationReader) counts(r *txn.Record) bool { return string(r.Key) == GenerationKey }

func (g *generationReader) take(r *txn.Record) error {
	if !g.counts(r) {
		return nil
	}
	record, err := ParseGeneration(r.Value)
	switch {
	case err == nil:
		g.newest, g.malformed = Found{record, true}, nil
	case !g.newest.Exists:
		g.malformed = err // compaction may have dropped the link's own
	}
	if err != nil {
		g.skip(topicPartition{Topic: g.topic}, r.Offset, err)
	}
	return nil
}

func (g *generationReader) found(err error) (Found, error) {
	if err == nil {
		err = g.malformed
	}
	if err != nil {
		return Found{}, fmt.Errorf("find generation: %w", err)
	}
	return g.newest, nil
}

// readPositions reads the shard's slots, all at the same time, however much there is.
func (s *shard) readPositions(ctx context.Context) PositionsRead {
	skip := s.cfg.skipper(s.log)
	read := positionRecords{last: map[posKey]PositionRecord{}}
	var slots []topicPartition
	for slot := s.number; slot < control.LinkPartitions; slot += s.gen.Shards {
		slots = append(slots, topicPartition{Topic: s.cfg.positions(), Partition: int32(slot)})
	}
	err := s.atTarget.readAllToEnd(ctx, slots, func(at topicPartition, r *txn.Record) error {
		if err := read.take(r.Key, r.Value); err != nil {
			skip(at, r.Offset, err)
		}
		return nil
	})
	if err != nil {
		return PositionsRead{Err: fmt.Errorf("read positions: %w", err)}
	}
	out := PositionsRead{Incidents: read.incidents}
	for _, p := range read.last {
		out.Positions = append(out.Positions, p)
	}
	return out
}

// list asks both clusters about streams.
func (s *shard) list(ctx context.Context, streams []ListStream) map[Part]Listing {
	var at, to []topicPartition
	atEpochs, toEpochs := map[topicPartition]int32{}, map[topicPartition]int32{}
	for _, l := range streams {
		from, there := topicPartition{Topic: l.Topic, Partition: l.Number}, topicPartition{Topic: l.Remote, Partition: l.Number}
		at, to = append(at, from), append(to, there)
		if l.SourceEpoch >= 0 {
			atEpochs[from] = l.SourceEpoch
		}
		if l.TargetEpoch >= 0 {
			toEpochs[there] = l.TargetEpoch
		}
	}
	// The cache of topics is as old as the last listing, so each cluster is asked again,
	// once for all of them.
	s.atSource.topics.Forget(names(at)...)
	s.atTarget.topics.Forget(names(to)...)
	var starts, sourceEnds, sourceEpochs, targetEpochs, targetEnds map[topicPartition]offsetAnswer
	var asked sync.WaitGroup
	asked.Go(func() {
		starts = s.atSource.listOffsets(ctx, earliest, false, at)
		sourceEnds = s.atSource.listOffsets(ctx, latest, false, at)
		sourceEpochs = s.atSource.epochEnds(ctx, atEpochs)
	})
	// The order of the two does not matter: what has changed in between shows at the
	// first produce, whose offsets and epochs are compared with these.
	there, failed := s.atTarget.topics.LookupAll(ctx, names(to)...)
	asked.Go(func() { targetEpochs = s.atTarget.epochEnds(ctx, toEpochs) })
	asked.Go(func() { targetEnds = s.atTarget.listOffsets(ctx, latest, false, to) })
	asked.Wait()
	out := make(map[Part]Listing, len(streams))
	for i, l := range streams {
		x := listing(&l, there[l.Remote], failed[l.Remote], starts[at[i]], sourceEnds[at[i]], targetEnds[to[i]],
			endOf(sourceEpochs, at[i]), endOf(targetEpochs, to[i]))
		if x.Err == nil && x.SourceStart > l.Next && s.cfg.Incidents != nil {
			place := incident.Place{Kind: incident.Link, Log: l.Source, Partition: l.Number, To: s.cfg.To.ID, From: l.Next}
			x.Accepted, _ = s.cfg.Incidents.Missing(place, x.SourceStart)
		}
		out[l.Part] = x
	}
	return out
}

// endOf is what was answered about an epoch's end; -1 (unknown) if nothing was asked.
func endOf(ends map[topicPartition]offsetAnswer, p topicPartition) offsetAnswer {
	if e, ok := ends[p]; ok {
		return e
	}
	return offsetAnswer{offset: -1}
}

// listing puts together what was answered about a stream: there is its remote topic, or err
// says why it is not known.
func listing(l *ListStream, there txn.Topic, err error, start, sourceEnd, targetEnd, sourceEpoch, targetEpoch offsetAnswer) Listing {
	out := Listing{
		SourceStart: start.offset, SourceEnd: sourceEnd.offset, SourceEpochEnd: sourceEpoch.offset,
		TargetEnd: targetEnd.offset, TargetEpoch: -1, TargetEpochEnd: targetEpoch.offset,
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) && start.err == nil && sourceEnd.err == nil {
		return out // no topic has the id that the stream's has: it is gone
	}
	if out.Err = errors.Join(err, start.err, sourceEnd.err, targetEnd.err, sourceEpoch.err, targetEpoch.err); out.Err != nil {
		return out
	}
	out.Target = there.ID
	if int(l.Number) < len(there.Epochs) {
		out.TargetEpoch = there.Epochs[l.Number]
	}
	return out
}
