// Package offsets maps the offsets of a remote topic's partition exactly to the
// offsets of its source and back.
//
// A link writes runs: stretches of records whose offsets differ by one constant
// between source and target. Runs are never merged over a source marker, so all
// records of a run have the same last barrier before them. A target offset that lies in
// no run, below what the link says it has described, belongs to a record that the
// link did not write.
//
// Byte layouts: docs/format/link.md.
package offsets

import (
	"encoding/binary"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// NoBarrier says that no barrier is known before a place.
const NoBarrier int64 = -1

// Values of version 2 are those of version 1 from a restricted origin.
const (
	codecVersion      = 1
	restrictedVersion = 2
)

func version(restricted bool) byte {
	if restricted {
		return restrictedVersion
	}
	return codecVersion
}

func readVersion(r *event.Reader, what string) (restricted bool) {
	v := r.Uint8()
	if v != codecVersion && v != restrictedVersion {
		r.Fail("%s version %d is not supported", what, v)
	}
	return v == restrictedVersion
}

// MaxBlockRuns is how many runs are packed into one record at most: so many that a run
// costs a few bytes, so few that a look-up opens little.
const MaxBlockRuns = 1 << 12

// maxRuns bounds what one encoded block may claim to hold.
const maxRuns = 1 << 16

// Run is a stretch of records copied with one constant offset difference.
//
// Invariant: Count > 0; Barriers rise strictly and each lies below Source;
// Barrier is the last of them, or, when there are none, that of the run before.
type Run struct {
	Target      int64   // first offset in the remote partition
	Source      int64   // first offset in the source partition
	Count       int64   // records (and offsets: a run has no holes)
	Incarnation uint16  // of the source partition
	Barrier     int64   // last barrier below Source, or NoBarrier
	Barriers    []int64 // the barriers between the end of the run before and Source
	// Restricted: single records of the topic may have been denied to the target's
	// region, so that having come to Source says nothing of what lies before.
	Restricted bool
}

// TargetEnd is the offset after the run's last in the remote partition.
func (r Run) TargetEnd() int64 { return r.Target + r.Count }

// SourceEnd is the offset after the run's last in the source partition.
func (r Run) SourceEnd() int64 { return r.Source + r.Count }

func (r Run) same(o Run) bool {
	return r.Target == o.Target && r.Source == o.Source && r.Count == o.Count &&
		r.Incarnation == o.Incarnation && r.Barrier == o.Barrier
}

// Follows tells whether r may come right after a run in one block: a block is of one
// incarnation and all or none of it restricted, and in it a run without barriers of its own
// takes over the barrier of the run before.
func (r Run) Follows(before Run) bool {
	return r.Incarnation == before.Incarnation && r.Restricted == before.Restricted && r.Source >= before.SourceEnd() &&
		(len(r.Barriers) > 0 && r.Barriers[0] >= before.SourceEnd() || len(r.Barriers) == 0 && r.Barrier == before.Barrier)
}

// AppendKey appends the record key of a block of runs: target topic id, u32
// partition, u64 first target offset. Keys of one partition sort by offset.
func AppendKey(b []byte, topic event.TopicID, partition int32, firstTarget int64) []byte {
	return binary.BigEndian.AppendUint64(AppendPositionKey(b, topic, partition), uint64(firstTarget))
}

// ParseKey is the inverse of AppendKey.
func ParseKey(key []byte) (topic event.TopicID, partition int32, firstTarget int64, err error) {
	r := event.NewReader(key)
	topic, partition = readPartition(r)
	first := r.Uint64()
	if first > 1<<63-1 {
		r.Fail("offset %d", first)
	}
	if err := r.Close(); err != nil {
		return event.TopicID{}, 0, 0, fmt.Errorf("parse runs key: %w", err)
	}
	return topic, partition, int64(first), nil
}

// AppendRuns appends the value of a block: u8 version (2: restricted), u16 incarnation, uvarint
// source offset of the first run, uvarint barrier before it + 1 (0: none),
// uvarint number of runs, then for each: uvarint target gap and source gap to the
// end of the run before (both 0 for the first), uvarint count, uvarint number of
// barriers, and these as uvarint distances: the first from the source end of the
// run before (for the first run from offset 0), each other from the one before.
//
// The runs must be in order, of one incarnation and all or none restricted; they
// must not be empty.
func AppendRuns(b []byte, runs []Run) []byte {
	first := runs[0]
	b = append(b, version(first.Restricted))
	b = binary.BigEndian.AppendUint16(b, first.Incarnation)
	b = binary.AppendUvarint(b, uint64(first.Source))
	b = binary.AppendUvarint(b, uint64(first.Barrier+1))
	b = binary.AppendUvarint(b, uint64(len(runs)))
	target, source, from := first.Target, first.Source, int64(0)
	for _, r := range runs {
		b = binary.AppendUvarint(b, uint64(r.Target-target))
		b = binary.AppendUvarint(b, uint64(r.Source-source))
		b = binary.AppendUvarint(b, uint64(r.Count))
		b = binary.AppendUvarint(b, uint64(len(r.Barriers)))
		for _, at := range r.Barriers {
			b = binary.AppendUvarint(b, uint64(at-from))
			from = at
		}
		target, source, from = r.TargetEnd(), r.SourceEnd(), r.SourceEnd()
	}
	return b
}

// parseBegin reads where the first run of a block begins in the source's log.
func parseBegin(value []byte) (place, error) {
	r := event.NewReader(value)
	readVersion(r, "runs")
	p := place{r.Uint16(), readOffset(r)}
	return p, r.Err()
}

// ParseRuns is the inverse of AppendRuns for a block whose key has firstTarget.
func ParseRuns(firstTarget int64, value []byte) ([]Run, error) {
	r := event.NewReader(value)
	restricted := readVersion(r, "runs")
	inc := r.Uint16()
	source := readOffset(r)
	barrier := readOffset(r) - 1
	n := r.UvarintMax(maxRuns)
	if r.Err() == nil && n == 0 {
		r.Fail("no runs in a block")
	}
	runs := make([]Run, 0, min(n, uint64(r.Len()/4+1)))
	target, from := firstTarget, int64(0)
	for i := uint64(0); i < n && r.Err() == nil; i++ {
		run := Run{Incarnation: inc, Restricted: restricted}
		run.Target = readSum(r, target)
		run.Source = readSum(r, source)
		run.Count = readOffset(r)
		for range r.UvarintMax(uint64(r.Len())) {
			from = readSum(r, from)
			run.Barriers = append(run.Barriers, from)
			barrier = from
		}
		run.Barrier = barrier
		if r.Err() == nil && (run.Count == 0 || run.Barrier >= run.Source || run.TargetEnd() < 0 || run.SourceEnd() < 0) {
			r.Fail("run %+v is not possible", run)
		}
		target, source, from = run.TargetEnd(), run.SourceEnd(), run.SourceEnd()
		runs = append(runs, run)
	}
	if err := r.Close(); err != nil {
		return nil, fmt.Errorf("parse runs: %w", err)
	}
	return runs, nil
}

// Position is how far a link has come with one source partition.
type Position struct {
	Incarnation   uint16 // of the source partition
	SourceCovered int64  // everything below is copied, denied, a marker or a hole
	SourceEpoch   int32  // leader epoch of the last batch read, -1 unknown
	Barrier       int64  // last barrier below SourceCovered, or NoBarrier
	Target        event.TopicID
	TargetCovered int64 // everything below in the remote partition is described by runs
	TargetEpoch   int32 // leader epoch of the target partition, -1 unknown
	Restricted    bool  // single records may have been denied; it stays so
}

// AppendPositionKey appends the record key of a position: topic id, u32
// partition. (Positions are keyed by the source topic's id.)
func AppendPositionKey(b []byte, topic event.TopicID, partition int32) []byte {
	b = append(b, topic[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(partition))
}

// ParsePositionKey is the inverse of AppendPositionKey.
func ParsePositionKey(key []byte) (topic event.TopicID, partition int32, err error) {
	r := event.NewReader(key)
	topic, partition = readPartition(r)
	if err := r.Close(); err != nil {
		return event.TopicID{}, 0, fmt.Errorf("parse position key: %w", err)
	}
	return topic, partition, nil
}

// Append appends the value of a position record: u8 version (2: restricted), u16 incarnation,
// uvarint source-covered, uvarint source epoch + 1, uvarint barrier + 1, target
// topic id, uvarint target-covered, uvarint target epoch + 1.
func (p Position) Append(b []byte) []byte {
	b = append(b, version(p.Restricted))
	b = binary.BigEndian.AppendUint16(b, p.Incarnation)
	b = binary.AppendUvarint(b, uint64(p.SourceCovered))
	b = binary.AppendUvarint(b, uint64(int64(p.SourceEpoch)+1))
	b = binary.AppendUvarint(b, uint64(p.Barrier+1))
	b = append(b, p.Target[:]...)
	b = binary.AppendUvarint(b, uint64(p.TargetCovered))
	return binary.AppendUvarint(b, uint64(int64(p.TargetEpoch)+1))
}

// ParsePosition is the inverse of Append.
func ParsePosition(value []byte) (Position, error) {
	r := event.NewReader(value)
	p := Position{
		Restricted:    readVersion(r, "position"),
		Incarnation:   r.Uint16(),
		SourceCovered: readOffset(r),
		SourceEpoch:   readEpoch(r),
		Barrier:       readOffset(r) - 1,
	}
	copy(p.Target[:], r.Bytes(len(p.Target)))
	p.TargetCovered = readOffset(r)
	p.TargetEpoch = readEpoch(r)
	if err := r.Close(); err != nil {
		return Position{}, fmt.Errorf("parse position: %w", err)
	}
	return p, nil
}

func readPartition(r *event.Reader) (topic event.TopicID, partition int32) {
	copy(topic[:], r.Bytes(len(topic)))
	p := r.Uint32()
	if p > 1<<31-1 {
		r.Fail("partition %d", p)
	}
	return topic, int32(p)
}

func readOffset(r *event.Reader) int64 { return int64(r.UvarintMax(1<<63 - 1)) }

func readEpoch(r *event.Reader) int32 { return int32(int64(r.UvarintMax(1<<31)) - 1) }

func readSum(r *event.Reader, base int64) int64 {
	d := readOffset(r)
	if base+d < base {
		r.Fail("offset %d + %d", base, d)
		return base
	}
	return base + d
}
