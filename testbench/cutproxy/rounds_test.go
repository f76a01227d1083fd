package cutproxy_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/testbench/cutproxy"
)

// TestRoundsCountWhatWaits: requests that are sent together are one round, also on one
// connection; those that wait for one another are not.
func TestRoundsCountWhatWaits(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	proxy, err := cutproxy.Start(cluster.ListenAddrs(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	rounds := proxy.CountRounds(50 * time.Millisecond)
	cl, err := kgo.NewClient(kgo.SeedBrokers(proxy.Seeds()...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ask := func() error {
		_, err := cl.SeedBrokers()[0].Request(t.Context(), kmsg.NewPtrListGroupsRequest())
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if n := rounds.Count(); n != 3 {
		t.Errorf("%d rounds for a connection, what its first request needs, and that: %v", n, rounds.Keys())
	}
	for range 2 {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	if n := rounds.Count(); n != 5 {
		t.Errorf("%d rounds after two more, one after the other: %v", n, rounds.Keys())
	}
	var together errgroup.Group
	for range 8 {
		together.Go(ask)
	}
	if err := together.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := rounds.Count(); n != 6 {
		t.Errorf("%d rounds after eight more at the same time: %v", n, rounds.Keys())
	}
	rounds.Stop()
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if n := rounds.Count(); n != 6 {
		t.Errorf("%d rounds, one of them after the end", n)
	}
}
