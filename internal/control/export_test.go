package control

import (
	"github.com/geogate/geogate/internal/event"
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

// RunRecords are the first targets and ends of the records of a partition's runs in force.
func (l *LinkIndex) RunRecords(topic event.TopicID, num int32) (out [][2]int64) {
	if m := l.runs[partition{topic, num}]; m != nil {
		for _, r := range m.records {
			out = append(out, [2]int64{r.first, r.end})
		}
	}
	return out
}

// Thin is thin.
func Thin(h []Progress) []Progress { return thin(h) }
