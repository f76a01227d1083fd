//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// look is what the logs and the merged topics have of what was answered.
type look struct {
	writers []*writer
	// expires: logs have lost their beginnings. What they have must be right and without a
	// hole from the first record of each key on.
	expires bool
	void    int
	wrong   []error // the first of them
	more    int     // how many more there are
}

// look compares everything that the writers were told with both regions' logs, merged
// topics and entities.
func (w *world) look(ctx context.Context, writers []*writer, expires bool) (*look, error) {
	l := &look{writers: writers, expires: expires}
	for _, topic := range []string{entityTopic, eventTopic} {
		for _, r := range w.regions() {
			if err := l.log(ctx, r, topic); err != nil {
				return nil, err
			}
			if err := l.merged(ctx, r, topic); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range w.regions() {
		if err := l.entities(ctx, r); err != nil {
			return nil, err
		}
	}
	if len(l.wrong) > 0 {
		return nil, fmt.Errorf("%d things are wrong: %w", len(l.wrong)+l.more, errors.Join(l.wrong...))
	}
	return l, nil
}

func (l *look) note(format string, args ...any) {
	if len(l.wrong) >= 20 {
		l.more++
		return
	}
	l.wrong = append(l.wrong, fmt.Errorf(format, args...))
}

// seen is which records of each writer were met, and the last of each key.
type seen struct {
	met  [][]bool
	last []map[int]int // by writer: the highest number of each key
}

func (l *look) seen() *seen {
	s := &seen{}
	for _, wr := range l.writers {
		s.met, s.last = append(s.met, make([]bool, len(wr.acked))), append(s.last, map[int]int{})
	}
	return s
}

// writerOf finds out which writer wrote a value, and its number; ok is false for what no
// writer wrote.
func (l *look) writerOf(value []byte) (wr *writer, n int, ok bool) {
	if !bytes.HasPrefix(value, []byte(`{"w":`)) {
		return nil, 0, false
	}
	id, ok1 := numberIn(value, `"w":`)
	number, ok2 := numberIn(value, `"n":`)
	if !ok1 || !ok2 || int(id) >= len(l.writers) {
		return nil, 0, false
	}
	return l.writers[id], int(number), true
}

// take notes that a record counts in a place, once, and after those before it of its key.
func (s *seen) take(l *look, wr *writer, n int, where string, rec *kgo.Record) {
	switch {
	case n >= len(wr.acked):
		l.note("%s has record %d of writer %d at %d/%d, which was never sent", where, n, wr.id, rec.Partition, rec.Offset)
		return
	case s.met[wr.id][n]:
		l.note("%s has record %d of writer %d twice, again at %d/%d", where, n, wr.id, rec.Partition, rec.Offset)
	case string(rec.Key) != wr.keyOf(n):
		l.note("%s has record %d of writer %d under key %q", where, n, wr.id, rec.Key)
	}
	s.met[wr.id][n] = true
	if last, ok := s.last[wr.id][n%writerKeys]; ok && last > n {
		l.note("%s has record %d of writer %d at %d/%d behind record %d of the same key", where, n, wr.id, rec.Partition, rec.Offset, last)
	}
	s.last[wr.id][n%writerKeys] = n
}

// whole notes what is missing of the writers that of accepts.
func (s *seen) whole(l *look, where string, of func(*writer) bool) {
	for i, wr := range l.writers {
		if !of(wr) {
			continue
		}
		begun := make([]bool, writerKeys) // by key
		for n, met := range s.met[i] {
			k := n % writerKeys
			if begun[k] = begun[k] || met || !l.expires || n == lastOf(wr, k); begun[k] && !met {
				l.note("%s lacks record %d of writer %d, stored at %d/%d", where, n, wr.id, wr.acked[n].partition, wr.acked[n].offset)
			}
		}
	}
}

// log: each answered record is valid once in its region's log, where its answer says.
func (l *look) log(ctx context.Context, r *region, topic string) error {
	where := fmt.Sprintf("the log of %s in %s", topic, r.name)
	judge, s := client.NewJudge(event.RegionID(r.id), topic), l.seen()
	err := r.scan(ctx, topic, kgo.ReadUncommitted(), func(rec *kgo.Record) {
		got, marker, err := judge.Judge(rec)
		if err != nil {
			l.note("%s: %w", where, err)
			return
		}
		wr, n, ok := l.writerOf(got.Value)
		switch {
		case marker || !ok:
			return
		case got.Void:
			l.void++
			return
		case n < len(wr.acked) && wr.acked[n] != stored{rec.Partition, rec.Offset}:
			l.note("%s has record %d of writer %d at %d/%d, answered as %d/%d", where, n, wr.id, rec.Partition, rec.Offset, wr.acked[n].partition, wr.acked[n].offset)
		}
		s.take(l, wr, n, where, rec)
	})
	s.whole(l, where, func(wr *writer) bool { return wr.region == r && wr.topic == topic })
	return err
}

// merged: events are shown once each; of an entity the last record is shown last.
func (l *look) merged(ctx context.Context, r *region, topic string) error {
	where := fmt.Sprintf("the merged topic of %s in %s", topic, r.name)
	s := l.seen()
	err := r.scan(ctx, topic+".merged", kgo.ReadCommitted(), func(rec *kgo.Record) {
		if wr, n, ok := l.writerOf(rec.Value); ok && !rec.Attrs.IsControl() {
			s.take(l, wr, n, where, rec)
		}
	})
	if topic == eventTopic {
		s.whole(l, where, func(wr *writer) bool { return wr.topic == topic })
		return err
	}
	for i, wr := range l.writers {
		for k := range min(writerKeys, len(wr.acked)) {
			if want := lastOf(wr, k); wr.topic == topic && s.last[i][k] != want {
				l.note("%s ends with record %d of key %s, written last is %d", where, s.last[i][k], wr.keyOf(k), want)
			}
		}
	}
	return err
}

// lastOf is the writer's last record of its k-th key.
func lastOf(wr *writer, k int) int {
	n := len(wr.acked) - 1
	return n - (n-k)%writerKeys
}

// entities: a region shows what was written last.
func (l *look) entities(ctx context.Context, r *region) error {
	for _, wr := range l.writers {
		if wr.topic != entityTopic {
			continue
		}
		for k := range min(writerKeys, len(wr.acked)) {
			e, err := r.client.Entity(ctx, entityTopic, wr.keyOf(k), "", "")
			if err != nil {
				return fmt.Errorf("read entity %s in %s: %w", wr.keyOf(k), r.name, err)
			}
			if e.Value == nil {
				l.note("entity %s has no value in %s", wr.keyOf(k), r.name)
				continue
			}
			if _, n, ok := l.writerOf(e.Value.Data); !ok || n != lastOf(wr, k) {
				l.note("entity %s in %s is record %d, written last is %d", wr.keyOf(k), r.name, n, lastOf(wr, k))
			}
		}
	}
	return nil
}
