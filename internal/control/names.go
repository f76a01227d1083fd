package control

import (
	"encoding/binary"

	"github.com/geogate/geogate/internal/event"
)

// InternalPrefix begins the name of every topic of geogate's own. Such a topic is
// never replicated as data and never written by producers.
const InternalPrefix = "_geogate."

// The topics of geogate's own that exist once in a region.
const (
	TopicControl      = InternalPrefix + "control"      // this region's records for the others: 1 partition, compacted
	TopicTopics       = InternalPrefix + "topics"       // registry of remote and derived topics: 1 partition, compacted
	TopicIncarnations = InternalPrefix + "incarnations" // incarnations of origin partitions: 1 partition, compacted
	TopicConflicts    = InternalPrefix + "conflicts"    // conflict feed: cleanup by retention
	TopicAudit        = InternalPrefix + "audit"        // residency decisions: kept
)

// MaxTopicName is the longest topic name that Kafka accepts, in characters.
const MaxTopicName = 249

const (
	// LinkPartitions is the number of partitions (slots) of a positions and of a
	// runs topic: the finest division of a link's work.
	LinkPartitions = 32
	// ConflictPartitions is the number of partitions of the conflict feed.
	ConflictPartitions = 16
	// AuditPartitions is the number of partitions of the audit.
	AuditPartitions = 16
)

// ControlFrom is the copy of a region's control topic in another region.
func ControlFrom(from string) string { return TopicControl + "." + from }

// PositionsFrom is where the link from a region keeps its positions; it lies in
// the link's target.
func PositionsFrom(from string) string { return InternalPrefix + "positions." + from }

// RunsFrom is where the link from a region keeps its runs; it lies in the link's
// target.
func RunsFrom(from string) string { return InternalPrefix + "runs." + from }

// StateOf is the topic with the folded state of a local topic.
func StateOf(topic string) string { return InternalPrefix + "state." + topic }

const (
	codecVersion = 1
	maxOffset    = 1<<63 - 1
	maxPartition = 1<<31 - 1
	maxText      = 1 << 10
)

// partition is what most keys name.
type partition struct {
	topic event.TopicID
	num   int32
}

func appendPartition(b []byte, t Type, topic event.TopicID, num int32) []byte {
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
	b := r.Prefixed(MaxTopicName)
	if r.Err() == nil && len(b) == 0 {
		r.Fail("empty topic name")
	}
	return string(b)
}
