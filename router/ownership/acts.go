package ownership

import (
	"context"
	"fmt"
)

// What operators do to the register itself, beside fences. Each act makes a plan first;
// a dry run ends there.

// RegisterVerb is what is done.
type RegisterVerb string

// RegisterAbandon gives the register up in the region.
const RegisterAbandon RegisterVerb = "abandon"

// RegisterAct is what an operator asks for.
type RegisterAct struct {
	Verb   RegisterVerb
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
	default:
		plan.end(ResultPrecondition, "%q is nothing that can be done to the register", act.Verb)
	}
	c.log.Info("act on the ownership register", "verb", string(act.Verb), "reason", act.Reason, "dry_run", act.DryRun, "exit", int(plan.Code), "detail", plan.Detail)
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
