package replicate

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/txn"
)

// commitMarker is a commit marker among scanned items: it may be a barrier.
type commitMarker struct {
	item     int // its index
	producer int64
	epoch    int16
}

// scanSafely is scan; a panic on the bytes is an error of the partition that has them.
func scanSafely(raw []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, from int64) (items []Item, commits []commitMarker, err error) {
	if broken := defect.Guard(func() error {
		items, commits, err = scan(raw, aborted, from)
		return nil
	})(); broken != nil {
		return nil, nil, &SourceError{Corrupt: broken, Offset: from}
	}
	return items, commits, err
}

// scan turns the bytes of a fetch answer, read committed, into items from an
// offset on; records of aborted transactions are skipped. A batch that cannot be
// read ends the items with a *SourceError.
func scan(raw []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, from int64) (items []Item, commits []commitMarker, err error) {
	batches, err := txn.Split(raw)
	aborts := txn.NewAborts(aborted)
	next := from
	for _, b := range batches {
		if b.Magic() == 2 {
			if cerr := b.Check(); cerr != nil {
				return items, commits, &SourceError{Corrupt: cerr, Offset: max(b.BaseOffset(), from)}
			}
		}
		skip, commit, merr := aborts.Take(b)
		if merr != nil {
			return items, commits, &SourceError{Corrupt: merr, Offset: b.BaseOffset()}
		}
		it := Item{Kind: ItemData, Base: b.BaseOffset(), Next: b.NextOffset(), Batch: b, LeaderEpoch: -1}
		if b.Magic() == 2 {
			it.LeaderEpoch = b.LeaderEpoch()
		}
		if it.Next <= next {
			continue // a fetch inside a batch brings what lies before it too
		}
		if commit {
			commits = append(commits, commitMarker{len(items), b.ProducerID(), b.ProducerEpoch()})
		}
		if skip || b.Magic() == 2 && b.Count() == 0 {
			it.Kind, it.Batch = ItemSkip, nil
		}
		items = append(items, it)
		next = it.Next
	}
	if err != nil {
		return items, commits, &SourceError{Corrupt: err, Offset: next}
	}
	return items, commits, nil
}
