package gateway

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// recordForm appends records of one topic as all views show them: in the coordinates of
// their origin, and such that they can be written again once their read-only members are
// dropped. What records have in common it has once. It belongs to one read.
type recordForm struct {
	names *router.Topology
	begin []byte // of a record, up to its region
	// regions are the names of the regions whose records it has met, as JSON strings.
	regions [event.MaxRegion + 1][]byte
	second  int64  // that time is of
	time    []byte // a timestamp up to its milliseconds
}

func (s *Server) newRecordForm(topic string) *recordForm {
	begin := append(appendString([]byte(`{"topic":`), topic), `,"region":`...)
	return &recordForm{names: s.cfg.Topology, begin: begin}
}

// append appends a record, without the brace that closes it: more members may follow.
func (f *recordForm) append(dst []byte, ev *event.Event) []byte {
	region := f.regions[ev.At.Region]
	if region == nil {
		region = appendString(nil, f.names.Name(ev.At.Region))
		f.regions[ev.At.Region] = region
	}
	dst = append(append(dst, f.begin...), region...)
	dst = strconv.AppendInt(append(dst, `,"partition":`...), int64(ev.At.Partition), 10)
	dst = strconv.AppendInt(append(dst, `,"offset":`...), ev.At.Offset, 10)
	dst = strconv.AppendUint(append(dst, `,"incarnation":`...), uint64(ev.At.Incarnation), 10)
	dst = ev.At.AppendFormat(append(dst, `,"dot":"`...), f.names)
	dst = appendID(append(dst, `","id":`...), ev.ID)
	dst = ev.Stamp.AppendHex(append(dst, `,"stamp":"`...))
	dst = f.appendTime(append(dst, `","timestamp":"`...), ev.Timestamp)
	dst = append(append(append(dst, `","op":"`...), ev.Op.String()...), `","key":`...)
	dst = appendKey(dst, ev.Key)
	dst = appendValue(append(dst, `,"value":`...), ev.Value)
	dst = append(dst, `,"headers":[`...)
	first := true
	for i := range ev.Headers {
		h := &ev.Headers[i]
		if event.IsReserved(h.Key) {
			continue // of a later version of the envelope
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendHeader(dst, h)
	}
	return append(dst, ']')
}

// appendTime is the function appendTime; most records are of the second of the one before.
func (f *recordForm) appendTime(dst []byte, ms int64) []byte {
	const perSecond, digits = 1000, len("000Z")
	if ms < firstMillis || ms > lastMillis {
		return appendTime(dst, ms)
	}
	rest := ms % perSecond
	if rest < 0 {
		rest += perSecond
	}
	if second := ms - rest; len(f.time) == 0 || second != f.second {
		f.time = appendTime(f.time[:0], second)
		f.time, f.second = f.time[:len(f.time)-digits], second
	}
	return append(append(dst, f.time...), byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10), 'Z')
}

func appendHeader(dst []byte, h *event.Header) []byte {
	name := h.Key
	if !utf8.ValidString(name) {
		name = strings.ToValidUTF8(name, "\uFFFD")
	}
	dst = appendString(append(dst, `{"name":`...), name)
	dst = append(dst, `,"value":`...)
	if h.Value == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendBase64(dst, h.Value)
	}
	return append(dst, '}')
}
