package txn

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// appends tells of a client's requests to append.
type appends func()

// WatchAppends is an option of clients: sent is called for each request to append records
// that was written, wholly or in part, before its answer is looked at.
func WatchAppends(sent func()) kgo.Opt { return kgo.WithHooks(appends(sent)) }

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (a appends) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Produce) {
		a()
	}
}
