package gateway

import (
	"errors"
	"io"
	"net"
	"time"
)

// partSize is how much memory is taken at first for a body, and how much of a body or
// an answer has to move within partTime: slower clients are cut off.
const partSize = 64 << 10

// readBody reads the request's body whole. What it says of its length takes no
// memory: the shares are asked for what has arrived, in steps. most bounds a body
// whose length the request does not tell. The hold has what the body takes; it is
// released by the caller, also after an error.
func (c *call) readBody(h *hold, most int64) (body []byte, err error) {
	limit := most + 1 // one more byte shows that it is too long
	if c.r.ContentLength >= 0 {
		limit = c.r.ContentLength
	}
	body = []byte{} // nil is a tombstone
	pace := c.newPace()
	for int64(len(body)) < limit {
		if len(body) == cap(body) {
			size := min(max(partSize, 2*int64(cap(body))), limit)
			if err := h.resize(c.r.Context(), size, 0); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		pace.before()
		n, err := c.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		pace.moved(n)
		switch {
		case errors.Is(err, io.EOF) && c.r.ContentLength < 0:
			limit = int64(len(body))
		case err != nil && int64(len(body)) < limit:
			return nil, unreadable(err)
		}
	}
	if int64(len(body)) > most {
		return nil, newProblem(codeBodyTooLarge, "the body has more than %d bytes (http.max_body)", most)
	}
	return body, nil
}

// pace sets the read deadlines of a body: a part at least, or the rest of the body,
// within each partTime. Only the time that is spent reading counts.
type pace struct {
	c     *call
	until time.Time
	owed  int
	last  time.Time // end of the last read
}

func (c *call) newPace() *pace { return &pace{c: c} }

// before is called before each read.
func (p *pace) before() {
	if now := time.Now(); p.owed <= 0 {
		p.until, p.owed = now.Add(p.c.partTime), partSize
	} else {
		p.until = p.until.Add(now.Sub(p.last))
	}
	_ = p.c.rc.SetReadDeadline(p.until)
}

// moved takes note of what a read has given.
func (p *pace) moved(n int) { p.owed, p.last = p.owed-n, time.Now() }

// unreadable is what ends a request whose body cannot be read: no answer, when
// the client has gone or was too slow; a problem, when the client is there and
// its chunks break the framing of HTTP/1.1.
func unreadable(err error) error {
	var broken net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, &broken) {
		return errGone
	}
	return invalid(codeMalformed, fieldError{Detail: "the body's chunked encoding is not valid"})
}
