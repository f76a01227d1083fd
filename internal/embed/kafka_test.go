package embed_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/loopback"
)

// childEnv makes the test binary a broker that waits to be killed: a kill of a
// real process is the only honest test of what survives one.
const (
	childEnv    = "GEOGATE_EMBED_CHILD"
	childListen = "GEOGATE_EMBED_LISTEN"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		s, err := embed.StartKafka(embed.Kafka{Listen: os.Getenv(childListen), DataDir: dir})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(s.Seeds()[0])
		select {}
	}
	os.Exit(m.Run())
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, dir string) *embed.KafkaServer {
	t.Helper()
	s, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func client(t *testing.T, seed string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(seed), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// initProducer returns the producer id and epoch of a transactional id.
func initProducer(t *testing.T, c *kgo.Client, id string) (int64, int16) {
	t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = &id
	req.TransactionTimeoutMillis = 60_000
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(testContext(t), c)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatalf("init producer: %v", err)
	}
	return resp.ProducerID, resp.ProducerEpoch
}

// state is what must be the same after a restart.
type state struct {
	topicID kadm.TopicID
	cluster string
	end     int64
	group   int64
	values  string
}

// fill writes a topic, three records, a committed and an aborted transaction
// and a group position.
func fill(t *testing.T, seed string) (pid int64, epoch int16) {
	t.Helper()
	ctx := testContext(t)
	adm := kadm.NewClient(client(t, seed))
	if _, err := adm.CreateTopic(ctx, 2, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "orders"); err != nil {
		t.Fatal(err)
	}
	c := client(t, seed)
	for i := range 3 {
		r := &kgo.Record{Topic: "orders", Partition: 1, Key: []byte{byte(i)}, Value: fmt.Appendf(nil, "v%d", i)}
		if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	tx := client(t, seed, kgo.TransactionalID("tx"))
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: "orders", Partition: 1, Key: []byte("t"), Value: fmt.Appendf(nil, "tx-%v", end)}
		if err := tx.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	offs := make(kadm.Offsets)
	offs.AddOffset("orders", 1, 2, -1)
	if _, err := adm.CommitOffsets(ctx, "readers", offs); err != nil {
		t.Fatal(err)
	}
	return initProducer(t, c, "tx")
}

func observe(t *testing.T, seed string) state {
	t.Helper()
	ctx := testContext(t)
	c := client(t, seed, kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {1: kgo.NewOffset().AtStart()}}))
	adm := kadm.NewClient(c)
	meta, err := adm.Metadata(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup("orders", 1)
	group, err := adm.FetchOffsets(ctx, "readers")
	if err != nil {
		t.Fatal(err)
	}
	at, _ := group.Lookup("orders", 1)
	var values []string
	for len(values) < 4 {
		fs := c.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("read back: %v (so far %v)", err, values)
		}
		fs.EachRecord(func(r *kgo.Record) { values = append(values, fmt.Sprintf("%d=%s", r.Offset, r.Value)) })
	}
	return state{meta.Topics["orders"].ID, meta.Cluster, end.Offset, at.At, strings.Join(values, " ")}
}

func TestKafkaKeepsStateOverRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	pid, epoch := fill(t, s.Seeds()[0])
	before := observe(t, s.Seeds()[0])
	if before.cluster != s.ClusterID() {
		t.Fatalf("metadata names cluster %q, ClusterID %q", before.cluster, s.ClusterID())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir)
	if after := observe(t, s.Seeds()[0]); after != before {
		t.Fatalf("after restart %+v, before %+v", after, before)
	}
	pid2, epoch2 := initProducer(t, client(t, s.Seeds()[0]), "tx")
	if pid2 != pid || epoch2 <= epoch {
		t.Fatalf("producer %d/%d after restart, %d/%d before", pid2, epoch2, pid, epoch)
	}
}

func TestKafkaKeepsAcknowledgedOverKill(t *testing.T) {
	dir := t.TempDir()
	seed, kill := child(t, dir)
	pid, epoch := fill(t, seed)
	before := observe(t, seed)
	// An open transaction at the time of the kill must not hold the last
	// stable offset for ever: observe below reads committed past it.
	tx := client(t, seed, kgo.TransactionalID("open"))
	if err := tx.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: "orders", Partition: 0, Value: []byte("never")}
	if err := tx.ProduceSync(testContext(t), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	kill()

	s := start(t, dir)
	if after := observe(t, s.Seeds()[0]); after != before {
		t.Fatalf("after kill %+v, before %+v", after, before)
	}
	pid2, epoch2 := initProducer(t, client(t, s.Seeds()[0]), "tx")
	if pid2 != pid || epoch2 <= epoch {
		t.Fatalf("producer %d/%d after kill, %d/%d before", pid2, epoch2, pid, epoch)
	}
	c := client(t, s.Seeds()[0])
	adm := kadm.NewClient(c)
	if err := c.ProduceSync(testContext(t), &kgo.Record{Topic: "orders", Partition: 0, Key: []byte("k"), Value: []byte("next")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(testContext(t), "orders")
	if err != nil {
		t.Fatal(err)
	}
	stable, err := adm.ListCommittedOffsets(testContext(t), "orders")
	if err != nil {
		t.Fatal(err)
	}
	e, _ := ends.Lookup("orders", 0)
	l, _ := stable.Lookup("orders", 0)
	if e.Offset != l.Offset {
		t.Fatalf("open transaction survived: end %d, last stable %d", e.Offset, l.Offset)
	}
}

// child starts a broker in a process of its own; kill ends it with SIGKILL.
func child(t *testing.T, dir string) (seed string, kill func()) {
	t.Helper()
	return childOn(t, dir, "127.0.0.1:0")
}

// childOn is child on a given address.
func childOn(t *testing.T, dir, listen string) (seed string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, childListen+"="+listen)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(kill)
	sc := bufio.NewScanner(out)
	if !sc.Scan() || strings.HasPrefix(sc.Text(), "error") {
		t.Fatalf("child broker did not start: %s", sc.Text())
	}
	return sc.Text(), kill
}

func TestKafkaRefusesOtherAddresses(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "192.0.2.1:9092", "[::]:0", "kafka.example:9092"} {
		_, err := embed.StartKafka(embed.Kafka{Listen: addr, DataDir: t.TempDir()})
		if !errors.Is(err, loopback.ErrNotLoopback) {
			t.Errorf("listen on %q: %v, want ErrNotLoopback", addr, err)
		}
	}
}

func TestKafkaDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir}); !errors.Is(err, embed.ErrInUse) {
		t.Fatalf("second start: %v, want ErrInUse", err)
	}
	id := s.ClusterID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir, ClusterID: "other"}); !errors.Is(err, embed.ErrClusterID) {
		t.Fatalf("start as another cluster: %v, want ErrClusterID", err)
	}
	again := start(t, dir) // the failed starts must have released the directory
	other := start(t, t.TempDir())
	if again.ClusterID() != id || other.ClusterID() == id || len(id) != 22 {
		t.Fatalf("cluster ids: first %q, again %q, other %q", id, again.ClusterID(), other.ClusterID())
	}
}

func TestKafkaCreatesNoTopicByAsking(t *testing.T) {
	s := start(t, t.TempDir())
	c := client(t, s.Seeds()[0], kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0))
	if err := c.ProduceSync(testContext(t), &kgo.Record{Topic: "ghost", Value: []byte("x")}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Fatalf("produce to an unknown topic: %v", err)
	}
	topics, err := kadm.NewClient(c).ListTopics(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if names := topics.Names(); slices.Contains(names, "ghost") {
		t.Fatalf("topics %v", names)
	}
}

func TestKafkaTakesLargeRecords(t *testing.T) {
	s := start(t, t.TempDir())
	c := client(t, s.Seeds()[0], kgo.ProducerBatchMaxBytes(2<<20))
	ctx := testContext(t)
	if _, err := kadm.NewClient(c).CreateTopic(ctx, 1, 1, nil, "big"); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: "big", Value: make([]byte, 1<<20), Headers: []kgo.RecordHeader{{Key: "gg-id", Value: make([]byte, 16)}}}
	if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
		t.Fatalf("produce 1 MiB with headers: %v", err)
	}
}

func TestKafkaStartErrors(t *testing.T) {
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1", DataDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("address without port: %v", err)
	}
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0"}); err == nil {
		t.Error("no data directory: started")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "meta.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir}); err == nil {
		t.Error("damaged meta.json: started")
	}
}
