package txn

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Aborts are the aborted transactions that overlap one fetch answer, as the broker
// lists them: by producer and first offset, which may lie before the answer.
// Nothing need be remembered from one answer to the next.
type Aborts struct {
	listed []kmsg.FetchResponseTopicPartitionAbortedTransaction // not started yet, by first offset
	open   map[int64]bool                                       // producers inside one
}

// NewAborts takes an answer's list, in any order. An uncommitted one has none.
func NewAborts(listed []kmsg.FetchResponseTopicPartitionAbortedTransaction) *Aborts {
	a := &Aborts{listed: slices.Clone(listed), open: map[int64]bool{}}
	slices.SortFunc(a.listed, func(x, y kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(x.FirstOffset, y.FirstOffset)
	})
	return a
}

// Take takes the next batch of the answer; every one must be given, in order. skip
// says that it has no record for the reader, being a marker or of a transaction
// that was aborted; commit that it is the marker of one that was committed. An
// error says that a marker cannot be read.
func (a *Aborts) Take(b Batch) (skip, commit bool, err error) {
	for len(a.listed) > 0 && a.listed[0].FirstOffset < b.NextOffset() {
		a.open[a.listed[0].ProducerID] = true
		a.listed = a.listed[1:]
	}
	switch {
	case b.Magic() < 2:
		return false, false, nil
	case !b.Control():
		return b.Transactional() && a.open[b.ProducerID()], false, nil
	}
	commit, known, err := b.Marker()
	if known && !commit {
		delete(a.open, b.ProducerID()) // the end of an aborted one
	}
	return true, commit, err
}
