//go:build unix

package topics_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/testbench/apache"
)

// Apache Kafka takes all of the settings that keep internal topics short, for topics that
// are made and for those that are there.
func TestInternalTopicsAreShortOnApacheKafka(t *testing.T) {
	apache.Require(t)
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b, err := apache.Start(ctx, apache.Config{Version: version, Dir: t.TempDir(), HeapMB: 384})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop() })
			cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			compact := "compact"
			if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &compact}, control.TopicControl); err != nil {
				t.Fatal(err)
			}
			_, admin := openAt(t, b.Seeds())
			for _, topic := range []string{control.TopicControl, control.PositionsFrom("eu")} {
				has := configsOf(t, admin, topic)
				for key, want := range map[string]string{
					"segment.bytes": "1048576", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1", "max.compaction.lag.ms": "3600000", "delete.retention.ms": "600000",
				} {
					if has[key] != want {
						t.Errorf("%s of %s is %s, want %s", key, topic, has[key], want)
					}
				}
			}
		})
	}
}
