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

// rssOf is how much memory of a process is resident, in bytes.
func rssOf(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

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
	peak int64
}

func watchMemory(pid int) *memory {
	m := &memory{stop: make(chan struct{}), peak: rssOf(pid)}
	m.done.Go(func() {
		every := time.NewTicker(50 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-every.C:
				m.peak = max(m.peak, rssOf(pid))
			}
		}
	})
	return m
}

// most ends the watch.
func (m *memory) most() int64 {
	close(m.stop)
	m.done.Wait()
	return m.peak
}
