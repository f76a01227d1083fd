package view

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/txn"
)

const (
	// longestPause is the longest time between two looks at what there is to tell: what
	// changes without waking the view is seen by then.
	longestPause = 30 * time.Second
	// idlePhases is over how long the seats of an instance spread their progress when they
	// rest: all at one moment, so that a link carries many in one transaction, but not so
	// that a write waits behind a thousand of them.
	idlePhases = 2 * time.Second
)

// progressSchedule decides when the progress of a partition is written: within every of news, and
// every idle while there is none but a later closed stamp. It takes no clock.
type progressSchedule struct {
	every, idle time.Duration
	phase       time.Duration // of the moments at which a resting partition tells

	told   control.Progress // the last that was committed
	toldAt time.Time        // when; zero: not by this process
	pause  time.Duration    // to the look after the next
	lookAt time.Time        // when to look whether there is news
}

// newProgressSchedule makes the schedule of one partition of a topic.
func newProgressSchedule(topic string, partition int32, every, idle time.Duration) *progressSchedule {
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic))
	_, _ = h.Write([]byte{byte(partition >> 8), byte(partition)})
	t := &progressSchedule{every: every, idle: idle}
	if spread := min(idlePhases, idle/10); spread > 0 {
		t.phase = time.Duration(h.Sum32()) * time.Millisecond % spread
	}
	return t
}

// published takes over what an earlier process told last: it is not told again.
func (t *progressSchedule) published(p control.Progress, now time.Time) {
	if t.toldAt.IsZero() {
		t.told, t.toldAt = p, now
	}
}

// wrote notes that p was committed.
func (t *progressSchedule) wrote(p control.Progress, now time.Time) {
	t.told, t.toldAt = p, now
	t.changed(now)
}

// changed has the next look come as soon as news may be written.
func (t *progressSchedule) changed(now time.Time) {
	t.follow(now)
	t.pause = t.every
	if at := t.toldAt.Add(t.every); t.lookAt.IsZero() || at.Before(t.lookAt) {
		t.lookAt = at
	}
	if t.lookAt.Before(now) {
		t.lookAt = now
	}
}

// follow follows a wall clock that was set back.
func (t *progressSchedule) follow(now time.Time) {
	if now.Before(t.toldAt) {
		t.toldAt = now
	}
	if t.lookAt.Sub(now) > longestPause {
		t.lookAt = now
	}
}

// mayTell tells whether news may be written now.
func (t *progressSchedule) mayTell(now time.Time) bool {
	t.follow(now)
	return now.Sub(t.toldAt) >= t.every
}

// look tells whether p is to be written now. ok is false where there is nothing to tell
// yet. A caller that is told to write calls wrote.
func (t *progressSchedule) look(now time.Time, p *control.Progress, ok bool) (write bool) {
	t.pause = min(max(t.pause, t.every), longestPause)
	t.lookAt = now.Add(t.pause)
	t.pause *= 2
	switch {
	case !ok:
		return false
	case !t.mayTell(now):
		if news(p, &t.told) {
			t.lookAt = t.toldAt.Add(t.every)
		}
		return false
	case news(p, &t.told) || !now.Before(t.idleAt()):
		return true
	}
	if at := t.idleAt(); at.Before(t.lookAt) {
		t.lookAt = at
	}
	return false
}

// idleAt is when progress is written although it has no news.
func (t *progressSchedule) idleAt() time.Time {
	return t.toldAt.Add(-t.phase).Truncate(t.idle).Add(t.idle + t.phase)
}

// wait is how long there is nothing to look at if nothing changes.
func (t *progressSchedule) wait(now time.Time) time.Duration {
	t.follow(now)
	return max(t.lookAt.Sub(now), 0)
}

// tellNow is the progress that a step writes beside what it folds: none if the last
// one is younger than ProgressEvery.
func (v *View) tellNow(now time.Time) (p control.Progress, ok bool) {
	if !v.schedule.mayTell(now) {
		return p, false
	}
	return v.progress()
}

// publish writes progress if there is something to tell. While nothing happens to a
// partition only the closed stamp rises, with the clock: that is worth a transaction
// here, and one of every link that copies it, much less often than news is. It writes at
// once if somebody waits in Confirm.
func (v *View) publish(ctx context.Context) error {
	now := v.cfg.Wall()
	asked, waits := v.asked()
	if !waits && v.schedule.wait(now) > 0 {
		return nil
	}
	if err := v.lookFrontier(now); err != nil {
		return err
	}
	p, ok := v.progress()
	if ok && v.cfg.Published != nil {
		if before, known := v.cfg.Published(); known {
			v.schedule.published(before, now)
		}
	}
	if !v.schedule.look(now, &p, ok) && !waits {
		return nil
	}
	packing, rec := v.producer.Pack(), progressRecord(&p, now)
	if !ok {
		rec = v.vectorAgain()
	}
	if err := packing.Add(&rec); err != nil {
		return err
	}
	release, err := v.turn(ctx)
	if err != nil {
		return err
	}
	_, err = v.commit(ctx, packing)
	release()
	if err != nil {
		return err
	}
	if ok {
		v.schedule.wrote(p, now)
	}
	v.confirmed(asked)
	return nil
}

// Look has the view look whether the seat has something to tell.
func (v *View) Look() { v.wakeUp() }

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
		Ownership: v.at.Ownership, Incarnation: v.at.Incarnations, Counted: cl.Counted, Floor: v.settled.floor,
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
