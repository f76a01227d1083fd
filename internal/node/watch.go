package node

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/connect"
)

const (
	watchEvery   = 2 * time.Second
	watchTimeout = 3 * time.Second
)

// watch reports whether the region's own Kafka answers.
type watch struct {
	client  *kgo.Client
	region  string
	cluster *connect.Cluster
	down    atomic.Bool
}

// Run pings the cluster every two seconds.
func (w *watch) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, watchTimeout)
		err := w.client.Ping(ask)
		cancel()
		if ctx.Err() == nil {
			w.down.Store(err != nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Ready is the readiness that hangs on Kafka.
func (w *watch) Ready(context.Context) error {
	if w.down.Load() {
		return errors.New("the region's own Kafka does not answer")
	}
	return nil
}
