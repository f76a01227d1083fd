package conflict

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// Reason says why a conflict record was written.
type Reason string

// The reasons of conflict records.
const (
	Concurrent Reason = "concurrent"             // a live write lost to one that had not seen it
	Duplicate  Reason = "cross-region-duplicate" // the same write, accepted again elsewhere
	KeyReuse   Reason = "key-reuse"              // another write under an idempotency key in use
	// Revoked corrects an earlier record about Lost or Won: the outcome that it
	// names replaces the one told before.
	Revoked Reason = "revoked"
)

// Party is one of the two writes of a conflict record.
type Party struct {
	At    event.Dot
	ID    event.ID // zero: came without a gateway
	Stamp hlc.Stamp
}

// Conflict is one record of the conflict feed.
type Conflict struct {
	Key    []byte // of the entity that lost; nil is null
	Reason Reason
	Rule   event.Rule // the topic's policy; 0 on events topics, where stamps decide
	Lost   Party
	Won    Party
}

func partyOf(ev *event.Event) Party { return Party{At: ev.At, ID: ev.ID, Stamp: ev.Stamp} }

func (c Copy) party() Party { return Party{At: c.At, ID: c.ID, Stamp: c.Stamp} }

// Merged is one record of a merged topic.
type Merged struct {
	// Event is the record; At is its place in its origin's log. Where nothing of
	// an entity is left after a correction it is a tombstone that has only a key
	// and the place and timestamp of what was shown before. It is not to be changed: most
	// often it is the folded item's own.
	Event    *event.Event
	Siblings int        // live values beside the winner
	Rule     event.Rule // 0 on events topics
	// Corrects: replaces an emission that a later fold found wrong. On an events topic
	// it takes the record of the event at Event.At back: a retraction.
	Corrects bool
}

// Headers are the record's: the producer's, the envelope, gg-d, and on entity
// topics gg-m.
func (m *Merged) Headers() []event.Header {
	hs := make([]event.Header, len(m.Event.Headers), len(m.Event.Headers)+14)
	copy(hs, m.Event.Headers)
	hs, _ = m.AppendOwnHeaders(hs, nil)
	return hs
}

// AppendOwnHeaders appends those of the headers that are not the producer's, and their
// values to mem, which the headers then share.
func (m *Merged) AppendOwnHeaders(hs []event.Header, mem []byte) ([]event.Header, []byte) {
	if m.Event.Stamped {
		hs, mem = m.Event.AppendStamped(hs, mem)
	}
	hs, mem = event.AppendDotHeader(hs, mem, m.Event.At)
	if m.Rule == 0 && !m.Corrects {
		return hs, mem
	}
	x := event.Merged{Siblings: uint64(m.Siblings), Rule: m.Rule}
	if m.Corrects {
		x.Flags |= event.FlagCorrects
	}
	return event.AppendMergedHeader(hs, mem, x)
}
