// Package register is the ownership register on NATS: a JetStream stream that is
// written by conditional writes alone. It is the only user of the NATS client.
package register

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/router/ownership"
)

// Config says how the register is reached.
type Config struct {
	// Dialer connects to a server inside the process; nil: URLs are dialled.
	Dialer nats.InProcessConnProvider
	URLs   []string
	// Name names the connection for the server's operators.
	Name string
	// Replicas is 1 in mode solo and 3 in mode quorum.
	Replicas int
	// Timeout is when an attempt to write counts as unknown.
	Timeout time.Duration
	Logger  *slog.Logger
}

// The subjects. All of own.> is in the stream; what begins with fence. is in none.
const (
	subjectAll    = "own.>"
	subjectFiller = "own.pass"   // what only passes over revisions
	subjectFence  = "fence."     // broadcasts
	subjectAsk    = "fence.ask." // questions to other instances
)

const (
	// streamName is the register's stream.
	streamName = "OWN"
	// keptRevisions is how many revisions of a record stay in the register; all
	// are in every region's Kafka.
	keptRevisions = ownership.KeptRevisions
	// duplicates is how long the register knows message ids: longer than anybody
	// tries again.
	duplicates = 10 * time.Minute
	// headerBytes is more than the headers of a write take.
	headerBytes = 1 << 10
	// mostRevision bounds what is believed of revisions that were seen.
	mostRevision = 1 << 53
	// raiseStep is how many messages are on their way at a time when revisions are passed
	// over.
	raiseStep = 256
	// silent is how long nothing was heard of a server that is not reachable; each
	// says something every second.
	silent = 10 * time.Second
	// leastServer is the oldest server whose clustered streams keep what they have
	// acknowledged.
	leastServer = "2.14.4"
)

const (
	// pingEvery and the two pings that may be missed are how long a dead connection
	// looks alive.
	pingEvery = 2 * time.Second
	// readTime bounds a question: soon after the register is back it is asked again.
	readTime = time.Second
)

// The server's error codes that decide something.
const (
	codeWrongSequence = 10071 // the condition does not hold
	codeInFlight      = 10164 // another write of the subject is being agreed on
	codeDuplicate     = 10158 // an attempt with this id is
)

var (
	// ErrServerTooOld is returned for a NATS server that must not hold the register.
	ErrServerTooOld = errors.New("register: the nats server is too old to hold the register")
	// ErrUnfit is returned for a stream that must not be the register.
	ErrUnfit = errors.New("register: not fit to be the register")
)

// Register is the ownership register over one NATS connection. It implements
// [ownership.Register].
type Register struct {
	cfg  Config
	conn *nats.Conn
	js   jetstream.JetStream
	// inbox is where answers to questions come.
	inbox string
	// handlers are the calls of the connection and its subscriptions.
	handlers callbacks
	// beyond is the revision past which a stream begins that has to be made.
	beyond uint64
	// stopping are watches that have ended and whose consumers are being stopped.
	stopping sync.WaitGroup

	mu     sync.Mutex
	stream jetstream.Stream
	took   time.Duration // of the last write that was stored
}

var _ ownership.Register = (*Register)(nil)

// Dial connects, and calls the handlers from then on until Close. The server, and
// the register on it, need not be there yet.
func Dial(cfg Config, h ownership.Handlers) (*Register, error) {
	r := &Register{cfg: cfg, beyond: h.Beyond}
	connected := func(*nats.Conn) {
		if h.Connected != nil {
			r.handlers.do(h.Connected)
		}
	}
	opts := []nats.Option{
		nats.Name(cfg.Name), nats.MaxReconnects(-1), nats.ReconnectWait(200 * time.Millisecond), nats.RetryOnFailedConnect(true),
		// What is published while there is no connection must fail, not arrive
		// late: it may claim something that is no longer so.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		nats.ReconnectHandler(connected), nats.ConnectHandler(connected),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				r.handlers.do(func() { cfg.Logger.Warn("register connection lost", "err", err) })
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			r.handlers.do(func() { cfg.Logger.Debug("register connection", "err", err) })
		}),
	}
	if cfg.Dialer != nil {
		opts = append(opts, nats.InProcessServer(cfg.Dialer))
	}
	var err error
	if r.conn, err = nats.Connect(strings.Join(cfg.URLs, ","), opts...); err != nil {
		return nil, fmt.Errorf("connect to nats: %w", err)
	}
	r.inbox = r.conn.NewInbox()
	if r.js, err = jetstream.New(r.conn); err != nil {
		err = fmt.Errorf("use jetstream: %w", err)
	} else {
		err = r.subscribe(h)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close ends the connection. When it returns, no handler runs and none will be
// called. A handler that waits for something has to be let go before.
func (r *Register) Close() {
	r.conn.Close()
	r.handlers.end()
	r.stopping.Wait()
}

// Open makes the stream, or finds the one that is there, and says what it is. One
// that was there before and is gone is not recreated: it would have forgotten
// everything.
func (r *Register) Open(ctx context.Context) (ownership.Opened, error) {
	if r.tooOld() {
		return ownership.Opened{}, fmt.Errorf("%w: it is %s, quorum needs %s", ErrServerTooOld, r.conn.ConnectedServerVersion(), leastServer)
	}
	r.mu.Lock()
	stream, err := r.stream, error(nil)
	r.mu.Unlock()
	if stream == nil {
		stream, err = r.ensureStream(ctx)
	}
	if err != nil {
		return ownership.Opened{}, fmt.Errorf("open register: %w", err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return ownership.Opened{}, fmt.Errorf("ask register: %w", err)
	}
	if why := unfit(info.Config, r.cfg.Replicas); why != "" {
		return ownership.Opened{}, fmt.Errorf("%w: stream %s %s", ErrUnfit, streamName, why)
	}
	r.mu.Lock()
	r.stream = stream
	r.mu.Unlock()
	return ownership.Opened{Created: info.Created.UnixNano(), Last: info.State.LastSeq, Empty: info.State.Msgs == 0}, nil
}

// ensureStream makes the stream, or finds the one that is there. Where one was seen before
// and is gone, the new one begins past it: a revision never means two things.
func (r *Register) ensureStream(ctx context.Context) (jetstream.Stream, error) {
	first := uint64(0)
	if r.beyond > 0 && r.beyond < mostRevision {
		first = r.beyond + 1
	}
	stream, err := r.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Description: "geogate's ownership register", Subjects: []string{subjectAll},
		Storage: jetstream.FileStorage, Replicas: r.cfg.Replicas, MaxMsgsPerSubject: keptRevisions,
		Discard: jetstream.DiscardNew, Duplicates: duplicates, DenyDelete: true, DenyPurge: true, FirstSeq: first,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		stream, err = r.js.Stream(ctx, streamName)
	}
	return stream, err
}

// tooOld tells whether the server is one on which a quorum must not rest.
func (r *Register) tooOld() bool {
	return r.cfg.Replicas > 1 && older(r.conn.ConnectedServerVersion(), leastServer)
}

// unfit says what keeps a stream from being the register, "" if nothing does: it
// may have been made, or changed, by somebody else.
func unfit(c jetstream.StreamConfig, replicas int) string {
	switch {
	case c.Replicas != replicas:
		return fmt.Sprintf("has %d replicas and this mode wants %d; begin a new register for another mode", c.Replicas, replicas)
	case c.Storage != jetstream.FileStorage:
		return "is in memory"
	case !slices.Equal(c.Subjects, []string{subjectAll}) || c.Mirror != nil || len(c.Sources) > 0 || c.SubjectTransform != nil:
		return "does not take its subjects, and those alone, from clients"
	case c.AllowDirect || c.MirrorDirect:
		return "allows direct reads, which any server answers with what it has"
	case !c.DenyDelete || !c.DenyPurge || c.AllowRollup:
		return "lets messages be deleted"
	case c.MaxAge != 0 || c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0 && c.MaxMsgsPerSubject < keptRevisions || c.Retention != jetstream.LimitsPolicy:
		return "forgets records"
	case c.Duplicates < duplicates:
		return fmt.Sprintf("knows message ids for %v, %v are needed", c.Duplicates, duplicates)
	case c.Discard != jetstream.DiscardNew:
		return "drops old records when it is full"
	case c.NoAck || c.Sealed:
		return "acknowledges nothing, or takes nothing"
	}
	return ""
}

// Write is one attempt.
func (r *Register) Write(ctx context.Context, w ownership.Write) (ownership.Outcome, uint64) {
	if r.tooOld() {
		return ownership.Unknown, 0 // after a reconnection; another server may do
	}
	// A server that takes no message so long closes the connection. What it takes is known
	// once there is one.
	if most := r.conn.MaxPayload(); most > 0 && int64(len(w.Data)+headerBytes) > most {
		r.cfg.Logger.Error("a record is longer than the register's servers take", "subject", w.Subject, "bytes", len(w.Data), "max_payload", most)
		return ownership.TooLong, 0
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(w.ID), jetstream.WithExpectStream(streamName), jetstream.WithRetryAttempts(0)}
	switch w.Guard {
	case "":
	case w.Subject:
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(w.Expect))
	default:
		opts = append(opts, jetstream.WithExpectLastSequenceForSubject(w.Expect, w.Guard))
	}
	began := time.Now()
	ack, err := r.js.PublishMsg(ctx, &nats.Msg{Subject: w.Subject, Data: w.Data}, opts...)
	if err == nil {
		r.mu.Lock()
		r.took = time.Since(began)
		r.mu.Unlock()
		return ownership.Stored, ack.Sequence
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case codeWrongSequence:
			return ownership.Conflict, 0
		case codeInFlight, codeDuplicate:
			return ownership.Busy, 0
		}
	}
	// Whatever else it is: the message may be stored, now or later.
	r.cfg.Logger.Debug("register write without an outcome", "subject", w.Subject, "err", err)
	return ownership.Unknown, 0
}

// Read asks the register; a server that lags answers with what it has.
func (r *Register) Read(ctx context.Context, subject string) (ownership.Seen, bool) {
	r.mu.Lock()
	stream := r.stream
	r.mu.Unlock()
	if stream == nil {
		return ownership.Seen{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, min(readTime, r.cfg.Timeout))
	defer cancel()
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return ownership.Seen{Source: ownership.Answered, Subject: subject}, true
	}
	if err != nil {
		return ownership.Seen{}, false
	}
	return ownership.Seen{Source: ownership.Answered, Subject: m.Subject, Seq: m.Sequence, Data: m.Data}, true
}

// Raise stores messages that say nothing until the register has come to a revision. A
// reader of any version passes over their subject.
func (r *Register) Raise(ctx context.Context, to uint64) (last uint64, err error) {
	for done := uint64(0); done <= ownership.MostFillers; {
		r.mu.Lock()
		stream := r.stream
		r.mu.Unlock()
		if stream == nil {
			return last, errors.New("the register is not open")
		}
		info, err := stream.Info(ctx)
		if err != nil {
			return last, fmt.Errorf("ask register: %w", err)
		}
		if last = info.State.LastSeq; last >= to {
			return last, nil
		}
		acks := make([]jetstream.PubAckFuture, 0, raiseStep)
		for range min(to-last, raiseStep) {
			ack, err := r.js.PublishMsgAsync(&nats.Msg{Subject: subjectFiller, Data: []byte("{}")}, jetstream.WithExpectStream(streamName))
			if err != nil {
				return last, fmt.Errorf("pass over revisions: %w", err)
			}
			acks = append(acks, ack)
		}
		for _, ack := range acks {
			select {
			case <-ack.Ok():
				done++
			case err := <-ack.Err():
				return last, fmt.Errorf("pass over revisions: %w", err)
			case <-ctx.Done():
				return last, ctx.Err()
			}
		}
	}
	return last, fmt.Errorf("revision %d is too far from %d", to, last)
}

// rumour is a broadcast's body.
type rumour struct {
	Subject string          `json:"subject"`
	Seq     uint64          `json:"seq"`
	Record  json.RawMessage `json:"record,omitempty"`
}

func encode(x rumour) []byte {
	b, err := json.Marshal(x)
	if err != nil {
		panic(fmt.Sprintf("register: encode broadcast: %v", err)) // its record is one that was decoded
	}
	return b
}

// Broadcast tells everybody who listens now. A loss is harmless: the lease stops
// whom it would have stopped.
func (r *Register) Broadcast(b ownership.Broadcast) {
	body := encode(rumour{Subject: b.Subject, Seq: b.Seq, Record: b.Data})
	if err := r.conn.Publish(subjectFence+b.Subject, body); err != nil {
		r.cfg.Logger.Debug("broadcast", "subject", b.Subject, "err", err)
	}
}

// subscribe hears broadcasts, and what other instances answer and ask, until the
// connection closes.
func (r *Register) subscribe(h ownership.Handlers) error {
	for _, sub := range []struct {
		subject string
		wanted  bool
		handle  nats.MsgHandler
	}{
		{subjectFence + subjectAll, h.Received != nil, deliverRumour(h.Received)},
		{r.inbox, h.Answered != nil, deliverRumour(h.Answered)},
		{subjectAsk + subjectAll, h.Newest != nil, func(m *nats.Msg) { r.answer(m, h.Newest) }},
	} {
		if !sub.wanted {
			continue
		}
		handle := func(m *nats.Msg) { r.handlers.do(func() { sub.handle(m) }) }
		if _, err := r.conn.Subscribe(sub.subject, handle); err != nil {
			return fmt.Errorf("subscribe to %s: %w", sub.subject, err)
		}
	}
	return nil
}

func deliverRumour(deliver func(ownership.Seen)) nats.MsgHandler {
	return func(m *nats.Msg) {
		var x rumour
		if json.Unmarshal(m.Data, &x) == nil && x.Seq > 0 {
			deliver(ownership.Seen{Source: ownership.Rumoured, Subject: x.Subject, Seq: x.Seq, Data: x.Record})
		}
	}
}

// answer answers another instance's question if there is something newer here.
func (r *Register) answer(m *nats.Msg, newest func(subject string) (uint64, []byte)) {
	var x rumour
	if json.Unmarshal(m.Data, &x) != nil || m.Reply == "" {
		return
	}
	seq, data := newest(x.Subject)
	if seq <= x.Seq {
		return
	}
	if err := m.Respond(encode(rumour{Subject: x.Subject, Seq: seq, Record: data})); err != nil {
		r.cfg.Logger.Debug("answer another instance", "subject", x.Subject, "err", err)
	}
}

// Ask asks all other instances what they know of a record that is newer. They
// answer without the register, which has no leader for some seconds whenever a
// server that was stopped goes on: its election time-out has passed, and it makes
// the leader step down for an election that it cannot win.
func (r *Register) Ask(subject string, known uint64) {
	if err := r.conn.PublishRequest(subjectAsk+subject, r.inbox, encode(rumour{Subject: subject, Seq: known})); err != nil {
		r.cfg.Logger.Debug("ask other instances", "subject", subject, "err", err)
	}
}

// Reconnect goes to another server, if there is one.
func (r *Register) Reconnect() {
	if err := r.conn.ForceReconnect(); err != nil {
		r.cfg.Logger.Debug("reconnect", "err", err)
	}
}

// Voters asks how many servers the register has and how many of them keep up.
func (r *Register) Voters(ctx context.Context) (all, reachable int, err error) {
	r.mu.Lock()
	stream := r.stream
	r.mu.Unlock()
	if stream == nil {
		return r.cfg.Replicas, 0, errors.New("the register is not open")
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	info, err := stream.Info(ctx)
	if err != nil {
		return r.cfg.Replicas, 0, fmt.Errorf("ask register: %w", err)
	}
	if info.Cluster == nil || r.cfg.Replicas == 1 {
		return 1, 1, nil
	}
	all = len(info.Cluster.Replicas)
	if info.Cluster.Leader != "" {
		// The leader is none of the replicas; without one, all servers are.
		all++
		reachable++
	}
	for _, p := range info.Cluster.Replicas {
		// A server whose disk was lost is not offline: it was just never heard of.
		if !p.Offline && (p.Current || p.Active > 0 && p.Active < silent) {
			reachable++
		}
	}
	return all, reachable, nil
}

// LastWrite is how long the last write that was stored has taken.
func (r *Register) LastWrite() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took
}

// older compares versions of the form 1.2.3; what does not parse is not older.
func older(version, least string) bool {
	a, b := strings.Split(version, "."), strings.Split(least, ".")
	for i := range b {
		if i >= len(a) {
			return false
		}
		x, err := strconv.Atoi(strings.SplitN(a[i], "-", 2)[0])
		y, _ := strconv.Atoi(b[i])
		if err != nil || x != y {
			return err == nil && x < y
		}
	}
	return false
}
