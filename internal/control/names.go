package control

import (
	"encoding/binary"

	"github.com/geogate/geogate/internal/event"
)

// Names of the internal topics.
const (
	TopicControl      = "_geogate.control"      // own facts: 1 partition, compacted
	TopicTopics       = "_geogate.topics"       // registry: 1 partition, compacted
	TopicIncarnations = "_geogate.incarnations" // 1 partition, compacted
	TopicConflicts    = "_geogate.conflicts"    // 16 partitions, cleanup by retention
	TopicAudit        = "_geogate.audit"        // residency decisions: 16 partitions, kept
	InternalPrefix    = "_geogate."             // of every internal topic; never replicated as data
)

// LinkPartitions is the number of partitions (slots) of positions and runs.
const LinkPartitions = 32

// AuditPartitions is the number of partitions of the audit.
const AuditPartitions = 16

// ControlFrom is the topic with another region's control facts.
func ControlFrom(from string) string { return TopicControl + "." + from }

// PositionsFrom is the topic with the positions of the link from a region.
func PositionsFrom(from string) string { return InternalPrefix + "positions." + from }

// RunsFrom is the topic with the runs of the link from a region.
func RunsFrom(from string) string { return InternalPrefix + "runs." + from }

// StateOf is the state topic of a local topic.
func StateOf(topic string) string { return InternalPrefix + "state." + topic }

// TopicID is a Kafka topic id (KIP-516).
type TopicID = [16]byte

// Type is the first byte of every key in a control topic. The list is closed: a
// link carries only types it knows.
type Type uint8

// The types of control records.
const (
	TypeBarrier     Type = 1
	TypeProgress    Type = 2
	TypeIncarnation Type = 3
	TypeRestriction Type = 4
)

// TypeOf tells a key's type; ok is false for a type that this build does not
// know, which a follower passes over and a link does not carry.
func TypeOf(key []byte) (t Type, ok bool) {
	if len(key) == 0 {
		return 0, false
	}
	t = Type(key[0])
	return t, t >= TypeBarrier && t <= TypeRestriction
}

const (
	codecVersion = 1
	maxOffset    = 1<<63 - 1
	maxPartition = 1<<31 - 1
	maxName      = 249 // of a topic, in Kafka
	maxText      = 1 << 10
)

// partition is what most keys name.
type partition struct {
	topic TopicID
	num   int32
}

func appendPartition(b []byte, t Type, topic TopicID, num int32) []byte {
	b = append(b, byte(t))
	b = append(b, topic[:]...)
	return binary.AppendUvarint(b, uint64(num))
}

func readPartition(r *event.Reader, want Type) (p partition) {
	if got := Type(r.Uint8()); got != want {
		r.Fail("control record type %d, want %d", got, want)
	}
	copy(p.topic[:], r.Bytes(len(p.topic)))
	p.num = int32(r.UvarintMax(maxPartition))
	return p
}

func readVersion(r *event.Reader) {
	if v := r.Uint8(); v != codecVersion {
		r.Fail("record version %d is not supported", v)
	}
}

func appendPoint(b []byte, p event.Point) []byte {
	b = binary.AppendUvarint(b, uint64(p.Incarnation))
	return binary.AppendUvarint(b, uint64(p.Next))
}

func readPoint(r *event.Reader) event.Point {
	return event.Point{Incarnation: uint16(r.UvarintMax(1<<16 - 1)), Next: int64(r.UvarintMax(maxOffset))}
}

func readName(r *event.Reader) string {
	b := r.Prefixed(maxName)
	if r.Err() == nil && len(b) == 0 {
		r.Fail("empty topic name")
	}
	return string(b)
}
