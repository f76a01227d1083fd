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

// unfoldLZ4 reads a frame as other clients do.
func unfoldLZ4(t testing.TB, frame []byte) []byte {
	t.Helper()
	out, err := io.ReadAll(lz4.NewReader(bytes.NewReader(frame)))
	if err != nil {
		t.Fatalf("other clients cannot read the frame: %v", err)
	}
	return out
}

// TestLZ4OfRecords: what is like records becomes smaller, about as small as others make it,
// and what is random hardly larger.
func TestLZ4OfRecords(t *testing.T) {
	src := likeRecords(900 << 10)
	out, _ := NewLZ4(0).Compress(new(bytes.Buffer), src)
	if got := unfoldLZ4(t, out); !bytes.Equal(got, src) {
		t.Fatalf("%d bytes come back as %d", len(src), len(got))
	}
	var other bytes.Buffer
	w := lz4.NewWriter(&other)
	_ = w.Apply(lz4.BlockSizeOption(lz4.Block64Kb))
	if _, err := w.Write(src); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if len(out) > other.Len()*115/100 {
		t.Errorf("%d bytes become %d, with another compressor %d", len(src), len(out), other.Len())
	}
	rnd := make([]byte, 300_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(rnd)
	if out, _ = NewLZ4(0).Compress(new(bytes.Buffer), rnd); len(out) > len(rnd)+64 || !bytes.Equal(unfoldLZ4(t, out), rnd) {
		t.Errorf("%d random bytes become %d", len(rnd), len(out))
	}
}

// FuzzLZ4: whatever is compressed comes back, from another library's decoder and from this
// package's, and what is written behind other bytes leaves them alone.
func FuzzLZ4(f *testing.F) {
	for _, n := range []int{0, 1, 4, 11, 12, 13, 17, 40, 300, 5000, 64<<10 - 1, 64 << 10, 64<<10 + 1, 200_000} {
		f.Add(likeRecords(n))
		f.Add(bytes.Repeat([]byte("a"), n))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		dst := bytes.NewBufferString("before")
		out, _ := NewLZ4(0).Compress(dst, src)
		if got := unfoldLZ4(t, out); !bytes.Equal(got, src) {
			t.Fatalf("%x comes back as %x", src, got)
		}
		if got, err := newDecompressor(len(src)+1).decompress(out, kgo.CodecLz4); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%x comes back as %x: %v", src, got, err)
		}
		if !bytes.HasPrefix(dst.Bytes(), []byte("before")) {
			t.Fatalf("what was there is %q now", dst.Bytes())
		}
	})
}

func BenchmarkLZ4(b *testing.B) {
	src := likeRecords(900 << 10)
	b.Run("this", func(b *testing.B) {
		c, dst := NewLZ4(0), new(bytes.Buffer)
		b.SetBytes(int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			dst.Reset()
			c.Compress(dst, src)
		}
		b.ReportMetric(float64(dst.Len())/float64(len(src)), "ratio")
	})
	b.Run("library", func(b *testing.B) {
		dst := new(bytes.Buffer)
		w := lz4.NewWriter(dst)
		_ = w.Apply(lz4.BlockSizeOption(lz4.Block64Kb))
		b.SetBytes(int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			dst.Reset()
			w.Reset(dst)
			_, _ = w.Write(src)
			_ = w.Close()
		}
		b.ReportMetric(float64(dst.Len())/float64(len(src)), "ratio")
	})
}
