package seat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// Index finds what is known of idempotency keys (dedupe.Index).
type Index interface {
	// FindAll gives for each key the copy that a retry of it is answered with; nil when
	// the key is free: never used, freed by a fence or by a cut (a copy that in
	// calls an orphan), or expired because every region's closed stamp has passed
	// its first use plus the window.
	FindAll(keys []event.IdempotencyKey, closed event.Stamp, in *event.ValidityTable) ([]*event.Copy, error)
}

// Clock makes stamps (hlc.Clock).
type Clock interface {
	// Take makes n stamps that follow each other, and gives the first.
	Take(n int) (hlc.Stamp, error)
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
	// for what a grant wants of it, and for writes with a key.
	Permit  WritePermit
	Indexed func() event.Vector
	// Folded is the table of which records count that the fold has; nil: there is no Permit.
	Folded func() *event.ValidityTable
	// KeysLost tells whether the index may lack keys that are within the window: writes with
	// a key are refused then. Nil: it never does.
	KeysLost func() bool
	// Room is what all seats of the instance have for writes; nil: there is no limit.
	Room *Room
}

// What a seat takes at a time unless its CoreConfig says otherwise.
const (
	DefaultInFlight = 16 << 10 // writes
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
//   - A record is sent only once the seat's fold has been found to hold the partition
//     after the first barrier was read (ConfirmTerm). Claims go out with the fold's
//     transactions, so an instance that claims more than this seat has read of control
//     has taken the fold later, and begins its term above this one's barrier.
//   - A key is held from acceptance until its record was read, was certainly
//     refused, or a later barrier of the seat's own was read.
//   - A reply without error is given only for a valid record that was read.
type Core struct {
	cfg CoreConfig
	env Surroundings

	ready      bool
	draining   bool
	stopped    bool
	ended      bool      // Stop was given
	began      time.Time // of the first Step
	next       int64     // the tail is read below it
	claimed    Claims    // the last that was published
	restricted uint16    // origins whose records may have been denied here, bit r: origin r

	term      int64 // offset of the own barrier, NoBarrier before the first
	proven    bool  // a record was read back under the term
	confirmed bool  // the fold has held the partition since the first term began
	opening   opening
	mine      []ownMark // of every attempt of this process

	writes   map[uint64]*write
	byKey    map[event.IdempotencyKey]*write
	byID     map[event.ID]*write
	accepted writeList           // all of writes, in order of acceptance
	chains   map[chainKey]*write // the last of each
	bytes    int
	// due is not after the first deadline of a write that is not answered.
	due time.Time

	out      []Effect
	produce  []Sent
	replies  []Reply
	told     int // of replies: how many the adapter has passed on
	keys     []event.IdempotencyKey
	places   []int    // of keys in what was given to lookUp
	sending  []*write // what accept and sendWaiting give to send
	held     heldGrant
	released []*write // of chains
	step     uint64
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
	Write
	before, after *write // in Core.accepted

	chained chainKey // zero: none
	leader  *write   // the one before in the chain that is not settled
	next    *write   // in the chain
	step    uint64   // in which it was to be sent

	grant   Grant
	size    int
	sent    bool
	replied bool

	id      event.ID
	stamp   event.Stamp
	context *event.Vector // of writes that were sent together it is one
	// looked is what was committed when the key was looked up, and so no more than what the
	// index had: a copy beyond may be there, of which the write is a twin. nil: it has no key.
	looked *event.Vector
}

// writeList links writes in the order in which they were added.
type writeList struct{ first, last *write }

func (l *writeList) add(w *write) {
	if w.before = l.last; l.last == nil {
		l.first = w
	} else {
		l.last.after = w
	}
	l.last = w
}

func (l *writeList) remove(w *write) {
	if w.before == nil {
		l.first = w.after
	} else {
		w.before.after = w.after
	}
	if w.after == nil {
		l.last = w.before
	} else {
		w.after.before = w.before
	}
	w.before, w.after = nil, nil
}

// each calls fn for every accepted write, in order, that is not settled by then.
func (c *Core) each(fn func(*write)) {
	all := make([]*write, 0, len(c.writes))
	for w := c.accepted.first; w != nil; w = w.after {
		all = append(all, w)
	}
	for _, w := range all {
		if c.writes[w.Ref] == w {
			fn(w)
		}
	}
}

// NewCore makes the core of a seat whose tail is read from next on.
func NewCore(cfg CoreConfig, env Surroundings, next int64) *Core {
	return &Core{
		cfg: cfg.withDefaults(), env: env, next: next, term: NoBarrier, claimed: cfg.Published,
		writes: make(map[uint64]*write),
		byKey:  make(map[event.IdempotencyKey]*write),
		byID:   make(map[event.ID]*write),
		chains: make(map[chainKey]*write),
	}
}

// Step takes one event and returns what is to be done, in order. The slice is
// valid until the next Step, and so is what the effects hold.
func (c *Core) Step(now time.Time, ev Event) []Effect {
	c.out, c.produce = c.out[:0], c.produce[:0]
	c.replies, c.told = c.replies[:0], 0
	c.held.asked = false
	c.step++
	if c.began.IsZero() {
		c.began = now
	}
	switch ev := ev.(type) {
	case Ready:
		c.ready = true
	case Accept:
		c.accept(now, ev.Writes)
	case Cancel:
		c.cancel(ev.Ref)
	case Opened:
		c.opened(now, ev)
	case Unopened:
		c.unopened(now, ev)
	case TermConfirmed:
		c.confirm(now)
	case Produced:
		for _, ref := range ev.Refs {
			c.produced(ref, ev.Err)
		}
	case ReadBack:
		for i := range ev.Places {
			c.read(now, &ev.Places[i])
		}
	case Tick:
		c.tick(now)
	case Drain:
		c.drain()
	}
	c.sendReleased(now)
	if len(c.produce) > 0 {
		c.do(Produce{c.produce})
	}
	if len(c.replies) > 0 {
		c.do(Replies{c.replies})
	}
	if c.stopped && !c.ended {
		c.ended = true
		c.do(Stop{})
	}
	return c.out
}

// release lets go of what the last Step has given, once it was carried out: a seat that
// rests keeps no records.
func (c *Core) release() {
	c.out, c.produce, c.replies, c.told = emptied(c.out), emptied(c.produce), emptied(c.replies), 0
	c.sending, c.released = emptied(c.sending), emptied(c.released)
	c.keys, c.places = emptied(c.keys), emptied(c.places)
}

// keptMax is how long a slice may be that is kept for the next step.
const keptMax = 128

// emptied is a slice without what it held, for the next step; a long one is let go.
func emptied[T any](s []T) []T {
	if cap(s) > keptMax {
		return nil
	}
	clear(s)
	return s[:0]
}

func (c *Core) do(e Effect) { c.out = append(c.out, e) }

// mayWrite tells whether records may be sent: the term is held and confirmed, and no
// barrier of one's own is under way, which would make them void.
func (c *Core) mayWrite() bool { return c.confirmed && !c.opening.active && !c.stopped }

// confirming tells whether the first term has its barrier and is not confirmed yet.
func (c *Core) confirming() bool { return c.term != NoBarrier && !c.confirmed }

// begin starts an attempt to open a term, unless one runs or the first term waits to be
// confirmed.
func (c *Core) begin() {
	if c.opening.active || c.stopped || c.confirming() {
		return
	}
	c.opening = opening{active: true, attempt: c.opening.attempt + 1}
	c.do(OpenTerm{Attempt: c.opening.attempt})
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

// produced takes the broker's word on a record. It never answers a stored write: only the
// read-back does.
func (c *Core) produced(ref uint64, err error) {
	w := c.writes[ref]
	switch {
	case w == nil || err == nil: // read back already, or to be read back
	case errors.Is(err, ErrRefused):
		c.finish(w, Answer{}, err)
	default:
		// It may land at any time under the term it carries. A barrier of our own
		// makes it void wherever that is; until the barrier is read the key stays.
		c.begin()
	}
}

// read takes one place of the log, which the index already has.
func (c *Core) read(now time.Time, ev *Read) {
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
	c.proven = true
	if ev.Item.Verdict != judged.Valid {
		c.finish(w, Answer{}, ErrNotReady)
		return
	}
	if !c.holds(&w.grant) {
		// The record is in the log; whether it counts, the cut decides.
		c.finish(w, Answer{}, &OutcomeError{HadKey: !w.Request.Idempotency.IsZero()})
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
	c.term, c.proven = offset, false
	c.each(func(w *write) {
		if w.sent {
			c.finish(w, Answer{}, ErrNotReady)
		}
	})
	for _, m := range seen {
		// Another's barrier behind ours takes the seat; before ours it took it
		// from the term that we still held.
		if !c.own(m) && (m.Offset > offset || held) {
			c.supersede()
			return
		}
	}
	if c.confirming() {
		c.do(ConfirmTerm{})
		return
	}
	c.sendWaiting(now)
}

// confirm sends what has waited for it: no other instance publishes claims any more that
// this seat has not read.
func (c *Core) confirm(now time.Time) {
	if c.stopped || !c.confirming() {
		return
	}
	c.confirmed = true
	c.sendWaiting(now)
}

// supersede stops the seat: nothing that was not read can be valid any more.
func (c *Core) supersede() {
	c.stopped = true
	c.opening.active = false
	c.each(func(w *write) { c.finish(w, Answer{}, errSuperseded()) })
}

func (c *Core) tick(now time.Time) {
	c.expire(now)
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

// expire answers the writes whose time is over. It looks at them only when one may be
// due, which is rare: most are answered long before.
func (c *Core) expire(now time.Time) {
	if c.due.IsZero() || now.Before(c.due) {
		return
	}
	c.due = time.Time{}
	c.each(func(w *write) {
		switch {
		case w.replied:
		case now.Before(w.Deadline):
			c.awaits(w)
		default:
			c.abandon(w)
		}
	})
}

// awaits notes when an answer to a write is due.
func (c *Core) awaits(w *write) {
	if c.due.IsZero() || w.Deadline.Before(c.due) {
		c.due = w.Deadline
	}
}

// abandon answers a write that nobody waits for any more. What was sent goes on, and its
// key stays held.
func (c *Core) abandon(w *write) {
	if w.sent {
		c.reply(w, Answer{}, &OutcomeError{HadKey: !w.Request.Idempotency.IsZero()})
		return
	}
	c.finish(w, Answer{}, ErrNotReady)
}

func (c *Core) cancel(ref uint64) {
	if w := c.writes[ref]; w != nil {
		c.abandon(w)
	}
}

func (c *Core) drain() {
	c.draining = true
	c.each(func(w *write) {
		if !w.sent && !c.mayWrite() {
			c.finish(w, Answer{}, ErrDraining)
		}
	})
}

// reply answers a write, once.
func (c *Core) reply(w *write, a Answer, err error) {
	if !w.replied {
		w.replied = true
		c.replies = append(c.replies, Reply{Ref: w.Ref, To: w.To, Answer: a, Err: err})
		if err != nil && w.Order.failed(w.Request.Key, err) && !errors.Is(err, ErrAfterFailure) {
			c.stopChain(w)
		}
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
	if c.writes[w.Ref] != w {
		return
	}
	delete(c.writes, w.Ref)
	delete(c.byID, w.id)
	if c.byKey[w.Request.Idempotency] == w {
		delete(c.byKey, w.Request.Idempotency)
	}
	c.accepted.remove(w)
	c.unchain(w)
	c.bytes -= w.size
	c.env.Room.give(w.size)
}

// leave gives back the room of the writes that are held. The core is not used after it.
func (c *Core) leave() {
	c.env.Room.give(c.bytes)
	c.env.Room = nil
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
