package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// Where the logs of a unit end takes as much space as the unit has partitions, and a unit's
// record names it twice for each epoch. So what is long stands outside: in records of its
// own that are stored before the unit's, which names them by their hash. A unit's record
// that was stored is preceded by all that it names; what nobody names does nothing.
//
// The register deletes nothing, but of each subject it keeps the newest [KeptRevisions]
// alone. So records of extents share a few subjects, slots, and one that nobody needs any
// more falls out when others are stored in its slot. A slot whose oldest record is needed
// is left alone. What is needed, of a unit: what its newest record names, and what was
// stored in that one's epoch or a later one, which a record may be about to name. Each
// record that follows names of it, or what its writer has stored since; and whoever still
// goes by an earlier record spares all the more. So what is named is never lost.

const (
	// refsVersion is the version of a record that names extents outside, or joins epochs.
	refsVersion = 2
	// ExtentsSubjects begins the subjects of extents.
	ExtentsSubjects = "own.extents."
	// inlineExtents is how much of extents a record holds itself, in bytes, and
	// inlineForOld how much while a region may have instances that know no other form: what
	// is longer goes outside all the same, for no register takes it.
	inlineExtents = 32 << 10
	inlineForOld  = 512 << 10
	// leastOutside is the least that goes outside.
	leastOutside = 256
	// partBytes bounds a record of extents; a register takes 1 MiB.
	partBytes = 256 << 10
	// mostParts bounds what is believed of their number.
	mostParts = 4096
	// KeptRevisions is how many messages of a subject the register keeps.
	KeptRevisions = 64
	// repairSlot begins the slots of what a repair stores.
	repairSlot = "repair"
	// purposeExtents begins the purpose of writes of extents, see [Core.write].
	purposeExtents = "extents "
)

// ExtentsRef names extents that stand outside a record.
type ExtentsRef struct {
	Sum   string `json:"sum"` // of all of them: [ExtentsRecord.Sum]
	Parts int    `json:"parts"`
}

// ExtentsRecord is a part of extents that a unit's record, or a drained record, names.
type ExtentsRecord struct {
	Version int    `json:"v"`
	Unit    string `json:"unit"`
	// Epoch is that of the record that names them. A record of a later epoch that does not
	// name them shows that none will.
	Epoch event.Epoch `json:"epoch"`
	// Sum is the first half of the SHA-256 of all parts' extents, encoded as one list, in hex.
	Sum     string   `json:"sum"`
	Part    int      `json:"part"` // from 0
	Parts   int      `json:"parts"`
	Extents []Extent `json:"extents"`
}

func (r ExtentsRecord) version() int { return r.Version }
func (r ExtentsRecord) newest() int  { return recordVersion }

// DecodeExtents reads a record of extents from the bytes in the register.
func DecodeExtents(b []byte) (ExtentsRecord, error) {
	r, err := decode[ExtentsRecord](b)
	if err == nil && (r.Unit == "" || r.Sum == "" || r.Parts < 1 || r.Parts > mostParts || r.Part < 0 || r.Part >= r.Parts) {
		err = fmt.Errorf("decode extents: part %d of %d of %q", r.Part, r.Parts, r.Unit)
	}
	return r, err
}

// subject is where the record is stored.
func (r *ExtentsRecord) subject(slot string) string { return slots(r.Unit) + slot }

// repairSlotOf is the slot of a record that a repair stores. A repair goes by what the
// register answers now and does not know what its slots hold, and other regions may repair
// beside it. So each record has a slot of its own: what comes into it later is the same
// again, and pushes nothing else out.
func repairSlotOf(r *ExtentsRecord) string {
	return fmt.Sprintf("%s-%.16s-%d", repairSlot, r.Sum, r.Part)
}

// slots begins the subjects of a unit's extents.
func slots(unit string) string {
	return ExtentsSubjects + strings.ReplaceAll(unit, "/", ".") + "."
}

// ExtentsKey is under which key the copy of the register keeps a subject's extents; "" for
// every other subject.
func ExtentsKey(subject string) string {
	if rest, ok := strings.CutPrefix(subject, ExtentsSubjects); ok {
		return "extents:" + rest
	}
	return ""
}

// In tells whether the record may stand under a key of the copy of the register.
func (r *ExtentsRecord) In(key string) bool {
	return strings.HasPrefix(key, ExtentsKey(slots(r.Unit)))
}

func sumOf(extents []Extent) string { return hash(encode(extents))[:32] }

// split makes the records of extents.
func split(unit string, epoch event.Epoch, extents []Extent) []ExtentsRecord {
	var parts []ExtentsRecord
	size := partBytes
	for _, e := range extents {
		n := len(encode(e))
		if size+n > partBytes {
			parts, size = append(parts, ExtentsRecord{Version: recordVersion, Unit: unit, Epoch: epoch, Sum: sumOf(extents), Part: len(parts)}), 0
		}
		last := &parts[len(parts)-1]
		last.Extents, size = append(last.Extents, e), size+n
	}
	for i := range parts {
		parts[i].Parts = len(parts)
	}
	return parts
}

// bounds are the starts and cuts of a record, each with its name outside.
func (u *UnitRecord) bounds(visit func(extents *[]Extent, ref **ExtentsRef)) {
	for i := range u.Epochs {
		visit(&u.Epochs[i].Start, &u.Epochs[i].StartAt)
		visit(&u.Epochs[i].Cut, &u.Epochs[i].CutAt)
	}
}

// Resolved tells whether all extents that a record names are known.
func (u *UnitRecord) Resolved() bool {
	all := true
	u.bounds(func(extents *[]Extent, ref **ExtentsRef) { all = all && (*ref == nil || *extents != nil) })
	return all
}

// outside puts the long extents of a record outside, if they are more than inline bytes
// together, and gives their records.
func outside(u *UnitRecord, inline int) (records []ExtentsRecord) {
	total, least := 0, min(leastOutside, inline)
	u.bounds(func(extents *[]Extent, ref **ExtentsRef) {
		if *ref == nil && len(*extents) > 0 {
			total += len(encode(*extents))
		}
	})
	u.Version = recordVersion
	u.Epochs = slices.Clone(u.Epochs)
	u.bounds(func(extents *[]Extent, ref **ExtentsRef) {
		if *ref == nil && len(*extents) > 0 && total > inline && len(encode(*extents)) > least {
			parts := split(u.Unit, u.Epoch, *extents)
			*ref = &ExtentsRef{Sum: parts[0].Sum, Parts: len(parts)}
			records = append(records, parts...)
		}
		if *ref != nil {
			u.Version = refsVersion
		}
	})
	if slices.ContainsFunc(u.Epochs, func(t Tenure) bool { return t.First != 0 }) {
		u.Version = refsVersion
	}
	return records
}

// ExtentSets are extents that stand outside of records, as far as their parts were seen.
type ExtentSets struct {
	sets map[extentName]*extentSet
}

// extentName is what names a set. Two units may have the same extents.
type extentName struct{ unit, sum string }

type extentSet struct {
	epochs  []event.Epoch    // the latest in which each part was stored; 0: it was not seen
	parts   map[int][]Extent // those that were seen
	extents []Extent         // all of them; nil until then
}

// Take takes a part. It tells whether its set is whole now.
func (s *ExtentSets) Take(r *ExtentsRecord) (whole bool) {
	if s.sets == nil {
		s.sets = make(map[extentName]*extentSet)
	}
	name := extentName{r.Unit, r.Sum}
	set := s.sets[name]
	if set == nil || len(set.epochs) != r.Parts {
		if set != nil && set.extents != nil {
			return true // so many parts it has not
		}
		set = &extentSet{parts: make(map[int][]Extent), epochs: make([]event.Epoch, r.Parts)}
		s.sets[name] = set
	}
	set.epochs[r.Part] = max(set.epochs[r.Part], r.Epoch)
	if set.extents != nil {
		return true
	}
	set.parts[r.Part] = r.Extents
	if len(set.parts) < r.Parts {
		return false
	}
	var all []Extent
	for part := range r.Parts {
		all = append(all, set.parts[part]...)
	}
	if sumOf(all) != r.Sum {
		delete(s.sets, name) // parts of something else; they may come again
		return false
	}
	set.extents, set.parts = all, nil
	return true
}

// find gives the extents that a record of a unit names; nil: not all parts were seen.
func (s *ExtentSets) find(unit string, ref *ExtentsRef) []Extent {
	if set := s.sets[extentName{unit, ref.Sum}]; set != nil {
		return set.extents
	}
	return nil
}

// Resolve puts into a record what it names, as far as it is known.
func (s *ExtentSets) Resolve(u *UnitRecord) {
	u.bounds(func(extents *[]Extent, ref **ExtentsRef) {
		if *ref != nil && *extents == nil {
			*extents = s.find(u.Unit, *ref)
		}
	})
}

// named are the sums that a record names.
func (u *UnitRecord) named() map[string]bool {
	named := make(map[string]bool)
	u.bounds(func(_ *[]Extent, ref **ExtentsRef) {
		if *ref != nil {
			named[(*ref).Sum] = true
		}
	})
	return named
}

// prune drops what no record will name any more, given the newest record of a unit.
func (s *ExtentSets) prune(u *UnitRecord) {
	named := u.named()
	maps.DeleteFunc(s.sets, func(name extentName, set *extentSet) bool {
		return name.unit == u.Unit && slices.Max(set.epochs) < u.Epoch && !named[name.sum]
	})
}

// join takes over what another one has.
func (s *ExtentSets) join(o *ExtentSets) {
	if s.sets == nil {
		s.sets = make(map[extentName]*extentSet)
	}
	for name, set := range o.sets {
		if known := s.sets[name]; set.extents != nil && (known == nil || known.extents == nil) {
			s.sets[name] = set
		}
	}
}

// stored tells whether a part stands in the register and stays there for a record that
// follows the newest one of its unit.
func (s *ExtentSets) stored(r *ExtentsRecord, newest *UnitRecord) bool {
	set := s.sets[extentName{r.Unit, r.Sum}]
	if set == nil || r.Part >= len(set.epochs) || set.extents == nil && set.parts[r.Part] == nil {
		return false
	}
	e := set.epochs[r.Part]
	return e > 0 && (newest == nil || e >= newest.Epoch || newest.named()[r.Sum])
}

// A slot is what the register has under a subject of extents, the oldest first.
type slot []slotted

// slotted is a record of extents in a slot.
type slotted struct {
	seq   uint64
	sum   string
	epoch event.Epoch
}

// newest is the revision of the newest record; 0: there is none.
func (s slot) newest() uint64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].seq
}

// add takes a record that follows the newest.
func (s slot) add(x slotted, kept int) slot {
	s = append(s, x)
	return s[max(0, len(s)-kept):]
}

// takes tells whether a record may be stored in a slot: nothing that is needed falls out.
func (s slot) takes(newest *UnitRecord, kept int) bool {
	return len(s) < kept || newest != nil && s[0].epoch < newest.Epoch && !newest.named()[s[0].sum]
}

// noteExtents takes a record of extents over, and puts it into the records that wait for it.
func (c *Core) noteExtents(subject string, seq uint64, data []byte) error {
	r, err := DecodeExtents(data)
	if err != nil {
		return err
	}
	if seq == c.seen { // from the watch, which leaves nothing out
		c.slotted(subject, seq, &r)
	}
	if !c.extents.Take(&r) {
		return nil
	}
	if u := c.units[r.Unit]; u != nil && !u.rec.Resolved() {
		next := *u
		next.rec.Epochs = slices.Clone(u.rec.Epochs) // readers hold the one before
		c.extents.Resolve(&next.rec)
		c.units[r.Unit] = &next
		c.changes++
	}
	return nil
}

// slotted remembers what stands in a slot.
func (c *Core) slotted(subject string, seq uint64, r *ExtentsRecord) {
	if s := c.slots[subject]; seq > s.newest() {
		c.slots[subject] = s.add(slotted{seq, r.Sum, r.Epoch}, c.keptRevisions())
	}
}

// want is a record that names what the register has not shown.
type want struct {
	rev    uint64
	askAt  time.Duration
	denied int // answers in a row by which the record is the newest of its unit
}

// mostDenied is how many answers it takes that nothing follows the record. A server that
// lags may give one such answer, or two.
const mostDenied = 8

// seek asks after what the newest records name and the watch has not brought, although it
// has come to the records. A reader that is late finds that the register has dropped it:
// then a newer record of the unit is there. Where none is, the register is damaged.
func (c *Core) seek(now time.Duration) {
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		u, w := c.units[unit], c.wanted[unit]
		switch {
		case u.rev > c.seen || u.rec.Resolved():
			delete(c.wanted, unit)
		case w == nil || w.rev != u.rev:
			c.wanted[unit] = &want{rev: u.rev, askAt: now}
			fallthrough
		case now >= w.askAt:
			c.wanted[unit].askAt = now + inquireEvery
			c.do(Read{Subject: UnitSubject(unit)})
		}
	}
}

// sought takes an answer to that.
func (c *Core) sought(ev *Seen) {
	for unit, w := range c.wanted {
		if UnitSubject(unit) != ev.Subject || w.rev != ev.Seq {
			continue
		}
		if w.denied++; w.denied >= mostDenied {
			c.fail(fmt.Sprintf("revision %d of %s names starts or cuts that the register does not have", w.rev, unit))
			return
		}
	}
}

// placing is a record that is written once what it names is stored.
type placing struct {
	rev    uint64 // of the record that it follows
	record UnitRecord
	names  []ExtentsRecord
}

// place puts what is too long for a record outside.
func (c *Core) place(u UnitRecord, follows uint64) *placing {
	p := &placing{rev: follows, record: u}
	p.names = outside(&p.record, c.inline())
	return p
}

// draining are ends that are told once they are stored, if they are long.
type draining struct {
	Settled
	names []ExtentsRecord
}

// record is the subject of the record that is written, of extents that of their unit's.
func (o *op) record() string {
	if unit, ok := strings.CutPrefix(o.purpose, purposeExtents); ok {
		return UnitSubject(unit)
	}
	return o.write.Subject
}

// store has records of extents stored, one after the other; it is ok when all are.
func (c *Core) store(now time.Duration, unit string, records []ExtentsRecord) (ok bool) {
	var newest *UnitRecord
	if u := c.units[unit]; u != nil {
		newest = &u.rec
	}
	for i := range records {
		r := &records[i]
		if c.extents.stored(r, newest) {
			continue
		}
		if purpose := purposeExtents + unit; c.free(now, purpose) {
			subject, expect := c.slotFor(r, newest)
			w := Write{Subject: subject, Data: encode(r), Guard: subject, Expect: expect}
			c.write(now, purpose, w, 0, func(_ time.Duration, seq uint64, ok bool) {
				if ok && c.slots[subject].newest() == expect {
					c.slotted(subject, seq, r)
				}
			})
		}
		return false
	}
	return true
}

// slotFor gives the subject for a record of extents, and the revision that it follows.
func (c *Core) slotFor(r *ExtentsRecord, newest *UnitRecord) (subject string, expect uint64) {
	for n := 0; ; n++ {
		subject = r.subject(strconv.Itoa(n))
		if s := c.slots[subject]; s.takes(newest, c.keptRevisions()) {
			return subject, s.newest()
		}
	}
}

func (c *Core) keptRevisions() int {
	if c.cfg.Kept > 0 {
		return c.cfg.Kept
	}
	return KeptRevisions
}

// inline is how much of extents a record holds itself.
func (c *Core) inline() int {
	switch {
	case c.cfg.Inline < 0:
		return 0
	case !c.allRead(refsVersion):
		return inlineForOld
	case c.cfg.Inline > 0:
		return c.cfg.Inline
	}
	return inlineExtents
}

// allRead tells whether every instance of every region that may run reads records of a
// version.
func (c *Core) allRead(version int) bool {
	all := true
	for _, r := range c.cfg.Regions.Regions() {
		c.eachLife(r.Name, func(_ instanceName, _ string, l life) bool {
			all = all && (l.gone || l.reads >= version)
			return all
		})
	}
	return all
}
