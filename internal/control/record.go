package control

import (
	"errors"

	"github.com/geogate/geogate/internal/event"
)

// Type is the first byte of every key in a control topic. The list is closed: a
// link carries only types it knows.
type Type uint8

// recordType is what there is to know of one type of control record. Each type has
// a file of its own, record_NAME.go: its number, this registration, its codec, and
// what the follower keeps and answers.
type recordType struct {
	// carried parses a record that links carry to other regions and says what it
	// claims. Nil: links do not carry the type.
	carried func(key, value []byte) (Claim, error)
	// apply gives the follower a committed record that a region wrote. Nil: nobody
	// reads committed ones. The caller holds the follower's mu.
	apply func(f *Follower, from event.RegionID, key, value []byte) error
	// applyUncommitted gives the follower a record of the own region as soon as it
	// lies in the log, whatever becomes of its transaction. Nil: nobody reads those.
	// The caller holds the follower's mu.
	applyUncommitted func(f *Follower, key, value []byte) error
}

// registered is the one list of types of control records: a new type is added here.
func registered(t Type) (recordType, bool) {
	switch t {
	case TypeBarrier:
		return barrierType(), true
	case TypeProgress:
		return progressType(), true
	case TypeIncarnation:
		return incarnationType(), true
	case TypeRestriction:
		return restrictionType(), true
	case TypeSettings:
		return settingsType(), true
	case TypeIncident:
		return incidentType(), true
	case TypeAcceptance:
		return acceptanceType(), true
	case TypeJudged:
		return judgedType(), true
	}
	return recordType{}, false
}

// TypeOf is a key's type; ok is false for a type that this build does not know,
// which a follower passes over and a link does not carry.
func TypeOf(key []byte) (t Type, ok bool) {
	if len(key) == 0 {
		return 0, false
	}
	t = Type(key[0])
	_, ok = registered(t)
	return t, ok
}

var errNotCarried = errors.New("control: links do not carry the record")

// Claim is what a control record that a link may carry says it is about. Whoever
// can write to the control topic can claim anything, so the link compares it with
// what it knows itself before the record leaves the region.
type Claim struct {
	Type  Type
	Topic string // "" for a type that is about no topic
	// Origin and To are the regions that the record names; 0 where its type names
	// none.
	Origin, To event.RegionID
	// ID and Partition are of the topic in the origin's cluster, and 0 for a type
	// that is about a whole topic.
	ID        event.TopicID
	Partition int32
}

// ParseClaim reads a control record that a link is about to carry to another
// region. An error says that the record stays: its type is unknown or none that
// links carry, or it is not of the type's form to the last byte.
func ParseClaim(key, value []byte) (Claim, error) {
	t, _ := TypeOf(key)
	if rt, ok := registered(t); ok && rt.carried != nil {
		return rt.carried(key, value)
	}
	return Claim{}, errNotCarried
}
