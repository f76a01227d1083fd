package gateway

import (
	"strconv"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

// answerWrite answers 200 to a single record that is stored.
func (s *Server) answerWrite(c *call, w *permitted, a *seat.Answer) error {
	form := s.newStoredForm(*w.topic)
	body, token := form.append(make([]byte, 0, storedSize), a)
	h := c.w.Header()
	h.Set(headerToken, string(token))
	switch {
	case a.Replayed:
		h.Set("Idempotent-Replayed", "true")
	case w.keyed() && s.dedupes:
		h.Set("Geogate-Dedupe", "pending")
	}
	return c.send(typeJSON, body)
}

// storedSize is more than most answers to a stored record take.
const storedSize = 512

// storedForm makes answers to stored records of one topic: what they have in common it
// has once.
type storedForm struct {
	names *router.Topology
	topic event.TopicHash
	name  []byte // the topic, as a JSON string
	unit  func(region string) string
	meter *topicMeter
	// units are the units of the regions whose records it has met, as JSON strings.
	units [event.MaxRegion + 1][]byte
}

func (s *Server) newStoredForm(t Topic) storedForm {
	return storedForm{names: s.cfg.Topology, topic: event.HashTopic(t.Name), name: appendString(nil, t.Name), unit: t.Domain.Unit, meter: s.m.writes.of(t.Name)}
}

// append appends the body of a 200: a pure function of the record as the log has it, so
// that a replay gives the same bytes. token is the part of it that is the token.
func (f *storedForm) append(dst []byte, a *seat.Answer) (body, token []byte) {
	region := f.names.Name(a.At.Region)
	if f.units[a.At.Region] == nil {
		f.units[a.At.Region] = appendString(nil, f.unit(region))
	}
	seen := event.Token{Topic: f.topic, Partition: a.At.Partition, Vector: a.Context, Stamp: a.Stamp}
	seen.Vector.Advance(a.At)
	dst = appendID(append(dst, `{"id":`...), a.ID)
	dst = a.At.AppendFormat(append(dst, `,"dot":"`...), f.names)
	dst = append(append(dst, `","topic":`...), f.name...)
	dst = appendString(append(dst, `,"region":`...), region)
	dst = strconv.AppendInt(append(dst, `,"partition":`...), int64(a.At.Partition), 10)
	dst = strconv.AppendInt(append(dst, `,"offset":`...), a.At.Offset, 10)
	dst = strconv.AppendUint(append(dst, `,"incarnation":`...), uint64(a.At.Incarnation), 10)
	dst = a.Stamp.AppendHex(append(dst, `,"stamp":"`...))
	dst = appendTime(append(dst, `","timestamp":"`...), a.Timestamp)
	dst = append(append(dst, `","unit":`...), f.units[a.At.Region]...)
	dst = strconv.AppendUint(append(dst, `,"epoch":`...), uint64(a.Epoch), 10)
	dst = append(dst, `,"ack":"local","token":"`...)
	at := len(dst)
	dst = seen.Append(dst)
	token = dst[at:len(dst):len(dst)]
	return append(dst, `"}`...), token
}
