//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tick is the unit of times in /proc/<pid>/stat, the same on every Linux that Go
// supports.
const tick = 10 * time.Millisecond

// cpuOf is the CPU time that a process has used, user and system; 0 if it is gone.
func cpuOf(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may hold anything.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}

// ownCPU is the CPU time of this process, the load generator.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// resident is how much memory of a process is resident, in bytes.
type resident struct {
	all int64
	// anonymous is what is not pages of files: pages of the store's files are resident as
	// long as nobody else wants the memory.
	anonymous int64
}

// residentOf is the memory of a process, nothing if it is gone.
func residentOf(pid int) resident {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return resident{}
	}
	fields := strings.Fields(string(raw)) // size, resident, shared: pages of files and of shared memory
	if len(fields) < 3 {
		return resident{}
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	shared, _ := strconv.ParseInt(fields[2], 10, 64)
	page := int64(os.Getpagesize())
	return resident{pages * page, (pages - shared) * page}
}

// mib are bytes in MiB.
func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// cost is the CPU time of everything that takes part.
type cost struct{ Gateway, Peer, Broker, PeerBroker, Witness, Generator time.Duration }

func (w *world) cost() cost {
	c := cost{Gateway: cpuOf(w.us.pid()), Generator: ownCPU(), Peer: cpuOf(w.eu.pid())}
	if w.us.broker != nil {
		c.Broker, c.PeerBroker = cpuOf(w.us.broker.Pid()), cpuOf(w.eu.broker.Pid())
	}
	if w.witness != nil {
		c.Witness = cpuOf(w.witness.Pid())
	}
	return c
}

func (c cost) since(before cost) cost {
	return cost{
		c.Gateway - before.Gateway, c.Peer - before.Peer, c.Broker - before.Broker,
		c.PeerBroker - before.PeerBroker, c.Witness - before.Witness, c.Generator - before.Generator,
	}
}

// memory follows the resident memory of a process until it is asked for the most.
type memory struct {
	stop chan struct{}
	done sync.WaitGroup
	peak resident // of each at its time
}

func watchMemory(pid int) *memory {
	m := &memory{stop: make(chan struct{}), peak: residentOf(pid)}
	m.done.Go(func() {
		every := time.NewTicker(50 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-every.C:
				now := residentOf(pid)
				m.peak = resident{max(m.peak.all, now.all), max(m.peak.anonymous, now.anonymous)}
			}
		}
	})
	return m
}

// most ends the watch.
func (m *memory) most() resident {
	close(m.stop)
	m.done.Wait()
	return m.peak
}

// blocksOf are the bytes of the blocks that a file takes, 0 if it is gone.
func blocksOf(path string) int64 {
	var s syscall.Stat_t
	if syscall.Stat(path, &s) != nil {
		return 0
	}
	return s.Blocks * 512
}
