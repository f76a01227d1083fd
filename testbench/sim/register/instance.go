package register

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// Config of an Instance.
type Config struct {
	Region string
	Name   string
	// As is the name under which the register knows the instance, which another one
	// may have, too; "" is Name.
	As       string
	Home     []string // the units that its region claims
	Topology *router.Topology
	Rate     float64               // of its clock, against the world's
	Offset   time.Duration         // of its clock
	Lease    ownership.LeaseConfig // of its next process; zero: the stream's
	Logs     Logs
	// Changed is told after every step; what was held may not be any more.
	Changed func()
	// Answered is told what became of a command.
	Answered func(ownership.Answer)
	// Died is told that the process is no more.
	Died func()
	// Exited is told that it has ended by itself: it was stopped, or another one has
	// its name.
	Exited func(nameTaken bool)
}

// Instance is one instance of a region: the product's state machine with a
// simulated adapter and a disk that outlives its processes.
type Instance struct {
	Config
	s *Stream

	core           *ownership.Core
	tokens         *ownership.Tokens
	life           int
	disk           ownership.Mark
	disks          []ownership.Mark // what lay there before
	since          time.Duration    // the rate holds since
	base           time.Duration    // the clock then
	awake          time.Duration    // paused until then
	asleep         time.Duration    // by the clock, for how long its machine was suspended
	slept          bool             // the machine was suspended, and the process has not noticed
	off            time.Duration    // cut off from the register until then
	deaf           time.Duration    // the watch brings nothing until then
	hearsRegions   time.Duration    // the watch brings nothing until then, and broadcasts bring regions alone
	hearsNothing   bool             // what it hears by the watch and by broadcasts is lost
	unitWritesFrom time.Duration    // what it writes of units comes no sooner
	regionsUnread  time.Duration    // until then it is told nothing of regions' records
	lastRenewal    time.Duration    // when its last renewal was stored
	targeted       bool             // is cut off at the moment at which its leases are made void
	stopping       bool             // it was told to stop, and has not ended yet
	late           func()           // the next renewal is stored and not answered; then this runs
	await          string           // id of that renewal: its next answer is the last that is heard
	seen           uint64           // the watch has sent that far
	watch          int              // generation of the watch
	moving         bool             // a delivery is under way
	timer          uint64

	acks  []ack                  // stored writes of regions' records
	sent  map[string]sending     // by message id
	knows map[string]event.Epoch // the highest epoch of each unit that it was told of
	heard map[string]heard       // by other instances: it need not believe that for long
	// It need not listen to others until then, after somebody has told it what is not so.
	mistrusts time.Duration
	// When it was told that the register is shorter than what it knows; 0: not so.
	behind   time.Duration
	lies     uint64        // that it has found out
	regress  bool          // it has said that it does not believe the register
	another  bool          // it was told that the register was recreated
	disturb  time.Duration // the last time that something kept it from working
	rewatch  time.Duration // when it last restarted its watch
	observed map[string]event.Epoch
}

type ack struct {
	region string
	seq    uint64
	at     time.Duration // on its clock
	life   int
}

// sending is the first attempt of a write.
type sending struct {
	at   time.Duration // on its clock
	life int
}

// Add makes an instance; it does nothing before Boot.
func (r *Stream) Add(c Config) *Instance {
	if c.As == "" {
		c.As = c.Name
	}
	p := &Instance{Config: c, s: r, base: c.Offset, sent: map[string]sending{}}
	r.Instances = append(r.Instances, p)
	return p
}

// Clock is the instance's own.
func (p *Instance) Clock() time.Duration {
	t := p.elapsed()
	return ownership.MachineTime{Running: t - p.asleep, Elapsed: t}.Lease()
}

// elapsed goes on whatever becomes of the instance.
func (p *Instance) elapsed() time.Duration {
	return p.base + time.Duration(float64(p.s.Now()-p.since)*p.Rate)
}

// SetRate makes the clock run at another rate from now on.
func (p *Instance) SetRate(rate float64) {
	p.base, p.since, p.Rate = p.elapsed(), p.s.Now(), rate
}

// real is how long the instance's clock needs for a time, in the world's.
func (p *Instance) real(d time.Duration) time.Duration { return time.Duration(float64(d) / p.Rate) }

// Later runs something in the instance's present life, when it is not paused.
func (p *Instance) Later(d time.Duration, run func()) {
	life := p.life
	var try func()
	try = func() {
		switch {
		case p.life != life:
		case p.awake > p.s.Now():
			p.s.After(p.awake-p.s.Now(), try)
		default:
			run()
		}
	}
	p.s.After(d, try)
}

// Boot starts a process on what the disk holds.
func (p *Instance) Boot() {
	p.life++
	testified := p.s.testified(p.Region)
	p.Lease = cmp.Or(p.Lease, p.s.Lease)
	p.core = ownership.NewCore(ownership.CoreConfig{
		Region: p.Region, ID: p.id(), Regions: p.Topology, Instance: p.As,
		Life: fmt.Sprintf("%s/%d", p.Name, p.life), Home: p.Home, Lease: p.Lease, Mark: p.disk, Mirrored: testified, Inline: p.s.Inline, Kept: p.s.Kept, Join: p.s.Join,
	})
	p.tokens = p.core.Tokens()
	p.stopping = false
	p.seen, p.watch, p.moving, p.slept, p.timer = 0, p.watch+1, false, false, 0
	p.observed = map[string]event.Epoch{}
	p.knows, p.behind, p.another, p.regress = map[string]event.Epoch{}, 0, false, false
	p.heard, p.mistrusts = map[string]heard{}, 0
	for _, known := range []map[string]event.Epoch{p.disk.Epochs, testified.Epochs} {
		for unit, e := range known {
			p.knows[unit] = max(p.knows[unit], e)
		}
	}
	p.disturb = p.s.Now()
	p.open()
}

// Life counts the processes that were.
func (p *Instance) Life() int { return p.life }

// Alive tells whether a process runs.
func (p *Instance) Alive() bool { return p.core != nil }

// Die ends the process as kill -9 does.
func (p *Instance) Die() {
	if p.core == nil {
		return
	}
	p.s.Count("kills")
	p.s.Logf("%s dies", p.Name)
	p.life++
	p.core, p.tokens = nil, nil
	if p.Died != nil {
		p.Died()
	}
}

// stopTime is how long a process that stops waits for its last word to be stored.
const stopTime = time.Second

// Stop ends the process as SIGTERM does: it says that it holds nothing any more.
func (p *Instance) Stop() {
	if p.core == nil || p.stopping {
		return
	}
	p.Later(0, func() {
		p.s.Count("stops")
		p.s.Logf("%s stops", p.Name)
		p.stopping = true
		p.Later(p.real(stopTime), p.exit)
		p.step(ownership.Release{})
	})
}

// endIfDone ends a process that has nothing left to do: it was stopped, or another
// one has its name.
func (p *Instance) endIfDone() {
	switch {
	case p.core == nil:
	case p.core.NameTaken() != "":
		p.s.Count("names taken over")
		p.s.Logf("%s: %s", p.Name, p.core.NameTaken())
		p.exit()
	case p.stopping && p.core.Released():
		p.exit()
	}
}

// exit ends the process by itself.
func (p *Instance) exit() {
	taken := p.core.NameTaken() != ""
	p.s.Logf("%s exits", p.Name)
	p.life++
	p.core, p.tokens, p.stopping = nil, nil, false
	if p.Exited != nil {
		p.Exited(taken)
	}
}

func (p *Instance) id() event.RegionID {
	id, _ := p.Topology.ID(p.Region)
	return id
}

func (p *Instance) open() {
	p.Later(between(p.s, time.Millisecond, 200*time.Millisecond), func() {
		if p.off > p.s.Now() {
			p.Later(p.off-p.s.Now(), p.open)
			return
		}
		ev := ownership.Opened{Created: p.s.created, Last: uint64(len(p.s.log))}
		p.noteOpened(ev)
		p.step(ev)
		p.wakeWatch()
	})
}

// noteOpened remembers whether the instance must have noticed that the register
// has forgotten.
func (p *Instance) noteOpened(ev ownership.Opened) {
	switch {
	case p.disk.Created != 0 && ev.Created != p.disk.Created && !p.s.repaired:
		p.another = true
	case ev.Last >= max(p.disk.Seq, p.seen):
		p.behind = 0
	case p.behind == 0:
		p.behind = p.Clock()
	}
}

// reconnect restarts the watch, and asks the register what it is.
func (p *Instance) reconnect() {
	if p.core == nil {
		return
	}
	p.moving = false
	p.watch++
	p.open()
}

// Faults.

// Pause stops the process for a while, as SIGSTOP does, or with its machine.
func (p *Instance) Pause(d time.Duration) {
	p.s.Count("pauses")
	p.s.Logf("%s pauses for %v", p.Name, d)
	p.awake = max(p.awake, p.s.Now()+d)
	p.disturb = max(p.disturb, p.awake)
	if chance(p.s, 0.3) {
		p.s.Count("suspends")
		p.asleep += time.Duration(float64(d) * p.Rate)
		p.slept = true
	}
}

// Paused tells whether the process stands still, and Awake until when.
func (p *Instance) Paused() bool { return p.awake > p.s.Now() }

// Awake is when a process that stands still goes on.
func (p *Instance) Awake() time.Duration { return p.awake }

// Cut keeps everything of the register from the instance, and its writes from the
// register.
func (p *Instance) Cut(d time.Duration) {
	p.s.Count("cuts")
	p.s.Logf("%s is cut off for %v", p.Name, d)
	p.off = max(p.off, p.s.Now()+d)
	p.disturb = max(p.disturb, p.off)
}

// Blind silences the watch; nobody is told.
func (p *Instance) Blind(d time.Duration) {
	p.s.Count("blind watches")
	p.s.Logf("the watch of %s is silent for %v", p.Name, d)
	p.deaf = p.s.Now() + d
}

// HearRegions silences the watch; of what is broadcast only regions' records come.
func (p *Instance) HearRegions(d time.Duration) {
	p.Blind(d)
	p.hearsRegions = p.deaf
}

// hears tells whether a broadcast of a subject reaches the instance now.
func (p *Instance) hears(e *ownership.Broadcast) bool {
	now := p.s.Now()
	if p.hearsRegions > now {
		_, unit := unitRecord(e.Data)
		return p.off <= now && !unit
	}
	return p.off <= now && p.deaf <= now && !p.hearsNothing
}

// ReadNoRegions silences the watch, and loses all answers and broadcasts that have the record
// of a region.
func (p *Instance) ReadNoRegions(d time.Duration) {
	p.Blind(d)
	p.regionsUnread = p.deaf
}

// HoldUnitWrites has what the instance writes of units come to the register late.
func (p *Instance) HoldUnitWrites(d time.Duration) { p.unitWritesFrom = p.s.Now() + d }

// RollBack restores the disk of a process that is dead from an older copy, or
// loses it.
func (p *Instance) RollBack() {
	p.s.Count("rolled-back marks")
	p.disk = ownership.Mark{}
	if n := len(p.disks); n > 0 && chance(p.s, 0.7) {
		p.disk = p.disks[p.s.Rand().IntN(n)]
	}
}

// Heal ends every fault.
func (p *Instance) Heal() {
	p.regionsUnread, p.unitWritesFrom, p.awake, p.off, p.deaf, p.hearsRegions, p.targeted, p.hearsNothing, p.late, p.await = 0, 0, 0, 0, 0, 0, false, false, nil, ""
	p.disturb = p.s.Now()
	p.wakeWatch()
}

// Blinded tells whether the process has found its watch silent, and it is so still.
func (p *Instance) Blinded() bool { return p.core != nil && p.core.WatchSilent() }

// Tokens are what is held and known; nil without a process.
func (p *Instance) Tokens() *ownership.Tokens { return p.tokens }

// Grant is the check before a write is accepted.
func (p *Instance) Grant(unit string) (ownership.Grant, error) {
	if p.core == nil {
		return ownership.Grant{}, ownership.ErrUnproven
	}
	g, err := p.tokens.Grant(p.Clock(), unit)
	if err == nil {
		p.checkGrant(unit, g)
	}
	return g, err
}

// Holds is the check before a write is answered.
func (p *Instance) Holds(unit string, g ownership.Grant) bool {
	if p.core == nil || !p.tokens.Holds(p.Clock(), unit, g) {
		return false
	}
	p.checkGrant(unit, g)
	return true
}

// checkGrant (I11): who has seen more than the register says now writes nothing, and
// nothing is written in an epoch that a crash would make the instance forget.
func (p *Instance) checkGrant(unit string, g ownership.Grant) {
	hold := p.Lease.Duration - p.Lease.Margin
	switch {
	case g.Epoch < p.knows[unit]:
		p.s.Violate("I11", "%s acts on %s in epoch %d, and was told of epoch %d", p.Name, unit, g.Epoch, p.knows[unit])
	case g.Epoch < p.heard[unit].epoch && p.Clock() < p.heard[unit].until:
		p.s.Violate("I11", "%s acts on %s in epoch %d, and just heard of epoch %d", p.Name, unit, g.Epoch, p.heard[unit].epoch)
	case g.Epoch > p.disk.Epochs[unit]:
		p.s.Violate("I11", "%s acts on %s in epoch %d, which the mark on its disk does not have", p.Name, unit, g.Epoch)
	case p.another:
		p.s.Violate("I11", "%s acts on %s though it was told that the register was recreated", p.Name, unit)
	case p.behind != 0 && p.Clock() > p.behind+hold:
		p.s.Violate("I11", "%s acts on %s though the register is shorter than what it has seen", p.Name, unit)
	}
}

// step runs the machine and does what it asks for, perhaps with a pause between
// two effects.
func (p *Instance) step(ev ownership.Event) {
	if p.slept {
		p.slept = false
		p.step(ownership.Slept{})
	}
	effects := append([]ownership.Effect(nil), p.core.Step(p.Clock(), ev)...)
	p.tokens = p.core.Tokens()
	p.observe()
	if p.Changed != nil {
		p.Changed()
	}
	p.do(effects)
	p.endIfDone()
	p.lookAgain()
	p.timer++
	mine := p.timer
	if p.core == nil {
		return
	}
	p.Later(p.real(p.core.Wait(p.Clock(), p.s.Lease.Renew/3)), func() {
		if p.timer == mine {
			p.step(ownership.Wake{})
		}
	})
}

// lookAgain starts another state machine when the register was repaired.
func (p *Instance) lookAgain() {
	if p.core == nil || !p.core.Again() {
		return
	}
	p.s.Count("repaired registers believed again")
	old := p.core
	p.Boot()
	p.core.Follows(old)
}

// observe (I1): what an observer knows of a unit never goes back. A register that
// has forgotten nothing is believed.
func (p *Instance) observe() {
	if n := p.tokens.FalseRumours; n != p.lies {
		p.lies, p.mistrusts = n, p.Clock()+mistrust
		p.s.Count("false rumours dropped")
	}
	if why := p.core.Regressed(); why != "" && !p.regress {
		p.regress = true
		p.s.Count("regressed")
		if !p.s.forgot {
			p.s.Violate("I11", "%s does not believe a register that has forgotten nothing: %s", p.Name, why)
		}
	}
	for unit, u := range p.tokens.Units {
		if u.Record.Epoch < p.observed[unit] {
			p.s.Violate("I1", "%s sees the epoch of %s go back from %d to %d", p.Name, unit, p.observed[unit], u.Record.Epoch)
		}
		p.observed[unit] = u.Record.Epoch
	}
}

func (p *Instance) do(effects []ownership.Effect) {
	for i, e := range effects {
		if p.core == nil {
			return // it died at the effect before
		}
		if !p.s.Calm() && chance(p.s, 0.004) {
			rest := effects[i:]
			p.Pause(between(p.s, 10*time.Millisecond, 2*p.s.Lease.Duration))
			p.Later(0, func() { p.do(rest) })
			return
		}
		p.effect(e)
	}
}

func (p *Instance) effect(e ownership.Effect) {
	s := p.s
	switch e := e.(type) {
	case ownership.Write:
		p.send(e)
	case ownership.Read:
		p.read(e.Subject)
	case ownership.Recall:
		p.recall()
	case ownership.Raise:
		p.Later(s.Quick(), func() {
			if p.off <= s.Now() {
				for uint64(len(s.log)) < e.To && (s.Calm() || !chance(s, 0.02)) {
					s.log = append(s.log, message{subject: "own.pass", data: []byte("{}")})
				}
			}
			p.step(ownership.Raised{Last: uint64(len(s.log))})
		})
	case ownership.Broadcast:
		p.broadcast(e)
	case ownership.List:
		p.Logs.Ends(e.Unit, func(ends []ownership.Extent, ok bool) {
			p.step(ownership.Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: ends, OK: ok})
		})
	case ownership.Settle:
		// Worlds check and answer in one step: nothing is being answered between two.
		p.Logs.Ends(e.Unit, func(ends []ownership.Extent, ok bool) {
			p.step(ownership.Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: ends, OK: ok})
		})
	case ownership.AskApplied:
		p.Logs.Applied(e.Unit, e.Region, func(ends []ownership.Extent, ok bool) {
			p.step(ownership.Applied{Unit: e.Unit, Ref: e.Ref, Ends: ends, OK: ok})
		})
	case ownership.AskJudged:
		p.Logs.Judged(e.Unit, func(logs []ownership.JudgedLog) {
			p.step(ownership.Judged{Unit: e.Unit, Rev: e.Rev, Logs: logs, OK: true})
		})
	case ownership.AskCaughtUp:
		p.Logs.CaughtUp(func(lacking string) { p.step(ownership.CaughtUp{Rev: e.Rev, Lacking: lacking}) })
	case ownership.Persist:
		p.Later(s.Quick(), func() {
			p.persist(e.Mark)
			p.step(ownership.Persisted{Version: e.Version})
		})
	case ownership.Rewatch:
		s.Count("rewatches")
		s.Logf("%s watches again behind %d", p.Name, e.From)
		p.rewatch = s.Now()
		if s.Calm() || chance(s, 0.15) && p.hearsRegions <= s.Now() && p.regionsUnread <= s.Now() {
			p.deaf = 0 // another server was found that is not deaf
		}
		p.moving = false
		p.watch++
		p.seen = e.From
		p.wakeWatch()
	case ownership.Reopen:
		p.Later(s.Lease.Timeout/2, p.open)
	case ownership.Answer:
		s.Logf("%s answers: exit %d, %s", p.Name, e.Result.Code, e.Result.Detail)
		s.Count(fmt.Sprintf("exit %d", e.Result.Code))
		if p.Answered != nil {
			p.Answered(e)
		}
	}
}

// persist replaces the mark on disk; what stands there never goes back.
func (p *Instance) persist(m ownership.Mark) {
	p.disks = append(p.disks, p.disk)
	m.Epochs = maps.Clone(m.Epochs)
	if m.Created == p.disk.Created {
		for unit, e := range p.disk.Epochs {
			m.Epochs[unit] = max(m.Epochs[unit], e)
		}
		m.Seq = max(m.Seq, p.disk.Seq)
	}
	p.disk = m
}

// read answers with the newest message of a subject that some server has: any may
// answer, with what it has.
func (p *Instance) read(subject string) {
	s := p.s
	p.Later(s.Quick(), func() {
		if p.off > s.Now() || p.hearsNothing || p.regionsUnread > s.Now() && strings.HasPrefix(subject, ownership.RegionSubject("")) {
			return
		}
		upTo := len(s.log)
		if chance(s, 0.3) && upTo > 0 {
			upTo -= s.Rand().IntN(min(upTo, 20))
		}
		for seq := upTo; seq > 0; seq-- {
			if m := s.log[seq-1]; m.subject == subject && !m.dropped {
				p.hear(ownership.Seen{Source: ownership.Answered, Subject: m.subject, Seq: uint64(seq), Data: m.data})
				return
			}
		}
		p.hear(ownership.Seen{Source: ownership.Answered, Subject: subject})
	})
}

// recall reads what the region's own Kafka has copied of the register.
func (p *Instance) recall() {
	p.s.Count("recalls")
	p.Later(p.s.Quick(), func() {
		if !p.s.Calm() && chance(p.s, 0.2) {
			p.step(ownership.Recalled{})
			return
		}
		memory := p.s.testified(p.Region)
		for unit, e := range memory.Epochs {
			p.knows[unit] = max(p.knows[unit], e)
		}
		p.step(ownership.Recalled{Memory: memory, OK: true})
	})
}

func (p *Instance) broadcast(e ownership.Broadcast) {
	s := p.s
	for _, q := range s.Instances {
		if q == p || s.NoCasts || chance(s, 0.3) || p.off > s.Now() {
			continue
		}
		q.Later(between(s, time.Millisecond, s.Lease.Renew), func() {
			if q.core != nil && q.hears(&e) {
				q.hear(ownership.Seen{Subject: e.Subject, Seq: e.Seq, Data: e.Data, Source: ownership.Rumoured})
			}
		})
	}
}

// hear takes a message of the register, from wherever it comes.
func (p *Instance) hear(ev ownership.Seen) {
	u, ok := unitRecord(ev.Data)
	switch {
	case ev.Source == ownership.Rumoured:
		if now := p.Clock(); ok && now >= p.mistrusts && u.Epoch > p.heard[u.Unit].epoch {
			until := now + believed
			if old := p.heard[u.Unit]; now < old.until && p.knows[u.Unit] < old.epoch {
				until = old.until // what follows gives a false one no more time
			}
			p.heard[u.Unit] = heard{u.Epoch, until}
		}
	case ok:
		p.knows[u.Unit] = max(p.knows[u.Unit], u.Epoch)
	}
	if ev.Source == ownership.Watched {
		p.s.testify(p.Region, &ev)
	}
	p.step(ev)
}

// heard is an epoch that another instance has told of, and until when it counts.
type heard struct {
	epoch event.Epoch
	until time.Duration
}

// The times of rumours (router/ownership/rumours.go).
const (
	believed = 5 * time.Second
	mistrust = time.Minute
)

// wakeWatch delivers what the watch has not brought yet, in order.
func (p *Instance) wakeWatch() {
	s := p.s
	if p.core == nil || p.moving || p.seen >= uint64(len(s.log)) {
		return
	}
	if p.deaf > s.Now() || p.hearsNothing {
		return // silent, and nobody is told; Rewatch alone helps
	}
	p.moving = true
	gen := p.watch
	var deliver func()
	deliver = func() {
		if p.watch != gen {
			return
		}
		if p.off > s.Now() {
			p.Later(p.off-s.Now(), deliver)
			return
		}
		p.moving = false
		if p.seen < uint64(len(s.log)) && !p.hearsNothing {
			m := s.log[p.seen]
			p.seen++
			if !m.dropped {
				p.hear(ownership.Seen{Subject: m.subject, Seq: p.seen, Data: m.data})
			}
		}
		p.wakeWatch()
	}
	p.Later(between(s, 100*time.Microsecond, 20*time.Millisecond), deliver)
}

// Ask puts an operator's command to the instance.
func (p *Instance) Ask(ref uint64, cmd ownership.Command) {
	if p.core == nil {
		return
	}
	p.s.Count(string(cmd.Verb) + "s")
	p.Later(0, func() {
		p.s.Logf("%s is asked to %s %s%s", p.Name, cmd.Verb, cmd.Region, cmd.Unit)
		p.step(ownership.Ask{Ref: ref, Command: cmd})
	})
}
