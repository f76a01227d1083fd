package embed_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/txn"
)

// logEntry is a record of a log, as a reader finds it.
type logEntry struct {
	offset    int64
	key       string
	value     *string // nil: a tombstone
	committed bool
}

// diskLog is a log that a test makes, one batch after the other, and what is in it.
type diskLog struct {
	segments  [][]byte
	bases     []int64
	end       int64
	entries   []logEntry
	open      map[int64][]int // entries of open transactions by producer
	opened    map[int64]int64 // their first offsets
	aborted   []map[string]int64
	atSegment bool // the next batch begins a segment
}

func newDiskLog() *diskLog {
	return &diskLog{open: map[int64][]int{}, opened: map[int64]int64{}, atSegment: true}
}

func (l *diskLog) append(raw []byte, records int) {
	if l.atSegment {
		l.segments, l.bases, l.atSegment = append(l.segments, nil), append(l.bases, l.end), false
	}
	n := len(l.segments) - 1
	l.segments[n] = append(l.segments[n], raw...)
	l.end += int64(records)
}

type keyed struct {
	key   string
	value *string
}

const logTime = int64(1_700_000_000_000) // of all records

// write appends a batch of records; producer -1 has none.
func (l *diskLog) write(t fataler, producer int64, seq int32, codec kgo.CompressionCodecType, transactional bool, records ...keyed) {
	t.Helper()
	var b txn.Builder
	for i, r := range records {
		rec := &txn.Record{Key: []byte(r.key), Timestamp: logTime + int64(i)}
		if r.value != nil {
			rec.Value = []byte(*r.value)
		}
		b.Add(rec)
		l.entries = append(l.entries, logEntry{l.end + int64(i), r.key, r.value, !transactional})
		if transactional {
			l.open[producer] = append(l.open[producer], len(l.entries)-1)
		}
	}
	raw, err := b.Batch(codec)
	if err != nil {
		t.Fatalf("build batch: %v", err)
	}
	be := binary.BigEndian
	be.PutUint64(raw, uint64(l.end))
	be.PutUint32(raw[12:], 0)
	if producer >= 0 {
		be.PutUint64(raw[43:], uint64(producer))
		be.PutUint16(raw[51:], 0)
		be.PutUint32(raw[53:], uint32(seq))
	}
	if transactional {
		be.PutUint16(raw[21:], be.Uint16(raw[21:])|0x10)
		if _, ok := l.opened[producer]; !ok {
			l.opened[producer] = l.end
		}
	}
	be.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	l.append(raw, len(records))
}

// finish ends a producer's transaction.
func (l *diskLog) finish(producer int64, commit bool) {
	for _, i := range l.open[producer] {
		l.entries[i].committed = commit
	}
	if first, ok := l.opened[producer]; ok && !commit {
		l.aborted = append(l.aborted, map[string]int64{"producer_id": producer, "first_offset": first, "last_offset": l.end})
	}
	delete(l.open, producer)
	delete(l.opened, producer)
	l.append(embed.MarkerBatch(l.end, producer, 0, commit, logTime), 1)
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// save makes a broker's directory of it, as a clean stop leaves it.
func (l *diskLog) save(t fataler, dir string, configs map[string]string) {
	t.Helper()
	part := filepath.Join(dir, "partitions", "things-0")
	if err := os.MkdirAll(part, 0o700); err != nil {
		t.Fatalf("%v", err)
	}
	var segs []map[string]int64
	for i, s := range l.segments {
		name := filepath.Join(part, strconv.FormatInt(l.bases[i], 10))
		put(t, name+".dat", s)
		put(t, name+".idx", embed.IndexOf(s))
		segs = append(segs, map[string]int64{"base_offset": l.bases[i], "size": int64(len(s))})
	}
	putJSON(t, filepath.Join(dir, "meta.json"), map[string]any{"version": 1, "cluster_id": "cluster"})
	putJSON(t, filepath.Join(dir, "topics.json"), map[string]any{"version": 1, "topics": []map[string]any{
		{"name": "things", "id": "AAAAAAAAAAAAAAAAAAAAAQ==", "partitions": 1, "replicas": 1, "configs": configs},
	}})
	putJSON(t, filepath.Join(part, "snapshot.json"), map[string]any{
		"version": 1, "high_watermark": l.end, "last_stable_offset": l.end, "log_start_offset": l.bases[0], "epoch": 0,
		"max_timestamp": logTime, "created_at": time.UnixMilli(logTime), "segments": segs, "aborted_txns": l.aborted,
	})
	put(t, filepath.Join(dir, "clean"), nil)
}

func put(t fataler, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
}

func putJSON(t fataler, path string, v any) {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	put(t, path, raw)
}

// readLog reads the log in a directory without the cleaner's code: batch by batch, each record
// with whether its transaction was committed.
func readLog(t fataler, dir string) (entries []logEntry, start, end int64, size int) {
	t.Helper()
	part := filepath.Join(dir, "partitions", "things-0")
	files, err := os.ReadDir(part)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var bases []int64
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".dat"); ok {
			base, err := strconv.ParseInt(name, 10, 64)
			if err != nil {
				t.Fatalf("segment %s", f.Name())
			}
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	start = -1
	open := map[int64][]int{}
	d := txn.NewDecoder(txn.Limits{})
	for _, base := range bases {
		raw, err := os.ReadFile(filepath.Join(part, fmt.Sprintf("%d.dat", base)))
		if err != nil {
			t.Fatalf("%v", err)
		}
		size += len(raw)
		index, _ := os.ReadFile(filepath.Join(part, fmt.Sprintf("%d.idx", base)))
		batches, err := txn.Split(raw)
		if err != nil || len(index) != 15*len(batches) {
			t.Fatalf("segment %d: %d batches, %d bytes of index: %v", base, len(batches), len(index), err)
		}
		for i, b := range batches {
			if err := b.Check(); err != nil {
				t.Fatalf("batch at %d: %v", b.BaseOffset(), err)
			}
			if b.BaseOffset() < end || i == 0 && b.BaseOffset() < base {
				t.Fatalf("batch at %d after the end %d in segment %d", b.BaseOffset(), end, base)
			}
			if want := b.Transactional() && !b.Control(); (index[15*i+14] == 1) != want {
				t.Fatalf("index of the batch at %d says %v", b.BaseOffset(), !want)
			}
			if start < 0 {
				start = b.BaseOffset()
			}
			end = b.NextOffset()
			if b.Control() {
				commit, _, err := b.Marker()
				if err != nil {
					t.Fatalf("%v", err)
				}
				for _, i := range open[b.ProducerID()] {
					entries[i].committed = commit
				}
				delete(open, b.ProducerID())
				continue
			}
			err := d.Each(b, func(r txn.Record) error {
				e := logEntry{offset: r.Offset, key: string(r.Key), committed: !b.Transactional()}
				if r.Value != nil {
					v := string(r.Value)
					e.value = &v
				}
				entries = append(entries, e)
				if b.Transactional() {
					open[b.ProducerID()] = append(open[b.ProducerID()], len(entries)-1)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
	return entries, start, end, size
}

// fold is what a reader of committed records knows after the last one from an offset on.
func fold(state map[string]string, entries []logEntry, from, to int64) map[string]string {
	state = maps.Clone(state)
	if state == nil {
		state = map[string]string{}
	}
	for _, e := range entries {
		switch {
		case !e.committed || e.offset < from || e.offset >= to:
		case e.value == nil:
			delete(state, e.key)
		default:
			state[e.key] = *e.value
		}
	}
	return state
}

// checkCleaned compares a cleaned log with what it was: the same ends, no record that was
// not there or at another place, and the same values for whoever reads it from its start
// or goes on with it from anywhere.
func checkCleaned(t fataler, l *diskLog, dir, when string, pauses bool) {
	t.Helper()
	got, start, end, _ := readLog(t, dir)
	if start != l.bases[0] || end != l.end {
		t.Fatalf("%s: the log goes from %d to %d, before from %d to %d", when, start, end, l.bases[0], l.end)
	}
	at := map[int64]logEntry{}
	for _, e := range l.entries {
		at[e.offset] = e
	}
	for _, e := range got {
		was, ok := at[e.offset]
		if !ok || was.key != e.key || was.committed != e.committed || (was.value == nil) != (e.value == nil) || was.value != nil && *was.value != *e.value {
			t.Fatalf("%s: record at %d is %+v, was %+v", when, e.offset, e, was)
		}
	}
	want := fold(nil, l.entries, 0, l.end)
	if have := fold(nil, got, 0, l.end); !maps.Equal(have, want) {
		t.Fatalf("%s: a reader finds %v, before %v", when, have, want)
	}
	for from := int64(0); pauses && from < l.end; from++ {
		if have := fold(fold(nil, l.entries, 0, from), got, from, l.end); !maps.Equal(have, want) {
			t.Fatalf("%s: a reader who goes on at %d finds %v, before %v", when, from, have, want)
		}
	}
}

// drawLog makes a log of transactions, single batches and segments, long enough that it
// pays to compact it.
func drawLog(t *rapid.T) *diskLog {
	l := newDiskLog()
	pad := strings.Repeat("x", 2000)
	seq := map[int64]int32{}
	steps := rapid.IntRange(40, 120).Draw(t, "batches")
	for i := range steps {
		producer := rapid.Int64Range(-1, 3).Draw(t, "producer")
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case kind == 0:
			l.atSegment = true
		case kind <= 2 && producer >= 0:
			l.finish(producer, rapid.Bool().Draw(t, "commit"))
		default:
			var records []keyed
			for j := range rapid.IntRange(1, 4).Draw(t, "records") {
				r := keyed{key: rapid.SampledFrom([]string{"a", "b", "c", "d", "e", ""}).Draw(t, "key")}
				if rapid.IntRange(0, 4).Draw(t, "tombstone") > 0 {
					v := fmt.Sprintf("%d.%d.%s", i, j, pad[:rapid.SampledFrom([]int{0, 10, 2000}).Draw(t, "pad")])
					r.value = &v
				}
				records = append(records, r)
			}
			codec := rapid.SampledFrom([]kgo.CompressionCodecType{kgo.CodecNone, kgo.CodecSnappy, kgo.CodecLz4, kgo.CodecZstd, kgo.CodecGzip}).Draw(t, "codec")
			transactional := producer >= 0 && (len(l.open[producer]) > 0 || rapid.Bool().Draw(t, "transactional"))
			l.write(t, producer, seq[producer], codec, transactional, records...)
			seq[producer] += int32(len(records))
		}
	}
	for _, producer := range slices.Sorted(maps.Keys(l.open)) {
		l.finish(producer, rapid.Bool().Draw(t, "commit at the end"))
	}
	fat := strings.Repeat("y", 70_000) // so that it pays
	l.write(t, -1, 0, kgo.CodecNone, false, keyed{"fat", &fat})
	l.write(t, -1, 0, kgo.CodecNone, false, keyed{"last", &pad})
	return l
}

// TestCompactedLogReadsTheSame: whoever reads a compacted log from its start, or goes on with
// it from where it has read to, finds the last committed value of each key, at the offset
// that it had; also when the compaction was killed at any of its steps, and again.
func TestCompactedLogReadsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLog(t)
		dir, err := os.MkdirTemp(quick(), "clean")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer os.RemoveAll(dir)
		data := filepath.Join(dir, "data")
		l.save(t, data, map[string]string{
			"cleanup.policy": rapid.SampledFrom([]string{"compact", "delete, compact"}).Draw(t, "policy"), "segment.ms": "1000",
			"segment.bytes": rapid.SampledFrom([]string{"1", "5000", "1048576"}).Draw(t, "segment.bytes"), "delete.retention.ms": "60000",
		})
		if err := os.Remove(filepath.Join(data, "clean")); err != nil {
			t.Fatalf("%v", err)
		}
		now := time.UnixMilli(logTime).Add(24 * time.Hour)
		kills, looks := 0, rapid.IntRange(0, 9).Draw(t, "looks at kills") == 0
		killed := func(now time.Time, pauses bool) func(string) error {
			return func(what string) error {
				if kills++; !looks {
					return nil
				}
				left := filepath.Join(dir, "kill"+strconv.Itoa(kills))
				if err := os.CopyFS(left, os.DirFS(data)); err != nil {
					return err
				}
				defer os.RemoveAll(left)
				if err := embed.RecoverKafka(left); err != nil {
					t.Fatalf("recover from a kill before %s: %v", what, err)
				}
				checkCleaned(t, l, left, "killed before "+what, pauses)
				if err := embed.CleanKafka(left, now, nil); err != nil {
					t.Fatalf("clean after a kill before %s: %v", what, err)
				}
				checkCleaned(t, l, left, "cleaned after a kill before "+what, pauses)
				return nil
			}
		}
		if err := embed.CleanKafka(data, now, killed(now, true)); err != nil {
			t.Fatalf("clean: %v", err)
		}
		checkCleaned(t, l, data, "cleaned", true)
		if kills == 0 {
			t.Fatalf("nothing was cleaned")
		}
		// Much later tombstones and markers may go, and only a reader from the start counts.
		cleaned := filepath.Join(data, "partitions", "things-0", "cleaned.json")
		raw, err := os.ReadFile(cleaned)
		if err != nil {
			t.Fatalf("%v", err)
		}
		var f map[string]any
		if err := json.Unmarshal(raw, &f); err != nil {
			t.Fatalf("%v", err)
		}
		f["bytes"] = -1 << 30
		putJSON(t, cleaned, f)
		later := now.Add(time.Hour)
		if err := embed.CleanKafka(data, later, killed(later, false)); err != nil {
			t.Fatalf("clean again: %v", err)
		}
		checkCleaned(t, l, data, "cleaned again", false)
		got, _, _, _ := readLog(t, data)
		seen := map[string]int{}
		for _, e := range got {
			if e.committed && e.key != "fat" && e.key != "last" {
				seen[e.key]++
			}
		}
		for key, n := range seen {
			if n > 1 {
				t.Fatalf("key %q is there %d times after all was compacted", key, n)
			}
			if _, ok := fold(nil, l.entries, 0, l.end)[key]; !ok {
				t.Fatalf("the tombstone of %q is there after delete.retention.ms", key)
			}
		}
	})
}

func text(s string) *string { return &s }

// overwritten is a log of three segments in which one key is written again and again.
func overwritten(t *testing.T) *diskLog {
	l := newDiskLog()
	for i := range 3 {
		l.atSegment = true
		for j := range 30 {
			l.write(t, -1, 0, kgo.CodecNone, false, keyed{"k", text(fmt.Sprint(i, j, strings.Repeat("z", 1000)))})
		}
	}
	return l
}

// TestStartCompacts: a broker serves a log that it compacted at its start like one that was
// never compacted, without the overwritten records, before and after a kill.
func TestStartCompacts(t *testing.T) {
	l := newDiskLog()
	l.write(t, 1, 0, kgo.CodecNone, true, keyed{"gone", text("aborted " + strings.Repeat("z", 70_000))})
	l.finish(1, false)
	l.atSegment = true
	l.write(t, 1, 1, kgo.CodecSnappy, true, keyed{"a", text("old")}, keyed{"b", text("kept")}, keyed{"a", text("new")})
	l.finish(1, true)
	l.write(t, -1, 0, kgo.CodecNone, false, keyed{"c", text("last")})
	dir := t.TempDir()
	l.save(t, dir, map[string]string{"cleanup.policy": "compact", "segment.ms": "1000"})
	s := start(t, dir)
	want := "3=kept 4=new 6=last"
	if got := readCommitted(t, s.Seeds()[0]); got != want {
		t.Errorf("a reader finds %q", got)
	}
	if _, _, _, size := readLog(t, dir); size > 2000 {
		t.Errorf("the log has %d bytes", size)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	seed, kill := child(t, dir)
	if err := client(t, seed).ProduceSync(testContext(t), &kgo.Record{Topic: "things", Key: []byte("d"), Value: []byte("more")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	kill()
	s = start(t, dir)
	if got := readCommitted(t, s.Seeds()[0]); got != want+" 7=more" {
		t.Errorf("after a kill a reader finds %q", got)
	}
}

// readCommitted reads the topic from offset 0 to its end.
func readCommitted(t *testing.T, seed string) string {
	t.Helper()
	c := client(t, seed, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"things": {0: kgo.NewOffset().At(0)}}))
	ends, err := kadm.NewClient(c).ListEndOffsets(testContext(t), "things")
	if err != nil {
		t.Fatal(err)
	}
	last, _ := ends.Lookup("things", 0)
	var values []string
	for next := int64(0); next < last.Offset; {
		fs := c.PollFetches(testContext(t))
		if err := fs.Err(); err != nil {
			t.Fatalf("read back: %v", err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			values = append(values, fmt.Sprintf("%d=%s", r.Offset, r.Value))
			next = r.Offset + 1
		})
	}
	return strings.Join(values, " ")
}

// TestRetention: the oldest segments go when all of their records are older than retention.ms,
// or the log keeps retention.bytes without them; the last one stays, and offsets go on.
func TestRetention(t *testing.T) {
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		configs map[string]string
		age     time.Duration
		first   int64
	}{
		"default":        {nil, 1000 * day, 0},
		"for ever":       {map[string]string{"retention.ms": "-1", "retention.bytes": "-1"}, 1000 * day, 0},
		"young":          {map[string]string{"retention.ms": "86400000"}, day / 2, 0},
		"old":            {map[string]string{"retention.ms": "86400000"}, 2 * day, 60},
		"large":          {map[string]string{"retention.bytes": "70000"}, 0, 0},
		"too large":      {map[string]string{"retention.bytes": "60000"}, 0, 30},
		"compacted only": {map[string]string{"cleanup.policy": "compact", "retention.ms": "1", "min.compaction.lag.ms": "999999999999"}, 2 * day, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, dir := overwritten(t), t.TempDir()
			l.save(t, dir, c.configs)
			if err := os.Remove(filepath.Join(dir, "clean")); err != nil {
				t.Fatal(err)
			}
			removed := 0
			err := embed.CleanKafka(dir, time.UnixMilli(logTime).Add(c.age), func(what string) error {
				if strings.HasPrefix(what, "remove ") {
					removed++
				}
				left := filepath.Join(t.TempDir(), "kill")
				if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
					return err
				}
				if err := embed.RecoverKafka(left); err != nil {
					t.Errorf("recover from a kill before %s: %v", what, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, start, end, _ := readLog(t, dir); start != c.first || end != l.end {
				t.Errorf("the log goes from %d to %d", start, end)
			}
			if want := int(c.first / 30 * 2); removed != want { // a segment has an index
				t.Errorf("%d files are removed, want %d", removed, want)
			}
			s := start(t, dir)
			cl := client(t, s.Seeds()[0])
			r := cl.ProduceSync(testContext(t), &kgo.Record{Topic: "things", Key: []byte("k")})
			if rec, err := r.First(); err != nil || rec.Offset != l.end {
				t.Errorf("the next record gets offset %v, %v", rec, err)
			}
		})
	}
}

// TestOpenTransactionKeepsLog: a log with a transaction that was open at a clean stop is left
// alone, because its producer may go on with it.
func TestOpenTransactionKeepsLog(t *testing.T) {
	l, dir := overwritten(t), t.TempDir()
	l.write(t, 7, 0, kgo.CodecNone, true, keyed{"k", text("open")})
	l.save(t, dir, map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "1", "segment.ms": "1"})
	path := filepath.Join(dir, "partitions", "things-0", "snapshot.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var snap map[string]any
	if err := json.Unmarshal(raw, &snap); err != nil {
		t.Fatal(err)
	}
	snap["last_stable_offset"] = l.end - 1
	putJSON(t, path, snap)
	err = embed.CleanKafka(dir, time.UnixMilli(logTime).Add(time.Hour), func(what string) error {
		t.Errorf("the cleaner does: %s", what)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoRoomToClean: without room a log stays as it is, and the broker starts.
func TestNoRoomToClean(t *testing.T) {
	l, dir := overwritten(t), t.TempDir()
	l.save(t, dir, map[string]string{"cleanup.policy": "compact", "segment.ms": "1000"})
	now := time.UnixMilli(logTime).Add(time.Hour)
	for n := 1; ; n++ {
		left := filepath.Join(t.TempDir(), "full")
		if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		writes, failed := 0, false
		err := embed.CleanKafka(left, now, func(what string) error {
			if !strings.HasPrefix(what, "write ") {
				return nil
			}
			if writes++; writes == n {
				failed = true
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("no room for write %d: %v", n, err)
		}
		checkCleaned(t, l, left, fmt.Sprintf("no room for write %d", n), true)
		if !failed {
			return
		}
	}
}

// TestDamagedOverlap: a segment that begins before the end of the one before it, and holds
// something beyond that, is not what a compaction leaves.
func TestDamagedOverlap(t *testing.T) {
	l, dir := overwritten(t), t.TempDir()
	l.save(t, dir, nil)
	part := filepath.Join(dir, "partitions", "things-0")
	if err := os.Rename(filepath.Join(part, "60.dat"), filepath.Join(part, "20.dat")); err != nil {
		t.Fatal(err)
	}
	if err := embed.RecoverKafka(dir); !errors.Is(err, embed.ErrDamaged) {
		t.Errorf("recovery says %v", err)
	}
}

// FuzzClean: whatever a segment holds, the cleaner does not panic, and leaves no log that a
// recovery refuses unless it refused the log before.
func FuzzClean(f *testing.F) {
	l := newDiskLog()
	l.write(f, 1, 0, kgo.CodecSnappy, true, keyed{"a", text("1")}, keyed{"a", nil})
	l.finish(1, true)
	f.Add(l.segments[0], int64(0))
	f.Add(l.segments[0][:80], int64(3))
	f.Fuzz(func(t *testing.T, segment []byte, second int64) {
		dir := t.TempDir()
		l := newDiskLog()
		l.write(t, -1, 0, kgo.CodecNone, false, keyed{"a", text(strings.Repeat("z", 70_000))})
		l.segments, l.bases = append(l.segments, segment), append(l.bases, max(second, 1))
		l.save(t, dir, map[string]string{"cleanup.policy": "compact,delete", "segment.ms": "1", "retention.ms": "1"})
		before := embed.RecoverKafka(dir)
		if err := embed.CleanKafka(dir, time.UnixMilli(logTime).Add(time.Hour), nil); err != nil {
			t.Fatalf("clean: %v", err)
		}
		if err := embed.RecoverKafka(dir); before == nil && err != nil {
			t.Fatalf("recovery refuses what the cleaner left: %v", err)
		}
	})
}

// quick is where files cost no syncs, if the system has such a place.
func quick() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}
