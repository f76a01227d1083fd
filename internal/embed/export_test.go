package embed

import (
	"log/slog"
	"net"
	"time"
)

// NewFront is a front with limits of a test.
func NewFront(ln net.Listener, held, connections int) net.Listener {
	f := newFront(ln, slog.New(slog.DiscardHandler), newFailure())
	f.maxHeld, f.maxConnections = held, connections
	f.acceptClients(nil)
	return f
}

// Held is how many bytes of requests a front holds.
func Held(ln net.Listener) int {
	f := ln.(*front)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// CleanKafka cleans a directory as of a time. It calls step before each change of a file.
func CleanKafka(dir string, now time.Time, step func(string) error) error {
	c := newCleaner(dir, slog.New(slog.DiscardHandler), now)
	if step != nil {
		c.step = step
	}
	return c.run()
}

// RecoverKafka repairs a directory that a killed process left.
func RecoverKafka(dir string) error { return recoverKafka(dir, slog.New(slog.DiscardHandler)) }

// MarkerBatch is the end of a transaction, as it lies in a log.
func MarkerBatch(offset, producer int64, epoch int16, commit bool, now int64) []byte {
	return markerBatch(offset, 0, txnID{producer, epoch}, commit, now)
}

// IndexOf is the index of a segment.
func IndexOf(segment []byte) (index []byte) {
	newest := int64(0)
	for len(segment) > 0 {
		b, size, ok := parseBatch(segment)
		if !ok {
			break
		}
		newest = max(newest, b.maxTime)
		index = append(index, indexOf(b, newest)...)
		segment = segment[size:]
	}
	return index
}
