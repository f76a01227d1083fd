package seat

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// Index finds what is known of an idempotency key (dedupe.Index).
type Index interface {
	// Find is the copy that a retry of the key is answered with; ok is false when
	// the key is free: never used, freed by a fence or by a cut (a copy that in
	// calls an orphan), or expired because every region's closed stamp has passed
	// its first use plus the window.
	Find(key event.IdempotencyKey, closed event.Stamp, in *event.ValidityTable) (c event.Copy, ok bool, err error)
}

// Clock makes stamps (hlc.Clock).
type Clock interface {
	Now() (hlc.Stamp, error)
	Observe(hlc.Stamp) error
	Restore(hlc.Stamp)
	Close() hlc.Stamp
}

// Surroundings is what a Core asks while it steps. All answer from memory or a
// local store, at once.
type Surroundings struct {
	Index     Index
	Clock     Clock
	Committed func() event.Vector // the fold's committed vector
	// Context is Folder.Context; nil: no origin is restricted, and it is the
	// committed vector.
	Context func(key []byte) (v event.Vector, restricted uint16, err error)
	Closed  func() event.Stamp       // lowest closed stamp of all regions
	NewID   func() (event.ID, error) // event.NewID
	// Permit says whether the region may write; nil: it always may, under the
	// epoch of the CoreConfig. Indexed is how far each origin's log is indexed,
	// for what a grant wants of it.
	Permit  WritePermit
	Indexed func() event.Vector
}

// What a seat takes at a time unless its CoreConfig says otherwise.
const (
	DefaultInFlight = 4096     // writes
	DefaultBytes    = 64 << 20 // of the writes in flight
)

// CoreConfig configures a Core.
type CoreConfig struct {
	Region      event.RegionID
	Incarnation uint16 // of the partition's log
	Partition   int32
	Epoch       event.Epoch // of the unit that owns the partition
	// Published is what control last said of the partition: the seat claims no
	// more until its own barrier was read, and never less.
	Published Claims

	MaxRecord   int           // bytes of one record, headers included; default 1 MiB
	MaxInFlight int           // writes; default DefaultInFlight
	MaxBytes    int           // of the writes in flight; default DefaultBytes
	RetryEvery  time.Duration // between attempts to open a term; default 200 ms
	// NoLog: there is no such partition in the own region. The seat takes no writes, so
	// its claims need no term.
	NoLog bool
	// IdleTerm opens a term without a write after this time, so that the closed
	// stamp of a partition that nobody writes goes on; 0: never.
	IdleTerm time.Duration
}

func (c CoreConfig) withDefaults() CoreConfig {
	c.MaxRecord = cmp.Or(c.MaxRecord, 1<<20)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultInFlight)
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultBytes)
	c.RetryEvery = cmp.Or(c.RetryEvery, 200*time.Millisecond)
	return c
}

// Core is the protocol of one seat's writing side: pure, not safe for concurrent
// use.
//
// Invariants:
//   - A record is sent only under a term: the seat's own barrier, read back, at or
//     above which no other barrier has been read.
//   - A key is held from acceptance until its record was read, was certainly
//     refused, or a later barrier of the seat's own was read.
//   - A reply without error is given only for a valid record that was read.
type Core struct {
	cfg CoreConfig
	env Surroundings

	ready      bool
	draining   bool
	stopped    bool
	began      time.Time // of the first Step
	next       int64     // the tail is read below it
	claimed    Claims    // the last that was published
	restricted uint16    // origins whose records may have been denied here, bit r: origin r

	term    int64 // offset of the own barrier, NoBarrier before the first
	opening opening
	mine    []ownMark // of every attempt of this process

	writes  map[uint64]*write
	byKey   map[event.IdempotencyKey]*write
	byID    map[event.ID]*write
	waiting []*write // for the term, in order of acceptance
	bytes   int

	out []Effect
}

// opening is one attempt to write a barrier.
type opening struct {
	active  bool
	attempt uint64
	opened  *ownMark  // set when the transaction has ended
	seen    []Mark    // barriers read since the attempt began
	retryAt time.Time // when the attempt has failed
}

type ownMark struct {
	producer int64
	epochs   []int16
}

func (o *ownMark) is(m Mark) bool {
	return o.producer == m.Producer && slices.Contains(o.epochs, m.Epoch)
}

type write struct {
	ref      uint64
	req      *Request
	grant    Grant
	deadline time.Time
	order    *Order
	size     int
	sent     bool
	replied  bool

	id      event.ID
	stamp   event.Stamp
	context event.Vector
}

// NewCore makes the core of a seat whose tail is read from next on.
func NewCore(cfg CoreConfig, env Surroundings, next int64) *Core {
	return &Core{
		cfg: cfg.withDefaults(), env: env, next: next, term: NoBarrier, claimed: cfg.Published,
		writes: make(map[uint64]*write),
		byKey:  make(map[event.IdempotencyKey]*write),
		byID:   make(map[event.ID]*write),
	}
}

// Step takes one event and returns what is to be done, in order. The slice is
// valid until the next Step.
func (c *Core) Step(now time.Time, ev Event) []Effect {
	c.out = c.out[:0]
	if c.began.IsZero() {
		c.began = now
	}
	switch ev := ev.(type) {
	case Ready:
		c.ready = true
	case Accept:
		c.accept(now, ev)
	case Cancel:
		c.cancel(ev.Ref)
	case Opened:
		c.opened(now, ev)
	case Unopened:
		c.unopened(now, ev)
	case Produced:
		c.produced(ev)
	case Read:
		c.read(now, ev)
	case Tick:
		c.tick(now)
	case Drain:
		c.drain()
	}
	return c.out
}

func (c *Core) do(e Effect) { c.out = append(c.out, e) }

// accept takes a write in or refuses it; limits come first.
func (c *Core) accept(now time.Time, ev Accept) {
	w := &write{ref: ev.Ref, req: ev.Request, deadline: ev.Deadline, order: ev.Order, size: recordSize(ev.Request)}
	if w.order.Stops(w.req.Key) {
		c.reply(w, Answer{}, ErrAfterFailure)
		return
	}
	if err := c.admit(w); err != nil {
		c.reply(w, Answer{}, err)
		return
	}
	if err := c.permit(w); err != nil {
		c.reply(w, Answer{}, err)
		return
	}
	if w.order != nil && c.earlierGrant(w.grant) {
		c.reply(w, Answer{}, ErrNotReady)
		return
	}
	// A key that the log has needs no term: what was read stays.
	if done := c.replay(w); done {
		return
	}
	c.writes[w.ref] = w
	c.bytes += w.size
	if key := w.req.Idempotency; !key.IsZero() {
		c.byKey[key] = w
	}
	if c.mayWrite() {
		c.send(now, w)
		return
	}
	c.waiting = append(c.waiting, w)
	c.begin()
}

// earlierGrant tells whether a write is in flight that was accepted under another
// grant: a cut may lie between it and what is accepted now, so that only the later of
// the two counts.
func (c *Core) earlierGrant(g Grant) bool {
	for _, w := range c.writes {
		if w.sent && (w.grant.Epoch != g.Epoch || w.grant.Live != g.Live) {
			return true
		}
	}
	return false
}

// Admits says why a write would be refused now whatever it is; nil if none is
// known.
func (c *Core) Admits() error {
	if err := c.open(); err != nil {
		return err
	}
	return c.permit(new(write))
}

// open says why the seat takes no writes.
func (c *Core) open() error {
	switch {
	case c.stopped:
		return errSuperseded()
	case c.draining:
		return ErrDraining
	case !c.ready || c.cfg.NoLog:
		return ErrNotReady
	}
	return nil
}

func (c *Core) admit(w *write) error {
	if err := c.open(); err != nil {
		return err
	}
	switch {
	case w.size > c.cfg.MaxRecord:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, w.size, c.cfg.MaxRecord)
	case len(c.writes) >= c.cfg.MaxInFlight, c.bytes+w.size > c.cfg.MaxBytes && len(c.writes) > 0:
		return ErrOverloaded
	}
	if _, held := c.byKey[w.req.Idempotency]; held && !w.req.Idempotency.IsZero() {
		return ErrInUse
	}
	return nil
}

// replay answers a write whose key the log has; done is false when the key is
// free.
func (c *Core) replay(w *write) (done bool) {
	if w.req.Idempotency.IsZero() {
		return false
	}
	var in *event.ValidityTable
	if c.env.Permit != nil {
		in = c.env.Permit.Intervals()
	}
	found, ok, err := c.env.Index.Find(w.req.Idempotency, c.env.Closed(), in)
	switch {
	case err != nil:
		c.reply(w, Answer{}, fmt.Errorf("%w: look up key: %w", ErrUpstream, err))
	case !ok:
		return false
	case !w.req.Fingerprint.IsZero() && !found.Fingerprint.IsZero() && w.req.Fingerprint != found.Fingerprint:
		c.reply(w, Answer{}, &ReusedError{FirstUsed: found.Stamp.Time()})
	default:
		c.reply(w, AnswerOf(&found, true), nil)
	}
	return true
}

// mayWrite tells whether records may be sent: the term is held and no barrier of
// one's own is under way, which would make them void.
func (c *Core) mayWrite() bool { return c.term != NoBarrier && !c.opening.active && !c.stopped }

// begin starts an attempt to open a term, unless one runs.
func (c *Core) begin() {
	if c.opening.active || c.stopped {
		return
	}
	c.opening = opening{active: true, attempt: c.opening.attempt + 1}
	c.do(OpenTerm{Attempt: c.opening.attempt})
}

// send stamps a write and sends it. Stamps rise in the order of sending, which is
// the order in the log.
func (c *Core) send(now time.Time, w *write) {
	if t := w.req.Token; t != nil {
		if err := c.env.Clock.Observe(t.Stamp); err != nil {
			c.finish(w, Answer{}, fmt.Errorf("%w: token: %w", ErrDrift, err))
			return
		}
	}
	seen, err := c.context(w.req.Key)
	if err != nil {
		c.finish(w, Answer{}, fmt.Errorf("%w: context: %w", ErrUpstream, err))
		return
	}
	id, err := c.env.NewID()
	if err != nil {
		c.finish(w, Answer{}, fmt.Errorf("%w: %w", ErrUpstream, err))
		return
	}
	stamp, err := c.env.Clock.Now()
	if err != nil {
		c.finish(w, Answer{}, fmt.Errorf("%w: %w", ErrDrift, err))
		return
	}
	w.sent, w.id, w.stamp = true, id, stamp
	w.context = seen.Without(c.cfg.Region)
	c.byID[id] = w
	c.do(Produce{Ref: w.ref, Record: c.record(now, w)})
}

// context is what a write under a key has seen.
func (c *Core) context(key []byte) (event.Vector, error) {
	if c.env.Context == nil {
		return c.env.Committed(), nil
	}
	v, restricted, err := c.env.Context(key)
	c.restricted |= restricted
	return v, err
}

// record builds the record of a write that send has stamped.
func (c *Core) record(now time.Time, w *write) Record {
	env := event.Envelope{
		ID: w.id, Region: c.cfg.Region, Incarnation: c.cfg.Incarnation,
		Barrier: c.term, Epoch: w.grant.Epoch, Stamp: w.stamp, Context: w.context, Op: w.req.Op,
		Key: w.req.Idempotency, Fingerprint: w.req.Fingerprint,
	}
	hs := make([]event.Header, 0, len(w.req.Headers)+11)
	hs = append(hs, w.req.Headers...)
	if w.req.ContentType != "" {
		hs = append(hs, event.Header{Key: "content-type", Value: []byte(w.req.ContentType)})
	}
	return Record{Key: w.req.Key, Value: w.req.Value, Headers: env.Append(hs), Timestamp: now.UnixMilli()}
}

func (c *Core) opened(now time.Time, ev Opened) {
	own := ownMark{ev.Producer, ev.Epochs}
	c.mine = append(c.mine, own)
	if !c.opening.active || ev.Attempt != c.opening.attempt {
		return
	}
	c.opening.opened = &own
	for _, m := range c.opening.seen {
		if own.is(m) {
			c.takeTerm(now, m.Offset)
			return
		}
	}
}

func (c *Core) unopened(now time.Time, ev Unopened) {
	if ev.Producer >= 0 && len(ev.Epochs) > 0 {
		c.mine = append(c.mine, ownMark{ev.Producer, ev.Epochs})
	}
	if c.opening.active && ev.Attempt == c.opening.attempt {
		c.opening.retryAt = now.Add(c.cfg.RetryEvery)
	}
}

// produced takes the broker's word. It never answers a stored write: only the
// read-back does.
func (c *Core) produced(ev Produced) {
	w := c.writes[ev.Ref]
	switch {
	case w == nil || ev.Err == nil: // read back already, or to be read back
	case errors.Is(ev.Err, ErrRefused):
		c.finish(w, Answer{}, ev.Err)
	default:
		// It may land at any time under the term it carries. A barrier of our own
		// makes it void wherever that is; until the barrier is read the key stays.
		c.begin()
	}
}

// read takes one place of the log, which the index already has.
func (c *Core) read(now time.Time, ev Read) {
	c.next = max(c.next, ev.Item.Next.Next)
	if ev.Barrier != nil {
		c.readBarrier(now, *ev.Barrier)
		return
	}
	if ev.Item.Verdict == judged.Skip {
		return
	}
	w := c.byID[ev.Item.Event.ID]
	if w == nil {
		return
	}
	if ev.Item.Verdict != judged.Valid {
		c.finish(w, Answer{}, ErrNotReady)
		return
	}
	if !c.holds(w) {
		// The record is in the log; whether it counts, the cut decides.
		c.finish(w, Answer{}, &OutcomeError{HadKey: !w.req.Idempotency.IsZero()})
		return
	}
	c.finish(w, answerTo(&ev.Item.Event), nil)
}

func (c *Core) readBarrier(now time.Time, m Mark) {
	if !c.opening.active {
		if c.term != NoBarrier && !c.own(m) {
			c.supersede()
		}
		return
	}
	// Whose it is may be known only when the own transaction's answer is here.
	c.opening.seen = append(c.opening.seen, m)
	if c.opening.opened != nil && c.opening.opened.is(m) {
		c.takeTerm(now, m.Offset)
	}
}

func (c *Core) own(m Mark) bool {
	return slices.ContainsFunc(c.mine, func(o ownMark) bool { return o.is(m) })
}

// takeTerm begins the term of an own barrier that was read. What was sent under
// an earlier one and was not read is void wherever it lands.
func (c *Core) takeTerm(now time.Time, offset int64) {
	seen, held := c.opening.seen, c.term != NoBarrier
	c.opening.active = false
	c.term = offset
	for _, w := range c.inOrder() {
		if w.sent {
			c.finish(w, Answer{}, ErrNotReady)
		}
	}
	for _, m := range seen {
		// Another's barrier behind ours takes the seat; before ours it took it
		// from the term that we still held.
		if !c.own(m) && (m.Offset > offset || held) {
			c.supersede()
			return
		}
	}
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		if c.writes[w.ref] != w {
			continue
		}
		if w.order.Stops(w.req.Key) {
			c.finish(w, Answer{}, ErrAfterFailure)
		} else if err := c.permit(w); err != nil {
			c.finish(w, Answer{}, err) // it was not sent
		} else if !c.replay(w) {
			c.send(now, w)
		}
	}
}

// supersede stops the seat: nothing that was not read can be valid any more.
func (c *Core) supersede() {
	c.stopped = true
	c.opening.active = false
	for _, w := range c.inOrder() {
		c.finish(w, Answer{}, errSuperseded())
	}
	c.waiting = nil
	c.do(Stop{})
}

func (c *Core) tick(now time.Time) {
	for _, w := range c.inOrder() {
		if w.replied || now.Before(w.deadline) {
			continue
		}
		if !w.sent {
			c.finish(w, Answer{}, ErrNotReady)
			continue
		}
		c.reply(w, Answer{}, &OutcomeError{HadKey: !w.req.Idempotency.IsZero()}) // the key stays held
	}
	if c.opening.active && !c.opening.retryAt.IsZero() && !now.Before(c.opening.retryAt) {
		seen := c.opening.seen // another's barrier among them still counts
		c.opening.active = false
		c.begin()
		c.opening.seen = seen
	}
	idle := c.cfg.IdleTerm > 0 && !c.cfg.NoLog && now.Sub(c.began) >= c.cfg.IdleTerm
	if idle && c.ready && !c.draining && c.term == NoBarrier {
		c.begin()
	}
}

func (c *Core) cancel(ref uint64) {
	w := c.writes[ref]
	switch {
	case w == nil:
	case w.sent:
		c.reply(w, Answer{}, &OutcomeError{HadKey: !w.req.Idempotency.IsZero()})
	default:
		c.finish(w, Answer{}, ErrNotReady)
	}
}

func (c *Core) drain() {
	c.draining = true
	for _, w := range slices.Clone(c.waiting) {
		c.finish(w, Answer{}, ErrDraining)
	}
}

// reply answers a write, once.
func (c *Core) reply(w *write, a Answer, err error) {
	if !w.replied {
		w.replied = true
		if err != nil {
			w.order.failed(w.req.Key, err)
		}
		c.do(Reply{Ref: w.ref, Answer: a, Err: err})
	}
	if !w.sent {
		c.free(w)
	}
}

// finish answers a write, if it was not yet, and frees its key.
func (c *Core) finish(w *write, a Answer, err error) {
	c.reply(w, a, err)
	c.free(w)
}

func (c *Core) free(w *write) {
	if c.writes[w.ref] != w {
		return
	}
	delete(c.writes, w.ref)
	delete(c.byID, w.id)
	if c.byKey[w.req.Idempotency] == w {
		delete(c.byKey, w.req.Idempotency)
	}
	c.bytes -= w.size
	if !w.sent {
		c.waiting = slices.DeleteFunc(c.waiting, func(o *write) bool { return o == w })
	}
}

// inOrder is the writes in order of acceptance, so that equal histories have equal
// effects.
func (c *Core) inOrder() []*write {
	return slices.SortedFunc(maps.Values(c.writes), func(a, b *write) int { return cmp.Compare(a.ref, b.ref) })
}

// Claims is what a seat may publish about its partition: every record at or above
// End that can ever be valid has a stamp above Closed and a context that covers
// Promised. Of a restricted origin a context holds what the entity's live values
// say, so nothing is promised: that entry no longer rises, and says nothing.
type Claims struct {
	End      event.Point
	Closed   event.Stamp
	Promised event.Vector
}

// Bounded is what of earlier claims can be true of a log that ends at end and of what
// the region has committed: a seat promises no more than it has committed, and both are
// written in one transaction. Whoever can write to the control topic can have claimed
// more, and a seat would repeat it for ever.
func (cl Claims) Bounded(end event.Point, committed *event.Vector) Claims {
	if end.Compare(cl.End) < 0 {
		cl.End = end
	}
	for r := range cl.Promised {
		if committed[r].Compare(cl.Promised[r]) < 0 {
			cl.Promised[r] = committed[r]
		}
	}
	return cl
}

// Claims makes the claims that hold now. Before the seat's first barrier was read
// only End moves: a record of the process before may yet land.
func (c *Core) Claims() Claims {
	// Never below the end that was published: the stamps between are not known to
	// lie above the closed one.
	if here := (event.Point{Incarnation: c.cfg.Incarnation, Next: c.next}); c.claimed.End.Compare(here) < 0 {
		c.claimed.End = here
	}
	if c.term == NoBarrier && !c.cfg.NoLog || c.stopped {
		return c.claimed
	}
	closed, promised := c.env.Clock.Close(), c.env.Committed()
	if c.env.Context != nil {
		if _, restricted, err := c.env.Context(nil); err == nil {
			c.restricted |= restricted
		}
	}
	for r := range promised {
		if c.restricted>>r&1 == 1 {
			promised[r] = event.Point{}
		}
	}
	for _, w := range c.writes {
		if w.sent {
			closed = min(closed, w.stamp-1)
			promise(&promised, &w.context, c.cfg.Region)
		}
	}
	c.claimed.Closed = max(c.claimed.Closed, closed)
	c.claimed.Promised.Join(&promised)
	return c.claimed
}

// promise lowers v to a context; the own region's entry, which contexts leave
// out, stays.
func promise(v, context *event.Vector, own event.RegionID) {
	for r := range v {
		if event.RegionID(r) != own && context[r].Compare(v[r]) < 0 {
			v[r] = context[r]
		}
	}
}

// Term is the offset of the barrier under which the seat writes, NoBarrier before
// its first.
func (c *Core) Term() int64 { return c.term }

// InFlight is the number of writes that are not settled.
func (c *Core) InFlight() int { return len(c.writes) }

// Busy tells whether a Tick has something to look at before long: until then it need not
// come.
func (c *Core) Busy() bool { return len(c.writes) > 0 || c.opening.active }

// Idle is how long a core that is not busy needs no Tick.
func (c *Core) Idle(now time.Time) time.Duration {
	if c.cfg.IdleTerm <= 0 || c.cfg.NoLog || c.term != NoBarrier || c.draining || c.stopped || !c.ready {
		return time.Hour
	}
	return max(c.began.Add(c.cfg.IdleTerm).Sub(now), 0)
}

// Stopped tells whether another instance has taken the seat.
func (c *Core) Stopped() bool { return c.stopped }

func errSuperseded() error { return fmt.Errorf("%w: %w", ErrNotReady, ErrSuperseded) }

func answerTo(ev *event.Event) Answer {
	return Answer{ID: ev.ID, At: ev.At, Stamp: ev.Stamp, Timestamp: ev.Timestamp, Epoch: ev.Epoch, Context: ev.Context}
}

// envelopeSize bounds what the envelope adds to a record: names, values, and a
// context of all regions.
const envelopeSize = 512

func recordSize(q *Request) int {
	n := envelopeSize + len(q.Key) + len(q.Value) + len(q.ContentType)
	for _, h := range q.Headers {
		n += 10 + len(h.Key) + len(h.Value)
	}
	return n
}
