package embed

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/geogate/geogate/internal/dirlock"
	"github.com/geogate/geogate/internal/loopback"
)

// maxMessageBytes is the broker's limit for one record batch. It leaves room
// for a record of the gateway's default limit (1 MiB) with its headers, which
// Kafka's own default of 1 MiB does not, and for a link that passes on batches
// which another producer made larger.
const maxMessageBytes = 8 << 20

// Kafka says where an embedded broker listens and keeps its data.
type Kafka struct {
	// Listen is host:port. The host must be a loopback address; port 0 takes
	// any free port, which changes with every start.
	Listen string
	// DataDir holds everything the broker knows: topics and their ids, records,
	// producer ids, committed group positions. It is created when missing.
	DataDir string
	// ClusterID names the cluster in metadata. Left empty, a random one is made
	// at the first start. Either way it is kept with the data, because region
	// identity, loop guards and link generations all hang on it.
	ClusterID string
	// Logger receives the broker's warnings and errors; nil discards them.
	Logger *slog.Logger
	// Unsynced does not sync what the broker writes to disk: a killed process loses nothing, but
	// a power failure does. For tests only.
	Unsynced bool
}

// awaits logs which process has the directory.
func (c *Kafka) awaits(holder string) {
	if c.Logger != nil {
		c.Logger.Warn("the directory of the embedded kafka is in use; waiting for the process that has it to end", "dir", c.DataDir, "holder", holder)
	}
}

// KafkaServer is a running embedded broker.
type KafkaServer struct {
	cluster *kfake.Cluster
	seeds   []string
	id      string
	dir     string
	failure *failure
	starts  *starts
	release func() error

	once sync.Once
	err  error
}

// StartKafka starts one broker on c.Listen with the state of c.DataDir. What it
// acknowledges is on disk, so a process that is killed loses nothing that was
// acknowledged. Topics are never created by asking for their metadata.
//
// A start that finds no mark of a clean stop first makes every transaction whole
// that the kill cut short: committed in all its partitions if its commit had
// reached one, else aborted in all. Producers of those are fenced, a repeated
// EndTxn is answered by what became of the transaction, and idempotent producers
// go on with their sequences. This reads all segments once; after a clean stop
// open transactions stay open.
//
// What DeleteRecords has deleted stays deleted, and no offset is assigned twice.
//
// Then logs are cleaned that have settings for it: compacted topics are compacted, and
// segments dropped that retention.ms or retention.bytes of their topic give up.
//
// Two things a kill can still take: offsets that were sent to a transaction
// (TxnOffsetCommit) are known to the broker's memory only until EndTxn is
// answered, and a loss of power, unlike a kill, may lose files just created,
// because kfake does not sync directories.
//
// It returns loopback.ErrNotLoopback, ErrInUse, ErrClusterID or ErrDamaged for the
// causes they name.
func StartKafka(c Kafka) (*KafkaServer, error) {
	if err := loopback.Check(c.Listen, "the embedded kafka has no authentication"); err != nil {
		return nil, fmt.Errorf("listen address of embedded kafka: %w", err)
	}
	if c.DataDir == "" {
		return nil, errors.New("start embedded kafka: no data directory")
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create kafka directory: %w", err)
	}
	release, err := dirlock.Take(c.DataDir, dirlock.Patience, c.awaits)
	if err != nil {
		return nil, err
	}
	s, err := startLocked(c)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	s.release = release
	return s, nil
}

// cleanerNever is a century: kfake multiplies it into a time.Duration.
const cleanerNever = 100 * 365 * 24 * time.Hour

// startLocked starts the broker while the caller holds the directory.
func startLocked(c Kafka) (*KafkaServer, error) {
	id, err := clusterID(c.DataDir, c.ClusterID)
	if err != nil {
		return nil, err
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	clean, err := remove(filepath.Join(c.DataDir, cleanMark))
	if err != nil {
		return nil, err
	}
	if !clean {
		if err := recoverKafka(c.DataDir, log); err != nil {
			return nil, err
		}
	}
	if err := cleanKafka(c.DataDir, log, time.Now()); err != nil {
		return nil, err
	}
	if err := restoreEnds(c.DataDir, log); err != nil {
		return nil, err
	}
	failed := newFailure()
	var listener *front
	options := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.ClusterID(id),
		kfake.DataDir(c.DataDir),
		kfake.DefaultNumPartitions(1),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			ln, err := net.Listen(network, c.Listen)
			if err != nil {
				return nil, err
			}
			listener = newFront(ln, log, failed)
			return listener, nil
		}),
		kfake.BrokerConfigs(map[string]string{
			"message.max.bytes": fmt.Sprint(maxMessageBytes),
			// Never clean: kfake's compaction lets a record of an open, later
			// aborted transaction remove a committed one, a kill in the middle of
			// it loses records, and a partition that retention empties begins at
			// offset 0 again. A start cleans instead (cleanKafka).
			"log.cleaner.backoff.ms": fmt.Sprint(int64(cleanerNever / time.Millisecond)),
		}),
		kfake.WithLogger(brokerLog{log, failed}),
	}
	if !c.Unsynced {
		options = append(options, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		// The state is as clean as it was: a later start should not wait
		// for a recovery, nor lose open transactions to it.
		err = fmt.Errorf("start embedded kafka on %s: %w", c.Listen, err)
		return nil, errors.Join(err, replaceFile(filepath.Join(c.DataDir, cleanMark), nil))
	}
	s := &KafkaServer{cluster: cluster, seeds: cluster.ListenAddrs(), id: id, dir: c.DataDir, failure: failed, starts: &starts{dir: c.DataDir, cluster: cluster}}
	if err := s.open(listener); err != nil {
		cluster.Close() // without the mark of a clean stop: some logs may begin too early
		return nil, fmt.Errorf("start embedded kafka on %s: %w", c.Listen, err)
	}
	return s, nil
}

// open has the broker delete again what was deleted before a kill, then accepts clients.
func (s *KafkaServer) open(listener *front) error {
	client, server := net.Pipe()
	defer client.Close()
	listener.own <- server
	if err := s.starts.startLogs(client); err != nil {
		return err
	}
	listener.acceptClients(s.starts)
	return nil
}

// Seeds returns the broker's address, in the form that kgo.SeedBrokers takes.
func (s *KafkaServer) Seeds() []string { return append([]string(nil), s.seeds...) }

// ClusterID returns the id in the broker's metadata, the same at every start on
// the same directory.
func (s *KafkaServer) ClusterID() string { return s.id }

// Run waits until ctx is done, and returns nil, or until the broker could not write
// something, and returns an error that wraps ErrCannotWrite. The broker then answers
// nothing more: what it knows and what is on disk are no longer the same, and only
// what is on disk may count. Starting again on the same directory, once it can be
// written, makes everything whole.
func (s *KafkaServer) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.failure.done:
		return fmt.Errorf("%w: %s: %s", ErrCannotWrite, s.dir, s.failure.what)
	}
}

// Close stops listening, writes what speeds up the next start, and releases the
// directory. Further calls return what the first did. A broker that could not
// write everything leaves no mark of a clean stop.
func (s *KafkaServer) Close() error {
	s.once.Do(func() {
		s.starts.close()
		s.cluster.Close()
		if !s.failure.happened() {
			s.err = replaceFile(filepath.Join(s.dir, cleanMark), nil)
		}
		if err := s.release(); err != nil {
			s.err = errors.Join(s.err, fmt.Errorf("release kafka directory: %w", err))
		}
	})
	return s.err
}

// clusterID returns the id that the data in dir belongs to, or for a new
// directory the wanted one or a random one in Kafka's form (22 characters).
func clusterID(dir, want string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if errors.Is(err, fs.ErrNotExist) {
		if want != "" {
			return want, nil
		}
		var id [16]byte
		rand.Read(id[:])
		return base64.RawURLEncoding.EncodeToString(id[:]), nil
	}
	if err != nil {
		return "", fmt.Errorf("read kafka cluster id: %w", err)
	}
	var meta struct {
		ClusterID string `json:"cluster_id"`
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return "", fmt.Errorf("read kafka cluster id: %w", err)
	}
	if want != "" && want != meta.ClusterID {
		return "", fmt.Errorf("start embedded kafka: %s holds cluster %q, not %q: %w",
			dir, meta.ClusterID, want, ErrClusterID)
	}
	return meta.ClusterID, nil
}

// failure is that the broker could not write something.
type failure struct {
	once sync.Once
	done chan struct{} // closed when it happens
	what string        // valid once done is closed
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

func (f *failure) set(what string) {
	f.once.Do(func() {
		f.what = what
		close(f.done)
	})
}

func (f *failure) happened() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// brokerLog passes the broker's errors on, and its warnings as debugging: most
// say that a transaction took some milliseconds, which syncing to disk does. Its
// lower levels are left out: they trace single requests. kfake reports a failed
// write nowhere else, and goes on; it does so before it answers.
type brokerLog struct {
	to     *slog.Logger
	failed *failure
}

// cannotWrite tells by a message's format whether it says that something could not be
// written.
func cannotWrite(format string) bool {
	for _, begin := range []string{"persist ", "endTx: failed to persist", "save session state", "rebuildSegments ", "compact pids.log", "compact groups.log"} {
		if strings.HasPrefix(format, begin) {
			return true
		}
	}
	return false
}

// Logf implements kfake.Logger.
func (l brokerLog) Logf(level kfake.LogLevel, format string, args ...any) {
	var at slog.Level
	switch {
	case cannotWrite(format):
		l.failed.set(fmt.Sprintf(format, args...))
		at = slog.LevelError
	case level == kfake.LogLevelError:
		at = slog.LevelError
	case level == kfake.LogLevelWarn:
		at = slog.LevelDebug
	default:
		return
	}
	if l.to.Enabled(context.Background(), at) {
		l.to.Log(context.Background(), at, fmt.Sprintf(format, args...), "engine", "kafka")
	}
}
