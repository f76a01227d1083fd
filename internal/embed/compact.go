package embed

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/txn"
)

const (
	// leastDirty is how many bytes must have come since the last compaction, beside a
	// tenth of the log, before another one pays.
	leastDirty = 64 << 10
	// mostKeys bounds what is remembered of a log at a time: some 200 MB. A log with
	// more keys is compacted as far as that reaches.
	mostKeys = 4 << 20
	// mostGroup bounds the segments that are made of smaller ones.
	mostGroup = 32 << 20
	// keyHashSize is how much of a key's SHA-256 stands for it.
	keyHashSize = 16
)

// keyHash is what is remembered of a key.
type keyHash [keyHashSize]byte

func hashKey(key []byte) keyHash {
	sum := sha256.Sum256(key)
	return keyHash(sum[:keyHashSize])
}

// txnEnd is the end of a transaction.
type txnEnd struct {
	at     int64 // offset of its marker
	commit bool
}

// compaction keeps the last committed record of each key, below a limit.
type compaction struct {
	*logCleaning
	limit  int64              // from here on everything stays
	aged   int64              // below it tombstones and markers without data may go
	ends   map[int64][]txnEnd // by producer id, in order
	last   map[keyHash]int64  // offset of each key's last record
	opaque bool               // there are batches that cannot be opened: tombstones stay

	alive map[int64]bool // producers of whose transaction some data stays, until its marker
}

// dirty tells whether enough has come since the log was compacted last.
func (p *logCleaning) dirty() bool {
	if !p.settings.compact {
		return false
	}
	if p.past.Version == 0 {
		if _, err := readJSON(cleanedPath(p.files.dir), &p.past); err != nil {
			p.log.Warn("cannot read cleaned.json of a log of the embedded kafka; cleaning the log as if for the first time", "topic", p.topic, "partition", p.files.partition, "err", err)
			p.past = cleanedFile{}
		}
		if p.past.Topic != p.id || p.past.Version != layout {
			p.past = cleanedFile{}
		}
	}
	total := p.bytes()
	dirty := total - p.past.Bytes
	return dirty >= leastDirty && dirty >= total/10
}

// compact rewrites the log's segments up to its newest ones. Offsets stay as they are, and
// so do the last batch of the log, the records of the last segment unless that is older than
// segment.ms, those younger than min.compaction.lag.ms, and the markers of transactions of
// which any data stays. A tombstone stays for delete.retention.ms after a compaction has
// reached it, and so does the marker of a transaction of which no data is left: readers have
// that long to read it.
func (p *logCleaning) compact() error {
	f := p.past
	agedAt := p.now - p.settings.tombstoneMillis
	c := &compaction{logCleaning: p, aged: f.aged(agedAt), ends: map[int64][]txnEnd{}, last: map[keyHash]int64{}, alive: map[int64]bool{}}
	p.dropped = map[int64]bool{}
	for _, step := range []func() error{c.survey, c.collect, c.rewrite} {
		if err := step(); errors.Is(err, errUnreadable) {
			p.log.Warn("cannot compact a log of the embedded kafka; it stays as it is, and the next start tries again", "topic", p.topic, "partition", p.files.partition, "err", err)
			return nil
		} else if err != nil {
			return err
		}
	}
	p.after = p.bytes()
	f.Version, f.Topic, f.Bytes = layout, p.id, p.after
	f.add(clean{Below: c.limit, At: p.now}, agedAt)
	path := cleanedPath(p.files.dir)
	raw, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("write what cleaning has done: %w", err)
	}
	if err := p.write(path, raw); err != nil {
		if errors.Is(err, errNoRoom) {
			return nil // the next start does the same
		}
		return err
	}
	if err := p.step("rename cleaned.json"); err != nil {
		return err
	}
	return putInPlace(path)
}

// survey finds the limit, and how transactions ended.
func (c *compaction) survey() error {
	open := map[int64]int64{} // first offsets of transactions by producer id
	active := c.segments[len(c.segments)-1]
	young, last, oldest := int64(-1), int64(0), int64(-1)
	for _, s := range c.segments {
		err := c.each(s, func(b batch, _ []byte) error {
			last = b.first
			if s == active && oldest < 0 {
				oldest = max(b.time, 0)
			}
			if young < 0 && c.settings.lagMillis > 0 && b.maxTime > c.now-c.settings.lagMillis {
				young = b.first
			}
			switch {
			case b.marker():
				c.ends[b.producer.id] = append(c.ends[b.producer.id], txnEnd{b.first, b.commit})
				delete(open, b.producer.id)
			case b.data():
				if _, ok := open[b.producer.id]; !ok {
					open[b.producer.id] = b.first
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	c.limit = last
	if c.now-oldest < c.settings.segmentMillis {
		c.limit = active.base
	}
	if young >= 0 {
		c.limit = min(c.limit, young)
	}
	if len(open) > 0 {
		c.limit = 0 // does not happen: after a stop none is open, and a recovery ends all
	}
	return nil
}

// aborted tells whether a batch is data of a transaction that was aborted. It lies below
// the limit, so that its transaction has ended.
func (c *compaction) aborted(b batch) bool {
	if !b.data() {
		return false
	}
	ends := c.ends[b.producer.id]
	i, _ := slices.BinarySearchFunc(ends, b.first, func(e txnEnd, at int64) int { return int(min(max(e.at-at, -1), 1)) })
	return i < len(ends) && !ends[i].commit
}

// errEnough ends the walk through a log.
var errEnough = errors.New("embed: enough")

// collect finds the last committed record of each key below the limit.
func (c *compaction) collect() error {
	for _, s := range c.segments {
		if s.base >= c.limit {
			break
		}
		err := c.each(s, func(b batch, raw []byte) error {
			if b.first >= c.limit || len(c.last) >= mostKeys {
				c.limit = min(c.limit, b.first)
				return errEnough
			}
			if b.marker() || b.records == 0 || c.aborted(b) {
				return nil
			}
			o, err := c.open.Open(txn.Batch(raw))
			if err == nil {
				err = o.EachRaw(false, func(r txn.Raw) error {
					if key, _, ok := r.Key(); ok && key != nil {
						c.last[hashKey(key)] = r.Offset
					}
					return nil
				})
			}
			if err != nil {
				c.opaque = true
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	return nil
}

// rewrite replaces the segments below the limit, from the first on: a tombstone or a marker
// goes only after what it ends.
func (c *compaction) rewrite() error {
	c.cleaned = nil
	most := min(max(c.settings.segmentBytes, 1), mostGroup)
	g, first := &group{}, true
	for i, s := range c.segments {
		if s.base >= c.limit {
			if err := c.put(g); err != nil {
				return err
			}
			c.keep(c.segments[i:]...)
			c.segments = c.cleaned
			return nil
		}
		one := &group{sources: []segmentFile{s}, newestTime: g.newestTime}
		err := c.each(s, func(b batch, raw []byte) error {
			kept, err := c.filter(b, raw)
			if err != nil {
				return err
			}
			one.rewritten = one.rewritten || !bytes.Equal(kept, raw)
			one.last, one.lastGone = emptyBatch(raw), kept == nil && !first
			if kept == nil && first {
				kept = one.last
			}
			first = false
			if kept != nil {
				head, _, ok := parseBatch(kept)
				if !ok {
					return fmt.Errorf("compact batch at %d: %w", b.first, ErrDamaged)
				}
				one.add(head, kept)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(g.sources) > 0 && int64(len(g.data)+len(one.data)) > most {
			if err := c.put(g); err != nil {
				return err
			}
			g = one
			continue
		}
		g.join(one)
	}
	if err := c.put(g); err != nil {
		return err
	}
	c.segments = c.cleaned
	return nil
}

// filter gives what stays of a batch: all of it, a part, or nil.
func (c *compaction) filter(b batch, raw []byte) ([]byte, error) {
	switch {
	case b.first >= c.limit:
		return raw, nil
	case b.marker():
		return c.filterMarker(b, raw), nil
	case b.records == 0, c.aborted(b):
		return nil, nil
	}
	o, err := c.open.Open(txn.Batch(raw))
	if err != nil {
		c.alive[b.producer.id] = c.alive[b.producer.id] || b.data()
		return raw, nil // collect has set opaque
	}
	kept, err := o.Filter(func(r txn.Raw) bool {
		key, tombstone, ok := r.Key()
		switch {
		case !ok || key == nil:
			return true
		case c.last[hashKey(key)] > r.Offset:
			return false
		}
		return !tombstone || c.opaque || r.Offset >= c.aged
	})
	if err != nil {
		return nil, fmt.Errorf("compact batch at %d: %w", b.first, err)
	}
	if kept != nil && b.data() {
		c.alive[b.producer.id] = true
	}
	return kept, nil
}

// filterMarker keeps markers of transactions of which some data is left, those that a reader
// may still need, and those that a recovery counts (stopFile).
func (c *compaction) filterMarker(b batch, raw []byte) []byte {
	alive := c.alive[b.producer.id]
	delete(c.alive, b.producer.id)
	if alive || b.first >= c.aged || b.first >= c.stop.end || !b.ends {
		return raw
	}
	c.dropped[b.first] = true
	return nil
}
