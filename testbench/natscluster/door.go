package natscluster

import (
	"errors"
	"io"
	"net"
	"sync"
)

var errShut = errors.New("natscluster: the door is shut")

// Door is a client's way to servers in process, on which everything can get lost
// without either side being told. It implements nats.InProcessConnProvider.
type Door struct {
	dial func() (net.Conn, error)

	mu   sync.Mutex
	shut bool
	open map[*line]struct{}
}

// NewDoor makes a door whose connections dial makes, one call at a time.
func NewDoor(dial func() (net.Conn, error)) *Door {
	return &Door{dial: dial, open: make(map[*line]struct{})}
}

// InProcessConn gives a connection; there is none while the door is shut.
func (d *Door) InProcessConn() (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return nil, errShut
	}
	conn, err := d.dial()
	if err != nil {
		return nil, err
	}
	l := &line{Conn: conn, d: d}
	d.open[l] = struct{}{}
	return l, nil
}

// Shut lets nothing through in either direction, until Open.
func (d *Door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for l := range d.open {
		l.lose(true, true)
	}
}

// Open takes Shut back. Connections that have lost something end, as they do when
// packets have been lost for too long.
func (d *Door) Open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = false
	for l := range d.open {
		if mute, deaf := l.losing(); mute || deaf {
			l.Conn.Close()
			delete(d.open, l)
		}
	}
}

// Deafen loses what servers answer on the connections that there are, until Break.
func (d *Door) Deafen() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.open {
		l.lose(false, true)
	}
}

// Break ends every connection; the client connects again.
func (d *Door) Break() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.open {
		l.Conn.Close()
	}
	clear(d.open)
}

// line is one connection of a client.
type line struct {
	net.Conn
	d *Door

	mu   sync.Mutex
	mute bool // what the client sends is lost
	deaf bool // what the server sends is lost
}

func (l *line) lose(sent, heard bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute, l.deaf = l.mute || sent, l.deaf || heard
}

func (l *line) losing() (mute, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mute, l.deaf
}

// Write implements net.Conn; what is sent while the line is mute is lost.
func (l *line) Write(b []byte) (int, error) {
	if mute, _ := l.losing(); mute {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

// Read implements net.Conn; what comes while the line is deaf is lost.
func (l *line) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		_, deaf := l.losing()
		switch {
		case !deaf:
			return n, err
		case err != nil:
			return 0, io.ErrUnexpectedEOF
		}
	}
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.d.mu.Lock()
	delete(l.d.open, l)
	l.d.mu.Unlock()
	return l.Conn.Close()
}
