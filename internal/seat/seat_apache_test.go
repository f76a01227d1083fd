//go:build unix

package seat_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/apache"
)

// TestOnApacheKafka runs against real brokers what runs against the embedded one:
// where they differ, Kafka is right.
func TestOnApacheKafka(t *testing.T) {
	apache.Require(t)
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b, err := apache.Start(ctx, apache.Config{Version: version, Dir: t.TempDir(), HeapMB: 512})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop() })
			for name, fn := range map[string]func(*cluster){"life": life, "take-over": takeOver, "foreign-transaction": foreignTransaction, "interleaved": interleaved, "beyond-limits": beyondLimits} {
				t.Run(name, func(t *testing.T) { fn(prepare(t, b.Seeds(), nil, name)) })
			}
			t.Run("broker-restart", func(t *testing.T) {
				brokerRestart(ctx, prepare(t, b.Seeds(), nil, "broker-restart"), b)
			})
		})
	}
}

// brokerRestart kills the broker with a write under way. What was answered stands,
// what was not is found out under its key, and the same term goes on.
func brokerRestart(ctx context.Context, c *cluster, b *apache.Broker) {
	t := c.t
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	first := in.mustWrite(1, "a")
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := in.write(2, "b")
		done <- err
	}()
	if err := b.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil && !errors.Is(err, seat.ErrOutcomeUnknown) && !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("write through a restart: %v", err)
	}
	eventually(t, "the true result", func() bool { a, err := in.write(2, "b"); return err == nil && a.At.Offset > first.At.Offset })
	if a := in.mustWrite(1, "a"); !a.Replayed || a.At != first.At {
		t.Errorf("replay %+v, first %+v", a, first)
	}
	in.mustWrite(3, "c")
	f.until(t, "all three", func() bool { return len(f.values(1)) == 3 })
	if got := fmt.Sprint(f.values(1)); got != "[a b c]" {
		t.Errorf("folded %s", got)
	}
}
