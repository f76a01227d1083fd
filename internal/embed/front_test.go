package embed_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/embed"
)

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// request is a whole request of a kind, with an empty client id.
func request(key, version int16, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(10+len(body)))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 1)
	return append(append(b, 0, 0), body...)
}

// closed fails the test unless the other side closes the connection without a word.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, net.ErrClosed) || isTimeout(err) {
		t.Fatalf("the connection is not closed: %d bytes, %v", n, err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// works fails the test unless the broker serves a client.
func works(t *testing.T, s *embed.KafkaServer) {
	t.Helper()
	if err := client(t, s.Seeds()[0]).Ping(testContext(t)); err != nil {
		t.Fatal("the broker serves nobody any more:", err)
	}
}

func TestHostileRequests(t *testing.T) {
	s := start(t, t.TempDir())
	whole := func(key, version int16, body []byte) func() []byte {
		return func() []byte { return request(key, version, body) }
	}
	for name, bytes := range map[string]func() []byte{
		"unknown kind":          whole(200, 0, nil),
		"negative kind":         whole(-1, 0, nil),
		"unknown version":       whole(3, 99, nil),
		"negative version":      whole(3, -2, nil),
		"no request":            func() []byte { return []byte{0, 0, 0, 3, 0, 3, 0, 0} },
		"negative size":         func() []byte { return []byte{0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0} },
		"produce of 65 MiB":     func() []byte { return []byte{4, 0x10, 0, 0, 0, 0, 0, 9} },
		"metadata of 5 MiB":     func() []byte { return []byte{0, 0x50, 0, 0, 0, 3, 0, 1} },
		"produce of no bytes":   whole(0, 9, nil),
		"produce to 65k topics": whole(0, 9, append([]byte{0, 0, 0xff, 0xff, 0, 0, 0, 1, 0x81, 0x80, 4}, make([]byte, 3<<16)...)),
		"a string too long":     whole(0, 3, []byte{0x7f, 0xff}),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.Seeds()[0])
			if _, err := c.Write(bytes()); err != nil {
				t.Fatal(err)
			}
			closed(t, c)
			works(t, s)
		})
	}
}

// TestClaimedLength opens connections that claim a large request and send little
// of it: no memory is taken for what has not come.
func TestClaimedLength(t *testing.T) {
	s := start(t, t.TempDir())
	before := heap()
	for range 64 {
		c := dial(t, s.Seeds()[0])
		if _, err := c.Write([]byte{3, 0xff, 0xff, 0xff, 0, 0, 0, 9, 0, 0}); err != nil { // 64 MiB of produce
			t.Fatal(err)
		}
	}
	works(t, s)
	if after := heap(); after > before+(64<<20) {
		t.Fatalf("the heap grew from %d to %d bytes for 640 bytes of requests", before, after)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rawBatch is a batch of format 2 whose header counts what it is told to.
func rawBatch(count int32, records []byte) []byte {
	b := make([]byte, 61, 61+len(records))
	binary.BigEndian.PutUint32(b[8:], uint32(61-12+len(records)))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(count-1))
	binary.BigEndian.PutUint64(b[43:], ^uint64(0))
	binary.BigEndian.PutUint16(b[51:], 0xffff)
	binary.BigEndian.PutUint32(b[53:], 0xffffffff)
	binary.BigEndian.PutUint32(b[57:], uint32(count))
	b = append(b, records...)
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestBatchCounts sends batches that count fewer records than one: kfake would
// move the log's end backwards.
func TestBatchCounts(t *testing.T) {
	s := start(t, t.TempDir())
	ctx := testContext(t)
	c := client(t, s.Seeds()[0])
	adm := kadm.NewClient(c)
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topics, err := adm.Metadata(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []int16{3, 8, 9, 12, 13} {
		for _, count := range []int32{0, -2, -1 << 31} {
			t.Run(fmt.Sprintf("version %d counts %d", version, count), func(t *testing.T) {
				req := kmsg.NewPtrProduceRequest()
				req.Version, req.Acks = version, -1
				rt := kmsg.NewProduceRequestTopic()
				rt.Topic, rt.TopicID = "t", topics.Topics["t"].ID
				rp := kmsg.NewProduceRequestTopicPartition()
				rp.Records = rawBatch(count, nil)
				rt.Partitions = append(rt.Partitions, rp)
				req.Topics = append(req.Topics, rt)
				body := req.AppendTo(nil)
				if req.IsFlexible() {
					body = append([]byte{0}, body...) // no tags in the header
				}
				conn := dial(t, s.Seeds()[0])
				if _, err := conn.Write(request(0, version, body)); err != nil {
					t.Fatal(err)
				}
				closed(t, conn)
			})
		}
	}
	ends, err := adm.ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	if end, _ := ends.Lookup("t", 0); end.Offset != 3 {
		t.Fatalf("the log ends at %d, want 3", end.Offset)
	}
}

// TestFetchIsBounded asks for two gigabytes in one answer.
func TestFetchIsBounded(t *testing.T) {
	const parts = 20
	s := start(t, t.TempDir())
	ctx := testContext(t)
	c := client(t, s.Seeds()[0], kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	adm := kadm.NewClient(c)
	if _, err := adm.CreateTopic(ctx, parts, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 7<<20)
	for p := range int32(parts) {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: "t", Partition: p, Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topics, err := adm.Metadata(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.ReplicaID, req.SessionEpoch = 1<<31-1, -1, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = "t", topics.Topics["t"].ID
	for p := range int32(parts) {
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.PartitionMaxBytes = p, 1<<31-1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, c)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, rp := range resp.Topics[0].Partitions {
		n += len(rp.RecordBatches)
	}
	if n == 0 || n > 96<<20 {
		t.Fatalf("%d bytes in one answer", n)
	}
}

// front serves connections with limits of its own.
func front(t *testing.T, held, connections int) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := embed.NewFront(ln, held, connections)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFrontDropsTheOldest(t *testing.T) {
	f := front(t, 64<<10, 8)
	part := request(0, 3, make([]byte, 30<<10))
	part = part[:len(part)-1] // and never the last byte
	type end struct {
		connection int
		err        error
	}
	ends := make(chan end, 3)
	for i := range 3 {
		c := dial(t, f.Addr().String())
		served, err := f.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { served.Close() })
		go func() {
			_, err := served.Read(make([]byte, 1))
			ends <- end{i, err}
		}()
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			await(t, "the front to hold what came", func() bool { return embed.Held(f) == (i+1)*(len(part)+1) })
		}
	}
	if e := <-ends; e.connection != 0 || e.err == nil {
		t.Fatalf("connection %d was dropped with %v, want the oldest", e.connection, e.err)
	}
	await(t, "the others to stay", func() bool { return embed.Held(f) == 2*(len(part)+1) })
}

func TestFrontCountsConnections(t *testing.T) {
	f := front(t, 64<<10, 2)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := f.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial(t, f.Addr().String())
	first := <-accepted
	dial(t, f.Addr().String())
	<-accepted
	closed(t, dial(t, f.Addr().String()))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	dial(t, f.Addr().String())
	<-accepted
}

// await polls what no channel tells.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := testContext(t)
	for tick := time.NewTicker(time.Millisecond); !ok(); {
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain for", what)
		case <-tick.C:
		}
	}
}
