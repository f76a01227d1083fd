package txn

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestLZ4: small batches stay as they are; others are frames whose header asks for
// blocks of 64 KiB, and that any client reads.
func TestLZ4(t *testing.T) {
	const frame = "\x04\x22\x4d\x18"
	for _, c := range []kgo.Compressor{NewLZ4(MinCompressed), NewLZ4(0)} {
		var dst bytes.Buffer
		for _, size := range []int{MinCompressed, 64<<10 - 1, 64 << 10, 300_000, 5 << 20, MinCompressed} { // writers are used again
			src := bytes.Repeat([]byte("some text that repeats. "), size/24+1)[:size]
			dst.Reset()
			out, codec := c.Compress(&dst, src)
			if codec != kgo.CodecLz4 || len(out) >= size || string(out[:4]) != frame || out[5]>>4&7 != 4 {
				t.Fatalf("%d bytes: %d of codec %v, %x", size, len(out), codec, out[:min(7, len(out))])
			}
			if back, err := newDecompressor(8<<20).decompress(out, codec); err != nil || !bytes.Equal(back, src) {
				t.Fatalf("%d bytes come back as %d: %v", size, len(back), err)
			}
		}
	}
	small := bytes.Repeat([]byte("x"), MinCompressed-1)
	if out, codec := NewLZ4(MinCompressed).Compress(new(bytes.Buffer), small); codec != kgo.CodecNone || !bytes.Equal(out, small) {
		t.Errorf("a small batch: %d bytes of codec %v", len(out), codec)
	}
}
