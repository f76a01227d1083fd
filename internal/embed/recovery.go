package embed

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// layout is the version of kfake's files that recovery knows.
const layout = 1

// cleanMark is the file that marks a clean stop. It exists while nobody runs
// on the directory and is removed before the broker starts.
const cleanMark = "clean"

// ends are the ends of transactions under one identity, by the time that their
// markers carry: kfake makes the markers of one end all alike.
type ends map[int64]bool

// last is the newest end.
func (e ends) last() (at int64, commit bool) {
	if len(e) == 0 {
		return 0, false
	}
	at = slices.Max(slices.Collect(maps.Keys(e)))
	return at, e[at]
}

// recovery brings the files of a broker that was killed to what a broker with a
// transaction log would have made of them.
type recovery struct {
	dir string
	log *slog.Logger
	now int64 // milliseconds

	producers *producers
	windows   []*window
	ends      map[txnID]ends
	open      map[txnID][]*partitionLog
}

// recoverKafka makes the transactions that a killed broker left in dir whole.
// Each that was open is ended in all its partitions: committed when a commit
// marker of it is in any of them, for then the broker died while it wrote
// markers, else aborted. Its producer goes on under a higher epoch.
//
// kfake by itself only takes open data for aborted while it loads, without a
// marker. The next marker of that producer then ends two transactions at once:
// readers that count aborted ones hide everything the producer writes later, a
// second kill turns the aborted data into committed, and a commit that reached
// some partitions stays in those.
//
// It works on the files because half of what it mends, indexes, sequences and
// epochs, cannot be reached through the broker. Every step may be cut short and
// done again: markers come before the entries in pids.log that rest on them, and
// a verdict depends on markers only.
func recoverKafka(dir string, log *slog.Logger) error {
	var meta struct {
		Version int `json:"version"`
	}
	if found, err := readJSON(filepath.Join(dir, "meta.json"), &meta); err != nil || !found {
		return err
	}
	if meta.Version != layout {
		return fmt.Errorf("recover embedded kafka: layout %d of %s is not %d", meta.Version, dir, layout)
	}
	p, err := readProducers(dir, log)
	if err != nil {
		return err
	}
	if _, err := readStateLog(filepath.Join(dir, "groups.log"), log); err != nil {
		return err
	}
	r := &recovery{
		dir: dir, log: log, now: time.Now().UnixMilli(), producers: p,
		ends: map[txnID]ends{}, open: map[txnID][]*partitionLog{},
	}
	for _, step := range []func() error{r.read, r.end, r.fence, r.finish} {
		if err := step(); err != nil {
			return fmt.Errorf("recover embedded kafka: %w", err)
		}
	}
	return nil
}

// read scans every partition that the broker will load.
func (r *recovery) read() error {
	topics, err := readTopics(r.dir)
	if err != nil {
		return err
	}
	for _, t := range topics {
		for n := range t.Partitions {
			dir := partitionDir(r.dir, t.Name, n)
			if err := r.readPartition(&partitionLog{topic: t.Name, partition: n, dir: dir}, t.ID); err != nil {
				return fmt.Errorf("partition %s/%d: %w", t.Name, n, err)
			}
		}
	}
	return nil
}

func (r *recovery) readPartition(l *partitionLog, topicID string) error {
	// Ends before the last clean stop are not in pids.log any more.
	var stop struct {
		End int64 `json:"high_watermark"`
	}
	if _, err := readJSON(filepath.Join(l.dir, "snapshot.json"), &stop); err != nil {
		return err
	}
	open := map[int64]txnID{}
	seen := windows{}
	err := l.scan(r.log, func(b batch) {
		seen.follow(l, b)
		switch {
		case b.data():
			open[b.producer.id] = b.producer
		case b.marker():
			delete(open, b.producer.id)
			if b.first >= stop.End {
				r.note(b.producer, b.time, b.commit)
			}
		}
	})
	if err == nil {
		err = l.dropLost(topicID, r.log)
	}
	if err != nil {
		return err
	}
	if l.active < 0 {
		return nil // nothing is left that a transaction could be in
	}
	for _, t := range open {
		r.open[t] = append(r.open[t], l)
	}
	r.windows = slices.AppendSeq(r.windows, maps.Values(seen))
	return nil
}

func (r *recovery) note(t txnID, at int64, commit bool) {
	if r.ends[t] == nil {
		r.ends[t] = ends{}
	}
	r.ends[t][at] = commit
}

// end writes the missing markers. Markers beyond the ends in pids.log are of an
// end that was not answered, and the broker did nothing after them, so they are
// of the transaction that is open.
func (r *recovery) end() error {
	for _, t := range slices.SortedFunc(maps.Keys(r.open), compareTxn) {
		at, commit := r.now, false
		if e := r.ends[t]; len(e) > r.producers.ended[t] {
			at, commit = e.last()
		}
		for _, l := range r.open[t] {
			if err := l.mark(t, commit, at); err != nil {
				return err
			}
		}
		r.note(t, at, commit)
		r.log.Info("ended a transaction that a kill left open", "producer", t.id, "epoch", t.epoch,
			"partitions", len(r.open[t]), "commit", commit)
	}
	return nil
}

// fence brings pids.log to the verdicts.
func (r *recovery) fence() error {
	for _, t := range slices.SortedFunc(maps.Keys(r.ends), compareTxn) {
		now, known := r.producers.now[t.id]
		_, wasOpen := r.open[t]
		unanswered := now.Epoch == t.epoch && len(r.ends[t]) > r.producers.ended[t]
		_, commit := r.ends[t].last()
		switch {
		case !known || now.TxID == "":
		case wasOpen, unanswered && r.producers.ended[t] == 0:
			r.producers.fence(t, commit)
		case unanswered:
			r.producers.finish(t, commit) // older than EndTxn 5: the epoch stays
		}
	}
	for _, w := range r.windows {
		if !w.transactional {
			r.producers.adopt(txnID{w.PID, w.Epoch})
		}
	}
	return r.producers.save()
}

// finish replaces or drops what a stop has left that is older than the kill. The
// session state of a clean stop would open its transactions again.
func (r *recovery) finish() error {
	if err := saveWindows(r.dir, r.windows); err != nil {
		return err
	}
	_, err := remove(filepath.Join(r.dir, "session_state.json"))
	return err
}

func compareTxn(a, b txnID) int {
	return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.epoch, b.epoch))
}

// readJSON reads a file of kfake's, which replaces those in one step, and tells
// whether it is there.
func readJSON(path string, v any) (bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read broker state: %w", err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return true, nil
}
