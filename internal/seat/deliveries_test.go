package seat_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/seat"
)

// TestDeliveries: a refusal is certain of what has met one request and fails first.
func TestDeliveries(t *testing.T) {
	d := seat.NewDeliveries()
	check := func(what string, x *seat.Delivery, want bool) {
		t.Helper()
		if got := d.Fail(x); got != want {
			t.Errorf("%s: certain %v", what, got)
		}
	}
	before := d.Give("flights", 0)
	d.Requested()
	first := d.Give("flights", 0) // what was before it succeeds
	behind, other := d.Give("flights", 0), d.Give("flights", 1)
	check("not sent", &other, true)
	d.Requested()
	check("the first that fails", &first, true)
	check("once more of it", &first, true)
	check("with the first", &behind, false)
	check("sent again", &other, true)
	late := d.Give("flights", 0)
	d.Requested()
	check("later", &late, true)
	check("sent before others", &before, false)
	twice := d.Give("flights", 0)
	d.Requested()
	d.Requested()
	check("sent twice", &twice, false)
	check("with other requests by now", &other, false)
}

// requests counts a client's requests to append.
type requests struct{ n atomic.Int64 }

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (r *requests) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Produce) {
		r.n.Add(1)
	}
}

// withoutSequence makes a batch one of no producer in particular: as a broker takes it that
// has nothing of its producer, whatever the sequence.
func withoutSequence(batch []byte) {
	binary.BigEndian.PutUint64(batch[43:], ^uint64(0))
	binary.BigEndian.PutUint16(batch[51:], ^uint16(0))
	binary.BigEndian.PutUint32(batch[53:], ^uint32(0))
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
}

// producing gives one record after another to a producer of the cluster, and counts its
// requests.
func (c *cluster) producing() (sent *requests, produce func(value string) (outcome chan error)) {
	c.t.Helper()
	sent = new(requests)
	p, err := seat.NewProducer(900<<10, true, kgo.SeedBrokers(c.seeds...), kgo.WithHooks(sent))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(p.Close)
	return sent, func(value string) chan error {
		outcome := make(chan error, 1)
		rec := seat.Record{Value: []byte(value), Timestamp: time.Now().UnixMilli()}
		if err := p.Produce(c.topic, partition, []seat.Sent{{Record: rec}}, func(_ int, err error) { outcome <- err }, func() { outcome <- nil }); err != nil {
			c.t.Fatal(err)
		}
		return outcome
	}
}

// TestRefusedWhenAskedAgain: a broker appends a record, answers that it timed out, and
// refuses it when it is asked again. Refused at once, it is certain.
func TestRefusedWhenAskedAgain(t *testing.T) {
	c := fakeCluster(t)
	_, produce := c.producing()
	c.produceFault(kerr.RequestTimedOut, 1)
	c.produceFault(kerr.TopicAuthorizationFailed, 1)
	if err := <-produce("a"); !errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, seat.ErrRefused) {
		t.Errorf("a record that is stored: %v", err)
	}
	if !has(t, c.fake, c.topic, "a") {
		t.Fatal("the record is not stored")
	}
	c.produceFault(kerr.TopicAuthorizationFailed, 1)
	if err := <-produce("b"); !errors.Is(err, seat.ErrRefused) || has(t, c.fake, c.topic, "b") {
		t.Errorf("a record that was refused when it was sent: %v", err)
	}
}

// TestRefusedBeforeOthers: the client tells what is on its way behind a refused batch that
// it is refused, too. The broker may have it.
func TestRefusedBeforeOthers(t *testing.T) {
	c := fakeCluster(t)
	sent, produce := c.producing()
	if err := <-produce("a"); err != nil { // the client sends one at a time until one has succeeded
		t.Fatal(err)
	}
	hold, turn := make(chan struct{}), 0
	c.fake.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.ProduceRequest)
		if turn++; turn > 1 {
			withoutSequence(req.Topics[0].Partitions[0].Records)
			return nil, nil, false
		}
		c.fake.KeepControl()
		c.fake.SleepControl(func() { <-hold })
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		of := kmsg.NewProduceResponseTopic()
		of.Topic, of.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		part := kmsg.NewProduceResponseTopicPartition()
		part.Partition, part.ErrorCode = partition, kerr.TopicAuthorizationFailed.Code
		of.Partitions = append(of.Partitions, part)
		resp.Topics = append(resp.Topics, of)
		return resp, nil, true
	})
	first := produce("b")
	eventually(t, "the first request", func() bool { return sent.n.Load() == 2 })
	second := produce("c")
	eventually(t, "the request behind it", func() bool { return sent.n.Load() == 3 })
	close(hold)
	for _, outcome := range []chan error{first, second} {
		if err := <-outcome; !errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, seat.ErrRefused) {
			t.Errorf("with another batch on its way the outcome is %v", err)
		}
	}
	eventually(t, "the record that the client calls refused", func() bool { return has(t, c.fake, c.topic, "c") })
	if has(t, c.fake, c.topic, "b") {
		t.Error("the refused record is stored")
	}
}

// has tells whether a record lies in the partition.
func has(t *testing.T, fake *kfake.Cluster, topic, value string) bool {
	t.Helper()
	info := fake.PartitionInfo(topic, partition)
	cl, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {partition: kgo.NewOffset().At(0)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	found := false
	for next := int64(0); next < info.HighWatermark; {
		got := cl.PollFetches(t.Context())
		if err := got.Err0(); err != nil {
			t.Fatal(err)
		}
		got.EachRecord(func(r *kgo.Record) {
			next, found = r.Offset+1, found || string(r.Value) == value
		})
	}
	return found
}
