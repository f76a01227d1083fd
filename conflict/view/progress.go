package view

import (
	"context"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/txn"
)

// tellNow is the progress that a step writes beside what it folds: none if the last
// one is younger than ProgressEvery.
func (v *View) tellNow(now time.Time) (p control.Progress, ok bool) {
	if now.Sub(v.toldAt) < v.cfg.ProgressEvery {
		return p, false
	}
	return v.progress()
}

// publish writes progress when there is nothing to fold. While nothing happens to a
// partition only the closed stamp rises, with the clock: that is worth a transaction
// here, and one of every link that copies it, much less often than news is.
func (v *View) publish(ctx context.Context) error {
	now := v.cfg.Wall()
	p, ok := v.progress()
	if !ok || now.Sub(v.toldAt) < v.cfg.IdleProgressEvery && !news(&p, &v.told) {
		return nil
	}
	if _, err := v.commit(ctx, []txn.Record{progressRecord(&p, now)}); err != nil {
		return err
	}
	v.told, v.toldAt = p, now
	return nil
}

// progress is what the seat may say of the partition; ok is false while that is
// nothing.
func (v *View) progress() (p control.Progress, ok bool) {
	if v.cfg.Claims == nil {
		return p, false
	}
	cl, ok := v.cfg.Claims()
	return control.Progress{
		ID: v.cfg.ID, Partition: v.cfg.Partition, Topic: v.cfg.Topic,
		End: cl.End, Closed: cl.Closed, Promised: cl.Promised,
		Ownership: v.at.Ownership, Incarnation: v.at.Incarnations,
	}, ok
}

// news tells whether progress says more than a later closed stamp.
func news(p, told *control.Progress) bool {
	same := *told
	same.Closed = p.Closed
	return *p != same
}

func progressRecord(p *control.Progress, now time.Time) txn.Record {
	return txn.Record{Topic: control.TopicControl, Key: p.AppendKey(nil), Value: p.AppendValue(nil), Timestamp: now.UnixMilli()}
}
