//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

// conn is a connection to a gateway's listener. It understands as much of HTTP as the
// gateway's answers need.
type conn struct {
	net.Conn
	r *bufio.Reader
}

// dial connects; the end of ctx closes the connection.
func dial(ctx context.Context, to string) (*conn, func(), error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return &conn{c, bufio.NewReaderSize(c, 64<<10)}, func() { stop(); _ = c.Close() }, nil
}

// head is what the begin of an answer says.
type head struct {
	status  int
	length  int64 // of the body; -1: chunked
	chunked bool
}

var errAnswer = errors.New("an answer that is not understood")

// head reads the begin of an answer.
func (c *conn) head() (h head, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return h, fmt.Errorf("%w: %.60q", errAnswer, line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, fmt.Errorf("%w: %.60q", errAnswer, line)
	}
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		name, val, _ := bytes.Cut(line, []byte(": "))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if h.length, err = strconv.ParseInt(string(val), 10, 64); err != nil {
				return h, fmt.Errorf("%w: %.60q", errAnswer, line)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			h.chunked = true
		}
	}
}

// body reads the rest of an answer.
func (c *conn) body(h head) io.Reader {
	if h.chunked {
		return httputil.NewChunkedReader(c.r)
	}
	return io.LimitReader(c.r, h.length)
}

// success reads the begin of an answer that must be a 200, and gives the rest.
func (c *conn) success() (io.Reader, error) {
	h, err := c.head()
	if err != nil {
		return nil, err
	}
	b := c.body(h)
	if h.status != 200 {
		text, _ := io.ReadAll(io.LimitReader(b, 500))
		return nil, fmt.Errorf("answered %d: %s", h.status, text)
	}
	return b, nil
}

// answer reads a whole answer and keeps only the first bytes of one that is no success.
func (c *conn) answer() (status int, problem string, err error) {
	h, err := c.head()
	if err != nil {
		return 0, "", err
	}
	if h.status/100 == 2 && !h.chunked {
		_, err = c.r.Discard(int(h.length))
		return h.status, "", err
	}
	b := c.body(h)
	if h.status/100 != 2 {
		text, err := io.ReadAll(b)
		if err != nil {
			return 0, "", err
		}
		problem = string(text[:min(len(text), 300)])
	} else if _, err := io.Copy(io.Discard, b); err != nil {
		return 0, "", err
	}
	if h.chunked { // the empty line after the last chunk
		if _, err := c.r.ReadSlice('\n'); err != nil {
			return 0, "", err
		}
	}
	return h.status, problem, nil
}
