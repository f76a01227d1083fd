package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Defaults of Options.
const (
	DefaultTimeout      = 30 * time.Second
	DefaultRetryFor     = 10 * time.Second
	DefaultBatchBytes   = 900 << 10 // Kafka's default limit is 1 MiB less 12 bytes of log overhead
	DefaultRequestBytes = 4 << 20   // requests of tens of megabytes kill a connection
)

// Options of a producer; the zero value takes the defaults.
type Options struct {
	Timeout      time.Duration // after which the cluster aborts a transaction
	RetryFor     time.Duration // how long an answer that says "later" is asked again
	BatchBytes   int           // uncompressed, for the batches that Commit makes
	RequestBytes int           // bound of one produce request; one batch always goes
	Codec        kgo.CompressionCodecType
	Topics       *Topics // shared cache of the same client; nil makes one
}

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

type state uint8

const (
	stateNew    state = iota // Init is needed
	stateIdle                // no transaction is open
	stateOpen                // partitions were added
	stateBroken              // an error came; only abort or Init may follow
)

// Producer writes transactions under one transactional id. It is not safe for
// use by several goroutines.
//
// Its life: Init, then any number of transactions (Add, Produce, End). After any
// error Init comes again; it ends what was open, but the caller cannot know
// whether a transaction whose End failed was committed: it must read.
type Producer struct {
	cl     *kgo.Client
	id     string
	opts   Options
	topics *Topics

	state         state
	coordinator   int32 // broker id, -1 unknown
	producer      identity
	held          held // what Init goes by when it comes again
	holds         bool // the first Init was answered
	openedAt      time.Time
	breaks        *breaks // of the client
	broken        int64   // their count when the transaction was opened
	sequences     map[TopicPartition]int32
	inTransaction map[TopicPartition]bool
}

// New makes a producer over cl, which it shares and does not close. The client
// should have RequiredAcks all, the default; a producer sends no request before
// Init.
func New(cl *kgo.Client, id string, opts Options) *Producer {
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	opts.RetryFor = cmp.Or(opts.RetryFor, DefaultRetryFor)
	opts.BatchBytes = cmp.Or(opts.BatchBytes, DefaultBatchBytes)
	opts.RequestBytes = cmp.Or(opts.RequestBytes, DefaultRequestBytes)
	if opts.Topics == nil {
		opts.Topics = NewTopics(cl)
	}
	return &Producer{cl: cl, id: id, opts: opts, topics: opts.Topics, coordinator: -1, breaks: breaksOf(cl)}
}

// ProducerID is the id that the last Init or End gave.
func (p *Producer) ProducerID() int64 { return p.producer.id }

// Epoch is the epoch that the last Init or End gave.
func (p *Producer) Epoch() int16 { return p.producer.epoch }

// Over is a producer of the same id over another client, which holds what this one
// holds. This one must not be used any more.
func (p *Producer) Over(cl *kgo.Client) *Producer {
	next := New(cl, p.id, p.opts)
	next.topics = NewTopics(cl)
	next.opts.Topics = next.topics
	next.producer, next.held, next.holds, next.openedAt = p.producer, p.held, p.holds, p.openedAt
	next.held.away = p.held.away || p.held.opened && p.breaks.count() != p.broken
	next.broken = next.breaks.count()
	return next
}

// Init makes this producer the only one of its transactional id: a transaction
// that is open under it, of this or another process, is aborted, its markers are
// written before Init returns, and older holders get ErrFenced.
//
// The first Init takes the id from whoever holds it. Those after it go on only while
// no other producer has taken the id since: then they return ErrFenced and leave the
// other alone.
func (p *Producer) Init(ctx context.Context) error {
	p.state = stateNew
	if !p.holds {
		return p.initialise(ctx, anyone)
	}
	p.held.outlasted = p.outlasted()
	p.held.away = p.held.away || p.held.opened && p.breaks.count() != p.broken
	var err error
	for range initTries {
		var as identity
		if as, err = p.askHolder(ctx); err != nil {
			return err
		}
		if as != anyone && as != p.held.identity {
			p.held.identity, p.held.asked = as, false
		}
		if err = p.initialise(ctx, as); !errors.Is(err, ErrFenced) {
			return err
		}
		// Ending the own open transaction raises the epoch, too: look again.
	}
	return err
}

// initTries bounds how often Init looks again; an open transaction takes two.
const initTries = 4

func (p *Producer) initialise(ctx context.Context, as identity) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = kmsg.StringPtr(p.id)
	req.TransactionTimeoutMillis = int32(p.opts.Timeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = as.id, as.epoch
	p.held.asked = true
	kresp, err := p.ask(ctx, "initialise producer", req, func(r kmsg.Response) int16 {
		if resp, ok := r.(*kmsg.InitProducerIDResponse); ok {
			return resp.ErrorCode
		}
		return kerr.UnknownServerError.Code
	})
	if err != nil {
		return err
	}
	resp := kresp.(*kmsg.InitProducerIDResponse) //nolint:forcetypeassert // ask checked it
	p.producer = identity{id: resp.ProducerID, epoch: resp.ProducerEpoch}
	p.holds, p.held = true, held{identity: p.producer}
	p.beginEpoch()
	return nil
}

// beginEpoch forgets sequences: a new epoch starts every partition at 0.
func (p *Producer) beginEpoch() {
	p.state = stateIdle
	p.sequences = map[TopicPartition]int32{}
	p.inTransaction = map[TopicPartition]bool{}
}

// Add puts partitions of a topic into the transaction, opening one if none is.
// Partitions that are in it already cost nothing. Kafka 4.x would add a partition
// by itself at the first produce, but then waits in steps of 20 ms for the
// markers of the transaction before; asking, and asking again each millisecond
// while it says CONCURRENT_TRANSACTIONS, is several times faster.
func (p *Producer) Add(ctx context.Context, topic string, partitions ...int32) error {
	return p.add(ctx, map[string][]int32{topic: partitions})
}

func (p *Producer) add(ctx context.Context, wanted map[string][]int32) error {
	if p.state != stateIdle && p.state != stateOpen {
		return fmt.Errorf("add partitions for %s: %w", p.id, ErrState)
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID = p.id
	req.ProducerID, req.ProducerEpoch = p.producer.id, p.producer.epoch
	var fresh []TopicPartition
	for topic, partitions := range wanted {
		rt := kmsg.NewAddPartitionsToTxnRequestTopic()
		rt.Topic = topic
		for _, n := range partitions {
			if tp := (TopicPartition{topic, n}); !p.inTransaction[tp] {
				rt.Partitions = append(rt.Partitions, n)
				fresh = append(fresh, tp)
			}
		}
		if len(rt.Partitions) > 0 {
			req.Topics = append(req.Topics, rt)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if !p.held.opened {
		p.broken = p.breaks.count()
	}
	p.state = stateOpen // from here on there may be something to abort
	if _, err := p.ask(ctx, "add partitions to transaction", clientAdd{req}, addCode); err != nil {
		p.state = stateBroken
		if p.failed(err); !errors.Is(err, ErrFenced) {
			p.opening()
		}
		return err
	}
	p.opening()
	for _, tp := range fresh {
		p.inTransaction[tp] = true
	}
	return nil
}

// clientAdd pins the request to version 3: later versions are for brokers.
type clientAdd struct {
	*kmsg.AddPartitionsToTxnRequest
}

// MaxVersion implements kmsg.Request.
func (clientAdd) MaxVersion() int16 { return 3 }

// addCode is the answer's one code that matters: all partitions are added or
// none is, and those that merely shared a refusal have OPERATION_NOT_ATTEMPTED.
func addCode(r kmsg.Response) int16 {
	resp, ok := r.(*kmsg.AddPartitionsToTxnResponse)
	if !ok {
		return kerr.UnknownServerError.Code
	}
	code := resp.ErrorCode
	for _, t := range resp.Topics {
		for _, q := range t.Partitions {
			if q.ErrorCode != 0 && (code == 0 || code == kerr.OperationNotAttempted.Code) {
				code = q.ErrorCode
			}
		}
	}
	return code
}

// Ended is the identity under which a transaction's markers are written: with EndTxn 5
// (Kafka 4.x) the answer's, else that of Init.
type Ended struct {
	ProducerID int64
	Epoch      int16
}

// End commits or aborts the transaction. With nothing added it does nothing. A
// commit succeeds even if a batch was refused, therefore it is not possible after
// an error. Committed records may become visible some milliseconds after End
// returns: the cluster writes the markers later.
func (p *Producer) End(ctx context.Context, commit bool) (Ended, error) {
	ended := Ended{p.producer.id, p.producer.epoch}
	switch {
	case p.state == stateIdle:
		return ended, nil
	case p.state == stateNew, commit && p.state == stateBroken:
		return ended, fmt.Errorf("end transaction of %s: %w", p.id, ErrState)
	case p.held.refused:
		// Somebody has ended it. Asked again, the coordinator may take the request for
		// a repeated one, and answer with the epoch of the producer that holds the id now.
		p.state = stateNew
		return ended, fmt.Errorf("end transaction of %s: %w", p.id, ErrFenced)
	}
	was := p.state
	p.state = stateBroken
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID = p.id
	req.ProducerID, req.ProducerEpoch = p.producer.id, p.producer.epoch
	req.Commit = commit
	kresp, err := p.ask(ctx, "end transaction", req, func(r kmsg.Response) int16 {
		if resp, ok := r.(*kmsg.EndTxnResponse); ok {
			return resp.ErrorCode
		}
		return kerr.UnknownServerError.Code
	})
	if err != nil {
		p.failed(err)
		return ended, err
	}
	resp := kresp.(*kmsg.EndTxnResponse) //nolint:forcetypeassert // ask checked it
	if resp.Version >= 5 {
		if resp.ProducerID != p.producer.id {
			// The epochs of an id are used up: the answer does not say
			// whether the marker has the old or the new one.
			return ended, fmt.Errorf("end transaction of %s: the producer id changed: %w", p.id, ErrUnclear)
		}
		p.producer.epoch = resp.ProducerEpoch
		p.held = held{identity: p.producer}
		p.beginEpoch()
		return Ended{p.producer.id, p.producer.epoch}, nil
	}
	// Up to version 4 the epoch stays and sequences go on. Restarting them would
	// be answered OK as a duplicate, and the data dropped. After an error nobody
	// knows how far they are.
	p.inTransaction = map[TopicPartition]bool{}
	p.held = held{identity: p.producer}
	p.state = stateIdle
	if was == stateBroken {
		p.state = stateNew
	}
	return ended, nil
}

// ask sends a request to the transaction coordinator until it has an answer that
// is not "later". All requests sent through it may be repeated: the coordinator
// answers a repetition like the first.
func (p *Producer) ask(ctx context.Context, what string, req kmsg.Request, code func(kmsg.Response) int16) (kmsg.Response, error) {
	wrap := func(err error) error { return fmt.Errorf("%s %s: %w", what, p.id, err) }
	deadline := time.Now().Add(p.opts.RetryFor)
	wait := retryWait{}
	for {
		resp, err := p.askOnce(ctx, req)
		p.unreached(err)
		var answer int16
		if err == nil {
			if answer = code(resp); answer == 0 {
				return resp, nil
			}
			err = kerr.ErrorForCode(answer)
		}
		switch answer {
		case kerr.ConcurrentTransactions.Code:
			wait.step = time.Millisecond
		case 0, kerr.CoordinatorLoadInProgress.Code, kerr.CoordinatorNotAvailable.Code, kerr.NotCoordinator.Code:
			p.coordinator = -1
		case kerr.InvalidProducerEpoch.Code, kerr.ProducerFenced.Code:
			return nil, wrap(fmt.Errorf("%w: %w", ErrFenced, err))
		case kerr.InvalidTxnState.Code, kerr.InvalidProducerIDMapping.Code, kerr.TransactionAbortable.Code,
			kerr.RequestTimedOut.Code, kerr.UnknownServerError.Code:
			return nil, wrap(fmt.Errorf("%w: %w", ErrUnclear, err))
		default:
			if !kerr.IsRetriable(err) {
				return nil, wrap(err)
			}
		}
		if errors.Is(err, kgo.ErrClientClosed) || time.Now().After(deadline) || !wait.next(ctx) {
			return nil, wrap(errors.Join(ErrUnclear, err, ctx.Err()))
		}
	}
}

func (p *Producer) askOnce(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if p.coordinator < 0 {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorType = 1
		find.CoordinatorKey = p.id
		find.CoordinatorKeys = []string{p.id}
		kresp, err := p.cl.Request(ctx, find)
		if err != nil {
			return nil, fmt.Errorf("find coordinator: %w", err)
		}
		resp, ok := kresp.(*kmsg.FindCoordinatorResponse)
		if !ok || len(resp.Coordinators) != 1 {
			return nil, fmt.Errorf("find coordinator: answer %T", kresp)
		}
		if err := kerr.ErrorForCode(resp.Coordinators[0].ErrorCode); err != nil {
			return nil, fmt.Errorf("find coordinator: %w", err)
		}
		p.coordinator = resp.Coordinators[0].NodeID
	}
	resp, err := p.cl.Broker(int(p.coordinator)).Request(ctx, req)
	if err != nil {
		p.coordinator = -1
	}
	return resp, err
}
