package txn

import (
	"bytes"
	"encoding/binary"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// MinCompressed is the size in bytes from which on compressing a batch pays.
const MinCompressed = 1 << 10

// LZ4 compresses batches with lz4 in blocks of 64 KiB, as Java's client does. It
// implements kgo.Compressor, and may be used from any goroutine.
//
// What kgo compresses with by default says that blocks may have 4 MiB, so that whoever
// writes or reads a batch of some hundred bytes needs buffers of that size, and takes half
// as long again.
type LZ4 struct{ least int }

// NewLZ4 returns a compressor that leaves batches below a number of bytes as they are.
func NewLZ4(least int) *LZ4 { return &LZ4{least} }

var lz4Tables = sync.Pool{New: func() any { return new(lz4Table) }}

// lz4Head is the head of a frame: magic number, version 1 with blocks that stand alone and no
// checksums (a batch has its own), blocks of at most 64 KiB, and the head's checksum.
var lz4Head = []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82}

// lz4Stored marks the length of a block that is stored as it is.
const lz4Stored = 1 << 31

// Compress implements kgo.Compressor.
func (c *LZ4) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	if len(src) < c.least {
		return src, kgo.CodecNone
	}
	table := lz4Tables.Get().(*lz4Table)
	defer lz4Tables.Put(table)
	at := dst.Len()
	dst.Grow(len(src)*5/8 + 64)
	out := append(dst.AvailableBuffer(), lz4Head...)
	for len(src) > 0 {
		block := src[:min(len(src), lz4Block)]
		src = src[len(block):]
		head := len(out)
		out = append(out, 0, 0, 0, 0)
		var smaller bool
		if out, smaller = appendLZ4Block(out, block, table); !smaller {
			out = append(out, block...)
		}
		size := uint32(len(out) - head - 4)
		if !smaller {
			size |= lz4Stored
		}
		binary.LittleEndian.PutUint32(out[head:], size)
	}
	out = append(out, 0, 0, 0, 0) // the end
	_, _ = dst.Write(out)         // it never fails
	return dst.Bytes()[at:], kgo.CodecLz4
}
