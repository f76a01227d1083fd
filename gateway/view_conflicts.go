package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
)

// openConflicts opens this region's conflict feed, of one topic or of all.
func (s *Server) openConflicts(ctx context.Context, rd *reading) (*feed, error) {
	j := &conflictFeed{
		s: s, filter: rd.topic, from: rd.from, at: make(map[int32]int64), place: newViewCursor(event.ConflictView, rd.topic, s.cfg.Region),
	}
	if rd.topic != "" {
		t, err := s.deps.Topics.Topic(ctx, rd.topic)
		if err != nil {
			return nil, err
		}
		j.slots = make(map[int32]bool)
		for p := range t.ViewPartitions() {
			j.slots[router.ConflictsPartition(rd.topic, p)] = true
		}
	}
	return s.newFeed(ctx, j, rd)
}

// conflictFeed is the view of this region's conflict feed. Its cursor counts
// records of the feed itself: no other region has the same ones.
type conflictFeed struct {
	s      *Server
	filter string         // topic, "" for all
	slots  map[int32]bool // partitions that can hold the topic's; nil for all
	from   from
	at     map[int32]int64
	place  viewCursor
}

func (j *conflictFeed) derived() bool { return true }

func (j *conflictFeed) topic() string  { return control.TopicConflicts }
func (j *conflictFeed) beforeListing() {}
func (j *conflictFeed) close()         {}
func (j *conflictFeed) lacks() []int32 { return nil }

// written: nobody is promised to find a conflict in the feed at a certain moment.
func (j *conflictFeed) written() map[int32]int64 { return nil }

func (j *conflictFeed) start(_ context.Context, logs map[int32]span) (map[int32]int64, error) {
	out := make(map[int32]int64)
	for p, l := range logs {
		o := l.start
		switch {
		case j.slots != nil && !j.slots[p]:
			continue
		case j.from.latest:
			o = l.end
		case j.from.given:
			if o = j.from.cursor.At[p][j.s.cfg.Region].Next; o < l.start {
				return nil, fmt.Errorf("begin conflict feed at %d: %w", o, errExpired)
			}
			if o > l.end {
				return nil, invalidCursor("it is past the end of the feed")
			}
		}
		out[p], j.at[p] = o, o
		j.place.move(p)
	}
	return out, nil
}

// show gives a record's value as it is: it was written in the form of the answer. A record
// of another form is none of this region's views, and is passed over.
func (j *conflictFeed) show(_ context.Context, rec *txn.Entry, dst []byte) ([]byte, bool, error) {
	if rec.Control {
		return dst, false, nil
	}
	topic, err := conflictTopic(rec.Value)
	if rec.Refused != nil {
		err = rec.Refused
	}
	if err != nil {
		j.s.deps.Skipped.Add(control.TopicConflicts, rec.Partition, rec.Offset, err)
		return dst, false, nil
	}
	if j.filter != "" && topic != j.filter {
		return dst, false, nil
	}
	return append(dst, rec.Value[:len(rec.Value)-1]...), true, nil
}

// conflictTopic is the topic of a record of the feed that can stand in an answer: an
// object of the form that views write, to which members can be added.
func conflictTopic(value []byte) (topic string, err error) {
	if !embeddable(value) || value[0] != '{' {
		return "", fmt.Errorf("%w: %d bytes are no object of one line", event.ErrMalformed, len(value))
	}
	if topic, err = topicOf(value); err != nil {
		return "", fmt.Errorf("%w: not a conflict", event.ErrMalformed)
	}
	if topic == "" {
		return "", fmt.Errorf("%w: a conflict of no topic", event.ErrMalformed)
	}
	return topic, nil
}

var errReserved = errors.New("gateway: the member is the answer's own")

// topicOf reads the member topic of a conflict.
func topicOf(value []byte) (topic string, err error) {
	r, err := newJSONReader(value)
	if err != nil {
		return "", err
	}
	err = r.members(func(name string) (err error) {
		if name == "cursor" || name == "heartbeat" {
			return errReserved // those of a stream's lines
		}
		if name == "topic" && r.kind() == '"' {
			topic, err = r.str()
			return err
		}
		_, err = r.value()
		return err
	})
	return topic, err
}

func (j *conflictFeed) reached(p int32, next int64) {
	j.at[p] = next
	j.place.move(p)
}

func (j *conflictFeed) appendCursor(dst []byte) []byte {
	return j.place.append(dst, func(w *event.CursorWriter, p int32) {
		var v event.Vector
		v[j.s.cfg.Region].Next = j.at[p]
		w.Set(p, &v)
	})
}
