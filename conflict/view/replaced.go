package view

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

// A derived topic may refuse a record: it has a lower limit of sizes than it needs, bounds
// of timestamps, or a policy. The event is folded all the same, for it counts in every
// region; only what is written is replaced by something small that says where the event can
// be read. So no record stops its partition, and none is lost.
//
//	refused ──► Widen once ──► refused again: the same items in steps of a sixteenth ──► …
//	few items refused ──► apart: each record in its own batch
//	refused apart ──► replace that record ──► …

// ErrGone is wrapped by a Fetcher's error when the event is in no log of the region any
// more, and never will be.
var ErrGone = errors.New("view: the event is in no log of this region any more")

// replacement is what a record is replaced by.
type replacement uint8

const (
	ownTime replacement = 1 << iota // the record has the time of the fold
	leftOut                         // value and headers are in the log only
)

const (
	// apartItems bounds the items of a step whose records go in batches of their own, and is
	// into how many parts a larger one is divided.
	apartItems = 16
	// smallValue is the size up to which value and headers are kept: a pointer saves nothing.
	smallValue = 1 << 10
	// maxDerived bounds a derived record: the store takes no value of 64 MiB. Where a batch
	// may unfold to less, that does.
	maxDerived = 48 << 20
	// widenPause is how long a broker may take to know of a setting that was changed.
	widenPause = 250 * time.Millisecond
)

// refusals is what derived topics have refused of the step in hand, until it is committed.
// The zero value: nothing.
type refusals struct {
	narrowed []narrowing // each is within the one before
	widened  bool        // Widen was asked
	by       map[string]replaced
}

// narrowing is how the next items are folded, because a step of them was refused.
type narrowing struct {
	left  int // items that it still has
	most  int // items of a step
	apart bool
}

// most bounds the items of a step.
func (x *refusals) most() int {
	if n := len(x.narrowed); n > 0 {
		return x.narrowed[n-1].most
	}
	return math.MaxInt
}

// apart tells whether each record goes in a batch of its own.
func (x *refusals) apart() bool {
	n := len(x.narrowed)
	return n > 0 && x.narrowed[n-1].apart
}

// narrow has a refused step of so many items folded in smaller ones, or apart.
func (x *refusals) narrow(items int) {
	s := narrowing{left: items, most: max(apartItems, items/apartItems)}
	if items <= apartItems {
		s.most, s.apart = items, true
	}
	x.narrowed = append(x.narrowed, s)
}

// replaced is how a record is replaced, and why.
type replaced struct {
	how   replacement
	code  int16
	topic string
	at    event.Dot
}

// Replaced is the latest pointer that a derived topic has in place of a record that it
// refused, and how many it was given since the view was made.
type Replaced struct {
	Count uint64
	Code  int16     // Kafka's, of the latest refusal; 0: a value was in no log any more
	At    event.Dot // the event that the latest was about
}

// ReplacedKind is a derived topic with an error code of Kafka's.
type ReplacedKind struct {
	Topic string
	Code  int16
}

// stepRecord is what is known of a record of a step for when it is refused: its name among
// those that can be replaced, "" if it is none, and the event that it is about.
type stepRecord struct {
	name string
	at   event.Dot
}

func mergedName(at event.Dot) string { return "m" + string(dotPart(at)) }

func entityName(key []byte) string { return "e" + string(key) }

func baseName(key []byte) string { return "b" + string(key) }

// afterRefusal takes the error of a step's commit. It returns nil where the step is to be
// taken again, in another way, and else the error: nothing helps.
func (v *View) afterRefusal(ctx context.Context, err error, out *conflict.Output) error {
	var refused *txn.RefusedError
	if !errors.As(err, &refused) || !isAboutRecord(refused.Code) {
		return err
	}
	x := &v.refusals
	if v.cfg.Widen != nil && !x.widened {
		x.widened = true
		changed, widenErr := v.cfg.Widen(ctx)
		if widenErr != nil {
			v.cfg.Logger.Warn("a derived topic refuses a record and its settings cannot be changed", "topic", refused.Topic, "err", widenErr)
		}
		if changed {
			return sleep.For(ctx, widenPause)
		}
	}
	if !x.apart() {
		x.narrow(v.taken.items)
		v.giveBack(x.most())
		return nil
	}
	about := v.about(out, refused.Index)
	if !x.add(refused, about) {
		*x = refusals{} // the next try begins without a guess of what helps
		return err
	}
	v.cfg.Logger.Error("a derived topic refused a record; it gets a pointer to the log in its place",
		"topic", refused.Topic, "partition", refused.Partition, "event", about.at.Format(v.cfg.Names), "code", refused.Code)
	return nil
}

// isAboutRecord tells whether a broker refuses a record for what it is, and may take another
// in its place.
func isAboutRecord(code int16) bool {
	switch code {
	case kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code, kerr.InvalidRecord.Code, kerr.InvalidTimestamp.Code, kerr.PolicyViolation.Code:
		return true
	}
	return false
}

// add replaces one thing more of a refused record, and tells whether there was one.
func (x *refusals) add(refused *txn.RefusedError, of stepRecord) bool {
	if of.name == "" {
		return false // no step is possible without the vector
	}
	r := x.by[of.name]
	how := leftOut
	if refused.Code == kerr.InvalidTimestamp.Code {
		how = ownTime
	}
	if r.how&how != 0 {
		how = leftOut | ownTime // the other one before it counts as in vain
	}
	if r.how|how == r.how || how == ownTime && isState(of.name) {
		return false // state records have the fold's time
	}
	x.replace(of.name, replaced{r.how | how, refused.Code, refused.Topic, of.at})
	return true
}

func isState(name string) bool { return name[0] != 'm' }

func (x *refusals) replace(name string, r replaced) {
	if x.by == nil {
		x.by = make(map[string]replaced)
	}
	x.by[name] = r
}

// settled forgets what was refused of a step that is committed.
func (x *refusals) settled(items int) {
	x.by = nil
	for i := range x.narrowed {
		x.narrowed[i].left -= items
	}
	x.narrowed = slices.DeleteFunc(x.narrowed, func(s narrowing) bool { return s.left <= 0 })
	if len(x.narrowed) == 0 {
		x.widened = false
	}
}

// giveBack puts what was taken beyond n items back to the front of the queue.
func (v *View) giveBack(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.queue.join(v.taken.split(max(1, n)))
}

// maxDerived is how large a derived record may be for its readers to take it.
func (v *View) maxDerived() int {
	return min(maxDerived, v.cfg.Decoder.Derived().Limits().BatchUnfolded-1<<20)
}

// mergedRecord is the record of a change of the merged topic.
func (v *View) mergedRecord(ctx context.Context, m *conflict.Merged, now time.Time) (txn.Record, error) {
	var r replaced
	if len(v.refusals.by) > 0 {
		r = v.refusals.by[mergedName(m.Event.At)]
	}
	r.topic, r.at = v.cfg.Merged, m.Event.At
	if m.Event.LeftOut { // the state had no room for the value
		whole := *m.Event
		m.Event = &whole
		switch err := v.fill(ctx, &whole); {
		case isPassing(err):
			return txn.Record{}, fmt.Errorf("read a value that the state has left out: %w", err)
		case err != nil:
			r.how |= leftOut
		}
	}
	if m.Event.Size() > v.maxDerived() {
		r.how, r.code = r.how|leftOut, kerr.MessageTooLarge.Code
	}
	rec := txn.Record{Topic: v.cfg.Merged, Partition: v.cfg.Partition, Key: m.Event.Key, Value: m.Event.Value, Timestamp: m.Event.Timestamp}
	if r.how == 0 {
		rec.Headers = v.headersOf(m)
		return rec, nil
	}
	x := event.Replaced{LeftOut: r.how&leftOut != 0, OwnTime: r.how&ownTime != 0, Code: r.code, Timestamp: m.Event.Timestamp}
	if v.cfg.Place != nil {
		if topic, offset, err := v.cfg.Place(m.Event.At); err == nil {
			x.Topic, x.Partition, x.Offset = topic, v.cfg.Partition, offset
		}
	}
	if x.OwnTime {
		rec.Timestamp = now.UnixMilli()
	}
	if x.LeftOut {
		bare := *m.Event
		bare.Headers = nil
		short := *m
		short.Event = &bare
		if rec.Headers = short.Headers(); rec.Value != nil || m.Event.LeftOut && m.Event.Op != event.Delete {
			rec.Value = []byte{}
		}
	} else {
		rec.Headers = m.Headers()
	}
	rec.Headers = append(rec.Headers, x.Header())
	v.refusals.replace(mergedName(m.Event.At), r) // counted also if no topic has refused it
	return rec, nil
}

// headersOf is m.Headers in memory that the next call uses again.
func (v *View) headersOf(m *conflict.Merged) []event.Header {
	v.headers, v.values = m.AppendOwnHeaders(append(v.headers[:0], m.Event.Headers...), v.values[:0])
	return v.headers
}

// isPassing tells whether an event may be readable the next time: a pointer that is written
// stays.
func isPassing(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || kerr.IsRetriable(err)
}

// fill reads what is left out of an event from the log.
func (v *View) fill(ctx context.Context, ev *event.Event) error {
	if v.cfg.Fetcher == nil {
		return ErrGone
	}
	whole, err := v.cfg.Fetcher.Fetch(ctx, ev.At)
	if err != nil {
		return err
	}
	ev.Value, ev.Headers, ev.LeftOut = whole.Value, whole.Headers, false
	return nil
}

// entityValue is the value of an entity's state record. It changes c to what the record
// says: values that are left out of it are not kept in memory either.
func (v *View) entityValue(c *conflict.Change) []byte {
	if c.Entity.IsZero() {
		return nil
	}
	size := v.fit(&c.Entity.State, entityName(c.Key))
	return v.mem.add(size+entityRoom+reportedRoom*len(c.Entity.Reported), func(b []byte) []byte { return appendEntity(b, &c.Entity) })
}

// baseValue is entityValue of a base's record.
func (v *View) baseValue(c *conflict.BaseChange) []byte {
	if c.Base.IsZero() {
		return nil
	}
	size := v.fit(&c.Base.State, baseName(c.Key))
	return v.mem.add(size+entityRoom, func(b []byte) []byte { return appendBase(b, &c.Base) })
}

// fit leaves values out of a state that the state topic does not take with them, and gives about
// how large its record is.
func (v *View) fit(s *conflict.State, name string) (size int) {
	var r replaced
	if len(v.refusals.by) > 0 {
		r = v.refusals.by[name]
	}
	size = sizeOf(s)
	if size > v.maxDerived() {
		r = replaced{r.how | leftOut, kerr.MessageTooLarge.Code, control.StateOf(v.cfg.Topic), newestOf(s)}
		v.refusals.replace(name, r)
	}
	if r.how&leftOut != 0 {
		s.Live = slices.Clone(s.Live)
		for i := range s.Live {
			leaveOut(&s.Live[i].Event)
		}
	}
	return size
}

// entityRoom is what an entity's value takes beside its live values and the losers that it
// remembers, and reportedRoom what one of these takes.
const (
	entityRoom   = 640
	reportedRoom = 72
)

// sizeOf is about how many bytes the values of a state take.
func sizeOf(s *conflict.State) (n int) {
	for i := range s.Live {
		n += s.Live[i].Event.Size()
	}
	return n
}

// leaveOut takes value and headers out of an event, unless they are small.
func leaveOut(ev *event.Event) {
	n := len(ev.Value)
	for _, h := range ev.Headers {
		n += len(h.Key) + len(h.Value)
	}
	if n > smallValue {
		ev.Value, ev.Headers, ev.LeftOut = nil, nil, true
	}
}

// newestOf is the dot of a state's newest live value.
func newestOf(s *conflict.State) (at event.Dot) {
	newest := -1
	for i := range s.Live {
		if newest < 0 || event.Less(&s.Live[newest].Event, &s.Live[i].Event) {
			newest, at = i, s.Live[i].Event.At
		}
	}
	return at
}

// countReplaced notes in the status what a committed step has replaced; the caller holds
// mu.
func (v *View) countReplaced() {
	for _, r := range v.refusals.by {
		if v.status.Replaced == nil {
			v.status.Replaced = make(map[string]Replaced)
			v.status.ReplacedBy = make(map[ReplacedKind]uint64)
		}
		was := v.status.Replaced[r.topic]
		v.status.Replaced[r.topic] = Replaced{was.Count + 1, r.code, r.at}
		v.status.ReplacedBy[ReplacedKind{r.topic, r.code}]++
	}
}
