package cutproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/geogate/geogate/testbench/cutproxy"
)

// begin starts a cluster of three brokers behind a proxy that knows only one.
func begin(t *testing.T) (*cutproxy.Proxy, *kgo.Client) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	p, err := cutproxy.Start(cluster.ListenAddrs()[:1], "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	c, err := kgo.NewClient(kgo.SeedBrokers(p.Addr()), kgo.DefaultProduceTopic("t"),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.TransactionalID("tx"),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return p, c
}

// transact writes one record to each partition in one transaction: it asks for
// metadata and for the coordinator, and reaches all three brokers.
func transact(ctx context.Context, c *kgo.Client) error {
	if err := c.BeginTransaction(); err != nil {
		return err
	}
	for i := range 6 {
		c.Produce(ctx, &kgo.Record{Value: fmt.Append(nil, i)}, nil)
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return c.EndTransaction(ctx, kgo.TryCommit)
}

func TestEverythingGoesThroughTheProxy(t *testing.T) {
	p, c := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := transact(ctx, c); err != nil {
		t.Fatal(err)
	}
	seeds := p.Seeds()
	if len(seeds) != 3 {
		t.Fatalf("doors %v, want one for each of three brokers", seeds)
	}
	meta, err := kadm.NewClient(c).BrokerMetadata(ctx)
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, s := range seeds {
		known[s] = true
	}
	for _, b := range meta.Brokers {
		if addr := net.JoinHostPort(b.Host, fmt.Sprint(b.Port)); !known[addr] {
			t.Errorf("broker %d at %s, not behind the proxy %v", b.NodeID, addr, seeds)
		}
	}
	if p.Connections() == 0 {
		t.Error("no connection counted")
	}
}

func TestCutAndHeal(t *testing.T) {
	p, c := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := transact(ctx, c); err != nil {
		t.Fatal(err)
	}
	before := p.Seeds()
	p.Cut()
	if n := p.Connections(); n != 0 {
		t.Fatalf("%d connections after cut", n)
	}
	for _, addr := range before {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Fatalf("connected to %s while cut", addr)
		}
	}
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	err := c.Ping(short)
	stop()
	if err == nil {
		t.Fatal("ping succeeded while cut")
	}
	p.Cut() // twice is once
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	if after := p.Seeds(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("addresses %v after heal, %v before", after, before)
	}
	if err := transact(ctx, c); err != nil {
		t.Fatalf("transaction after heal: %v", err)
	}
}

// produceKey is the api key of Produce.
const produceKey = 0

// end is the sum of a topic's end offsets, asked past any proxy.
func end(ctx context.Context, t *testing.T, c *kgo.Client) (n int64) {
	t.Helper()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

func TestLostAnswerIsOfARequestThatWasDone(t *testing.T) {
	p, c := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := transact(ctx, c); err != nil {
		t.Fatal(err)
	}
	before := end(ctx, t, c)
	keep := p.LoseAnswers(produceKey)
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	c.Produce(ctx, &kgo.Record{Value: []byte("x")}, func(_ *kgo.Record, err error) { done <- err })
	for end(ctx, t, c) != before+1 { // other requests are answered
		if ctx.Err() != nil {
			t.Fatal("the record never came to the broker")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("produce was answered: %v", err)
	default:
	}
	keep()
	if err := <-done; err != nil {
		t.Fatalf("produce after its answer was lost: %v", err)
	}
	if n := end(ctx, t, c); n != before+1 {
		t.Fatalf("log grew by %d, want 1", n-before)
	}
	if err := c.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}

func TestHeldRequestDoesNotReachTheBroker(t *testing.T) {
	p, c := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := transact(ctx, c); err != nil {
		t.Fatal(err)
	}
	before := end(ctx, t, c)
	release := p.Hold(produceKey)
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	c.Produce(ctx, &kgo.Record{Value: []byte("x")}, func(_ *kgo.Record, err error) { done <- err })
	for range 20 {
		if n := end(ctx, t, c); n != before {
			t.Fatal("the record came through")
		}
	}
	release()
	release() // twice is once
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := c.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}

func TestGarbageOnlyHurtsItsOwnConnection(t *testing.T) {
	p, c := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, junk := range []string{"", "\x00", "GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(junk))
		conn.Close()
	}
	if err := transact(ctx, c); err != nil {
		t.Fatal(err)
	}
}

func TestUpstreamMayComeLater(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	p, err := cutproxy.Start([]string{addr}, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// The reset may arrive before Dial returns, or with the first read.
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("connection to a missing broker: %v, want a reset", err)
	}
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if conn, err = net.Dial("tcp", p.Addr()); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	up, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	up.Close()
}

func TestStartErrors(t *testing.T) {
	if _, err := cutproxy.Start(nil, "127.0.0.1:0"); err == nil {
		t.Error("started without upstream")
	}
	if _, err := cutproxy.Start([]string{"127.0.0.1:1"}, "nowhere"); err == nil {
		t.Error("started on a bad address")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p, err := cutproxy.Start([]string{ln.Addr().String()}, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	up, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Heal(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("heal after close: %v", err)
	}
}
