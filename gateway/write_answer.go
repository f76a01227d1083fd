package gateway

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// answerWrite answers 200 to a single record that is stored.
func (s *Server) answerWrite(c *call, w *permitted, a *seat.Answer) error {
	body, token := s.stored(w.topic, a)
	h := c.w.Header()
	h.Set(headerToken, token)
	switch {
	case a.Replayed:
		h.Set("Idempotent-Replayed", "true")
	case w.keyed() && len(s.cfg.Topology.Regions()) > 1:
		h.Set("Geogate-Dedupe", "pending")
	}
	return c.send(typeJSON, body)
}

// stored is the body of a 200 and its token: a pure function of the record as the
// log has it, so that a replay gives the same bytes.
func (s *Server) stored(t Topic, a *seat.Answer) (body []byte, token string) {
	region := s.cfg.Topology.Name(a.At.Region)
	seen := a.Context
	seen.Advance(a.At)
	token = event.Token{Topic: event.HashTopic(t.Name), Partition: a.At.Partition, Vector: seen, Stamp: a.Stamp}.String()
	var o object
	o.id("id", a.ID)
	o.str("dot", a.At.Format(s.cfg.Topology))
	o.str("topic", t.Name)
	o.str("region", region)
	o.int("partition", int64(a.At.Partition))
	o.int("offset", a.At.Offset)
	o.uint("incarnation", uint64(a.At.Incarnation))
	o.str("stamp", a.Stamp.String())
	o.str("timestamp", formatTime(a.Timestamp))
	o.str("unit", t.Domain.Unit(region))
	o.uint("epoch", uint64(a.Epoch))
	o.str("ack", "local")
	o.str("token", token)
	return o.close(), token
}
