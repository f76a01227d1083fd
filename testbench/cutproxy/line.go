package cutproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Line is a TCP proxy that looks at nothing: one direction of a link between two
// servers of any protocol. All methods may be called at any time from any
// goroutine.
type Line struct {
	to string
	ln net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	cut   bool
	deaf  [2]bool // swallows what comes from the dialling side, from the other

	work sync.WaitGroup // every goroutine; Close waits for it
}

// StartLine listens on a free loopback port for connections that go to an
// address. Nothing need listen there yet.
func StartLine(to string) (*Line, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for line: %w", err)
	}
	l := &Line{to: to, ln: ln, conns: make(map[net.Conn]struct{})}
	l.work.Go(l.accept)
	return l, nil
}

// Addr is where the line begins; it stays the same.
func (l *Line) Addr() string { return l.ln.Addr().String() }

// Cut resets every connection, and new ones at once, until Heal. The line keeps
// its port, which would be somebody else's before long.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.dropLocked()
}

// Swallow keeps connections open and carries nothing on from the dialling side
// (forth), from the other one (back), or both: what is swallowed is lost, and
// so Heal resets those connections.
func (l *Line) Swallow(forth, back bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = [2]bool{l.deaf[0] || forth, l.deaf[1] || back}
}

// Heal carries everything again.
func (l *Line) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf != [2]bool{} {
		l.dropLocked()
	}
	l.cut, l.deaf = false, [2]bool{}
}

// Close ends the line and waits for its goroutines.
func (l *Line) Close() {
	l.ln.Close()
	l.Cut()
	l.work.Wait()
}

func (l *Line) dropLocked() {
	for c := range l.conns {
		reset(c)
	}
	clear(l.conns)
}

func (l *Line) accept() {
	for {
		from, err := l.ln.Accept()
		if err != nil {
			return
		}
		l.work.Go(func() { l.carry(from) })
	}
}

// carry connects one connection with the other end until one of both ends.
func (l *Line) carry(from net.Conn) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		reset(from)
		return
	}
	to, err := net.DialTimeout("tcp", l.to, dialWait)
	if err != nil {
		reset(from)
		return
	}
	l.mu.Lock()
	if l.cut {
		l.mu.Unlock()
		reset(from)
		reset(to)
		return
	}
	l.conns[from], l.conns[to] = struct{}{}, struct{}{}
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pump(to, from, 0) })
	both.Go(func() { l.pump(from, to, 1) })
	both.Wait()
	l.mu.Lock()
	delete(l.conns, from)
	delete(l.conns, to)
	l.mu.Unlock()
}

// pump carries one direction; when it ends, so does the other.
func (l *Line) pump(dst, src net.Conn, direction int) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !l.swallows(direction) {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				reset(dst)
			}
			return
		}
	}
}

func (l *Line) swallows(direction int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf[direction]
}
