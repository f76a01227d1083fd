//go:build unix

package replicate_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/testbench/cutproxy"
)

// leftBehind writes what a link has left in the target after it has copied records of
// other topics for a long time: their positions, again and again, and a billion records'
// runs in blocks.
func leftBehind(t testing.TB, to *end, from string) {
	t.Helper()
	const partitions, updates, runs, block, count = 64, 400, 1 << 19, 512, 2048
	id := func(n int) (id event.TopicID) {
		binary.BigEndian.PutUint32(id[:], uint32(n)+7)
		return id
	}
	var recs []*kgo.Record
	for u := range updates {
		for n := range partitions {
			pos := offsets.Position{SourceCovered: int64(u) * 1000, SourceEpoch: -1, Barrier: offsets.NoBarrier, Target: id(n), TargetEpoch: -1}
			recs = append(recs, &kgo.Record{
				Topic: control.PositionsFrom(from), Partition: int32(n % control.LinkPartitions),
				Key: offsets.AppendPositionKey(nil, id(n), 0), Value: pos.Append(nil),
			})
		}
	}
	copied := int64(0)
	for n := range runs / block {
		list := make([]offsets.Run, block)
		for i := range list {
			list[i] = offsets.Run{Target: copied + int64(n*block+i), Source: copied, Count: count, Barrier: offsets.NoBarrier}
			copied += count
		}
		recs = append(recs, &kgo.Record{
			Topic: control.RunsFrom(from), Partition: int32(n % control.LinkPartitions),
			Key: offsets.AppendKey(nil, id(n%control.LinkPartitions), 0, list[0].Target), Value: offsets.AppendRuns(nil, list),
		})
	}
	if copied < 1_000_000_000 {
		t.Fatalf("only %d records", copied)
	}
	to.produce(t, recs...)
}

// TestRestartTakesFewRoundTrips restarts a link that has copied a billion records over a
// line on which a round trip is what counts.
func TestRestartTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 6, nil, "orders")
	from.produce(t, rows("orders", 0, 0, 3)...)
	cfg := config(from, to)
	cfg.Shards, cfg.DiscoverEvery = 0, time.Hour
	r := start(t, cfg)
	r.caughtUp(t, from, "orders")
	r.stop(t)
	leftBehind(t, to, us.Name)
	// A very busy machine may split one round in two: the protocol needs the fewest of a few
	// restarts.
	least, trace := mostRounds+1, [][]int16(nil)
	for try := 0; try < 3 && least > mostRounds; try++ {
		from.produce(t, rows("orders", 0, 3+4*try, 4)...)
		if took, keys := restart(t, cfg, to); took < least || trace == nil {
			least, trace = took, keys
		}
	}
	equal(t, from, to, "orders")
	if least > mostRounds {
		for i, keys := range trace {
			t.Logf("round %d: %v", i, keys)
		}
		t.Errorf("the restart took %d round trips to the target, at most %d are right", least, mostRounds)
	}
}

// restart starts a link until it has copied four records, and gives the round trips to the
// target until it read the source.
func restart(t *testing.T, cfg replicate.Config, to *end) (took int, keys [][]int16) {
	t.Helper()
	proxy, err := cutproxy.Start(to.seeds, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Close() }()
	rounds := proxy.CountRounds(300 * time.Millisecond)
	cfg.Target = []kgo.Opt{kgo.SeedBrokers(proxy.Seeds()[0])}
	var goesOn atomic.Int64
	r := start(t, cfg, func(l *replicate.Link) {
		l.SetBefore(func(_ int, effect any) error {
			if e, ok := effect.(replicate.Read); ok && len(e.From) > 1 {
				goesOn.CompareAndSwap(0, int64(rounds.Count()))
			}
			return nil
		})
	})
	eventually(t, "the link to copy what came meanwhile", func() bool { return r.Status().Copied == 4 })
	t.Logf("the link goes on reading after %d round trips to the target, and has committed after %d", goesOn.Load(), rounds.Count())
	rounds.Stop()
	r.stop(t)
	return int(goesOn.Load()), rounds.Keys()
}

// mostRounds is how many round trips to the target a restart may take, from the first
// connection until the link reads its source again.
const mostRounds = 15

// TestIdleTopicsCostOneQuestion restarts a link of many topics: neither cluster may be
// asked about each topic alone, because all data waits until every topic was looked at.
func TestIdleTopicsCostOneQuestion(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	const idle = 60
	topics := make([]string, idle)
	for i := range topics {
		topics[i] = fmt.Sprintf("idle-%d", i)
	}
	from.create(t, 1, nil, append(topics, "orders")...)
	cfg := config(from, to)
	cfg.Shards, cfg.DiscoverEvery = 1, time.Hour
	r := start(t, cfg)
	eventually(t, "all topics to be carried", func() bool { return len(r.Covered()) > idle })
	r.stop(t)
	from.produce(t, rows("orders", 0, 0, 3)...)

	var asked [2]atomic.Int64
	for i, e := range []*end{from, to} {
		e.fake.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
			e.fake.KeepControl()
			asked[i].Add(1)
			return nil, nil, false
		})
	}
	r = start(t, cfg)
	r.caughtUp(t, from, "orders")
	r.stop(t)
	for i, e := range []*end{from, to} {
		if n := asked[i].Load(); n > idle/2 {
			t.Errorf("cluster %s was asked %d times about topics for %d idle ones", e.region.Name, n, idle)
		}
	}
}
