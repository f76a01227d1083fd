package ownership

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// What operators do to the register itself, beside fences. Each act makes a plan first;
// a dry run ends there.

// RegisterVerb is what is done.
type RegisterVerb string

// The verbs.
const (
	// RegisterAbandon gives the register up in the region.
	RegisterAbandon RegisterVerb = "abandon"
	// RegisterRepair mends a register that has lost what was seen of it, and starts and
	// cuts past the ends of logs.
	RegisterRepair RegisterVerb = "repair"
	// RegisterReplace puts another server in the place of a lost one.
	RegisterReplace RegisterVerb = "replace"
)

// RegisterAct is what an operator asks for.
type RegisterAct struct {
	Verb RegisterVerb
	// Server names the server that is replaced.
	Server string
	Reason string
	// DryRun gives the plan and does nothing.
	DryRun bool
}

// RegisterPlan is a plan, or what became of it.
type RegisterPlan struct {
	Code   ResultCode `json:"exit"`
	Detail string     `json:"detail"`
	DryRun bool       `json:"dry_run"`
	// Steps are what is done, or would be, in order; what is left to the operator
	// begins with "then".
	Steps []string `json:"steps"`
}

// Act plans an act and carries it out.
func (c *Client) Act(ctx context.Context, act RegisterAct) RegisterPlan {
	plan := RegisterPlan{DryRun: act.DryRun, Steps: []string{}}
	switch act.Verb {
	case RegisterAbandon:
		c.abandon(ctx, act, &plan)
	case RegisterRepair:
		r := c.Ask(ctx, Command{Verb: VerbRepair, Reason: act.Reason, DryRun: act.DryRun})
		plan.Steps = append(plan.Steps, r.Steps...)
		plan.end(r.Code, "%s", r.Detail)
	case RegisterReplace:
		c.replace(ctx, act, &plan)
	default:
		plan.end(ResultPrecondition, "%q is nothing that can be done to the register", act.Verb)
	}
	c.log.Info("act on the ownership register", "verb", string(act.Verb), "server", act.Server, "reason", act.Reason, "dry_run", act.DryRun, "exit", int(plan.Code), "detail", plan.Detail)
	return plan
}

func (p *RegisterPlan) step(format string, args ...any) {
	p.Steps = append(p.Steps, fmt.Sprintf(format, args...))
}

func (p *RegisterPlan) end(code ResultCode, format string, args ...any) {
	p.Code, p.Detail = code, fmt.Sprintf(format, args...)
}

// abandon gives the register up in this region.
func (c *Client) abandon(ctx context.Context, act RegisterAct, plan *RegisterPlan) {
	region := c.cfg.Region
	plan.step("write to the copy of the register in the Kafka of region %s that the region gives the register up", region)
	plan.step("then: start every instance of region %s again without nats", region)
	plan.step("then: do the same in every other region; until then these take what region %s writes for orphans", region)
	if act.DryRun {
		plan.end(ResultDone, "region %s can give the register up; nothing was done", region)
		return
	}
	if err := c.cfg.Mirror.Abandon(ctx, act.Reason); err != nil {
		plan.end(ResultUnreachable, "cannot say so in the Kafka of region %s; nothing was done: %v", region, err)
		return
	}
	plan.end(ResultDone, "region %s has given the register up: its instances may be started without nats, and those that run go on with it until they are", region)
}

const (
	// silentEnough is how long nothing was heard of a server that counts as gone.
	silentEnough = 10.0 // seconds
	// serversTime bounds one question for the servers.
	serversTime = 5 * time.Second
)

// replace takes a server that is lost with its directory out of the register, so that
// another one gets its place.
func (c *Client) replace(ctx context.Context, act RegisterAct, plan *RegisterPlan) {
	if c.cfg.Servers == nil {
		plan.step("then: take %s out with the system account of the cluster: nats server cluster peer-remove %s", act.Server, act.Server)
		plan.end(ResultPrecondition, "the register is on a NATS cluster of your own (nats.urls), which gateways do not administer")
		return
	}
	servers, err := c.servers(ctx)
	if err != nil {
		plan.end(ResultUnreachable, "the servers of the register cannot be asked: %v", err)
		return
	}
	if c.server(servers, act.Server) < 0 && !slices.ContainsFunc(servers, func(s Server) bool { return !s.runs() }) {
		// It was replaced before, and the answer lost; or there never was one of that name.
		plan.step("take nothing out: %s is none of the servers of the register, which are %s", act.Server, strings.Join(serverNames(servers), ", "))
		if act.DryRun {
			plan.end(ResultDone, "%s is none of the servers of the register, and all of them run; nothing was done", act.Server)
			return
		}
		c.awaitCopies(ctx, act.Server, plan)
		return
	}
	lost, spare, why := c.replacement(servers, act.Server)
	if why != "" {
		plan.end(ResultPrecondition, "%s", why)
		return
	}
	plan.step("take server %s (last heard of %.0f s ago) out of the register for good; it must never come back under that name", act.Server, lost.Silent)
	plan.step("let the servers that are left, %s, have a copy of the register each", strings.Join(spare, ", "))
	if act.DryRun {
		plan.end(ResultDone, "%s can be replaced; nothing was done", act.Server)
		return
	}
	if err := c.remove(ctx, act.Server); err != nil {
		plan.end(ResultUnreachable, "whether %s is taken out is not known, ask again: %v", act.Server, err)
		return
	}
	c.awaitCopies(ctx, act.Server, plan)
}

// awaitCopies waits until every server that the register should have has its copy, and
// a lost one is none of them.
func (c *Client) awaitCopies(ctx context.Context, lost string, plan *RegisterPlan) {
	for {
		all, reachable, err := c.reg.Voters(ctx)
		if servers, listed := c.servers(ctx); err == nil && listed == nil && all == c.cfg.Voters && reachable == all && c.server(servers, lost) < 0 {
			plan.end(ResultDone, "%s is none of the servers of the register any more, and all %d that are keep up: %s", lost, all, strings.Join(serverNames(servers), ", "))
			return
		}
		if sleep.For(ctx, openPause) != nil {
			plan.end(ResultInProgress, "%s is taken out, and a copy for another server is on its way; see geogate register status", lost)
			return
		}
	}
}

// servers asks once; a cluster that has no leader yet answers nothing.
func (c *Client) servers(ctx context.Context) ([]Server, error) {
	ctx, cancel := context.WithTimeout(ctx, serversTime)
	defer cancel()
	return c.cfg.Servers.List(ctx)
}

// remove takes a server out; its answer may be lost, and then it may be out all the same.
func (c *Client) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, serversTime)
	defer cancel()
	return c.cfg.Servers.Remove(ctx, name)
}

// serverNames are the names of servers, or what is known of them instead, in order.
func serverNames(servers []Server) (names []string) {
	for _, s := range servers {
		names = append(names, cmp.Or(s.Name, s.ID))
	}
	slices.Sort(names)
	return names
}

// server finds a server by its name, also one that nobody knows by it; -1: there is none.
func (c *Client) server(servers []Server, name string) int {
	return slices.IndexFunc(servers, func(s Server) bool { return s.Name == name || s.ID == c.cfg.ServerID(name) })
}

// replacement looks for a lost server, and for enough others; why says what is not so.
func (c *Client) replacement(servers []Server, name string) (lost Server, others []string, why string) {
	i := c.server(servers, name)
	if i < 0 {
		return lost, nil, fmt.Sprintf("%s is no server of the register; those are %s", name, strings.Join(serverNames(servers), ", "))
	}
	lost = servers[i]
	for j, s := range servers {
		if j != i && s.runs() {
			others = append(others, s.Name)
		}
	}
	slices.Sort(others)
	switch {
	case lost.runs():
		return lost, nil, fmt.Sprintf("%s runs; stop it first, and never start it again under that name", name)
	case !lost.Offline && lost.Silent < silentEnough:
		return lost, nil, fmt.Sprintf("%s was heard of %.0f s ago; stop it first, and never start it again under that name", name, lost.Silent)
	case len(others) < c.cfg.Voters:
		return lost, nil, fmt.Sprintf("of %d servers that are needed only %s run; start one in the place of %s, with an empty directory, another nats.embedded.name and the same secret and routes, and ask again",
			c.cfg.Voters, strings.Join(others, ", "), name)
	}
	return lost, others, ""
}

// RegisterReport says how the register and its servers are.
type RegisterReport struct {
	State     string `json:"state"` // ok, unreachable, regressed
	Regressed string `json:"regressed,omitempty"`
	// Revision is how far this instance has read it.
	Revision uint64 `json:"revision"`
	// Servers is null where the register is on a cluster of the operator's own, or no
	// leader answers.
	Servers []Server `json:"servers"`
	// Copied is what the region's own Kafka has of it; null where that does not answer.
	Copied *CopyReport `json:"copied"`
	// Rumours are what other instances say and the register has not shown.
	Rumours []string `json:"rumours"`
}

// CopyReport is what the region's own Kafka has of the register.
type CopyReport struct {
	Revision  uint64 `json:"revision"`
	Abandoned bool   `json:"abandoned"`
}

// Report asks how the register is.
func (c *Client) Report(ctx context.Context) RegisterReport {
	s, t := c.Status(), c.tokens.Load()
	r := RegisterReport{State: s.State, Regressed: s.Regressed, Revision: t.Revision(), Rumours: append([]string{}, t.Unconfirmed...)}
	if c.cfg.Servers != nil {
		if servers, err := c.servers(ctx); err == nil {
			r.Servers = servers
		}
	}
	if memory, err := c.recall(ctx); err == nil {
		r.Copied = &CopyReport{Revision: memory.Last, Abandoned: memory.Abandoned}
	}
	return r
}
