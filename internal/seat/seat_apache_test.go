//go:build unix

package seat_test

import (
	"context"
	"testing"
	"time"

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
			for name, fn := range map[string]func(*cluster){"life": life, "take-over": takeOver, "foreign-transaction": foreignTransaction} {
				t.Run(name, func(t *testing.T) { fn(prepare(t, b.Seeds(), nil, name)) })
			}
		})
	}
}
