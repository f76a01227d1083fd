package seat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/txn"
)

const (
	tickEvery = 50 * time.Millisecond // while the core is busy
	lookEvery = time.Second           // what waits is looked at again, as held origins at the wall
	restEvery = time.Minute           // where nothing waits
)

// runCore gives the core time and results. It ends the seat when the core has
// stopped.
func (s *Seat) runCore(ctx context.Context) error {
	tick := time.NewTimer(0)
	defer tick.Stop()
	term := NoBarrier
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
		s.mu.Unlock()
		s.acceptQueue()
		s.mu.Lock()
		stopped, broken, was := s.core.Stopped(), s.broken, term
		next := tickEvery
		if s.ticks = s.core.Busy(); !s.ticks {
			next = max(s.core.Idle(now), tickEvery)
		}
		term = s.core.Term()
		s.mu.Unlock()
		switch {
		case broken != nil:
			return broken
		case stopped:
			return ErrSuperseded
		}
		if term != was && s.cfg.TermTaken != nil {
			s.cfg.TermTaken()
		}
		tick.Reset(next)
	}
}

// noteOpening puts into the status that no write is stored because the seat's term cannot
// be opened. One attempt that fails is nothing yet.
func (s *Seat) noteOpening(failed int) {
	if failed < 2 {
		s.setWaiting(nil)
		return
	}
	s.setWaiting(fmt.Errorf("its term cannot be opened: %d attempts have failed, the log says why", failed))
}

// runOpener writes barriers, one at a time, and has the fold confirm the first.
func (s *Seat) runOpener(ctx context.Context) error {
	failed := 0 // attempts in a row
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.confirms:
			if err := s.cfg.Folder.Confirm(ctx); err != nil {
				return fmt.Errorf("confirm the term: %w", err)
			}
			s.result(TermConfirmed{})
		case attempt := <-s.attempts:
			if t := s.cfg.Terms; t != nil {
				if err := t.Acquire(ctx, 1); err != nil {
					return err
				}
			}
			tctx, cancel := context.WithTimeout(ctx, s.cfg.OpenTimeout)
			ev, err := s.cfg.Opener.Open(tctx, attempt)
			cancel()
			if t := s.cfg.Terms; t != nil {
				t.Release(1)
			}
			if err != nil {
				return err
			}
			switch ev.(type) {
			case Opened:
				failed = 0
			case Unopened:
				failed++
			}
			s.noteOpening(failed)
			s.result(ev)
		}
	}
}

func (s *Seat) inputsConfig() InputsConfig {
	return InputsConfig{
		Region: s.cfg.Region, Incarnation: s.incarnation, Partition: s.cfg.Partition, Topic: s.cfg.ID, Rule: s.cfg.Rule,
		History: s.cfg.History, NoLog: s.cfg.NoLog,
	}
}

// runTail reads the local log uncommitted: index first, then the core.
func (s *Seat) runTail(ctx context.Context, b *beginning) error {
	if s.cfg.NoLog {
		s.beReady()
		return nil
	}
	feed := s.cfg.Tail.local
	box := feed.open(s.cfg.topicPartition(), s.cfg.ID, b.tailFrom, func() { poke(s.tailWake) })
	defer box.close()
	back := NewReadback(s.inputsConfig(), s.cfg.Clock, b.tailFrom, b.tailLast)
	events := []InputEvent{EndListed{b.end}}
	for {
		for len(events) > 0 {
			ev := events[0]
			events = events[1:]
			for _, e := range back.Step(ev) {
				answer, err := s.readBack(ctx, e)
				if err != nil {
					return err
				}
				if answer != nil {
					events = append(events, answer)
				}
			}
		}
		if !back.Wants() {
			events = append(events, Look{})
			continue
		}
		if es := box.pop(); es != nil {
			s.noteRefused(box.Topic, es)
			events = append(events, Fetched{s.cfg.Region, es})
			continue
		}
		if box.ended() {
			return errOverrun // the seat is opened again, and finds out what it lacks
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.tailWake:
		}
	}
}

// readBack carries out what the Readback asks for.
func (s *Seat) readBack(ctx context.Context, e InputEffect) (answer InputEvent, err error) {
	switch e := e.(type) {
	case AskBarrier:
		return s.askBarrier(ctx, e)
	case IndexKeys:
		if len(e.Barriers) > 0 {
			s.mark(e.Barriers)
		}
		return nil, s.indexKeys(e)
	case HandOver:
		s.handover.Put(e)
	case ReadPlaces:
		s.tell(e.Places)
	case BeReady:
		s.beReady()
	}
	return nil, nil
}

// beReady tells the core, and who waits, that the own log has been read far enough.
func (s *Seat) beReady() {
	s.mu.Lock()
	s.status.Ready = true
	s.step(s.cfg.Wall(), Ready{})
	s.mu.Unlock()
	close(s.ready)
	poke(s.coreWake) // it has another time to look at
	s.pokeInputs()   // a newer table may have waited for it
}

func (s *Seat) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.Ready
}

func (s *Seat) askBarrier(ctx context.Context, e AskBarrier) (InputEvent, error) {
	markers := []control.Marker{{Topic: s.cfg.ID, Partition: s.cfg.Partition, Producer: e.Producer, Epoch: e.Epoch}}
	for _, m := range e.More {
		markers = append(markers, control.Marker{Topic: s.cfg.ID, Partition: s.cfg.Partition, Producer: m.Producer, Epoch: m.Epoch})
	}
	if err := s.cfg.Control.Decide(ctx, markers); err != nil {
		return nil, fmt.Errorf("judge marker at %d: %w", e.Offset, err)
	}
	is, err := s.cfg.Control.IsBarrier(ctx, s.cfg.ID, s.cfg.Partition, e.Producer, e.Epoch)
	if err != nil {
		return nil, fmt.Errorf("judge marker at %d: %w", e.Offset, err)
	}
	return BarrierKnown{e.Offset, is}, nil
}

func (s *Seat) indexKeys(e IndexKeys) error {
	store := func(with StoreWith) error {
		if with == nil {
			return s.cfg.Index.Apply(e.Copies, e.Barriers, e.Applied)
		}
		return s.cfg.Index.ApplyWith(e.Copies, e.Barriers, e.Applied, with)
	}
	var err error
	if s.cfg.Joint != nil && len(e.Stretch.Places) > 0 {
		err = s.cfg.Joint.AddWith(e.Stretch, store)
	} else {
		err = store(nil)
	}
	if err != nil {
		return fmt.Errorf("index keys: %w", err)
	}
	return nil
}

// mark notes barriers of the local log. Whoever sees from the index that the log was read
// so far finds them noted.
func (s *Seat) mark(barriers []event.Dot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range barriers {
		if n := len(s.marks); d.Incarnation == s.incarnation && (n == 0 || s.marks[n-1] < d.Offset) {
			s.marks = append(s.marks, d.Offset)
		}
	}
}

// tell passes places of the local log, which the index has, to the core.
func (s *Seat) tell(places []Read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Wall()
	for i := range places {
		r := &places[i]
		switch r.Item.Verdict {
		case judged.Void:
			s.status.Void++
		case judged.Quarantined:
			s.status.Quarantined++
		}
	}
	s.step(now, ReadBack{places})
	s.pokeInputs()
}

// entryOf is what a core sees of an entry of a log.
func entryOf(e *txn.Entry) Entry {
	out := Entry{
		Offset: e.Offset, Span: e.Span, Refused: e.Refused, LeaderEpoch: e.LeaderEpoch, Producer: e.Producer, ProducerEpoch: e.ProducerEpoch,
		Transactional: e.Transactional, Timestamp: e.Timestamp, Key: e.Key, Value: e.Value, Headers: e.Headers,
	}
	if e.Control {
		if out.Control = e.Key; e.Key == nil {
			out.Control = []byte{}
		}
	}
	return out
}

// inputs is the adapter of what one seat reads committed: it runs Inputs against
// the logs. One goroutine owns it.
type inputs struct {
	seat   *Seat
	core   *Inputs
	local  *inbox // nil: the own log is not read but comes from the handover
	opened time.Time
	remote map[event.RegionID]*remoteInbox
	failed map[event.RegionID]openFailure
	// refused tells that Config.Reads has left out a region: it may say otherwise later.
	refused bool
	// listed is when followLoss last asked where logs with a gap begin.
	listed time.Time
}

// openFailure is why another region's log cannot be read.
type openFailure struct {
	since, at time.Time
	why       string
	none      bool // the copy has no such partition, so there is nothing to read
}

// openAgain is when a remote partition that could not be opened is tried again: until
// then a seat is woken many times a second.
const openAgain = time.Second

// remoteInbox is the remote topic that an origin's log is read from.
type remoteInbox struct {
	*inbox
	topic control.Topic
}

// runInputs reads every origin's log committed: sinks first, then the fold.
func (s *Seat) runInputs(ctx context.Context, b *beginning) error {
	in := &inputs{seat: s, remote: make(map[event.RegionID]*remoteInbox), failed: make(map[event.RegionID]openFailure)}
	in.core = s.newInputs(b)
	if err := in.beginLocal(ctx); err != nil {
		return err
	}
	defer in.close()
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		var changed <-chan struct{}
		if s.cfg.Permit != nil {
			changed = s.cfg.Permit.Changed()
		}
		if err := in.followLoss(ctx); err != nil {
			return err
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
		next := lookEvery
		if in.resting() {
			next = restEvery
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.inputsWake:
		case <-changed:
		case <-timer.C:
		}
	}
}

func (s *Seat) newInputs(b *beginning) *Inputs {
	start := InputsStart{Committed: b.committed, Barriers: b.barriers, Table: b.table, Keys: s.cfg.Index.Applied(), UsedBefore: s.cfg.UsedBefore}
	for _, k := range s.cfg.Sinks {
		v, last := k.Applied()
		start.Sinks = append(start.Sinks, SinkStart{v, last})
	}
	env := InputsSurroundings{
		Copies: s.cfg.Control, Clock: s.cfg.Clock, LastBarrier: s.LastBarrier,
		Indexed: func() event.Point { return s.cfg.Index.Applied()[s.cfg.Region] }, Ready: s.isReady,
	}
	if s.cfg.Permit != nil {
		env.Table = s.cfg.Permit.Intervals
	}
	if s.cfg.Hold {
		env.Hold = s.hold
	}
	if s.cfg.Incidents != nil {
		env.Missing = s.missing
	}
	return NewInputs(s.inputsConfig(), env, start)
}

// beginLocal finds out where the own log begins.
func (in *inputs) beginLocal(ctx context.Context) error {
	s := in.seat
	if s.cfg.NoLog {
		return nil
	}
	first, _, err := s.cfg.Tail.inputs.bounds(ctx, s.cfg.topicPartition())
	if err != nil {
		return err
	}
	in.core.OpenLocal(first)
	return nil
}

// localReadAtLeast is how long the inputs read the own log themselves before they try the
// handover again: where another application writes transactions all the time, the log is not
// opened again for each.
const localReadAtLeast = time.Second

// takeLocal gives what is next of the own log: what its tail has judged, or what is read
// of it; nil if nothing waits.
func (in *inputs) takeLocal() InputEvent {
	s := in.seat
	if s.cfg.NoLog || !in.core.Wants(s.cfg.Region) {
		return nil
	}
	if in.local == nil || time.Since(in.opened) > localReadAtLeast {
		places, ok := s.handover.Take(in.core.LocalNext())
		switch {
		case !ok:
		case len(places) == 0:
			in.closeLocal()
			return nil
		default:
			in.closeLocal()
			return Judged{places}
		}
	}
	if in.local == nil {
		in.local = s.cfg.Tail.inputs.open(s.cfg.topicPartition(), s.cfg.ID, in.core.LocalNext(), s.pokeInputs)
		in.opened = time.Now()
	}
	if es := in.local.pop(); es != nil {
		return Fetched{s.cfg.Region, es} // the tail has noted what was refused
	}
	return nil
}

func (in *inputs) closeLocal() {
	if in.local != nil {
		in.local.close()
		in.local = nil
	}
}

// openRemotes begins to read remote topics as they appear in the registry, and
// again when one was replaced.
func (in *inputs) openRemotes(ctx context.Context) error {
	s := in.seat
	in.refused = false
	for _, r := range s.cfg.Regions {
		if r == s.cfg.Region || time.Since(in.failed[r].at) < openAgain {
			continue
		}
		if s.cfg.Reads != nil && !s.cfg.Reads(r) {
			in.refused = true
			continue
		}
		topic, ok := s.cfg.Control.Remote(r, s.cfg.Topic)
		old := in.remote[r]
		if !ok || old != nil && old.topic.ID == topic.ID {
			continue
		}
		if old != nil {
			old.close()
			delete(in.remote, r)
		}
		s.cfg.Tail.subscribe(s, topic.ID) // before what control says of it is looked at
		p := txn.TopicPartition{Topic: topic.Name, Partition: s.cfg.Partition}
		first, _, err := s.cfg.Tail.inputs.bounds(ctx, p)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			in.notOpened(ctx, r, p, err)
			continue
		}
		delete(in.failed, r)
		at := in.core.OpenRemote(r, topic.ID, first)
		in.remote[r] = &remoteInbox{s.cfg.Tail.inputs.open(p, topic.ID, at, s.pokeInputs), topic}
	}
	return nil
}

// resting tells whether nothing has to be tried or looked at again before long.
func (in *inputs) resting() bool { return len(in.failed) == 0 && !in.refused && in.core.Resting() }

// notOpened says once why a remote partition cannot be read yet.
func (in *inputs) notOpened(ctx context.Context, r event.RegionID, p txn.TopicPartition, err error) {
	now, before := time.Now(), in.failed[r]
	f := openFailure{since: before.since, at: now, why: err.Error(), none: errors.Is(err, errNoPartition)}
	if f.since.IsZero() || f.none != before.none {
		f.since = now
	}
	level := slog.LevelWarn
	if kerr.IsRetriable(err) || f.none {
		level = slog.LevelDebug // registered before it is made, or just made; or the origin has fewer partitions
	}
	if f.why != before.why {
		in.seat.cfg.Logger.Log(ctx, level, "cannot read a remote partition yet; will try again", "topic", p.Topic, "partition", p.Partition, "err", err)
	}
	in.failed[r] = f
}

// unread says which regions' logs cannot be read, and why.
func (in *inputs) unread() map[event.RegionID]string {
	var out map[event.RegionID]string
	for r, f := range in.failed {
		if f.none || time.Since(f.since) < in.seat.cfg.UnreadAfter {
			continue
		}
		if out == nil {
			out = make(map[event.RegionID]string)
		}
		out[r] = f.why
	}
	return out
}

func (in *inputs) close() {
	in.closeLocal()
	for _, b := range in.remote {
		b.close()
	}
}

// round gives the core what has come in of every origin, and carries out what it
// asks for. moved tells whether there was anything to do.
func (in *inputs) round(ctx context.Context) (moved bool, err error) {
	events := []InputEvent{Look{}}
	if ev := in.takeLocal(); ev != nil {
		events = append(events, ev)
	}
	for r, b := range in.remote {
		if !in.core.Wants(r) {
			continue
		}
		if es := b.pop(); es != nil {
			in.seat.noteRefused(b.Topic, es)
			events = append(events, Fetched{r, es})
		}
	}
	moved = len(events) > 1
	for len(events) > 0 {
		ev := events[0]
		events = events[1:]
		for _, e := range slices.Clone(in.core.Step(time.Now(), ev)) { // readAgain steps, too
			answer, progress, err := in.do(ctx, e)
			if err != nil {
				return moved, err
			}
			moved = moved || progress
			if answer != nil {
				events = append(events, answer)
			}
		}
	}
	return moved, nil
}

// do carries out one effect; progress is false for what merely failed.
func (in *inputs) do(ctx context.Context, e InputEffect) (answer InputEvent, progress bool, err error) {
	s := in.seat
	switch e := e.(type) {
	case AskBarrier:
		answer, err = s.askBarrier(ctx, e)
	case AskEpochEnd:
		end := in.epochEnd(ctx, e)
		return end, end.OK, nil
	case ReadAgain:
		answer, err = in.readAgain(ctx, e)
	case IndexKeys:
		err = s.indexKeys(e)
	case AddToSinks:
		for _, k := range s.cfg.Sinks {
			if err := k.Add(e.Items); err != nil {
				return nil, false, fmt.Errorf("feed index: %w", err)
			}
		}
	case FoldItems:
		if err = s.cfg.Folder.Fold(ctx, e.Items); err != nil {
			err = fmt.Errorf("fold: %w", err)
		}
	case ReportGap:
		return nil, false, in.reportGap(ctx, e)
	case ReportForeign:
		b := in.remote[e.Origin]
		s.cfg.Logger.Error("foreign record in a remote topic", "topic", b.topic.Name, "partition", s.cfg.Partition, "offset", e.Offset)
	case ReportCutPending:
		s.cfg.Logger.Warn("cannot read what lies past a cut; will try again", "topic", s.cfg.Topic, "partition", s.cfg.Partition,
			"origin", e.Origin, "from", e.From.Next, "err", e.Err)
		return nil, false, nil
	}
	return answer, true, err
}

// readAgain reads a stretch of a partition. Only the end of the context is an error of the
// seat.
func (in *inputs) readAgain(ctx context.Context, e ReadAgain) (InputEvent, error) {
	s := in.seat
	p, log := s.cfg.topicPartition(), s.cfg.ID
	if e.Origin != s.cfg.Region {
		b := in.remote[e.Origin]
		if b == nil { // closed, to be opened again
			return RereadEnded{e.Number, errNotOpen}, nil
		}
		p, log = b.TopicPartition, b.topic.ID
	}
	first, end, err := s.cfg.Tail.inputs.bounds(ctx, p)
	if err == nil && end < e.To {
		err = fmt.Errorf("%s/%d ends at %d, before %d", p.Topic, p.Partition, end, e.To)
	}
	if err == nil {
		err = in.reportDeleted(e, log, p, first)
	}
	if from := max(e.From, first); err == nil && from < e.To {
		_, err = txn.ReadCommitted(ctx, txn.NewTopics(s.cfg.Producer.Client()), s.cfg.Tail.inputs.decoder, p, from, e.To, func(r *txn.Record) error {
			x := entryOf(&txn.Entry{Record: *r, LeaderEpoch: -1})
			// Nothing is asked for before the end, but that it cannot go on.
			for _, effect := range in.core.Step(time.Now(), Reread{e.Number, []Entry{x}}) {
				if _, _, err := in.do(ctx, effect); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return RereadEnded{e.Number, err}, nil
}

// refusedLogEvery is the shortest time between two logs of refused records of a topic:
// somebody may write many.
const refusedLogEvery = 10 * time.Second

// noteRefused puts refused records into the status and, now and then, into the log.
func (s *Seat) noteRefused(topic string, es []Entry) {
	for i := range es {
		e := &es[i]
		if e.Refused == nil {
			continue
		}
		s.mu.Lock()
		x := s.status.Refused[topic]
		x.Entries, x.From, x.Until, x.Err = x.Entries+1, e.Offset, e.next(), e.Refused
		now := time.Now()
		log := now.Sub(x.logged) > refusedLogEvery
		if log {
			x.logged = now
		}
		s.status.Refused[topic] = x
		s.mu.Unlock()
		if log {
			s.cfg.Logger.Error("records are in no view: they exceed limits or do not parse", "topic", topic, "partition", s.cfg.Partition,
				"from", e.Offset, "until", e.next(), "so_far", x.Entries, "err", e.Refused)
		}
	}
}

// note puts into the status what the inputs wait for.
func (in *inputs) note() {
	st := in.core.Status()
	s := in.seat
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Foreign, s.status.CutPending, s.status.Unread = st.Foreign, st.CutPending, in.unread()
	s.status.Held, s.status.Unsettled, s.status.Gaps = st.Held, maps.Clone(st.Unsettled), st.Gaps
}

// hold says how long an event must wait for the wall, 0 for not at all. Only a stamp that
// a gateway made is worth waiting for.
func (s *Seat) hold(ev *event.Event) time.Duration {
	if !ev.Stamped {
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
