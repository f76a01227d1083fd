//go:build unix

package retention_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
)

// TestApacheCompactionKeepsTheStart: compaction leaves where a log begins, also once nothing
// of its beginning is left. So an internal topic that begins above 0 has lost records.
func TestApacheCompactionKeepsTheStart(t *testing.T) {
	apache.Require(t)
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b, err := apache.Start(ctx, apache.Config{Version: version, Dir: t.TempDir(), HeapMB: 512, Properties: map[string]string{"log.cleaner.backoff.ms": "200"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop() })
			cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.DisableClientMetrics())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			admin := kadm.NewClient(cl)
			settings := map[string]*string{}
			for k, v := range map[string]string{"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"} {
				settings[k] = &v
			}
			if _, err := admin.CreateTopic(ctx, 1, 1, settings, "state"); err != nil {
				t.Fatal(err)
			}
			noise := rand.NewChaCha8([32]byte{})
			for i := range 60 { // three keys, a segment for every ten records
				value := make([]byte, 100_000)
				noise.Read(value)
				if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "state", Key: fmt.Appendf(nil, "k%d", i%3), Value: value}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			var first int64
			err = client.Poll(ctx, time.Second, func() error {
				all, err := client.ReadTopic(ctx, b.Seeds(), "state", true)
				if err == nil {
					if first = all[0].Offset; first < 20 {
						err = fmt.Errorf("%d records are left from %d", len(all), first)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			starts, err := admin.ListStartOffsets(ctx, "state")
			if err != nil {
				t.Fatal(err)
			}
			if s, _ := starts.Lookup("state", 0); s.Offset != 0 {
				t.Errorf("the log begins at %d, its first record is at %d", s.Offset, first)
			}
		})
	}
}
