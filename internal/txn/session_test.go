package txn_test

import (
	"slices"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/txn"
)

// TestFetchesWaitLonger: a fetch waits the longer, the longer nothing has come, up to what
// the consumer is configured with.
func TestFetchesWaitLonger(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		cfg  txn.ConsumerConfig
		want []time.Duration
	}{
		"default": {txn.ConsumerConfig{}, []time.Duration{500 * ms, 1000 * ms, 2000 * ms, 2000 * ms}},
		"long":    {txn.ConsumerConfig{Wait: 10 * time.Second}, []time.Duration{500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 10_000 * ms}},
		"short":   {txn.ConsumerConfig{Wait: 100 * ms}, []time.Duration{100 * ms, 100 * ms}},
		"brief":   {txn.ConsumerConfig{Brief: true, Wait: 30 * ms}, []time.Duration{0, 10 * ms, 20 * ms, 30 * ms, 30 * ms}},
	} {
		if got := txn.LongPolls(c.cfg, len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("%s: fetches wait %v, want %v", name, got, c.want)
		}
	}
}
