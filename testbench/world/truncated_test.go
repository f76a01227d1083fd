package world_test

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/testbench/world"
)

// TestTruncatedLog: a log that has lost its end, which the region has read and told others
// of, is an incident, and the partition is held: also once other records lie at those
// offsets, and over a start. It goes on when the log is as it was and somebody says so.
func TestTruncatedLog(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), ""
	var kafka *embed.KafkaServer
	open := func() {
		var err error
		if kafka, err = embed.StartKafka(embed.Kafka{Listen: cmp.Or(address, "127.0.0.1:0"), DataDir: dir, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		address = kafka.Seeds()[0]
	}
	open()
	t.Cleanup(func() { _ = kafka.Close() })
	truncatedLog(t, brokerFiles{
		seeds: kafka.Seeds(), start: open,
		kill: func() {
			if err := errors.Join(kafka.Close(), os.Remove(filepath.Join(dir, "clean"))); err != nil {
				t.Fatal(err)
			}
		},
		log: func(partition int32) (string, string) {
			return filepath.Join(dir, "partitions", fmt.Sprintf("flights-%d", partition)), "0.dat"
		},
	})
}

// brokerFiles is a broker that is killed, and whose files a test changes.
type brokerFiles struct {
	seeds       []string
	start, kill func()
	log         func(partition int32) (dir, segment string) // of flights
}

func truncatedLog(t *testing.T, kafka brokerFiles) {
	w := world.Start(t, world.Options{Regions: 1, Kafka: func(string) []string { return kafka.seeds }})
	us := w.Region("us")
	first := us.Put(flights, "a", `1`)
	second := us.Put(flights, "a", `2`)
	w.Settle()
	var partition int32
	if _, err := fmt.Sscanf(strings.Split(first.Dot, "/")[2], "%d", &partition); err != nil {
		t.Fatal(err)
	}
	log, segment := kafka.log(partition)
	w.Stop("us")
	kafka.kill()
	whole := t.TempDir()
	if err := os.CopyFS(whole, os.DirFS(log)); err != nil {
		t.Fatal(err)
	}
	shorten(t, filepath.Join(log, segment), 1) // the last batch is torn, and cut off
	held := func(when string) (x gateway.Incident) {
		t.Helper()
		x = awaitIncidents(t, w, us, "truncated", "open", 1)[0]
		w.Eventually("the partition to be held "+when, func() error {
			for _, x := range status(t, us).Warnings {
				if x.Code == "PARTITION_NOT_READY" && x.Subject == fmt.Sprintf("flights/%d", partition) && strings.Contains(x.Detail, "geogate incident show") {
					return nil
				}
			}
			return fmt.Errorf("warnings %v", status(t, us).Warnings)
		})
		return x
	}
	kafka.start()
	w.StartAgain("us")
	x := held("after the loss")
	if x.Topic != flights || x.Log != flights || x.Partition != partition || x.Count < 1 || x.Region != "us" {
		t.Errorf("%+v", x)
	}
	// Others' records at those offsets do not make it whole.
	for range x.Count + 1 {
		if err := us.Produce(limit(t), &kgo.Record{Topic: flights, Partition: partition, Key: []byte("a"), Value: []byte(`"native"`)}); err != nil {
			t.Fatal(err)
		}
	}
	w.Stop("us")
	w.StartAgain("us")
	if again := held("with other records there"); again.ID != x.ID || again.From != x.From || again.To != x.To {
		t.Errorf("first %+v, then %+v", x, again)
	}
	w.Stop("us")
	kafka.kill()
	if err := errors.Join(os.RemoveAll(log), os.CopyFS(log, os.DirFS(whole))); err != nil {
		t.Fatal(err)
	}
	kafka.start()
	w.StartAgain("us")
	x = held("with the log as it was")
	if r := accept(t, us, x); r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	third := us.Put(flights, "a", `3`)
	w.Settle()
	if e := entity(t, us, flights, "a", world.Token(third.Token)); e.Version != third.Dot {
		t.Errorf("the entity is %s; written were %s, %s, %s", e.Version, first.Dot, second.Dot, third.Dot)
	}
}

// shorten cuts n bytes off a file.
func shorten(t *testing.T, path string, n int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()-n)
	}
	if err != nil {
		t.Fatal(err)
	}
}
