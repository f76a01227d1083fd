package embed_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/embed"
)

const (
	topic      = "orders"
	markerSize = 78 // bytes of a marker's batch
	indexSize  = 15
)

// producer speaks the transaction protocol without a client's own retries, so
// that a test can stop anywhere in it and repeat anything.
type producer struct {
	t     *testing.T
	cl    *kgo.Client
	txid  string
	id    int64
	epoch int16
	seq   map[int32]int32
	old   bool // EndTxn 4: the epoch stays
}

func newProducer(t *testing.T, seed, txid string, old bool) *producer {
	p := &producer{t: t, cl: client(t, seed), txid: txid, old: old, seq: map[int32]int32{}}
	p.id, p.epoch = initProducer(t, p.cl, txid)
	return p
}

// on continues the producer at another broker.
func (p *producer) on(seed string) *producer {
	q := *p
	q.cl = client(p.t, seed)
	q.seq = map[int32]int32{}
	for n, s := range p.seq {
		q.seq[n] = s
	}
	return &q
}

type addV3 struct {
	*kmsg.AddPartitionsToTxnRequest
}

func (addV3) MaxVersion() int16 { return 3 }

type endV4 struct{ *kmsg.EndTxnRequest }

func (endV4) MaxVersion() int16 { return 4 }

type produceNamed struct{ *kmsg.ProduceRequest }

func (produceNamed) MaxVersion() int16 { return 12 } // later ones name topics by id

func (p *producer) request(req kmsg.Request) kmsg.Response {
	p.t.Helper()
	resp, err := p.cl.Broker(0).Request(testContext(p.t), req) // the only one
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// write adds partitions to the transaction and writes value to each.
func (p *producer) write(value string, partitions ...int32) {
	p.t.Helper()
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = p.txid, p.id, p.epoch
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: topic, Partitions: partitions}}
	for _, n := range p.request(addV3{add}).(*kmsg.AddPartitionsToTxnResponse).Topics[0].Partitions {
		if n.ErrorCode != 0 {
			p.t.Fatalf("add partition: %v", kerr.ErrorForCode(n.ErrorCode))
		}
	}
	for _, n := range partitions {
		if _, err := p.produce(n, value, p.seq[n]); err != nil {
			p.t.Fatal(err)
		}
		p.seq[n]++
	}
}

// produce sends one batch of one record and returns its offset.
func (p *producer) produce(partition int32, value string, seq int32) (int64, error) {
	p.t.Helper()
	rec := kmsg.Record{Value: []byte(value)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1)
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, FirstTimestamp: 1, MaxTimestamp: 1,
		ProducerID: p.id, ProducerEpoch: p.epoch, FirstSequence: seq, NumRecords: 1, Records: rec.AppendTo(nil),
	}
	req := kmsg.NewPtrProduceRequest()
	if p.txid != "" {
		b.Attributes = 0x10
		req.TransactionID = &p.txid
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	req.Acks, req.TimeoutMillis = -1, 5000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: raw}}}}
	sp := p.request(produceNamed{req}).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	return sp.BaseOffset, kerr.ErrorForCode(sp.ErrorCode)
}

// end ends the transaction; repeat sends the same request without following the
// answer.
func (p *producer) end(commit bool) {
	p.t.Helper()
	resp, err := p.repeat(commit)
	if err != nil {
		p.t.Fatalf("end transaction: %v", err)
	}
	if !p.old {
		p.epoch = resp.ProducerEpoch
		p.seq = map[int32]int32{}
	}
}

func (p *producer) repeat(commit bool) (*kmsg.EndTxnResponse, error) {
	p.t.Helper()
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = p.txid, p.id, p.epoch, commit
	var req kmsg.Request = end
	if p.old {
		req = endV4{end}
	}
	resp := p.request(req).(*kmsg.EndTxnResponse)
	return resp, kerr.ErrorForCode(resp.ErrorCode)
}

// killed copies the directory of a running broker: with every write in the file
// before its answer, that is what a kill leaves.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
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

func partitionFile(dir string, partition int32, name string) string {
	return filepath.Join(dir, "partitions", fmt.Sprintf("%s-%d", topic, partition), name)
}

// unmark takes the last marker of partitions away, as if the broker had been
// killed before it wrote them.
func unmark(t *testing.T, dir string, partitions ...int32) {
	t.Helper()
	for _, n := range partitions {
		shorten(t, partitionFile(dir, n, "0.dat"), markerSize)
		shorten(t, partitionFile(dir, n, "0.idx"), indexSize)
	}
}

// forget takes the last n entries of pids.log away.
func forget(t *testing.T, dir string, n int) {
	t.Helper()
	path := filepath.Join(dir, "pids.log")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var starts []int64
	for at := int64(0); at < int64(len(raw)); at += 8 + int64(binary.LittleEndian.Uint32(raw[at:])) {
		starts = append(starts, at)
	}
	if err := os.Truncate(path, starts[len(starts)-n]); err != nil {
		t.Fatal(err)
	}
}

func createTopic(t *testing.T, seed, name string, partitions int32) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, seed)).CreateTopic(testContext(t), partitions, 1, nil, name); err != nil {
		t.Fatal(err)
	}
}

// committed reads what a reader of committed records sees of a topic, by
// partition, and fails if the last stable offset is not the end.
func committed(t *testing.T, seed, topic string) map[int32][]string {
	t.Helper()
	ctx := testContext(t)
	cl := client(t, seed, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(10*time.Millisecond))
	adm := kadm.NewClient(cl)
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	stable, err := adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if s, _ := stable.Lookup(topic, o.Partition); s.Offset != o.Offset {
			t.Fatalf("%s/%d: last stable offset %d, end %d", topic, o.Partition, s.Offset, o.Offset)
		}
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	got := map[int32][]string{}
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("read %s: %v (left %v)", topic, err, left)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				got[r.Partition] = append(got[r.Partition], string(r.Value))
			}
			if r.Offset == left[r.Partition]-1 {
				delete(left, r.Partition)
			}
		})
	}
	return got
}

func sees(t *testing.T, seed string, want map[int32]string) {
	t.Helper()
	got := committed(t, seed, topic)
	for n, values := range want {
		if s := strings.Join(got[n], " "); s != values {
			t.Errorf("partition %d: committed %q, want %q", n, s, values)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func TestKafkaFinishesAnEndCutShort(t *testing.T) {
	for _, c := range []struct {
		name    string
		commit  bool
		unmark  []int32 // markers that were not written
		entries int     // of pids.log that were not written
		visible bool
	}{
		{"commit before any marker", true, []int32{0, 1, 2}, 2, false},
		{"commit after one marker", true, []int32{0, 2}, 2, true},
		{"commit after all markers", true, nil, 2, true},
		{"commit but its epoch", true, nil, 1, true},
		{"abort after one marker", false, []int32{0, 2}, 2, false},
		{"abort after all markers", false, nil, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := start(t, dir)
			createTopic(t, s.Seeds()[0], topic, 3)
			p := newProducer(t, s.Seeds()[0], "tx", false)
			p.write("a", 0, 1, 2)
			p.end(true)
			p.write("b", 0, 1, 2)
			before := *p
			p.end(c.commit)

			dir = killed(t, dir)
			unmark(t, dir, c.unmark...)
			forget(t, dir, c.entries)
			s = start(t, dir)
			want := map[int32]string{0: "a", 1: "a", 2: "a"}
			add := func(v string) {
				for n := range want {
					want[n] += " " + v
				}
			}
			if c.visible {
				add("b")
			}
			sees(t, s.Seeds()[0], want)

			// The producer gets the answer that it missed, and no other.
			q := before.on(s.Seeds()[0])
			if c.entries > 1 {
				if _, err := q.produce(0, "late", q.seq[0]); !errors.Is(err, kerr.InvalidProducerEpoch) {
					t.Errorf("produce into the ended transaction: %v", err)
				}
			}
			q = before.on(killedStart(t, dir))
			if c.entries > 1 {
				if _, err := q.repeat(!c.visible); !errors.Is(err, kerr.InvalidTxnState) {
					t.Errorf("repeat with the other verdict: %v", err)
				}
			}
			if _, err := q.repeat(c.visible); err != nil {
				t.Errorf("repeat with the verdict: %v", err)
			}

			// What comes next is seen, over two more kills.
			q = newProducer(t, s.Seeds()[0], "tx", false)
			q.write("c", 0, 1, 2)
			q.end(true)
			q.write("d", 1)
			add("c")
			sees(t, killedStart(t, dir), want)
			dir = killed(t, dir)
			seed := start(t, dir).Seeds()[0]
			q = newProducer(t, seed, "tx", false)
			q.write("e", 2, 1, 0)
			q.end(true)
			add("e")
			sees(t, seed, want)
			sees(t, killedStart(t, dir), want)
		})
	}
}

// killedStart starts a broker on what a kill of the one in dir would leave.
func killedStart(t *testing.T, dir string) string {
	t.Helper()
	return start(t, killed(t, dir)).Seeds()[0]
}

// TestKafkaRecoveryMayBeKilled builds the states that a kill of the recovery
// leaves from those before and after it.
func TestKafkaRecoveryMayBeKilled(t *testing.T) {
	for _, commit := range []bool{true, false} {
		dir := t.TempDir()
		s := start(t, dir)
		createTopic(t, s.Seeds()[0], topic, 3)
		p := newProducer(t, s.Seeds()[0], "tx", false)
		p.write("a", 0, 1, 2)
		before := *p
		p.end(commit)
		dir = killed(t, dir)
		unmark(t, dir, 1, 2)
		if !commit {
			unmark(t, dir, 0)
		}
		forget(t, dir, 2)
		recovered := killed(t, dir)
		start(t, recovered)
		recovered = killed(t, recovered)

		want := ""
		if commit {
			want = "a"
		}
		for _, parts := range [][]string{{"orders-1"}, {"orders-1", "orders-2"}, {"orders-0", "orders-1", "orders-2"}} {
			torn := killed(t, dir)
			for _, name := range parts {
				from, to := filepath.Join(recovered, "partitions", name), filepath.Join(torn, "partitions", name)
				if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
					t.Fatal(err)
				}
			}
			if len(parts) == 1 { // a marker whose index entry is missing
				shorten(t, partitionFile(torn, 1, "0.idx"), indexSize)
			}
			seed := start(t, torn).Seeds()[0]
			sees(t, seed, map[int32]string{0: want, 1: want, 2: want})
			if _, err := before.on(seed).repeat(commit); err != nil {
				t.Fatalf("repeat: %v", err)
			}
		}
	}
}

// TestKafkaRecoveryWithOldClients keeps to one epoch, as clients before EndTxn 5
// do: a marker of an earlier transaction must not commit an open one.
func TestKafkaRecoveryWithOldClients(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	createTopic(t, s.Seeds()[0], topic, 3)
	p := newProducer(t, s.Seeds()[0], "tx", true)
	p.write("a", 0)
	p.end(true)
	idle := newProducer(t, s.Seeds()[0], "idle", true)
	idle.write("i", 2)
	idle.end(true)
	p.write("b", 1)
	seed := killedStart(t, dir)
	sees(t, seed, map[int32]string{0: "a", 1: "", 2: "i"})
	q := idle.on(seed)
	q.write("j", 2)
	q.end(true)
	sees(t, seed, map[int32]string{2: "i j"})

	// The same over a clean stop, which thins pids.log out.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir)
	sees(t, killedStart(t, dir), map[int32]string{0: "a", 1: "", 2: "i"})
	p = p.on(s.Seeds()[0])
	p.end(true)
	sees(t, killedStart(t, dir), map[int32]string{0: "a", 1: "b", 2: "i"})

	// A commit of the second transaction that was cut short is finished.
	p.write("c", 0, 1)
	p.end(true)
	dir = killed(t, dir)
	unmark(t, dir, 1)
	forget(t, dir, 1)
	seed = start(t, dir).Seeds()[0]
	sees(t, seed, map[int32]string{0: "a c", 1: "b c", 2: "i"})

	// A producer that was idle goes on with its epoch and sequence.
	idle = idle.on(seed)
	idle.write("j", 2)
	idle.end(true)
	sees(t, killedStart(t, dir), map[int32]string{0: "a c", 1: "b c", 2: "i j"})
}

func TestKafkaKeepsSequencesOverKill(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	createTopic(t, s.Seeds()[0], topic, 1)
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	p := &producer{t: t, cl: client(t, s.Seeds()[0])}
	p.id = p.request(req).(*kmsg.InitProducerIDResponse).ProducerID
	stray := &producer{t: t, cl: p.cl, id: 4711} // an id that the broker did not give
	send := func(p *producer, seq int32) int64 {
		t.Helper()
		at, err := p.produce(0, fmt.Sprint(p.id == 4711, seq), seq)
		if err != nil {
			t.Fatalf("produce %d: %v", seq, err)
		}
		return at
	}
	send(p, 0)
	if err := s.Close(); err != nil { // leaves a window that ends at 1
		t.Fatal(err)
	}
	seed := start(t, dir).Seeds()[0]
	p, stray = p.on(seed), stray.on(seed)
	for seq := range int32(3) {
		send(p, seq+1)
		send(stray, seq)
	}
	at, strayAt := send(p, 4), send(stray, 3)

	seed = killedStart(t, dir)
	p, stray = p.on(seed), stray.on(seed)
	if again := send(p, 4); again != at {
		t.Errorf("a batch sent again went to %d, not %d", again, at)
	}
	if again := send(stray, 3); again != strayAt {
		t.Errorf("a batch sent again went to %d, not %d", again, strayAt)
	}
	if _, err := p.produce(0, "gap", 6); !errors.Is(err, kerr.OutOfOrderSequenceNumber) {
		t.Errorf("a gap in the sequence: %v", err)
	}
	if next := send(p, 5); next != strayAt+1 {
		t.Errorf("the next batch went to %d, want %d", next, strayAt+1)
	}
}

// TestKafkaRepairsTornFiles cuts files where a kill between two writes does.
func TestKafkaRepairsTornFiles(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	createTopic(t, s.Seeds()[0], topic, 2)
	p := newProducer(t, s.Seeds()[0], "tx", false)
	p.write("a", 0, 1)
	p.end(true)
	p.write("b", 0, 1)
	dir = killed(t, dir)
	shorten(t, partitionFile(dir, 0, "0.idx"), indexSize) // batch without entry
	shorten(t, partitionFile(dir, 1, "0.dat"), 5)         // torn batch
	shorten(t, filepath.Join(dir, "pids.log"), 3)         // torn entry: the epoch of the open transaction

	// Without its entry the open batch would not count as data of a
	// transaction, and entries written after it would be those of others.
	s = start(t, dir)
	sees(t, s.Seeds()[0], map[int32]string{0: "a", 1: "a"})
	for _, end := range []bool{false, true} {
		p = newProducer(t, s.Seeds()[0], "tx", false)
		p.write(fmt.Sprint(end), 0, 1)
		p.end(end)
		sees(t, killedStart(t, dir), map[int32]string{0: strings.TrimSuffix("a true", map[bool]string{false: " true"}[end])})
	}
	epoch := p.epoch
	if _, next := initProducer(t, client(t, killedStart(t, dir)), "tx"); next <= epoch {
		t.Errorf("epoch %d after the kill, %d before: pids.log lost an entry", next, epoch)
	}
}

// TestKafkaCleanStopReadsNothing damages what a recovery would refuse.
func TestKafkaCleanStopReadsNothing(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	createTopic(t, s.Seeds()[0], topic, 1)
	p := newProducer(t, s.Seeds()[0], "tx", false)
	p.write("a", 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A stop that was killed just before its mark counts as unclean: the state
	// that would open the transaction again must be gone with it.
	unmarked := killed(t, dir)
	if err := os.Remove(filepath.Join(unmarked, "clean")); err != nil {
		t.Fatal(err)
	}
	sees(t, start(t, unmarked).Seeds()[0], map[int32]string{0: ""})

	if err := os.WriteFile(partitionFile(dir, 0, "7.dat"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	shorten(t, partitionFile(dir, 0, "0.dat"), 1)
	taken := start(t, t.TempDir()).Seeds()[0]
	if _, err := embed.StartKafka(embed.Kafka{Listen: taken, DataDir: dir}); err == nil || errors.Is(err, embed.ErrDamaged) {
		t.Fatalf("start on a port that is taken: %v", err)
	}
	start(t, dir).Close() // kfake itself loads what is left

	if err := errors.Join(os.Remove(filepath.Join(dir, "clean")), os.WriteFile(partitionFile(dir, 0, "7.dat"), []byte("x"), 0o600),
		os.WriteFile(partitionFile(dir, 0, "0.dat"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir}); !errors.Is(err, embed.ErrDamaged) {
		t.Fatalf("start after an unclean stop on a damaged segment: %v", err)
	}
}
