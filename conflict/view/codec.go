package view

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// The types of state records: the first byte of every key.
const (
	typeVector     byte = 1
	typeEntity     byte = 2
	typeTwin       byte = 3
	typeCheckpoint byte = 4
	typeOrphan     byte = 5
	typeBase       byte = 6
)

const (
	codecVersion = 1
	// vectorVersion 2 added what the ownership register says; since 3 the stamp is the
	// highest that a gateway made; 4 added what is needed below the frontier, and is written
	// once there is a frontier. All before are still read.
	vectorVersion   = 4
	unsettledVector = 3
	// entityVersion 2 is that of entities with live values that are left out, 3 that of those
	// that say which events above the frontier they are made of. The others are written as
	// version 1, so that the version before can read them.
	entityVersion  = 2
	trackedVersion = 3
	maxBytes       = 1 << 30   // of a key, value or header: Kafka's own limits are lower
	maxCount       = 1 << 20   // of things in a list
	maxOffset      = 1<<63 - 1 // of an offset
	maxBarrier     = 1<<63 - 1 // of a barrier, plus one
	maxGroup       = maxCount  // of a group number
	maxIncarn      = 1<<16 - 1 // of an incarnation
)

// vectorRecord is the partition's input position with the revisions of what changes
// how events are folded. Incarnations and PolicyCut are always zero in this version.
type vectorRecord struct {
	conflict.Position
	Ownership    uint64 // revision of the ownership register: that of Validity
	Incarnations uint64 // revision of the incarnations
	PolicyCut    uint64 // number of the last policy cut
	// Reached is the merged offset, plus one, at which the vector was reached, if
	// corrections were merged since then; 0: none were, it is the end.
	Reached int64

	// anyStamp tells that Stamp may be that of a record without a gateway, which is
	// whatever its producer took for the time: a version before 3 was read.
	anyStamp bool
}

// after is the record of the position that a step leads to. reached is the merged
// offset at which the present vector was reached.
func (x vectorRecord) after(out *conflict.Output, reached int64) vectorRecord {
	p := out.Position
	switch {
	case p.Vector != x.Vector:
		x.Reached = 0
	case len(out.Merged) > 0 && x.Reached == 0:
		x.Reached = reached + 1
	}
	p.Frontier.Join(&x.Frontier) // it never falls
	x.Position = p
	if p.Validity != nil {
		x.Ownership = p.Validity.Revision
	}
	return x
}

func vectorKey() []byte { return []byte{typeVector} }

func entityKey(key []byte) []byte { return append([]byte{typeEntity}, key...) }

func baseKey(key []byte) []byte { return append([]byte{typeBase}, key...) }

func twinKey(k event.IdempotencyKey) []byte { return append([]byte{typeTwin}, k[:]...) }

func checkpointKey(offset int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{typeCheckpoint}, uint64(offset))
}

// orphanKey sorts by dot; the partition is the record's.
func orphanKey(d event.Dot) []byte { return append([]byte{typeOrphan}, dotPart(d)...) }

// append appends the value: u8 version; u8 count, then for each region with a
// position or a barrier, ids ascending: u8 id, uvarint incarnation, uvarint next
// offset, uvarint barrier + 1; u64 highest stamp of a gateway folded; uvarint ownership
// revision, incarnation revision and policy cut; u16 restricted; frontier as
// points; u8 1 if there is a table of the register, and the table
// (event.AppendValidityTable); uvarint revision under which events are being revoked;
// uvarint merged offset + 1 at which the vector was reached, 0 if it is the end; with a
// frontier, what is needed as points, and for each of its regions uvarint barrier + 1.
func (x *vectorRecord) append(b []byte) []byte {
	version := byte(vectorVersion)
	if x.Frontier.IsZero() {
		version = unsettledVector
	}
	b = append(b, version, 0)
	at := len(b) - 1
	for r, p := range x.Vector {
		if p == (event.Point{}) && x.Barriers[r] < 0 {
			continue
		}
		b[at]++
		b = appendPoint(append(b, byte(r)), p)
		b = binary.AppendUvarint(b, uint64(x.Barriers[r]+1))
	}
	b = x.Stamp.Append(b)
	b = binary.AppendUvarint(b, x.Ownership)
	b = binary.AppendUvarint(b, x.Incarnations)
	b = binary.AppendUvarint(b, x.PolicyCut)
	b = binary.BigEndian.AppendUint16(b, x.Restricted)
	b = appendPoints(b, &x.Frontier)
	if x.Validity == nil {
		b = append(b, 0)
	} else {
		b = event.AppendValidityTable(append(b, 1), x.Validity)
	}
	b = binary.AppendUvarint(b, x.Revoking)
	b = binary.AppendUvarint(b, uint64(x.Reached))
	if version < vectorVersion {
		return b
	}
	b = appendPoints(b, &x.Needed)
	for r, p := range x.Needed {
		if p != (event.Point{}) {
			b = binary.AppendUvarint(b, uint64(x.NeededBarriers[r]+1))
		}
	}
	return b
}

func parseVector(value []byte) (vectorRecord, error) {
	r := event.NewReader(value)
	x := vectorRecord{Position: conflict.Start()}
	version := r.Uint8()
	if version < codecVersion || version > vectorVersion {
		r.Fail("record version %d is not supported", version)
	}
	last := event.RegionID(0)
	for range r.Uint8() {
		id := readRegion(r, &last)
		x.Vector[id] = readPoint(r)
		x.Barriers[id] = int64(r.UvarintMax(maxBarrier)) - 1
	}
	x.Stamp = hlc.Stamp(r.Uint64())
	x.Ownership, x.Incarnations, x.PolicyCut = r.Uvarint(), r.Uvarint(), r.Uvarint()
	x.Restricted = r.Uint16()
	x.Frontier = readPoints(r)
	x.anyStamp = version < unsettledVector
	if version > codecVersion {
		if r.Uint8() == 1 {
			x.Validity = event.ReadValidityTable(r)
		}
		x.Revoking = r.Uvarint()
		x.Reached = int64(r.UvarintMax(maxOffset))
	}
	if version == vectorVersion {
		readNeeded(r, &x)
	}
	if err := r.Close(); err != nil {
		return vectorRecord{}, fmt.Errorf("parse vector record: %w", err)
	}
	return x, nil
}

// readNeeded takes what is needed below the frontier.
func readNeeded(r *event.Reader, x *vectorRecord) {
	x.Needed = readPoints(r)
	for at, p := range x.Needed {
		if p != (event.Point{}) {
			x.NeededBarriers[at] = int64(r.UvarintMax(maxBarrier)) - 1
		}
	}
	if r.Err() == nil && (x.Frontier.IsZero() || !x.Vector.CoversAll(&x.Frontier) || !x.Frontier.CoversAll(&x.Needed)) {
		r.Fail("frontier and what is needed do not lie below the vector")
	}
}

// boundStamp takes out a stamp that no gateway has made, and that no clock is to follow.
func (x *vectorRecord) boundStamp(now time.Time) {
	if x.anyStamp && (hlc.Bounds{}).Ahead(x.Stamp, now) {
		x.Stamp = 0
	}
	x.anyStamp = false
}

func appendPoint(b []byte, p event.Point) []byte {
	b = binary.AppendUvarint(b, uint64(p.Incarnation))
	return binary.AppendUvarint(b, uint64(p.Next))
}

func readPoint(r *event.Reader) event.Point {
	return event.Point{Incarnation: uint16(r.UvarintMax(maxIncarn)), Next: int64(r.UvarintMax(maxOffset))}
}

// appendPoints appends a vector with exclusive offsets: u8 count, then per region
// u8 id, uvarint incarnation, uvarint next offset. Unlike gg-c it keeps an
// incarnation of which nothing was applied.
func appendPoints(b []byte, v *event.Vector) []byte {
	at := len(b)
	b = append(b, 0)
	for r, p := range v {
		if p != (event.Point{}) {
			b[at]++
			b = appendPoint(append(b, byte(r)), p)
		}
	}
	return b
}

func readPoints(r *event.Reader) (v event.Vector) {
	last := event.RegionID(0)
	for range r.Uint8() {
		id := readRegion(r, &last)
		if v[id] = readPoint(r); v[id] == (event.Point{}) {
			r.Fail("empty point in a vector")
		}
	}
	return v
}

// readRegion takes a region id above the last one.
func readRegion(r *event.Reader, last *event.RegionID) event.RegionID {
	id := r.Region()
	if r.Err() == nil && id <= *last {
		r.Fail("region %d after %d", id, *last)
	}
	if r.Err() != nil {
		return 0 // an id that is none must not index a vector
	}
	*last = id
	return id
}

func readVersion(r *event.Reader) {
	if v := r.Uint8(); v != codecVersion {
		r.Fail("record version %d is not supported", v)
	}
}

const (
	entityShown = 1 << 0
	liveStamped = 1 << 0
	liveKeyed   = 1 << 1
	livePrinted = 1 << 2 // has a fingerprint
	liveLeftOut = 1 << 3 // value and headers are in the log only
	liveDeletes = 1 << 4 // of those: the value is null
	toldWon     = 1 << 0
	toldStale   = 1 << 1
)

// appendEntity appends an entity's value: u8 version (3 where the last events are known, else
// 2 if something is left out of a live value, else 1); u8 flags (1: something is
// shown); if so, its dot; cover as points; uvarint number of live values and each
// of them; in version 3 the last events as points; uvarint number of losers told and for
// each: dot, u8 flags (1: has a winner, 2: stale), and the winner: dot, 16 bytes id, u64
// stamp.
func appendEntity(b []byte, e *conflict.Entity) []byte {
	flags := byte(0)
	if e.Shown != (event.Dot{}) {
		flags |= entityShown
	}
	version := byte(codecVersion)
	switch {
	case e.Tracked:
		version = trackedVersion
	case slices.ContainsFunc(e.Live, func(l conflict.Live) bool { return l.Event.LeftOut }):
		version = entityVersion
	}
	b = append(b, version, flags)
	if flags&entityShown != 0 {
		b = event.AppendDot(b, e.Shown)
	}
	if b = appendState(b, &e.State); e.Tracked {
		b = appendPoints(b, &e.Latest)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Reported)))
	for _, t := range e.Reported {
		flags := byte(0)
		if t.Won != (conflict.Party{}) {
			flags |= toldWon
		}
		if t.Stale {
			flags |= toldStale
		}
		b = append(event.AppendDot(b, t.Lost), flags)
		if flags&toldWon != 0 {
			b = event.AppendDot(b, t.Won.At)
			b = append(b, t.Won.ID[:]...)
			b = t.Won.Stamp.Append(b)
		}
	}
	return b
}

func appendState(b []byte, s *conflict.State) []byte {
	b = appendPoints(b, &s.Cover)
	b = binary.AppendUvarint(b, uint64(len(s.Live)))
	for i := range s.Live {
		b = appendLive(b, &s.Live[i])
	}
	return b
}

// appendBase appends a base's value: u8 version; the frontier that it is of, as points; cover
// as points; uvarint number of live values and each of them.
func appendBase(b []byte, x *conflict.Base) []byte {
	return appendState(appendPoints(append(b, codecVersion), &x.Since), &x.State)
}

// parseBase is parseEntity of a base.
func parseBase(key, value []byte) (conflict.Base, error) {
	r := event.NewReader(value)
	readVersion(r)
	x := conflict.Base{Since: readPoints(r)}
	x.State = readState(r, key, entityVersion)
	if r.Err() == nil && x.Since.IsZero() {
		r.Fail("a base of no frontier")
	}
	if err := r.Close(); err != nil {
		return conflict.Base{}, fmt.Errorf("parse base record: %w", err)
	}
	return x, nil
}

// appendLive appends a live value: dot; u8 flags (1: stamped, 2: has an
// idempotency key, 4: has a fingerprint, 8: value and headers are left out, 16: of those,
// the value is null); i64 timestamp; if stamped: 16 bytes id,
// u16 incarnation, uvarint barrier, uvarint epoch, u64 stamp, context as in gg-c,
// u8 operation, 16 bytes key, 16 bytes fingerprint; unless they are left out, value (null
// tag), uvarint number of headers, each name length-prefixed and value like the value;
// uvarint number of copies and their dots.
func appendLive(b []byte, l *conflict.Live) []byte {
	ev := &l.Event
	flags := byte(0)
	if ev.Stamped {
		flags |= liveStamped
	}
	if !ev.Envelope.Key.IsZero() {
		flags |= liveKeyed
	}
	if !ev.Fingerprint.IsZero() {
		flags |= livePrinted
	}
	if ev.LeftOut {
		flags |= liveLeftOut
		if ev.Op == event.Delete {
			flags |= liveDeletes
		}
	}
	b = append(event.AppendDot(b, ev.At), flags)
	b = binary.BigEndian.AppendUint64(b, uint64(ev.Timestamp))
	if ev.Stamped {
		b = append(b, ev.ID[:]...)
		b = binary.BigEndian.AppendUint16(b, ev.Envelope.Incarnation)
		b = binary.AppendUvarint(b, uint64(ev.Barrier))
		b = binary.AppendUvarint(b, uint64(ev.Epoch))
		b = ev.Stamp.Append(b)
		b = event.AppendVector(b, &ev.Context)
		b = append(b, byte(ev.Op))
		if flags&liveKeyed != 0 {
			b = append(b, ev.Envelope.Key[:]...)
		}
		if flags&livePrinted != 0 {
			b = append(b, ev.Fingerprint[:]...)
		}
	}
	if ev.LeftOut {
		return appendDots(b, l.Copies)
	}
	b = event.AppendNullable(b, ev.Value)
	b = binary.AppendUvarint(b, uint64(len(ev.Headers)))
	for _, h := range ev.Headers {
		b = event.AppendNullable(event.AppendPrefixed(b, []byte(h.Key)), h.Value)
	}
	return appendDots(b, l.Copies)
}

func appendDots(b []byte, dots []event.Dot) []byte {
	b = binary.AppendUvarint(b, uint64(len(dots)))
	for _, d := range dots {
		b = event.AppendDot(b, d)
	}
	return b
}

// parseEntity reads an entity record; what it returns shares no memory with the
// value but the values and headers, so value must not change.
func parseEntity(key, value []byte) (conflict.Entity, error) {
	r := event.NewReader(value)
	var e conflict.Entity
	version := r.Uint8()
	if version < codecVersion || version > trackedVersion {
		r.Fail("record version %d is not supported", version)
	}
	if flags := r.Uint8(); flags&entityShown != 0 {
		e.Shown = event.ReadDot(r)
	}
	e.State = readState(r, key, version)
	if e.Tracked = version == trackedVersion; e.Tracked {
		e.Latest = readPoints(r)
	}
	for range r.UvarintMax(maxCount) {
		if r.Err() != nil {
			break
		}
		t := conflict.Reported{Lost: event.ReadDot(r)}
		flags := r.Uint8()
		t.Stale = flags&toldStale != 0
		if flags&toldWon != 0 {
			t.Won.At = event.ReadDot(r)
			copy(t.Won.ID[:], r.Bytes(len(t.Won.ID)))
			t.Won.Stamp = hlc.Stamp(r.Uint64())
		}
		e.Reported = append(e.Reported, t)
	}
	if err := r.Close(); err != nil {
		return conflict.Entity{}, fmt.Errorf("parse entity record: %w", err)
	}
	return e, nil
}

func readState(r *event.Reader, key []byte, version byte) (s conflict.State) {
	s.Cover = readPoints(r)
	for range r.UvarintMax(maxCount) {
		if r.Err() != nil {
			break
		}
		s.Live = append(s.Live, readLive(r, key, version))
	}
	return s
}

func readLive(r *event.Reader, key []byte, version byte) conflict.Live {
	ev := event.Event{At: event.ReadDot(r), Key: key}
	flags := r.Uint8()
	ev.Stamped = flags&liveStamped != 0
	ev.LeftOut = version >= entityVersion && flags&liveLeftOut != 0
	ev.Timestamp = int64(r.Uint64())
	ev.Region, ev.Envelope.Incarnation = ev.At.Region, ev.At.Incarnation
	if ev.Stamped {
		copy(ev.ID[:], r.Bytes(len(ev.ID)))
		ev.Envelope.Incarnation = r.Uint16()
		ev.Barrier = int64(r.UvarintMax(maxOffset))
		ev.Epoch = event.Epoch(r.Uvarint())
		ev.Stamp = hlc.Stamp(r.Uint64())
		ev.Context = event.ReadVector(r)
		ev.Op = event.Op(r.Uint8())
		if flags&liveKeyed != 0 {
			copy(ev.Envelope.Key[:], r.Bytes(len(ev.Envelope.Key)))
		}
		if flags&livePrinted != 0 {
			copy(ev.Fingerprint[:], r.Bytes(len(ev.Fingerprint)))
		}
	}
	if !ev.LeftOut {
		readValue(r, &ev)
	}
	if !ev.Stamped {
		ev.Stamp, ev.Op = hlc.FromMillis(ev.Timestamp), event.Put
		if ev.LeftOut && flags&liveDeletes != 0 || !ev.LeftOut && ev.Value == nil {
			ev.Op = event.Delete
		}
	}
	return conflict.Live{Event: ev, Copies: readDots(r)}
}

// readValue takes an event's value and headers.
func readValue(r *event.Reader, ev *event.Event) {
	ev.Value = r.Nullable(maxBytes)
	for range r.UvarintMax(maxCount) {
		if r.Err() != nil {
			break
		}
		h := event.Header{Key: string(r.Prefixed(maxBytes))}
		h.Value = r.Nullable(maxBytes)
		ev.Headers = append(ev.Headers, h)
	}
}

func readDots(r *event.Reader) (dots []event.Dot) {
	for range r.UvarintMax(maxCount) {
		if r.Err() != nil {
			break
		}
		dots = append(dots, event.ReadDot(r))
	}
	return dots
}

const (
	twinEmitted = 1 << 0
	twinOrphan  = 1 << 1
)

// appendTwin appends the value of a twin: u8 version; uvarint number of copies
// and for each: dot, u64 stamp, uvarint group, u8 flags (1: it was emitted, 2: it
// is an orphan).
func appendTwin(b []byte, t *conflict.Twin) []byte {
	b = binary.AppendUvarint(append(b, codecVersion), uint64(len(t.Copies)))
	for _, c := range t.Copies {
		b = c.Stamp.Append(event.AppendDot(b, c.At))
		b = binary.AppendUvarint(b, uint64(c.Group))
		flags := byte(0)
		if c.Emitted {
			flags |= twinEmitted
		}
		if c.Orphan {
			flags |= twinOrphan
		}
		b = append(b, flags)
	}
	return b
}

func parseTwin(k event.IdempotencyKey, value []byte) (conflict.Twin, error) {
	r := event.NewReader(value)
	t := conflict.Twin{Key: k}
	readVersion(r)
	for range r.UvarintMax(maxCount) {
		if r.Err() != nil {
			break
		}
		c := conflict.TwinCopy{At: event.ReadDot(r), Stamp: hlc.Stamp(r.Uint64())}
		c.Group = int(r.UvarintMax(maxGroup))
		flags := r.Uint8()
		c.Emitted, c.Orphan = flags&twinEmitted != 0, flags&twinOrphan != 0
		t.Copies = append(t.Copies, c)
	}
	if err := r.Close(); err != nil {
		return conflict.Twin{}, fmt.Errorf("parse twin record: %w", err)
	}
	return t, nil
}

const (
	orphanKeyed   = 1 << 0
	orphanInstead = 1 << 1
)

// appendOrphan appends the value of an orphan: u8 version; u8 flags (1: has an
// idempotency key, 2: another copy takes its place); uvarint epoch; 16 bytes
// id; u64 stamp; i64 timestamp; u8 operation; record key (null tag); the 16 bytes
// of the idempotency key; the dot of the other copy.
func appendOrphan(b []byte, o *conflict.Orphaned) []byte {
	flags := byte(0)
	if !o.Idempotency.IsZero() {
		flags |= orphanKeyed
	}
	if o.Instead != (event.Dot{}) {
		flags |= orphanInstead
	}
	b = binary.AppendUvarint(append(b, codecVersion, flags), uint64(o.Epoch))
	b = o.Stamp.Append(append(b, o.ID[:]...))
	b = binary.BigEndian.AppendUint64(b, uint64(o.Timestamp))
	b = event.AppendNullable(append(b, byte(o.Op)), o.Key)
	if flags&orphanKeyed != 0 {
		b = append(b, o.Idempotency[:]...)
	}
	if flags&orphanInstead != 0 {
		b = event.AppendDot(b, o.Instead)
	}
	return b
}

// parseOrphan reads an orphan record of a partition; what it returns shares the
// record key with the value.
func parseOrphan(key, value []byte, partition int32) (conflict.Orphaned, error) {
	k, r := event.NewReader(key), event.NewReader(value)
	if t := k.Uint8(); t != typeOrphan {
		k.Fail("state record type %d, want %d", t, typeOrphan)
	}
	o := conflict.Orphaned{At: readPlace(k, partition)}
	readVersion(r)
	flags := r.Uint8()
	o.Epoch = event.Epoch(r.Uvarint())
	copy(o.ID[:], r.Bytes(len(o.ID)))
	o.Stamp, o.Timestamp = hlc.Stamp(r.Uint64()), int64(r.Uint64())
	o.Op = event.Op(r.Uint8())
	o.Key = r.Nullable(maxBytes)
	if flags&orphanKeyed != 0 {
		copy(o.Idempotency[:], r.Bytes(len(o.Idempotency)))
	}
	if flags&orphanInstead != 0 {
		o.Instead = event.ReadDot(r)
	}
	for _, err := range []error{k.Close(), r.Close()} {
		if err != nil {
			return conflict.Orphaned{}, fmt.Errorf("parse orphan record: %w", err)
		}
	}
	return o, nil
}

// readPlace takes the dot that dotPart has written.
func readPlace(r *event.Reader, partition int32) event.Dot {
	d := event.Dot{Region: r.Region(), Incarnation: r.Uint16(), Partition: partition, Offset: int64(r.Uint64())}
	if d.Offset < 0 {
		r.Fail("offset %d", d.Offset)
	}
	return d
}

// appendCheckpoint appends the value of a checkpoint: u8 version; vector as
// points.
func appendCheckpoint(b []byte, v *event.Vector) []byte {
	return appendPoints(append(b, codecVersion), v)
}

func parseCheckpoint(key, value []byte) (Checkpoint, error) {
	k, r := event.NewReader(key), event.NewReader(value)
	if t := k.Uint8(); t != typeCheckpoint {
		k.Fail("state record type %d, want %d", t, typeCheckpoint)
	}
	c := Checkpoint{Offset: int64(k.Uint64())}
	if c.Offset < 0 {
		k.Fail("checkpoint at %d", c.Offset)
	}
	readVersion(r)
	c.Vector = readPoints(r)
	for _, err := range []error{k.Close(), r.Close()} {
		if err != nil {
			return Checkpoint{}, fmt.Errorf("parse checkpoint record: %w", err)
		}
	}
	return c, nil
}
