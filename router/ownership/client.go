package ownership

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
)

// Client is the ownership of one instance: it runs a [Core] against the register,
// and answers whether the instance may write. It is safe for concurrent use.
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
	rewatch chan rewatch  // holds one: begin the watch again
	life    uint64        // counts state machines; what an earlier one watched is not the present one's

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

// NewClient makes a client; it does nothing before Run, and until then holds
// nothing. It fails for a lease that [LeaseConfig.Validate] refuses.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Lease.Validate(); err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger, meter: newMeter(), events: make(chan Event, openEvents),
		waiting: make(map[uint64]chan Result), changed: make(chan struct{}),
		reopen: make(chan struct{}, 1), rewatch: make(chan rewatch, 1),
		voters: [2]int{cfg.Voters, 0},
	}
	c.tokens.Store(&Tokens{region: cfg.Region})
	return c, nil
}

const (
	// openEvents bounds the events that wait for the state machine; a sender of
	// more waits.
	openEvents = 1024
	// openTasks bounds writes, reads and listings at a time.
	openTasks = 64
	// openReads bounds questions, which are hints.
	openReads = 16
	openPause = 500 * time.Millisecond
	// mostSilence is how long the process may be stopped before its connection is
	// doubted: a dead one looks alive until pings are missed.
	mostSilence = 2 * time.Second
	// mostPause bounds the pauses before the watch is restarted: the server that
	// creates consumers may be without a leader for an election.
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

// leaseTime is the present time of leases.
func leaseTime() time.Duration {
	return MachineTime{Running: sinceStart(), Elapsed: boottime()}.Lease()
}

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

// Run owns the connection to the register and every goroutine of the client.
// It returns nil when the context ends, after it has said that the instance holds
// nothing any more, and an error that wraps [ErrNameTaken] when another process has
// taken over the instance's name.
func (c *Client) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	core, err := c.newCore(ctx)
	if core == nil {
		return err
	}
	c.core = core
	// Tasks outlive ctx by the last word of a stopping instance.
	tctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c.tasks = &errgroup.Group{}
	c.tasks.SetLimit(openTasks)
	c.reads = &errgroup.Group{}
	c.reads.SetLimit(openReads)
	c.reg, err = c.cfg.Dial(Handlers{
		Connected: c.requestOpen,
		Received:  func(s Seen) { c.meter.heard(s, c.tokens.Load()); c.tell(tctx, s) },
		Answered:  func(s Seen) { c.tell(tctx, s) },
		Newest:    func(subject string) (uint64, []byte) { return c.tokens.Load().newest(subject) },
		Beyond:    max(core.cfg.Mark.Seq, core.cfg.Mirrored.Last),
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { return c.cfg.Mirror.Run(ctx) })
	g.Go(func() error { c.countVoters(ctx); return nil })
	g.Go(func() error { c.open(ctx); return nil })
	g.Go(func() error { c.follow(ctx); return nil })
	taken := c.loop(ctx, tctx)
	stop()
	c.sendGone(tctx)
	cancel()
	err = errors.Join(taken, c.tasks.Wait(), c.reads.Wait(), g.Wait())
	c.delayed.Wait()
	c.reg.Close() // after it none of the handlers runs
	return err
}

// newCore makes a state machine for a new life of the process, which knows what the mark
// and the copy in Kafka remember of the register. It is nil, without an error, when the
// context has ended.
func (c *Client) newCore(ctx context.Context) (*Core, error) {
	mark, err := loadMark(c.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	mirrored, err := c.loadMirror(ctx)
	if err != nil {
		return nil, nil //nolint:nilnil // the context has ended
	}
	life := make([]byte, 6)
	if _, err := rand.Read(life); err != nil {
		return nil, fmt.Errorf("name the process: %w", err)
	}
	return NewCore(CoreConfig{
		Region: c.cfg.Region, ID: c.cfg.ID, Regions: c.cfg.Regions, Instance: c.cfg.Instance, Life: hex.EncodeToString(life),
		Home: c.cfg.Policy.Home(c.cfg.Region), Lease: c.cfg.Lease, Join: c.cfg.Join, Mark: mark, Mirrored: mirrored,
	}), nil
}

// lookAgain starts another state machine once a register that was not believed has been
// repaired. It is as if the process had been started again under its name: nothing that
// was known of the register before counts, but the mark and the copy in Kafka.
func (c *Client) lookAgain(ctx, tctx context.Context) error {
	next, err := c.newCore(ctx)
	if next == nil {
		return err
	}
	c.log.Info("the ownership register was repaired; looking at it again")
	next.Follows(c.core)
	c.core = next
	c.life++
	c.step(tctx, Wake{})
	c.requestOpen()
	c.requestWatch(rewatch{0, c.life})
	return nil
}

// loadMirror reads the region's own Kafka until it answers.
func (c *Client) loadMirror(ctx context.Context) (Memory, error) {
	for {
		memory, err := c.recall(ctx)
		if err == nil || sleep.For(ctx, openPause) != nil {
			return memory, err
		}
	}
}

// recall asks the region's own Kafka once what it has of the register.
func (c *Client) recall(ctx context.Context) (Memory, error) {
	tctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	memory, err := c.cfg.Mirror.Load(tctx)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot read the copy of the ownership register in kafka; will try again", "err", err)
	}
	return memory, err
}

// loop gives the state machine its events and time until the context ends, or another
// process has the instance's name.
func (c *Client) loop(ctx, tctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	skew, ran := time.Duration(math.MaxInt64), leaseTime() // the first that is read counts
	for {
		var ev Event = Wake{}
		select {
		case <-ctx.Done():
			return nil
		case ev = <-c.events:
		case <-timer.C:
		}
		if now, ok := clockSkew(); ok && now-skew > sleptSkew {
			c.log.Warn("the machine was suspended; nothing is held until the register confirms it again", "for", (now - skew).String())
			c.step(tctx, Slept{})
			skew = now
		} else if ok && now < skew {
			skew = now
		}
		if gap := leaseTime() - ran; gap > mostSilence {
			c.log.Warn("the process was stopped for a while; reconnecting to the ownership register", "for", gap.String())
			c.meter.pauses.Inc()
			c.step(tctx, Paused{})
		}
		c.step(tctx, ev)
		if why := c.core.NameTaken(); why != "" {
			return fmt.Errorf("%w: %s; give every instance of region %s a name of its own, and stop one of the two", ErrNameTaken, why, c.cfg.Region)
		}
		if c.core.Again() {
			if err := c.lookAgain(ctx, tctx); err != nil {
				return err
			}
		}
		ran = leaseTime()
		timer.Reset(c.core.Wait(leaseTime(), mostWait))
	}
}

// step runs the state machine, makes its tokens the ones in force, and only then
// does what it asks for.
func (c *Client) step(ctx context.Context, ev Event) {
	if w, ok := ev.(watched); ok {
		if w.life != c.life {
			return
		}
		ev = w.Seen
	}
	before, was, old := c.core.Changes(), c.core.Regressed(), c.tokens.Load()
	effects := c.core.Step(leaseTime(), ev)
	now := c.core.Tokens()
	c.tokens.Store(now)
	if now.SoftFenced != old.SoftFenced {
		if now.SoftFenced {
			c.log.Warn("the lease has expired; writes are refused until the ownership register confirms it again")
		} else {
			c.log.Info("the lease no longer counts as expired: it was renewed, or the region was fenced")
		}
	}
	for _, e := range effects {
		c.effect(ctx, e)
	}
	if why := c.core.Regressed(); why != "" && was == "" {
		c.log.Error("the ownership register went backwards; this instance refuses writes", "reason", why)
	}
	// A record that is known from elsewhere counts in tables once the watch has come to it.
	if c.core.Changes() != before || old.watchLags() && !now.watchLags() {
		c.mu.Lock()
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// tell hands an event to the state machine.
func (c *Client) tell(ctx context.Context, ev Event) {
	select {
	case c.events <- ev:
	case <-ctx.Done():
	}
}

// settle waits until nothing of a unit is being answered any more.
func (c *Client) settle(ctx context.Context, e Settle) Event {
	if err := c.cfg.Logs.Settle(ctx, e.Unit); err != nil {
		return Settled{Unit: e.Unit, Epoch: e.Epoch}
	}
	ends, err := c.ends(ctx, e.Unit)
	return Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: ends, OK: err == nil}
}

// judged finds out how the logs of a unit were judged.
func (c *Client) judged(ctx context.Context, e AskJudged) Event {
	logs, err := c.cfg.Logs.Judged(ctx, e.Unit)
	if err != nil {
		c.log.Warn("cannot find out how logs were judged; will try again", "unit", e.Unit, "err", err)
	}
	return Judged{Unit: e.Unit, Rev: e.Rev, Logs: logs, OK: err == nil}
}

// caughtUp finds out whether the region, which was returned, has caught up.
func (c *Client) caughtUp(ctx context.Context, e AskCaughtUp) Event {
	lacking, err := c.cfg.Logs.CaughtUp(ctx)
	if err != nil {
		lacking = "it could not be checked: " + err.Error()
	}
	return CaughtUp{Rev: e.Rev, Lacking: lacking}
}

// effect begins what an effect asks for; nothing here waits.
func (c *Client) effect(ctx context.Context, e Effect) {
	switch e := e.(type) {
	case Write:
		c.task(ctx, Written{Op: e.Op, Outcome: Unknown}, func() Event {
			began := leaseTime()
			o, seq := c.reg.Write(ctx, e)
			c.meter.wrote(e.Subject, o, leaseTime()-began)
			if o == Stored {
				c.lasts.Store(int64(leaseTime()))
			}
			return Written{Op: e.Op, Outcome: o, Seq: seq}
		})
	case Read:
		c.read(ctx, e.Subject)
	case Recall:
		c.task(ctx, Recalled{}, func() Event {
			memory, err := c.recall(ctx)
			return Recalled{Memory: memory, OK: err == nil}
		})
	case Raise:
		c.task(ctx, Raised{}, func() Event { return c.raise(ctx, e.To) })
	case Broadcast:
		c.reg.Broadcast(e)
		for _, pause := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
			c.later(ctx, pause, func() { c.reg.Broadcast(e) })
		}
	case List:
		c.task(ctx, Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref}, func() Event {
			ends, err := c.ends(ctx, e.Unit)
			return Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: ends, OK: err == nil}
		})
	case Settle:
		c.task(ctx, Settled{Unit: e.Unit, Epoch: e.Epoch}, func() Event { return c.settle(ctx, e) })
	case AskApplied:
		c.task(ctx, Applied{Unit: e.Unit, Ref: e.Ref}, func() Event {
			ends, err := c.cfg.Logs.Applied(ctx, e.Unit, e.Region)
			if err != nil {
				c.log.Warn("cannot find out what other regions have applied; will try again", "unit", e.Unit, "region", e.Region, "err", err)
			}
			return Applied{Unit: e.Unit, Ref: e.Ref, Ends: ends, OK: err == nil}
		})
	case AskJudged:
		c.task(ctx, Judged{Unit: e.Unit, Rev: e.Rev}, func() Event { return c.judged(ctx, e) })
	case AskCaughtUp:
		c.task(ctx, CaughtUp{Rev: e.Rev, Lacking: "it could not be checked"}, func() Event { return c.caughtUp(ctx, e) })
	case Persist:
		c.persist(ctx, e)
	case Rewatch:
		c.log.Warn("the watch of the ownership register brings nothing; restarting it", "after", e.From, "reconnect", e.Reconnect)
		c.meter.rewatches.Inc()
		if e.Reconnect {
			c.reg.Reconnect()
		}
		c.requestWatch(rewatch{e.From, c.life})
	case Reopen:
		c.requestOpen()
	case Answer:
		c.mu.Lock()
		ch := c.waiting[e.Ref]
		delete(c.waiting, e.Ref)
		c.mu.Unlock()
		if ch != nil {
			ch <- e.Result
		}
	}
}

// raise brings the register past a revision, or as far as it comes.
func (c *Client) raise(ctx context.Context, to uint64) Raised {
	last, err := c.reg.Raise(ctx, to)
	if err != nil {
		c.log.Warn("cannot bring the ownership register past a revision; will try again", "revision", to, "err", err)
	}
	return Raised{Last: last}
}

// task runs something on the side and hands over what comes of it; busy is
// handed over instead when too much runs already.
func (c *Client) task(ctx context.Context, busy Event, run func() Event) {
	started := c.tasks.TryGo(func() error {
		if ev := run(); ev != nil {
			c.tell(ctx, ev)
		}
		return nil
	})
	if !started && busy != nil {
		c.later(ctx, retryLimit, func() { c.tell(ctx, busy) })
	}
}

// later runs f after a pause, unless the context ends before. Run waits for it.
func (c *Client) later(ctx context.Context, pause time.Duration, f func()) {
	c.delayed.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			f()
		}
	})
}

// read asks for a record, the register unless that is asked already or too much
// else is, and the other instances: answers are hints, and questions must not
// delay writes.
func (c *Client) read(ctx context.Context, subject string) {
	known, _ := c.tokens.Load().newest(subject)
	c.reg.Ask(subject, known)
	if _, asked := c.asking.LoadOrStore(subject, true); asked {
		return
	}
	started := c.reads.TryGo(func() error {
		s, ok := c.reg.Read(ctx, subject)
		c.asking.Delete(subject)
		if ok {
			c.tell(ctx, s)
		}
		return nil
	})
	if !started {
		c.asking.Delete(subject)
	}
}

func (c *Client) ends(ctx context.Context, unit string) ([]Extent, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	ends, err := c.cfg.Logs.Ends(ctx, unit)
	if err != nil {
		c.log.Warn("cannot list the end offsets of a unit; will try again", "unit", unit, "err", err)
	}
	return ends, err
}

// persist puts the mark on disk, again until that works: until then the new
// epochs are not used.
func (c *Client) persist(ctx context.Context, e Persist) {
	c.task(ctx, nil, func() Event {
		for {
			err := c.saveMark(e)
			if err == nil {
				return Persisted{Version: e.Version}
			}
			c.log.Error("cannot write the high-water mark; will try again", "err", err)
			if sleep.For(ctx, openPause) != nil {
				return nil
			}
		}
	})
}

// saveMark writes a mark unless a later one is on disk.
func (c *Client) saveMark(e Persist) error {
	c.saving.Lock()
	defer c.saving.Unlock()
	now, err := loadMark(c.cfg.DataDir)
	if err != nil {
		return err
	}
	if now.Created == e.Mark.Created {
		for unit, epoch := range now.Epochs {
			e.Mark.Epochs[unit] = max(e.Mark.Epochs[unit], epoch)
		}
		e.Mark.Seq = max(e.Mark.Seq, now.Seq)
	}
	return saveMark(c.cfg.DataDir, e.Mark)
}

// sendGone says that the instance holds nothing any more, so that a fence need
// not wait for it.
func (c *Client) sendGone(ctx context.Context) {
	deadline := time.NewTimer(goneTime)
	defer deadline.Stop()
	c.step(ctx, Release{})
	for !c.core.Released() {
		select {
		case <-deadline.C:
			return
		case ev := <-c.events:
			c.step(ctx, ev)
		case <-time.After(20 * time.Millisecond):
			c.step(ctx, Wake{})
		}
	}
}

// Grant gives the permission to write a unit now: the first check. The error is
// ErrUnproven or a *NotOwnerError.
func (c *Client) Grant(unit string) (Grant, error) {
	g, err := c.tokens.Load().Grant(leaseTime(), unit)
	if errors.Is(err, ErrUnproven) {
		// Nobody has written the unit's record yet, and it is not ours to write.
		if home := c.cfg.Policy.HomeOf(unit); home != "" && home != c.cfg.Region {
			if _, known := c.tokens.Load().Units[unit]; !known {
				return Grant{}, &NotOwnerError{Unit: unit, Owner: home, State: UnitPreparing}
			}
		}
	}
	return g, err
}

// Holds tells whether what a grant gave is still held: the second check.
func (c *Client) Holds(unit string, g Grant) bool {
	return c.tokens.Load().Holds(leaseTime(), unit, g)
}

// Tokens are what is held and known now.
func (c *Client) Tokens() *Tokens { return c.tokens.Load() }

// Changed gives a channel that is closed when what is known of ownership changes
// next.
func (c *Client) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// LeaseLeft is how long the instance may still write a unit without another
// renewal; ok is false where it does not hold it.
func (c *Client) LeaseLeft(unit string) (left time.Duration, ok bool) {
	t, now := c.tokens.Load(), leaseTime()
	if _, held := t.Held[unit]; !held || now >= t.Until {
		return 0, false
	}
	return t.Until - now, true
}

// Ask has a command carried out and waits for its end, or for the context's:
// then the plan goes on and the result says so.
func (c *Client) Ask(ctx context.Context, cmd Command) Result {
	ref, ch := c.refs.Add(1), make(chan Result, 1)
	c.mu.Lock()
	c.waiting[ref] = ch
	c.mu.Unlock()
	c.log.Info("ownership command", "verb", string(cmd.Verb), "on", cmd.describe(), "reason", cmd.Reason)
	cmd.At = time.Now().UnixMilli()
	c.tell(ctx, Ask{Ref: ref, Command: cmd})
	select {
	case r := <-ch:
		c.log.Info("ownership command ended", "verb", string(cmd.Verb), "on", cmd.describe(), "exit", int(r.Code), "detail", r.Detail)
		return r
	case <-ctx.Done():
	}
	c.mu.Lock()
	delete(c.waiting, ref)
	c.mu.Unlock()
	return Result{Code: ResultInProgress, Detail: "still in progress; the same command goes on from where things are", Units: []FencedUnit{}}
}

// RegisterStatus is how the register is, as this instance sees it.
type RegisterStatus struct {
	State             string // ok, unreachable, regressed
	Voters, Reachable int
	Write             time.Duration // of the last write; 0 unknown
	Regressed         string
}

// Silence is for how long nothing was heard of a region's instances through the register.
type Silence struct {
	Ago    time.Duration // since the newest lease record
	Gone   bool          // which says that its instance has stopped
	Fenced time.Duration // since the region was fenced after that; 0 if it was not
}

// Heard is how long ago an instance of a region was heard of last. ok is false where nothing
// can be said: a region's instances were not heard of at all, or the register is silent.
func (c *Client) Heard(region string) (s Silence, ok bool) {
	t := c.tokens.Load()
	h, ok := t.Heard[region]
	if !ok || t.WatchSilent || t.Regressed != "" || c.Status().State != "ok" {
		return s, false
	}
	now := leaseTime()
	s = Silence{Ago: max(0, now-h.At), Gone: h.Gone}
	if h.Fenced > 0 {
		s.Fenced = max(1, now-h.Fenced)
	}
	return s, true
}

// Status says how the register is.
func (c *Client) Status() RegisterStatus {
	s := RegisterStatus{State: "ok"}
	c.mu.Lock()
	s.Voters, s.Reachable = c.voters[0], c.voters[1]
	c.mu.Unlock()
	s.Regressed = c.tokens.Load().Regressed
	if c.lasts.Load() != 0 { // so that the connection is there
		s.Write = c.reg.LastWrite()
	}
	if s.Regressed != "" {
		s.State = "regressed"
	} else if last := c.lasts.Load(); last == 0 || leaseTime()-time.Duration(last) > 2*c.cfg.Lease.Renew+c.cfg.Lease.Timeout {
		s.State = "unreachable"
		// A fenced region's instance writes nothing; that it is heard of says enough.
		t := c.tokens.Load()
		if r, ok := t.Regions[c.cfg.Region]; ok && r.Record.State != RegionUp && s.Reachable > s.Voters/2 {
			s.State = "ok"
		}
	}
	return s
}
