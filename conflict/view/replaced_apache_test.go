//go:build unix

package view_test

import (
	"context"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/apache"
)

// TestRefusalsOfApacheKafka: what derived topics refuse of real brokers, by settings that a
// foreign hand has given them, is replaced as beside the embedded one.
func TestRefusalsOfApacheKafka(t *testing.T) {
	apache.Require(t)
	for name, run := range map[string]func(*world){
		"two values":        (*world).twoLargeValues,
		"sizes of entities": (*world).refusedSizes,
		"sizes of events":   (*world).refusedSizes,
		"times": func(w *world) {
			w.set(merged, "message.timestamp.before.max.ms", 3_600_000)
			w.refusedTimes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b, err := apache.Start(ctx, apache.Config{Version: apache.Default, Dir: t.TempDir(), HeapMB: 384})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop() })
			cfg := entities
			if name == "sizes of events" || name == "times" {
				cfg = eventsTopic
			}
			run(newWorldAt(t, cfg, b.Seeds()))
		})
	}
}

// TestConfirmOnApacheKafka: a coordinator of a real broker, too, refuses the transaction of a
// view that another has replaced.
func TestConfirmOnApacheKafka(t *testing.T) {
	apache.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	b, err := apache.Start(ctx, apache.Config{Version: apache.Default, Dir: t.TempDir(), HeapMB: 384})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop() })
	newWorldAt(t, entities, b.Seeds()).confirms()
}
