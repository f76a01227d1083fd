//go:build unix

package apache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// resetWait bounds how long a broker may take to delete what a test has left, or to
// answer for the topics that it has made.
const resetWait = time.Minute

// Pool lends brokers to the tests of a package one after the other, so that a package
// starts them once. A test gets them without topics and without open transactions; it
// must leave them running. The zero Pool is ready; a TestMain runs its tests through
// Main.
type Pool struct {
	mu  sync.Mutex
	dir string
	all map[string]*pooled // by version and number
}

// pooled is one broker, lent while mu is held.
type pooled struct {
	mu sync.Mutex
	b  *Broker
}

// Lend returns n brokers of a version, which t has for itself until it ends.
func (p *Pool) Lend(t *testing.T, version string, n int) []*Broker {
	t.Helper()
	Require(t)
	out := make([]*Broker, n)
	for i := range out { // always in this order, so that borrowers cannot deadlock
		l, dir, err := p.at(fmt.Sprintf("%s-%d", version, i))
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		t.Cleanup(l.mu.Unlock)
		if l.b != nil && l.b.Pid() == 0 {
			t.Fatal("a test before this one has stopped a broker of the pool: it needs brokers of its own")
		}
		if l.b == nil {
			if l.b, err = Start(t.Context(), Config{Version: version, Dir: dir, HeapMB: 512}); err != nil {
				t.Fatal(err)
			}
		}
		if err := reset(t.Context(), l.b); err != nil {
			t.Fatal(err)
		}
		out[i] = l.b
	}
	return out
}

// at returns the place of a broker, and its directory.
func (p *Pool) at(name string) (_ *pooled, dir string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		if p.dir, err = os.MkdirTemp("", "geogate-apache-"); err != nil {
			return nil, "", fmt.Errorf("make a directory for brokers: %w", err)
		}
		p.all = map[string]*pooled{}
	}
	if p.all[name] == nil {
		p.all[name] = &pooled{}
	}
	return p.all[name], filepath.Join(p.dir, name), nil
}

// reset ends every open transaction and deletes every topic that is not Kafka's own.
func reset(ctx context.Context, b *Broker) error {
	ctx, cancel := context.WithTimeout(ctx, resetWait)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.MetadataMinAge(10*time.Millisecond), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("reset kafka: %w", err)
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := forget(ctx, cl, admin)
		if err == nil && left == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("reset kafka on %v: %d topics, logs and transactions are left: %w", b.Seeds(), left, errors.Join(ctx.Err(), err))
		}
	}
}

// Ready waits until the leader of every partition of the topics answers for it, which
// is a little later than it is named.
func Ready(ctx context.Context, cl *kgo.Client, topics ...string) error {
	ctx, cancel := context.WithTimeout(ctx, resetWait)
	defer cancel()
	admin := kadm.NewClient(cl)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ends, err := admin.ListEndOffsets(ctx, topics...)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends) == len(topics) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the leaders of %v: %w", topics, errors.Join(ctx.Err(), err))
		}
	}
}

// forget asks for the end of what it sees, and returns how much it saw. Transactions
// come first: the marker of a later end would be in a later topic of the same name.
func forget(ctx context.Context, cl *kgo.Client, admin *kadm.Client) (int, error) {
	open, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort"})
	if err != nil {
		return 0, fmt.Errorf("list transactions: %w", err)
	}
	for id := range open {
		init := kmsg.NewPtrInitProducerIDRequest()
		init.TransactionalID, init.TransactionTimeoutMillis = &id, 60_000
		init.ProducerID, init.ProducerEpoch = -1, -1
		if _, err := init.RequestWith(ctx, cl); err != nil {
			return len(open), fmt.Errorf("end the transaction of %s: %w", id, err)
		}
	}
	if len(open) > 0 {
		return len(open), nil
	}
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return 0, fmt.Errorf("list topics: %w", err)
	}
	if len(topics) > 0 {
		if _, err := admin.DeleteTopics(ctx, topics.Names()...); err != nil {
			return len(topics), fmt.Errorf("delete topics: %w", err)
		}
		return len(topics), nil
	}
	return logs(ctx, admin)
}

// logs counts the partitions that the broker still has logs of. It stops naming a topic
// before it gives up the logs, and answers from those for a later topic of the same name.
func logs(ctx context.Context, admin *kadm.Client) (left int, err error) {
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("list logs: %w", err)
	}
	dirs.Each(func(dir kadm.DescribedLogDir) {
		if dir.Err != nil {
			err = fmt.Errorf("list logs: %w", dir.Err)
		}
		dir.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			if !strings.HasPrefix(p.Topic, "__") {
				left++
			}
		})
	})
	return left, err
}

// Runner is a *testing.M.
type Runner interface{ Run() int }

// Main returns a Runner that runs m and then ends the brokers.
func (p *Pool) Main(m Runner) Runner { return pooledRun{p, m} }

type pooledRun struct {
	pool *Pool
	m    Runner
}

// Run runs the tests and returns their exit code, or 1 if a broker did not end.
func (r pooledRun) Run() int {
	code := r.m.Run()
	if err := r.pool.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func (p *Pool) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, l := range p.all {
		if l.b != nil && l.b.Pid() != 0 {
			errs = append(errs, l.b.Kill())
		}
	}
	if p.dir != "" {
		errs = append(errs, os.RemoveAll(p.dir))
	}
	p.all, p.dir = nil, ""
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the brokers of the pool: %w", err)
	}
	return nil
}
