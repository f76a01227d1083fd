//go:build unix

package world_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// apacheWorld is a world of two regions with Apache Kafkas that look often for what is to be
// deleted.
func apacheWorld(t *testing.T, version string) *world.World {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir, seeds := t.TempDir(), make(map[string][]string)
	for _, region := range []string{"us", "eu"} {
		b, err := apache.Start(ctx, apache.Config{
			Version: version, Dir: filepath.Join(dir, region), HeapMB: 512,
			Properties: map[string]string{"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500", "log.segment.delete.delay.ms": "500"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Stop() })
		seeds[region] = b.Seeds()
	}
	return world.Start(t, world.Options{Kafka: func(region string) []string { return seeds[region] }})
}

// onApache runs a test on both generations of Apache Kafka.
func onApache(t *testing.T, test func(*testing.T, *world.World)) {
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) { test(t, apacheWorld(t, version)) })
	}
}

// TestApacheTruncatedLog is TestTruncatedLog on Apache Kafka, whose broker is killed and cuts
// off what is torn of a log that it recovers.
func TestApacheTruncatedLog(t *testing.T) {
	apache.Require(t)
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			dir := t.TempDir()
			b, err := apache.Start(ctx, apache.Config{Version: version, Dir: dir, HeapMB: 512, Properties: map[string]string{"log.flush.offset.checkpoint.interval.ms": "3600000"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop() })
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			truncatedLog(t, brokerFiles{
				seeds: b.Seeds(), start: func() { must(b.Restart(ctx)) }, kill: func() { must(b.Kill()) },
				log: func(partition int32) (string, string) {
					found, err := filepath.Glob(filepath.Join(dir, "*", fmt.Sprintf("flights-%d", partition)))
					if err != nil || len(found) != 1 {
						t.Fatalf("found %v: %v", found, err)
					}
					return found[0], "00000000000000000000.log"
				},
			})
		})
	}
}

// TestApacheLostRegistry is TestLostRegistry on Apache Kafka.
func TestApacheLostRegistry(t *testing.T) {
	apache.Require(t)
	onApache(t, lostRegistry)
}

// awaitDeleted waits until a topic has lost everything that it had, or, with some, something
// in any partition.
func awaitDeleted(t *testing.T, w *world.World, r *world.Region, topic string, some bool) {
	t.Helper()
	w.Eventually("retention of "+topic, func() error {
		starts, ends, err := r.Starts(topic)
		if err != nil {
			return err
		}
		lost := false
		for p, end := range ends {
			lost = lost || starts[p] > 0
			if !some && starts[p] < end {
				return fmt.Errorf("partition %d has %d to %d", p, starts[p], end)
			}
		}
		if !lost {
			return fmt.Errorf("it begins at %v", starts)
		}
		return nil
	})
}

func setTopic(t *testing.T, r *world.Region, topic, key, value string) {
	t.Helper()
	if err := r.SetTopic(topic, key, value); err != nil {
		t.Fatal(err)
	}
}

// TestApacheGapBeforeTheFold: retention.ms deletes records of a copy before the fold has had
// them.
func TestApacheGapBeforeTheFold(t *testing.T) {
	apache.Require(t)
	onApache(t, func(t *testing.T, w *world.World) {
		us, eu := w.Region("us"), w.Region("eu")
		us.Put(github, "first", `0`)
		w.Settle()
		w.Kill("eu")
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprint("k", i))
			us.Put(github, keys[i], `1`)
		}
		copied(t, w, us, eu, github, keys...)
		setTopic(t, eu, "us."+github, "retention.ms", "1")
		awaitDeleted(t, w, eu, "us."+github, false)
		setTopic(t, eu, "us."+github, "retention.ms", "-1")
		w.StartAgain("eu")
		eu.AwaitReady()
		open := awaitIncidents(t, w, eu, "fold", "open", 2)
		us.Put(github, "last", `1`)
		acceptAll(t, eu, open)
		acceptAll(t, eu, slices.DeleteFunc(incidents(t, eu, "keys"), func(x gateway.Incident) bool { return x.State != "open" }))
		awaitShown(t, w, eu, github, "last")
		w.Settle()
		if shown, missing, err := allKeys(limit(t), eu, github); err != nil || missing != "" || shown["first"] == 0 {
			t.Errorf("eu shows %v, lacks %q, %v", shown, missing, err)
		}
	})
}

// TestApacheGapAfterALostStore: records are deleted by DeleteRecords, and a store is lost
// that knew their keys. The state topic has the values.
func TestApacheGapAfterALostStore(t *testing.T) {
	apache.Require(t)
	onApache(t, func(t *testing.T, w *world.World) {
		us := w.Region("us")
		us.Put(flights, "a", `1`, world.Idem("once"))
		w.Settle()
		trim(t, us, flights, 0)
		w.Stop("us")
		w.DeleteStore("us")
		w.StartAgain("us")
		us.AwaitReady()
		open := awaitIncidents(t, w, us, "keys", "open", 1)
		if _, err := us.Try(limit(t), client.Write{Topic: flights, Key: "a", Value: []byte(`1`), Idem: "once"}); client.Code(err) != "KEYS_LOST" {
			t.Errorf("a retry is answered %v", err)
		}
		acceptAll(t, us, open)
		us.Put(flights, "b", `2`, world.Idem("twice"))
		awaitShown(t, w, us, flights, "b")
		awaitShown(t, w, us, flights, "a")
		if n := len(incidents(t, us, "fold")); n != 0 {
			t.Errorf("%d incidents of the fold, which has had everything", n)
		}
	})
}

// TestApacheGapOfALink: retention.bytes deletes segments before a link has copied them.
func TestApacheGapOfALink(t *testing.T) {
	apache.Require(t)
	onApache(t, func(t *testing.T, w *world.World) {
		us, eu := w.Region("us"), w.Region("eu")
		us.Put(github, "k", `0`)
		w.Settle()
		copied(t, w, us, eu, github, "k")
		setTopic(t, us, github, "segment.bytes", "1048576")
		w.Cut("us", "eu")
		for i := range 8 {
			noise := make([]byte, 300_000) // nothing to compress
			rand.NewChaCha8([32]byte{byte(i)}).Read(noise)
			us.Put(github, "k", fmt.Sprintf("%q", base64.StdEncoding.EncodeToString(noise)))
		}
		w.Stop("us")
		setTopic(t, us, github, "retention.bytes", "1048576")
		awaitDeleted(t, w, us, github, true)
		w.StartAgain("us")
		us.AwaitReady()
		w.Heal("us", "eu")
		open := awaitIncidents(t, w, us, "link", "open", 1)
		if x := open[0]; x.Target != "eu" || x.Count < 2 {
			t.Errorf("incident %+v", x)
		}
		setTopic(t, us, github, "retention.bytes", "-1")
		open = awaitIncidents(t, w, us, "link", "open", 1)
		acceptAll(t, us, open)
		us.Put(github, "after", `1`)
		awaitShown(t, w, eu, github, "after")
	})
}
