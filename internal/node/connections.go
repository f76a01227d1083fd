package node

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/warning"
)

// retryStep and retryMost are how clients of the own cluster space retries.
const (
	retryStep = 50 * time.Millisecond
	retryMost = 500 * time.Millisecond
)

// openClusters reads what the connections to Kafka need; it connects to nothing.
func (n *Node) openClusters() error {
	if err := n.cfg.CheckConnections(); err != nil {
		return err
	}
	n.clusters = make(map[string]*connect.Cluster)
	for _, region := range n.cfg.connections() {
		cfg := n.cfg.Regions[region].Kafka.Connection()
		if region == n.cfg.Region && len(n.deps.Seeds) > 0 {
			cfg.Seeds = n.deps.Seeds
		}
		c, err := connect.Open(region, kafkaAt(region), cfg, n.log)
		if err != nil {
			return err
		}
		n.clusters[region] = c
	}
	return nil
}

// runConnections reads certificates and secrets again when they change.
func (n *Node) runConnections(ctx context.Context) error {
	var all errgroup.Group
	for _, c := range n.clusters {
		all.Go(func() error { return c.Run(ctx) })
	}
	return all.Wait()
}

// refusedBy gives err as a refusal, with what to do, if the own cluster answers and refuses.
// A cluster that is starting may refuse for a moment what it accepts later.
func (n *Node) refusedBy(err error) error {
	own := n.clusters[n.cfg.Region]
	if r := own.Refusal(); r != nil {
		return fmt.Errorf("%w: region %s: %w", ErrRefused, n.cfg.Region, r)
	}
	if connect.KindOf(err) == connect.NotAuthorized {
		return fmt.Errorf("%w: %w; %s", ErrRefused, err, connect.Remedy(err, kafkaAt(n.cfg.Region).String()))
	}
	if r := own.Reason(); r != "" {
		return fmt.Errorf("%w (%s)", err, r)
	}
	return err
}

// seeds are the brokers of the own region.
func (n *Node) seeds() []string { return n.clusters[n.cfg.Region].Seeds() }

// kafkaOpts reach the own cluster; purpose is for the broker's logs.
func (n *Node) kafkaOpts(purpose string) []kgo.Opt {
	return append(n.clusters[n.cfg.Region].Opts("geogate-"+n.cfg.Instance+"-"+purpose),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.MetadataMaxAge(30*time.Second),
		// The cluster is near: after an outage nobody should have to wait for
		// the end of a pause that has grown to seconds.
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(time.Duration(tries)*retryStep, retryMost) }),
	)
}

// connections tells what is wrong with the connections to Kafka.
type connections Node

// Warnings implements warner.
func (c *connections) Warnings(out *warning.List) {
	for _, region := range c.cfg.connections() {
		c.clusters[region].Warnings(out)
	}
}
