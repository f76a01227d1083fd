package txn_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/txn"
)

// TestDescribeAll: all topics of a cluster are found whichever of the brokers that the client
// knows are gone, and are what asking for them by name gives.
func TestDescribeAll(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(4, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all := func(when string) {
		t.Helper()
		found, refused, err := txn.DescribeAll(ctx, cl)
		if err != nil || len(refused) > 0 {
			t.Fatalf("%s: %v, %v", when, refused, err)
		}
		if names := slices.Sorted(maps.Keys(found)); !slices.Equal(names, []string{"a", "b"}) || len(found["a"].Leaders) != 4 {
			t.Errorf("%s: %+v", when, found)
		}
		named, err := txn.Describe(ctx, cl, "a")
		if err != nil || named["a"].ID != found["a"].ID {
			t.Errorf("%s: topic a is %x, and %x when asked for by name: %v", when, found["a"].ID, named["a"].ID, err)
		}
	}
	all("before any broker is known")
	if n := len(cl.DiscoveredBrokers()); n != 3 {
		t.Fatalf("the client knows %d brokers", n)
	}
	all("all brokers")
	for node := range int32(2) { // whichever is asked first
		if err := cluster.RemoveNode(node); err != nil {
			t.Fatal(err)
		}
		all("with a broker less")
	}
}

// TestLookEvery: where there are very many partitions all topics are asked for less often, but
// not much less.
func TestLookEvery(t *testing.T) {
	topics := func(partitions int) map[string]txn.Topic {
		return map[string]txn.Topic{"a": {Leaders: make([]int32, partitions/2)}, "b": {Leaders: make([]int32, partitions-partitions/2)}}
	}
	for _, tt := range []struct {
		here, there int
		want        time.Duration
	}{{0, 0, 2 * time.Second}, {100, 800, 2 * time.Second}, {1000, 500, 3 * time.Second}, {3000, 0, 6 * time.Second}, {1 << 20, 1 << 20, 6 * time.Second}} {
		if got := txn.LookEvery(2*time.Second, topics(tt.here), topics(tt.there)); got != tt.want {
			t.Errorf("%d and %d partitions: %v, want %v", tt.here, tt.there, got, tt.want)
		}
	}
}
