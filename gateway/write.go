package gateway

// writeRecords is POST /v1/topics/{topic}/records. A write goes through four
// steps, in this order and never back:
//
//	decode  request.go, body.go, decode.go  what was sent, in any form, becomes a record
//	permit  permit.go                       limits, partition and ownership; makes a permitted write
//	store   store.go                        the partition's seat stores a permitted write
//	answer  write_answer.go                 the client is told what the log holds
//
// A stream (write_stream.go) and a batch (write_batch.go) take the same steps with many
// records at a time (write_sequence.go).
func (s *Server) writeRecords(c *call) error {
	if err := s.drain.beginWrite(); err != nil {
		return err
	}
	defer s.drain.endWrite()
	s.awaitStart(c.r.Context())
	head, err := c.writeHead(s.cfg.MaxBody, s.writer.maxHeaders())
	if err != nil {
		return err
	}
	if head.media == typeNDJSON {
		return s.writeStream(c, head)
	}
	taken := hold{of: s.bodies, by: c.peer}
	defer taken.release()
	body, err := c.readBody(&taken, s.cfg.MaxBody)
	if err != nil {
		return err
	}
	if head.media == typeJSON && isBatch(body) {
		return s.writeBatch(c, head, body)
	}
	rec, err := decodeRecord(head, body)
	if err != nil {
		return err
	}
	topic, err := s.deps.Topics.Topic(c.r.Context(), head.topic)
	if err != nil {
		return err
	}
	permits := s.writer.permits(&topic)
	var w permitted
	if err := permits.permit(rec, &w); err != nil {
		return err
	}
	stored, err := s.writer.store(c.r.Context(), &w, c.peer)
	if err != nil {
		return err
	}
	return s.answerWrite(c, &w, &stored)
}
