//go:build unix

package main

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"unicode/utf16"
)

// coreLength is how many random letters and digits a search goes by: about 119
// bits, which stand nowhere by chance.
const coreLength = 20

// canary is a text that stands in one place of a record and nowhere else in the
// world. It has two random halves and, between them, what encodings change: a
// search goes by the halves and so finds it however the middle is written.
type canary struct {
	slot string // where it was planted, for people
	text string
	// halves are searched for, each in every form.
	halves [2]string
}

// newCanary makes a canary with a middle.
func newCanary(slot, middle string) canary {
	c := canary{slot: slot}
	for i := range c.halves {
		c.halves[i] = randomWord()
	}
	c.text = c.halves[0] + middle + c.halves[1]
	return c
}

func randomWord() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	var b strings.Builder
	for range coreLength {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			panic(err) // the system has no random numbers
		}
		b.WriteByte(letters[n.Int64()])
	}
	return b.String()
}

// needle is a form of a canary, as bytes to look for.
type needle struct {
	canary int // index in the scanner's list
	form   string
	bytes  []byte
}

// needles gives every form in which a canary may have gone somewhere.
func (c canary) needles(index int) (all []needle) {
	add := func(form string, b []byte) {
		if !slices.ContainsFunc(all, func(n needle) bool { return bytes.Equal(n.bytes, b) }) {
			all = append(all, needle{index, form, b})
		}
	}
	for _, half := range c.halves {
		raw := []byte(half)
		add("raw", raw)
		for _, cased := range []string{strings.ToLower(half), strings.ToUpper(half), swapCase(half)} {
			add("in another case", []byte(cased))
		}
		add("hex", []byte(hex.EncodeToString(raw)))
		add("hex", []byte(strings.ToUpper(hex.EncodeToString(raw))))
		for _, verb := range []string{"%%%02x", "%%%02X", `\u%04x`, `\u%04X`, `\x%02x`} {
			var b []byte
			for _, x := range raw {
				b = fmt.Appendf(b, verb, x)
			}
			add("escaped", b)
		}
		for shift := range 3 {
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				add("base64", inBase64(enc, raw, shift))
			}
		}
		for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			var b []byte
			for _, u := range utf16.Encode([]rune(half)) {
				b = order.AppendUint16(b, u)
			}
			add("UTF-16", b)
		}
	}
	md, s1, s256 := md5.Sum([]byte(c.text)), sha1.Sum([]byte(c.text)), sha256.Sum256([]byte(c.text))
	for _, sum := range [][]byte{md[:], s1[:], s256[:]} {
		add("unkeyed digest", sum)
		add("unkeyed digest", []byte(hex.EncodeToString(sum)))
		add("unkeyed digest", []byte(base64.StdEncoding.EncodeToString(sum)))
	}
	return all
}

func swapCase(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r ^ 0x20
		}
		return r
	}, text)
}

// inBase64 is how a text looks inside base64 when it begins shift bytes behind a
// group of three: without the first and last characters, which hold neighbours' bits.
func inBase64(enc *base64.Encoding, text []byte, shift int) []byte {
	all := enc.EncodeToString(append(make([]byte, shift), text...))
	from := []int{0, 2, 3}[shift]
	to := len(all)
	if (shift+len(text))%3 != 0 {
		to--
	}
	return []byte(all[from:to])
}

// scanner looks for many canaries at once.
type scanner struct {
	canaries []canary
	needles  []needle
	starts   [1 << startBits]bool // hashes of the first four bytes of the needles
	byStart  map[uint32][]int     // needles by these bytes
	longest  int
	buf      []byte // of one scan at a time
}

// startBits makes the table large enough to be mostly empty: text is full of the
// letters that needles begin with.
const startBits = 20

func startHash(first uint32) uint32 { return first * 2654435761 >> (32 - startBits) }

func newScanner(canaries []canary) *scanner {
	s := &scanner{canaries: canaries, byStart: make(map[uint32][]int)}
	for i, c := range canaries {
		s.needles = append(s.needles, c.needles(i)...)
	}
	for i, n := range s.needles {
		start := binary.BigEndian.Uint32(n.bytes)
		s.starts[startHash(start)] = true
		s.byStart[start] = append(s.byStart[start], i)
		s.longest = max(s.longest, len(n.bytes))
	}
	return s
}

// scanBlock is how much is read at a time.
const scanBlock = 1 << 20

// scan reads r to its end and tells of every needle found, with its offset. What
// lies across two blocks is found too, and may be told of twice.
func (s *scanner) scan(r io.Reader, found func(n needle, offset int64)) (read int64, err error) {
	if s.buf == nil {
		s.buf = make([]byte, 0, scanBlock+s.longest)
	}
	buf := s.buf[:0]
	for base := int64(0); ; {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		read += int64(n)
		s.search(buf, func(n needle, at int) { found(n, base+int64(at)) })
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return read, nil
		case err != nil:
			return read, err
		}
		keep := min(len(buf), s.longest-1)
		base += int64(len(buf) - keep)
		buf = buf[:copy(buf, buf[len(buf)-keep:])]
	}
}

func (s *scanner) search(b []byte, found func(n needle, at int)) {
	for i := 0; i+4 <= len(b); i++ {
		start := binary.BigEndian.Uint32(b[i:])
		if !s.starts[startHash(start)] {
			continue
		}
		for _, k := range s.byStart[start] {
			if bytes.HasPrefix(b[i:], s.needles[k].bytes) {
				found(s.needles[k], i)
			}
		}
	}
}
