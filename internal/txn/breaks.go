package txn

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// breaks counts the connections of a client that brokers have broken or refused. A request
// of a producer need not see that itself: another of the same client may have met the dead
// connection first, and have made a new one.
type breaks struct{ n atomic.Int64 }

// WatchBreaks is an option of clients of producers: with it they notice that a broker was
// away even if it is back before they ask it anything.
func WatchBreaks() kgo.Opt { return kgo.WithHooks(new(breaks)) }

// breaksOf is what counts the breaks of a client; nil if nothing does, or if there is no
// client: of a producer that only says how large its batches are.
func breaksOf(cl *kgo.Client) *breaks {
	if cl == nil {
		return nil
	}
	hooks, _ := cl.OptValue(kgo.WithHooks).([]kgo.Hook)
	for _, h := range hooks {
		if b, ok := h.(*breaks); ok {
			return b
		}
	}
	return nil
}

func (b *breaks) count() int64 {
	if b == nil {
		return 0
	}
	return b.n.Load()
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (b *breaks) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	b.note(err)
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (b *breaks) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	b.note(err)
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (b *breaks) OnBrokerWrite(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	b.note(err)
}

// note counts an error, unless it is that this side has given up.
func (b *breaks) note(err error) {
	for _, own := range []error{net.ErrClosed, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded, kgo.ErrClientClosed} {
		if errors.Is(err, own) {
			return
		}
	}
	if err != nil {
		b.n.Add(1)
	}
}
