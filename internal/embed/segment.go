package embed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// This file reads and repairs what kfake keeps of one partition: segments
// (<first offset>.dat) hold record batches as they go over the wire, and beside
// each an index (<first offset>.idx) holds 15 bytes for every batch:
//
//	version 1 | low byte of CRC-32C of the rest | leader epoch, 4 LE |
//	running maximum of timestamps, 8 LE | flags (1: data of a transaction)
//
// kfake writes a batch first and its index entry second, and finds an entry by
// counting. A kill between the two would therefore shift every later entry by
// one and with it the flag that tells a transaction's data from its marker, so
// the index is derived from the segment again.

const (
	batchHead     = 61 // bytes of a batch before its records, magic 2
	batchPrefix   = 12 // first offset and length, which the length does not count
	crcAt, crcOf  = 17, 21
	indexEntry    = 15
	indexVersion  = 1
	attrTxn       = 0x10
	attrControl   = 0x20
	maxBatchBytes = 1 << 30 // kfake's own bound when it reads a segment
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is a record batch's header, of which only what recovery judges is kept.
type batch struct {
	first    int64
	delta    int32 // of the last offset
	leader   int32 // epoch of the partition's leader
	attrs    int16
	time     int64 // first timestamp, milliseconds
	maxTime  int64
	producer txnID
	sequence int32
	records  int32
	commit   bool // a control batch's verdict
	ends     bool // it is the end of a transaction, of a kind that is known
}

// txnID names the transactions that carry one producer id and epoch. With
// EndTxn 5, which raises the epoch at every end, that is one transaction; older
// clients keep their epoch and run many under it.
type txnID struct {
	id    int64
	epoch int16
}

func (b batch) data() bool { return b.attrs&attrTxn != 0 && b.attrs&attrControl == 0 }

func (b batch) marker() bool { return b.attrs&attrControl != 0 }

// parseBatch reads the batch at the start of raw. It reports false for a torn or
// damaged one.
func parseBatch(raw []byte) (b batch, size int, ok bool) {
	if len(raw) < batchHead {
		return b, 0, false
	}
	length := binary.BigEndian.Uint32(raw[8:])
	if length < batchHead-batchPrefix || length > maxBatchBytes || int(length) > len(raw)-batchPrefix {
		return b, 0, false
	}
	size = batchPrefix + int(length)
	if crc32.Checksum(raw[crcOf:size], castagnoli) != binary.BigEndian.Uint32(raw[crcAt:]) {
		return b, 0, false
	}
	be := binary.BigEndian
	b = batch{
		first:    int64(be.Uint64(raw)),
		leader:   int32(be.Uint32(raw[12:])),
		attrs:    int16(be.Uint16(raw[21:])),
		delta:    int32(be.Uint32(raw[23:])),
		time:     int64(be.Uint64(raw[27:])),
		maxTime:  int64(be.Uint64(raw[35:])),
		producer: txnID{int64(be.Uint64(raw[43:])), int16(be.Uint16(raw[51:]))},
		sequence: int32(be.Uint32(raw[53:])),
		records:  int32(be.Uint32(raw[57:])),
	}
	if b.marker() {
		kind := controlType(raw[batchHead:size])
		b.commit, b.ends = kind == 1, kind == 0 || kind == 1
	}
	return b, size, true
}

// controlType reads the type of a control record: 0 abort, 1 commit, -1 when the
// record cannot be read, which kfake takes for an abort too.
func controlType(record []byte) int {
	rest := record
	skip := func() int64 {
		v, n := binary.Varint(rest)
		rest = rest[max(n, 0):]
		return v
	}
	skip() // length
	if len(rest) == 0 {
		return -1
	}
	rest = rest[1:] // attributes
	skip()          // timestamp delta
	skip()          // offset delta
	if key := skip(); key < 4 || len(rest) < 4 {
		return -1
	}
	return int(binary.BigEndian.Uint16(rest[2:])) // after the key's version
}

// markerBatch is the control batch that ends a transaction. Coordinator epoch 0
// is the one that kfake itself writes.
func markerBatch(offset int64, leader int32, t txnID, commit bool, now int64) []byte {
	var kind byte
	if commit {
		kind = 1
	}
	record := []byte{
		2 * 16,  // length of what follows, a zigzag varint
		0, 0, 0, // attributes, timestamp delta, offset delta
		2 * 4, // key's length
		0, 0, 0, kind,
		2 * 6,            // value's length
		0, 0, 0, 0, 0, 0, // version and coordinator epoch
		0, // no headers
	}
	raw := make([]byte, batchHead, batchHead+len(record))
	be := binary.BigEndian
	be.PutUint64(raw, uint64(offset))
	be.PutUint32(raw[8:], uint32(batchHead-batchPrefix+len(record)))
	be.PutUint32(raw[12:], uint32(leader))
	raw[16] = 2 // magic
	be.PutUint16(raw[21:], attrTxn|attrControl)
	be.PutUint64(raw[27:], uint64(now))
	be.PutUint64(raw[35:], uint64(now))
	be.PutUint64(raw[43:], uint64(t.id))
	be.PutUint16(raw[51:], uint16(t.epoch))
	be.PutUint32(raw[53:], 0xffffffff) // a marker has no sequence
	be.PutUint32(raw[57:], 1)
	raw = append(raw, record...)
	be.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcOf:], castagnoli))
	return raw
}

// indexOf is the index entry of b. kfake derives the timestamp again when it
// loads; it is filled in for other readers of the file.
func indexOf(b batch, maxTime int64) []byte {
	e := make([]byte, indexEntry)
	e[0] = indexVersion
	binary.LittleEndian.PutUint32(e[2:], uint32(b.leader))
	binary.LittleEndian.PutUint64(e[6:], uint64(maxTime))
	if b.data() {
		e[14] = 1
	}
	e[1] = byte(crc32.Checksum(e[2:], castagnoli))
	return e
}

// sameIndex reports whether two indexes mean the same to kfake: all but the
// timestamps, of which compaction leaves stale ones.
func sameIndex(have, want []byte) bool {
	if len(have) != len(want) {
		return false
	}
	for at := 0; at < len(have); at += indexEntry {
		h, w := have[at:at+indexEntry], want[at:at+indexEntry]
		if h[0] != w[0] || h[1] != byte(crc32.Checksum(h[2:], castagnoli)) || !bytes.Equal(h[2:6], w[2:6]) || h[14] != w[14] {
			return false
		}
	}
	return true
}

// partitionLog is one partition on disk.
type partitionLog struct {
	topic     string
	partition int32
	dir       string

	active  int64 // first offset of the segment that is appended to, -1 for none
	end     int64 // next offset
	leader  int32
	maxTime int64
}

// segments lists the first offsets of dir's segments in order.
func segments(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var bases []int64
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".dat"); ok {
			if base, err := strconv.ParseInt(name, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	return bases, nil
}

// scan reads the whole log in order, cuts a torn tail off, and puts every index
// right. It refuses a log that is damaged before its last segment: what lies
// there was synced long ago, so no kill explains it.
func (l *partitionLog) scan(log *slog.Logger, each func(batch)) error {
	bases, err := segments(l.dir)
	if err != nil {
		return err
	}
	l.active = -1
	torn := false
	for _, base := range bases {
		path := l.segment(base, ".dat")
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read segment: %w", err)
		}
		if len(raw) == 0 {
			continue // a kill right after a roll; kfake skips it as well
		}
		if torn {
			return fmt.Errorf("read segment before %s: %w", path, ErrDamaged)
		}
		if base < l.end {
			if err := l.dropCovered(base, raw); err != nil {
				return err
			}
			continue
		}
		var index []byte
		at := 0
		for at < len(raw) {
			b, size, ok := parseBatch(raw[at:])
			if !ok {
				break
			}
			each(b)
			l.active, l.leader = base, b.leader
			l.maxTime = max(l.maxTime, b.maxTime)
			index = append(index, indexOf(b, l.maxTime)...)
			l.end = b.first + int64(b.delta) + 1
			at += size
		}
		if torn = at < len(raw); torn {
			log.Warn("cut a torn batch off", "topic", l.topic, "partition", l.partition, "bytes", len(raw)-at)
			if err := truncate(path, int64(at)); err != nil {
				return err
			}
		}
		if err := l.repairIndex(base, index); err != nil {
			return err
		}
	}
	return nil
}

// dropCovered removes a segment that a compaction has merged into the one before it, but was
// killed before it could remove: what is to stay of it is in the one before.
func (l *partitionLog) dropCovered(base int64, raw []byte) error {
	for at := 0; at < len(raw); {
		b, size, ok := parseBatch(raw[at:])
		if !ok || b.first+int64(b.delta)+1 > l.end {
			return fmt.Errorf("segment %d begins before the end of the one before it: %w", base, ErrDamaged)
		}
		at += size
	}
	for _, ext := range []string{".dat", ".idx"} {
		if _, err := remove(l.segment(base, ext)); err != nil {
			return err
		}
	}
	return nil
}

func (l *partitionLog) segment(base int64, ext string) string {
	return filepath.Join(l.dir, strconv.FormatInt(base, 10)+ext)
}

func (l *partitionLog) repairIndex(base int64, want []byte) error {
	path := l.segment(base, ".idx")
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read index: %w", err)
	}
	if err == nil && sameIndex(have, want) {
		return nil
	}
	return replaceFile(path, want)
}

// mark appends the marker that ends t. The next full load of the partition takes
// it for one of kfake's own. A snapshot.json of an earlier stop no longer fits
// the segment's size, which makes kfake load the partition in full.
func (l *partitionLog) mark(t txnID, commit bool, now int64) error {
	raw := markerBatch(l.end, l.leader, t, commit, now)
	b, _, ok := parseBatch(raw)
	if !ok || l.active < 0 {
		return fmt.Errorf("mark end of transaction in %s/%d: %w", l.topic, l.partition, ErrDamaged)
	}
	l.maxTime = max(l.maxTime, now)
	if err := appendFile(l.segment(l.active, ".dat"), raw); err != nil {
		return err
	}
	if err := appendFile(l.segment(l.active, ".idx"), indexOf(b, l.maxTime)); err != nil {
		return err
	}
	l.end++
	return nil
}
