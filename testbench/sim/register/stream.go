package register

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// Stream is the register as its servers have it: linearizable, as the real one is
// as long as no disk is rolled back.
type Stream struct {
	Host
	// NoCasts loses every broadcast.
	NoCasts bool
	// Inline is how much of starts and cuts a unit's record holds itself, see
	// [ownership.CoreConfig], and Kept how many messages of a subject of extents stay.
	Inline, Kept int
	// Join is how many ended epochs of its owner a unit's record has before they are joined.
	Join int
	// Lease are the times of all instances.
	Lease     ownership.LeaseConfig
	Instances []*Instance
	// Crash, if set, is asked after each stored write whether its writer dies now,
	// before it hears of it.
	Crash func(by *Instance, subject string) bool

	// Stored, if set, is told of each write that was stored, before its writer is.
	Stored func(by *Instance, subject string)
	// Beside, if set, has a region fenced by somebody of another one, now.
	Beside func(region string)

	created int64
	log     []message
	last    map[string]uint64 // newest sequence of a subject
	ids     map[string]uint64 // of messages, for repeated attempts
	stall   time.Duration     // no write before: an election runs
	forgot  bool              // a disk was rolled back
	// repaired: somebody has written since that what was lost is there again.
	repaired bool

	owners map[string]string // region by unit and epoch, of everything ever stored
	epochs map[string]event.Epoch
	units  map[string]ownership.UnitRecord // newest of each unit, with what it names
	sets   ownership.ExtentSets            // what records name

	absent   map[string]bool   // regions that a unit's record named as retired, and that have not caught up
	caughtUp map[string]uint64 // by region: the revision of its record when it was told that it has caught up

	half      map[string]bool              // units whose next fencer dies as soon as the unit is FENCED
	slow      map[string]bool              // units whose next fencer pauses when it has made leases void
	memories  map[string]*ownership.Memory // by region: what its own Kafka has copied
	overtakes map[string]overtaking        // how long claims are held back, by message id
	// firstClaims is until when those of a unit are held back by others.
	firstClaims map[string]time.Duration
}

type message struct {
	subject string
	data    []byte
	dropped bool // newer ones of its subject have pushed it out
}

// NewStream makes an empty register.
func NewStream(h Host, lease ownership.LeaseConfig) *Stream {
	return &Stream{
		Host: h, Lease: lease, created: 1, last: map[string]uint64{}, ids: map[string]uint64{},
		owners: map[string]string{}, epochs: map[string]event.Epoch{}, units: map[string]ownership.UnitRecord{},
		half: map[string]bool{}, slow: map[string]bool{}, memories: map[string]*ownership.Memory{}, overtakes: map[string]overtaking{},
		firstClaims: map[string]time.Duration{}, absent: map[string]bool{}, caughtUp: map[string]uint64{},
	}
}

// Unit is the newest record of a unit; ok is false where there is none.
func (r *Stream) Unit(unit string) (u ownership.UnitRecord, ok bool) {
	u, ok = r.units[unit]
	return u, ok
}

// Region is the newest record of a region; ok is false where there is none.
func (r *Stream) Region(name string) (rec ownership.RegionRecord, ok bool) {
	seq := r.last[ownership.RegionSubject(name)]
	if seq == 0 {
		return rec, false
	}
	return rec, json.Unmarshal(r.log[seq-1].data, &rec) == nil
}

// Revision is the newest revision of the records of some units.
func (r *Stream) Revision(units ...string) (newest uint64) {
	for _, u := range units {
		newest = max(newest, r.last[ownership.UnitSubject(u)])
	}
	return newest
}

// Forgot tells whether a disk of the register was ever rolled back.
func (r *Stream) Forgot() bool { return r.forgot }

// Elect takes the stream's leader away: no write is stored for a while.
func (r *Stream) Elect(d time.Duration) {
	r.Count("elections")
	r.Logf("the register elects a leader for %v", d)
	r.stall = max(r.stall, r.Now()+d)
}

// HalfFence has the next fencer of a unit die as soon as the unit is FENCED.
func (r *Stream) HalfFence(unit string) { r.half[unit] = true }

// Rollback restores the register's disks from a copy that lacks the newest n
// messages; with all of them gone it is a recreated stream. Every connection to it
// breaks.
func (r *Stream) Rollback(n int) {
	r.Count("rolled-back registers")
	r.forgot, r.repaired = true, false
	n = min(n, len(r.log))
	r.Logf("the register forgets its newest %d messages of %d", n, len(r.log))
	r.log = r.log[:len(r.log)-n]
	if len(r.log) == 0 {
		r.created++
	}
	r.last, r.ids, r.units = map[string]uint64{}, map[string]uint64{}, map[string]ownership.UnitRecord{}
	r.gather()
	for i, m := range r.log {
		r.last[m.subject] = uint64(i + 1)
		if u, ok := r.take(m); ok {
			r.units[u.Unit] = u
		}
	}
	for _, p := range r.Instances {
		p.reconnect()
	}
}

// write is one attempt as the server executes it.
func (r *Stream) write(p *Instance, w ownership.Write) (ownership.Outcome, uint64) {
	if seq, ok := r.ids[w.ID]; ok {
		return ownership.Stored, seq
	}
	if w.Guard != "" && r.last[w.Guard] != w.Expect {
		return ownership.Conflict, 0
	}
	r.log = append(r.log, message{subject: w.Subject, data: w.Data})
	seq := uint64(len(r.log))
	r.ids[w.ID], r.last[w.Subject] = seq, seq
	r.repaired = r.repaired || w.Subject == "own.repair"
	if u, ok := r.take(r.log[seq-1]); ok {
		if !u.Resolved() {
			r.Violate("I17", "%s writes a record of %s that names what is not in the register", p.Name, u.Unit)
		}
		r.check(p, w, &u, seq)
		r.units[u.Unit] = u
	}
	r.checkCaughtUp(p, w)
	r.drop(p, w.Subject)
	r.cutOffTargets(p, w)
	for _, q := range r.Instances {
		q.wakeWatch()
	}
	if r.Stored != nil {
		r.Stored(p, w.Subject)
	}
	if r.Crash != nil && r.Crash(p, w.Subject) {
		p.Die()
	}
	return ownership.Stored, seq
}

// drop drops what a new record of extents has pushed out of its subject. I17: nothing that
// a unit's newest record names is among that.
func (r *Stream) drop(p *Instance, subject string) {
	if ownership.ExtentsKey(subject) == "" || !r.gather() {
		return
	}
	r.Count("dropped extents")
	for unit := range r.units {
		u, _ := r.take(r.log[r.last[ownership.UnitSubject(unit)]-1])
		if !u.Resolved() {
			r.Violate("I17", "%s pushes out what the newest record of %s names", p.Name, unit)
		}
	}
}

// gather takes in all records of extents that are there. It tells whether one of them has
// been pushed out since it was called last.
func (r *Stream) gather() (dropped bool) {
	r.sets = ownership.ExtentSets{}
	count := map[string]int{}
	for i := len(r.log) - 1; i >= 0; i-- {
		m := &r.log[i]
		if ownership.ExtentsKey(m.subject) == "" {
			continue
		}
		count[m.subject]++
		out := count[m.subject] > r.Kept && r.Kept > 0
		dropped = dropped || out && !m.dropped
		m.dropped = out
		if !out {
			r.take(*m)
		}
	}
	return dropped
}

// take gives the record of a unit, with what it names.
func (r *Stream) take(m message) (u ownership.UnitRecord, ok bool) {
	if ownership.ExtentsKey(m.subject) != "" {
		if x, err := ownership.DecodeExtents(m.data); err == nil {
			r.sets.Take(&x)
		}
		return u, false
	}
	if u, ok = unitRecord(m.data); ok {
		r.sets.Resolve(&u)
	}
	return u, ok
}

func unitRecord(data []byte) (u ownership.UnitRecord, ok bool) {
	err := json.Unmarshal(data, &u)
	return u, err == nil && u.Unit != "" && u.State != ""
}

func unitEpoch(unit string, e event.Epoch) string { return fmt.Sprintf("%s %d", unit, e) }

// check holds what is stored against the invariants of the register: epochs only
// rise, an epoch has one owner, intervals of one region do not overlap, and who
// takes a unit has waited.
func (r *Stream) check(p *Instance, w ownership.Write, u *ownership.UnitRecord, seq uint64) {
	r.Logf("register %d: %s %s epoch %d owner %q by %s", seq, u.Unit, u.State, u.Epoch, u.Owner, p.Name)
	if u.Owner != "" {
		key := unitEpoch(u.Unit, u.Epoch)
		if was := r.owners[key]; was != "" && was != u.Owner {
			r.Violate("I2", "epoch %d of %s has owners %s and %s", u.Epoch, u.Unit, was, u.Owner)
		}
		r.owners[key] = u.Owner
	}
	if r.forgot {
		return
	}
	if u.State == ownership.UnitFenced && r.half[u.Unit] && !r.Calm() {
		delete(r.half, u.Unit)
		p.Die()
	}
	if u.Epoch < r.epochs[u.Unit] {
		r.Violate("I1", "the epoch of %s goes back from %d to %d", u.Unit, r.epochs[u.Unit], u.Epoch)
	}
	if u.Owner != "" && u.Epoch > r.epochs[u.Unit] && w.Expect > 0 {
		r.checkActivation(p, w, u)
	}
	if before := r.units[u.Unit]; u.Epoch == before.Epoch && len(u.Epochs) < len(before.Epochs) {
		r.Count("joined epochs")
	}
	r.epochs[u.Unit] = u.Epoch
	r.checkIntervals(u)
	r.checkRetired(p, w, u)
}

// checkActivation (I7, I15): a unit that was taken from an owner is activated only
// W after the claimant was told that a write of the last owner's region record
// behind the record that it claims was stored.
func (r *Stream) checkActivation(p *Instance, w ownership.Write, u *ownership.UnitRecord) {
	before, ok := r.units[u.Unit]
	if !ok || before.Last == "" {
		return
	}
	sent := p.sent[w.ID]
	for _, a := range p.acks {
		if a.region == before.Last && a.seq > w.Expect && a.life == sent.life && sent.at >= a.at+r.Lease.Wait() {
			return
		}
	}
	r.Violate("I7", "%s activates %s in epoch %d without having waited behind a write of %s's record", p.Name, u.Unit, u.Epoch, before.Last)
}

func (r *Stream) checkIntervals(u *ownership.UnitRecord) {
	ends := map[string]int64{}
	for i, t := range u.Epochs {
		for _, e := range t.Start {
			for part, start := range e.Offsets {
				if end := ends[fmt.Sprint(t.Owner, e.Topic, e.Incarnation, part)]; start >= 0 && start < end {
					r.Violate("I5", "epoch %d of %s begins in %s/%d at %d, below the cut %d before", t.Epoch, u.Unit, e.Topic, part, start, end)
				}
			}
		}
		if i > 0 && t.Epoch <= u.Epochs[i-1].Epoch {
			r.Violate("I1", "epochs of %s do not rise: %d after %d", u.Unit, t.Epoch, u.Epochs[i-1].Epoch)
		}
		if i < len(u.Epochs)-1 && !t.Ended {
			r.Violate("I5", "epoch %d of %s has a successor and no cut", t.Epoch, u.Unit)
		}
		for _, e := range t.Cut {
			for part, cut := range e.Offsets {
				key := fmt.Sprint(t.Owner, e.Topic, e.Incarnation, part)
				ends[key] = max(ends[key], cut)
			}
		}
	}
}

// testify is what a region's Kafka remembers of the register: every instance of
// the region copies what its watch brings.
func (r *Stream) testify(region string, ev *ownership.Seen) {
	m := r.memories[region]
	if m == nil {
		m = &ownership.Memory{Epochs: map[string]event.Epoch{}, Live: map[string]uint64{}}
		r.memories[region] = m
	}
	if x, err := ownership.DecodeExtents(ev.Data); err == nil && ownership.ExtentsKey(ev.Subject) != "" {
		m.TakeExtents(&x)
	} else if u, ok := unitRecord(ev.Data); ok {
		m.TakeUnit(&u, ev.Seq, ev.Data)
	} else if x, err := ownership.DecodeRegion(ev.Data); err == nil && ownership.RegionSubject(x.Region) == ev.Subject {
		m.TakeRegion(&x)
	} else {
		return
	}
	m.Last = max(m.Last, ev.Seq)
}

// testified is a copy of that.
func (r *Stream) testified(region string) (m ownership.Memory) {
	if known := r.memories[region]; known != nil {
		m = ownership.Memory{Epochs: maps.Clone(known.Epochs), Live: maps.Clone(known.Live), Regions: maps.Clone(known.Regions), Last: known.Last, Units: maps.Clone(known.Units), Extents: known.Extents}
	}
	return m
}

// live tells whether a message is an instance's renewal.
func (p *Instance) live(subject string) bool {
	return subject == "own.live."+p.Region+"."+strings.ReplaceAll(p.As, ".", "~")
}
