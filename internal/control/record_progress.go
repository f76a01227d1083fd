package control

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// TypeProgress is the type of a Progress.
const TypeProgress Type = 2

// progressType: links carry it. The follower keeps what every region says, and of
// the own region's uncommitted ones the highest closed stamp.
func progressType() recordType {
	return recordType{
		carried: func(key, value []byte) (Claim, error) {
			x, err := ParseProgress(key, value)
			return Claim{Type: TypeProgress, Topic: x.Topic, ID: x.ID, Partition: x.Partition}, err
		},
		apply:            (*Follower).applyProgress,
		applyUncommitted: (*Follower).applyUncommittedProgress,
	}
}

// Progress is what a region says about one of its partitions: every record of the
// partition's log at or above End has a stamp above Closed, and a context that
// covers Promised. If it is Counted, what the record's idempotency key was looked up in
// covered Promised, too, and Promised has not passed where a log was cut before that was
// folded: frontiers may count on it.
type Progress struct {
	ID        event.TopicID // in the cluster of the region that says it
	Partition int32

	Topic       string // name, the same in every region
	End         event.Point
	Closed      event.Stamp
	Promised    event.Vector
	Ownership   uint64      // revision of the ownership register folded
	Incarnation uint64      // revision of the incarnations folded, of one that is Counted
	Counted     bool        // false: a version before frontiers has written it
	Floor       event.Point // lowest entry for its own log in all regions' usable promised vectors
}

// AppendKey appends the record key: u8 type 2, topic id, uvarint partition.
func (x Progress) AppendKey(b []byte) []byte {
	return appendPartition(b, TypeProgress, x.ID, x.Partition)
}

// AppendValue appends the record value: u8 version, length-prefixed topic name,
// end (uvarint incarnation, uvarint offset), u64 closed stamp, promised vector as
// in gg-c, uvarint ownership revision, uvarint incarnation revision plus 1 (0: it is not
// Counted), floor as the end.
func (x Progress) AppendValue(b []byte) []byte {
	b = event.AppendPrefixed(append(b, codecVersion), []byte(x.Topic))
	b = appendPoint(b, x.End)
	b = x.Closed.Append(b)
	b = event.AppendVector(b, &x.Promised)
	b = binary.AppendUvarint(b, x.Ownership)
	incarnation := uint64(0)
	if x.Counted {
		incarnation = x.Incarnation + 1
	}
	b = binary.AppendUvarint(b, incarnation)
	return appendPoint(b, x.Floor)
}

// ParseProgress reads a progress record.
func ParseProgress(key, value []byte) (Progress, error) {
	k := event.NewReader(key)
	p := readPartition(k, TypeProgress)
	if err := k.Close(); err != nil {
		return Progress{}, fmt.Errorf("parse progress key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	x := Progress{ID: p.topic, Partition: p.num, Topic: readName(r), End: readPoint(r)}
	x.Closed = event.Stamp(r.Uint64())
	x.Promised = event.ReadVector(r)
	x.Ownership = r.Uvarint()
	if n := r.Uvarint(); n > 0 {
		x.Incarnation, x.Counted = n-1, true
	}
	x.Floor = readPoint(r)
	if err := r.Close(); err != nil {
		return Progress{}, fmt.Errorf("parse progress: %w", err)
	}
	return x, nil
}

// How many progress records of a partition are kept, because the newest is usable only
// once a reader's vector has come to its end. The newest of them, at two a second, are for
// readers that lag by some seconds; those before lie the further apart the older they are,
// so that one that lags by hours finds one, too.
const (
	historyLen  = 16
	historyTail = 8 // of the newest, which are all kept
)

// thin drops one record of a history that is too long.
func thin(h []Progress) []Progress {
	if len(h) <= historyLen {
		return h
	}
	now, drop, least := h[len(h)-1].Closed.Millis(), 0, math.Inf(1)
	for i := 1; i < len(h)-historyTail; i++ {
		gap, age := h[i+1].Closed.Millis()-h[i-1].Closed.Millis(), now-h[i].Closed.Millis()
		if share := float64(gap) / float64(age+1); share < least {
			drop, least = i, share
		}
	}
	return slices.Delete(h, drop, drop+1)
}

type progressKey struct {
	region    event.RegionID
	topic     string
	partition int32
}

// applyProgress takes a committed record of a region; the caller holds mu.
func (f *Follower) applyProgress(from event.RegionID, key, value []byte) error {
	x, err := ParseProgress(key, value)
	if err != nil {
		return err
	}
	k := progressKey{from, x.Topic, x.Partition}
	f.progress[k], f.heard[k] = thin(append(f.progress[k], x)), time.Now()
	return nil
}

// applyUncommittedProgress takes a record of the own region, committed or not; the
// caller holds mu.
func (f *Follower) applyUncommittedProgress(key, value []byte) error {
	x, err := ParseProgress(key, value)
	if err != nil {
		return err
	}
	if f.ahead(x.Closed) {
		// Nobody has stamped that high, so nobody has to stamp higher.
		return fmt.Errorf("progress of %s/%d: %w: its closed stamp %s is further ahead of the clock than a stamp may be", x.Topic, x.Partition, event.ErrMalformed, x.Closed)
	}
	k := progressKey{f.cfg.Region, x.Topic, x.Partition}
	f.highestClosed[k] = max(f.highestClosed[k], x.Closed)
	return nil
}

func (f *Follower) ahead(s event.Stamp) bool { return f.cfg.Ahead != nil && f.cfg.Ahead(s) }

// Progress is the newest progress of a region's partition, by topic name.
func (f *Follower) Progress(region event.RegionID, topic string, num int32) (Progress, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.progress[progressKey{region, topic, num}]
	if len(h) == 0 {
		return Progress{}, false
	}
	return h[len(h)-1], true
}

// Told is what a region has told of a partition, the newest first, as far as it is
// remembered; nothing if frontiers may not count on the newest. A record that arrives while
// the caller iterates hides none of the older ones; one may come twice then.
func (f *Follower) Told(region event.RegionID, topic string, num int32) iter.Seq[Progress] {
	k := progressKey{region, topic, num}
	return func(yield func(Progress) bool) {
		last := math.MaxInt // the index of the one before
		for {
			f.mu.Lock()
			h := f.progress[k]
			at := min(last, len(h)) - 1
			if last == math.MaxInt && at >= 0 && !h[at].Counted {
				at = -1
			}
			for at >= 0 && !h[at].Counted {
				at--
			}
			var p Progress
			if at >= 0 {
				p = h[at]
			}
			f.mu.Unlock()
			if at < 0 || !yield(p) {
				return
			}
			last = at
		}
	}
}

// HeardFrom is when progress of a region came here last, of any partition; ok is false
// if none ever did. What was there at the start came then.
func (f *Follower) HeardFrom(region event.RegionID) (at time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, when := range f.heard {
		if k.region == region && when.After(at) {
			at, ok = when, true
		}
	}
	return at, ok
}

// UsedElsewhere are the topics, in order, of which other regions have told progress: their
// gateways write or read them, or what is derived from them.
func (f *Follower) UsedElsewhere() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make(map[string]bool)
	for k := range f.progress {
		if k.region != f.cfg.Region {
			names[k.topic] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// ToldElsewhere are the partitions, by topic and number, of which other regions have told
// progress: they fold them.
func (f *Follower) ToldElsewhere() []txn.TopicPartition {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := make(map[txn.TopicPartition]struct{})
	for k := range f.progress {
		if k.region != f.cfg.Region {
			told[txn.TopicPartition{Topic: k.topic, Partition: k.partition}] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(told), func(a, b txn.TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
}

const (
	// maxRate is more records a second than any partition takes, and slack what may
	// have been written before anything was heard of it.
	maxRate = 1_000_000
	slack   = 1 << 26
)

// MayReach bounds what can be claimed of an origin's log: a peer's word that it has
// applied more does not count. The log reaches to what has been copied from it to this
// region, or to what the origin last said of its end, and what could be written since.
func (f *Follower) MayReach(origin event.RegionID, topic string, num int32) int64 {
	var seen int64
	if remote, ok := f.Remote(origin, topic); ok {
		if c, ok := f.Covered(origin, remote.ID, num); ok {
			seen = c.Source.Next
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	heard, ok := f.heard[progressKey{origin, topic, num}]
	if !ok {
		heard = f.started
	}
	if h := f.progress[progressKey{origin, topic, num}]; len(h) > 0 {
		seen = max(seen, h[len(h)-1].End.Next)
	}
	return seen + slack + maxRate*int64(time.Since(heard).Seconds())
}

// HighestClosed is the highest closed stamp that any process of the own region has
// written for a partition, whether its transaction was committed, aborted or is
// still open: whoever stamps above it stamps above what was published. What lies
// further ahead of the clock than a stamp may be was not published by a seat and is
// passed over. After Sync
// it includes everything written before that call; a transaction that is open does
// not hide it, as it hides Progress.
func (f *Follower) HighestClosed(topic string, num int32) event.Stamp {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.highestClosed[progressKey{f.cfg.Region, topic, num}]
}

// Standpoint is where somebody stands who asks what all regions have closed.
type Standpoint struct {
	Applied event.Vector
	Table   *event.ValidityTable // which records count; nil: all
	Absent  uint16               // bit r: nothing of region r's log comes here
}

// Closed is the lowest closed stamp of all regions, and who holds it there.
type Closed struct {
	Stamp  event.Stamp // 0: a region has said nothing that can be used
	By     event.RegionID
	Since  time.Time // no later than Stamp says; while it is 0, since when there was something to hear
	Unread bool      // By has closed more, and its log is not applied so far
}

// LowestClosed is the lowest closed stamp of all regions for a partition: no record
// that a reader who stands there has not applied has a stamp at or below it.
//
// Another region whose log is over, and applied to its cut, is not waited for: what it
// writes in a later epoch has the time of its return. It may be below this one if its
// clock is behind; then a key that has expired here is looked for there as long as it is
// known there, and of copies of one key the stamps decide, as ever. The own region is
// always waited for, so that no write of its own takes a key as expired and yet has a stamp
// within the window.
func (f *Follower) LowestClosed(topic string, num int32, at Standpoint) Closed {
	f.mu.Lock()
	defer f.mu.Unlock()
	lowest := Closed{Stamp: ^event.Stamp(0)}
	for region := range f.cfg.Regions {
		if region != f.cfg.Region && (at.Absent>>region&1 == 1 || at.Table.Over(region, at.Applied[region])) {
			continue
		}
		of := Closed{By: region}
		for _, p := range slices.Backward(f.progress[progressKey{region, topic, num}]) {
			if f.ahead(p.Closed) {
				continue
			}
			if at.Applied[region].Compare(p.End) >= 0 {
				of.Stamp = p.Closed
				break
			}
			of.Unread = true
		}
		if of.Stamp < lowest.Stamp || of.Stamp == lowest.Stamp && region < lowest.By {
			lowest = of
		}
	}
	if lowest.Since = f.started; lowest.Stamp > 0 {
		lowest.Since = lowest.Stamp.Time()
	}
	return lowest
}
