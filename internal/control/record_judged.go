package control

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

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
	Proof    Proof
}

// Prove signs the record for a region's control topic.
func (x *Judged) Prove(region event.RegionID, secret []byte) {
	x.Proof = proofOf(region, secret, x.AppendKey(nil), x.appendValue(nil))
}

// AppendKey appends the record key: u8 type 8, topic id, uvarint partition.
func (x Judged) AppendKey(b []byte) []byte {
	return appendPartition(b, TypeJudged, x.ID, x.Partition)
}

// AppendValue appends the record value: u8 version 2, length-prefixed topic name, from and
// to (each uvarint incarnation, uvarint offset), 16 bytes proof.
func (x Judged) AppendValue(b []byte) []byte { return append(x.appendValue(b), x.Proof[:]...) }

func (x *Judged) appendValue(b []byte) []byte {
	b = event.AppendPrefixed(append(b, provenVersion), []byte(x.Topic))
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
	version := readProvenVersion(r)
	x := Judged{ID: p.topic, Partition: p.num, Topic: readName(r), From: readPoint(r), To: readPoint(r)}
	readProof(r, version, &x.Proof)
	if err := r.Close(); err != nil {
		return Judged{}, fmt.Errorf("parse judged log: %w", err)
	}
	return x, nil
}

// applyJudged takes a committed record; the caller holds mu. Only the own region's say
// something here, and only if they are proven: by a forged one the owner would join epochs
// that still have to be told apart. What an earlier version wrote, without a proof, is passed
// over as if it was not there; the seat says it again.
func (f *Follower) applyJudged(from event.RegionID, key, value []byte) error {
	if from != f.cfg.Region || value == nil {
		return nil
	}
	x, err := ParseJudged(key, value)
	switch {
	case err != nil:
		return err
	case value[0] == codecVersion:
		return nil
	case !proven(from, f.secret(), key, value):
		return errUnproven("how a log was judged")
	}
	x.Proof = Proof{}
	f.judged[progressKey{from, x.Topic, x.Partition}] = x
	return nil
}

// WriteJudged writes how the own log of a partition was judged, with a proof, as Write does.
func (f *Follower) WriteJudged(ctx context.Context, cl *kgo.Client, x Judged) error {
	x.Prove(f.cfg.Region, f.secret())
	return Write(ctx, cl, TopicControl, x)
}

// Judged is how the own log of a partition of the topic with this id was judged; without its
// proof, which was checked.
func (f *Follower) Judged(topic string, id event.TopicID, num int32) (Judged, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok := f.judged[progressKey{f.cfg.Region, topic, num}]
	return x, ok && x.ID == id
}
