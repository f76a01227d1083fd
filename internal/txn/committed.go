package txn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	readBytes   = 1 << 20 // of one answer
	readWait    = 100 * time.Millisecond
	readRetries = 40
)

// ReadCommitted gives every committed record of a partition from one offset up to
// another, which must not lie above the high watermark, in order, and returns how
// far it came. It reads to that offset whatever lies there: markers, aborted
// records and holes end no reading, and the end of a transaction that is open
// below it is waited for. It asks again while the partition has no leader, for a
// few seconds; an error of each ends it. Records share the memory of the answer,
// which is not used again; what the decoder refuses comes with
// [Record.Refused].
func ReadCommitted(ctx context.Context, topics *Topics, d *Decoder, tp TopicPartition, from, to int64, each func(*Record) error) (int64, error) {
	return read(ctx, topics, d, tp, committed, from, to, each, nil)
}

// ReadWhileItAdvances is ReadCommitted for as long as it makes progress: it fails with
// [ErrStalled] when nothing has been read for longer than stall, because a transaction
// stays open or the partition does not answer. However much there is to read, a
// partition that answers is read to the end.
func ReadWhileItAdvances(ctx context.Context, stall time.Duration, topics *Topics, d *Decoder, tp TopicPartition, from, to int64, each func(*Record) error) (next int64, err error) {
	err = whileItAdvances(ctx, stall, tp, &next, func(ctx context.Context, advanced func()) error {
		next, err = read(ctx, topics, d, tp, committed, from, to, each, advanced)
		return err
	})
	return next, err
}

// ReadStable gives the committed records of a partition from an offset up to its last
// stable offset, and returns that and the high watermark. Both are those of the first
// answer, and so no older than the call. It goes on for as long as it makes progress, like
// [ReadWhileItAdvances], and needs one round trip if one answer holds everything.
func ReadStable(ctx context.Context, stall time.Duration, topics *Topics, d *Decoder, tp TopicPartition, from int64, each func(*Record) error) (next, end int64, err error) {
	next = from
	err = whileItAdvances(ctx, stall, tp, &next, func(ctx context.Context, advanced func()) error {
		var p *kmsg.FetchResponseTopicPartition
		for failures, wait := 0, (retryWait{}); ; {
			if p, err = fetch(ctx, topics, tp, from, fetchOptions{committed, readBytes, 0}); err == nil {
				break
			}
			if failures++; failures > readRetries || !mayReadAgain(err) || !wait.next(ctx) {
				return fmt.Errorf("read partition: %w", err)
			}
		}
		end = p.HighWatermark
		stable := max(from, p.LastStableOffset)
		if next, err = take(p, d, committed, from, stable, each); err != nil {
			return fmt.Errorf("read %s/%d: %w", tp.Topic, tp.Partition, err)
		}
		advanced()
		next, err = read(ctx, topics, d, tp, committed, next, stable, each, advanced)
		return err
	})
	return next, end, err
}

// whileItAdvances runs a read, and cancels it with ErrStalled when it has not called
// advanced for longer than stall.
func whileItAdvances(ctx context.Context, stall time.Duration, tp TopicPartition, next *int64, reading func(ctx context.Context, advanced func()) error) error {
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(stall, func() { cancel(ErrStalled) })
	defer timer.Stop()
	err := reading(sctx, func() { timer.Reset(stall) })
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(sctx), ErrStalled) {
		return fmt.Errorf("%w: %s/%d at %d for %s", ErrStalled, tp.Topic, tp.Partition, *next, stall)
	}
	return err
}

// ReadUncommitted is ReadCommitted for records of every transaction, also of those
// that are open or were aborted; it waits for none.
func ReadUncommitted(ctx context.Context, topics *Topics, d *Decoder, tp TopicPartition, from, to int64, each func(*Record) error) (int64, error) {
	return read(ctx, topics, d, tp, uncommitted, from, to, each, nil)
}

func read(ctx context.Context, topics *Topics, d *Decoder, tp TopicPartition, level isolation, from, to int64, each func(*Record) error, advanced func()) (int64, error) {
	failures, wait := 0, retryWait{}
	for next := from; ; {
		if next >= to {
			return next, nil
		}
		p, err := fetch(ctx, topics, tp, next, fetchOptions{level, readBytes, readWait})
		if err != nil {
			if failures++; failures > readRetries || !mayReadAgain(err) || !wait.next(ctx) {
				return next, fmt.Errorf("read partition: %w", err)
			}
			continue
		}
		failures, wait = 0, retryWait{}
		was := next
		if next, err = take(p, d, level, next, to, each); err != nil {
			return next, fmt.Errorf("read %s/%d: %w", tp.Topic, tp.Partition, err)
		}
		if next > was && advanced != nil {
			advanced()
		}
	}
}

// take goes through one answer and returns the next offset to read.
func take(p *kmsg.FetchResponseTopicPartition, d *Decoder, level isolation, next, to int64, each func(*Record) error) (int64, error) {
	f, _ := unread(p, next)
	if f.Err == nil && len(p.RecordBatches) == 0 {
		return max(next, level.readable(p)), nil // compaction has emptied the rest
	}
	for _, u := range f.Batches {
		if u.Batch.Magic() == 2 && u.Batch.Control() {
			continue
		}
		w := d.Walk(u.Batch, u.From)
		for e, ok := w.Next(); ok; e, ok = w.Next() {
			if e.Offset >= to {
				break
			}
			if err := each(&e.Record); err != nil {
				return next, err
			}
		}
	}
	return f.Next, f.Err
}

// mayReadAgain: the broker has moved the partition, or the connection broke.
func mayReadAgain(err error) bool {
	var code *kerr.Error
	return !errors.As(err, &code) || code.Retriable
}
