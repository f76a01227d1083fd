package mirror_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/testbench/apache"
)

func TestAbandonEmbedded(t *testing.T) {
	k, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "kafka"), Unsynced: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	abandon(t, k.Seeds())
}

func TestAbandonApache(t *testing.T) {
	apache.Require(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	broker, err := apache.Start(ctx, apache.Config{Dir: filepath.Join(t.TempDir(), "kafka")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Stop() })
	abandon(t, broker.Seeds())
}

// abandon: a register rules in a Kafka from its first record there until the region has
// given it up, whatever comes after that from who ran then, and again when one is taken
// up.
func abandon(t *testing.T, seeds []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	used := func(want bool, when string) {
		t.Helper()
		for { // what is told first is written in its time
			_, got, err := mirror.InUse(ctx, cl, txn.NewDecoder(txn.Limits{}))
			if err == nil && got == want {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: in use %t, %v", when, got, err)
			}
			<-time.After(50 * time.Millisecond)
		}
	}
	used(false, "without the topic")
	if _, err := kadm.NewClient(cl).CreateTopics(ctx, 1, 1, nil, mirror.OwnershipTopic, mirror.OwnersTopic); err != nil {
		t.Fatal(err)
	}
	used(false, "in an empty topic")
	start := func() (m *mirror.Mirror, stop func()) {
		m = mirror.New(mirror.Config{
			Region: "us", Instance: "us-0", Client: cl, Topics: txn.NewTopics(cl), Skipped: &warning.Skipped{}, Logger: slog.New(slog.DiscardHandler),
		})
		mctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(mctx) }()
		return m, func() { cancel(); <-ended }
	}
	see := func(m *mirror.Mirror, seq uint64) {
		m.See(ctx, ownership.Seen{Subject: ownership.RegionSubject("us"), Seq: seq, Data: []byte(`{"v":1,"region":"us","id":1,"live_epoch":1,"state":"UP","by":"us","reason":"it was \"abandoned\""}`)})
	}
	first, stopFirst := start()
	see(first, 1)
	used(true, "with a record")
	if err := first.Abandon(ctx, "why not"); err != nil {
		t.Fatal(err)
	}
	used(false, "when it was given up")
	see(first, 2)
	if err := first.Abandon(ctx, "once more"); err != nil { // behind that
		t.Fatal(err)
	}
	used(false, "while those that ran go on")
	stopFirst()
	second, stopSecond := start()
	see(second, 2)
	used(true, "when one is taken up again")
	stopSecond()
	if memory, err := second.Load(ctx); err != nil || memory.Live["us"] != 1 || memory.Last != 2 {
		t.Errorf("%+v, %v", memory, err)
	}
}
