package gateway

import (
	"net"
	"sync"
)

// limitedListener bounds the connections that are open at a time. One that is too
// many, or too many for its address, is closed at once: nothing was read from it.
type limitedListener struct {
	net.Listener
	open    *shares
	refused func() // called for each that is closed
}

// listen binds a listener's address. refused is called for each connection that is
// closed because there are too many.
func (l ListenerConfig) listen(refused func()) (*limitedListener, error) {
	ln, err := net.Listen("tcp", l.Listen)
	if err != nil {
		return nil, err
	}
	return &limitedListener{Listener: ln, open: newShares(int64(l.MaxConnections)), refused: refused}, nil
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := peerOf(c.RemoteAddr().String())
		if l.open.take(p, 1) {
			return &limitedConn{Conn: c, give: sync.OnceFunc(func() { l.open.give(p, 1) })}, nil
		}
		l.refused()
		_ = c.Close()
	}
}

// limitedConn counts until it is closed.
type limitedConn struct {
	net.Conn
	give func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.give()
	return c.Conn.Close()
}
