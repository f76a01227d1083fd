package embed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// segmentFile is a segment as it lies on disk.
type segmentFile struct {
	base, size int64
}

// logCleaning is the cleaning of one partition's log.
type logCleaning struct {
	*cleaner
	settings cleanup
	topic    string
	id       string // of the topic
	files    partitionLog

	listed        []segmentFile // as they were found, in order
	segments      []segmentFile // as they are now, without empty ones
	past          cleanedFile   // what earlier compactions have done
	stop          stopFile
	before, after int64 // bytes of all segments
	changed       bool
	start         int64          // of the log where its oldest segments were dropped, else 0
	dropped       map[int64]bool // markers that are gone, by offset
	cleaned       []segmentFile  // what compaction has made of segments so far
}

// list looks the segments up. Empty files, which kfake leaves out too, are no segments.
func (p *logCleaning) list() error {
	bases, err := segments(p.files.dir)
	if err != nil {
		return err
	}
	for _, base := range bases {
		info, err := os.Stat(p.files.segment(base, ".dat"))
		if err != nil {
			return fmt.Errorf("look at segment: %w", err)
		}
		p.listed = append(p.listed, segmentFile{base, info.Size()})
		if info.Mode().IsRegular() && info.Size() > 0 {
			p.segments = append(p.segments, segmentFile{base, info.Size()})
		}
	}
	p.before = p.bytes()
	p.after = p.before
	return nil
}

func (p *logCleaning) bytes() (n int64) {
	for _, s := range p.segments {
		n += s.size
	}
	return n
}

// expired counts the oldest segments that are too old as a whole, or without which the log
// still has as many bytes as it is to keep. The last one always stays: without any batch
// kfake would assign offsets a second time.
func (p *logCleaning) expired() (n int, err error) {
	left := p.bytes()
	for ; n < len(p.segments)-1; n++ {
		s := p.segments[n]
		spare := p.settings.retentionBytes >= 0 && left-s.size >= p.settings.retentionBytes
		if !spare && p.settings.retentionMillis >= 0 {
			newest, err := p.newest(s)
			if err != nil {
				return 0, err
			}
			spare = newest >= 0 && p.now-newest > p.settings.retentionMillis
		}
		if !spare {
			break
		}
		left -= s.size
	}
	return n, nil
}

// expire drops the n oldest segments.
func (p *logCleaning) expire(n int) error {
	if n == 0 {
		return nil
	}
	if err := p.invalidateStop(); err != nil {
		return err
	}
	for _, s := range p.segments[:n] {
		if err := p.remove(s.base); err != nil {
			return err
		}
	}
	p.segments = p.segments[n:]
	p.start, p.after = p.segments[0].base, p.bytes()
	return syncDir(p.files.dir)
}

// newest is the newest timestamp of a segment's batches, of which it reads only the headers;
// -1 if the file ends inside a batch.
func (p *logCleaning) newest(s segmentFile) (int64, error) {
	f, err := os.Open(p.files.segment(s.base, ".dat"))
	if err != nil {
		return 0, fmt.Errorf("read segment: %w", err)
	}
	defer f.Close()
	newest := int64(-1)
	var head [batchHead]byte
	for at := int64(0); at < s.size; {
		if _, err := f.ReadAt(head[:], at); err != nil {
			return -1, nil // cut short: kfake finds out
		}
		length := int64(binary.BigEndian.Uint32(head[8:]))
		if length < batchHead-batchPrefix || at+batchPrefix+length > s.size {
			return -1, nil
		}
		newest = max(newest, int64(binary.BigEndian.Uint64(head[35:])))
		at += batchPrefix + length
	}
	return newest, nil
}

// remove removes a segment and its index; the caller syncs the directory.
func (p *logCleaning) remove(base int64) error {
	for _, ext := range []string{".dat", ".idx"} {
		if err := p.step("remove " + fmt.Sprint(base) + ext); err != nil {
			return err
		}
		if err := os.Remove(p.files.segment(base, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove segment: %w", err)
		}
	}
	return nil
}

// errUnreadable says that a segment does not hold whole batches only.
var errUnreadable = errors.New("embed: a segment ends in a torn batch")

// each calls fn for every batch of a segment, with its bytes.
func (p *logCleaning) each(s segmentFile, fn func(b batch, raw []byte) error) error {
	raw, err := os.ReadFile(p.files.segment(s.base, ".dat"))
	if err != nil {
		return fmt.Errorf("read segment: %w", err)
	}
	for len(raw) > 0 {
		b, size, ok := parseBatch(raw)
		if !ok {
			return errUnreadable
		}
		if err := fn(b, raw[:size:size]); err != nil {
			return err
		}
		raw = raw[size:]
	}
	return nil
}

// group is what some adjacent segments become: one, named after the first.
type group struct {
	sources    []segmentFile
	data       []byte
	index      []byte
	rewritten  bool // it lacks something of its sources
	newestTime int64
	last       []byte // an empty batch in place of the sources' last one
	lastGone   bool   // nothing of the sources' last batch stays
}

// join appends what another group has become.
func (g *group) join(o *group) {
	g.sources, g.rewritten = append(g.sources, o.sources...), g.rewritten || o.rewritten
	g.data, g.index, g.newestTime = append(g.data, o.data...), append(g.index, o.index...), o.newestTime
	g.last, g.lastGone = o.last, o.lastGone
}

// add appends a batch.
func (g *group) add(b batch, raw []byte) {
	g.data = append(g.data, raw...)
	g.newestTime = max(g.newestTime, b.maxTime)
	g.index = append(g.index, indexOf(b, g.newestTime)...)
}

// put replaces the sources of a group by the segment that was made of them. A kill before
// the rename leaves all of them. A kill after it leaves some beside the new segment, which
// covers them: the next start removes those, and mends the index.
func (p *logCleaning) put(g *group) error {
	if len(g.sources) == 0 || len(g.sources) == 1 && !g.rewritten {
		p.keep(g.sources...)
		return nil
	}
	if g.lastGone {
		b, _, ok := parseBatch(g.last)
		if !ok {
			return fmt.Errorf("end of segment %d: %w", g.sources[0].base, ErrDamaged)
		}
		g.add(b, g.last) // it ends where its sources did, so that it covers all of each
	}
	base := g.sources[0].base
	data, index := p.files.segment(base, ".dat"), p.files.segment(base, ".idx")
	if err := p.write(data, g.data); err != nil {
		return err
	}
	if err := p.write(index, g.index); err != nil {
		return errors.Join(err, os.Remove(data+interim))
	}
	if err := p.invalidateStop(); err != nil {
		return err
	}
	for _, path := range []string{data, index} {
		if err := p.step("rename " + filepath.Base(path)); err != nil {
			return err
		}
		if err := putInPlace(path); err != nil {
			return err
		}
	}
	p.keep(segmentFile{base, int64(len(g.data))})
	for _, s := range g.sources[1:] {
		if err := p.remove(s.base); err != nil {
			return err
		}
	}
	return syncDir(p.files.dir)
}

// keep notes segments of the log as it is to be.
func (p *logCleaning) keep(s ...segmentFile) { p.cleaned = append(p.cleaned, s...) }

// emptyBatch is a batch without its records. The first batch of a log stays as one, because
// kfake takes the start of the log from there after a kill. It belongs to no producer.
func emptyBatch(raw []byte) []byte {
	out := bytes.Clone(raw[:batchHead])
	be := binary.BigEndian
	be.PutUint32(out[8:], batchHead-batchPrefix)
	be.PutUint16(out[21:], 0)
	be.PutUint64(out[43:], 1<<64-1)
	be.PutUint16(out[51:], 1<<16-1)
	be.PutUint32(out[53:], 1<<32-1)
	be.PutUint32(out[57:], 0)
	be.PutUint32(out[crcAt:], crc32.Checksum(out[crcOf:], castagnoli))
	return out
}
