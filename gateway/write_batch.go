package gateway

import (
	"net/http"
	"strconv"
)

// batchBlock bounds the records of a batch that are submitted together: each partition gets
// its part of them at once, and a request to append costs the brokers much the same however
// many there are in it.
const batchBlock = 1024

// writeBatch answers POST …/records with {"records":[…]}: 200 if all of them are stored,
// else 207. They are stored as the lines of a stream are; what is wrong with the batch as
// a whole is answered before any of them is.
func (s *Server) writeBatch(c *call, head *writeHead, body []byte) error {
	topic, err := s.deps.Topics.Topic(c.r.Context(), head.topic)
	if err != nil {
		return err
	}
	unread := c.room()
	defer unread.release()
	permits := s.writer.permits(&topic)
	var blocks []*block
	n := 0
	var noRoom error
	err = decodeBatch(head, body, func(rec *record, wrong error) {
		if n%groupSize == 0 && noRoom == nil {
			noRoom = unread.resize(c.r.Context(), int64(n+groupSize)*entrySize, c.patience)
		}
		if noRoom != nil {
			return
		}
		if n%batchBlock == 0 {
			blocks = append(blocks, new(block))
		}
		b := blocks[len(blocks)-1]
		b.entries = append(b.entries, entry{index: n}) // they do not move once they are added
		e := &b.entries[len(b.entries)-1]
		n++
		if wrong != nil {
			e.refusal = asProblem(wrong)
			return
		}
		e.permit(&permits, rec, nil)
	})
	if err == nil {
		err = noRoom
	}
	if err != nil {
		return err
	}
	q := s.newSequence(c, form{"record", "batch"}, n)
	for _, b := range blocks {
		q.add(c.r.Context(), b) // the window has room for all
	}
	q.close()
	return s.answerBatch(c, q, topic)
}

// answerBatch waits until all of a batch is answered.
func (s *Server) answerBatch(c *call, q *sequence, topic Topic) error {
	ctx := c.r.Context()
	form := s.newStoredForm(topic)
	body := make([]byte, 0, q.window*storedSize+storedSize) // for which there is room
	body = append(body, `{"results":[`...)
	status := http.StatusOK
	for e := q.next(ctx); e != nil; e = q.next(ctx) {
		if body[len(body)-1] != '[' {
			body = append(body, ',')
		}
		body = q.append(body, &form, e)
		if e.refusal != nil {
			status = http.StatusMultiStatus
		}
	}
	q.finish(ctx)
	h := c.w.Header()
	h.Set("Content-Type", typeJSON)
	body = append(body, "]}"...)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	return c.write(body)
}
