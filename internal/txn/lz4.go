package txn

import (
	"bytes"
	"io"
	"sync"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// MinCompressed is the size in bytes from which on compressing a batch pays.
const MinCompressed = 1 << 10

// LZ4 compresses batches with lz4 in blocks of 64 KiB, as Java's client does. It
// implements kgo.Compressor, and may be used from any goroutine.
//
// What kgo compresses with by default says that blocks may have 4 MiB, so that whoever
// writes or reads a batch of some hundred bytes needs buffers of that size.
type LZ4 struct {
	least   int
	writers sync.Pool
}

// NewLZ4 returns a compressor that leaves batches below a number of bytes as they are.
func NewLZ4(least int) *LZ4 {
	return &LZ4{least: least, writers: sync.Pool{New: func() any {
		w := lz4.NewWriter(io.Discard)
		_ = w.Apply(lz4.BlockSizeOption(lz4.Block64Kb)) // fails for other sizes than the library's own
		return w
	}}}
}

// Compress implements kgo.Compressor.
func (c *LZ4) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	if len(src) < c.least {
		return src, kgo.CodecNone
	}
	w := c.writers.Get().(*lz4.Writer)
	defer c.writers.Put(w)
	w.Reset(dst)
	if _, err := w.Write(src); err != nil {
		return nil, kgo.CodecError
	}
	if err := w.Close(); err != nil {
		return nil, kgo.CodecError
	}
	return dst.Bytes(), kgo.CodecLz4
}
