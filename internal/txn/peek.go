package txn

import "context"

// peekBytes is what Peek fetches at most; only headers of batches are looked at.
const peekBytes = 128 << 10

// Peek returns the first offset at or above offset that a reader may yet get
// something from, markers included. It differs from offset where a hole lies there:
// batches that compaction has emptied, for a committed reader records of aborted
// transactions, or nothing at all up to the end of what may be read (the last
// stable offset for a committed reader, else the high watermark). A consuming
// client passes over such holes without telling its user how far it has come; and
// the marker after aborted records may lie above the last stable offset, held up
// by another open transaction, so that nothing else tells it either.
func Peek(ctx context.Context, topics *Topics, tp TopicPartition, offset int64, onlyCommitted bool) (int64, error) {
	level := uncommitted
	if onlyCommitted {
		level = committed
	}
	p, err := fetch(ctx, topics, tp, offset, fetchOptions{level: level, bytes: peekBytes})
	if err != nil {
		return offset, err
	}
	return afterHole(p.RecordBatches, NewAborts(p.AbortedTransactions), offset, level.readable(p))
}

// afterHole is Peek's answer, given what a fetch at offset returned, with the
// aborted transactions in it, and the end of what it may return.
func afterHole(raw []byte, aborted *Aborts, offset, readable int64) (int64, error) {
	if len(raw) == 0 {
		return max(offset, readable), nil
	}
	batches, err := Split(raw)
	if err != nil {
		return offset, err
	}
	for _, b := range batches {
		if b.Magic() != 2 {
			return offset, nil // older formats are never emptied in place
		}
		skip, _, err := aborted.Take(b)
		if err != nil {
			return offset, err
		}
		if b.NextOffset() <= offset {
			continue
		}
		if b.Count() != 0 && (b.Control() || !skip) {
			return offset, nil
		}
		offset = b.NextOffset()
	}
	return offset, nil
}
