package world_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// produceKey is the api key of Kafka's Produce.
const produceKey = 0

// sameRecord tells whether a copied record is the original in all that a consumer
// sees but its topic and offset.
func sameRecord(a, b *kgo.Record) bool {
	if !bytes.Equal(a.Key, b.Key) || (a.Key == nil) != (b.Key == nil) || !bytes.Equal(a.Value, b.Value) || (a.Value == nil) != (b.Value == nil) ||
		a.Partition != b.Partition || !a.Timestamp.Equal(b.Timestamp) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !bytes.Equal(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

// copiedExactly demands that what a committed reader finds in the copy of a topic
// is the origin's log, record by record.
func copiedExactly(t *testing.T, origin, target *world.Region, topic string) {
	t.Helper()
	log, err := origin.Read(limit(t), topic, false)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := target.Read(limit(t), origin.Name+"."+topic, true)
	if err != nil {
		t.Fatal(err)
	}
	want, got := client.Data(log), client.Data(copied)
	if len(got) != len(want) {
		t.Fatalf("%s.%s in %s has %d records, %s in %s %d", origin.Name, topic, target.Name, len(got), topic, origin.Name, len(want))
	}
	for i := range want {
		if !sameRecord(want[i], got[i]) {
			t.Fatalf("record %d/%d of %s in %s is not what lies at %d in %s", want[i].Partition, want[i].Offset, topic, origin.Name, got[i].Offset, target.Name)
		}
	}
}

// writers write to a topic of a region from several goroutines until stopped.
type writers struct {
	stop func() []client.Answer
}

// writeEvery is the pace of one writer: most of the time a write is in flight,
// and the machine has time for the rest.
const writeEvery = 10 * time.Millisecond

// load starts writers that behave as careful clients.
func load(t *testing.T, r *world.Region, topic string, n int) *writers {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var acked []client.Answer
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			pace := time.NewTicker(writeEvery)
			defer pace.Stop()
			for j := 0; ctx.Err() == nil; j++ {
				<-pace.C
				key := fmt.Sprintf("w%d", i)
				wr := client.Write{Topic: topic, Key: key, Value: fmt.Appendf(nil, "%d", j), Idem: fmt.Sprintf("%s-%s-%d-%d", r.Name, topic, i, j)}
				long, done := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				a, err := r.Store(long, wr) // the last write, too, is asked to its end
				done()
				if err != nil {
					t.Errorf("write %s: %v", wr.Idem, err)
					return
				}
				mu.Lock()
				acked = append(acked, a)
				mu.Unlock()
			}
		})
	}
	return &writers{stop: sync.OnceValue(func() []client.Answer {
		cancel()
		all.Wait()
		return acked
	})}
}

// onceEach demands that each acknowledged write is once in a region's merged view
// of an events topic, and nothing else of the same writers.
func onceEach(t *testing.T, r *world.Region, topic string, acked []client.Answer) {
	t.Helper()
	times := make(map[string]int)
	for _, rec := range records(t, r, topic, "merged") {
		times[rec.Dot]++
	}
	for _, a := range acked {
		if times[a.Dot] != 1 {
			t.Errorf("%s is %d times in the merged view of %s", a.Dot, times[a.Dot], r.Name)
		}
	}
	if len(times) != len(acked) {
		t.Errorf("merged view of %s has %d events, %d were acknowledged", r.Name, len(times), len(acked))
	}
}

func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	us.AwaitReady()
	eu.AwaitReady()
	a, b := load(t, us, github, 4), load(t, eu, github, 4)
	defer a.stop()
	defer b.stop()
	for _, victim := range []*world.Region{us, eu, us} {
		// Each kill comes into the middle of things: new writes are in the log.
		before := len(client.Data(read(t, victim, github)))
		w.Eventually("writes of "+victim.Name, func() error {
			if n := len(client.Data(read(t, victim, github))); n < before+20 {
				return fmt.Errorf("%d records, %d before", n, before)
			}
			return nil
		})
		w.Kill(victim.Name)
		w.StartAgain(victim.Name)
	}
	acked := append(a.stop(), b.stop()...)
	w.Settle()
	copiedExactly(t, us, eu, github)
	copiedExactly(t, eu, us, github)
	for _, r := range w.Regions() {
		onceEach(t, r, github, acked)
	}
}

func read(t *testing.T, r *world.Region, topic string) []*kgo.Record {
	t.Helper()
	all, err := r.Read(limit(t), topic, false)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGracefulStopAnswersEverything(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us := w.Region("us")
	first := us.Put(github, "k", `1`, world.Idem("x"))
	a := load(t, us, github, 4)
	defer a.stop()
	w.Eventually("some writes", func() error {
		if n := len(read(t, us, github)); n < 30 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	w.Stop("us")
	w.StartAgain("us")
	acked := append(a.stop(), first)
	if again := us.Put(github, "k", `1`, world.Idem("x")); !again.Replayed || again.Raw != first.Raw {
		t.Fatalf("replay after a restart %s, first %s", again.Raw, first.Raw)
	}
	w.Settle()
	copiedExactly(t, us, w.Region("eu"), github)
	for _, r := range w.Regions() {
		onceEach(t, r, github, acked)
	}
}

func TestDeletedStoreShowsTheSameAndEmitsNothingTwice(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	var keys []string
	for i := range 6 {
		key := fmt.Sprintf("K%d", i)
		keys = append(keys, key)
		us.Put(flights, key, fmt.Sprint(i), world.Idem(fmt.Sprintf("both-%d", i%3)+key))
		if i%2 == 0 {
			eu.Put(flights, key, `"eu"`)
		}
		us.Put(github, key, `1`, world.Idem("gh-"+key))
		eu.Put(github, key, `1`, world.Idem("gh-"+key))
	}
	eu.Delete(flights, "K1")
	w.HealAll()
	w.Settle()
	shown := func() (all []string) {
		for _, key := range keys {
			e, err := us.Entity(flights, key)
			all = append(all, fmt.Sprint(e.Raw, client.Code(err)))
		}
		for _, rec := range records(t, us, github, "merged") {
			all = append(all, rec.Dot)
		}
		return all
	}
	emitted := func() map[string]int {
		n := make(map[string]int)
		for _, topic := range []string{flights + ".merged", github + ".merged", "_geogate.conflicts"} {
			all, err := us.Read(limit(t), topic, true)
			if err != nil {
				t.Fatal(err)
			}
			n[topic] = len(client.Data(all))
		}
		return n
	}
	before, out := shown(), emitted()
	for _, stop := range []func(string){w.Stop, w.Kill} {
		stop("us")
		w.DeleteStore("us")
		w.StartAgain("us")
		w.Settle()
		if after := shown(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("shown %q\nbefore %q", after, before)
		}
		if after := emitted(); fmt.Sprint(after) != fmt.Sprint(out) {
			t.Fatalf("emitted %v, before %v", after, out)
		}
	}
	// The rebuilt index knows the keys of both regions.
	if a := us.Put(github, "K0", `1`, world.Idem("gh-K0")); !a.Replayed {
		t.Fatalf("the key of %s was forgotten", a.Raw)
	}
	if a := us.Put(flights, "K0", `7`); entity(t, eu, flights, "K0", world.Token(a.Token)).Version != a.Dot {
		t.Fatal("a write after the loss does not replace what it saw")
	}
}

func TestSecondInstanceTakesTheSeatsOver(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	before := us.Put(flights, "SEAT", `1`, world.Idem("seat"))
	w.AddInstance("us")
	if again := us.Put(flights, "SEAT", `1`, world.Idem("seat")); !again.Replayed || again.Raw != before.Raw {
		t.Fatalf("the second instance answers %s, the first %s", again.Raw, before.Raw)
	}
	after := us.Put(flights, "SEAT", `2`) // the second instance's barrier
	first := us.Instance(0)
	w.Eventually("the first instance notices", func() error {
		key := "SEAT"
		_, err := first.Try(limit(t), client.Write{Topic: flights, Key: key, Value: []byte(`3`)})
		if client.Code(err) != "NOT_READY" {
			return fmt.Errorf("it answers %v", err)
		}
		if err := first.Ended(); !errors.Is(err, node.ErrSuperseded) {
			return fmt.Errorf("it ended with %v", err)
		}
		return nil
	})
	if err := us.Instance(1).Ended(); err != nil {
		t.Fatalf("the second instance ended: %v", err)
	}
	if e := entity(t, eu, flights, "SEAT", world.Token(after.Token)); e.Version != after.Dot {
		t.Fatalf("entity %s, want %s", e.Raw, after.Dot)
	}
}

// TestLocalTopicWithARemoteNameIsBlocked: a topic that bears the name of a copy, and
// that no link has made, is neither copied into nor copied on, nor written: what it is
// nobody knows.
func TestLocalTopicWithARemoteNameIsBlocked(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Topics: []world.Topic{
		{Name: "x", Partitions: 1, Region: "us"}, {Name: "us.x", Partitions: 1, Region: "eu"}, {Name: "flights.merged.old", Partitions: 1, Region: "us"},
	}})
	us, eu := w.Region("us"), w.Region("eu")
	us.Put("x", "k", `1`)
	w.Eventually("the topic is blocked", func() error {
		topics, err := us.Topics(limit(t))
		if err != nil {
			return err
		}
		if links := topics["x"].Links; len(links) != 1 || links[0].State != "blocked" || links[0].Rule == "" {
			return fmt.Errorf("%+v", topics["x"])
		}
		return nil
	})
	w.Eventually("us.x to be listed in eu", func() error {
		topics, err := eu.Topics(limit(t))
		if err == nil && topics["us.x"].Role != "unknown" {
			err = fmt.Errorf("%+v", topics["us.x"])
		}
		return err
	})
	if n := len(read(t, eu, "us.x")); n != 0 {
		t.Fatalf("%d records were mixed into a local topic", n)
	}
	_, err := eu.Try(limit(t), client.Write{Topic: "us.x", Key: "k", Value: []byte(`2`)})
	problem(t, err, 404, "TOPIC_UNKNOWN")
	topics, err := us.Topics(limit(t))
	if _, copied := topics["eu.us.x"]; copied || err != nil {
		t.Errorf("the link copies it on: %+v, %v", topics, err)
	}
}

func TestUndeclaredTopicIsServedFromItsFirstWrite(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Topics: []world.Topic{{Name: "logs", Partitions: 3}}})
	us, eu := w.Region("us"), w.Region("eu")
	// What producers wrote natively before is there from the log's start.
	native := &kgo.Record{Topic: "logs", Partition: 1, Value: []byte(`"native"`)}
	if err := us.Produce(limit(t), native); err != nil {
		t.Fatal(err)
	}
	if _, err := us.Read(limit(t), "logs.merged", true); err == nil {
		t.Fatal("the merged topic exists before anyone asked")
	}
	key := "k"
	a := us.Put("logs", key, `1`)
	if a.Unit != "default/us" {
		t.Fatalf("unit %s", a.Unit)
	}
	w.Eventually("the merged topic of a region where nobody asked", func() error {
		all, err := eu.Read(limit(t), "logs.merged", true)
		if err == nil && len(client.Data(all)) != 2 {
			err = fmt.Errorf("%d records", len(client.Data(all)))
		}
		return err
	})
	w.Settle("logs")
	for _, r := range w.Regions() {
		all := records(t, r, "logs", "merged")
		if len(all) != 2 || len(of(all, key)) != 1 {
			t.Fatalf("%s shows %+v", r.Name, all)
		}
		for _, rec := range all {
			if (rec.ID == nil) != (rec.Key == nil) {
				t.Errorf("record %+v", rec)
			}
		}
	}
	eu.Put("logs", key, `2`)
	w.Settle("logs")
	if n := len(records(t, us, "logs", "merged")); n != 3 {
		t.Fatalf("us shows %d", n)
	}
}

func TestTopicMadeLaterIsReplicated(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	if err := us.CreateTopic("late", 1); err != nil {
		t.Fatal(err)
	}
	us.Put("late", "k", `1`)
	w.Eventually("us.late", func() error {
		all, err := eu.Read(limit(t), "us.late", true)
		if err == nil && len(client.Data(all)) != 1 {
			err = fmt.Errorf("%d records", len(client.Data(all)))
		}
		return err
	})
}

func TestUnreachableBrokerAtStart(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	ln.Close()
	c := node.Defaults()
	c.Version, c.Region, c.DataDir = 1, "us", t.TempDir()
	c.Regions = map[string]node.RegionConfig{"us": {ID: 1, Kafka: node.KafkaConfig{Seeds: []string{closed}}}}
	c.HTTP.Listen, c.Management.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c = c.Complete()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing held by the first
		deps := node.Deps{Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), ReachTimeout: 200 * time.Millisecond}
		_, err := node.New(c, deps)
		if !errors.Is(err, node.ErrUnreachable) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestUnreachableRegionDoesNotStopTheOther(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	w.CutAll()
	w.Kill("us")
	w.StartAgain("us") // with its target out of reach from the beginning
	a := us.Put(github, "k", `1`)
	us.AwaitReady()
	w.HealAll()
	w.Settle()
	if got := of(records(t, eu, github, "merged"), "k"); len(got) != 1 || got[0].Dot != a.Dot {
		t.Fatalf("eu shows %+v", got)
	}
}

// storeAsync stores a write in a goroutine of its own.
func storeAsync(t *testing.T, in *world.Instance, wr client.Write) <-chan outcome {
	out := make(chan outcome, 1)
	ctx := limit(t)
	go func() {
		a, err := in.Try(ctx, wr)
		out <- outcome{a, err}
	}()
	return out
}

type outcome struct {
	a   client.Answer
	err error
}

func TestLostAcknowledgementIsStoredOnce(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us := w.Region("us")
	us.Put(github, "k", `0`)
	keep := us.Instance(0).LoseAnswers(produceKey)
	defer keep()
	key := "k"
	wr := client.Write{Topic: github, Key: key, Value: []byte(`1`), Idem: "lost"}
	first := storeAsync(t, us.Instance(0), wr)
	w.Eventually("the record is in the log", func() error {
		if n := len(client.Data(read(t, us, github))); n != 2 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	keep()
	got := <-first
	if got.err != nil && client.Code(got.err) != "OUTCOME_UNKNOWN" {
		t.Fatalf("the write whose acknowledgement was lost got %v", got.err)
	}
	again := us.Put(github, "k", `1`, world.Idem("lost"))
	if !again.Replayed || got.err == nil && again.Raw != got.a.Raw {
		t.Fatalf("again %s (replayed %v), first %s", again.Raw, again.Replayed, got.a.Raw)
	}
	w.Settle()
	for _, r := range w.Regions() {
		if n := len(of(records(t, r, github, "merged"), "k")); n != 2 {
			t.Fatalf("%s shows %d records", r.Name, n)
		}
	}
}

func TestRetryInFlightIsRefused(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us := w.Region("us")
	us.Put(github, "k", `0`) // the seat is ready
	release := us.Instance(0).Hold(produceKey)
	defer release()
	key := "k"
	wr := client.Write{Topic: github, Key: key, Value: []byte(`1`), Idem: "flight"}
	a, b := storeAsync(t, us.Instance(0), wr), storeAsync(t, us.Instance(0), wr)
	// Nothing reaches the log, so one of the two waits and the other is told so.
	var refused outcome
	waits := a
	select {
	case refused = <-a:
		waits = b
	case refused = <-b:
	case <-time.After(time.Minute):
		t.Fatal("neither was refused")
	}
	if p := problem(t, refused.err, 409, "IDEMPOTENCY_KEY_IN_USE"); !p.Retriable || p.Header.Get("Retry-After") != "1" {
		t.Fatalf("%+v, %v", p, p.Header)
	}
	release()
	stored := <-waits
	if stored.err != nil {
		t.Fatal(stored.err)
	}
	if again := us.Put(github, "k", `1`, world.Idem("flight")); !again.Replayed || again.Raw != stored.a.Raw {
		t.Fatalf("again %s, first %s", again.Raw, stored.a.Raw)
	}
}
