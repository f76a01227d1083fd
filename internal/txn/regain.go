package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A producer that has held its transactional id before and comes back after an error
// must not take the id from another instance that has taken it since: both would go on
// taking it from one another. Kafka's own protection, InitProducerID with the producer id
// and epoch held so far (KIP-360), is not enough. While the other has a transaction open
// Kafka aborts that one before it looks at the epoch, and after a time-out it refuses the
// epoch although nobody else has come. So the producer first asks the coordinator who
// holds the id (DescribeTransactions, KIP-664), and then initialises with exactly what it
// was told, which Kafka refuses if another has come in between.

// States of a transactional id in DescribeTransactions.
const (
	coordinatorEmpty   = "Empty"
	coordinatorOngoing = "Ongoing"
)

// anyone takes the id from whoever holds it.
var anyone = identity{id: -1, epoch: -1}

// held is what a producer knows about its hold on the transactional id.
type held struct {
	identity
	opened    bool // the coordinator may have had a transaction of this identity
	refused   bool // an answer says that somebody has ended it, or the identity
	outlasted bool // it may have been open for longer than its time-out
	// away: a broker could not be reached, or has broken a connection (WatchBreaks), since
	// it was opened. The embedded Kafka ends what was open when it is started again after
	// a kill.
	away  bool
	asked bool // InitProducerID with this identity may have been carried out
}

// described is what the coordinator says of the id.
type described struct {
	identity
	state string
}

// regain decides with which identity a holder may initialise again. False: another
// producer has taken the id.
//
// Every way in which an epoch rises by one without another producer needs a
// transaction: its end (from EndTxn 5 on) or its abort after the time-out. Another
// producer makes it rise by two if one was open, by one if none was. The embedded Kafka
// raises it by one in all these cases and leaves the state Empty: there the answers that
// the holder got decide.
func regain(h held, d described) (identity, bool) {
	exhausted := h.epoch >= math.MaxInt16-1 && d.id != h.id && d.epoch == 0 // the next epoch is of a new id
	next := exhausted || d.id == h.id && d.epoch == h.epoch+1
	switch {
	case d.id == h.id && d.epoch <= h.epoch:
		return d.identity, true
	case !next:
		return identity{}, false
	case d.state == coordinatorEmpty && h.asked:
		return h.identity, true // the coordinator knows its own answer again
	case d.state == coordinatorOngoing, !h.opened:
		return identity{}, false
	case d.state != coordinatorEmpty:
		return d.identity, true
	case h.refused && !h.outlasted && !h.away:
		return identity{}, false
	}
	return h.identity, true
}

// askHolder asks the coordinator who holds the id, and returns the identity to
// initialise with.
func (p *Producer) askHolder(ctx context.Context) (identity, error) {
	if able, err := p.describes(ctx); err != nil {
		return identity{}, err
	} else if !able {
		return p.held.identity, nil // Kafka's own protection is all there is
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{p.id}
	const what = "ask who holds"
	kresp, err := p.ask(ctx, what, req, func(r kmsg.Response) int16 {
		if resp, ok := r.(*kmsg.DescribeTransactionsResponse); ok && len(resp.TransactionStates) == 1 {
			return resp.TransactionStates[0].ErrorCode
		}
		return kerr.UnknownServerError.Code
	})
	switch {
	case errors.Is(err, kerr.TransactionalIDNotFound):
		return anyone, nil // it was not used for so long that the cluster has forgotten it
	case err != nil:
		return identity{}, err
	}
	s := kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates[0] //nolint:forcetypeassert // ask checked it
	out, ok := regain(p.held, described{identity{id: s.ProducerID, epoch: s.ProducerEpoch}, s.State})
	if !ok {
		return identity{}, fmt.Errorf("%s %s: %w", what, p.id, ErrFenced)
	}
	return out, nil
}

// describes tells whether the coordinator knows DescribeTransactions, which Kafka has
// since 3.0 and not every compatible system.
func (p *Producer) describes(ctx context.Context) (bool, error) {
	describe := kmsg.NewDescribeTransactionsRequest()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "geogate", "1" // brokers refuse empty ones
	kresp, err := p.ask(ctx, "ask for API versions to initialise", req, func(r kmsg.Response) int16 {
		if resp, ok := r.(*kmsg.ApiVersionsResponse); ok {
			return resp.ErrorCode
		}
		return kerr.UnknownServerError.Code
	})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(kresp.(*kmsg.ApiVersionsResponse).ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { //nolint:forcetypeassert // ask checked it
		return k.ApiKey == describe.Key()
	}), nil
}

// opening notes that a transaction begins.
func (p *Producer) opening() {
	if !p.held.opened {
		p.held.opened, p.openedAt = true, time.Now()
	}
}

// failed notes what an error says about the hold on the id.
func (p *Producer) failed(err error) {
	p.unreached(err)
	if errors.Is(err, ErrFenced) || errors.Is(err, kerr.InvalidTxnState) {
		p.held.refused = true
	}
}

// unreached notes an error that is no answer of a broker.
func (p *Producer) unreached(err error) {
	var answer *kerr.Error
	if err != nil && !errors.As(err, &answer) {
		p.held.away = true
	}
}

// outlasted tells whether the cluster may have ended the open transaction because it
// took too long. A machine that was suspended notices by the wall clock only.
func (p *Producer) outlasted() bool {
	now := time.Now()
	age := max(now.Sub(p.openedAt), now.Round(0).Sub(p.openedAt.Round(0)))
	return p.held.opened && age >= p.opts.Timeout*4/5
}
