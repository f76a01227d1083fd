package ownership_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/rounds"
)

// TestCommandsAtOnce: the gateways of two regions fence a third at the same time, and then
// one unfences it while the other fences it. Each is answered, and the unit is as the region
// is in the end.
func TestCommandsAtOnce(t *testing.T) {
	t.Parallel()
	const unit = "default/eu"
	nats := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
	cfg := register.Config{Dialer: nats.Dialer(), Replicas: 1}
	regions := []router.Region{{Name: "us", ID: 1}, {Name: "eu", ID: 2}, {Name: "ap", ID: 3}}
	clients := map[string]*ownership.Client{}
	for _, r := range regions {
		s := newSite(t, r.Name, r.ID)
		s.regions, s.lease = regions, shortLease()
		clients[r.Name], _ = s.start(cfg)
	}
	us, eu, ap := clients["us"], clients["eu"], clients["ap"]
	until(t, patience, "grant of eu", granted(eu, unit))
	known := func() bool { return us.Tokens().UnitNames() != nil && ap.Tokens().UnitNames() != nil }
	until(t, patience, "others that know the unit", known)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	atOnce := func(first, second ownership.Command) (results [2]ownership.Result) {
		var asked sync.WaitGroup
		for i, c := range []*ownership.Client{us, ap} {
			cmd := []ownership.Command{first, second}[i]
			asked.Go(func() { results[i] = ask(ctx, c, cmd) })
		}
		asked.Wait()
		return results
	}
	fence := ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "test"}
	unfence := ownership.Command{Verb: ownership.VerbUnfence, Region: "eu", Reason: "test"}
	began := time.Now()
	for _, r := range atOnce(fence, fence) {
		if r.Code != ownership.ResultDone || len(r.Units) == 0 || r.Units[0].Cut != ownership.CutEnd {
			t.Errorf("fence of both: %+v", r)
		}
	}
	t.Logf("both have fenced after %v", time.Since(began))
	if _, err := eu.Grant(unit); err == nil {
		t.Error("the unit is held after two fences")
	}
	for range rounds.Of(1, 3) {
		results := atOnce(fence, unfence)
		if c := results[1].Code; c != ownership.ResultDone {
			t.Errorf("unfence beside a fence: %+v", results[1])
		}
		if c := results[0].Code; c != ownership.ResultDone && c != ownership.ResultMoved {
			t.Errorf("fence beside an unfence: %+v", results[0])
		}
	}
	if r := ask(ctx, us, unfence); r.Code != ownership.ResultDone {
		t.Fatalf("unfence: %+v", r)
	}
	until(t, patience, "the unit to be held again", granted(eu, unit))
}
