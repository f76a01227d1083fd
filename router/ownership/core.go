package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// CoreConfig configures a [Core].
type CoreConfig struct {
	Region   string
	ID       event.RegionID
	Regions  *router.Topology
	Instance string
	// Life is a random id that no other process has: it stands in lease and drained
	// records, and in message ids.
	Life string
	// Home are the units that the region claims when nobody ever owned them.
	Home  []string
	Lease LeaseConfig
	// Mark is what the instance remembers of the register, Mirrored what the region's
	// own Kafka has copied of it.
	Mark     Mark
	Mirrored Memory
	// Inline is how many bytes of starts and cuts a unit's record holds itself, before they
	// go outside of it; 0 is 32 KiB, less than 0 none. Kept is how many messages of a
	// subject the register keeps; 0 is [KeptRevisions]. Join is how many ended epochs of
	// the region a unit's record has before they are joined; 0 is 8.
	Inline, Kept, Join int
}

// Mark is the durable high-water mark of an instance: what it has seen of the
// register, so that it notices when the register has forgotten.
type Mark struct {
	Version int `json:"v"`
	// Created is when the register's stream was made, Unix nanoseconds; 0 for an
	// instance that has seen none.
	Created int64                  `json:"created"`
	Seq     uint64                 `json:"seq"`
	Epochs  map[string]event.Epoch `json:"epochs"`
	Claim   string                 `json:"claim"` // the last own proof
}

// Core is the ownership protocol of one instance. It is a state machine without
// clock, goroutine or socket, and not safe for
// concurrent use. Times are of a clock that counts suspend and never jumps;
// only differences count.
//
// Invariants:
//   - A unit is held only while a renewal, counted from the send time of the
//     first attempt, is within its time, and only after a conditional write of the
//     unit's record was acknowledged under the same revision of the region's
//     record. Nothing that was read, watched or broadcast ever starts anything.
//   - Any newer revision of the region's record, from whatever source, drops the
//     lease and with it every proof. Stopping is always safe.
//   - A unit that was taken from an owner is claimed only W after the
//     acknowledgement of a write of that owner's region record that follows the
//     unit's FENCED record in the register.
type Core struct {
	cfg CoreConfig

	created    int64
	openedAs   int64  // when the stream was made that was reached last, believed or not
	endsAt     uint64 // where that ended, or had come to since
	recreated  bool   // it is not the one of the mark
	repairSeq  uint64 // revision of the newest record of a repair
	failedAt   uint64 // what had been seen when the register was believed no more
	again      bool   // it was repaired, and this state machine does not believe it
	repairs    []*repair
	watchGoal  uint64 // the watch has to come so far before anything is done
	seen       uint64 // the watch has delivered everything up to here
	opened     bool
	shortSince time.Duration // since when the register is shorter than the mark; 0: it is not
	distrust   string        // why the register is not believed any more
	released   bool

	regions map[string]*known[RegionRecord]
	units   map[string]*known[UnitRecord]
	extents ExtentSets         // that units' records name, or may yet
	slots   map[string]slot    // what the register has of them, by subject
	wanted  map[string]*want   // what the watch has not brought, by unit
	tooLong map[string]refused // records that the register does not take, by subject
	names   map[instanceName]*livesOf
	heard   map[string]Heard            // by region
	drained map[drainedBy]DrainedRecord // newest

	rumours       map[string]*rumour // by subject
	recalling     bool               // the region's own Kafka is being asked
	recalledLast  uint64             // its highest revision when it was asked about a rumour
	mistrustUntil time.Duration
	falseRumours  uint64

	name ownName
	gone bool // the last word is stored, or need not be

	lease   lease
	renewAt time.Duration
	proofs  map[string]proof
	bumps   map[string]bump    // by region: own writes of its record
	starts  map[string]listing // ends for a claim, by unit
	settled map[string]event.Epoch
	// draining are the ends that are about to be told, by unit.
	draining map[string]*draining
	// tidying is what was found out about joining the epochs of a unit.
	tidying map[string]tidying
	// inspected are the ends against which the epochs of the region's units were held.
	inspected map[string]inspection
	catchUp   catchUp // of the region after its return

	ops         map[uint64]*op
	opByPurpose map[string]*op           // a purpose has one write at a time
	notBefore   map[string]time.Duration // when a purpose may write again
	serial      uint64
	plans       []*plan

	awaitedRenewals []awaitedRenewal // own renewals that the watch has not brought back
	silentWatches   int              // watches in a row that brought nothing
	lastAnswer      time.Duration    // when the register was last heard of, by whatever way
	lastWatchEvent  time.Duration    // when the watch last brought something
	nextInquiry     time.Duration    // when to ask next what became of region and units
	leaseRanOut     bool             // the lease has run out, and nobody took it
	softFences      uint64           // how often it has

	mark        Mark
	markVersion uint64
	savedMark   uint64 // the version that is on disk

	changes uint64 // counts changes of what is known

	out []Effect
}

// known is the newest record of a subject, by its revision.
type known[T any] struct {
	rev  uint64
	data []byte
	hash string
	rec  T
}

// lease is what the newest acknowledged renewal gives.
type lease struct {
	rev   uint64 // of the region's record
	seq   uint64 // of the renewal itself
	until time.Duration
}

// proof is an acknowledged write of a unit's record under a lease's revision.
type proof struct {
	epoch event.Epoch
	rev   uint64
	mark  uint64 // version of the mark that holds the epoch
	// after is the revision of the record that makes the region the owner, the claim's
	// own or the one that was proven: the proof counts once the lease was renewed after
	// it. A fence of the region takes the units that it finds when it is stored, so a
	// claim that was stored after it must not count, whoever of the region's instances
	// wrote it, and one before it is found.
	after uint64
}

// bump is an own write of a region's record.
type bump struct {
	rev uint64
	at  time.Duration // of the acknowledgement
}

// listing is where logs ended, listed after a revision was known.
type listing struct {
	rev   uint64
	asked bool
	ends  []Extent
	next  *placing // the record of the claim; nil before it is made
}

// awaitedRenewal is a stored renewal of this instance's lease.
type awaitedRenewal struct {
	seq uint64
	at  time.Duration
}

// refused is a record that the register does not take, and when that was found out.
type refused struct {
	size int
	at   time.Duration
}

// op is one write of the register until its outcome is known.
type op struct {
	id      uint64
	purpose string
	write   Write
	retryAt time.Duration // 0 while an attempt runs
	tries   int
	quit    time.Duration // give up after; 0 never
	then    func(now time.Duration, seq uint64, ok bool)
}

// NewCore makes the state machine of an instance that has just started.
func NewCore(cfg CoreConfig) *Core {
	c := &Core{
		cfg:     cfg,
		regions: make(map[string]*known[RegionRecord]), units: make(map[string]*known[UnitRecord]),
		names: make(map[instanceName]*livesOf), heard: make(map[string]Heard), drained: make(map[drainedBy]DrainedRecord), name: ownName{known: make(map[string]uint64)},
		rumours: make(map[string]*rumour),
		proofs:  make(map[string]proof), bumps: make(map[string]bump), starts: make(map[string]listing),
		settled: make(map[string]event.Epoch), inspected: make(map[string]inspection),
		slots: make(map[string]slot), wanted: make(map[string]*want), tooLong: make(map[string]refused), draining: make(map[string]*draining), tidying: make(map[string]tidying),
		ops: make(map[uint64]*op), opByPurpose: make(map[string]*op), notBefore: make(map[string]time.Duration),
		mark: cfg.Mark,
	}
	c.mark.Version = recordVersion
	c.mark.Epochs = maps.Clone(cfg.Mark.Epochs)
	if c.mark.Epochs == nil {
		c.mark.Epochs = make(map[string]event.Epoch)
	}
	return c
}

// Step takes one event and returns what is to be done, in order. The slice is
// valid until the next Step. Before the adapter does any of it, it makes the
// tokens of [Core.Tokens] the ones in force.
func (c *Core) Step(now time.Duration, ev Event) []Effect {
	c.out = c.out[:0]
	switch ev := ev.(type) {
	case Opened:
		c.open(now, ev)
	case Seen:
		c.saw(now, ev)
	case Written:
		c.written(now, ev)
	case Listed:
		c.listed(now, ev)
	case Settled:
		c.hasSettled(now, ev)
	case Applied:
		c.applied(now, ev)
	case Judged:
		c.judged(now, ev)
	case CaughtUp:
		c.caughtUp(now, ev)
	case Recalled:
		c.recalled(now, ev)
	case Raised:
		c.raisedTo(ev)
	case Persisted:
		c.savedMark = max(c.savedMark, ev.Version)
	case Slept:
		c.drop()
	case Paused:
		c.resume(now)
	case Ask:
		c.ask(now, ev)
	case Release:
		c.release(now)
	case Wake:
	}
	c.advance(now)
	return c.out
}

func (c *Core) do(e Effect) { c.out = append(c.out, e) }

// advance does whatever the time and what is known allow.
func (c *Core) advance(now time.Duration) {
	c.retry(now)
	c.expire(now)
	c.inquire(now)
	c.checkSilence(now)
	c.settleRumours(now)
	if c.ready() {
		c.seek(now)
	}
	c.advanceRepairs(now)
	if !c.ready() {
		if c.distrust != "" {
			c.failPlans()
		}
		return // plans under way go on when the register is believed again
	}
	if !c.released {
		c.ensureRegion(now)
		c.takeName(now)
		c.renew(now)
		for _, unit := range c.ours() {
			c.prove(now, unit)
			c.claim(now, unit)
			c.inspect(now, unit)
			c.drain(now, unit)
			c.writeDrained(now, unit)
			c.tidy(now, unit)
			c.updateRetired(now, unit)
		}
		c.rejoin(now)
		c.checkRenewals(now)
	}
	c.sayGone(now)
	for _, p := range slices.Clone(c.plans) {
		p.advance(now)
	}
	c.plans = slices.DeleteFunc(c.plans, func(p *plan) bool { return p.done })
	c.remember()
}

// ready tells whether the register is known as far as it went when it was
// reached, and is believed.
func (c *Core) ready() bool {
	return c.opened && c.distrust == "" && c.shortSince == 0 && c.seen >= c.watchGoal
}

// recreated is said of a register that is not the one that was seen, and of which no repair
// says that it has what that had.
const recreated = "the register is another one: its stream was recreated"

// open holds the register against what this instance has seen of it.
func (c *Core) open(now time.Duration, ev Opened) {
	c.changes++
	c.openedAs, c.endsAt = ev.Created, ev.Last
	for _, r := range c.repairs {
		r.opened = true
	}
	c.recreated = c.mark.Created != 0 && ev.Created != c.mark.Created
	switch {
	case c.opened && c.recreated || c.recreated && ev.Last <= c.mark.Seq:
		c.fail(recreated)
		return
	case ev.Last < max(c.mark.Seq, c.seen, c.recalledLast):
		// A server that lags answers like this for a moment; one that forgot does
		// so for good.
		if c.shortSince == 0 {
			c.shortSince = max(now, 1)
		}
		if now-c.shortSince > c.cfg.Lease.Duration {
			c.fail(fmt.Sprintf("the register ends at sequence %d, but sequence %d was seen before", ev.Last, max(c.mark.Seq, c.seen, c.recalledLast)))
			return
		}
		c.do(Reopen{})
		return
	}
	c.shortSince, c.lastAnswer = 0, now
	if !c.opened {
		c.lastWatchEvent = now
		// Only at the start: an instance that was ready goes on while the watch catches up,
		// since every write is conditional on what it knows.
		if !ev.Empty {
			c.watchGoal = max(c.watchGoal, ev.Last)
		}
	}
	c.created, c.opened = ev.Created, true
	if c.seen >= c.watchGoal {
		c.compare()
	}
}

// compare looks for units and regions whose epochs have gone back, once the watch has brought
// the register as far as it went.
func (c *Core) compare() {
	if c.recreated && c.repairSeq <= c.mark.Seq {
		c.fail(recreated)
		return
	}
	for _, region := range slices.Sorted(maps.Keys(c.cfg.Mirrored.Live)) {
		live := uint64(0)
		if r := c.regions[region]; r != nil {
			live = r.rec.Live
		}
		if live < c.cfg.Mirrored.Live[region] {
			c.fail(fmt.Sprintf("the register has liveness epoch %d of region %s, but %d was seen before", live, region, c.cfg.Mirrored.Live[region]))
			return
		}
	}
	for _, remembered := range []map[string]event.Epoch{c.mark.Epochs, c.cfg.Mirrored.Epochs} {
		for _, unit := range slices.Sorted(maps.Keys(remembered)) {
			var epoch event.Epoch
			if u := c.units[unit]; u != nil {
				epoch = u.rec.Epoch
			}
			if epoch < remembered[unit] {
				c.fail(fmt.Sprintf("the register has epoch %d of %s, but epoch %d was seen before", epoch, unit, remembered[unit]))
				return
			}
		}
	}
}

// fail stops everything for good: only an operator can say what is true.
func (c *Core) fail(why string) {
	if c.distrust == "" {
		c.distrust, c.failedAt = why, max(c.endsAt, c.seen)
	}
	c.changes++
	c.drop()
	c.ops, c.opByPurpose = make(map[uint64]*op), make(map[string]*op)
	clear(c.rumours)
}

// saw takes a message of the register, or what is said to be one.
func (c *Core) saw(now time.Duration, ev Seen) {
	switch ev.Source {
	case Answered:
		for _, r := range c.repairs {
			r.saw(ev)
		}
		c.askedRegister(now, ev)
		return
	case Rumoured:
		c.hear(now, ev)
		return
	}
	c.lastAnswer, c.lastWatchEvent = now, now
	if ev.Seq <= c.seen {
		return
	}
	before := c.seen >= c.watchGoal
	c.seen = ev.Seq
	c.awaitedRenewals = slices.DeleteFunc(c.awaitedRenewals, func(l awaitedRenewal) bool { return l.seq <= ev.Seq })
	if len(c.awaitedRenewals) == 0 {
		c.silentWatches = 0
	}
	if err := c.note(now, ev.Subject, ev.Seq, ev.Data); err != nil {
		c.fail(fmt.Sprintf("message %d of the register: %v", ev.Seq, err))
		return
	}
	if !before && c.opened && c.seen >= c.watchGoal {
		c.compare()
	}
}

// note takes a record over if it is newer than what is known.
func (c *Core) note(now time.Duration, subject string, seq uint64, data []byte) (err error) {
	switch {
	case strings.HasPrefix(subject, subjectRegion):
		err = c.noteRegion(now, seq, data)
	case strings.HasPrefix(subject, subjectUnit):
		err = c.noteUnit(seq, data)
	case strings.HasPrefix(subject, subjectLease):
		var r LeaseRecord
		if r, err = decode[LeaseRecord](data); err == nil {
			c.noteLease(now, seq, &r)
		}
	case strings.HasPrefix(subject, ExtentsSubjects):
		err = c.noteExtents(subject, seq, data)
	case subject == subjectRepair:
		if _, err = decode[RepairRecord](data); err == nil {
			c.noteRepair(seq)
		}
	case strings.HasPrefix(subject, subjectDrained):
		var r DrainedRecord
		if r, err = decode[DrainedRecord](data); err == nil {
			if r.EndsAt != nil {
				r.Ends = c.extents.find(r.Unit, r.EndsAt)
			}
			if r.EndsAt == nil || r.Ends != nil { // without its ends it says nothing
				c.noteDrained(&r)
			}
		}
	}
	return err
}

func (c *Core) noteRegion(now time.Duration, seq uint64, data []byte) error {
	r, err := decode[RegionRecord](data)
	if err != nil {
		return err
	}
	old := c.regions[r.Region]
	if old != nil && seq <= old.rev {
		return nil
	}
	if id, ok := c.cfg.Regions.ID(r.Region); ok && id != r.ID {
		return fmt.Errorf("region %s has id %d in the register and id %d in the configuration", r.Region, r.ID, id)
	}
	if other := c.cfg.Regions.Name(r.ID); other != "" && other != r.Region {
		return fmt.Errorf("id %d is region %s in the register and region %s in the configuration", r.ID, r.Region, other)
	}
	if old != nil && r.Live < old.rec.Live {
		return fmt.Errorf("the liveness epoch of region %s goes back from %d to %d", r.Region, old.rec.Live, r.Live)
	}
	c.noteFence(now, &r)
	c.changes++
	c.regions[r.Region] = &known[RegionRecord]{rev: seq, data: data, rec: r}
	if r.Region == c.cfg.Region {
		c.drop()
		c.quit("lease")
		c.renewAt = now
	}
	return nil
}

// drop gives up the lease and every token. What was proven under an earlier
// revision of the region's record proves nothing under a later one.
func (c *Core) drop() {
	c.lease = lease{}
	clear(c.proofs)
}

func (c *Core) noteUnit(seq uint64, data []byte) error {
	r, err := decode[UnitRecord](data)
	if err != nil {
		return err
	}
	old := c.units[r.Unit]
	if old != nil && seq <= old.rev {
		if r.Epoch > old.rec.Epoch { // epochs rise with revisions, unless those began again
			return fmt.Errorf("an older revision has epoch %d of %s, a newer one epoch %d", r.Epoch, r.Unit, old.rec.Epoch)
		}
		return nil
	}
	if old != nil && r.Epoch < old.rec.Epoch {
		return fmt.Errorf("the epoch of %s goes back from %d to %d", r.Unit, old.rec.Epoch, r.Epoch)
	}
	c.changes++
	c.extents.Resolve(&r)
	c.extents.prune(&r)
	c.units[r.Unit] = &known[UnitRecord]{rev: seq, data: data, hash: hash(data), rec: r}
	if p, ok := c.proofs[r.Unit]; ok && !(r.State == UnitActive && r.Owner == c.cfg.Region && r.Epoch == p.epoch) {
		delete(c.proofs, r.Unit)
	}
	return nil
}

// remember puts epochs that rose into the mark.
func (c *Core) remember() {
	rose := c.mark.Created != c.created
	for unit, u := range c.units {
		if u.rec.Epoch > c.mark.Epochs[unit] {
			rose = true
		}
	}
	if !rose {
		return
	}
	c.mark.Created, c.mark.Seq = c.created, c.seen
	for unit, u := range c.units {
		c.mark.Epochs[unit] = u.rec.Epoch
		if p, ok := c.proofs[unit]; ok && p.mark > c.markVersion {
			c.mark.Claim = u.rec.Claim
		}
	}
	c.markVersion++
	m := c.mark
	m.Epochs = maps.Clone(c.mark.Epochs)
	c.do(Persist{Version: c.markVersion, Mark: m})
}

// write begins a write; then is called once with its outcome, unless it is given
// up. A purpose has one write at a time.
func (c *Core) write(now time.Duration, purpose string, w Write, quit time.Duration, then func(now time.Duration, seq uint64, ok bool)) {
	c.serial++
	w.Op, w.ID = c.serial, c.nextID()
	o := &op{id: w.Op, purpose: purpose, write: w, quit: quit, tries: 1, then: then}
	c.ops[o.id], c.opByPurpose[purpose] = o, o
	c.do(w)
}

// nextID is the message id of the write that comes next.
func (c *Core) nextID() string {
	return fmt.Sprintf("%s-%s-%s-%d", c.cfg.Region, c.cfg.Instance, c.cfg.Life, c.serial+1)
}

// free tells whether a purpose has no write in flight and no pause.
func (c *Core) free(now time.Duration, purpose string) bool {
	return c.opByPurpose[purpose] == nil && now >= c.notBefore[purpose]
}

func (c *Core) quit(purpose string) {
	if o := c.opByPurpose[purpose]; o != nil {
		delete(c.ops, o.id)
		delete(c.opByPurpose, purpose)
	}
}

// The pauses before a write is tried again.
const (
	retryBusy  = 5 * time.Millisecond
	retryLost  = 20 * time.Millisecond
	retryLimit = 500 * time.Millisecond
	// reread is the pause after a conflict: what is newer has been asked for.
	reread = 20 * time.Millisecond
)

// pause spreads attempts of several instances, the same in every play of a
// history.
func pause(least time.Duration, o *op) time.Duration {
	spread := (o.id*2654435761 + uint64(o.tries)*40503) % 10
	return min(least<<min(o.tries, 6), retryLimit) + time.Duration(spread)*retryBusy
}

func (c *Core) written(now time.Duration, ev Written) {
	o := c.ops[ev.Op]
	if o == nil || o.retryAt != 0 {
		return
	}
	switch ev.Outcome {
	case Busy:
		o.retryAt = now + pause(retryBusy, o)
	case Unknown:
		o.retryAt = now + pause(retryLost, o)
	case TooLong:
		delete(c.ops, o.id)
		delete(c.opByPurpose, o.purpose)
		c.changes++
		c.tooLong[o.record()] = refused{len(o.write.Data), now}
		c.notBefore[o.purpose] = now + inspectAgain
		o.then(now, 0, false)
	case Stored, Conflict:
		c.lastAnswer = now
		delete(c.ops, o.id)
		delete(c.opByPurpose, o.purpose)
		delete(c.tooLong, o.write.Subject)
		if ev.Outcome == Stored {
			if err := c.note(now, o.write.Subject, ev.Seq, o.write.Data); err != nil {
				c.fail(fmt.Sprintf("message %d of the register, written by this instance: %v", ev.Seq, err))
				return
			}
			o.then(now, ev.Seq, true)
			return
		}
		c.notBefore[o.purpose] = now + reread
		c.do(Read{Subject: o.write.Guard})
		o.then(now, 0, false)
	}
}

// retry sends again what got no answer, with the same message id: if an attempt
// was stored, the answer is that one's.
func (c *Core) retry(now time.Duration) {
	for _, id := range slices.Sorted(maps.Keys(c.ops)) {
		o := c.ops[id]
		switch {
		case o.quit != 0 && now >= o.quit:
			c.quit(o.purpose)
		case o.retryAt != 0 && now >= o.retryAt:
			o.retryAt = 0
			o.tries++
			c.do(o.write)
		}
	}
}

// Wait is how long nothing has to be done if no event comes, and not more than most.
func (c *Core) Wait(now, most time.Duration) time.Duration {
	next := now + most
	sooner := func(t time.Duration) {
		if t > 0 && t < next {
			next = t
		}
	}
	for _, o := range c.ops {
		sooner(o.retryAt)
		sooner(o.quit)
	}
	for purpose, t := range c.notBefore {
		if t > now {
			sooner(t)
		} else {
			delete(c.notBefore, purpose)
		}
	}
	if r := c.regions[c.cfg.Region]; r != nil && r.rec.State == RegionUp && c.opByPurpose["lease"] == nil && c.renewAt > now {
		sooner(c.renewAt)
	}
	if t := c.name.since + outlast(c.othersHold()); t > now {
		sooner(t)
	}
	if len(c.repairs) > 0 {
		sooner(now + retryLimit)
	}
	for _, r := range c.rumours {
		sooner(r.askAt)
		if t := r.heard + rumourPatience; t > now {
			sooner(t)
		}
	}
	for region, b := range c.bumps {
		if t := b.at + c.wait(region); t > now {
			sooner(t)
		}
	}
	for _, p := range c.plans {
		if t := p.waitFrom + c.wait(p.region); p.waitFrom > 0 && t > now {
			sooner(t)
		}
	}
	return max(next-now, time.Millisecond)
}
