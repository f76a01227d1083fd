package txn

import (
	"encoding/binary"
	"math/bits"
)

// Limits of LZ4's block format.
const (
	lz4Block     = 64 << 10 // of what unfolds to: no offset is larger
	lz4MinMatch  = 4
	lz4LastBytes = 5  // the last bytes are literals
	lz4LastMatch = 12 // no match begins closer to the end
	lz4HashBits  = 14
	lz4HashBytes = 5
	// lz4Skip is how soon the search goes on in larger steps where nothing matches: a byte
	// more for each 1<<lz4Skip bytes.
	lz4Skip = 7
)

// lz4Table has for each hash of lz4HashBytes bytes where they were last in the block, at first
// its begin. It fits into the processor's nearest cache, which is worth more than the matches that
// a larger one would find.
type lz4Table [1 << lz4HashBits]uint16

func lz4Hash(x uint64) uint32 {
	return uint32(x << (64 - 8*lz4HashBytes) * 0xcf1bbcdcb7a56463 >> (64 - lz4HashBits))
}

// appendLZ4Block appends a block of LZ4's format for src, of at most lz4Block bytes, and tells
// whether it became smaller; if not, dst is as it was.
func appendLZ4Block(dst, src []byte, table *lz4Table) ([]byte, bool) {
	began := len(dst)
	clear(table[:])
	anchor := 0
	for at := 1; at <= len(src)-lz4LastMatch; {
		// Look for bytes that were there before.
		now := binary.LittleEndian.Uint64(src[at:])
		h := lz4Hash(now)
		before := int(table[h])
		table[h] = uint16(at)
		if binary.LittleEndian.Uint32(src[before:]) != uint32(now) {
			at += 1 + (at-anchor)>>lz4Skip
			continue
		}
		// Lengthen the match to both sides.
		from := at
		for from > anchor && before > 0 && src[from-1] == src[before-1] {
			from, before = from-1, before-1
		}
		length := at - from + lz4MinMatch
		length += matching(src[from+length:len(src)-lz4LastBytes], src[before+length:])
		dst = appendSequence(dst, src[anchor:from], from-before, length)
		anchor = from + length
		if len(dst)-began >= len(src) {
			return dst[:began], false
		}
		if at = anchor; at <= len(src)-lz4LastMatch {
			table[lz4Hash(binary.LittleEndian.Uint64(src[at-2:]))] = uint16(at - 2)
		}
	}
	dst = appendSequence(dst, src[anchor:], 0, 0)
	if len(dst)-began >= len(src) {
		return dst[:began], false
	}
	return dst, true
}

// matching is how many bytes at the begin of a are also at that of b, which is not shorter.
func matching(a, b []byte) (n int) {
	for ; len(a)-n >= 8; n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)>>3
		}
	}
	for n < len(a) && a[n] == b[n] {
		n++
	}
	return n
}

// appendSequence appends literals and a match, or the last literals if the match has no
// length.
func appendSequence(dst, literals []byte, offset, match int) []byte {
	head := len(dst)
	dst = append(dst, 0)
	token := min(len(literals), 15) << 4
	if len(literals) >= 15 {
		dst = appendLength(dst, len(literals)-15)
	}
	dst = append(dst, literals...)
	if match > 0 {
		match -= lz4MinMatch
		token |= min(match, 15)
		dst = append(dst, byte(offset), byte(offset>>8))
		if match >= 15 {
			dst = appendLength(dst, match-15)
		}
	}
	dst[head] = byte(token)
	return dst
}

func appendLength(dst []byte, n int) []byte {
	for ; n >= 255; n -= 255 {
		dst = append(dst, 255)
	}
	return append(dst, byte(n))
}
