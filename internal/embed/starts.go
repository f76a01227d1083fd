package embed

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file keeps the starts of logs. kfake has the start of a log in memory only, and
// derives its end from the batches that are there: after a kill, records that DeleteRecords
// has deleted would be there again as long as others of their segment are, and a log of
// which everything was deleted would begin at offset 0, so that offsets would be assigned a
// second time.
//
// A start is therefore noted in start.json of the partition, and synced, before the broker
// gets the request: what is deleted is noted, whenever the process is killed. The next start of
// the broker does again what was noted (restoreEnds on the files, startLogs in the broker).

// startFile is start.json of a partition: no record below an offset may be read any more.
type startFile struct {
	Version int    `json:"version"`
	Topic   string `json:"topic_id"` // of another topic: the file is ignored
	Start   int64  `json:"start"`
}

func startPath(dir string) string { return filepath.Join(dir, "start.json") }

// readStart returns the start that was noted for a partition of a topic, 0 for none.
func readStart(dir, topicID string) (int64, error) {
	var f startFile
	found, err := readJSON(startPath(dir), &f)
	switch {
	case err != nil || !found || f.Topic != topicID:
		return 0, err
	case f.Version != 1 || f.Start < 0:
		return 0, fmt.Errorf("read start of log in %s: version %d, start %d: %w", dir, f.Version, f.Start, ErrDamaged)
	}
	return f.Start, nil
}

// starts notes the starts of a running broker's logs.
type starts struct {
	dir     string
	cluster *kfake.Cluster

	// mu is held while starts are noted, so that the higher of two stays and the broker runs.
	mu     sync.Mutex
	closed bool
}

// close waits for a note that is being written, and refuses later ones: a broker that has
// stopped does not answer questions for the ends of its logs.
func (s *starts) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

// note notes that a log is to begin at an offset, -1 for its end, and returns the offset for
// the broker's request. One that the log does not have becomes one that no log has, so that the
// broker refuses it even if the log has grown meanwhile.
func (s *starts) note(topic string, partition int32, offset int64) (int64, error) {
	const invalidOffset = -2
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	known, log := s.cluster.TopicInfo(topic), s.cluster.PartitionInfo(topic, partition)
	if known == nil || log == nil {
		return invalidOffset, nil
	}
	if offset == -1 {
		offset = log.HighWatermark
	}
	if offset < log.LogStartOffset || offset > log.HighWatermark {
		return invalidOffset, nil
	}
	dir, id := partitionDir(s.dir, topic, partition), base64.StdEncoding.EncodeToString(known.TopicID[:])
	noted, err := readStart(dir, id)
	if err != nil || offset <= max(noted, log.LogStartOffset) {
		return offset, err
	}
	raw, err := json.Marshal(startFile{Version: 1, Topic: id, Start: offset})
	if err != nil {
		return 0, fmt.Errorf("write start of log: %w", err)
	}
	return offset, replaceFile(startPath(dir), raw)
}

// restoreEnds makes a broker that starts on dir assign no offset of a log a second time. It
// takes the ends of empty logs from the notes and from the last clean stop.
func restoreEnds(dir string, log *slog.Logger) error {
	topics, err := readTopics(dir)
	if err != nil {
		return err
	}
	for _, t := range topics {
		for n := range t.Partitions {
			l := &partitionLog{topic: t.Name, partition: n, dir: partitionDir(dir, t.Name, n)}
			if err := l.restoreEnd(t.ID, log); err != nil {
				return fmt.Errorf("restore end of %s/%d: %w", t.Name, n, err)
			}
		}
	}
	return nil
}

// restoreEnd gives a log without any batch an empty segment at its end. kfake takes the ends
// of such a log from its snapshot, if that fits the segments.
func (l *partitionLog) restoreEnd(topicID string, log *slog.Logger) error {
	bases, err := segments(l.dir)
	if err != nil {
		return err
	}
	for _, base := range bases {
		if info, err := os.Stat(l.segment(base, ".dat")); err != nil || info.Size() > 0 {
			return err
		}
	}
	start, err := readStart(l.dir, topicID)
	if err != nil {
		return err
	}
	var stop stopFile
	if err := stop.read(l.dir, nil); err != nil {
		return err
	}
	end := max(start, stop.start, stop.end)
	if end == 0 {
		return nil
	}
	for _, base := range bases {
		if base != end {
			if err := l.removeSegment(base); err != nil {
				return err
			}
		}
	}
	if err := replaceFile(l.segment(end, ".dat"), nil); err != nil {
		return err
	}
	log.Debug("a log of the embedded kafka has no records; its end is kept", "topic", l.topic, "partition", l.partition, "end", end)
	return stop.replaceByEmpty(l.dir, end)
}

// replaceByEmpty writes the snapshot of a log that has one segment, which is empty.
func (s *stopFile) replaceByEmpty(dir string, end int64) error {
	out := map[string]any{"version": layout, "epoch": 0, "max_timestamp": 0, "created_at": time.Now()}
	for k, v := range s.all {
		out[k] = v
	}
	delete(out, "aborted_txns")
	for _, k := range []string{"high_watermark", "last_stable_offset", "log_start_offset"} {
		out[k] = end
	}
	out["segments"] = []stopSegment{{Base: end}}
	raw, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return replaceFile(stopPath(dir), raw)
}

// dropLost removes the segments of a log that ends before its start: the files of newer ones
// are lost, and what is left was deleted.
func (l *partitionLog) dropLost(topicID string, log *slog.Logger) error {
	start, err := readStart(l.dir, topicID)
	if err != nil || l.end >= start || l.active < 0 {
		return err
	}
	log.Warn("a log of the embedded kafka ends before its start: newer segments are lost", "topic", l.topic, "partition", l.partition, "end", l.end, "start", start)
	bases, err := segments(l.dir)
	if err != nil {
		return err
	}
	for _, base := range bases {
		if err := l.removeSegment(base); err != nil {
			return err
		}
	}
	l.active = -1
	return nil
}

func (l *partitionLog) removeSegment(base int64) error {
	for _, ext := range []string{".dat", ".idx"} {
		if _, err := remove(l.segment(base, ext)); err != nil {
			return err
		}
	}
	return nil
}

// startLogs moves the starts of a broker's logs to where they were noted, through a
// connection of its own: kfake has no other way to a start within a segment.
func (s *starts) startLogs(conn net.Conn) error {
	topics, err := readTopics(s.dir)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 60_000
	for _, t := range topics {
		rt := kmsg.DeleteRecordsRequestTopic{Topic: t.Name}
		for n := range t.Partitions {
			start, err := readStart(partitionDir(s.dir, t.Name, n), t.ID)
			if err != nil {
				return err
			}
			if log := s.cluster.PartitionInfo(t.Name, n); log != nil && start > log.LogStartOffset {
				rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: n, Offset: start})
			}
		}
		if len(rt.Partitions) > 0 {
			req.Topics = append(req.Topics, rt)
		}
	}
	if len(req.Topics) == 0 {
		return nil
	}
	resp, err := ask(conn, req)
	if err != nil {
		return fmt.Errorf("move starts of logs: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("move start of log %s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

// ask sends one request and reads its answer.
func ask(conn net.Conn, req *kmsg.DeleteRecordsRequest) (*kmsg.DeleteRecordsResponse, error) {
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 0)); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(conn, raw); err != nil {
		return nil, err
	}
	if len(raw) < 4 {
		return nil, errors.New("answer too short")
	}
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	resp.SetVersion(req.Version)
	return resp, resp.ReadFrom(raw[4:])
}
