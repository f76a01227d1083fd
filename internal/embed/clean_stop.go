package embed

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// stopFile is snapshot.json of a partition: what kfake knew of it at the last clean stop. It
// is believed if it names the segments that are there, with their sizes; else the log is
// read. Its end is needed until a later stop replaces it: it tells which ends of
// transactions pids.log no longer has (recovery.readPartition). So it is never removed.
type stopFile struct {
	valid       bool // it fits the segments
	end, stable int64
	start       int64
	all         map[string]json.RawMessage
}

type stopSegment struct {
	Base int64 `json:"base_offset"`
	Size int64 `json:"size"`
}

type abortedRange struct {
	Producer int64 `json:"producer_id"`
	First    int64 `json:"first_offset"`
	Last     int64 `json:"last_offset"` // of its marker
}

func stopPath(dir string) string { return filepath.Join(dir, "snapshot.json") }

// read reads it, if it is there, and holds it against the segments.
func (s *stopFile) read(dir string, have []segmentFile) error {
	found, err := readJSON(stopPath(dir), &s.all)
	if err != nil || !found {
		return err
	}
	var known struct {
		End      int64         `json:"high_watermark"`
		Stable   int64         `json:"last_stable_offset"`
		Start    int64         `json:"log_start_offset"`
		Segments []stopSegment `json:"segments"`
	}
	if _, err := readJSON(stopPath(dir), &known); err != nil {
		return err
	}
	s.end, s.stable, s.start = known.End, known.Stable, known.Start
	s.valid = slices.EqualFunc(known.Segments, have, func(a stopSegment, b segmentFile) bool { return a.Base == b.base && a.Size == b.size })
	return nil
}

// invalidateStop makes kfake read the log instead: the segments are about to change.
func (p *logCleaning) invalidateStop() error {
	if p.changed {
		return nil
	}
	if p.stop.all != nil {
		if err := p.writeStop(nil); err != nil {
			return err
		}
	}
	p.changed = true
	return nil
}

// restoreStop makes the file fit the segments as they are now, if it did before.
func (p *logCleaning) restoreStop() error {
	if !p.stop.valid {
		return nil
	}
	var aborted []abortedRange
	if raw := p.stop.all["aborted_txns"]; raw != nil {
		if err := json.Unmarshal(raw, &aborted); err != nil {
			return fmt.Errorf("read aborted transactions: %w", err)
		}
	}
	// A reader takes all of a producer for aborted from the start of such a range to its
	// marker: without the marker it would take what is committed, too.
	aborted = slices.DeleteFunc(aborted, func(a abortedRange) bool { return p.dropped[a.Last] || a.Last < p.segments[0].base })
	raw, err := json.Marshal(aborted)
	if err != nil {
		return fmt.Errorf("write aborted transactions: %w", err)
	}
	start, err := json.Marshal(max(p.stop.start, p.start))
	if err != nil {
		return fmt.Errorf("write start of log: %w", err)
	}
	p.stop.all["aborted_txns"], p.stop.all["log_start_offset"] = raw, start
	if err := p.writeStop(p.segments); err != nil && !errors.Is(err, errNoRoom) {
		return err // without room, kfake reads the log
	}
	return nil
}

// writeStop replaces the file by one that names these segments.
func (p *logCleaning) writeStop(segments []segmentFile) error {
	list := make([]stopSegment, 0, len(segments))
	for _, s := range segments {
		list = append(list, stopSegment{s.base, s.size})
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("write segments: %w", err)
	}
	p.stop.all["segments"] = raw
	if raw, err = json.Marshal(p.stop.all); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	path := stopPath(p.files.dir)
	if err := p.write(path, raw); err != nil {
		return err
	}
	if err := p.step("rename snapshot"); err != nil {
		return err
	}
	return putInPlace(path)
}

// maxCleans bounds what is remembered of earlier compactions of a log.
const maxCleans = 16

func cleanedPath(dir string) string { return filepath.Join(dir, "cleaned.json") }

// cleanedFile is cleaned.json of a partition: what earlier compactions did.
type cleanedFile struct {
	Version int     `json:"version"`
	Topic   string  `json:"topic_id"` // if it is another topic's, the file says nothing
	Bytes   int64   `json:"bytes"`    // of the log after the last one
	Cleans  []clean `json:"cleans"`
}

// clean is one compaction: at that time no record below an offset had a newer one of its
// key below it.
type clean struct {
	Below int64 `json:"below"`
	At    int64 `json:"at"` // Unix milliseconds
}

// aged is the offset below which tombstones and markers may go: a compaction before the
// given time had reached them, so that every reader of what they end has had that long to
// read them, too.
func (f *cleanedFile) aged(before int64) (below int64) {
	for _, c := range f.Cleans {
		if c.At <= before {
			below = max(below, c.Below)
		}
	}
	return below
}

// add notes a compaction, and forgets those that say no more than others.
func (f *cleanedFile) add(c clean, aged int64) {
	below := f.aged(aged)
	f.Cleans = append(slices.DeleteFunc(f.Cleans, func(o clean) bool { return o.At <= aged && o.Below < below || o.Below > c.Below }), c)
	if extra := len(f.Cleans) - maxCleans; extra > 0 {
		// The oldest ones make tombstones go; of the others the newest must stay, and
		// what is forgotten in between only makes some stay longer.
		f.Cleans = slices.Delete(f.Cleans, maxCleans/2, maxCleans/2+extra)
	}
}
