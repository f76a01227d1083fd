package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

// errStale: the region has not applied what the client has seen within the wait.
var errStale = errors.New("gateway: view is stale")

// errExpired: the log begins after the place asked for.
var errExpired = errors.New("gateway: place is no longer in the log")

// errEnd: a feed has given all that there was when its ends were listed.
var errEnd = errors.New("gateway: end of feed")

// errUndecided: a record cannot be judged yet; its partition waits before it.
var errUndecided = errors.New("gateway: record cannot be judged yet")

const (
	// tailWait is how long a feed waits below a listed end for a record before
	// it asks whether the rest is empty: compaction can leave a tail without
	// records. It is, once the broker has answered tailFetches fetches meanwhile
	// (the first may have been asked before), so that a slow broker is not taken
	// for an empty one; one that does not answer for brokerTimeout is an error.
	tailWait      = 2 * time.Second
	tailFetches   = 2
	brokerTimeout = 15 * time.Second
	// refreshEvery is the least time between two listings of the ends while a
	// stream is followed, and the pace at which a record that cannot be judged
	// yet is tried again.
	refreshEvery = time.Second
	// markerWait is how long a read waits for the marker of what was committed
	// before it answers without it, and without the claim to be at the end.
	markerWait  = 2 * time.Second
	markerRetry = 5 * time.Millisecond
	retryEvery  = 50 * time.Millisecond
)

// feed reads a view record by record. It belongs to one request's goroutine.
type feed struct {
	s      *Server
	view   sourceView
	rd     *reader
	asked  string // topic of the request
	name   string // of the topic that rd reads
	parts  map[int32]*feedPart
	last   *feedPart // of the record before
	listed time.Time
	// behind: the listed ends lie below what the region has written already.
	behind bool
	// held are records that could not be judged yet: such a partition waits, with
	// fetching paused, and the others go on.
	held map[int32][]*txn.Entry
	due  []*txn.Entry // held, to be tried again
	// tailEmpty: what is left below the ends holds no records.
	tailEmpty bool

	slot hold // the feed itself
	room hold // what its client buffers
}

// feedPart is a partition that a feed reads.
type feedPart struct {
	partition int32
	next      int64 // to read
	end       int64 // as it was listed
}

// newFeed opens a view and lists its ends, which cover what the region has applied
// unless the broker takes longer than markerWait to write it down. It waits for a
// slot: followed streams stay open, so they have slots of their own.
func (s *Server) newFeed(ctx context.Context, v sourceView, rd *reading) (*feed, error) {
	f := &feed{
		s: s, view: v, asked: rd.topic, parts: make(map[int32]*feedPart), held: make(map[int32][]*txn.Entry),
		slot: hold{of: s.reads, by: rd.by}, room: hold{of: s.unread, by: rd.by},
	}
	patience := s.patience
	if rd.follow { // those that are open stay so
		f.slot.of, patience = s.follows, 0
	}
	err := f.slot.resize(ctx, 1, patience)
	if err == nil {
		err = f.refresh(ctx)
	}
	late := time.Now().Add(markerWait)
	for err == nil && f.behind && time.Now().Before(late) {
		if err = sleep.For(ctx, markerRetry); err == nil {
			err = f.refresh(ctx)
		}
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *feed) close() {
	f.view.close()
	if f.rd != nil {
		f.rd.close()
	}
	f.room.release()
	f.slot.release()
}

// refresh lists the ends again, and opens what has appeared since.
func (f *feed) refresh(ctx context.Context) error {
	f.view.beforeListing()
	f.listed = time.Now()
	if f.name = f.view.topic(); f.name == "" {
		return nil
	}
	logs, err := f.s.logs.spans(ctx, f.name)
	if err != nil {
		return err
	}
	f.behind = false
	for p, least := range f.view.written() {
		f.behind = f.behind || logs[p].end < least
	}
	fresh := make(map[int32]span)
	for p, l := range logs {
		if f.parts[p] == nil {
			fresh[p] = l
		}
	}
	for p, part := range f.parts {
		part.end = logs[p].end
	}
	if len(fresh) > 0 {
		if err := f.begin(ctx, fresh); err != nil {
			return err
		}
	}
	for p, part := range f.parts {
		f.view.reached(p, part.next)
	}
	return nil
}

func (f *feed) begin(ctx context.Context, logs map[int32]span) error {
	at, err := f.view.start(ctx, logs)
	if err != nil {
		return err
	}
	for p, o := range at {
		f.parts[p] = &feedPart{partition: p, next: o, end: logs[p].end}
	}
	if err := f.room.resize(ctx, buffered(len(f.parts)), f.s.patience); err != nil {
		return err
	}
	switch {
	case len(at) == 0:
	case f.rd == nil:
		f.rd, err = f.s.logs.read(f.name, f.view.derived(), at)
	default:
		f.rd.add(at)
	}
	return err
}

// caughtUp tells whether all was read that there was when the ends were listed,
// but for partitions that wait.
func (f *feed) caughtUp() bool {
	for p, part := range f.parts {
		if part.next < part.end && len(f.held[p]) == 0 {
			return false
		}
	}
	return true
}

// atEnd tells whether a reader has seen all that there was and all that the region
// had applied.
func (f *feed) atEnd() bool {
	return !f.behind && len(f.held) == 0 && len(f.due) == 0 && (f.rd == nil || !f.rd.ready() && (f.tailEmpty || f.caughtUp()))
}

// read appends to out the next record that the reader sees, without the brace that closes
// it, or gives errEnd when the ends are reached. It never waits longer than for what is
// known to be there.
func (f *feed) read(ctx context.Context, out *parts) error {
	for {
		rec, err := f.pull(ctx, out)
		if err != nil {
			return err
		}
		shown, err := f.judge(ctx, rec, out)
		if shown || err != nil {
			return err
		}
	}
}

// pull gives the next record to judge; it is valid until the next call.
func (f *feed) pull(ctx context.Context, out *parts) (*txn.Entry, error) {
	if len(f.due) > 0 {
		rec := f.due[0]
		f.due = f.due[1:]
		return rec, nil
	}
	switch {
	case f.rd == nil:
		return nil, errEnd
	case f.rd.ready():
		f.tailEmpty = false
		return f.rd.poll(ctx)
	case f.caughtUp():
		return nil, errEnd
	case out.prompt:
		if err := out.flushAll(); err != nil {
			return nil, err
		}
	}
	answers, late := f.rd.cl.answers.Load(), time.Now().Add(brokerTimeout)
	for {
		wait, cancel := context.WithTimeout(ctx, tailWait)
		rec, err := f.rd.poll(wait)
		nothing := err != nil && ctx.Err() == nil && wait.Err() != nil && errors.Is(err, wait.Err())
		cancel()
		switch {
		case !nothing:
			f.tailEmpty = false
			return rec, err
		case f.rd.cl.answers.Load()-answers >= tailFetches:
			f.tailEmpty = true
			return nil, errEnd
		case time.Now().After(late):
			return nil, upstream(ctx, "read "+f.name, errors.New("the broker does not answer fetches"))
		}
	}
}

// judge appends a record to out, if the reader sees it.
func (f *feed) judge(ctx context.Context, rec *txn.Entry, out *parts) (shown bool, err error) {
	p := rec.Partition
	if len(f.held) > 0 && len(f.held[p]) > 0 {
		f.hold(rec)
		return false, nil
	}
	buf, shown, err := f.view.show(ctx, rec, out.buf)
	if errors.Is(err, errUndecided) {
		f.hold(rec)
		f.rd.pause(p)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if f.last == nil || f.last.partition != p {
		f.last = f.parts[p]
	}
	f.last.next = rec.Next()
	f.view.reached(p, f.last.next)
	if shown {
		out.buf = buf
	}
	return shown, nil
}

// hold keeps a record until it can be judged.
func (f *feed) hold(rec *txn.Entry) {
	f.held[rec.Partition] = append(f.held[rec.Partition], rec.Clone())
}

// retryHeld lines up what is held to be judged once more.
func (f *feed) retryHeld() {
	for p, recs := range f.held {
		f.due = append(f.due, recs...)
		f.rd.resume(p)
	}
	clear(f.held)
}

// wait blocks until there may be more, or until ctx is done, whose error it
// returns.
func (f *feed) wait(ctx context.Context) error {
	if f.rd == nil || len(f.held) > 0 {
		// Nothing to read yet, or a record that needs what others write down.
		if err := pause(ctx, retryEvery, f.s.deps.Logs.Changed()); err != nil {
			return err
		}
		f.retryHeld()
	} else if err := f.rd.await(ctx); err != nil {
		return err
	}
	if f.rd == nil || time.Since(f.listed) >= refreshEvery {
		return f.refresh(ctx)
	}
	return nil
}

// pause waits for d, or less if wake is closed meanwhile. It returns ctx's error if
// that is done first.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
