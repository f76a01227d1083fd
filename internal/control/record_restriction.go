package control

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// TypeRestriction is the type of a Restriction.
const TypeRestriction Type = 4

// restrictionType: links carry it. The follower keeps those that name the own
// region.
func restrictionType() recordType {
	return recordType{
		carried: func(key, value []byte) (Claim, error) {
			x, err := ParseRestriction(key, value)
			return Claim{Type: TypeRestriction, Topic: x.Topic, Origin: x.Origin, To: x.To}, err
		},
		apply: (*Follower).applyRestriction,
	}
}

// Restriction says that single records of a topic may be denied to a region: on
// that region the origin's offsets no longer tell what it has seen. It is never
// taken back.
type Restriction struct {
	Origin, To event.RegionID
	Topic      string
}

// AppendKey appends the record key: u8 type 4, u8 origin region, u8 region to which
// records may be denied, length-prefixed topic.
func (x Restriction) AppendKey(b []byte) []byte {
	return event.AppendPrefixed(append(b, byte(TypeRestriction), byte(x.Origin), byte(x.To)), []byte(x.Topic))
}

// AppendValue appends the record value: u8 version.
func (x Restriction) AppendValue(b []byte) []byte { return append(b, codecVersion) }

// ParseRestriction reads a restriction record.
func ParseRestriction(key, value []byte) (Restriction, error) {
	k := event.NewReader(key)
	if t := Type(k.Uint8()); t != TypeRestriction {
		k.Fail("control record type %d, want %d", t, TypeRestriction)
	}
	x := Restriction{Origin: k.Region(), To: k.Region(), Topic: readName(k)}
	if err := k.Close(); err != nil {
		return Restriction{}, fmt.Errorf("parse restriction key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	if err := r.Close(); err != nil {
		return Restriction{}, fmt.Errorf("parse restriction: %w", err)
	}
	return x, nil
}

// applyRestriction takes a committed record; the caller holds mu.
func (f *Follower) applyRestriction(_ event.RegionID, key, value []byte) error {
	x, err := ParseRestriction(key, value)
	if err == nil && x.To == f.cfg.Region {
		f.restricted[x.Topic] |= 1 << x.Origin
	}
	return err
}

// Restricted says of which origins (bit r: region r) single records of a topic
// may be denied to the own region, as far as control says so yet. What positions
// and runs say comes with the records that it is about.
func (f *Follower) Restricted(topic string) uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restricted[topic]
}
