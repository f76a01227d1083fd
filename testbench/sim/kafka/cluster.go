package kafka

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The answers that are not OK, with the number each has in the protocol.
var (
	ErrFenced     = errors.New("kafka: another producer holds the id (47, 90)")
	ErrConcurrent = errors.New("kafka: the transaction before is still ending (51)")
	ErrSequence   = errors.New("kafka: out of order sequence number (45)")
	ErrState      = errors.New("kafka: not possible in this state of the transaction (48)")
	ErrRange      = errors.New("kafka: offset out of range (1)")
)

// Scheduler is the virtual time that a cluster lives in.
type Scheduler interface {
	Now() time.Duration
	After(d time.Duration, do func())
	Rand() *rand.Rand
}

// Config sets what differs between clusters.
type Config struct {
	Name string
	// Bumps is the behaviour of transaction.version 2 (4.x): every end of a
	// transaction raises the producer epoch, and markers carry the raised one.
	Bumps bool
	// Marker draws how long one partition's marker takes after EndTxn's OK.
	Marker func(*rand.Rand) time.Duration
	// TxnTimeout aborts a transaction that its owner has left.
	TxnTimeout time.Duration
	// Wall is the cluster's clock for timestamps of markers, Unix ms.
	Wall func() int64
}

type topic struct {
	id        [16]byte
	compacted bool
	parts     []*partition
}

// Cluster is one region's Kafka.
type Cluster struct {
	cfg      Config
	sched    Scheduler
	topics   map[string]*topic
	txns     map[string]*transaction
	producer int64
}

// New makes an empty cluster.
func New(cfg Config, sched Scheduler) *Cluster {
	return &Cluster{cfg: cfg, sched: sched, topics: map[string]*topic{}, txns: map[string]*transaction{}, producer: 100}
}

// Create makes a topic; one that exists stays as it is.
func (c *Cluster) Create(name string, partitions int, compacted bool) {
	if c.topics[name] != nil {
		return
	}
	sum := sha256.Sum256([]byte(c.cfg.Name + "/" + name))
	t := &topic{id: [16]byte(sum[:16]), compacted: compacted}
	for i := range partitions {
		t.parts = append(t.parts, newPartition(TP{name, int32(i)}, compacted))
	}
	c.topics[name] = t
}

// TopicID is a topic's id; the zero id for one that does not exist.
func (c *Cluster) TopicID(name string) [16]byte {
	if t := c.topics[name]; t != nil {
		return t.id
	}
	return [16]byte{}
}

// Partitions is a topic's partition count, 0 for one that does not exist.
func (c *Cluster) Partitions(name string) int {
	if t := c.topics[name]; t != nil {
		return len(t.parts)
	}
	return 0
}

func (c *Cluster) at(tp TP) *partition {
	t := c.topics[tp.Topic]
	if t == nil || int(tp.Partition) >= len(t.parts) {
		panic(fmt.Sprintf("kafka: cluster %s has no partition %v", c.cfg.Name, tp))
	}
	return t.parts[tp.Partition]
}

// Fetched is the answer of a fetch.
type Fetched struct {
	Records []Record
	Next    int64 // where the next fetch goes on
	HW, LSO int64
	Start   int64
}

// Fetch reads from an offset: at most limit entries, markers among them. Reading
// committed it stops at the last stable offset and leaves aborted data out.
func (c *Cluster) Fetch(tp TP, from int64, committed bool, limit int) (Fetched, error) {
	p := c.at(tp)
	f := Fetched{Next: from, HW: p.end, LSO: p.lso(), Start: p.start}
	if from < p.start || from > p.end {
		return f, ErrRange
	}
	end := p.end
	if committed {
		end = f.LSO
	}
	i, _ := slices.BinarySearchFunc(p.log, from, func(r Record, at int64) int { return int(r.Offset - at) })
	for ; i < len(p.log) && limit > 0; i++ {
		r := p.log[i]
		if r.Offset >= end {
			break
		}
		f.Next = r.Offset + 1
		if committed && p.isAborted(&r) {
			continue
		}
		f.Records = append(f.Records, r)
		limit--
	}
	return f, nil
}

// List is ListOffsets: the high watermark, or the last stable offset.
func (c *Cluster) List(tp TP, committed bool) int64 {
	if committed {
		return c.at(tp).lso()
	}
	return c.at(tp).end
}

// LeaderEpoch is the partition's current leader epoch.
func (c *Cluster) LeaderEpoch(tp TP) int32 { return c.at(tp).epoch() }

// EndOfEpoch is OffsetForLeaderEpoch.
func (c *Cluster) EndOfEpoch(tp TP, epoch int32) int64 { return c.at(tp).endOfEpoch(epoch) }

// Watch calls wake once, when something was appended or became stable.
func (c *Cluster) Watch(tp TP, wake func()) {
	p := c.at(tp)
	p.watchers = append(p.watchers, wake)
}

// Compact runs the cleaner on a compacted partition.
func (c *Cluster) Compact(tp TP, dropTombstones bool) {
	if p := c.at(tp); p.compacted {
		p.compact(dropTombstones)
	}
}

// Truncate loses everything at and above to, under a new leader epoch.
func (c *Cluster) Truncate(tp TP, to int64) { c.at(tp).truncate(to) }

// Log is the whole log, for checkers: aborted tells of each entry whether its
// transaction was aborted.
func (c *Cluster) Log(tp TP) (rs []Record, aborted func(*Record) bool) {
	p := c.at(tp)
	return p.log, p.isAborted
}
