package view

import (
	"context"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/txn"
)

// confirms counts the calls of Confirm.
type confirms struct {
	asked uint64 // calls so far
	told  uint64 // calls that were told that the view holds the partition
}

// Confirm implements seat.Folder.
func (v *View) Confirm(ctx context.Context) error {
	v.mu.Lock()
	v.confirms.asked++
	mine := v.confirms.asked
	v.waiters++ // no step is to wait for more
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		v.waiters--
		v.mu.Unlock()
	}()
	v.wakeUp()
	v.hurry()
	for {
		v.mu.Lock()
		told, err, moved := v.confirms.told, v.ended, v.moved
		v.mu.Unlock()
		switch {
		case told >= mine:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// asked is how many calls of Confirm there were by now, and whether one of them waits.
func (v *View) asked() (n uint64, waits bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.confirms.asked, v.confirms.asked > v.confirms.told
}

// confirmed tells the calls that came before a transaction began that it was committed.
func (v *View) confirmed(asked uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.confirms.told = max(v.confirms.told, asked)
	v.notify()
}

// vectorAgain is the vector record as it is committed: it makes a transaction for a view
// that has nothing else to write.
func (v *View) vectorAgain() txn.Record {
	return txn.Record{
		Topic: control.StateOf(v.cfg.Topic), Partition: v.cfg.Partition,
		Key: vectorKey(), Value: v.at.append(nil), Timestamp: v.cfg.Wall().UnixMilli(),
	}
}
