package residency

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// Code is what the audit says about an offset.
type Code uint8

// The codes.
const (
	Allowed Code = 1
	Denied  Code = 2
	// NoRecord: a marker or a hole; there was nothing to decide.
	NoRecord Code = 3
	// Doubtful: denied because a predicate could not be decided.
	Doubtful Code = 4
	// Orphan: the record lies past a cut of its region's log; the policy was not
	// asked, and it is not sent.
	Orphan Code = 5
)

// Ruled tells whether a rule of the policy decided.
func (c Code) Ruled() bool { return c == Allowed || c == Denied || c == Doubtful }

// String is the code's name.
func (c Code) String() string {
	switch c {
	case Allowed:
		return "allow"
	case Denied:
		return "deny"
	case NoRecord:
		return "none"
	case Doubtful:
		return "doubt"
	case Orphan:
		return "orphan"
	}
	return fmt.Sprintf("code-%d", uint8(c))
}

// Run is a stretch of offsets of a source partition with one verdict.
type Run struct {
	From, Until int64 // Until is exclusive
	Code        Code
	Rule        string // empty unless the code is Ruled
}

// AppendRun appends a run, or lengthens the last one if it goes on.
func AppendRun(runs []Run, r Run) []Run {
	if r.From >= r.Until {
		return runs
	}
	if n := len(runs); n > 0 {
		if last := &runs[n-1]; last.Until == r.From && last.Code == r.Code && last.Rule == r.Rule {
			last.Until = r.Until
			return runs
		}
	}
	return append(runs, r)
}

// Audit is a record of _geogate.audit: what was decided about a stretch of a
// source partition on the way to another region, before any of it was sent. If
// the sending failed, a later record decides about the same offsets again: see
// Supersedes.
//
// It holds no key, no header and no value, not even hashed.
type Audit struct {
	To          event.RegionID
	ID          [16]byte // of the topic
	Topic       string
	Partition   int32
	Incarnation uint16
	Revision    int64
	Digest      [sha256.Size]byte // of the policy
	// Generation, ProducerID and ProducerEpoch are those of the link's transactional
	// producer at the target. They rise whenever a shard restarts or is taken
	// over, so that what a deposed instance still writes is distinguished from what counts.
	Generation    uint64
	ProducerID    int64
	ProducerEpoch int16
	Runs          []Run // without gaps between them
}

const (
	auditVersion   = 1
	orphansVersion = 2 // of records in which the code Orphan occurs
	maxTopicName   = 249
	maxRuleName    = 63
	maxRuns        = 1 << 24
)

// Supersedes tells whether a record counts for the offsets that both cover, given
// that it lies after the other in the log.
func (a *Audit) Supersedes(before *Audit) bool {
	return cmp.Or(cmp.Compare(a.Generation, before.Generation), cmp.Compare(a.ProducerID, before.ProducerID),
		cmp.Compare(a.ProducerEpoch, before.ProducerEpoch)) >= 0
}

// AppendKey appends the record key: u8 region to which, topic id, uvarint
// partition.
func (a *Audit) AppendKey(b []byte) []byte {
	b = append(append(b, byte(a.To)), a.ID[:]...)
	return binary.AppendUvarint(b, uint64(a.Partition))
}

// AppendValue appends the record value: u8 version, 2 if the code Orphan occurs,
// else 1; length-prefixed topic; u16 incarnation; uvarint revision; 32 bytes
// digest; uvarint generation, uvarint producer id, u16 producer epoch; uvarint
// number of rules and each length-prefixed, in the order in which runs first name
// them; uvarint first offset; uvarint number of runs and for each: uvarint count,
// u8 code and, if a rule decided, uvarint index of the rule.
func (a *Audit) AppendValue(b []byte) []byte {
	version := byte(auditVersion)
	if slices.ContainsFunc(a.Runs, func(r Run) bool { return r.Code == Orphan }) {
		version = orphansVersion
	}
	b = event.AppendPrefixed(append(b, version), []byte(a.Topic))
	b = binary.BigEndian.AppendUint16(b, a.Incarnation)
	b = binary.AppendUvarint(b, uint64(a.Revision))
	b = append(b, a.Digest[:]...)
	b = binary.AppendUvarint(b, a.Generation)
	b = binary.AppendUvarint(b, uint64(a.ProducerID))
	b = binary.BigEndian.AppendUint16(b, uint16(a.ProducerEpoch))
	var rules []string
	index := map[string]int{}
	for _, r := range a.Runs {
		if _, ok := index[r.Rule]; !ok && r.Code.Ruled() {
			index[r.Rule] = len(rules)
			rules = append(rules, r.Rule)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(rules)))
	for _, r := range rules {
		b = event.AppendPrefixed(b, []byte(r))
	}
	var first int64
	if len(a.Runs) > 0 {
		first = a.Runs[0].From
	}
	b = binary.AppendUvarint(b, uint64(first))
	b = binary.AppendUvarint(b, uint64(len(a.Runs)))
	for _, r := range a.Runs {
		b = binary.AppendUvarint(b, uint64(r.Until-r.From))
		b = append(b, byte(r.Code))
		if r.Code.Ruled() {
			b = binary.AppendUvarint(b, uint64(index[r.Rule]))
		}
	}
	return b
}

// ParseAudit reads a record of _geogate.audit.
func ParseAudit(key, value []byte) (Audit, error) {
	k := event.NewReader(key)
	a := Audit{To: k.Region()}
	copy(a.ID[:], k.Bytes(len(a.ID)))
	a.Partition = int32(k.UvarintMax(1<<31 - 1))
	if err := k.Close(); err != nil {
		return Audit{}, fmt.Errorf("parse audit key: %w", err)
	}
	r := event.NewReader(value)
	last := Doubtful
	switch v := r.Uint8(); v {
	case auditVersion:
	case orphansVersion:
		last = Orphan
	default:
		r.Fail("audit version %d is not supported", v)
	}
	a.Topic = string(r.Prefixed(maxTopicName))
	a.Incarnation = r.Uint16()
	a.Revision = int64(r.UvarintMax(1<<63 - 1))
	copy(a.Digest[:], r.Bytes(len(a.Digest)))
	a.Generation = r.Uvarint()
	a.ProducerID = int64(r.UvarintMax(1<<63 - 1))
	a.ProducerEpoch = int16(r.Uint16())
	var rules []string
	for range r.UvarintMax(uint64(r.Len())) {
		rules = append(rules, string(r.Prefixed(maxRuleName)))
	}
	next := int64(r.UvarintMax(1<<63 - 1))
	for range r.UvarintMax(maxRuns) {
		if r.Err() != nil {
			break
		}
		run := Run{From: next, Until: next + int64(r.UvarintMax(1<<63-1)), Code: Code(r.Uint8())}
		switch {
		case run.Code < Allowed || run.Code > last:
			r.Fail("verdict %d is not known", run.Code)
		case run.Until <= run.From:
			r.Fail("a run of no offsets")
		case run.Code.Ruled():
			n := r.UvarintMax(1 << 32)
			if r.Err() == nil && n >= uint64(len(rules)) {
				r.Fail("rule %d of %d", n, len(rules))
			}
			if r.Err() == nil {
				run.Rule = rules[n]
			}
		}
		a.Runs = append(a.Runs, run)
		next = run.Until
	}
	if err := r.Close(); err != nil {
		return Audit{}, fmt.Errorf("parse audit record: %w", err)
	}
	return a, nil
}
