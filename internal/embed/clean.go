package embed

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/geogate/geogate/internal/txn"
)

// What the settings of a topic are where nobody has set them: Kafka's defaults, and the
// segments of kfake.
const (
	defaultSegmentBytes    = 100 << 20
	defaultSegmentMillis   = 7 * 24 * int64(time.Hour/time.Millisecond)
	defaultTombstoneMillis = 24 * int64(time.Hour/time.Millisecond)
)

// cleanup is what the settings of a topic say about what its log may lose.
type cleanup struct {
	compact bool
	// Beyond these a log loses its oldest segments; below 0: nothing expires.
	retentionMillis, retentionBytes int64

	segmentBytes, segmentMillis int64 // at which a segment is complete
	lagMillis                   int64 // no younger record is compacted
	tombstoneMillis             int64 // a tombstone stays for so long after it was compacted first
}

// topicFile is topics.json, of which only what is used here is read.
type topicFile struct {
	Topics []topicState `json:"topics"`
}

type topicState struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs"`
}

func readTopics(dir string) ([]topicState, error) {
	var f topicFile
	_, err := readJSON(filepath.Join(dir, "topics.json"), &f)
	return f.Topics, err
}

func partitionDir(dir, topic string, n int32) string {
	return filepath.Join(dir, "partitions", fmt.Sprintf("%s-%d", url.PathEscape(topic), n))
}

// cleanup reads the settings. Retention that nobody has set deletes nothing: the broker has
// never applied its default of a week, and users may rely on that.
func (t topicState) cleanup() cleanup {
	number := func(key string, otherwise int64) int64 {
		if n, err := strconv.ParseInt(t.Configs[key], 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	c := cleanup{
		retentionMillis: -1, retentionBytes: -1,
		segmentBytes:    number("segment.bytes", defaultSegmentBytes),
		segmentMillis:   number("segment.ms", defaultSegmentMillis),
		lagMillis:       number("min.compaction.lag.ms", 0),
		tombstoneMillis: number("delete.retention.ms", defaultTombstoneMillis),
	}
	policies := strings.Split(cmp.Or(t.Configs["cleanup.policy"], "delete"), ",")
	for i := range policies {
		policies[i] = strings.TrimSpace(policies[i])
	}
	c.compact = slices.Contains(policies, "compact")
	if slices.Contains(policies, "delete") {
		c.retentionMillis, c.retentionBytes = number("retention.ms", -1), number("retention.bytes", -1)
	}
	return c
}

// keepsAll tells whether the log loses nothing.
func (c cleanup) keepsAll() bool {
	return !c.compact && c.retentionMillis < 0 && c.retentionBytes < 0
}

// errNoRoom says that a file could not be written, and nothing has changed.
var errNoRoom = errors.New("embed: no room on the disk to clean a log")

// cleaner rewrites the logs of a directory on which no broker runs: what Kafka's own log
// cleaner and its retention do while a broker runs, kfake's cannot do safely.
type cleaner struct {
	dir  string
	log  *slog.Logger
	now  int64 // Unix milliseconds
	open *txn.Decoder
	// step is called before each change of a file, with what is about to be done. Tests use
	// it to see what a kill would leave behind. An error stops the cleaner.
	step func(what string) error
}

// cleanKafka compacts the topics of a directory that are to be compacted, and drops the
// segments that retention.ms or retention.bytes of their topic give up.
//
// It may be cut short by a kill at any point: the next start, which then does not find the
// mark of a clean stop, sees each segment either as it was or as it is to be
// (partitionLog.scan). A committed record is gone only if a newer one of its key is there,
// with the end of its transaction. A log that the disk has no room to rewrite stays as it is.
func cleanKafka(dir string, log *slog.Logger, now time.Time) error {
	return newCleaner(dir, log, now).run()
}

func (c *cleaner) run() error {
	dir, log := c.dir, c.log
	var meta struct {
		Version int `json:"version"`
	}
	if found, err := readJSON(filepath.Join(dir, "meta.json"), &meta); err != nil || !found || meta.Version != layout {
		return err
	}
	topics, err := readTopics(dir)
	if err != nil {
		return err
	}
	began := time.Now()
	var before, after int64
	for _, t := range topics {
		settings := t.cleanup()
		if settings.keepsAll() {
			continue
		}
		for n := range t.Partitions {
			p, err := c.partition(t, n, settings)
			if errors.Is(err, errNoRoom) {
				log.Warn("no room to clean a log of the embedded kafka; it stays as it is until a start finds room",
					"topic", t.Name, "partition", n, "err", err)
				continue
			}
			if err != nil {
				return fmt.Errorf("clean log of %s/%d: %w", t.Name, n, err)
			}
			before, after = before+p.before, after+p.after
		}
	}
	if after < before {
		log.Info("cleaned logs of the embedded kafka", "bytes_before", before, "bytes_after", after, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

func newCleaner(dir string, log *slog.Logger, now time.Time) *cleaner {
	return &cleaner{dir: dir, log: log, now: now.UnixMilli(), open: txn.NewDecoder(txn.Limits{}), step: func(string) error { return nil }}
}

// partition cleans one log.
func (c *cleaner) partition(t topicState, n int32, settings cleanup) (*logCleaning, error) {
	p := &logCleaning{cleaner: c, settings: settings, topic: t.Name, id: t.ID, files: partitionLog{topic: t.Name, partition: n, dir: partitionDir(c.dir, t.Name, n)}}
	if err := p.list(); err != nil || len(p.segments) == 0 {
		return p, err
	}
	expired, err := p.expired()
	if err != nil {
		return p, err
	}
	if expired == 0 && !p.dirty() {
		return p, nil
	}
	if err := p.stop.read(p.files.dir, p.listed); err != nil {
		return p, err
	}
	if p.stop.valid && p.stop.stable < p.stop.end {
		return p, nil // a transaction is open: its producer may go on with it
	}
	if err := p.expire(expired); err != nil {
		return p, err
	}
	if p.dirty() {
		if err := p.compact(); err != nil {
			return p, err
		}
	}
	if !p.changed {
		return p, nil
	}
	return p, p.restoreStop()
}

// write writes a file beside the one that it is to replace.
func (c *cleaner) write(path string, content []byte) error {
	err := c.step("write " + filepath.Base(path))
	if err == nil {
		err = writeBeside(path, content)
	}
	if noRoom(err) {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	return err
}

// noRoom tells whether nothing can be written now, for a reason that may pass.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
