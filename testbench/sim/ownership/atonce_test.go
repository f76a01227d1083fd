package ownership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/rounds"
)

// order is a command that an operator gives to an instance.
type order struct {
	at  string // instance
	cmd ownership.Command
}

// TestCommandsAtOnce: operators who do not know of each other give commands at gateways of
// several regions within a moment. Each is answered in the time that it would take alone and
// a little more, and what the register is left with is what one of them wanted.
func TestCommandsAtOnce(t *testing.T) {
	fence := func(at, what string) order { return order{at, commandFor(ownership.VerbFence, what)} }
	unfence := func(at, what string) order { return order{at, commandFor(ownership.VerbUnfence, what)} }
	for name, orders := range map[string][]order{
		"two regions fence a third":                   {fence("r1-0", "r0"), fence("r2-0", "r0")},
		"all gateways fence a region, its own, too":   {fence("r1-0", "r0"), fence("r2-0", "r0"), fence("r1-1", "r0"), fence("r0-0", "r0"), fence("r0-1", "r0")},
		"two regions fence a unit":                    {fence("r1-0", "a/r0"), fence("r2-0", "a/r0")},
		"one fences a region, another one its unit":   {fence("r1-0", "r0"), fence("r2-0", "a/r0")},
		"two regions fence each other":                {fence("r1-0", "r0"), fence("r0-0", "r1")},
		"one fences a region, another one unfences":   {fence("r1-0", "r0"), unfence("r2-0", "r0")},
		"one fences a unit, another one unfences it":  {fence("r1-0", "a/r0"), unfence("r2-0", "a/r0")},
		"a region is fenced, its unit unfenced":       {fence("r1-0", "r0"), unfence("r2-0", "a/r0")},
		"two fence a region, and two unfence it":      {fence("r1-0", "r0"), fence("r2-0", "r0"), unfence("r1-1", "r0"), unfence("r2-1", "r0")},
		"two fence and unfence, again and again":      {fence("r1-0", "r0"), unfence("r2-0", "r0"), fence("r1-0", "r0"), unfence("r2-0", "r0"), fence("r1-0", "r0")},
		"a unit is fenced twice and unfenced by both": {fence("r1-0", "a/r0"), fence("r2-0", "a/r0"), unfence("r1-0", "a/r0"), unfence("r2-0", "a/r0")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var longest time.Duration
			for seed := uint64(1); seed <= rounds.Of[uint64](4, 16); seed++ {
				for _, cutOff := range []bool{false, true} {
					took, why := atOnce(seed, orders, cutOff)
					if why != "" {
						t.Fatalf("seed %d, the region that is fenced cut off: %t: %s", seed, cutOff, why)
					}
					longest = max(longest, took)
				}
			}
			t.Logf("all answered after %v at most", longest)
		})
	}
}

func commandFor(verb ownership.Verb, what string) ownership.Command {
	cmd := ownership.Command{Verb: verb, Reason: "at once"}
	if strings.Contains(what, "/") {
		cmd.Unit = what
	} else {
		cmd.Region = what
	}
	return cmd
}

// atOnce gives the orders within a moment, and says how long it took to answer them all.
func atOnce(seed uint64, orders []order, cutOff bool) (took time.Duration, why string) {
	c := crashes{sim: newSim(seed, Options{})}
	c.calmed = true
	if seed%2 == 0 {
		c.reg.Inline, c.reg.Kept = -1, 1
	}
	c.regions("r0", "r1", "r2")
	for _, region := range []string{"r0", "r1", "r2"} {
		for i := range 2 {
			p := c.sim.instance(region, i)
			c.After(c.Between(0, time.Second), p.Boot)
		}
	}
	c.play(20 * time.Second)
	if seed%3 == 0 { // as over lines that are equally long, where nothing breaks a tie
		c.even = c.Between(time.Millisecond, 150*time.Millisecond)
	}
	c.calmed = false // so that clients write
	for _, p := range c.procs {
		c.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	c.play(c.Now() + 2*time.Second)
	c.calmed = true
	if cutOff {
		for _, name := range []string{"r0-0", "r0-1"} {
			c.instance(name).Cut(30 * time.Second)
		}
	}
	began := c.Now()
	refs := map[uint64]order{}
	for _, o := range orders {
		c.play(c.Now() + c.Between(0, 80*time.Millisecond+2*c.even))
		refs[c.ask(c.instance(o.at), o.cmd)] = o
	}
	for c.Now() < began+3*time.Minute && len(c.asked) > 0 && len(c.broken) == 0 {
		c.play(c.Now() + 100*time.Millisecond)
	}
	took = c.Now() - began
	for ref := range c.asked {
		return took, fmt.Sprintf("no answer to %+v", refs[ref])
	}
	if most := c.reg.Lease.Wait() + 30*time.Second + 15*time.Second; took > most {
		return took, fmt.Sprintf("answered after %v, more than %v", took, most)
	}
	c.play(c.Now() + 90*time.Second)
	if len(c.broken) > 0 {
		return took, fmt.Sprint(c.broken)
	}
	c.checkEnd()
	if len(c.broken) > 0 {
		return took, fmt.Sprint(c.broken)
	}
	return took, c.left()
}

// left says what is wrong with what the register is left with: a unit is owned, or it is
// fenced, and its last epoch cut, or it may be claimed by a region that is fenced.
func (c *crashes) left() string {
	for _, unit := range c.units() {
		u, _ := c.reg.Unit(unit)
		n := len(u.Epochs)
		region, _ := c.reg.Region(u.Last)
		switch {
		case u.Owner != "" && region.State == ownership.RegionUp:
		case u.Owner == "" && n > 0 && u.Epochs[n-1].Ended && (u.State == ownership.UnitFenced || region.State == ownership.RegionFenced):
		default:
			return fmt.Sprintf("region %s is %s, and %s is left as %s, owner %q, ended %t", u.Last, region.State, unit, u.State, u.Owner, n > 0 && u.Epochs[n-1].Ended)
		}
	}
	return ""
}
