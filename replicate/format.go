package replicate

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// GenerationKey is the key of the generation record, in partition 0 of the
// positions topic.
const GenerationKey = control.GenerationKey

const (
	codecVersion = 1
	incidentKey  = control.IncidentKey
	maxShards    = control.LinkPartitions // a shard without a slot would be idle
	maxText      = 1 << 10
)

// Generation says under which transactional ids a link runs. It is written only
// in transactions of the id geogate.link.<from>.<to>.generation: first with
// Fenced false; then every id of the previous generation is initialised; then
// with Fenced true. No shard runs before that.
type Generation struct {
	Number         uint64
	Shards         int
	Previous       uint64 // number of the generation before, 0 none
	PreviousShards int
	Cluster        string // id of the source cluster
	Fenced         bool
}

// Append appends the record value: u8 version, uvarint number, shards, previous
// number, previous shards, length-prefixed cluster id, u8 fenced.
func (g Generation) Append(b []byte) []byte {
	b = append(b, codecVersion)
	b = binary.AppendUvarint(b, g.Number)
	b = binary.AppendUvarint(b, uint64(g.Shards))
	b = binary.AppendUvarint(b, g.Previous)
	b = binary.AppendUvarint(b, uint64(g.PreviousShards))
	b = event.AppendPrefixed(b, []byte(g.Cluster))
	if g.Fenced {
		return append(b, 1)
	}
	return append(b, 0)
}

// ParseGeneration is the inverse of Append.
func ParseGeneration(value []byte) (Generation, error) {
	r := event.NewReader(value)
	if v := r.Uint8(); v != codecVersion {
		r.Fail("generation version %d is not supported", v)
	}
	g := Generation{Number: r.Uvarint(), Shards: int(r.UvarintMax(maxShards)), Previous: r.Uvarint(), PreviousShards: int(r.UvarintMax(maxShards))}
	g.Cluster = string(r.Prefixed(maxText))
	switch fenced := r.Uint8(); fenced {
	case 0, 1:
		g.Fenced = fenced == 1
	default:
		r.Fail("fenced %d", fenced)
	}
	if r.Err() == nil && (g.Number == 0 || g.Shards == 0) {
		r.Fail("generation %d with %d shards", g.Number, g.Shards)
	}
	if err := r.Close(); err != nil {
		return Generation{}, fmt.Errorf("parse generation: %w", err)
	}
	return g, nil
}

// Kind is what happened to a partition.
type Kind uint8

// The kinds of incidents. Numbers are fixed.
const (
	RetentionGap    Kind = 1 // the source deleted records before they were copied
	SourceTruncated Kind = 2 // the source's log lost records that were copied
	SourceRecreated Kind = 3 // the source topic is another than it was
	TargetTruncated Kind = 4 // the remote topic's log lost records
	TargetRecreated Kind = 5 // the remote topic is another than it was, or gone
	ForeignWriter   Kind = 6 // somebody else wrote into the remote topic
	Refused         Kind = 7 // the target refuses a batch
	Corrupt         Kind = 8 // a batch of the source cannot be read
	OrphansGone     Kind = 9 // the source deleted offsets past a cut before the link passed over them
)

// String is the kind's name in logs and status.
func (k Kind) String() string {
	names := [...]string{
		RetentionGap: "retention gap at the source", SourceTruncated: "source log truncated", SourceRecreated: "source topic recreated",
		TargetTruncated: "remote log truncated", TargetRecreated: "remote topic recreated", ForeignWriter: "foreign writer in the remote topic",
		Refused: "batch refused by the target", Corrupt: "unreadable batch at the source",
		OrphansGone: "orphans deleted at the source",
	}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("incident-%d", uint8(k))
}

// Parks tells whether the partition is held back until somebody decides. A
// foreign writer's records are harmless to what the link itself copies, and
// orphans were not to be copied.
func (k Kind) Parks() bool { return k != ForeignWriter && k != OrphansGone }

// mayEnd tells whether a later look can end it: a broker that has just restarted may not
// know yet how far its log reaches, and somebody may accept a gap.
func (k Kind) mayEnd() bool { return k == SourceTruncated || k == RetentionGap }

// Incident is something that a link found and must not pass over in silence. It
// is recorded at the target, in the positions topic, under its own key, so that
// finding it again after a restart changes nothing.
type Incident struct {
	Kind        Kind
	Source      event.TopicID // of the source topic
	Topic       string        // its name
	Partition   int32
	From, Until int64     // offsets concerned: at the target for target kinds, else at the source
	At          time.Time // when it was found first
	Detail      string
}

// AppendKey appends the record key: "incident", source topic id, u32 partition,
// u8 kind, u64 from.
func (x Incident) AppendKey(b []byte) []byte {
	b = offsets.AppendPositionKey(append(b, incidentKey...), x.Source, x.Partition)
	return binary.BigEndian.AppendUint64(append(b, byte(x.Kind)), uint64(x.From))
}

// AppendValue appends the record value: u8 version, length-prefixed topic name,
// uvarint until, u64 Unix milliseconds, length-prefixed detail.
func (x Incident) AppendValue(b []byte) []byte {
	b = event.AppendPrefixed(append(b, codecVersion), []byte(x.Topic))
	b = binary.AppendUvarint(b, uint64(x.Until))
	b = binary.BigEndian.AppendUint64(b, uint64(x.At.UnixMilli()))
	return event.AppendPrefixed(b, []byte(x.Detail[:min(len(x.Detail), maxText)]))
}

// ParseIncident reads an incident record. ok is false for a record of another
// kind, which is no error: positions and the generation share the topic.
func ParseIncident(key, value []byte) (x Incident, ok bool, err error) {
	const keySize = len(incidentKey) + 16 + 4 + 1 + 8
	if len(key) != keySize || string(key[:len(incidentKey)]) != incidentKey {
		return Incident{}, false, nil
	}
	k := event.NewReader(key[len(incidentKey):])
	copy(x.Source[:], k.Bytes(16))
	x.Partition = int32(k.Uint32())
	x.Kind = Kind(k.Uint8())
	x.From = int64(k.Uint64())
	r := event.NewReader(value)
	if v := r.Uint8(); v != codecVersion {
		r.Fail("incident version %d is not supported", v)
	}
	x.Topic = string(r.Prefixed(maxText))
	x.Until = int64(r.UvarintMax(1<<63 - 1))
	x.At = time.UnixMilli(int64(r.Uint64())).UTC()
	x.Detail = string(r.Prefixed(maxText))
	if err := r.Close(); err != nil {
		return Incident{}, false, fmt.Errorf("parse incident: %w", err)
	}
	return x, true, nil
}

// ShardID is the transactional id of a shard.
func ShardID(from, to string, generation uint64, shard int) string {
	return fmt.Sprintf("geogate.link.%s.%s.%d.%d", from, to, generation, shard)
}

// GenerationID is the transactional id under which the generation record is
// written.
func GenerationID(from, to string) string { return "geogate.link." + from + "." + to + ".generation" }
