// Package mirror copies the ownership register into the region's own Kafka: the
// audit of who owned what, and a second memory of the highest epochs, so that a
// register that has forgotten is not believed.
package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

// The topics in which every region's Kafka keeps what the register said.
const (
	// OwnershipTopic has every revision of every record once, for ever.
	OwnershipTopic = "_geogate.ownership"
	// OwnersTopic is compacted to the newest record of each unit and region.
	OwnersTopic = "_geogate.owners"
)

// Config of a Mirror.
type Config struct {
	Region, Instance string
	// Client reaches the region's own cluster; it carries transactions.
	Client *kgo.Client
	// Topics is a cache of the client's; nil makes one.
	Topics *txn.Topics
	// Decoder opens batches; nil: one with default limits.
	Decoder *txn.Decoder
	// Skipped remembers records that cannot be used; nil: nobody does.
	Skipped *warning.Skipped
	Logger  *slog.Logger
}

// Mirror copies the register into the region's own Kafka: the audit of who owned
// what, and the second memory of the highest epochs.
type Mirror struct {
	cfg      Config
	producer *txn.Producer
	last     uint64 // highest revision in the topic
	news     chan ownership.Seen
	requests chan request
	begun    bool
	// abandoned: the region has given the register up; nothing is copied any more.
	abandoned bool
}

// request is a wish to give the register up.
type request struct {
	reason string
	done   chan<- error // holds one
}

// queueLength bounds what waits for Kafka; above it the watch waits.
const queueLength = 4096

// New makes a mirror; it does nothing before Run.
func New(cfg Config) *Mirror {
	if cfg.Topics == nil {
		cfg.Topics = txn.NewTopics(cfg.Client)
	}
	if cfg.Decoder == nil {
		cfg.Decoder = txn.NewDecoder(txn.Limits{})
	}
	return &Mirror{
		cfg: cfg, news: make(chan ownership.Seen, queueLength), requests: make(chan request),
	}
}

func (m *Mirror) newProducer() *txn.Producer {
	return txn.New(m.cfg.Client, "geogate.ownership."+m.cfg.Region, txn.Options{Topics: m.cfg.Topics})
}

// testimonyVersion is the version of both topics' values.
const testimonyVersion = 1

// testimony is the value of a record in both topics.
type testimony struct {
	Version  int             `json:"v"`
	Revision uint64          `json:"revision"`
	Record   json.RawMessage `json:"record"`
}

// abandonment is the record of a testimony that says whether the region has given the
// register up. Its key is [registerKey].
type abandonment struct {
	Version   int    `json:"v"`
	Abandoned *bool  `json:"abandoned"`
	By        string `json:"by"` // instance
	Reason    string `json:"reason,omitempty"`
}

// registerKey is the key of what is said of the register as a whole.
const registerKey = "register"

// Load reads what the region's Kafka has of the register.
func (m *Mirror) Load(ctx context.Context) (ownership.Memory, error) {
	memory := ownership.Memory{Epochs: make(map[string]event.Epoch), Live: make(map[string]uint64)}
	err := scan(ctx, m.cfg.Client, m.cfg.Topics, m.cfg.Decoder, func(r *txn.Record) {
		err := r.Refused
		if err == nil {
			err = take(string(r.Key), r.Value, &memory)
		}
		if err != nil && m.cfg.Skipped.Add(OwnershipTopic, 0, r.Offset, err) {
			m.cfg.Logger.Error("record of the register's copy cannot be used and is skipped", "topic", OwnershipTopic, "offset", r.Offset, "err", err)
		}
	})
	return memory, err
}

// InUse tells whether an ownership register rules in a cluster: whether the copy of one
// is there that has not been given up. Without the topic none does.
func InUse(ctx context.Context, cl *kgo.Client, d *txn.Decoder) (revision uint64, used bool, err error) {
	memory := ownership.Memory{Epochs: make(map[string]event.Epoch), Live: make(map[string]uint64)}
	err = scan(ctx, cl, txn.NewTopics(cl), d, func(r *txn.Record) {
		_ = take(string(r.Key), r.Value, &memory) // what cannot be used is reported where the register is used
	})
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return 0, false, nil
	}
	return memory.Last, memory.Last > 0 && !memory.Abandoned, err
}

// scan gives every committed record of the topic, in order.
func scan(ctx context.Context, cl *kgo.Client, topics *txn.Topics, d *txn.Decoder, visit func(*txn.Record)) error {
	admin := kadm.NewClient(cl)
	starts, err := admin.ListStartOffsets(ctx, OwnershipTopic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("list start of %s: %w", OwnershipTopic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, OwnershipTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("list end of %s: %w", OwnershipTopic, err)
	}
	start, _ := starts.Lookup(OwnershipTopic, 0)
	end, _ := ends.Lookup(OwnershipTopic, 0)
	at := txn.TopicPartition{Topic: OwnershipTopic}
	_, err = txn.ReadCommitted(ctx, topics, d, at, start.Offset, end.Offset, func(r *txn.Record) error {
		visit(r)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", OwnershipTopic, err)
	}
	return nil
}

const (
	// mostEpoch and mostRevision bound what a record can say: no register has ever come
	// so far, and a repair goes on from there.
	mostEpoch    = 1 << 48
	mostRevision = 1 << 53
)

// take takes a record of the topic. An error says that it cannot be used. That its revision
// is in the topic counts all the same, for a later version may have written it.
func take(key string, value []byte, memory *ownership.Memory) (err error) {
	defer defect.Catch(&err)
	t, err := readTestimony(value)
	if err != nil {
		return err
	}
	if t.Revision > mostRevision {
		return fmt.Errorf("%w: revision %d", errForeignRecord, t.Revision)
	}
	memory.Last = max(memory.Last, t.Revision)
	var x abandonment
	if json.Unmarshal(t.Record, &x) == nil && x.Abandoned != nil {
		if key != registerKey {
			return errForeignKey
		}
		memory.Abandoned = *x.Abandoned
		return nil
	}
	if strings.HasPrefix(key, ownership.ExtentsKey(ownership.ExtentsSubjects)) {
		r, err := ownership.DecodeExtents(t.Record)
		if err != nil {
			return fmt.Errorf("%w: %w", errForeignRecord, err)
		}
		if !r.In(key) {
			return errForeignKey
		}
		memory.TakeExtents(&r)
		return nil
	}
	// Which it is is told by the key: both kinds of records have members of one name that
	// differ in form.
	if strings.HasPrefix(key, regionKeys) {
		return takeRegion(key, &t, memory)
	}
	u, err := ownership.DecodeUnit(t.Record)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errForeignRecord, err)
	case u.Unit == "":
		return fmt.Errorf("%w: neither of a unit nor of a region", errForeignRecord)
	case u.Epoch > mostEpoch:
		return fmt.Errorf("%w: epoch %d of %s", errForeignRecord, u.Epoch, u.Unit)
	case key != u.Unit:
		return errForeignKey
	}
	memory.TakeUnit(&u, t.Revision, t.Record)
	memory.Abandoned = false
	return nil
}

// regionKeys begin the keys of regions' records; no unit's name has a colon.
var regionKeys = ownership.Subject(ownership.RegionSubject(""))

func takeRegion(key string, t *testimony, memory *ownership.Memory) error {
	r, err := ownership.DecodeRegion(t.Record)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errForeignRecord, err)
	case r.Live > mostEpoch:
		return fmt.Errorf("%w: liveness epoch %d of %s", errForeignRecord, r.Live, r.Region)
	case r.Region == "" || key != ownership.Subject(ownership.RegionSubject(r.Region)):
		return errForeignKey
	}
	memory.TakeRegion(&r)
	memory.Abandoned = false
	return nil
}

// See takes a message of the register, in its order. It waits while Kafka lags.
func (m *Mirror) See(ctx context.Context, s ownership.Seen) {
	if ownership.Subject(s.Subject) == "" && ownership.ExtentsKey(s.Subject) == "" {
		return
	}
	select {
	case m.news <- s:
	case <-ctx.Done():
	}
}

// retryPause is the pause after Kafka has refused.
const retryPause = time.Second

// Run writes what See takes until the context ends.
func (m *Mirror) Run(ctx context.Context) error {
	var pending []ownership.Seen
	initialised := false
	for {
		if len(pending) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case s := <-m.news:
				pending = append(pending, s)
			case r := <-m.requests:
				r.done <- m.abandon(ctx, &initialised, r.reason)
				continue
			}
		}
		pending = m.drain(pending)
		err := m.write(ctx, &initialised, pending)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pending = pending[:0]
			continue
		}
		initialised = false
		m.cfg.Logger.Warn("cannot copy the register to kafka; will try again", "err", err)
		if sleep.For(ctx, retryPause) != nil {
			return nil
		}
	}
}

func (m *Mirror) drain(pending []ownership.Seen) []ownership.Seen {
	for {
		select {
		case s := <-m.news:
			pending = append(pending, s)
		default:
			return pending
		}
	}
}

// begin takes the transactional id and reads after it, which makes sure that no other
// instance of the region writes the same revisions. A register that was given up is taken
// up again by who starts with one.
//
// Instances of a region take the id from one another as each has something to write: what
// one has written, the others find when they read. So each time a new producer takes it,
// whoever holds it.
func (m *Mirror) begin(ctx context.Context) error {
	m.producer = m.newProducer()
	if err := m.producer.Init(ctx); err != nil {
		return fmt.Errorf("take over %s: %w", OwnershipTopic, err)
	}
	memory, err := m.Load(ctx)
	if err != nil {
		return err
	}
	m.last = memory.Last
	if memory.Abandoned && m.begun {
		m.abandoned = true // by another instance of the region, while this one ran
	}
	if memory.Abandoned && !m.begun {
		if err := m.say(ctx, false, ""); err != nil {
			return err
		}
	}
	m.begun = true
	return nil
}

// Abandon writes that the region gives the register up, and copies nothing of it any
// more. Instances may then start without one.
func (m *Mirror) Abandon(ctx context.Context, reason string) error {
	done := make(chan error, 1)
	select {
	case m.requests <- request{reason, done}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Mirror) abandon(ctx context.Context, initialised *bool, reason string) error {
	if !*initialised {
		if err := m.begin(ctx); err != nil {
			return err
		}
		*initialised = true
	}
	err := m.say(ctx, true, reason)
	m.abandoned = m.abandoned || err == nil
	return err
}

// say writes whether the register is given up.
func (m *Mirror) say(ctx context.Context, abandoned bool, reason string) error {
	record, err := json.Marshal(abandonment{Version: 1, Abandoned: &abandoned, By: m.cfg.Instance, Reason: reason})
	if err != nil {
		return fmt.Errorf("encode abandonment: %w", err)
	}
	value, err := json.Marshal(testimony{Version: testimonyVersion, Revision: m.last, Record: record})
	if err != nil {
		return fmt.Errorf("encode abandonment: %w", err)
	}
	var records []txn.Record
	for _, topic := range []string{OwnershipTopic, OwnersTopic} {
		records = append(records, txn.Record{Topic: topic, Key: []byte(registerKey), Value: value, Timestamp: time.Now().UnixMilli()})
	}
	if _, err := m.producer.Commit(ctx, records); err != nil {
		return fmt.Errorf("write %s: %w", OwnershipTopic, err)
	}
	return nil
}

// write appends what the topic does not have, in one transaction.
func (m *Mirror) write(ctx context.Context, initialised *bool, pending []ownership.Seen) error {
	if !*initialised {
		if err := m.begin(ctx); err != nil {
			return err
		}
		*initialised = true
	}
	if m.abandoned {
		return nil
	}
	var records []txn.Record
	last := m.last
	for _, s := range pending {
		if s.Seq <= last {
			continue
		}
		last = s.Seq
		value, err := json.Marshal(testimony{Version: testimonyVersion, Revision: s.Seq, Record: json.RawMessage(s.Data)})
		if err != nil {
			return fmt.Errorf("copy revision %d: %w", s.Seq, err)
		}
		key, topics := ownership.Subject(s.Subject), []string{OwnershipTopic, OwnersTopic}
		if key == "" { // what records of units name; nobody looks for the newest of it
			key, topics = ownership.ExtentsKey(s.Subject), topics[:1]
		}
		for _, topic := range topics {
			records = append(records, txn.Record{Topic: topic, Key: []byte(key), Value: value, Timestamp: time.Now().UnixMilli()})
		}
	}
	if len(records) == 0 {
		return nil
	}
	if _, err := m.producer.Commit(ctx, records); err != nil {
		return fmt.Errorf("write %s: %w", OwnershipTopic, err)
	}
	m.last = last
	return nil
}

var (
	errForeignRecord = errors.New("mirror: not a record of the register")
	errForeignKey    = fmt.Errorf("%w: its key is that of another one", errForeignRecord)
)

// readTestimony reads a value of either topic, whatever it is about.
func readTestimony(value []byte) (t testimony, err error) {
	if err := json.Unmarshal(value, &t); err != nil {
		return t, fmt.Errorf("%w: %w", errForeignRecord, err)
	}
	if t.Version != testimonyVersion {
		return t, fmt.Errorf("%w: version %d is not known", errForeignRecord, t.Version)
	}
	return t, nil
}

// ParseTestimony reads a value of [OwnershipTopic] or [OwnersTopic] that is about
// a unit.
func ParseTestimony(value []byte) (revision uint64, u ownership.UnitRecord, err error) {
	t, err := readTestimony(value)
	if err != nil {
		return 0, ownership.UnitRecord{}, err
	}
	u, err = ownership.DecodeUnit(t.Record)
	if err == nil && u.Unit == "" {
		err = errForeignRecord
	}
	return t.Revision, u, err
}
