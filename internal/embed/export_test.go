package embed

import (
	"log/slog"
	"net"
)

// NewFront is a front with limits of a test.
func NewFront(ln net.Listener, held, connections int) net.Listener {
	f := newFront(ln, slog.New(slog.DiscardHandler), newFailure())
	f.maxHeld, f.maxConnections = held, connections
	return f
}

// Held is how many bytes of requests a front holds.
func Held(ln net.Listener) int {
	f := ln.(*front)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}
