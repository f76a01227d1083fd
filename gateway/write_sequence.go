package gateway

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/geogate/geogate/internal/seat"
)

const (
	// sequenceWindow bounds the records of one sequence between being read and being
	// answered: enough to fill the produce pipeline of all partitions.
	sequenceWindow = 2048
	// groupSize bounds the writes that a seat is given at a time, so that what the peer
	// has of the seat's room comes back in parts.
	groupSize = 256
	// entrySize is more than what an entry takes beside its text until its answer has left.
	entrySize = 1 << 10
	// streamPatience is how long a record waits for its share of a budget before it is
	// answered 429: a stream is slowed down before it is refused.
	streamPatience = 10 * time.Second
)

// sequence has the records of one request stored: as many at a time as there are, those
// with one record key in their order, and none after one that has failed but may yet be
// stored (write_order.go). One goroutine adds entries, one takes them with their answers,
// in the same order; they may be the same if it adds first.
//
// A seat that has too much in flight, or is not ready yet, has stored nothing, so the
// sequence waits for it: once everything in flight is answered, what waits is submitted
// again, from the first of each record key on.
type sequence struct {
	s      *Server
	peer   peer
	id     string // of the request
	window int    // of entries
	form   form

	// turn is full while entries are given to seats and while answers are waited for to that
	// end: one goroutine does so at a time. It waits no longer than ctx.
	turn   chan struct{}
	lanes  map[int32]*lane // by partition
	due    []*lane         // those with entries that are not submitted yet
	places places
	ended  chan struct{} // holds one: a group has ended; read by the holder of the turn

	order  *seat.Order // of what seats were given
	failed *seat.Order // the record keys of entries that have failed for good; nothing is submitted under it

	// queue guards what follows. Nothing is called and nothing waits under it.
	queue  sync.Mutex
	blocks []*block // added and not taken, in order
	left   int      // their entries
	closed bool     // nothing more is added
	groups map[*group]struct{}
	room   chan struct{} // holds one: there may be room for more

	wake    chan struct{} // holds one: for the goroutine that takes entries
	awaited atomic.Pointer[entry]

	// Owned by the goroutine that takes entries:
	taken  *block         // the first; nil: not looked for yet
	at     int            // of its entries
	vain   map[int32]bool // partitions that were waited for in vain
	pause  time.Duration
	stored tally // not in the metrics yet
}

// block is entries that were added together.
type block struct{ entries []entry }

// entry is one record of a sequence on its way from being decoded to its answer.
type entry struct {
	index   int
	held    int64    // of the byte budget, given back by the goroutine that takes entries
	unread  int64    // of the budget of unread answers, likewise
	key     []byte   // of the record; nil is null
	decoded bool     // the key is known
	refusal *problem // why it is not stored; nil if nothing is known yet
	write   permitted
	since   time.Time // when it was to be submitted first
	group   *group    // with which it was submitted last
	inUse   bool      // it has waited for an earlier write with its idempotency key

	done   atomic.Bool // answer and err, or refusal, are valid
	answer seat.Answer
	err    error
}

// lane is what a sequence gives to one partition's seat.
type lane struct {
	partition int32
	due       []*entry
	warm      bool // its seat was open the last time
	inFlight  int  // groups; sequence.queue guards it
	seat      Seat
	err       error
}

// group is writes that were submitted together.
type group struct {
	of    *sequence
	lane  *lane
	seat  Seat
	ws    []seat.Submission
	share flightShare
	left  atomic.Int32
}

func (s *Server) newSequence(c *call, form form, window int) *sequence {
	c.measured = true // each entry is
	return &sequence{
		s: s, peer: c.peer, id: c.id, form: form, window: window, lanes: make(map[int32]*lane), turn: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		order: seat.NewOrder(), failed: seat.NewOrder(), groups: make(map[*group]struct{}),
		room: make(chan struct{}, 1), wake: make(chan struct{}, 1), pause: firstPause,
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// permit makes the entry's record a write that may be stored, or refuses it. failed says
// why none may be; nil: nothing is known.
func (e *entry) permit(s *permits, rec *record, failed *problem) {
	e.decoded, e.key = true, rec.key
	if failed != nil {
		e.refusal = failed
	} else if err := s.permit(rec, &e.write); err != nil {
		e.refusal = asProblem(err)
	}
}

// answered says that an entry has its answer.
func (q *sequence) answered(e *entry) {
	e.done.Store(true)
	if q.awaited.Load() == e {
		poke(q.wake)
	}
}

// Answered implements seat.Answerer. The seat's lock is held.
//
// HAZARD: once done is set the entry belongs to the goroutine that takes entries; only the
// sequence and the group may be touched after it.
func (e *entry) Answered(a seat.Answer, err error) {
	g := e.group
	e.answer, e.err = a, err
	g.of.answered(e)
	if g.left.Add(-1) == 0 {
		g.end()
	}
}

// end counts a group out of which everything is answered.
func (g *group) end() {
	g.share.end()
	q := g.of
	q.queue.Lock()
	delete(q.groups, g)
	g.lane.inFlight--
	q.queue.Unlock()
	poke(q.ended)
}

// begin takes the turn, end gives it up.
func (q *sequence) begin() { q.turn <- struct{}{} }
func (q *sequence) end()   { <-q.turn }

// add appends a block and submits what of it may be stored. It waits for room in the
// window, and for seats; false: ctx has ended and the block was not added.
func (q *sequence) add(ctx context.Context, b *block) bool {
	for !q.fits(len(b.entries)) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
	q.begin()
	defer q.end()
	q.queue.Lock()
	q.blocks = append(q.blocks, b)
	q.queue.Unlock()
	poke(q.wake)
	now := time.Now()
	for i := range b.entries {
		e := &b.entries[i]
		e.since = now
		q.admit(ctx, e)
	}
	q.submit(ctx)
	return true
}

// fits counts entries in if the window has room for them.
func (q *sequence) fits(n int) bool {
	q.queue.Lock()
	defer q.queue.Unlock()
	if q.left > 0 && q.left+n > q.window {
		return false
	}
	q.left += n
	return true
}

// close says that nothing more is added.
func (q *sequence) close() {
	q.queue.Lock()
	q.closed = true
	q.queue.Unlock()
	poke(q.wake)
}

// admit makes a new entry due, or refuses it.
func (q *sequence) admit(ctx context.Context, e *entry) {
	if e.decoded && q.failed.Stops(e.key) {
		e.refusal = q.form.afterFailure()
	}
	if e.refusal != nil {
		q.stop(e)
		q.answered(e)
		return
	}
	q.makeDue(ctx, e)
}

// stop has nothing stored after an entry that was refused for good, of its record key, if
// it may yet be stored: of any key, if it is not known whose it was.
func (q *sequence) stop(e *entry) {
	switch {
	case !mayStillBeStored(e.refusal, e.write.topic):
	case e.decoded:
		q.failed.Fail(e.key)
	default:
		q.failed.Halt()
	}
}

// makeDue puts an entry into its lane. One whose record key has writes in flight in
// another partition waits for those: seats know nothing of each other.
func (q *sequence) makeDue(ctx context.Context, e *entry) {
	if e.key != nil && q.places.assign(e, q.before(e)) {
		q.submit(ctx)
		q.settle(ctx)
		q.places.clear()
		q.places.assign(e, q.before(e))
	}
	l := q.lanes[e.write.partition]
	if l == nil {
		l = &lane{partition: e.write.partition}
		q.lanes[e.write.partition] = l
	}
	if len(l.due) == 0 {
		q.due = append(q.due, l)
	}
	l.due = append(l.due, e)
}

// submit gives seats what is due.
func (q *sequence) submit(ctx context.Context) {
	q.open(ctx)
	for _, l := range q.due {
		for len(l.due) > 0 {
			n := min(len(l.due), groupSize)
			if err := q.give(ctx, l, &n); err != nil {
				for _, e := range l.due[:n] {
					q.order.Fail(e.key)
					e.err = err
					q.answered(e)
				}
			}
			l.due = l.due[n:]
		}
		l.due = nil
	}
	q.due = q.due[:0]
}

// open finds the seats of what is due, those that may take a while side by side.
func (q *sequence) open(ctx context.Context) {
	var cold sync.WaitGroup
	for _, l := range q.due {
		find := func() {
			l.seat, l.err = q.s.seats.open(ctx, *l.due[0].write.topic, l.partition)
			l.warm = l.err == nil
		}
		if l.warm {
			find()
			continue
		}
		cold.Go(find)
	}
	cold.Wait()
}

// give gives the first n entries that are due to a lane's seat, or fewer if the peer gets
// no room for as many.
func (q *sequence) give(ctx context.Context, l *lane, n *int) error {
	if ctx.Err() != nil {
		return seat.ErrNotReady
	}
	if l.err != nil {
		return l.err
	}
	t, err := q.take(ctx, l, n)
	if err != nil {
		return err
	}
	g := &group{of: q, lane: l, seat: l.seat, ws: make([]seat.Submission, *n), share: t}
	g.left.Store(int32(*n))
	deadline := time.Now().Add(q.s.cfg.WriteTimeout)
	for i, e := range l.due[:*n] {
		e.group = g
		g.ws[i] = seat.Submission{Request: &e.write.request, Deadline: deadline, Order: q.order, To: e}
	}
	q.queue.Lock()
	q.groups[g] = struct{}{}
	l.inFlight++
	q.queue.Unlock()
	l.seat.Submit(g.ws)
	return nil
}

// take takes room for a lane's first n writes, or for fewer. What the sequence itself has
// in flight there ends within the seat's own time, so it waits for that as long as it
// takes; for others only so long.
func (q *sequence) take(ctx context.Context, l *lane, n *int) (flightShare, error) {
	key := logKey{l.due[0].write.topic.ID, l.partition}
	for {
		for some := *n; some > 0; some /= 2 {
			if t, ok := q.s.writer.flights.begin(ctx, key, q.peer, int64(some), sizeOfDue(l.due[:some]), 0); ok {
				*n = some
				return t, nil
			}
		}
		q.queue.Lock()
		own := l.inFlight > 0
		q.queue.Unlock()
		if !own {
			*n = 1
			if t, ok := q.s.writer.flights.begin(ctx, key, q.peer, 1, sizeOfDue(l.due[:1]), streamPatience); ok {
				return t, nil
			}
			if ctx.Err() != nil {
				return flightShare{}, seat.ErrNotReady // the request has ended
			}
			return flightShare{}, seat.ErrOverloaded
		}
		select {
		case <-q.ended:
		case <-ctx.Done():
			return flightShare{}, seat.ErrNotReady
		}
	}
}

func sizeOfDue(es []*entry) (n int64) {
	for _, e := range es {
		n += e.write.size
	}
	return n
}

// before are the entries in flight, or due, that were added before e.
func (q *sequence) before(e *entry) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		q.queue.Lock()
		blocks := slices.Clone(q.blocks)
		q.queue.Unlock()
		for _, b := range blocks {
			for i := range b.entries {
				f := &b.entries[i]
				if f == e || !f.done.Load() && !yield(f) {
					return
				}
			}
		}
	}
}

// settle waits until nothing is in flight. When ctx ends, nobody waits for answers any
// more: seats give them at once.
func (q *sequence) settle(ctx context.Context) {
	gone := ctx.Done()
	for q.inFlight() {
		select {
		case <-q.ended:
		case <-gone:
			q.cancel()
			gone = nil
		}
	}
}

func (q *sequence) inFlight() bool {
	q.queue.Lock()
	defer q.queue.Unlock()
	return len(q.groups) > 0
}

// cancel has everything in flight answered. The caller has the turn.
func (q *sequence) cancel() {
	q.queue.Lock()
	groups := make([]*group, 0, len(q.groups))
	for g := range q.groups {
		groups = append(groups, g)
	}
	q.queue.Unlock()
	for _, g := range groups {
		g.seat.Cancel(g.ws)
	}
}

// ready tells whether next gives an entry at once.
func (q *sequence) ready() bool {
	e := q.first()
	return e != nil && e.done.Load() && (e.err == nil || e.refusal != nil)
}

// next gives the next entry with its answer, which is valid until the next call; nil:
// there are no more.
func (q *sequence) next(ctx context.Context) *entry {
	gone := ctx.Done()
	for {
		e := q.first()
		if e == nil && q.isClosed() {
			return nil
		}
		if e != nil && !e.done.Load() {
			q.awaited.Store(e) // whoever answers it from now on wakes this goroutine
		}
		if e != nil && e.done.Load() {
			if q.judge(ctx, e) {
				q.retry(ctx)
				continue
			}
			if e.refusal == nil {
				q.pause = firstPause
			}
			q.pass()
			return e
		}
		select {
		case <-q.wake:
		case <-gone:
			q.begin()
			q.cancel()
			q.end()
			gone = nil
		}
	}
}

// first is the next entry that was added; nil if there is none yet.
func (q *sequence) first() *entry {
	if q.taken == nil {
		q.queue.Lock()
		if len(q.blocks) > 0 {
			q.taken = q.blocks[0]
		}
		q.queue.Unlock()
	}
	if q.taken == nil {
		return nil
	}
	return &q.taken.entries[q.at]
}

func (q *sequence) isClosed() bool {
	q.queue.Lock()
	defer q.queue.Unlock()
	return q.closed && len(q.blocks) == 0
}

// pass goes on to the next entry.
func (q *sequence) pass() {
	if q.at++; q.at < len(q.taken.entries) {
		return
	}
	q.queue.Lock()
	defer q.queue.Unlock()
	q.left -= q.at
	q.at, q.taken, q.blocks[0] = 0, nil, nil
	q.blocks = q.blocks[1:]
	poke(q.room)
}

// added are the entries that were added and not taken. Only the goroutine that takes them
// may call it.
func (q *sequence) added() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		q.queue.Lock()
		blocks := slices.Clone(q.blocks)
		q.queue.Unlock()
		at := q.at
		for _, b := range blocks {
			for i := at; i < len(b.entries); i++ {
				if !yield(&b.entries[i]) {
					return
				}
			}
			at = 0
		}
	}
}

// finish waits until nothing of the sequence is in flight, after everything was taken or
// ctx has ended, and gives what is held of entries that nobody has taken.
func (q *sequence) finish(ctx context.Context) (held, unread int64) {
	q.begin()
	defer q.end()
	q.settle(ctx)
	for e := range q.added() {
		held, unread = held+e.held, unread+e.unread
	}
	q.s.m.add(&q.stored)
	return held, unread
}

// append appends an entry's answer.
func (q *sequence) append(dst []byte, form *storedForm, e *entry) []byte {
	if e.refusal == nil {
		q.stored.count(e.answer.Replayed)
		if now := time.Now(); !e.answer.Replayed {
			form.meter.stored(now, now.Sub(e.since))
		}
		dst, _ = form.append(dst, &e.answer)
		return dst
	}
	p := e.refusal
	q.s.m.refused(p.code)
	form.meter.refused(time.Now(), p.code)
	if p.code == codeInternal {
		q.s.log.Error("record refused", "part", q.form.part, "request_id", q.id, "route", "records", "err", p)
	}
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(e.index), 10)
	dst = strconv.AppendInt(append(dst, `,"status":`...), int64(p.code.kind().status), 10)
	dst = p.append(append(dst, `,"problem":`...), q.id)
	return append(dst, '}')
}
