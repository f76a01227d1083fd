package seat

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

const (
	tickEvery = 50 * time.Millisecond
	takeMax   = 512 // records judged before index and core hear of them
)

// runCore gives the core time and results. It ends the seat when the core has
// stopped.
func (s *Seat) runCore(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-s.coreWake:
		}
		s.resultsMu.Lock()
		results := s.results
		s.results = nil
		s.resultsMu.Unlock()
		s.mu.Lock()
		now := s.cfg.Wall()
		for _, ev := range results {
			s.step(now, ev)
		}
		s.step(now, Tick{})
		stopped := s.core.Stopped()
		s.mu.Unlock()
		if stopped {
			return ErrSuperseded
		}
	}
}

// runOpener writes barriers, one at a time.
func (s *Seat) runOpener(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case attempt := <-s.attempts:
			tctx, cancel := context.WithTimeout(ctx, s.cfg.OpenTimeout)
			ev := s.cfg.Opener.Open(tctx, attempt)
			cancel()
			s.result(ev)
		}
	}
}

// runTail reads the local log uncommitted: index first, then the core.
func (s *Seat) runTail(ctx context.Context, b *beginning) error {
	feed := s.cfg.Tail.local
	box := feed.open(place{s.cfg.Topic, s.cfg.Partition}, b.tailFrom, func() { poke(s.tailWake) })
	defer feed.shut(box)
	st := &localStream{
		seat: s, box: box, log: NewLog(s.cfg.Region, s.incarnation, b.tailLast),
		at: event.Point{Incarnation: s.incarnation, Next: b.tailFrom},
	}
	st.log.Rule = s.cfg.Rule
	ready := false
	var buf []judged
	for {
		if !ready && st.at.Next >= b.end {
			ready = true
			s.mu.Lock()
			s.status.Ready = true
			s.step(s.cfg.Wall(), Ready{})
			s.mu.Unlock()
			close(s.ready)
		}
		var err error
		if buf, err = st.take(ctx, buf[:0], takeMax); err != nil {
			return err
		}
		if len(buf) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.tailWake:
			}
			continue
		}
		if err := s.tell(buf); err != nil {
			return err
		}
	}
}

// tell passes judged places of the local log to the index, then to the core.
func (s *Seat) tell(js []judged) error {
	var copies []event.Copy
	var barriers []event.Dot
	var applied event.Vector
	own := s.cfg.Region
	for i := range js {
		j := &js[i]
		if j.barrier != nil {
			barriers = append(barriers, s.dot(own, j.Next.Incarnation, j.barrier.Offset))
		}
		// A gateway's records are never transactional; one inside a transaction
		// may yet be aborted, and the uncommitted tail cannot tell.
		if c, ok := keyed(&j.Item); ok && !j.foreign {
			copies = append(copies, c)
		}
		if j.Verdict == Valid {
			s.floor(&j.Event)
		}
		applied[own] = j.Next
	}
	if err := s.cfg.Index.Apply(copies, barriers, applied); err != nil {
		return fmt.Errorf("index keys: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Wall()
	for i := range js {
		j := &js[i]
		if j.barrier != nil && (len(s.marks) == 0 || s.marks[len(s.marks)-1] < j.barrier.Offset) {
			s.marks = append(s.marks, j.barrier.Offset)
		}
		s.count(&j.Item)
		s.step(now, Read{Item: j.Item, Barrier: j.barrier})
	}
	s.pokeInputs()
	return nil
}

// floor keeps the clock above the log's own stamps. A stamp that a gateway made
// must be passed whatever the wall says; an unstamped record's is its producer's.
func (s *Seat) floor(ev *event.Event) {
	if ev.Stamped {
		s.cfg.Clock.Restore(ev.Stamp)
		return
	}
	_ = s.cfg.Clock.Observe(ev.Stamp) // too far ahead: not ours to follow
}

func (s *Seat) count(it *Item) {
	switch it.Verdict {
	case Void:
		s.status.Void++
	case Quarantined:
		s.status.Quarantined++
	}
}

// keyed is the copy that an index keeps of an item. Those of orphans are kept, too:
// what an index holds must not depend on when a cut came to be known.
func keyed(it *Item) (event.Copy, bool) {
	if it.Event.Envelope.Key.IsZero() {
		return event.Copy{}, false
	}
	switch it.Verdict {
	case Valid, Void, Orphan:
		return event.CopyOf(&it.Event, it.Verdict == Void), true
	}
	return event.Copy{}, false
}

// inputs is what one seat reads committed, for the fold.
type inputs struct {
	seat    *Seat
	local   *localStream
	remote  map[event.RegionID]*remoteStream
	pending map[event.RegionID][]Item // judged, not passed on yet
	start   event.Vector              // where each origin begins
	last    Barriers                  // last barrier of each log there
	gate    event.Vector              // the fold begins when all sinks have reached it
	open    bool
	folded  event.Vector // passed to the fold
	cuts
	unsettled map[event.RegionID]event.Epoch // origins that wait for the register
}

// runInputs reads every origin's log committed: sinks first, then the fold.
func (s *Seat) runInputs(ctx context.Context, b *beginning) error {
	in := &inputs{
		seat: s, gate: b.committed, folded: b.committed,
		remote:  make(map[event.RegionID]*remoteStream),
		pending: make(map[event.RegionID][]Item),
		cuts:    cuts{table: b.table}, unsettled: make(map[event.RegionID]event.Epoch),
	}
	in.start, in.last = b.committed, b.barriers
	for _, k := range s.cfg.Sinks {
		v, last := k.Applied()
		in.lower(v, last)
	}
	own := s.cfg.Region
	keys := s.cfg.Index.Applied()
	keys[own] = in.start[own] // the tail feeds it the own log
	in.lower(keys, NoBarriers())
	in.last[own] = max(in.last[own], s.LastBarrier(in.start[own].Next))
	if err := in.openLocal(ctx); err != nil {
		return err
	}
	defer in.close()
	timer := time.NewTicker(time.Second) // held origins look at the wall again
	defer timer.Stop()
	for {
		var changed <-chan struct{}
		if s.cfg.Authority != nil {
			changed = s.cfg.Authority.Changed()
		}
		if err := in.openRemotes(ctx); err != nil {
			return err
		}
		moved, err := in.round(ctx)
		if err != nil {
			return err
		}
		in.note()
		if moved {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.inputsWake:
		case <-changed:
		case <-timer.C:
		}
	}
}

// lower moves the start of each origin down to what a sink has.
func (in *inputs) lower(v event.Vector, last Barriers) {
	for r := range v {
		if v[r].Compare(in.start[r]) < 0 {
			in.start[r], in.last[r] = v[r], last[r]
		}
	}
}

func (in *inputs) openLocal(ctx context.Context) error {
	s, own := in.seat, in.seat.cfg.Region
	feed, p := s.cfg.Tail.inputs, place{in.seat.cfg.Topic, in.seat.cfg.Partition}
	first, _, err := feed.bounds(ctx, p)
	if err != nil {
		return err
	}
	at := max(first, from(in.start[own], event.Point{Incarnation: s.incarnation}))
	in.local = &localStream{
		seat: s, box: feed.open(p, at, s.pokeInputs), log: NewLog(own, s.incarnation, in.last[own]),
		at: event.Point{Incarnation: s.incarnation, Next: at},
	}
	in.local.log.Rule = s.cfg.Rule
	return nil
}

// openRemotes begins to read remote topics as they appear in the registry, and
// anew when one was replaced.
func (in *inputs) openRemotes(ctx context.Context) error {
	s := in.seat
	for _, r := range s.cfg.Regions {
		if r == s.cfg.Region {
			continue
		}
		topic, ok := s.cfg.Control.Remote(r, s.cfg.Topic)
		old := in.remote[r]
		if !ok || old != nil && old.topic.ID == topic.ID {
			continue
		}
		start, log := in.start[r], NewLog(r, in.start[r].Incarnation, NoBarrier)
		log.Rule = s.cfg.Rule
		if old != nil {
			start, log = old.at, old.log
			s.cfg.Tail.inputs.shut(old.box)
			delete(in.remote, r)
		}
		p := place{topic.Name, s.cfg.Partition}
		first, _, err := s.cfg.Tail.inputs.bounds(ctx, p)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			level := slog.LevelWarn
			if kerr.IsRetriable(err) {
				level = slog.LevelDebug // registered before it is made, or just made
			}
			s.cfg.Logger.Log(ctx, level, "open remote topic", "topic", topic.Name, "partition", p.partition, "err", err)
			continue
		}
		at := max(first, in.target(r, topic, start))
		in.remote[r] = &remoteStream{
			seat: s, origin: r, topic: topic, log: log, at: start, next: at, epoch: -1, doubt: -1,
			box: s.cfg.Tail.inputs.open(p, at, s.pokeInputs),
		}
	}
	return nil
}

// target is where in a remote partition to read on from a place in the origin's
// log: at the first record at or above it, or behind everything described.
func (in *inputs) target(r event.RegionID, topic control.Topic, start event.Point) int64 {
	s := in.seat
	if start.Next == 0 && start.Incarnation == 0 {
		return 0
	}
	if t, ok := s.cfg.Control.FindFrom(r, topic.ID, s.cfg.Partition, start.Incarnation, start.Next); ok {
		return t
	}
	if cov, ok := s.cfg.Control.Covered(r, topic.ID, s.cfg.Partition); ok && start.Compare(cov.Source) >= 0 {
		return cov.Target
	}
	return 0
}

func (in *inputs) close() {
	feed := in.seat.cfg.Tail.inputs
	feed.shut(in.local.box)
	for _, st := range in.remote {
		feed.shut(st.box)
	}
}

// round takes what is there of every origin, feeds the sinks, then the fold.
func (in *inputs) round(ctx context.Context) (moved bool, err error) {
	s := in.seat
	if !in.open && in.reached() {
		in.open = true
	}
	if in.open {
		if moved, err = in.follow(ctx); err != nil {
			return false, err
		}
	}
	items, err := in.takeLocal(ctx, nil)
	if err != nil {
		return false, err
	}
	own := len(items)
	for r, st := range in.remote {
		if len(in.pending[r]) == 0 {
			in.pending[r] = st.take(nil, takeMax)
			if st.doubt >= 0 && st.believe(ctx) {
				in.pending[r] = st.take(in.pending[r], takeMax)
			}
		}
		items = in.release(r, st.at, items)
	}
	if len(items) == 0 {
		return moved, nil
	}
	if err := in.index(items[own:]); err != nil {
		return false, err
	}
	for _, k := range s.cfg.Sinks {
		if err := k.Add(items); err != nil {
			return false, fmt.Errorf("feed index: %w", err)
		}
	}
	return true, in.fold(ctx, items)
}

// takeLocal takes the local log as far as the tail has indexed it.
func (in *inputs) takeLocal(ctx context.Context, items []Item) ([]Item, error) {
	own := in.seat.cfg.Region
	if len(in.pending[own]) == 0 {
		js, err := in.local.take(ctx, nil, takeMax)
		if err != nil {
			return items, err
		}
		for i := range js {
			in.pending[own] = append(in.pending[own], js[i].Item)
		}
	}
	return in.release(own, in.seat.cfg.Index.Applied()[own], items), nil
}

// release passes on an origin's pending items up to a point, or to the first about
// which only the register can tell. While the sinks catch up with the fold, an
// origin that has caught up waits for the others.
func (in *inputs) release(r event.RegionID, upTo event.Point, items []Item) []Item {
	if !in.open && in.gate[r].Compare(upTo) < 0 {
		upTo = in.gate[r]
	}
	n := 0
	delete(in.unsettled, r)
	for n < len(in.pending[r]) && in.pending[r][n].Next.Compare(upTo) <= 0 {
		if it := &in.pending[r][n]; !in.judge(it) {
			in.unsettled[r] = it.Event.Epoch
			break
		}
		n++
	}
	items = append(items, in.pending[r][:n]...)
	in.pending[r] = in.pending[r][n:]
	return items
}

// reached tells whether every origin has been read to the fold's own place.
func (in *inputs) reached() bool {
	for r, g := range in.gate {
		at := in.start[r]
		switch st := in.remote[event.RegionID(r)]; {
		case event.RegionID(r) == in.seat.cfg.Region:
			at = in.local.at
		case st != nil:
			at = st.at
		}
		if at.Compare(g) < 0 || len(in.pending[event.RegionID(r)]) > 0 && in.pending[event.RegionID(r)][0].Next.Compare(g) <= 0 {
			return false
		}
	}
	return true
}

// index tells the key index of remote items, and the clock of their stamps.
func (in *inputs) index(items []Item) error {
	var copies []event.Copy
	var applied event.Vector
	for i := range items {
		it := &items[i]
		if c, ok := keyed(it); ok {
			copies = append(copies, c)
		}
		if it.Verdict == Valid {
			_ = in.seat.cfg.Clock.Observe(it.Event.Stamp) // beyond the bound only on events topics
		}
		applied[it.Origin] = it.Next
	}
	if len(items) == 0 {
		return nil
	}
	if err := in.seat.cfg.Index.Apply(copies, nil, applied); err != nil {
		return fmt.Errorf("index keys: %w", err)
	}
	return nil
}

// fold passes on what the fold has not folded.
func (in *inputs) fold(ctx context.Context, items []Item) error {
	s := in.seat
	fresh := items[:0:0]
	for _, it := range items {
		if in.folded[it.Origin].Compare(it.Next) < 0 {
			in.folded[it.Origin] = it.Next
			fresh = append(fresh, it)
		}
	}
	if len(fresh) > 0 {
		if err := s.cfg.Folder.Fold(ctx, fresh); err != nil {
			return fmt.Errorf("fold: %w", err)
		}
	}
	return nil
}

// note puts into the status what the inputs know.
func (in *inputs) note() {
	s := in.seat
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Foreign = 0
	for r, st := range in.remote {
		s.status.Foreign += st.foreign
		if st.held > 0 {
			s.status.Held[r] = st.held
		} else {
			delete(s.status.Held, r)
		}
	}
	s.status.Unsettled, s.status.Uncut = maps.Clone(in.unsettled), in.why
}

// hold says how long an event must wait for the wall, 0 for not at all.
func (s *Seat) hold(ev *event.Event) time.Duration {
	if !s.cfg.Hold {
		return 0
	}
	switch j, wait := s.cfg.Clock.Bounds().Judge(ev.Stamp, s.cfg.Wall()); j {
	case hlc.Hold:
		return wait
	case hlc.Pause:
		return time.Duration(1<<63 - 1)
	}
	return 0
}
