package embed

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
)

// remembered is how many batches of a producer in a partition are known again
// when they are sent twice, as in Kafka.
const remembered = 5

// window is what kfake remembers of one producer's sequence in one partition. It
// writes windows at a clean stop only. After a kill a window of the last stop
// would refuse a producer that went on since, and a missing one would take a
// batch that is sent again for a new one; so they are derived from the log.
type window struct {
	PID     int64                   `json:"pid"`
	Topic   string                  `json:"topic"`
	Part    int32                   `json:"partition"`
	Entries [remembered]windowEntry `json:"entries"`
	Count   uint8                   `json:"count"`
	At      uint8                   `json:"at"`
	Epoch   int16                   `json:"epoch"`
	Seen    bool                    `json:"seen"`
	Next    int32                   `json:"next_seq"`

	transactional bool
}

type windowEntry struct {
	First  int32 `json:"first_seq"`
	Next   int32 `json:"next_seq"`
	Offset int64 `json:"offset"`
}

// windows are those of one partition by producer id.
type windows map[int64]*window

// follow takes the next batch of the log. A batch that compaction thinned out no
// longer tells its sequences; its producer then starts unknown, and an unknown
// producer may begin anywhere.
func (ws windows) follow(l *partitionLog, b batch) {
	if b.first != l.end {
		clear(ws) // a gap of compaction: any producer may have lost its newest batch
	}
	if b.producer.id < 0 || b.marker() || b.sequence < 0 {
		return
	}
	if b.records != b.delta+1 {
		delete(ws, b.producer.id)
		return
	}
	w := ws[b.producer.id]
	if w == nil || w.Epoch != b.producer.epoch {
		w = &window{PID: b.producer.id, Topic: l.topic, Part: l.partition, Epoch: b.producer.epoch, Seen: true}
		ws[b.producer.id] = w
	}
	w.transactional = b.data()
	w.Next = int32((int64(b.sequence) + int64(b.records)) % math.MaxInt32) // kfake's modulus
	w.Entries[w.At] = windowEntry{First: b.sequence, Next: w.Next, Offset: b.first}
	w.At = (w.At + 1) % remembered
	w.Count = min(w.Count+1, remembered)
}

// saveWindows replaces the windows of the last clean stop.
func saveWindows(dir string, all []*window) error {
	raw, err := json.Marshal(struct {
		Version int       `json:"version"`
		Windows []*window `json:"windows"`
	}{layout, all})
	if err != nil {
		return fmt.Errorf("write sequences: %w", err)
	}
	return replaceFile(filepath.Join(dir, "seq_windows.json"), raw)
}
