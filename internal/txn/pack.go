package txn

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Packing is the batches of one transaction in the making. Records are encoded as they are
// added, so that whoever adds them may use their memory again at once.
type Packing struct {
	opts    *Options
	apart   bool
	parts   []*packedPart // in the order in which their partitions came
	batches []PartitionBatch
}

// packedPart is what is packed for a partition.
type packedPart struct {
	TopicPartition
	Builder
}

// Pack begins a transaction's batches: as few as their limit allows. Small ones are not
// compressed.
func (p *Producer) Pack() *Packing { return &Packing{opts: &p.opts} }

// PackApart is Pack with each record in a batch of its own: the index of a *RefusedError is
// then that of the record which was refused.
func (p *Producer) PackApart() *Packing { return &Packing{opts: &p.opts, apart: true} }

// recordBuffers have the records of batches in the making, compressBuffers what those are
// compressed to, until they are copied to batches of their own memory.
var (
	recordBuffers   = sync.Pool{New: func() any { return new([]byte) }}
	compressBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// maxPooled is the largest buffer that is kept: a record may be much larger than others.
const maxPooled = 2 << 20

// Add encodes a record behind those of its partition.
func (k *Packing) Add(r *Record) error {
	b := k.part(r.Topic, r.Partition)
	if b.Add(r) && !k.apart {
		return nil
	}
	if err := k.flush(b); err != nil {
		return err
	}
	if !k.apart {
		b.Add(r)
	}
	return nil
}

// part finds a partition's builder: there are a handful of partitions.
func (k *Packing) part(topic string, partition int32) *packedPart {
	for _, b := range k.parts {
		if b.Partition == partition && b.Topic == topic {
			return b
		}
	}
	b := &packedPart{TopicPartition{topic, partition}, Builder{Limit: k.opts.BatchBytes}}
	b.records = (*recordBuffers.Get().(*[]byte))[:0]
	k.parts = append(k.parts, b)
	return b
}

func (k *Packing) flush(b *packedPart) error {
	codec := k.opts.Codec
	if b.Size() < MinCompressed {
		codec = kgo.CodecNone
	}
	batch, err := b.Batch(codec)
	if err != nil {
		return fmt.Errorf("pack records for %s/%d: %w", b.Topic, b.Partition, err)
	}
	k.batches = append(k.batches, PartitionBatch{Topic: b.Topic, Partition: b.Partition, Batch: batch})
	return nil
}

// finish gives the batches; nothing more can be added.
func (k *Packing) finish() ([]PartitionBatch, error) {
	for _, b := range k.parts {
		if b.Len() > 0 {
			if err := k.flush(b); err != nil {
				return nil, err
			}
		}
		if cap(b.records) <= maxPooled {
			recordBuffers.Put(&b.records)
		}
	}
	k.parts = nil
	return k.batches, nil
}
