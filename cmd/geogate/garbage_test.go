package main

import (
	"runtime"
	"testing"
)

// TestGarbageHasRoom: garbage may reach half of what is in use, and enough that a process with
// little in use does not collect all the time.
func TestGarbageHasRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		inUse uint64
		want  int
	}{
		{0, 400}, {4 << 20, 400}, {32 << 20, 200}, {64 << 20, 100}, {100 << 20, 60}, {128 << 20, 50}, {1 << 30, 50},
	} {
		if got := gcPercentFor(c.inUse); got != c.want {
			t.Errorf("%d MiB in use: garbage may be %d %%, want %d", c.inUse>>20, got, c.want)
		}
	}
}

// TestEachCollectionIsSeen: the function is called after every collection.
func TestEachCollectionIsSeen(t *testing.T) {
	t.Parallel()
	seen := make(chan int, 1)
	afterCollection(func(n int) int {
		if n < 3 {
			seen <- n
		}
		return n + 1
	}, 0)
	for want := range 3 {
		for got := -1; got != want; {
			runtime.GC()
			select {
			case got = <-seen:
			default:
				runtime.Gosched()
			}
		}
	}
}
