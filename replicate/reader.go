package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

const (
	// How long a fetch waits at the broker, at first and at most: the wait doubles with each
	// fetch that brings nothing. A partition that is assigned meanwhile waits for it.
	fetchWait       = 250 * time.Millisecond
	fetchWaitMost   = 2 * time.Second
	fetchRetry      = 100 * time.Millisecond
	minPartFetch    = 16 << 10
	readCommitted   = 1
	noSession       = 0
	resolveInterval = 250 * time.Millisecond
)

// reader fetches a shard's partitions, one session and goroutine for each broker
// that leads any of them. While the shard is busy with a transaction it goes on and
// collects what it gets, so that the next transaction takes all there is; it waits
// when that is as much as one fetch may bring.
//
// The client must be the reader's own: a client has one fetch connection for a
// broker, which serves one request at a time.
type reader struct {
	cl       *kgo.Client
	bytes    int // of one fetch
	barriers BarrierChecker
	log      *slog.Logger
	ready    chan struct{} // holds one signal: something was collected
	enough   chan struct{} // holds one signal: smallTransaction bytes were collected
	wake     chan struct{} // holds one signal
	broken   chan error    // holds one: a panic of the reader's work

	mu                sync.Mutex
	collected         Fetched             // guarded by mu, as everything below
	collectedBytes    int                 // bytes in collected
	room              chan struct{}       // closed when collected is emptied
	reading           int                 // number of the current reading
	parts             map[Part]*cursor    // what is fetched
	sessions          map[int32]bool      // brokers that have a goroutine
	assignmentVersion map[int32]int       // by broker: counts changes of its partitions
	names             map[[16]byte]string // topics by id
}

// cursor is how far the reading of a partition has come.
type cursor struct {
	stream   Stream
	offset   int64
	leader   int32
	epoch    int32 // the leader's, -1 unknown
	resolved bool
}

func newReader(cl *kgo.Client, bytes int, barriers BarrierChecker, log *slog.Logger) *reader {
	return &reader{
		cl: cl, bytes: bytes, barriers: barriers, log: log,
		ready: make(chan struct{}, 1), enough: make(chan struct{}, 1), wake: make(chan struct{}, 1), broken: make(chan error, 1), room: make(chan struct{}),
		parts: map[Part]*cursor{}, sessions: map[int32]bool{}, assignmentVersion: map[int32]int{}, names: map[[16]byte]string{},
	}
}

// read begins a new reading; what was collected for an earlier one is dropped.
func (r *reader) read(number int, from map[Part]ReadFrom) {
	r.mu.Lock()
	r.reading = number
	r.empty()
	old := r.parts
	r.parts = make(map[Part]*cursor, len(from))
	for part, f := range from {
		c := &cursor{stream: f.Stream, offset: f.Offset, epoch: -1}
		if o := old[part]; o != nil && o.stream == f.Stream {
			c.leader, c.epoch, c.resolved = o.leader, o.epoch, o.resolved
		}
		r.parts[part] = c
		r.names[f.Stream.Source] = part.Topic
	}
	for b := range r.assignmentVersion {
		r.assignmentVersion[b]++
	}
	r.mu.Unlock()
	r.signal()
}

// take returns what was collected since the last call, perhaps nothing.
func (r *reader) take() Fetched {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.empty()
}

// empty takes what was collected; the caller holds mu.
func (r *reader) empty() Fetched {
	out := r.collected
	r.collected, r.collectedBytes = Fetched{Reading: r.reading}, 0
	close(r.room)
	r.room = make(chan struct{})
	select {
	case <-r.enough:
	default:
	}
	return out
}

// collect adds an answer as soon as there is room for it; where nothing is collected
// any fits. An answer of an earlier reading is dropped.
func (r *reader) collect(ctx context.Context, answer Fetched, weight int) {
	r.mu.Lock()
	for answer.Reading == r.reading && len(r.collected.Parts) > 0 && r.collectedBytes+weight > r.bytes {
		room := r.room
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-room:
		}
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	if answer.Reading != r.reading {
		return
	}
	r.collected.Parts = append(r.collected.Parts, answer.Parts...)
	r.collectedBytes += weight
	signal(r.ready)
	if r.collectedBytes >= smallTransaction {
		signal(r.enough)
	}
}

// leave stops fetching a partition.
func (r *reader) leave(part Part) {
	r.mu.Lock()
	if c := r.parts[part]; c != nil {
		r.assignmentVersion[c.leader]++
		delete(r.parts, part)
	}
	r.mu.Unlock()
}

// guard runs the reader's work; the shard learns of a panic from broken.
func (r *reader) guard(work func()) {
	if err := defect.Guard(func() error { work(); return nil })(); err != nil {
		select {
		case r.broken <- err:
		default: // one is enough
		}
	}
}

func (r *reader) signal() { signal(r.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run finds leaders and keeps a session for each, until ctx ends.
func (r *reader) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		wait := r.resolve(ctx)
		r.mu.Lock()
		for _, c := range r.parts {
			if c.resolved && !r.sessions[c.leader] {
				r.sessions[c.leader] = true
				s := session{r: r, broker: c.leader}
				wg.Go(func() { r.guard(func() { s.run(ctx) }) })
			}
		}
		r.mu.Unlock()
		var again <-chan time.Time
		if wait {
			again = time.After(resolveInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-again:
		}
	}
}

// resolve looks up leaders that are not known; it tells whether some are missing
// still.
func (r *reader) resolve(ctx context.Context) (missing bool) {
	ask := map[string]bool{}
	r.mu.Lock()
	for part, c := range r.parts {
		if !c.resolved {
			ask[part.Topic] = true
		}
	}
	r.mu.Unlock()
	if len(ask) == 0 {
		return false
	}
	names := make([]string, 0, len(ask))
	for n := range ask {
		names = append(names, n)
	}
	found, err := txn.Describe(ctx, r.cl, names...)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("cannot look up leaders at the source; will try again", "err", err)
		}
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for part, c := range r.parts {
		t, ok := found[part.Topic]
		if c.resolved {
			continue
		}
		if !ok || t.ID != c.stream.Source || int(part.Number) >= len(t.Leaders) || t.Leaders[part.Number] < 0 {
			missing = true // discovery will tell when the topic is gone
			continue
		}
		c.leader, c.epoch, c.resolved = t.Leaders[part.Number], t.Epochs[part.Number], true
		r.assignmentVersion[c.leader]++
	}
	return missing
}

// session is the fetching from one broker.
type session struct {
	r      *reader
	broker int32

	id                int32
	epoch             int32
	assignmentVersion int // of the reader's partitions when the session was made
	lastOffsets       map[Part]int64
	partsMax          int32
	leaderUnknown     bool // a partition's leader must be looked up; do not hurry
	wait              time.Duration
}

// longPoll is how long the next fetch waits.
func (s *session) longPoll() time.Duration {
	s.wait = min(max(s.wait, fetchWait), fetchWaitMost)
	defer func() { s.wait *= 2 }()
	return s.wait
}

// run fetches until ctx ends or no partition is left at the broker.
func (s *session) run(ctx context.Context) {
	for ctx.Err() == nil {
		req, reading, ok := s.request()
		if !ok {
			return
		}
		began := time.Now()
		kresp, err := s.r.cl.Broker(int(s.broker)).Request(ctx, req)
		resp, isFetch := kresp.(*kmsg.FetchResponse)
		switch {
		case err != nil:
			s.requestFailed(ctx, err)
			continue
		case !isFetch:
			s.requestFailed(ctx, fmt.Errorf("answer %T", kresp))
			continue
		case resp.ErrorCode == kerr.FetchSessionIDNotFound.Code || resp.ErrorCode == kerr.InvalidFetchSessionEpoch.Code:
			s.id, s.lastOffsets = noSession, nil
			continue
		case resp.ErrorCode != 0:
			s.requestFailed(ctx, kerr.ErrorForCode(resp.ErrorCode))
			continue
		}
		s.id = resp.SessionID
		s.epoch++
		answer := s.take(ctx, resp, reading)
		if s.id == noSession {
			s.lastOffsets = nil // the broker keeps none for us: ask for everything each time
		}
		if s.leaderUnknown {
			s.leaderUnknown = false
			_ = sleep.For(ctx, fetchRetry) // the session's loop looks at the context
		}
		if len(answer.Parts) == 0 {
			continue
		}
		s.wait = 0
		weight := batchBytes(resp)
		s.r.collect(ctx, answer, weight)
		if left := fetchPause(time.Since(began), weight); left > 0 {
			_ = sleep.For(ctx, left) // the session's loop looks at the context
		}
	}
}

// batchBytes is the size of an answer's batches.
func batchBytes(resp *kmsg.FetchResponse) (bytes int) {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			bytes += len(resp.Topics[i].Partitions[j].RecordBatches)
		}
	}
	return bytes
}

// requestFailed drops the session after a request failed, and has leaders looked up
// again.
func (s *session) requestFailed(ctx context.Context, err error) {
	s.id, s.lastOffsets = noSession, nil
	if ctx.Err() != nil {
		return
	}
	s.r.log.Warn("cannot fetch from the source; will try again", "broker", s.broker, "err", err)
	s.r.mu.Lock()
	for _, c := range s.r.parts {
		if c.leader == s.broker {
			c.resolved = false
		}
	}
	s.r.mu.Unlock()
	s.r.signal()
	_ = sleep.For(ctx, fetchRetry) // the session's loop looks at the context
}

// request builds the next fetch: what changed since the last one, or everything.
// ok is false when nothing is left to fetch here; then the session is over.
func (s *session) request() (req *kmsg.FetchRequest, reading int, ok bool) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := 0
	for _, c := range r.parts {
		if c.resolved && c.leader == s.broker {
			mine++
		}
	}
	if mine == 0 {
		delete(r.sessions, s.broker)
		return nil, 0, false
	}
	if s.lastOffsets == nil || s.assignmentVersion != r.assignmentVersion[s.broker] {
		if s.assignmentVersion != r.assignmentVersion[s.broker] {
			s.wait = 0
		}
		s.lastOffsets, s.epoch, s.assignmentVersion = map[Part]int64{}, 0, r.assignmentVersion[s.broker]
		// An answer cut short inside a partition may lose its list of aborted
		// transactions on the embedded broker: let every partition fit.
		s.partsMax = int32(max(r.bytes/mine, minPartFetch))
	}
	req = kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(s.longPoll().Milliseconds())
	req.MinBytes = 1
	req.MaxBytes = max(int32(r.bytes), s.partsMax*int32(mine))
	req.IsolationLevel = readCommitted
	req.SessionID, req.SessionEpoch = s.id, s.epoch
	at := map[string]int{}
	for part, c := range r.parts {
		if told, was := s.lastOffsets[part]; !c.resolved || c.leader != s.broker || was && told == c.offset {
			continue
		}
		s.lastOffsets[part] = c.offset
		n, ok := at[part.Topic]
		if !ok {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = part.Topic, c.stream.Source
			n = len(req.Topics)
			at[part.Topic] = n
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = part.Number, c.offset, c.epoch, s.partsMax
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
	return req, r.reading, true
}

// take turns an answer into items and moves the cursors.
func (s *session) take(ctx context.Context, resp *kmsg.FetchResponse, reading int) Fetched {
	out := Fetched{Reading: reading}
	for t := range resp.Topics {
		rt := &resp.Topics[t]
		name := rt.Topic
		if resp.Version >= 13 {
			s.r.mu.Lock()
			name = s.r.names[rt.TopicID]
			s.r.mu.Unlock()
		}
		for i := range rt.Partitions {
			rp := &rt.Partitions[i]
			part := Part{name, rp.Partition}
			from, stream, ok := s.r.cursor(part, reading)
			if !ok {
				continue
			}
			f := FetchedPart{Part: part, Stable: rp.LastStableOffset}
			switch {
			case rp.ErrorCode != 0:
				f.Err = s.partError(part, rp.ErrorCode)
			default:
				f.Items, f.Err = s.r.scan(ctx, &stream, rp, from)
			}
			if len(f.Items) > 0 {
				s.r.move(part, reading, f.Items[len(f.Items)-1].Next)
			}
			if f.Err != nil {
				s.r.leave(part) // until a new reading says otherwise
			}
			if len(f.Items) > 0 || f.Err != nil {
				out.Parts = append(out.Parts, f)
			}
		}
	}
	return out
}

// partError decides what a partition's error means: an error for the shard, or
// nil when only the leader has to be looked up again.
func (s *session) partError(part Part, code int16) error {
	switch err := kerr.ErrorForCode(code); {
	case errors.Is(err, kerr.NotLeaderForPartition), errors.Is(err, kerr.FencedLeaderEpoch), errors.Is(err, kerr.OffsetOutOfRange):
		return &SourceError{}
	case kerr.IsRetriable(err):
		s.r.mu.Lock()
		if c := s.r.parts[part]; c != nil {
			c.resolved = false
		}
		s.r.mu.Unlock()
		s.lastOffsets, s.leaderUnknown = nil, true
		s.r.signal()
		return nil
	default:
		return fmt.Errorf("fetch: %w", err)
	}
}

func (r *reader) cursor(part Part, reading int) (offset int64, s Stream, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.parts[part]
	if c == nil || r.reading != reading {
		return 0, Stream{}, false
	}
	return c.offset, c.stream, true
}

func (r *reader) move(part Part, reading int, next int64) {
	r.mu.Lock()
	if c := r.parts[part]; c != nil && r.reading == reading {
		c.offset = next
	}
	r.mu.Unlock()
}

// scan reads one partition's answer and asks of each commit marker whether it is
// a barrier.
func (r *reader) scan(ctx context.Context, s *Stream, rp *kmsg.FetchResponseTopicPartition, from int64) ([]Item, error) {
	items, commits, err := scanSafely(rp.RecordBatches, rp.AbortedTransactions, from)
	if s.Control || r.barriers == nil {
		return items, err
	}
	markers := make([]control.Marker, len(commits))
	for i, m := range commits {
		markers[i] = control.Marker{Topic: s.Source, Partition: s.Number, Producer: m.producer, Epoch: m.epoch}
	}
	_ = r.barriers.Decide(ctx, markers) // an error comes again below
	for _, m := range commits {
		barrier, berr := r.barriers.IsBarrier(ctx, s.Source, s.Number, m.producer, m.epoch)
		if berr != nil {
			if ctx.Err() == nil {
				r.log.Warn("cannot decide whether a marker is a barrier; will fetch it again", "topic", s.Topic, "partition", s.Number, "err", berr)
			}
			// The verdict must not be guessed: what lies before goes on, the
			// rest is fetched again.
			_ = sleep.For(ctx, fetchRetry) // the session's loop looks at the context
			return items[:m.item], &SourceError{}
		}
		if barrier {
			items[m.item].Kind = ItemBarrier
		}
	}
	return items, err
}
