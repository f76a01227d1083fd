package event

import "github.com/geogate/geogate/internal/hlc"

// Stamp is hlc.Stamp, for packages that carry stamps but have no clock.
type Stamp = hlc.Stamp

// Copy is one accepted record of an idempotency key, as an index keeps it: what
// the answer to a retry is computed from. The same request retried in another
// region makes another copy there (a twin); an index keeps all of them, because
// which one stands can change when an earlier one arrives or one is revoked.
type Copy struct {
	At          Dot
	ID          ID
	Stamp       Stamp
	Key         IdempotencyKey
	Fingerprint Fingerprint // zero: left out by a residency action
	Epoch       Epoch
	Context     Vector
	Timestamp   int64  // record timestamp, Unix milliseconds
	EntityKey   []byte // record key; nil is null
	Void        bool   // fenced: lies after a newer barrier, so it frees its key
}

// CopyOf is the index's copy of a keyed event. It shares the event's record key.
func CopyOf(ev *Event, void bool) Copy {
	return Copy{
		At: ev.At, ID: ev.ID, Stamp: ev.Stamp, Key: ev.Envelope.Key, Fingerprint: ev.Fingerprint,
		Epoch: ev.Epoch, Context: ev.Context, Timestamp: ev.Timestamp, EntityKey: ev.Key, Void: void,
	}
}

// Order is the copy's place in the order of writes.
func (c *Copy) Order() Order { return Order{c.Stamp, c.At, c.ID} }
