package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/warning"
)

const (
	// leastFree is how much room an instance needs to go on. Its store maps files into
	// memory that have more bytes than blocks, and the system ends a process that
	// writes where no block can be had: so it ends by itself before that, in order.
	leastFree = 64 * strict.MiB
	// lowFree is where the status begins to warn.
	lowFree = 512 * strict.MiB
	// diskEvery is short enough for what an instance can write meanwhile, and so is
	// diskSeldom where there is plenty.
	diskEvery  = 250 * time.Millisecond
	diskSeldom = 2 * time.Second
	plentyFree = 8 * strict.GiB
)

// ErrDiskFull is returned by New, and by a component, when the data directory has too
// little room. What was answered is in Kafka; with room, another start goes on.
var ErrDiskFull = errors.New("the disk of the data directory is full")

// disk watches the room in the data directory, and in what may be mounted there.
type disk struct {
	dirs []string
	ask  func(dir string) (free int64, ok bool)
	free atomic.Int64 // -1 where it is not known
}

func newDisk(dir string) *disk {
	d := &disk{ask: freeBytes, dirs: []string{dir, filepath.Join(dir, "store"), filepath.Join(dir, "kafka"), filepath.Join(dir, "nats")}}
	d.free.Store(-1)
	return d
}

// look finds out where the least room is.
func (d *disk) look() error {
	least, where := int64(-1), ""
	for _, dir := range d.dirs {
		if n, ok := d.ask(dir); ok && (least < 0 || n < least) {
			least, where = n, dir
		}
	}
	d.free.Store(least)
	if least >= 0 && least < int64(leastFree) {
		return fmt.Errorf("%w: %s has %d MiB left, at least %s are needed; make room and start again", ErrDiskFull, where, least/int64(strict.MiB), leastFree)
	}
	return nil
}

// Run watches until ctx is done. It ends by itself when there is too little room.
func (d *disk) Run(ctx context.Context) error {
	for {
		pause := diskEvery
		if d.free.Load() > int64(plentyFree) {
			pause = diskSeldom
		}
		if sleep.For(ctx, pause) != nil {
			return nil
		}
		if err := d.look(); err != nil {
			return err
		}
	}
}

// Warnings implements warner.
func (d *disk) Warnings(out *warning.List) {
	if n := d.free.Load(); n >= 0 && n < int64(lowFree) {
		out.Add(warning.DiskLow, d.dirs[0], "%d MiB are left in the data directory; the instance stops below %s", n/int64(strict.MiB), leastFree)
	}
}
