package gateway

import (
	"errors"
	"io"
	"net"
	"slices"
)

// bodyStep is how much memory is taken at a time for a body of unknown length.
const bodyStep = 64 << 10

// readBody reads the request's body whole, into memory that the budget has
// granted before anything is read. most bounds a body whose length the request
// does not tell. release gives the memory back; it is never nil.
func (c *call) readBody(b *budget, most int64) (body []byte, release func(), err error) {
	var held int64
	take := func(n int64) error {
		if !b.take(n) {
			return b.exhausted()
		}
		held += n
		return nil
	}
	if c.r.ContentLength >= 0 {
		body, err = c.readKnown(take)
	} else {
		body, err = c.readChunked(take, most)
	}
	return body, func() { b.give(held) }, err
}

// readKnown reads a body whose length the request tells.
func (c *call) readKnown(take func(n int64) error) ([]byte, error) {
	if err := take(c.r.ContentLength); err != nil {
		return nil, err
	}
	body := make([]byte, c.r.ContentLength)
	for got := 0; got < len(body); {
		c.readDeadline(bodyTime)
		n, err := c.r.Body.Read(body[got:])
		if got += n; got < len(body) && err != nil {
			return nil, unreadable(err)
		}
	}
	return body, nil
}

// readChunked reads a body whose length shows at its end.
func (c *call) readChunked(take func(n int64) error, most int64) (body []byte, err error) {
	var taken int64
	for {
		if int64(len(body)) > most {
			return nil, newProblem(codeBodyTooLarge, "the body has more than %d bytes (http.max_body)", most)
		}
		if cap(body) == len(body) {
			if err := take(bodyStep); err != nil {
				return nil, err
			}
			taken += bodyStep
			body = slices.Grow(body, bodyStep)
			if more := int64(cap(body)) - taken; more > 0 { // growing rounds up
				if err := take(more); err != nil {
					return nil, err
				}
				taken += more
			}
		}
		c.readDeadline(bodyTime)
		n, err := c.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF) && int64(len(body)) <= most:
			return body, nil
		case err != nil && !errors.Is(err, io.EOF):
			return nil, unreadable(err)
		}
	}
}

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
