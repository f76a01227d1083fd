package ownership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/event"
)

// Client is the ownership of one instance: it runs an [Core] against the
// register, and answers whether the instance may write.
type Client struct {
	cfg    ClientConfig
	log    *slog.Logger
	core   *Core
	reg    Register
	events chan Event
	tokens atomic.Pointer[Tokens]
	refs   atomic.Uint64
	lasts  atomic.Int64 // boottime of the last write of the register that was stored

	reopen  chan struct{} // holds one: ask the register what it is
	rewatch chan uint64   // holds one: begin the watch again after this sequence

	mu      sync.Mutex
	waiting map[uint64]chan Result
	changed chan struct{}
	voters  [2]int

	tasks   *errgroup.Group // everything that an effect begins, but
	reads   *errgroup.Group // questions, of each subject one at a time
	delayed sync.WaitGroup  // and what it does later
	asking  sync.Map        // subjects of reads
	saving  sync.Mutex      // one mark at a time, in any order: epochs only rise

	meter *meter
}

// NewClient makes an authority; it does nothing before Run. Until then nothing
// is proven.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Lease.Validate(); err != nil {
		return nil, err
	}
	a := &Client{
		cfg: cfg, log: cfg.Logger, meter: newMeter(), events: make(chan Event, openEvents),
		waiting: make(map[uint64]chan Result), changed: make(chan struct{}),
		reopen: make(chan struct{}, 1), rewatch: make(chan uint64, 1),
		voters: [2]int{cfg.Voters, 0},
	}
	a.tokens.Store(&Tokens{region: cfg.Region})
	return a, nil
}

const (
	// openEvents bounds what waits for the state machine; whoever brings more
	// waits.
	openEvents = 1024
	// openTasks bounds writes, reads and listings at a time.
	openTasks = 64
	// openReads bounds questions, which are hints.
	openReads = 16
	openPause = 500 * time.Millisecond
	// mostSilence is how long the process may stand still before its connection is
	// doubted: a dead one looks alive until pings are missed.
	mostSilence = 2 * time.Second
	// mostPause bounds the pauses before the watch is begun again: what creates a
	// consumer may be out of office for an election.
	mostPause = 5 * time.Second
	// openTime bounds one attempt: a question to a cluster that has no leader yet
	// is lost, not kept.
	openTime = 1500 * time.Millisecond
	mostWait = 200 * time.Millisecond
	// sleptSkew is how far the two clocks may part before the machine is taken to
	// have slept.
	sleptSkew = 50 * time.Millisecond
	// goneTime bounds the wait for the last word of a stopping instance.
	goneTime   = time.Second
	listTime   = 10 * time.Second
	votersTime = 2 * time.Second
)

var processStart = time.Now()

func sinceStart() time.Duration { return time.Since(processStart) }

// clockSkew is how far the clock that counts suspend is ahead of the one that does
// not. It is not ok when the two could not be read close together: a process that
// is kept waiting between them has not slept.
func clockSkew() (skew time.Duration, ok bool) {
	for range 3 {
		before := sinceStart()
		boot := boottime()
		if sinceStart()-before < sleptSkew/10 {
			return boot - before, true
		}
	}
	return 0, false
}

// Run owns the connection to the register and every goroutine of the authority.
// It returns nil when the context ends, after it has said that the instance holds
// nothing any more.
func (a *Client) Run(ctx context.Context) error {
	mark, err := loadMark(a.cfg.DataDir)
	if err != nil {
		return err
	}
	mirrored, err := a.loadMirror(ctx)
	if err != nil {
		return nil // the context has ended
	}
	life := make([]byte, 6)
	if _, err := rand.Read(life); err != nil {
		return fmt.Errorf("name the process: %w", err)
	}
	a.core = NewCore(CoreConfig{
		Region: a.cfg.Region, ID: a.cfg.ID, Regions: a.cfg.Regions, Instance: a.cfg.Instance,
		Life: fmt.Sprintf("%s-%s-%x", a.cfg.Region, a.cfg.Instance, life),
		Home: a.cfg.Policy.Home(a.cfg.Region), Lease: a.cfg.Lease, Mark: mark, Mirrored: mirrored,
	})
	// Tasks outlive ctx by the last word of a stopping instance.
	tctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	a.tasks = &errgroup.Group{}
	a.tasks.SetLimit(openTasks)
	a.reads = &errgroup.Group{}
	a.reads.SetLimit(openReads)
	a.reg, err = a.cfg.Dial(Handlers{
		Connected: a.requestOpen,
		Told:      func(s Seen) { a.meter.heard(s, a.tokens.Load()); a.tell(tctx, s) },
		Answered:  func(s Seen) { a.tell(tctx, s) },
		Newest:    func(subject string) (uint64, []byte) { return a.tokens.Load().newest(subject) },
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { return a.cfg.Mirror.Run(ctx) })
	g.Go(func() error { a.countVoters(ctx); return nil })
	g.Go(func() error { a.open(ctx); return nil })
	g.Go(func() error { a.follow(ctx); return nil })
	a.loop(ctx, tctx)
	a.sendGone(tctx)
	cancel()
	err = errors.Join(a.tasks.Wait(), a.reads.Wait(), g.Wait())
	a.delayed.Wait()
	a.reg.Close() // after it none of the handlers runs
	return err
}

// loadMirror reads the region's own Kafka until it answers.
func (a *Client) loadMirror(ctx context.Context) (map[string]event.Epoch, error) {
	for {
		tctx, cancel := context.WithTimeout(ctx, listTime)
		epochs, err := a.cfg.Mirror.Load(tctx)
		cancel()
		if err == nil {
			return epochs, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		a.log.Warn("read the copy of the ownership register in kafka, will try again", "err", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(openPause):
		}
	}
}

// loop gives the state machine its events and time.
func (a *Client) loop(ctx, tctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	skew, ran := time.Duration(math.MaxInt64), boottime() // the first that is read counts
	for {
		var ev Event = Wake{}
		select {
		case <-ctx.Done():
			return
		case ev = <-a.events:
		case <-timer.C:
		}
		if now, ok := clockSkew(); ok && now-skew > sleptSkew {
			a.log.Warn("the machine has slept; every token is dropped", "for", (now - skew).String())
			a.step(tctx, Slept{})
			skew = now
		} else if ok && now < skew {
			skew = now
		}
		if gap := boottime() - ran; gap > mostSilence {
			a.log.Warn("the process was stopped; the register is reached anew", "for", gap.String())
			a.meter.pauses.Inc()
			a.step(tctx, Paused{})
		}
		a.step(tctx, ev)
		ran = boottime()
		timer.Reset(a.core.Wait(boottime(), mostWait))
	}
}

// step runs the state machine, makes its tokens the ones in force, and only then
// does what it asks for.
func (a *Client) step(ctx context.Context, ev Event) {
	before, was, old := a.core.Moved(), a.core.Regressed(), a.tokens.Load()
	effects := a.core.Step(boottime(), ev)
	now := a.core.Tokens()
	a.tokens.Store(now)
	if now.SoftFenced != old.SoftFenced {
		if now.SoftFenced {
			a.log.Warn("the lease has run out: no write is taken until the register confirms it again")
		} else {
			a.log.Info("the lease is confirmed again, or has been taken")
		}
	}
	for _, e := range effects {
		a.effect(ctx, e)
	}
	if why := a.core.Regressed(); why != "" && was == "" {
		a.log.Error("the ownership register went backwards; this instance takes no writes", "reason", why)
	}
	if a.core.Moved() != before {
		a.mu.Lock()
		close(a.changed)
		a.changed = make(chan struct{})
		a.mu.Unlock()
	}
}

// tell hands an event to the state machine.
func (a *Client) tell(ctx context.Context, ev Event) {
	select {
	case a.events <- ev:
	case <-ctx.Done():
	}
}

// effect begins what an effect asks for; nothing here waits.
func (a *Client) effect(ctx context.Context, e Effect) {
	switch e := e.(type) {
	case Write:
		a.task(ctx, Written{Op: e.Op, Outcome: Unknown}, func() Event {
			began := boottime()
			o, seq := a.reg.Write(ctx, e)
			a.meter.wrote(e.Subject, o, boottime()-began)
			if o == Stored {
				a.lasts.Store(int64(boottime()))
			}
			return Written{Op: e.Op, Outcome: o, Seq: seq}
		})
	case Read:
		a.read(ctx, e.Subject)
	case Broadcast:
		a.reg.Broadcast(e)
		for _, pause := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
			a.later(ctx, pause, func() { a.reg.Broadcast(e) })
		}
	case List:
		a.task(ctx, Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref}, func() Event {
			ends, err := a.ends(ctx, e.Unit)
			return Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: ends, OK: err == nil}
		})
	case Settle:
		a.task(ctx, Settled{Unit: e.Unit, Epoch: e.Epoch}, func() Event {
			if err := a.cfg.Logs.Settle(ctx, e.Unit); err != nil {
				return Settled{Unit: e.Unit, Epoch: e.Epoch}
			}
			ends, err := a.ends(ctx, e.Unit)
			return Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: ends, OK: err == nil}
		})
	case AskApplied:
		a.task(ctx, Applied{Unit: e.Unit, Ref: e.Ref}, func() Event {
			ends, err := a.cfg.Logs.Applied(ctx, e.Unit, e.Region)
			if err != nil {
				a.log.Warn("find out what was applied", "unit", e.Unit, "of", e.Region, "err", err)
			}
			return Applied{Unit: e.Unit, Ref: e.Ref, Ends: ends, OK: err == nil}
		})
	case Persist:
		a.persist(ctx, e)
	case Rewatch:
		a.log.Warn("the watch of the register is begun anew", "behind", e.From, "reconnect", e.Reconnect)
		a.meter.rewatches.Inc()
		if e.Reconnect {
			a.reg.Reconnect()
		}
		a.requestWatch(e.From)
	case Reopen:
		a.requestOpen()
	case Answer:
		a.mu.Lock()
		ch := a.waiting[e.Ref]
		delete(a.waiting, e.Ref)
		a.mu.Unlock()
		if ch != nil {
			ch <- e.Result
		}
	}
}

// task runs something on the side and hands over what comes of it; busy is
// handed over instead when too much runs already.
func (a *Client) task(ctx context.Context, busy Event, run func() Event) {
	started := a.tasks.TryGo(func() error {
		if ev := run(); ev != nil {
			a.tell(ctx, ev)
		}
		return nil
	})
	if !started && busy != nil {
		a.later(ctx, retryLimit, func() { a.tell(ctx, busy) })
	}
}

// later runs f after a pause, unless the context ends before. Run waits for it.
func (a *Client) later(ctx context.Context, pause time.Duration, f func()) {
	a.delayed.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			f()
		}
	})
}

// read asks for a record, the register unless that is asked already or too much
// else is, and the other instances: answers are hints, and questions must not
// stand in the way of writes.
func (a *Client) read(ctx context.Context, subject string) {
	known, _ := a.tokens.Load().newest(subject)
	a.reg.Ask(subject, known)
	if _, asked := a.asking.LoadOrStore(subject, true); asked {
		return
	}
	started := a.reads.TryGo(func() error {
		s, ok := a.reg.Read(ctx, subject)
		a.asking.Delete(subject)
		if ok {
			a.tell(ctx, s)
		}
		return nil
	})
	if !started {
		a.asking.Delete(subject)
	}
}

func (a *Client) ends(ctx context.Context, unit string) ([]Extent, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	ends, err := a.cfg.Logs.Ends(ctx, unit)
	if err != nil {
		a.log.Warn("list where logs end", "unit", unit, "err", err)
	}
	return ends, err
}

// persist puts the mark on disk, again until that works: until then the new
// epochs are not used.
func (a *Client) persist(ctx context.Context, e Persist) {
	a.task(ctx, nil, func() Event {
		for {
			err := a.saveMark(e)
			if err == nil {
				return Persisted{Version: e.Version}
			}
			a.log.Error("write the high-water mark, will try again", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(openPause):
			}
		}
	})
}

// saveMark writes a mark unless a later one is on disk.
func (a *Client) saveMark(e Persist) error {
	a.saving.Lock()
	defer a.saving.Unlock()
	now, err := loadMark(a.cfg.DataDir)
	if err != nil {
		return err
	}
	if now.Created == e.Mark.Created {
		for unit, epoch := range now.Epochs {
			e.Mark.Epochs[unit] = max(e.Mark.Epochs[unit], epoch)
		}
		e.Mark.Seq = max(e.Mark.Seq, now.Seq)
	}
	return saveMark(a.cfg.DataDir, e.Mark)
}

// sendGone says that the instance holds nothing any more, so that a fence need
// not wait for it.
func (a *Client) sendGone(ctx context.Context) {
	deadline := time.NewTimer(goneTime)
	defer deadline.Stop()
	a.step(ctx, Release{})
	for !a.core.Released() {
		select {
		case <-deadline.C:
			return
		case ev := <-a.events:
			a.step(ctx, ev)
		case <-time.After(20 * time.Millisecond):
			a.step(ctx, Wake{})
		}
	}
}

// Grant gives the permission to write a unit now: the first check. The error is
// ErrUnproven or a *NotOwnerError.
func (a *Client) Grant(unit string) (Grant, error) {
	g, err := a.tokens.Load().Grant(boottime(), unit)
	if errors.Is(err, ErrUnproven) {
		// Nobody has written the unit's record yet, and it is not ours to write.
		if home := a.cfg.Policy.HomeOf(unit); home != "" && home != a.cfg.Region {
			if _, known := a.tokens.Load().Units[unit]; !known {
				return Grant{}, &NotOwnerError{Unit: unit, Owner: home, State: UnitPreparing}
			}
		}
	}
	return g, err
}

// Holds tells whether what a grant gave is still held: the second check.
func (a *Client) Holds(unit string, g Grant) bool {
	return a.tokens.Load().Holds(boottime(), unit, g)
}

// Tokens are what is held and known now.
func (a *Client) Tokens() *Tokens { return a.tokens.Load() }

// Changed is closed when what is known of ownership changes next.
func (a *Client) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// LeaseLeft is how long the instance may still write a unit without another
// renewal; ok is false where it does not hold it.
func (a *Client) LeaseLeft(unit string) (left time.Duration, ok bool) {
	t, now := a.tokens.Load(), boottime()
	if _, held := t.Held[unit]; !held || now >= t.Until {
		return 0, false
	}
	return t.Until - now, true
}

// Ask has a command carried out and waits for its end, or for the context's:
// then the plan goes on and the result says so.
func (a *Client) Ask(ctx context.Context, cmd Command) Result {
	ref, ch := a.refs.Add(1), make(chan Result, 1)
	a.mu.Lock()
	a.waiting[ref] = ch
	a.mu.Unlock()
	a.log.Info("ownership command", "verb", string(cmd.Verb), "on", cmd.describe(), "reason", cmd.Reason)
	a.tell(ctx, Ask{Ref: ref, Command: cmd})
	select {
	case r := <-ch:
		a.log.Info("ownership command ended", "verb", string(cmd.Verb), "on", cmd.describe(), "exit", int(r.Code), "detail", r.Detail)
		return r
	case <-ctx.Done():
	}
	a.mu.Lock()
	delete(a.waiting, ref)
	a.mu.Unlock()
	return Result{Code: ResultInProgress, Detail: "still in progress; the same command goes on from where things are", Units: []FencedUnit{}}
}

// RegisterStatus is how the register is, as this instance sees it.
type RegisterStatus struct {
	State             string // ok, unreachable, regressed
	Voters, Reachable int
	Write             time.Duration // of the last write; 0 unknown
	Regressed         string
}

// Status says how the register is.
func (a *Client) Status() RegisterStatus {
	s := RegisterStatus{State: "ok"}
	a.mu.Lock()
	s.Voters, s.Reachable = a.voters[0], a.voters[1]
	a.mu.Unlock()
	s.Regressed = a.tokens.Load().Regressed
	if a.lasts.Load() != 0 { // so that the connection is there
		s.Write = a.reg.LastWrite()
	}
	if s.Regressed != "" {
		s.State = "regressed"
	} else if last := a.lasts.Load(); last == 0 || boottime()-time.Duration(last) > 2*a.cfg.Lease.Renew+a.cfg.Lease.Timeout {
		s.State = "unreachable"
		// A fenced region's instance writes nothing; that it is heard of says enough.
		t := a.tokens.Load()
		if r, ok := t.Regions[a.cfg.Region]; ok && r.Record.State == RegionFenced && s.Reachable > s.Voters/2 {
			s.State = "ok"
		}
	}
	return s
}
