package event

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/hlc"
)

// TopicHash is the first 8 bytes of SHA-256 of a topic name: it binds a token or
// a cursor to its topic without naming it.
type TopicHash [8]byte

// HashTopic hashes a topic name.
func HashTopic(topic string) TopicHash {
	sum := sha256.Sum256([]byte(topic))
	return TopicHash(sum[:8])
}

var opaque = base64.RawURLEncoding.Strict()

// decodeOpaque takes only the one form that is ever given out; the library would pass
// over line breaks.
func decodeOpaque(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, errors.New("it has a line break")
	}
	return opaque.DecodeString(text)
}

const tokenVersion = 1

// Token is what a client carries from one request to the next, in any region, to
// read its own writes: a write's token holds its own dot, a read's what the seat
// had applied.
type Token struct {
	Topic     TopicHash
	Partition int32
	Vector    Vector // own entry included
	Stamp     hlc.Stamp
}

// String is the opaque form: base64url without padding of byte 1, the topic
// hash, uvarint partition, the vector as in gg-c, and the stamp.
func (t Token) String() string { return string(t.Append(nil)) }

// Append appends what String gives.
func (t *Token) Append(b []byte) []byte {
	raw := append(make([]byte, 0, 128), tokenVersion)
	raw = append(raw, t.Topic[:]...)
	raw = binary.AppendUvarint(raw, uint64(t.Partition))
	raw = AppendVector(raw, &t.Vector)
	return opaque.AppendEncode(b, t.Stamp.Append(raw))
}

// ParseToken is the inverse of String; its errors wrap ErrMalformed.
func ParseToken(text string) (Token, error) {
	raw, err := decodeOpaque(text)
	if err != nil {
		return Token{}, fmt.Errorf("parse token: %w: %w", ErrMalformed, err)
	}
	r := NewReader(raw)
	var t Token
	if v := r.Uint8(); v != tokenVersion {
		r.Fail("token version %d is not supported", v)
	}
	copy(t.Topic[:], r.Bytes(len(t.Topic)))
	t.Partition = int32(r.UvarintMax(1<<31 - 1))
	t.Vector = ReadVector(r)
	t.Stamp = hlc.Stamp(r.Uint64())
	if err := r.Close(); err != nil {
		return Token{}, fmt.Errorf("parse token: %w", err)
	}
	return t, nil
}

// View is what a cursor reads: the merged view, or one origin's log.
type View uint8

// The views. A value from 1 to 15 is the log of that origin region.
const (
	MergedView   View = 0
	ConflictView View = 16 // the conflict feed of the region in Cursor.Visible
)

// OriginView is the view of region r's log.
func OriginView(r RegionID) View { return View(r) }

const (
	cursorVersion    = 1
	maxCursorEntries = 1 << 20
)

// Cursor is a reader's place in a view, in the coordinates of the origins, so
// that it means the same in every region.
type Cursor struct {
	View    View
	Topic   TopicHash
	Visible RegionID         // the region that gave it: what it could see
	At      map[int32]Vector // by partition: per origin the next offset to read
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal is the opaque form of a cursor's bytes: base64url without padding of the
// bytes and their CRC-32C. It may append to b.
func Seal(b []byte) string {
	return opaque.EncodeToString(binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

// Unseal is the inverse of Seal; its errors wrap ErrMalformed.
func Unseal(text string) ([]byte, error) {
	raw, err := decodeOpaque(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	n := len(raw) - crc32.Size
	if n < 0 || crc32.Checksum(raw[:n], castagnoli) != binary.BigEndian.Uint32(raw[n:]) {
		return nil, fmt.Errorf("%w: checksum does not match", ErrMalformed)
	}
	return raw[:n], nil
}

// String is the opaque form: version u8, view u8, topic hash, uvarint number of
// entries, the entries sorted by partition, then region (u8 region, u16
// incarnation, uvarint partition, uvarint next offset), visible region u8, sealed.
func (c Cursor) String() string {
	b := append([]byte{cursorVersion, byte(c.View)}, c.Topic[:]...)
	n := 0
	for _, v := range c.At {
		for _, p := range v {
			if p != (Point{}) {
				n++
			}
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, part := range slices.Sorted(maps.Keys(c.At)) {
		for r, p := range c.At[part] {
			if p == (Point{}) {
				continue
			}
			b = AppendDot(b, Dot{RegionID(r), p.Incarnation, part, p.Next})
		}
	}
	b = append(b, byte(c.Visible))
	return Seal(b)
}

// ParseCursor is the inverse of String; its errors wrap ErrMalformed.
func ParseCursor(text string) (Cursor, error) {
	body, err := Unseal(text)
	if err != nil {
		return Cursor{}, fmt.Errorf("parse cursor: %w", err)
	}
	r := NewReader(body)
	if v := r.Uint8(); v != cursorVersion {
		r.Fail("cursor version %d is not supported", v)
	}
	c := Cursor{View: View(r.Uint8()), At: map[int32]Vector{}}
	copy(c.Topic[:], r.Bytes(len(c.Topic)))
	last := Dot{Partition: -1}
	for range r.UvarintMax(maxCursorEntries) {
		d := ReadDot(r)
		if r.Err() != nil {
			break
		}
		if d.Partition < last.Partition || d.Partition == last.Partition && d.Region <= last.Region {
			r.Fail("cursor entries are not sorted")
			break
		}
		last = d
		v := c.At[d.Partition]
		v[d.Region] = Point{d.Incarnation, d.Offset}
		if v[d.Region] == (Point{}) {
			r.Fail("cursor entry is empty")
		}
		c.At[d.Partition] = v
	}
	c.Visible = r.Region()
	if c.View > ConflictView {
		r.Fail("view %d is not known", c.View)
	}
	if err := r.Close(); err != nil {
		return Cursor{}, fmt.Errorf("parse cursor: %w", err)
	}
	return c, nil
}
