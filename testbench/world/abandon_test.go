package world_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/world"
)

// TestNoRegisterWhereOneRules: an instance without nats does not start where a register
// rules, until the region has given it up; and one with it takes it up again.
func TestNoRegisterWhereOneRules(t *testing.T) {
	t.Parallel()
	var without atomic.Bool
	w := world.Start(t, world.Options{Register: true, Configure: func(c *node.Config) {
		if c.Region == "us" && without.Load() {
			c.NATS = node.Defaults().NATS
		}
	}})
	us := w.Region("us")
	us.AwaitReady()
	us.Put(flights, "a", `1`)
	w.Settle()
	restart := func(withoutRegister bool) error {
		w.Stop("us")
		without.Store(withoutRegister)
		return w.TryStartAgain("us")
	}
	refused := func(when string) {
		t.Helper()
		if err := restart(true); !errors.Is(err, node.ErrRefused) || !strings.Contains(err.Error(), "geogate register abandon") {
			t.Fatalf("%s an instance without nats starts with %v", when, err)
		}
	}
	refused("where a register rules")
	without.Store(false)
	w.StartAgain("us")
	us.AwaitReady()
	abandon := func(members map[string]string) {
		t.Helper()
		plan, err := us.RegisterAct(limit(t), ownership.RegisterAbandon, members)
		if err != nil || plan.Code != ownership.ResultDone || len(plan.Steps) != 3 {
			t.Fatalf("%+v, %v", plan, err)
		}
	}
	abandon(map[string]string{"dry_run": "true"})
	refused("after a dry run")
	without.Store(false)
	w.StartAgain("us")
	us.AwaitReady()
	abandon(map[string]string{"reason": "one region is enough"})
	if err := restart(true); err != nil {
		t.Fatalf("after the register was given up: %v", err)
	}
	us.AwaitReady()
	us.Put(flights, "a", `2`)
	if err := restart(false); err != nil {
		t.Fatalf("with the register again: %v", err)
	}
	us.AwaitReady()
	w.Eventually("the register to be in use again", func() error {
		if err := restart(true); err == nil {
			without.Store(false)
			w.Stop("us")
			w.StartAgain("us")
			us.AwaitReady()
			return errors.New("an instance without nats starts")
		}
		return nil
	})
}
