package control

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// TypeJudged is the type of a Judged.
const TypeJudged Type = 8

// judgedType: links do not carry it. The follower keeps the latest of each partition of the
// own region.
func judgedType() recordType {
	return recordType{apply: (*Follower).applyJudged}
}

// Judged says how the own log of a partition was judged by the fold: all of it below To,
// with the cuts of all epochs that end there known, and nothing from From on is an orphan.
type Judged struct {
	ID        event.TopicID
	Partition int32

	Topic    string
	From, To event.Point
}

// AppendKey appends the record key: u8 type 8, topic id, uvarint partition.
func (x Judged) AppendKey(b []byte) []byte {
	return appendPartition(b, TypeJudged, x.ID, x.Partition)
}

// AppendValue appends the record value: u8 version, length-prefixed topic name, from and
// to (each uvarint incarnation, uvarint offset).
func (x Judged) AppendValue(b []byte) []byte {
	b = event.AppendPrefixed(append(b, codecVersion), []byte(x.Topic))
	return appendPoint(appendPoint(b, x.From), x.To)
}

// ParseJudged reads such a record.
func ParseJudged(key, value []byte) (Judged, error) {
	k := event.NewReader(key)
	p := readPartition(k, TypeJudged)
	if err := k.Close(); err != nil {
		return Judged{}, fmt.Errorf("parse key of a judged log: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	x := Judged{ID: p.topic, Partition: p.num, Topic: readName(r), From: readPoint(r), To: readPoint(r)}
	if err := r.Close(); err != nil {
		return Judged{}, fmt.Errorf("parse judged log: %w", err)
	}
	return x, nil
}

// applyJudged takes a committed record; the caller holds mu. Only the own region's say
// something here.
func (f *Follower) applyJudged(from event.RegionID, key, value []byte) error {
	if from != f.cfg.Region || value == nil {
		return nil
	}
	x, err := ParseJudged(key, value)
	if err != nil {
		return err
	}
	f.judged[progressKey{from, x.Topic, x.Partition}] = x
	return nil
}

// Judged is how the own log of a partition of the topic with this id was judged.
func (f *Follower) Judged(topic string, id event.TopicID, num int32) (Judged, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok := f.judged[progressKey{f.cfg.Region, topic, num}]
	return x, ok && x.ID == id
}
