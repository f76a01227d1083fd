package replicate

import (
	"errors"

	"github.com/geogate/geogate/internal/offsets"
)

// errUnplaced is why a partition waits whose only position record cannot be read.
var errUnplaced = errors.New("its position at the target cannot be read, and copying it from the start would copy records twice: " +
	"write a tombstone under the position's key to have that done all the same")

// positionRecords are what the records of a shard's slots say so far.
type positionRecords struct {
	last      map[posKey]PositionRecord
	incidents []Incident
}

// take takes a record of the positions topic, in the order of its slot. An error says that
// the record cannot be used; it stops no partition but the one that it names, and that one
// only if nothing better is known of it.
func (p *positionRecords) take(key, value []byte) error {
	if string(key) == GenerationKey {
		return nil
	}
	x, incident, err := ParseIncident(key, value)
	switch {
	case err != nil:
		return err
	case incident && value != nil:
		p.incidents = append(p.incidents, x)
		return nil
	case incident:
		return nil
	}
	var k posKey
	if k.id, k.num, err = offsets.ParsePositionKey(key); err != nil {
		return err
	}
	if value == nil { // it proves nothing of a position that is known
		if p.last[k].Malformed {
			delete(p.last, k)
		}
		return nil
	}
	pos, err := offsets.ParsePosition(value)
	if _, known := p.last[k]; err == nil {
		p.last[k] = PositionRecord{Source: k.id, Number: k.num, Position: pos}
	} else if !known {
		// Compaction may have kept this record and dropped the link's own.
		p.last[k] = PositionRecord{Source: k.id, Number: k.num, Malformed: true}
	}
	return err
}
