package txn

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// MinCompressed is the size in bytes from which on compressing a batch pays.
const MinCompressed = 1 << 10

// Codec is what batches are compressed with that are written here and not copied. Each
// record is written three times, in its log, its merged topic and its state topic, and
// Snappy takes less than half of the CPU time of LZ4 for batches of about the same size
// (BenchmarkCompress).
const Codec = kgo.CodecSnappy

// Compressor compresses batches with Codec. It implements kgo.Compressor, and may be used
// from any goroutine.
type Compressor struct{ least int }

// NewCompressor returns a compressor that leaves batches below a number of bytes as they
// are, and those that would not become smaller.
func NewCompressor(least int) *Compressor { return &Compressor{least} }

// Compress implements kgo.Compressor.
func (c *Compressor) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	room := s2.MaxEncodedLen(len(src))
	if len(src) < c.least || room < 0 {
		return src, kgo.CodecNone
	}
	at := dst.Len()
	dst.Grow(room)
	free := dst.AvailableBuffer()
	out := s2.EncodeSnappy(free[:cap(free)], src)
	if len(out) >= len(src) {
		return src, kgo.CodecNone
	}
	_, _ = dst.Write(out) // it never fails
	return dst.Bytes()[at:], Codec
}

// lz4Frames compresses with LZ4 what came so, in blocks of 64 KiB, as Java's client does:
// what kgo compresses with says that blocks may have 4 MiB, so that whoever writes or
// reads a batch of some hundred bytes needs buffers of that size.
type lz4Frames struct{ writers sync.Pool }

func newLZ4Frames() *lz4Frames {
	return &lz4Frames{sync.Pool{New: func() any {
		w := lz4.NewWriter(io.Discard)
		// A batch has a checksum of its own. Apply fails for sizes that the library does not have.
		_ = w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false))
		return w
	}}}
}

// Compress implements kgo.Compressor.
func (c *lz4Frames) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	w := c.writers.Get().(*lz4.Writer)
	defer c.writers.Put(w)
	at := dst.Len()
	w.Reset(dst)
	if _, err := w.Write(src); err != nil {
		return nil, kgo.CodecError
	}
	if err := w.Close(); err != nil {
		return nil, kgo.CodecError
	}
	return dst.Bytes()[at:], kgo.CodecLz4
}
