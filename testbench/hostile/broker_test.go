//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
)

// TestApacheIsKilledAndBack: a broker that dies under load and comes back at once
// begins a new leader epoch and has lost nothing. No partition stays parked, and all that
// was answered arrives in the other region.
func TestApacheIsKilledAndBack(t *testing.T) {
	apache.Require(t)
	d := deploy(t, spec{pair: true, set: []string{"log.level=warn"}})
	var answered []client.Answer
	for round := range max(2, rounds(10)) {
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan []client.Answer)
		go func() {
			var all []client.Answer
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				a, err := d.us.Store(ctx, client.Write{Topic: "github", Key: fmt.Sprint(i % 16), Value: []byte("1"), Idem: fmt.Sprintf("%d-%d", round, i)})
				if err != nil {
					break
				}
				all = append(all, a)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
			written <- all
		}()
		arrived := func() {
			t.Helper()
			d.us.await(t, "a link without lag", func(ctx context.Context) error {
				s, err := d.us.status(ctx)
				if err != nil {
					return err
				}
				for _, l := range s.Links {
					if len(l.Parked) > 0 || l.LagRecords == nil || *l.LagRecords > 100 {
						return fmt.Errorf("link %+v", l)
					}
				}
				return nil
			})
		}
		arrived()
		if err := d.us.broker.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := d.us.broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.us.awaitReady(t)
		arrived()
		stop()
		answered = append(answered, <-written...)
	}
	d.eu.await(t, "all that was answered", func(ctx context.Context) error {
		all, err := d.eu.Records(ctx, "github", "origin:us")
		if err == nil && len(all) < len(answered) {
			err = fmt.Errorf("%d of %d", len(all), len(answered))
		}
		if err != nil {
			return err
		}
		dots := map[string]bool{}
		for _, r := range all {
			dots[r.Dot] = true
		}
		for _, a := range answered {
			if !dots[a.Dot] {
				return fmt.Errorf("%s is missing", a.Dot)
			}
		}
		return nil
	})
	if len(answered) == 0 {
		t.Fatal("nothing was written")
	}
	t.Logf("%d answered writes arrived", len(answered))
}
