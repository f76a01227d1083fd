package txn

import "github.com/twmb/franz-go/pkg/kgo"

// NewClient makes a Kafka client. All clients of the program are made here, and opts begin
// with those of a connect.Cluster, so that none of them bypasses the configured connection; a
// test of internal/lint enforces it.
func NewClient(opts ...kgo.Opt) (*kgo.Client, error) {
	// A client that pushes its metrics waits a second for the last push when it closes, which
	// an instance with many clients and no broker cannot afford.
	return kgo.NewClient(append([]kgo.Opt{kgo.DisableClientMetrics()}, opts...)...)
}
