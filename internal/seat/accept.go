package seat

import (
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// accept takes writes in or refuses them; limits come first. What is the same for all of
// them is asked once.
func (c *Core) accept(now time.Time, ws []Write) {
	adm := c.admission()
	c.keys, c.places = c.keys[:0], c.places[:0]
	for i := range ws {
		q := ws[i].Request
		adm.keyed = adm.keyed || !q.Idempotency.IsZero()
	}
	adm.keysLost = adm.keyed && c.env.KeysLost != nil && c.env.KeysLost()
	var looked *event.Vector
	if adm.keyed && adm.err() == nil {
		v := c.env.Committed()
		looked, adm.keysUnread = &v, !c.indexed(&v)
	}
	for i := range ws {
		q := ws[i].Request
		if _, held := c.byKey[q.Idempotency]; adm.err() == nil && !held && !q.Idempotency.IsZero() && !ws[i].Order.Stops(q.Key) {
			c.keys, c.places = append(c.keys, q.Idempotency), append(c.places, i)
		}
	}
	found, failed := c.lookUp(len(ws))
	taken := make([]write, len(ws))
	c.sending = c.sending[:0]
	for i := range ws {
		w := &taken[i]
		*w = write{Write: ws[i], grant: adm.grant, size: recordSize(ws[i].Request)}
		if err := c.admit(w, &adm); err != nil {
			c.reply(w, Answer{}, err)
			continue
		}
		// A key that the log has needs no term: what was read stays.
		if c.replay(w, found[i], failed) {
			continue
		}
		if !c.env.Room.take(c.bytes, w.size) {
			c.reply(w, Answer{}, ErrOverloaded)
			continue
		}
		if !w.Request.Idempotency.IsZero() {
			w.looked = looked
		}
		c.hold(w)
		switch {
		case !c.mayWrite():
			c.begin()
		case c.mayFollow(w):
			c.sending = append(c.sending, w)
		}
	}
	c.send(now, c.sending)
}

// hold takes a write in.
func (c *Core) hold(w *write) {
	c.writes[w.Ref] = w
	c.accepted.add(w)
	c.bytes += w.size
	c.awaits(w)
	if key := w.Request.Idempotency; !key.IsZero() {
		c.byKey[key] = w
	}
	c.chain(w)
}

// admission is what holds for all writes of a step.
type admission struct {
	closed  error // the seat takes no writes
	grant   Grant
	refused error // there is no grant
	// keyed: a write of the step has an idempotency key. keysLost: the index may lack keys.
	// keysUnread: it has not read all that the fold had committed.
	keyed, keysLost, keysUnread bool
}

// indexed tells whether the index has read all that is committed, as always but after it
// was lost: a context covers what is committed, and a seat promises it, so that nobody
// expects another copy of a key that lies there.
func (c *Core) indexed(committed *event.Vector) bool {
	if c.env.Indexed == nil {
		return true
	}
	v := c.env.Indexed()
	return reaches(&v, committed)
}

func (a *admission) err() error {
	if a.closed != nil {
		return a.closed
	}
	return a.refused
}

func (c *Core) admission() (a admission) {
	if a.closed = c.open(); a.closed == nil {
		a.grant, a.refused = c.permit()
	}
	return a
}

// Admits says why a write would be refused now whatever it is; nil if none is
// known.
func (c *Core) Admits() error {
	a := c.admission()
	return a.err()
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

func (c *Core) admit(w *write, a *admission) error {
	switch {
	case w.Order.Stops(w.Request.Key):
		return ErrAfterFailure
	case a.closed != nil:
		return a.closed
	case w.size > c.cfg.MaxRecord:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, w.size, c.cfg.MaxRecord)
	case len(c.writes) >= c.cfg.MaxInFlight, c.bytes+w.size > c.cfg.MaxBytes && len(c.writes) > 0:
		return ErrOverloaded
	}
	if _, held := c.byKey[w.Request.Idempotency]; held && !w.Request.Idempotency.IsZero() {
		return ErrInUse
	}
	if !w.Request.Idempotency.IsZero() {
		switch {
		case a.keysLost:
			return ErrKeysLost
		case a.keysUnread && a.refused == nil:
			return ErrNotReady
		}
	}
	return a.refused
}

// lookUp asks the index for all of c.keys at once. found has the copy of each of n
// writes, nil where its key is free or it has none.
func (c *Core) lookUp(n int) (found []*event.Copy, err error) {
	found = make([]*event.Copy, n)
	if len(c.keys) == 0 {
		return found, nil
	}
	var in *event.ValidityTable
	if c.env.Permit != nil {
		in = c.env.Permit.Intervals()
	}
	copies, err := c.env.Index.FindAll(c.keys, c.env.Closed(), in)
	if err != nil {
		return found, fmt.Errorf("%w: look up keys: %w", ErrUpstream, err)
	}
	for i, at := range c.places {
		found[at] = copies[i]
	}
	return found, nil
}

// replay answers a write whose key the log has, or could not be looked up; done is false
// when the key is free.
func (c *Core) replay(w *write, found *event.Copy, failed error) (done bool) {
	switch {
	case w.Request.Idempotency.IsZero():
		return false
	case failed != nil:
		c.finish(w, Answer{}, failed)
	case found == nil:
		return false
	case !w.Request.Fingerprint.IsZero() && !found.Fingerprint.IsZero() && w.Request.Fingerprint != found.Fingerprint:
		c.finish(w, Answer{}, &ReusedError{FirstUsed: found.Stamp.Time()})
	default:
		c.finish(w, AnswerOf(found, true), nil)
	}
	return true
}

// sendWaiting sends what has waited for the term: keys that another process has stored
// meanwhile are found now.
func (c *Core) sendWaiting(now time.Time) {
	g, refused := c.permit()
	looked := c.env.Committed()
	c.keys, c.places, c.sending = c.keys[:0], c.places[:0], c.sending[:0]
	c.each(func(w *write) {
		if refused != nil {
			c.finish(w, Answer{}, refused) // it was not sent
			return
		}
		if !w.Request.Idempotency.IsZero() {
			c.keys, c.places = append(c.keys, w.Request.Idempotency), append(c.places, len(c.sending))
			w.looked = &looked
		}
		w.grant = g
		c.sending = append(c.sending, w)
	})
	found, failed := c.lookUp(len(c.sending))
	ready := c.sending[:0]
	for i, w := range c.sending {
		if c.writes[w.Ref] == w && !c.replay(w, found[i], failed) && c.mayFollow(w) {
			ready = append(ready, w)
		}
	}
	c.send(now, ready)
}

// send stamps writes and sends them. Stamps rise in the order of sending, which is
// the order in the log.
func (c *Core) send(now time.Time, ws []*write) {
	if len(ws) == 0 {
		return
	}
	ready := ws[:0]
	var common *event.Vector
	if c.env.Context == nil {
		v := c.env.Committed().Without(c.cfg.Region)
		common = &v
	}
	for _, w := range ws {
		if c.writes[w.Ref] != w {
			continue // one before it in its chain has failed here
		}
		if err := c.prepare(w, common); err != nil {
			c.finish(w, Answer{}, err)
			continue
		}
		ready = append(ready, w)
	}
	if len(ready) == 0 {
		return
	}
	stamp, err := c.env.Clock.Take(len(ready))
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrDrift, err)
	}
	for _, w := range ready {
		if err != nil {
			if c.writes[w.Ref] == w {
				c.finish(w, Answer{}, err)
			}
			continue
		}
		w.sent, w.stamp = true, stamp
		stamp++
		c.byID[w.id] = w
		c.produce = append(c.produce, Sent{Ref: w.Ref, Record: c.record(now, w)})
	}
}

// prepare finds what a write needs before it gets its stamp, which must lie above what
// its client has seen. common is the context of all writes, nil if each has its own.
func (c *Core) prepare(w *write, common *event.Vector) error {
	if t := w.Request.Token; t != nil {
		if err := c.env.Clock.Observe(t.Stamp); err != nil {
			return fmt.Errorf("%w: token: %w", ErrDrift, err)
		}
	}
	if w.context = common; common == nil {
		seen, restricted, err := c.env.Context(w.Request.Key)
		c.restricted |= restricted
		if err != nil {
			return fmt.Errorf("%w: context: %w", ErrUpstream, err)
		}
		seen = seen.Without(c.cfg.Region)
		w.context = &seen
	}
	id, err := c.env.NewID()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUpstream, err)
	}
	w.id = id
	return nil
}

// record builds the record of a write that send has stamped.
func (c *Core) record(now time.Time, w *write) Record {
	env := event.Envelope{
		ID: w.id, Region: c.cfg.Region, Incarnation: c.cfg.Incarnation,
		Barrier: c.term, Epoch: w.grant.Epoch, Stamp: w.stamp, Context: *w.context, Op: w.Request.Op,
		Key: w.Request.Idempotency, Fingerprint: w.Request.Fingerprint,
	}
	hs := make([]event.Header, 0, len(w.Request.Headers)+11)
	hs = append(hs, w.Request.Headers...)
	if w.Request.ContentType != "" {
		hs = append(hs, event.Header{Key: "content-type", Value: []byte(w.Request.ContentType)})
	}
	return Record{Key: w.Request.Key, Value: w.Request.Value, Headers: env.Append(hs), Timestamp: now.UnixMilli()}
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
