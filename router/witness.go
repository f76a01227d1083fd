package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// The topics in which every region's Kafka keeps what the register said.
const (
	// OwnershipTopic has every revision of every record once, for ever.
	OwnershipTopic = "_geogate.ownership"
	// OwnersTopic is compacted to the newest record of each unit and region.
	OwnersTopic = "_geogate.owners"
)

// WitnessConfig of a Witness.
type WitnessConfig struct {
	Region string
	// Opts reach the region's own cluster.
	Opts []kgo.Opt
	// Client writes; it carries transactions.
	Client *kgo.Client
	Topics *txn.Topics
	Logger *slog.Logger
}

// Witness copies the register into the region's own Kafka: the audit of who owned
// what, and the second memory of the highest epochs.
type Witness struct {
	cfg      WitnessConfig
	producer *txn.Producer
	last     uint64 // highest revision in the topic
	news     chan Seen
}

// witnessQueue bounds what waits for Kafka; above it the watch waits.
const witnessQueue = 4096

// NewWitness makes a witness; it does nothing before Run.
func NewWitness(cfg WitnessConfig) *Witness {
	return &Witness{
		cfg: cfg, news: make(chan Seen, witnessQueue),
		producer: txn.New(cfg.Client, "geogate.ownership."+cfg.Region, txn.Options{Topics: cfg.Topics}),
	}
}

// testimony is the value of a record in both topics.
type testimony struct {
	Version  int             `json:"v"`
	Revision uint64          `json:"revision"`
	Record   json.RawMessage `json:"record"`
}

// Load reads what the region's Kafka knows: the highest epoch of each unit.
func (w *Witness) Load(ctx context.Context) (map[string]event.Epoch, error) {
	epochs := make(map[string]event.Epoch)
	w.last = 0
	cl, err := kgo.NewClient(append(append([]kgo.Opt(nil), w.cfg.Opts...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{OwnershipTopic: {0: kgo.NewOffset().AtStart()}}))...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", OwnershipTopic, err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, OwnershipTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list end of %s: %w", OwnershipTopic, err)
	}
	end, _ := ends.Lookup(OwnershipTopic, 0)
	for next := int64(0); next < end.Offset; {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read %s: %w", OwnershipTopic, ctx.Err())
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			t, err := readTestimony(r.Value)
			if err != nil {
				return
			}
			w.last = max(w.last, t.Revision)
			if u, err := decode[UnitRecord](t.Record); err == nil && u.Unit != "" {
				epochs[u.Unit] = max(epochs[u.Unit], u.Epoch)
			}
		})
	}
	return epochs, nil
}

// See takes a message of the register, in its order. It waits while Kafka is
// behind.
func (w *Witness) See(ctx context.Context, s Seen) {
	if Subject(s.Subject) == "" {
		return
	}
	select {
	case w.news <- s:
	case <-ctx.Done():
	}
}

// witnessPause is the pause after Kafka has refused.
const witnessPause = time.Second

// Run writes what See takes until the context ends.
func (w *Witness) Run(ctx context.Context) error {
	var pending []Seen
	begun := false
	for {
		if len(pending) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case s := <-w.news:
				pending = append(pending, s)
			}
		}
		pending = w.drain(pending)
		err := w.write(ctx, &begun, pending)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pending = pending[:0]
			continue
		}
		begun = false
		w.cfg.Logger.Warn("copy the register to kafka, will try again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(witnessPause):
		}
	}
}

func (w *Witness) drain(pending []Seen) []Seen {
	for {
		select {
		case s := <-w.news:
			pending = append(pending, s)
		default:
			return pending
		}
	}
}

// write appends what the topic does not have, in one transaction. Taking the
// transactional id first and reading after it makes sure that no other instance
// of the region writes the same revisions.
func (w *Witness) write(ctx context.Context, begun *bool, pending []Seen) error {
	if !*begun {
		if err := w.producer.Init(ctx); err != nil {
			return fmt.Errorf("take over %s: %w", OwnershipTopic, err)
		}
		if _, err := w.Load(ctx); err != nil {
			return err
		}
		*begun = true
	}
	var records []txn.Record
	last := w.last
	for _, s := range pending {
		if s.Seq <= last {
			continue
		}
		last = s.Seq
		value := encode(testimony{Version: recordVersion, Revision: s.Seq, Record: json.RawMessage(s.Data)})
		for _, topic := range []string{OwnershipTopic, OwnersTopic} {
			records = append(records, txn.Record{Topic: topic, Key: []byte(Subject(s.Subject)), Value: value, Timestamp: time.Now().UnixMilli()})
		}
	}
	if len(records) == 0 {
		return nil
	}
	if _, err := w.producer.Commit(ctx, records); err != nil {
		return fmt.Errorf("write %s: %w", OwnershipTopic, err)
	}
	w.last = last
	return nil
}

// errors of a register that is not one of ours.
var errForeignRecord = errors.New("router: not a record of the register")

// readTestimony reads a value of either topic, whatever it is about.
func readTestimony(value []byte) (t testimony, err error) {
	if err := json.Unmarshal(value, &t); err != nil {
		return t, fmt.Errorf("%w: %w", errForeignRecord, err)
	}
	if t.Version != recordVersion {
		return t, fmt.Errorf("%w: version %d is not known", errForeignRecord, t.Version)
	}
	return t, nil
}

// ParseTestimony reads a value of [OwnershipTopic] or [OwnersTopic] that is about
// a unit.
func ParseTestimony(value []byte) (revision uint64, u UnitRecord, err error) {
	t, err := readTestimony(value)
	if err != nil {
		return 0, UnitRecord{}, err
	}
	u, err = decode[UnitRecord](t.Record)
	if err == nil && u.Unit == "" {
		err = errForeignRecord
	}
	return t.Revision, u, err
}
