package gateway

import (
	"slices"
	"strings"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// OrphanPlace is a place in the list of a unit's orphans, which is in order of
// topic, partition and dot. The zero value is before the first.
type OrphanPlace struct {
	Topic string
	At    event.Dot
}

// Compare is negative, 0 or positive as p comes before o in the list, is o, or
// comes after it.
func (p OrphanPlace) Compare(o OrphanPlace) int {
	switch {
	case p.Topic != o.Topic:
		return strings.Compare(p.Topic, o.Topic)
	case p.At.Partition != o.At.Partition:
		return int(p.At.Partition) - int(o.At.Partition)
	case p.At.Region != o.At.Region:
		return int(p.At.Region) - int(o.At.Region)
	}
	return event.Point{Incarnation: p.At.Incarnation, Next: p.At.Offset}.Compare(event.Point{Incarnation: o.At.Incarnation, Next: o.At.Offset})
}

const orphanCursorVersion = 1

// String is the opaque form: version u8, length-prefixed topic, unless that is
// empty the dot, sealed as an event.Cursor is.
func (p OrphanPlace) String() string {
	b := event.AppendPrefixed([]byte{orphanCursorVersion}, []byte(p.Topic))
	if p.Topic != "" {
		b = event.AppendDot(b, p.At)
	}
	return event.Seal(b)
}

const maxTopicName = 249 // Kafka's

func parseOrphanPlace(text string) (p OrphanPlace, err error) {
	body, err := event.Unseal(text)
	if err != nil {
		return p, err
	}
	r := event.NewReader(body)
	if v := r.Uint8(); v != orphanCursorVersion {
		r.Fail("cursor version %d is not supported", v)
	}
	if p.Topic = string(r.Prefixed(maxTopicName)); p.Topic != "" {
		p.At = event.ReadDot(r)
	}
	return p, r.Close()
}

// readOrphans is GET /v1/ownership/orphans: the orphans of a unit that this region
// has met. Other regions list those that they have met.
func (s *Server) readOrphans(c *call) error {
	q, err := c.query("unit", "limit", "from")
	if err != nil {
		return err
	}
	unit := q.Get("unit")
	if unit == "" {
		return invalid(codeMalformed, atParameter("unit", "must be the name of a unit; GET /v1/ownership lists them"))
	}
	limit, err := parseLimit(q.Get("limit"))
	if err != nil {
		return err
	}
	var after OrphanPlace
	if from := q.Get("from"); from != "" {
		if after, err = parseOrphanPlace(from); err != nil {
			return invalidCursor("%v", err)
		}
	}
	if s.deps.Ownership == nil {
		return s.refuseCommand(ErrNoRegister)
	}
	known := func(v UnitView) bool { return v.Record.Unit == unit }
	units, err := s.deps.Ownership.Units()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(units, known) {
		return invalid(codeMalformed, atParameter("unit", "the ownership register has no unit of this name"))
	}
	list, n, more := object{b: []byte{'['}}, 0, false
	err = s.deps.Ownership.Orphans(unit, after, func(at OrphanPlace, o *conflict.Orphaned) bool {
		if more = n == limit || len(list.b) >= maxPage; more {
			return false
		}
		if n > 0 {
			list.b = append(list.b, ',')
		}
		list.b = append(list.b, s.orphan(at.Topic, o)...)
		after = at
		n++
		return true
	})
	if err != nil {
		return err
	}
	var o object
	o.raw("orphans", append(list.b, ']'))
	o.str("next", after.String())
	o.bool("end", !more)
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(o.close(), '\n'))
}

// orphan is one entry of the list. A record that came without a gateway has neither id
// nor epoch.
func (s *Server) orphan(topic string, x *conflict.Orphaned) []byte {
	var o object
	o.str("dot", x.At.Format(s.cfg.Topology))
	o.str("topic", topic)
	o.name("key")
	o.b = appendKey(o.b, x.Key)
	o.id("id", x.ID)
	o.str("stamp", x.Stamp.String())
	o.str("timestamp", formatTime(x.Timestamp))
	if x.Epoch == 0 {
		o.null("epoch")
	} else {
		o.uint("epoch", uint64(x.Epoch))
	}
	o.str("op", x.Op.String())
	if x.Instead == (event.Dot{}) {
		o.null("instead")
	} else {
		o.str("instead", x.Instead.Format(s.cfg.Topology))
	}
	return o.close()
}
