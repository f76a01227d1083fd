package control

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
)

// NewUnconnected makes a follower that reads nothing.
func NewUnconnected(cfg Config) *Follower { return newFollower(cfg) }

// Take takes a record as its consumers give it.
func (f *Follower) Take(r *txn.Record) {
	p := txn.TopicPartition{Topic: r.Topic, Partition: r.Partition}
	if r.Topic == TopicControl {
		f.takeUncommitted(r)
		f.uncommittedReadTo(p, r.Offset+1)
	}
	rt := f.routes()[r.Topic]
	f.takeCommitted(rt, r)
	f.committedReadTo(rt, p, r.Offset+1)
}

// RunRecords are the records of a partition's runs.
func (l *LinkIndex) RunRecords(topic event.TopicID, num int32) (out [][]offsets.Run) {
	s := l.runs.store.Of(Copy{topic, num})
	for first, value, ok := s.Ceil(0); ok; first, value, ok = s.Ceil(first + 1) {
		runs, err := offsets.ParseRuns(first, value)
		if err != nil {
			panic(err)
		}
		out = append(out, runs)
	}
	return out
}

// RunBudget sets what the runs of the link may take in memory, and gives what they take.
func (l *LinkIndex) RunBudget(bytes int) (held int) {
	l.runs.budget = bytes
	return l.runs.held
}

// Needless is the first targets of the records that nobody needs.
func (l *LinkIndex) Needless(c Copy, target int64, most int) []int64 {
	return l.runs.needless(c, target, most)
}

// Thin is thin.
func Thin(h []Progress) []Progress { return thin(h) }

// SavedPlace is savedPlace.
func SavedPlace(p Place, topic event.TopicID, first, end, epochEnd int64) (next int64, ok bool) {
	return savedPlace(p, topic, first, end, epochEnd)
}
