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

// send answers 200 with a whole body.
func (c *call) send(contentType string, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.writeDeadline(answerTime)
	c.w.WriteHeader(http.StatusOK)
	if _, err := c.w.Write(body); err != nil {
		return errGone
	}
	return nil
}

// Deadlines are set before each read of a body and each write of an answer: a
// stream as a whole has none. A test's writer has no deadlines, which is fine.
func (c *call) readDeadline(d time.Duration)  { _ = c.rc.SetReadDeadline(time.Now().Add(d)) }
func (c *call) writeDeadline(d time.Duration) { _ = c.rc.SetWriteDeadline(time.Now().Add(d)) }
