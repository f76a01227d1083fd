package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Commit writes the records in one transaction of their own, in the order given
// in each partition, and returns for each partition the offset of its first
// record. It is the step of a fold: all of it happens or nothing.
//
// An error other than ErrUnclear means that nothing was committed. After any
// error the producer needs Init.
func (p *Producer) Commit(ctx context.Context, records []Record) (map[TopicPartition]int64, error) {
	if p.state != stateIdle {
		return nil, fmt.Errorf("commit for %s: %w", p.id, ErrState)
	}
	batches, err := p.pack(records)
	if err != nil {
		return nil, err
	}
	return p.commit(ctx, batches)
}

// CommitApart is Commit with each record in a batch of its own. The index of a
// *RefusedError is then that of the record which was refused.
func (p *Producer) CommitApart(ctx context.Context, records []Record) (map[TopicPartition]int64, error) {
	if p.state != stateIdle {
		return nil, fmt.Errorf("commit for %s: %w", p.id, ErrState)
	}
	batches := make([]PartitionBatch, len(records))
	for i := range records {
		packed, err := p.pack(records[i : i+1])
		if err != nil {
			return nil, err
		}
		batches[i] = packed[0]
	}
	return p.commit(ctx, batches)
}

// commit writes batches in one transaction of their own.
func (p *Producer) commit(ctx context.Context, batches []PartitionBatch) (map[TopicPartition]int64, error) {
	produced, err := p.Produce(ctx, batches)
	if err != nil {
		// Free the partitions at once where the cluster still listens to us.
		if !errors.Is(err, ErrFenced) && p.state == stateBroken {
			_, _ = p.End(ctx, false)
		}
		p.state = stateNew
		if errors.Is(err, ErrUnclear) {
			// Nothing was asked to be committed, so this much is clear.
			return nil, fmt.Errorf("commit: %w", &notCommittedError{err})
		}
		return nil, fmt.Errorf("commit: %w", err)
	}
	if _, err := p.End(ctx, true); err != nil {
		p.state = stateNew
		return nil, fmt.Errorf("commit: %w", err)
	}
	bases := make(map[TopicPartition]int64, len(produced))
	for _, b := range produced {
		tp := TopicPartition{b.Topic, b.Partition}
		if _, ok := bases[tp]; !ok {
			bases[tp] = b.Base
		}
	}
	return bases, nil
}

// notCommittedError hides ErrUnclear: the records' fate is known.
type notCommittedError struct{ err error }

// Error implements error.
func (e *notCommittedError) Error() string { return e.err.Error() }

// pack makes batches below the limit, keeping the order in each partition. Small
// ones are not compressed.
func (p *Producer) pack(records []Record) ([]PartitionBatch, error) {
	builders := map[TopicPartition]*Builder{}
	var order []TopicPartition
	var out []PartitionBatch
	flush := func(tp TopicPartition) error {
		codec := p.opts.Codec
		if builders[tp].Size() < MinCompressed {
			codec = kgo.CodecNone
		}
		b, err := builders[tp].Batch(codec)
		if err != nil {
			return fmt.Errorf("pack records for %s/%d: %w", tp.Topic, tp.Partition, err)
		}
		out = append(out, PartitionBatch{Topic: tp.Topic, Partition: tp.Partition, Batch: b})
		return nil
	}
	for i := range records {
		r := &records[i]
		tp := TopicPartition{r.Topic, r.Partition}
		b := builders[tp]
		if b == nil {
			b = &Builder{Limit: p.opts.BatchBytes}
			builders[tp] = b
			order = append(order, tp)
		}
		if b.Add(r) {
			continue
		}
		if err := flush(tp); err != nil {
			return nil, err
		}
		b.Add(r)
	}
	for _, tp := range order {
		if err := flush(tp); err != nil {
			return nil, err
		}
	}
	return out, nil
}
