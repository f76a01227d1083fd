package txn

import (
	"context"
	"errors"
	"fmt"
)

// Commit writes the records in one transaction of their own, in the order given
// in each partition, and returns for each partition the offset of its first
// record. It is the step of a fold: all of it happens or nothing.
//
// An error other than ErrUnclear means that nothing was committed. After any
// error the producer needs Init.
func (p *Producer) Commit(ctx context.Context, records []Record) (map[TopicPartition]int64, error) {
	k := p.Pack()
	for i := range records {
		if err := k.Add(&records[i]); err != nil {
			return nil, err
		}
	}
	return p.CommitPacked(ctx, k)
}

// CommitPacked is Commit of what was packed. A packing can be committed once.
func (p *Producer) CommitPacked(ctx context.Context, k *Packing) (map[TopicPartition]int64, error) {
	if p.state != stateIdle {
		return nil, fmt.Errorf("commit for %s: %w", p.id, ErrState)
	}
	batches, err := k.finish()
	if err != nil {
		return nil, err
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
