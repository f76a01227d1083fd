package txn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Builder collects records into one batch of format 2. The zero Builder is ready
// and takes any number of records; Limit bounds the uncompressed size.
type Builder struct {
	Limit int // bytes, 0: none; one record is always taken

	records []byte
	base    int64
	max     int64
	count   int32
}

// Len is the number of records so far.
func (b *Builder) Len() int { return int(b.count) }

// Size is the length of the uncompressed batch so far.
func (b *Builder) Size() int { return HeaderSize + len(b.records) }

// Reset empties the builder and keeps its memory.
func (b *Builder) Reset() {
	b.records, b.count = b.records[:0], 0
}

// Add appends a record and tells whether it fitted; if not, nothing changed.
func (b *Builder) Add(r *Record) bool {
	return b.add(0, r.Timestamp, bodySize(r.Key, r.Value, r.Headers), func(dst []byte) []byte {
		return appendBody(dst, r.Key, r.Value, r.Headers)
	})
}

// AddRaw appends a record of another batch as it is, at the next offset, and
// tells whether it fitted; if not, nothing changed.
func (b *Builder) AddRaw(r Raw) bool {
	return b.add(r.Attributes, r.Timestamp, len(r.Body), func(dst []byte) []byte { return append(dst, r.Body...) })
}

// add appends a record whose body has a size and is written by a function.
func (b *Builder) add(attributes byte, timestamp int64, size int, body func(dst []byte) []byte) bool {
	if b.count == 0 {
		b.base, b.max = timestamp, timestamp
	}
	var head [1 + 2*binary.MaxVarintLen64]byte
	head[0] = attributes
	n := 1 + binary.PutVarint(head[1:], timestamp-b.base)
	n += binary.PutVarint(head[n:], int64(b.count))
	if b.Limit > 0 && b.count > 0 && b.Size()+binary.MaxVarintLen32+n+size > b.Limit {
		return false
	}
	b.records = slices.Grow(b.records, binary.MaxVarintLen32+n+size)
	b.records = binary.AppendVarint(b.records, int64(n+size))
	b.records = append(b.records, head[:n]...)
	b.records = body(b.records)
	b.max = max(b.max, timestamp)
	b.count++
	return true
}

// Batch returns the records as a batch of their own memory, compressed with
// codec, and empties the builder. It must hold at least one record.
func (b *Builder) Batch(codec kgo.CompressionCodecType) (Batch, error) {
	if b.count == 0 {
		return nil, fmt.Errorf("%w: build batch of no records", ErrState)
	}
	buffer := compressBuffers.Get().(*bytes.Buffer)
	defer func() {
		if buffer.Cap() <= maxPooled {
			compressBuffers.Put(buffer)
		}
	}()
	buffer.Reset()
	records, used, err := compress(buffer, codec, b.records)
	if err != nil {
		return nil, err
	}
	out := make(Batch, HeaderSize, HeaderSize+len(records))
	out = append(out, records...)
	binary.BigEndian.PutUint32(out[atLength:], uint32(len(out)-lengthEnd))
	binary.BigEndian.PutUint32(out[atLeaderEpoch:], 1<<32-1)
	out[atMagic] = 2
	binary.BigEndian.PutUint16(out[atAttributes:], uint16(used))
	binary.BigEndian.PutUint32(out[atLastOffsetDelta:], uint32(b.count-1))
	binary.BigEndian.PutUint64(out[atBaseTimestamp:], uint64(b.base))
	binary.BigEndian.PutUint64(out[atMaxTimestamp:], uint64(b.max))
	binary.BigEndian.PutUint64(out[atProducerID:], 1<<64-1)
	binary.BigEndian.PutUint16(out[atProducerEpoch:], 1<<16-1)
	binary.BigEndian.PutUint32(out[atBaseSequence:], 1<<32-1)
	binary.BigEndian.PutUint32(out[atCount:], uint32(b.count))
	binary.BigEndian.PutUint32(out[atCRC:], crc32.Checksum(out[atAttributes:], castagnoli))
	b.Reset()
	return out, nil
}

// compressors by codec; made once, each pools its own state.
var compressors = sync.OnceValues(func() ([5]kgo.Compressor, error) {
	var out [5]kgo.Compressor
	for i, c := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		var err error
		if out[i], err = kgo.DefaultCompressor(c); err != nil {
			return out, fmt.Errorf("make compressor: %w", err)
		}
	}
	out[kgo.CodecLz4], out[Codec] = newLZ4Frames(), NewCompressor(0)
	return out, nil
})

// compress returns b itself for no compression, and also where compression
// would make it larger, else what the buffer has.
func compress(buffer *bytes.Buffer, codec kgo.CompressionCodecType, b []byte) ([]byte, kgo.CompressionCodecType, error) {
	if codec == kgo.CodecNone {
		return b, codec, nil
	}
	all, err := compressors()
	if err != nil {
		return nil, 0, err
	}
	if codec < 0 || int(codec) >= len(all) {
		return nil, 0, fmt.Errorf("%w: codec %d is not known", ErrMalformed, codec)
	}
	out, used := all[codec].Compress(buffer, b)
	if used < 0 {
		return nil, 0, fmt.Errorf("compress batch with codec %d: compressor gave up", codec)
	}
	if len(out) >= len(b) {
		return b, kgo.CodecNone, nil
	}
	return out, used, nil
}
