package warning

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ErrUnknown is wrapped by the error of a record whose type or version its reader does
// not know. A newer version may have written it, so it is no error of the topic.
var ErrUnknown = errors.New("unknown record")

// ErrUnproven is wrapped by the error of a record that is well formed, and that only
// somebody with the deployment's secret may write, without a proof of that.
var ErrUnproven = errors.New("unproven record")

// codeOf is the code of the warning of a record that was passed over.
func codeOf(err error) Code {
	switch {
	case errors.Is(err, ErrUnknown):
		return UnknownRecord
	case errors.Is(err, ErrUnproven):
		return UnprovenRecord
	}
	return MalformedRecord
}

// maxSkippedPlaces bounds the partitions of which Skipped keeps the latest record.
const maxSkippedPlaces = 1000

// Skipped remembers the records of internal topics that their readers could not use and
// passed over. All readers of an instance share one. The zero Skipped is empty; its methods
// may be called from any goroutine, and with a nil Skipped, which remembers nothing.
type Skipped struct {
	mu    sync.Mutex // guards what follows
	by    map[skippedPlace]*skipped
	total uint64
}

type skippedPlace struct {
	topic     string
	partition int32
	code      Code
}

// skipped is what is kept of a partition's records.
type skipped struct {
	count  uint64
	offset int64 // of the latest
	why    string
}

// Add remembers a record, and tells whether it is new: a reader that starts over comes to
// the same records again. err says what is wrong with it, without its key or value.
func (s *Skipped) Add(topic string, partition int32, offset int64, err error) (first bool) {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make(map[skippedPlace]*skipped)
	}
	at := skippedPlace{topic, partition, codeOf(err)}
	x := s.by[at]
	switch {
	case x == nil && len(s.by) >= maxSkippedPlaces:
		s.total++
		return true
	case x == nil:
		x = &skipped{offset: -1}
		s.by[at] = x
	case offset <= x.offset:
		return false
	}
	x.count, x.offset, x.why = x.count+1, offset, err.Error()
	s.total++
	return true
}

// Total is how many records were skipped.
func (s *Skipped) Total() uint64 {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// listedPerTopic bounds the partitions of a topic that are listed one by one: a topic with
// many must not crowd the others out.
const listedPerTopic = 8

// Warnings appends a warning for each partition, in order, with the latest record; for a
// topic with many partitions the last one stands for the rest.
func (s *Skipped) Warnings(out *List) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	places := slices.SortedFunc(maps.Keys(s.by), func(a, b skippedPlace) int {
		return cmp.Or(cmp.Compare(a.code, b.code), cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	var topic skippedPlace
	listed := 0
	for i, at := range places {
		x := s.by[at]
		if at.topic != topic.topic || at.code != topic.code {
			topic, listed = at, 0
		}
		if listed++; listed > listedPerTopic {
			last := i == len(places)-1 || places[i+1].topic != at.topic || places[i+1].code != at.code
			if last {
				out.Add(at.code, at.topic, "there are such records in %d more partitions", listed-listedPerTopic)
			}
			continue
		}
		out.Add(at.code, fmt.Sprintf("%s/%d", at.topic, at.partition), "%d records were passed over, the latest at offset %d: %s", x.count, x.offset, x.why)
	}
}
