package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
)

// crashes is a world without faults but one: whoever carries a command dies right
// after a write of the register that it has caused, and the command is given again.
type crashes struct {
	*sim
	cmd    ownership.Command
	gone   bool // the region that is fenced cannot be reached
	inline int  // how much of starts and cuts a record holds itself
	before []ownership.Command
	writes int // of the one that carries the command
	crash  int // dies after that many; 0 never
	died   bool
}

func (c *crashes) instance(name string) *proc {
	for _, p := range c.procs {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// run gives the state in which the register is left.
func (c *crashes) run(t *testing.T, second string) string {
	c.calmed = true
	c.regions("r0", "r1")
	for _, region := range []string{"r0", "r1"} {
		for i := range 2 {
			p := c.sim.instance(region, i)
			c.After(c.Between(0, time.Second), p.Boot)
		}
	}
	c.play(20 * time.Second)
	for _, cmd := range c.before {
		ref := c.ask(c.instance("r1-0"), cmd)
		for c.asked[ref] && len(c.broken) == 0 {
			c.play(c.Now() + time.Second)
		}
	}
	if c.gone {
		c.instance("r0-0").Cut(time.Hour)
		c.instance("r0-1").Cut(time.Hour)
	}
	carrier := c.instance("r1-0")
	c.reg.Crash = func(by *register.Instance, subject string) bool {
		if by != carrier.Instance || c.died || strings.HasPrefix(subject, "own.live.") || strings.HasPrefix(subject, "own.drained.") {
			return false
		}
		c.writes++
		c.died = c.writes == c.crash
		return c.died
	}
	ref := c.ask(carrier, c.cmd)
	for end := c.Now() + 2*time.Minute; c.asked[ref] && !c.died && c.Now() < end; {
		c.play(c.Now() + time.Second)
	}
	if c.died {
		c.play(c.Now() + 30*time.Second) // it is started again
		ref = c.ask(c.instance(second), c.cmd)
		for end := c.Now() + 2*time.Minute; c.asked[ref] && c.Now() < end; {
			c.play(c.Now() + time.Second)
		}
	}
	if c.asked[ref] {
		t.Errorf("%+v, died after write %d: no answer when asked again", c.cmd, c.crash)
	}
	c.play(c.Now() + time.Minute)
	if len(c.broken) > 0 {
		t.Errorf("%+v, died after write %d: %v", c.cmd, c.crash, c.broken)
	}
	return c.state()
}

func (c *crashes) state() string {
	text := ""
	for _, unit := range c.units() {
		u, _ := c.reg.Unit(unit)
		text += fmt.Sprintf("%s %s owner %q scope %q", unit, u.State, u.Owner, u.Scope)
		for _, t := range u.Epochs {
			text += fmt.Sprintf("; ended %v applied %v", t.Ended, t.Applied)
		}
		text += "\n"
	}
	return text
}

// TestPlanCrashes (I9): a command whose carrier dies after any of its writes and
// that is given again, to the same instance or to another, leaves the register as
// one that was carried out at once.
func TestPlanCrashes(t *testing.T) {
	fence := func(region, unit string) ownership.Command {
		return ownership.Command{Verb: ownership.VerbFence, Region: region, Unit: unit, Reason: "test"}
	}
	unfence := func(region, unit string) ownership.Command {
		return ownership.Command{Verb: ownership.VerbUnfence, Region: region, Unit: unit, Reason: "test"}
	}
	cases := []crashes{
		{cmd: fence("r0", "")},
		{cmd: fence("", "a/r0")},
		{cmd: fence("r0", ""), gone: true},
		{cmd: fence("", "a/r0"), gone: true},
		{cmd: unfence("r0", ""), before: []ownership.Command{fence("r0", "")}},
		{cmd: unfence("", "a/r0"), before: []ownership.Command{fence("", "a/r0")}},
		{cmd: fence("r0", ""), before: []ownership.Command{fence("", "a/r0")}},
	}
	for _, c := range slices.Clone(cases) { // and with starts and cuts outside of the records
		c.inline = -1
		cases = append(cases, c)
	}
	for _, base := range cases {
		whole := base
		whole.sim = newSim(1, Options{})
		whole.reg.Inline = base.inline
		want := whole.run(t, "r1-0")
		if whole.writes == 0 {
			t.Errorf("%+v writes nothing", base.cmd)
		}
		for k := 1; k <= whole.writes; k++ {
			for _, second := range []string{"r1-0", "r1-1"} {
				c := base
				c.sim, c.crash = newSim(uint64(k), Options{}), k
				c.reg.Inline = base.inline
				if got := c.run(t, second); got != want || !c.died {
					t.Errorf("%+v, died after write %d of %d (%v), asked again at %s:\n%sshould be\n%s", base.cmd, k, whole.writes, c.died, second, got, want)
				}
			}
		}
		t.Logf("%s %s%s: %d writes", base.cmd.Verb, base.cmd.Region, base.cmd.Unit, whole.writes)
	}
}
