package gateway

import (
	"net/http"
	"strconv"
	"time"
)

// answer records whether an answer has started, and with what status.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// unreadPatience is how long a read waits for its share of what waits to be read
// before it is answered 429.
const unreadPatience = 10 * time.Second

// send answers 200 with a whole body.
func (c *call) send(contentType string, body []byte) error {
	room := c.room()
	defer room.release()
	if err := room.resize(c.r.Context(), int64(len(body)), c.patience); err != nil {
		return err
	}
	return c.deliver(contentType, body)
}

// room is a hold for an answer until the client has taken it.
func (c *call) room() hold { return hold{of: c.unread, by: c.peer} }

// deliver answers 200 with a whole body for which there is room.
func (c *call) deliver(contentType string, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	return c.write(body)
}

// write writes the next bytes of an answer, as fast as the client takes them, but
// not slower than a part in partTime.
func (c *call) write(b []byte) error {
	for len(b) > 0 {
		n := min(partSize, len(b))
		_ = c.rc.SetWriteDeadline(time.Now().Add(c.partTime))
		if _, err := c.w.Write(b[:n]); err != nil {
			return errGone
		}
		b = b[n:]
	}
	return nil
}

// readDeadline is set before each read of a body; a stream as a whole has none. A
// test's writer has no deadlines, which is fine.
func (c *call) readDeadline(d time.Duration) { _ = c.rc.SetReadDeadline(time.Now().Add(d)) }

// parts is an answer that leaves in parts while it is made, so that a client who
// does not take it holds little. One that ends within its first part is sent whole,
// with its length; until then an error is still answered as a problem.
type parts struct {
	c           *call
	contentType string
	begin       func() // called before the header leaves
	buf         []byte
	started     bool
	prompt      bool // what there is leaves before the next record is waited for
	sent        int  // bytes that have left
}

// fullPart is the size from which on a part leaves: what one more record adds still fits into
// one most of the time.
const fullPart = partSize - 4<<10

// size is how large the answer is so far.
func (p *parts) size() int { return p.sent + len(p.buf) }

// flush sends what there is once it fills a part.
func (p *parts) flush() error {
	if len(p.buf) < fullPart {
		return nil
	}
	return p.send()
}

// flushAll sends what there is, past what the server buffers.
func (p *parts) flushAll() error {
	if len(p.buf) == 0 {
		return nil
	}
	if err := p.send(); err != nil {
		return err
	}
	_ = p.c.rc.Flush()
	return nil
}

func (p *parts) send() error {
	if !p.started {
		p.begin()
		p.started = true
		p.c.w.Header().Set("Content-Type", p.contentType)
		p.c.w.WriteHeader(http.StatusOK)
	}
	p.sent += len(p.buf)
	err := p.c.write(p.buf)
	p.buf = p.buf[:0]
	if cap(p.buf) > 2*partSize { // of a large record
		p.buf = nil
	}
	return err
}

// close sends the rest.
func (p *parts) close() error {
	if !p.started {
		p.begin()
		return p.c.deliver(p.contentType, p.buf)
	}
	return p.c.write(p.buf)
}
