package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is how much garbage piles up, as a share of what is in use, before it is
	// collected. What is in use under load is mostly bytes without pointers, so collecting
	// twice as often as Go does by default costs little and saves a quarter of the memory.
	gcPercent = 50
	// leastGarbage is how much garbage piles up in any case. Where little is in use, for
	// instance while entities are read, half of that would fill up many times a second.
	leastGarbage = 64 << 20
	// mostPercent bounds the share where next to nothing is in use, as at the start.
	mostPercent = 400
)

// gcPercentFor is the share of what is in use that may pile up as garbage. Each new value
// stops the program for a moment, so it changes in steps of ten percent.
func gcPercentFor(inUse uint64) int {
	return int(min(max(leastGarbage*10/max(inUse, 1)*10, gcPercent), mostPercent))
}

// paceCollector sets how much garbage may pile up, now and after each collection.
func paceCollector() {
	debug.SetGCPercent(mostPercent)
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	afterCollection(func(percent int) int {
		metrics.Read(inUse)
		if next := gcPercentFor(inUse[0].Value.Uint64()); next != percent {
			debug.SetGCPercent(next)
			return next
		}
		return percent
	}, mostPercent)
}

// afterCollection calls fn after each collection, with what it returned the last time.
func afterCollection(fn func(int) int, last int) {
	type garbage struct{ _ [16]byte }
	runtime.AddCleanup(new(garbage), func(last int) { afterCollection(fn, fn(last)) }, last)
}
