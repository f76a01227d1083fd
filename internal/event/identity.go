package event

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// RegionID is a region's number, 1 to 15, never reused. 0 is no region.
type RegionID uint8

// MaxRegion is the highest region id there can be.
const MaxRegion RegionID = 15

// Valid tells whether r is a region.
func (r RegionID) Valid() bool { return r >= 1 && r <= MaxRegion }

// RegionNames maps region ids to names and back; the topology of a deployment does.
type RegionNames interface {
	Name(RegionID) string                  // "" for an unknown id
	ID(name string) (id RegionID, ok bool) // ok is false for an unknown name
}

// TopicID is a topic's id in its Kafka (KIP-516): another for each topic that was
// ever created under a name.
type TopicID = [16]byte

// ID is an event id: a UUIDv7 made when the write was accepted. The zero ID
// belongs to a record that came without a gateway.
type ID [16]byte

// NewID makes a fresh event id; it fails only when the system has no randomness.
func NewID() (ID, error) {
	u, err := uuid.NewV7()
	if err != nil {
		return ID{}, fmt.Errorf("make event id: %w", err)
	}
	return ID(u), nil
}

// IsZero tells whether the event came without a gateway.
func (id ID) IsZero() bool { return id == ID{} }

// String is the usual hyphenated UUID.
func (id ID) String() string { return string(id.Append(make([]byte, 0, 36))) }

// Append appends what String gives.
func (id ID) Append(b []byte) []byte {
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id[[...]int{0, 4, 6, 8, 10}[i]:end])
	}
	return b
}

// Epoch is the ownership epoch of a unit: k·16 + the id of the region whose
// gateway minted it, so that two regions never mint the same one.
type Epoch uint64

// FirstEpoch is the epoch that region r's units carry before any was claimed.
func FirstEpoch(r RegionID) Epoch { return 16 + Epoch(r) }

// Dot is the identity of an event: where its record lies in the log of the
// region that accepted it.
type Dot struct {
	Region      RegionID
	Incarnation uint16 // of the partition's log in its origin region
	Partition   int32
	Offset      int64
}

// Format is the text form `<region>/<incarnation>/<partition>/<offset>`.
func (d Dot) Format(names RegionNames) string { return string(d.AppendFormat(nil, names)) }

// AppendFormat appends what Format gives.
func (d Dot) AppendFormat(b []byte, names RegionNames) []byte {
	if name := names.Name(d.Region); name != "" {
		b = append(b, name...)
	} else {
		b = strconv.AppendUint(b, uint64(d.Region), 10)
	}
	b = strconv.AppendUint(append(b, '/'), uint64(d.Incarnation), 10)
	b = strconv.AppendInt(append(b, '/'), int64(d.Partition), 10)
	return strconv.AppendInt(append(b, '/'), d.Offset, 10)
}

// ParseDot is the inverse of Format.
func ParseDot(text string, names RegionNames) (Dot, error) {
	part := strings.Split(text, "/")
	if len(part) != 4 {
		return Dot{}, fmt.Errorf("parse dot %q: want <region>/<incarnation>/<partition>/<offset>", text)
	}
	id, ok := names.ID(part[0])
	if !ok {
		return Dot{}, fmt.Errorf("parse dot %q: region %q is unknown", text, part[0])
	}
	inc, err1 := strconv.ParseUint(part[1], 10, 16)
	p, err2 := strconv.ParseUint(part[2], 10, 31)
	off, err3 := strconv.ParseUint(part[3], 10, 63)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return Dot{}, fmt.Errorf("parse dot %q: %w", text, err)
		}
	}
	return Dot{Region: id, Incarnation: uint16(inc), Partition: int32(p), Offset: int64(off)}, nil
}

// AppendDot appends the wire form of header gg-d: region u8, incarnation u16,
// partition and offset as uvarints.
func AppendDot(b []byte, d Dot) []byte {
	b = append(b, byte(d.Region))
	b = binary.BigEndian.AppendUint16(b, d.Incarnation)
	b = binary.AppendUvarint(b, uint64(d.Partition))
	return binary.AppendUvarint(b, uint64(d.Offset))
}

// ReadDot takes a dot's wire form from r.
func ReadDot(r *Reader) Dot {
	return Dot{
		Region:      r.Region(),
		Incarnation: r.Uint16(),
		Partition:   int32(r.UvarintMax(1<<31 - 1)),
		Offset:      int64(r.UvarintMax(1<<63 - 1)),
	}
}
