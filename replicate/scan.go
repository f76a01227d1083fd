package replicate

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/txn"
)

// commitMarker is a commit marker among scanned items: it may be a barrier.
type commitMarker struct {
	item     int // its index
	producer int64
	epoch    int16
}

// scan turns the bytes of a fetch answer, read committed, into items from an
// offset on. Records of aborted transactions are skipped: the answer lists them
// with their first offsets; a transaction is aborted from there to its abort
// marker. Nothing need be remembered between answers. A batch that cannot be read
// ends the items with a *SourceError.
func scan(raw []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, from int64) (items []Item, commits []commitMarker, err error) {
	batches, err := txn.Split(raw)
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(a.FirstOffset, b.FirstOffset)
	})
	active := map[int64]bool{}
	next := from
	for _, b := range batches {
		if b.Magic() == 2 {
			if cerr := b.Check(); cerr != nil {
				return items, commits, &SourceError{Corrupt: cerr, At: max(b.BaseOffset(), from)}
			}
		}
		it := Item{Kind: ItemData, Base: b.BaseOffset(), Next: b.Next(), Batch: b}
		if b.Magic() == 2 {
			it.Led = b.LeaderEpoch() + 1
		}
		for len(aborted) > 0 && aborted[0].FirstOffset < it.Next {
			active[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		switch {
		case b.Magic() < 2:
		case b.Control():
			commit, known, merr := b.Marker()
			if merr != nil {
				return items, commits, &SourceError{Corrupt: merr, At: it.Base}
			}
			if known && !commit {
				delete(active, b.ProducerID())
			}
			if known && commit && it.Next > next {
				commits = append(commits, commitMarker{len(items), b.ProducerID(), b.ProducerEpoch()})
			}
			it.Kind, it.Batch = ItemSkip, nil
		case b.Transactional() && active[b.ProducerID()], b.Count() == 0:
			it.Kind, it.Batch = ItemSkip, nil
		}
		if it.Next <= next {
			continue // a fetch inside a batch brings what lies before it too
		}
		items = append(items, it)
		next = it.Next
	}
	if err != nil {
		return items, commits, &SourceError{Corrupt: err, At: next}
	}
	return items, commits, nil
}
