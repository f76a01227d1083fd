package cutproxy

import (
	"errors"
	"io"
	"net"
)

// pour carries one direction of a connection whose bytes are nobody's business
// until its source ends. A reset is passed on as one.
func (p *Proxy) pour(to net.Conn, from io.Reader, direction int) {
	_, err := io.Copy(&spout{p, to, direction}, from)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		reset(to)
	}
}

// spout writes to a connection what the proxy does not swallow.
type spout struct {
	p         *Proxy
	to        io.Writer
	direction int
}

// Write implements io.Writer.
func (s *spout) Write(b []byte) (int, error) {
	s.p.mu.Lock()
	deaf := s.p.deaf[s.direction]
	s.p.mu.Unlock()
	if deaf {
		return len(b), nil
	}
	return s.to.Write(b)
}
