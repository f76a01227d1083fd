package hlc

import (
	"encoding/binary"
	"encoding/hex"
	"time"
)

// Stamp is a hybrid logical time: milliseconds since the Unix epoch in the upper
// 48 bits, a counter in the lower 16. The zero Stamp means "none".
type Stamp uint64

const counterBits = 16

// FromMillis is the first stamp of millisecond ms: the stamp of a record that
// came without a gateway. A negative ms gives 0, one past 48 bits the last
// millisecond there is, so that a broken producer clock cannot wrap around.
func FromMillis(ms int64) Stamp {
	const last = 1<<48 - 1
	return Stamp(min(max(ms, 0), last)) << counterBits
}

// Millis is the wall part in milliseconds since the Unix epoch.
func (s Stamp) Millis() int64 { return int64(s >> counterBits) }

// Counter is the logical part.
func (s Stamp) Counter() uint16 { return uint16(s) }

// Time is the wall part as a UTC time.
func (s Stamp) Time() time.Time { return time.UnixMilli(s.Millis()).UTC() }

// Add moves the wall part by d, saturating at both ends.
func (s Stamp) Add(d time.Duration) Stamp {
	return FromMillis(s.Millis()+d.Milliseconds()) | s&(1<<counterBits-1)
}

// String is the 16 hex digits of the wire form.
func (s Stamp) String() string { return string(s.AppendHex(nil)) }

// AppendHex appends what String gives.
func (s Stamp) AppendHex(b []byte) []byte {
	var wire [8]byte
	return hex.AppendEncode(b, s.Append(wire[:0]))
}

// MarshalText implements encoding.TextMarshaler with String.
func (s Stamp) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Append appends the 8 big-endian wire bytes.
func (s Stamp) Append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(s)) }
