//go:build unix

package hostile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

const mib = 1 << 20

// zeros is the compressed form of a record with a value and empty headers, all zeros.
func zeros(t *testing.T, codec kgo.CompressionCodecType, key string, value, headers int) []byte {
	t.Helper()
	head := append([]byte{0, 0, 0}, binary.AppendVarint(nil, int64(len(key)))...)
	head = binary.AppendVarint(append(head, key...), int64(value))
	middle := binary.AppendVarint(nil, int64(headers))
	head = append(binary.AppendVarint(nil, int64(len(head)+value+len(middle)+2*headers)), head...)
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch codec {
	case kgo.CodecGzip:
		w = gzip.NewWriter(&out)
	case kgo.CodecSnappy: // in blocks, as Java's producer writes them
		w = &xerial{out: &out}
	case kgo.CodecLz4:
		w = lz4.NewWriter(&out)
	case kgo.CodecZstd:
		w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(mib))
	}
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, mib)
	write := func(b []byte) {
		if _, werr := w.Write(b); werr != nil {
			t.Fatal(werr)
		}
	}
	write(head)
	for n := value; n > 0; n -= len(chunk) {
		write(chunk[:min(n, len(chunk))])
	}
	write(middle)
	for n := 2 * headers; n > 0; n -= len(chunk) {
		write(chunk[:min(n, len(chunk))])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// xerial is snappy in the frames of Java's stream: large blocks unfold to most.
type xerial struct {
	out   *bytes.Buffer
	begun bool
	rest  []byte
}

func (x *xerial) Write(b []byte) (int, error) {
	if !x.begun {
		x.begun = true
		x.out.WriteString("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	}
	x.rest = append(x.rest, b...)
	if len(x.rest) >= mib {
		return len(b), x.Close()
	}
	return len(b), nil
}

// Close writes what is left.
func (x *xerial) Close() error {
	if len(x.rest) > 0 {
		block := s2.EncodeSnappy(nil, x.rest)
		x.out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(block))), block...))
		x.rest = x.rest[:0]
	}
	return nil
}

// produceBatch sends a batch whose header counts what it is told to, and gives the
// broker's answer.
func (r *region) produceBatch(t *testing.T, topic string, partition int32, codec kgo.CompressionCodecType, count int32, records []byte) error {
	t.Helper()
	b := make([]byte, 61, 61+len(records))
	b = append(b, records...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], 0xffffffff)
	b[16] = 2
	binary.BigEndian.PutUint16(b[21:], uint16(codec))
	binary.BigEndian.PutUint32(b[23:], uint32(count-1))
	binary.BigEndian.PutUint64(b[43:], ^uint64(0))
	binary.BigEndian.PutUint16(b[51:], 0xffff)
	binary.BigEndian.PutUint32(b[53:], 0xffffffff)
	binary.BigEndian.PutUint32(b[57:], uint32(count))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	cl := r.kafka(t)
	found, err := kadm.NewClient(cl).Metadata(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 30_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = topic, found.Topics[topic].ID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, b
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	if len(found.Brokers) != 1 {
		t.Fatalf("%d brokers, want one", len(found.Brokers))
	}
	resp, err := req.RequestWith(t.Context(), cl.Broker(int(found.Brokers[0].NodeID)))
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// inEveryPartition writes n records to every partition of a topic through the gateway,
// and waits until each region's view has them.
func (d *deployment) inEveryPartition(t *testing.T, topic, round string) {
	t.Helper()
	want := map[string]bool{}
	for _, r := range d.regions() {
		seen := map[int32]bool{}
		for i := 0; len(seen) < 4; i++ {
			key := fmt.Sprint(round, "-", r.name, "-", i)
			a := r.mustStore(t, client.Write{Topic: topic, Key: key, Value: []byte(`1`), Idem: key})
			seen[a.Partition] = true
			want[key] = true
		}
	}
	for _, r := range d.regions() {
		r.await(t, "the view of "+topic, func(ctx context.Context) error {
			records, err := r.Records(ctx, topic, "merged")
			if err != nil {
				return err
			}
			found := map[string]bool{}
			for _, rec := range records {
				found[rec.Key.Text()] = true
			}
			for key := range want {
				if !found[key] {
					return fmt.Errorf("%s is missing", key)
				}
			}
			return nil
		})
	}
}

// TestBatchesThatUnfold: a few kilobytes from a producer with write access to one topic
// that unfold to gigabytes, as headers or values, or claim to. They take no memory, end no
// process, now or at a restart, and stop nothing: they are in no view and in the status.
func TestBatchesThatUnfold(t *testing.T) {
	d := deploy(t, spec{pair: true, set: []string{"log.level=warn"}})
	us := d.us
	d.inEveryPartition(t, "github", "before")
	d.inEveryPartition(t, "flights", "before")
	large := "9437184" // for what snappy can unfold from
	blobs := int32(0)  // the partition that both regions hold
	for _, r := range d.regions() {
		if _, err := kadm.NewClient(r.kafka(t)).CreateTopic(t.Context(), 4, 1, map[string]*string{"max.message.bytes": &large}, "blobs"); err != nil {
			t.Fatal(err)
		}
		blobs = r.mustStore(t, client.Write{Topic: "blobs", Key: "k", Value: []byte(`1`), Idem: "blobs of " + r.name}).Partition
	}
	base := map[*region]int64{}
	for _, r := range d.regions() {
		base[r], _ = r.memory(t)
		r.resetPeak(t)
	}

	send := func(topic string, p int32, codec kgo.CompressionCodecType, what string, b []byte) {
		t.Logf("%s/%d: %s in %d bytes", topic, p, what, len(b))
		if err := us.produceBatch(t, topic, p, codec, 1, b); err != nil {
			t.Logf("the broker refuses it: %v", err)
		}
	}
	headers, half := zeros(t, kgo.CodecZstd, "k", 1, 20_000_000), zeros(t, kgo.CodecZstd, "k", 512*mib, 0)
	for _, topic := range []string{"github", "flights"} {
		send(topic, 0, kgo.CodecZstd, "20 million headers", headers)
		send(topic, 1, kgo.CodecZstd, "half a gigabyte", half)
	}
	send("github", 1, kgo.CodecGzip, "128 MiB", zeros(t, kgo.CodecGzip, "k", 128*mib, 0))
	send("github", 1, kgo.CodecLz4, "128 MiB", zeros(t, kgo.CodecLz4, "k", 128*mib, 0))
	send("blobs", blobs, kgo.CodecSnappy, "128 MiB", zeros(t, kgo.CodecSnappy, "k", 128*mib, 0))
	// What lies just below the limit is folded, in a topic that nobody reads here.
	below := zeros(t, kgo.CodecZstd, "k", 60*mib, 0)
	for range 3 {
		send("blobs", blobs, kgo.CodecZstd, "60 MiB, which are allowed,", below)
	}
	// Apache Kafka refuses what does not count its records.
	_ = us.produceBatch(t, "github", 0, kgo.CodecNone, 1_000_000, zerosPlain())
	send("_geogate.control", 0, kgo.CodecZstd, "20 million headers", headers)
	send("_geogate.state.github", 0, kgo.CodecZstd, "half a gigabyte", half)
	us.longKeys(t)

	d.inEveryPartition(t, "github", "after")
	d.inEveryPartition(t, "flights", "after")
	for _, subject := range []string{"github/0", "github/1", "github/2", "flights/0", fmt.Sprint("blobs/", blobs)} {
		w := us.awaitWarning(t, warning.BeyondLimits, subject)
		if !strings.Contains(w.Detail, "in no view") {
			t.Errorf("us warns %s", w)
		}
		d.eu.awaitWarning(t, warning.BeyondLimits, "us."+subject)
	}
	us.awaitWarning(t, warning.MalformedRecord, "_geogate.control/0")
	us.await(t, "the metric", func(ctx context.Context) error {
		n, err := us.metric(ctx, `geogate_beyond_limits_total{topic="github"}`)
		if err == nil && n < 5 {
			err = fmt.Errorf("%v batches and records are beyond limits", n)
		}
		return err
	})
	if o := us.command(t, "status", "--check"); o.code != 3 || !strings.Contains(o.out, "WARN BEYOND_LIMITS github/0") {
		t.Errorf("status --check: %+v", o)
	}
	d.checkMemory(t, base)

	for _, r := range d.regions() {
		r.kill()
	}
	for _, r := range d.regions() {
		r.start(t)
	}
	d.inEveryPartition(t, "github", "again")
	d.inEveryPartition(t, "flights", "again")
	d.checkMemory(t, base)
	for _, r := range d.regions() {
		r.keepsSecret(t, secretKey)
	}
}

// secretKey is a part of a key that must be in no log and no status.
const secretKey = "SECRET-IN-A-KEY-"

// longKeys writes keys that no store takes: the edge refuses them; a native record with
// one is in no view, and what comes after it is.
func (r *region) longKeys(t *testing.T) {
	t.Helper()
	long := strings.Repeat(secretKey, 65_536/len(secretKey))
	_, err := r.Try(t.Context(), client.Write{Topic: "flights", Key: long, Value: []byte(`1`), Idem: "long"})
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != 413 || p.Code != "KEY_TOO_LARGE" {
		t.Errorf("a key of %d bytes: %v", len(long), err)
	}
	for _, topic := range []string{"github", "flights"} {
		r.put(t, &kgo.Record{Topic: topic, Partition: 2, Key: []byte(long), Value: []byte("v")})
	}
}

// keepsSecret fails the test where a text is in the region's log or status, as it is or in
// hex.
func (r *region) keepsSecret(t *testing.T, text string) {
	t.Helper()
	log, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	status := r.command(t, "status", "-o", "json").out
	for name, where := range map[string]string{"log": string(log), "status": status} {
		for _, form := range []string{text, hex.EncodeToString([]byte(text)), fmt.Sprintf("% x", text[:8]), strings.Trim(fmt.Sprint([]byte(text)), "[]")} {
			if strings.Contains(where, form) {
				t.Errorf("the %s of %s has a part of a key: %s", name, r.name, form)
			}
		}
	}
}

// zerosPlain is one record, uncompressed.
func zerosPlain() []byte { return []byte{16, 0, 0, 0, 2, 'k', 2, 'v', 0} }

// checkMemory holds the highest resident memory against what it was at first.
func (d *deployment) checkMemory(t *testing.T, base map[*region]int64) {
	t.Helper()
	const most = 768 * mib
	for _, r := range d.regions() {
		now, peak := r.memory(t)
		t.Logf("%s has %d MiB, at most %d MiB, %d MiB at first", r.name, now/mib, peak/mib, base[r]/mib)
		if peak > base[r]+most {
			t.Errorf("the memory of %s rose from %d to %d MiB", r.name, base[r]/mib, peak/mib)
		}
	}
}
