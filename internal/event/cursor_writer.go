package event

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// CursorWriter writes one cursor of a view after the other, each of which differs from the
// one before in few partitions: it writes what [Cursor.String] would, and encodes only what
// was set since.
type CursorWriter struct {
	view    View
	topic   TopicHash
	visible RegionID
	parts   []cursorPart // ascending
	body    []byte       // the sealed bytes, but for the checksum
	scratch []byte
	stale   bool // body has to be made again
}

// cursorPart is what a cursor says of a partition.
type cursorPart struct {
	partition int32
	entries   int
	encoded   []byte
	at        int // where that begins in the body
}

// NewCursorWriter begins with a cursor without entries.
func NewCursorWriter(view View, topic TopicHash, visible RegionID) *CursorWriter {
	return &CursorWriter{view: view, topic: topic, visible: visible, stale: true}
}

// Set sets a partition's entry of Cursor.At.
func (w *CursorWriter) Set(partition int32, v *Vector) {
	b, entries := w.scratch[:0], 0
	for r := range v {
		if p := &v[r]; *p != (Point{}) {
			b = AppendDot(b, Dot{RegionID(r), p.Incarnation, partition, p.Next})
			entries++
		}
	}
	w.scratch = b
	i, known := slices.BinarySearchFunc(w.parts, partition, func(p cursorPart, at int32) int { return int(p.partition) - int(at) })
	if !known {
		w.parts = slices.Insert(w.parts, i, cursorPart{partition: partition})
	}
	p := &w.parts[i]
	if len(b) != len(p.encoded) || entries != p.entries {
		w.stale = true
	}
	p.encoded, p.entries = append(p.encoded[:0], b...), entries
	if !w.stale {
		copy(w.body[p.at:], b)
	}
}

// Append appends the opaque form of the cursor as it is now.
func (w *CursorWriter) Append(dst []byte) []byte {
	if w.stale {
		w.write()
	}
	n := len(w.body)
	w.body = binary.BigEndian.AppendUint32(w.body, crc32.Checksum(w.body, castagnoli))
	dst = opaque.AppendEncode(dst, w.body)
	w.body = w.body[:n]
	return dst
}

// write makes the body again.
func (w *CursorWriter) write() {
	entries := 0
	for i := range w.parts {
		entries += w.parts[i].entries
	}
	b := append(append(w.body[:0], cursorVersion, byte(w.view)), w.topic[:]...)
	b = binary.AppendUvarint(b, uint64(entries))
	for i := range w.parts {
		p := &w.parts[i]
		p.at = len(b)
		b = append(b, p.encoded...)
	}
	w.body, w.stale = append(b, byte(w.visible)), false
}
