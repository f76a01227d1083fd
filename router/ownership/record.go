package ownership

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
)

// What the register holds. Every record is JSON with a version, because
// people read the register when things are bad; the numbers that matter are
// small. docs/format/ownership.md has the fields and golden bytes.

// recordVersion is the version of all records but those that name extents outside of them
// or join epochs ([refsVersion]), or say that a region is retired ([retireVersion]). A record
// of another version is an error, never half understood.
const recordVersion = 1

// RegionState says whether a region's instances may hold leases.
type RegionState string

// The states of a region.
const (
	RegionUp     RegionState = "UP"
	RegionFenced RegionState = "FENCED"
)

// UnitState says who may write a unit.
type UnitState string

// The states of a unit. Only an ACTIVE unit has an owner that writes.
const (
	UnitActive    UnitState = "ACTIVE"
	UnitDraining  UnitState = "DRAINING"  // the owner is asked to stop
	UnitSealed    UnitState = "SEALED"    // the owner has stopped
	UnitFenced    UnitState = "FENCED"    // the owner was stopped
	UnitPreparing UnitState = "PREPARING" // a region may claim it
)

// RegionRecord is what all leases of a region hang on: a renewal is written on
// condition that this record has not changed.
type RegionRecord struct {
	Version int            `json:"v"`
	Region  string         `json:"region"`
	ID      event.RegionID `json:"id"`
	// Live is the liveness epoch: it rises with every fence, unfence and bump.
	Live  uint64      `json:"live_epoch"`
	State RegionState `json:"state"`
	// By is the region whose gateway wrote the record, Reason why.
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
	// Plan is the id of the write that fenced; the touch at the end of a fence
	// repeats it.
	Plan string `json:"plan,omitempty"`
	// Retired is set from when the region is retired until it has caught up after its
	// return.
	Retired *Retirement `json:"retired,omitempty"`
}

// UnitRecord is who owns a unit, and the history of its epochs.
type UnitRecord struct {
	Version int         `json:"v"`
	Unit    string      `json:"unit"`
	Epoch   event.Epoch `json:"epoch"`
	Owner   string      `json:"owner"` // region; "" while nobody may write
	State   UnitState   `json:"state"`
	// Last is the region that owned the unit last: the one whose leases a
	// claimant has to outwait.
	Last string `json:"last,omitempty"`
	// For is the region that may claim a PREPARING unit.
	For string `json:"for,omitempty"`
	// Scope tells what was fenced, the unit or its whole region: what has to be
	// unfenced before Last may claim again.
	Scope string `json:"scope,omitempty"`
	// Live is the liveness epoch of the owner under which it proved itself last.
	Live uint64 `json:"live_epoch,omitempty"`
	// Claim names the proof (the message id of its write), Incarnation counts the
	// proofs of an epoch.
	Claim       string `json:"claim,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	By          string `json:"by"`
	Reason      string `json:"reason,omitempty"`
	// Retired are regions that set no cut of the unit any more, until a later record
	// leaves them out: readers of its logs need not wait for what they promise.
	Retired []string `json:"retired,omitempty"`
	// Prev is the revision of the record before, PrevHash the SHA-256 of its
	// bytes: the chain that audits rest on.
	Prev     uint64 `json:"prev"`
	PrevHash string `json:"prev_hash,omitempty"`
	// Epochs are all epochs that had an owner, oldest first.
	Epochs []Tenure `json:"epochs"`
}

// The scopes of a fence.
const (
	ScopeRegion = "region"
	ScopeUnit   = "unit"
)

// Tenure is one epoch in which a region owned a unit. Together with a topic's
// partition it is an interval of the owner's log: from start to cut.
type Tenure struct {
	Epoch event.Epoch `json:"epoch"`
	// First is set where several epochs of the owner were joined, the last of which is
	// Epoch: nobody needs to tell them apart any more.
	First event.Epoch `json:"first,omitempty"`
	Owner string      `json:"owner"`
	// Start is where the owner's logs ended when the epoch began. A partition or
	// incarnation that is not in it begins at offset 0: it appeared later.
	Start []Extent `json:"start,omitempty"`
	// StartAt names the start where it stands outside of the record; Start is then put in
	// by the reader.
	StartAt *ExtentsRef `json:"start_at,omitempty"`
	// Ended is set once the cut is known. A partition that is not in Cut, because no
	// other region is given anything of its topic, is cut where the next epoch of the
	// same owner begins: there is nobody who could have gone on without it.
	Ended bool     `json:"ended,omitempty"`
	Cut   []Extent `json:"cut,omitempty"`
	// CutAt names the cut, like StartAt.
	CutAt *ExtentsRef `json:"cut_at,omitempty"`
	// Applied is set where the cut is what other regions had applied: answered
	// writes may lie past it.
	Applied bool `json:"applied,omitempty"`
}

// Has tells whether an epoch is the tenure's, or one of those that it joins.
func (t *Tenure) Has(e event.Epoch) bool {
	return e == t.Epoch || t.First != 0 && t.First <= e && e < t.Epoch
}

// MarshalJSON leaves out what stands outside.
func (t Tenure) MarshalJSON() ([]byte, error) {
	type tenure Tenure
	if t.StartAt != nil {
		t.Start = nil
	}
	if t.CutAt != nil {
		t.Cut = nil
	}
	return json.Marshal(tenure(t))
}

// Extent is one offset for each partition of a topic, in one incarnation.
type Extent struct {
	Topic       string `json:"topic"`
	Incarnation uint16 `json:"incarnation"`
	// Offsets has an offset for each partition from 0; -1 where the partition is
	// not in this incarnation.
	Offsets []int64 `json:"offsets"`
}

// Offset finds a partition's offset among extents; ok is false where it is in
// none.
func Offset(extents []Extent, topic string, incarnation uint16, partition int32) (offset int64, ok bool) {
	for _, e := range extents {
		if e.Topic == topic && e.Incarnation == incarnation && int(partition) < len(e.Offsets) && e.Offsets[partition] >= 0 {
			return e.Offsets[partition], true
		}
	}
	return 0, false
}

// extentIndex has extents by topic and incarnation: a unit may have ten thousand topics.
type extentIndex map[logName][]*Extent

// logName names the logs of a topic in one incarnation.
type logName struct {
	topic       string
	incarnation uint16
}

func indexExtents(extents []Extent) extentIndex {
	x := make(extentIndex, len(extents))
	for i := range extents {
		e := &extents[i]
		at := logName{e.Topic, e.Incarnation}
		x[at] = append(x[at], e)
	}
	return x
}

// offset is [Offset] among the extents.
func (x extentIndex) offset(topic string, incarnation uint16, partition int32) (offset int64, ok bool) {
	for _, e := range x[logName{topic, incarnation}] {
		if int(partition) < len(e.Offsets) && e.Offsets[partition] >= 0 {
			return e.Offsets[partition], true
		}
	}
	return 0, false
}

// raise is what of extents is listed, but nowhere below the floor.
func raise(extents, floor []Extent) []Extent {
	out, least := mergeExtents(nil, extents), indexExtents(floor)
	for i := range out {
		for p, offset := range out[i].Offsets {
			if least, ok := least.offset(out[i].Topic, out[i].Incarnation, int32(p)); ok && offset >= 0 {
				out[i].Offsets[p] = max(offset, least)
			}
		}
	}
	return out
}

// mergeExtents is the higher of both for every partition.
func mergeExtents(a, b []Extent) []Extent {
	out := make([]Extent, 0, len(a)+len(b))
	at := make(map[logName]int, len(a)+len(b))
	for _, e := range slices.Concat(a, b) {
		name := logName{e.Topic, e.Incarnation}
		i, there := at[name]
		if !there {
			e.Offsets = slices.Clone(e.Offsets)
			at[name], out = len(out), append(out, e)
			continue
		}
		for p, offset := range e.Offsets {
			if p >= len(out[i].Offsets) {
				out[i].Offsets = append(out[i].Offsets, offset)
			} else {
				out[i].Offsets[p] = max(out[i].Offsets[p], offset)
			}
		}
	}
	return out
}

// LeaseRecord is the renewal of an instance's lease. Only that it was stored
// counts, and that on condition of a revision of the region's record.
type LeaseRecord struct {
	Version  int    `json:"v"`
	Region   string `json:"region"`
	Instance string `json:"instance"`
	// Life is the process that wrote it; "" in records of versions that had none.
	Life string `json:"life,omitempty"`
	// After is the revision of the newest lease record of another life under this name
	// that the life knows. It speaks for those lives: it has ended them, and drains
	// only once they can believe in no lease any more; then it is 0.
	After uint64 `json:"after,omitempty"`
	// Guard is the revision of the region's record that the renewal depends on; 0 in
	// the first record of a life, which depends on the newest one under the name, and
	// in the last.
	Guard uint64 `json:"guard"`
	// Hold is how long the life, or one that it has ended, believes in a renewal, in
	// milliseconds; 0 in records of instances that do not say: what the reader's own
	// times say.
	Hold int64 `json:"hold_ms,omitempty"`
	// Reads is the highest version of records that the life reads; 0 in records of
	// instances that do not say: 1.
	Reads int `json:"reads,omitempty"`
	// Gone is set in the last one of a life that has stopped: it, and those it speaks
	// for, hold nothing and answer nothing any more.
	Gone bool `json:"gone,omitempty"`
}

// DrainedRecord says that a life, and those that it speaks for, hold nothing of a unit
// any more: it has dropped its token for the epochs before Epoch and answers nothing
// under them.
// It stays, whatever becomes of the unit.
type DrainedRecord struct {
	Version  int         `json:"v"`
	Region   string      `json:"region"`
	Instance string      `json:"instance"`
	Life     string      `json:"life,omitempty"`
	Unit     string      `json:"unit"`
	Epoch    event.Epoch `json:"epoch"` // the fence's
	// Ends are where the region's logs ended after that.
	Ends []Extent `json:"ends,omitempty"`
	// EndsAt names the ends where they stand outside of the record.
	EndsAt *ExtentsRef `json:"ends_at,omitempty"`
}

// nextEpoch is the lowest epoch above e that the region with this id may mint:
// no two regions ever mint the same one, whatever the register does.
func nextEpoch(e event.Epoch, id event.RegionID) event.Epoch {
	n := e/16*16 + event.Epoch(id)
	if n <= e {
		n += 16
	}
	return n
}

// The subjects of the register. Names of regions and domains are single tokens;
// an instance's dots are written as tildes, which no instance name has.
const (
	subjectRegion  = "own.region."
	subjectLease   = "own.live."
	subjectUnit    = "own.unit."
	subjectDrained = "own.drained."
)

// RegionSubject is the subject of a region's record.
func RegionSubject(region string) string { return subjectRegion + region }

// UnitSubject is the subject of a unit's record.
func UnitSubject(unit string) string { return subjectUnit + strings.ReplaceAll(unit, "/", ".") }

func leaseSubject(region, instance string) string {
	return subjectLease + region + "." + strings.ReplaceAll(instance, ".", "~")
}

func drainedSubject(region, instance, unit string) string {
	return subjectDrained + region + "." + strings.ReplaceAll(instance, ".", "~") + "." + strings.ReplaceAll(unit, "/", ".")
}

// encode makes a record's bytes.
func encode(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("ownership: encode %T: %v", record, err)) // plain structs of strings and numbers
	}
	return b
}

// versioned is any record: it has a version, and there is a newest that is known.
type versioned interface {
	version() int
	newest() int
}

func (r RegionRecord) version() int  { return r.Version }
func (r UnitRecord) version() int    { return r.Version }
func (r LeaseRecord) version() int   { return r.Version }
func (r DrainedRecord) version() int { return r.Version }

func (r RegionRecord) newest() int  { return retireVersion }
func (r UnitRecord) newest() int    { return retireVersion }
func (r LeaseRecord) newest() int   { return recordVersion }
func (r DrainedRecord) newest() int { return refsVersion }

// decode reads a record. What this version does not know of is ignored: a newer
// version that means something else raises the number.
func decode[T versioned](b []byte) (T, error) {
	var r T
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("decode %T: %w", r, err)
	}
	if v := r.version(); v < recordVersion || v > r.newest() {
		return r, fmt.Errorf("decode %T: version %d is not known", r, r.version())
	}
	return r, nil
}

// DecodeUnit reads a unit's record from the bytes in the register. It fails for
// another version of the record.
func DecodeUnit(b []byte) (UnitRecord, error) { return decode[UnitRecord](b) }

// DecodeRegion reads a region's record from the bytes in the register. It fails for
// another version of the record.
func DecodeRegion(b []byte) (RegionRecord, error) { return decode[RegionRecord](b) }

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Subject says whose record a register subject holds, for people: a unit's name,
// or "region:<name>"; "" for renewals and what else is nobody's ownership.
func Subject(subject string) string {
	if unit, ok := strings.CutPrefix(subject, subjectUnit); ok {
		return strings.Replace(unit, ".", "/", 1)
	}
	if region, ok := strings.CutPrefix(subject, subjectRegion); ok {
		return "region:" + region
	}
	return ""
}
