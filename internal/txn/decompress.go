package txn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errLarger says that bytes decompress to more than was allowed.
var errLarger = errors.New("larger than allowed")

// decompressor decompresses to at most max bytes, however little it is given and
// whatever that claims to be: into a buffer that grows by doubling, for one of max bytes
// would count with the garbage collector, which lets as much garbage pile up as is in use.
// Buffers and decoders are kept for the next call. It is safe for concurrent use.
type decompressor struct {
	max                         int
	buffers, gzips, lz4s, zstds sync.Pool
}

func newDecompressor(most int) *decompressor {
	return &decompressor{max: most}
}

// decompress returns memory of its own, nil for nothing.
func (d *decompressor) decompress(src []byte, codec kgo.CompressionCodecType) (out []byte, err error) {
	_, err = d.into(src, codec, func(raw []byte) { out = bytes.Clone(raw) })
	return out, err
}

// What buffers take.
const (
	firstBuffer = 1 << 20 // of one that is made
	// keptBuffer is kept whatever comes out; a larger one if at least a quarter is used.
	keptBuffer = 8 << 20
)

// into calls fn with what comes out, in memory that is used again, and tells how much
// that is.
func (d *decompressor) into(src []byte, codec kgo.CompressionCodecType, fn func(raw []byte)) (int, error) {
	buf, _ := d.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	raw, keep, err := d.within(src, codec, *buf)
	if err == nil {
		fn(raw)
	}
	if *buf = keep; keep != nil {
		d.buffers.Put(buf)
	}
	return len(raw), err
}

// within decompresses into a buffer, or into a larger one where it is too small. keep is the
// buffer that it ended with, nil if that would be a waste for others.
func (d *decompressor) within(src []byte, codec kgo.CompressionCodecType, buf []byte) (raw, keep []byte, err error) {
	if buf == nil {
		buf = make([]byte, min(firstBuffer, d.max))
	}
	n, err := d.once(src, codec, buf)
	for errors.Is(err, errLarger) && len(buf) < d.max {
		buf = make([]byte, min(2*max(len(buf), len(src)), d.max))
		n, err = d.once(src, codec, buf)
	}
	if len(buf) <= keptBuffer || err == nil && n >= len(buf)/4 {
		keep = buf
	}
	return buf[:n], keep, err
}

// once decompresses into a buffer, or is errLarger if it is too small.
func (d *decompressor) once(src []byte, codec kgo.CompressionCodecType, buf []byte) (int, error) {
	switch codec {
	case kgo.CodecGzip:
		return d.gzip(src, buf)
	case kgo.CodecSnappy:
		return d.snappy(src, buf)
	case kgo.CodecLz4:
		return d.lz4(src, buf)
	case kgo.CodecZstd:
		return d.zstandard(src, buf)
	}
	return 0, fmt.Errorf("codec %d is not known", codec)
}

// looksLarge tells whether what is compressed claims, as far as its length lets it, to hold
// more than a small batch may: then it is not tried as one. It may be wrong.
func looksLarge(src []byte, codec kgo.CompressionCodecType) bool {
	n := uint64(len(src))
	switch codec {
	case kgo.CodecGzip:
		const densest = 1032
		if n < 4 {
			return false
		}
		claim := uint64(binary.LittleEndian.Uint32(src[n-4:]))
		return claim > smallBatch && claim < densest*n
	case kgo.CodecZstd:
		var h zstd.Header
		return h.Decode(src) == nil && h.HasFCS && h.FrameContentSize > smallBatch && h.FrameContentSize <= zstdMost(n) || n > smallBatch
	case kgo.CodecLz4:
		return n > smallBatch/4 // most records shrink by less
	}
	return n > smallBatch
}

// gzip takes members one after the other, as Java's reader does.
func (d *decompressor) gzip(src, dst []byte) (int, error) {
	z, _ := d.gzips.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	defer d.gzips.Put(z)
	if err := z.Reset(bytes.NewReader(src)); err != nil {
		return 0, err
	}
	return fill(z, dst)
}

// lz4 takes frames one after the other.
func (d *decompressor) lz4(src, dst []byte) (int, error) {
	z, _ := d.lz4s.Get().(*lz4.Reader)
	if z == nil {
		z = lz4.NewReader(nil)
	}
	defer d.lz4s.Put(z)
	z.Reset(bytes.NewReader(src))
	return fill(z, dst)
}

// fill reads to the end of r, or errLarger.
func fill(r io.Reader, dst []byte) (n int, err error) {
	for n < len(dst) {
		got, err := r.Read(dst[n:])
		switch n += got; {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
	switch got, err := io.ReadFull(r, make([]byte, 1)); {
	case got > 0:
		return n, errLarger
	case err != io.EOF:
		return n, err
	}
	return n, nil
}

// What a frame of zstd may claim and hold. Content is decompressed into the one buffer,
// so that no memory is taken for a window: producers claim that of their level, whatever
// they send.
const (
	zstdWindow = 512 << 20 // what zstd's own tools take at most
	zstdBlock  = 128 << 10
)

// zstdMost is what n bytes of zstd can hold: a block takes 4.
func zstdMost(n uint64) uint64 { return n * (zstdBlock / 4) }

// zstandard takes frames one after the other.
func (d *decompressor) zstandard(src, dst []byte) (int, error) {
	z, _ := d.zstds.Get().(*zstd.Decoder)
	if z == nil {
		var err error
		z, err = zstd.NewReader(nil, zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(zstdWindow), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return 0, err
		}
	}
	defer d.zstds.Put(z)
	var h zstd.Header
	if err := h.Decode(src); err == nil && h.HasFCS && h.FrameContentSize > zstdMost(uint64(len(src))) {
		return 0, fmt.Errorf("%d bytes of zstd claim to hold %d", len(src), h.FrameContentSize)
	}
	out, err := z.DecodeAll(src, dst[:0:len(dst)])
	switch {
	case err == nil:
		return len(out), nil
	case errors.Is(err, zstd.ErrDecoderSizeExceeded),
		len(out) > len(dst)-zstdBlock: // it calls a block that does not fit malformed
		return 0, errLarger
	}
	return 0, err
}

// Framed snappy, as Java's stream writes it: this, two versions of 4 bytes, then
// blocks with a length of 4 bytes each. Others write one block without a frame.
const (
	xerialMagic  = "\x82SNAPPY\x00"
	xerialHeader = 16
)

func (d *decompressor) snappy(src, dst []byte) (n int, err error) {
	one := func(block []byte) error {
		size, err := s2.DecodedLen(block)
		switch {
		case err != nil:
			return err
		case size > len(dst)-n:
			return snappyLarger(block, size)
		}
		if _, err := s2.Decode(dst[n:n+size], block); err != nil {
			return err
		}
		n += size
		return nil
	}
	if len(src) > xerialHeader && string(src[:len(xerialMagic)]) == xerialMagic {
		err = xerialBlocks(src, one)
	} else {
		err = one(src)
	}
	return n, err
}

// snappyLarger is why a block is not decompressed that claims a size: errLarger, unless
// its bytes could not hold that. The densest element takes three and repeats 64.
func snappyLarger(block []byte, size int) error {
	const densest = 64/3 + 1
	if size > densest*len(block) {
		return fmt.Errorf("%d bytes of snappy claim to hold %d", len(block), size)
	}
	return errLarger
}

// xerialBlocks calls fn for each block of framed snappy.
func xerialBlocks(src []byte, fn func(block []byte) error) error {
	for src = src[xerialHeader:]; len(src) > 0; {
		if len(src) < 4 {
			return io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		src = src[4:]
		if n > int64(len(src)) {
			return io.ErrUnexpectedEOF
		}
		if err := fn(src[:n]); err != nil {
			return err
		}
		src = src[n:]
	}
	return nil
}
