package txn

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// likeRecords is n bytes like a batch of records: half of it are words, half is random.
func likeRecords(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var words [2000][]byte
	for i := range words {
		words[i] = make([]byte, 3+rng.IntN(9))
		for k := range words[i] {
			words[i][k] = "eeetaoinshrdlucmfwypvbgk"[rng.IntN(24)]
		}
	}
	b := make([]byte, 0, n+1024)
	for len(b) < n {
		b = fmt.Appendf(b, `{"id":%d,"amount":%.2f,"text":"`, rng.Uint32(), 1000*rng.Float64())
		for end := len(b) + 450; len(b) < end; {
			b = append(append(b, words[rng.IntN(len(words))]...), ' ')
		}
		raw := make([]byte, 340)
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		b = append(base64.StdEncoding.AppendEncode(append(b, `","data":"`...), raw), `"}`...)
	}
	return b[:n]
}

// TestCompressor: batches come back from kgo's decompressor and from this package's, what
// would not become smaller stays as it is, and what lies in the buffer before stays.
func TestCompressor(t *testing.T) {
	random := make([]byte, 300_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for _, c := range []struct {
		name  string
		src   []byte
		least int
		want  kgo.CompressionCodecType
	}{
		{"small", bytes.Repeat([]byte("x"), MinCompressed-1), MinCompressed, kgo.CodecNone},
		{"just large enough", bytes.Repeat([]byte("x"), MinCompressed), MinCompressed, Codec},
		{"nothing", nil, 0, kgo.CodecNone},
		{"random", random, 0, kgo.CodecNone},
		{"records", likeRecords(900 << 10), MinCompressed, Codec},
		{"large", likeRecords(5 << 20), MinCompressed, Codec},
	} {
		t.Run(c.name, func(t *testing.T) {
			dst := bytes.NewBufferString("before")
			out, codec := NewCompressor(c.least).Compress(dst, c.src)
			if codec != c.want || len(out) > len(c.src) {
				t.Fatalf("%d bytes become %d of codec %v, want %v", len(c.src), len(out), codec, c.want)
			}
			if !bytes.HasPrefix(dst.Bytes(), []byte("before")) {
				t.Fatalf("what was there is %q now", dst.Bytes()[:6])
			}
			if codec == kgo.CodecNone {
				if !bytes.Equal(out, c.src) {
					t.Fatal("what is not compressed is not what was given")
				}
				return
			}
			if back, err := kgo.DefaultDecompressor().Decompress(out, codec); err != nil || !bytes.Equal(back, c.src) {
				t.Fatalf("other clients get %d bytes of %d: %v", len(back), len(c.src), err)
			}
			if back, err := newDecompressor(8<<20).decompress(out, codec); err != nil || !bytes.Equal(back, c.src) {
				t.Fatalf("%d bytes come back as %d: %v", len(c.src), len(back), err)
			}
		})
	}
}

// TestLZ4Frames: the header asks for blocks of 64 KiB, and any client reads them; writers
// are used again.
func TestLZ4Frames(t *testing.T) {
	c := newLZ4Frames()
	for _, size := range []int{1000, 64<<10 - 1, 64 << 10, 300_000, 5 << 20, 1000} {
		src := likeRecords(size)
		dst := bytes.NewBufferString("before")
		out, codec := c.Compress(dst, src)
		if codec != kgo.CodecLz4 || string(out[:4]) != "\x04\x22\x4d\x18" || out[5]>>4&7 != 4 {
			t.Fatalf("%d bytes: %d of codec %v, %x", size, len(out), codec, out[:min(7, len(out))])
		}
		if back, err := io.ReadAll(lz4.NewReader(bytes.NewReader(out))); err != nil || !bytes.Equal(back, src) {
			t.Fatalf("%d bytes come back as %d: %v", size, len(back), err)
		}
		if back, err := newDecompressor(8<<20).decompress(out, codec); err != nil || !bytes.Equal(back, src) {
			t.Fatalf("%d bytes come back as %d: %v", size, len(back), err)
		}
	}
}

func BenchmarkCompress(b *testing.B) {
	src := likeRecords(900 << 10)
	for name, c := range map[string]kgo.Compressor{"snappy": NewCompressor(0), "lz4": newLZ4Frames()} {
		b.Run(name, func(b *testing.B) {
			dst := new(bytes.Buffer)
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				dst.Reset()
				c.Compress(dst, src)
			}
			b.ReportMetric(float64(dst.Len())/float64(len(src)), "ratio")
		})
	}
}
