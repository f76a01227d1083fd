package gateway

import (
	"net/http"
	"strconv"
)

// A read of records takes three steps, in this order and never back:
//
//	decode  request.go, read_decode.go  what is asked for: view, place, limits
//	view    view.go, view_*.go          the region has what the client has seen; a view is opened
//	stream  feed.go, read_answer.go     records leave one by one, in a page or a followed stream
//
// A stream of a million records takes the third step a million times, so that one takes no
// memory: a record lies in the memory of the one before, is appended to the part of the
// answer that leaves next, and is gone when the next one is asked for.

// readRecords is GET /v1/topics/{topic}/records.
func (s *Server) readRecords(c *call) error {
	rd, err := s.decodeReading(c)
	if err != nil {
		return err
	}
	f, err := s.openView(c.r.Context(), rd)
	if err != nil {
		return err
	}
	defer f.close()
	if rd.follow {
		setIncomplete(c.w.Header(), headerIncomplete, rd.topic, f.view.lacks()...)
		return s.follow(c, f)
	}
	return f.page(c, rd, "records")
}

// readConflicts is GET /v1/conflicts: the feed of this region, of one topic or of
// all.
func (s *Server) readConflicts(c *call) error {
	rd, err := s.decodeConflictReading(c)
	if err != nil {
		return err
	}
	f, err := s.openConflicts(c.r.Context(), rd)
	if err != nil {
		return err
	}
	defer f.close()
	return f.page(c, rd, "conflicts")
}

const (
	// headerIncomplete names the partitions that a read lacks.
	headerIncomplete = "Geogate-Incomplete"
	// maxIncomplete bounds its length: clients take headers of some KiB. The status has
	// what is cut off.
	maxIncomplete = 4 << 10
)

// setIncomplete says in a header, or in the trailer of that name, which partitions of a topic
// an answer lacks, or has without what other regions wrote.
func setIncomplete(h http.Header, name, topic string, partitions ...int32) {
	var b []byte
	for _, p := range partitions {
		if len(b) > maxIncomplete {
			break
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(append(append(b, topic...), '/'), int64(p), 10)
	}
	if len(b) > 0 {
		h.Set(name, string(b))
	}
}
