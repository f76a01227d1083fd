package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seats"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/router/ownership/register"
)

// assembleOwnership connects the instance with the ownership register, if there is
// one.
func (n *Node) assembleOwnership() (err error) {
	c := n.cfg.NATS
	if !c.Register() {
		return nil
	}
	log := n.log.With("part", "ownership")
	n.ownership, err = ownership.NewClient(ownership.ClientConfig{
		Region: n.cfg.Region, ID: n.own, Regions: n.topology, Instance: n.cfg.Instance,
		Policy: n.policy, Lease: c.Lease, Join: n.deps.JoinEpochs, DataDir: n.cfg.DataDir, Voters: c.voters(),
		Dial: func(h ownership.Handlers) (ownership.Register, error) {
			return register.Dial(register.Config{
				Dialer: n.deps.NATS, URLs: c.URLs, Name: "geogate-" + n.cfg.Instance,
				Replicas: c.voters(), Timeout: c.Lease.Timeout, Logger: log,
			}, h)
		},
		Mirror: mirror.New(mirror.Config{
			Region: n.cfg.Region, Instance: n.cfg.Instance, Client: n.client, Topics: txn.NewTopics(n.client), Decoder: n.decoder,
			Skipped: &n.skipped, Logger: log,
		}),
		Servers: n.deps.Servers, ServerID: n.deps.ServerID,
		Logs: n.seats, Logger: log,
		Orphans: n.seats.OrphanCounts,
	})
	if err != nil {
		return err
	}
	alone := event.RegionID(0)
	if n.deps.OwnRegister {
		alone = n.own
	}
	n.tables = ownership.NewIntervals(n.ownership.Tokens, n.policy, n.topology, alone)
	n.seats.UseRegister(n.ownership, n.tables)
	return registerMetrics(n.deps.Registry, "ownership", n.ownership)
}

// runOwnership runs the instance's part in the register.
func (n *Node) runOwnership(ctx context.Context) error {
	err := n.ownership.Run(ctx)
	if errors.Is(err, ownership.ErrNameTaken) {
		return fmt.Errorf("%w: %w", ErrSuperseded, err)
	}
	return err
}

// gatewayOwnership implements gateway.Ownership.
type gatewayOwnership struct {
	region   string
	client   *ownership.Client    // nil: there is no register
	tables   *ownership.Intervals // with it
	policy   *ownership.Policy
	topology *router.Topology
	seats    *seats.Seats
}

// Check implements gateway.Ownership.
func (o *gatewayOwnership) Check(unit string) error {
	if o.client != nil {
		_, err := o.client.Grant(unit)
		return err
	}
	if home := o.policy.HomeOf(unit); home != o.region {
		id := ownership.NotOwnerError{Unit: unit, Owner: home, State: ownership.UnitActive}
		return &id
	}
	return nil
}

// writable is the readiness for writes: nil if any partition takes one now. An instance
// without partitions, of which none was used yet, is asked for the units of its region.
func (o *gatewayOwnership) writable(context.Context) error {
	exist, err := o.seats.Admits(o.Check)
	if !exist {
		for _, unit := range o.policy.Home(o.region) {
			if err = o.Check(unit); err == nil {
				return nil
			}
		}
	}
	if err == nil {
		return nil
	}
	if o.client != nil {
		if state := o.client.Status().State; state != "ok" {
			return fmt.Errorf("no partition takes a write, and the ownership register is %s: %w", state, err)
		}
	}
	return fmt.Errorf("no partition takes a write: %w", err)
}

// Units implements gateway.Ownership.
func (o *gatewayOwnership) Units() ([]gateway.UnitView, error) {
	if o.client == nil {
		return nil, nil
	}
	t := o.client.Tokens()
	if t.Revision() == 0 {
		return nil, gateway.ErrUnread
	}
	var out []gateway.UnitView
	for _, name := range t.UnitNames() {
		u := t.Units[name]
		out = append(out, gateway.UnitView{Revision: u.Revision, Record: u.Record})
	}
	return out, nil
}

// Intervals implements gateway.Ownership.
func (o *gatewayOwnership) Intervals(topic string, partition int32) *event.ValidityTable {
	return o.tables.Table(topic, partition)
}

// Orphans implements gateway.Ownership with what the views have met.
func (o *gatewayOwnership) Orphans(unit string, after gateway.OrphanPlace, fn func(gateway.OrphanPlace, *conflict.Orphaned) bool) error {
	return o.seats.Orphans(unit, after, fn)
}

// Command implements gateway.Ownership.
func (o *gatewayOwnership) Command(ctx context.Context, cmd ownership.Command) (ownership.Result, error) {
	if o.client == nil {
		return ownership.Result{}, gateway.ErrNoRegister
	}
	return o.client.Ask(ctx, cmd), nil
}

// Report implements gateway.Ownership.
func (o *gatewayOwnership) Report(ctx context.Context) (ownership.RegisterReport, error) {
	if o.client == nil {
		return ownership.RegisterReport{}, gateway.ErrNoRegister
	}
	return o.client.Report(ctx), nil
}

// Act implements gateway.Ownership.
func (o *gatewayOwnership) Act(ctx context.Context, act ownership.RegisterAct) (ownership.RegisterPlan, error) {
	if o.client == nil {
		return ownership.RegisterPlan{}, gateway.ErrNoRegister
	}
	return o.client.Act(ctx, act), nil
}

// registerStatus fills in what status says of ownership.
func (n *Node) registerStatus(st *gateway.Status) {
	own := n.cfg.Region
	if n.ownership == nil {
		for _, unit := range n.policy.Home(own) {
			st.Units = append(st.Units, gateway.UnitStatus{
				Unit: unit, Owner: &own, Epoch: uint64(event.FirstEpoch(n.own)), State: string(ownership.UnitActive),
			})
		}
		return
	}
	r := n.ownership.Status()
	st.Register = &gateway.Register{State: r.State, Voters: r.Voters, Reachable: r.Reachable}
	if r.Write > 0 {
		ms := float64(r.Write.Microseconds()) / 1000
		st.Register.WriteMS = &ms
	}
	t := n.ownership.Tokens()
	for i := range st.Regions {
		if k, ok := t.Regions[st.Regions[i].Name]; ok {
			live := k.Record.Live
			st.Regions[i].State, st.Regions[i].LiveEpoch = string(k.Record.State), &live
			if x := k.Record.Retired; x != nil {
				st.Regions[i].Retired = &gateway.RetiredStatus{Since: gateway.Time(time.UnixMilli(x.At)), By: x.By, Reason: x.Reason}
				if st.Regions[i].Name == own {
					st.Regions[i].Retired.Lacks = t.Lacking
				}
			}
		}
	}
	orphans := n.seats.OrphanCounts()
	for _, name := range t.UnitNames() {
		u := n.unitStatus(name, recordOf(t, name))
		u.Orphans = orphans[name]
		st.Units = append(st.Units, u)
	}
}

// registerWarnings is what an operator should know of the ownership register.
type registerWarnings Node

// Warnings implements warner.
func (n *registerWarnings) Warnings(out *warning.List) {
	if n.ownership == nil {
		return
	}
	const subject = "register"
	if r := n.ownership.Tokens().Regions[n.cfg.Region].Record; r.Retired != nil {
		out.Add(warning.RegionRetired, n.cfg.Region, "%s", r.Away(n.ownership.Tokens().Lacking))
	}
	for _, rumour := range n.ownership.Tokens().Unconfirmed {
		out.Add(warning.RegisterRumour, subject,
			"another instance says of the ownership register what that has not shown: %s; until it does, or denies it, nothing is written that this speaks against", rumour)
	}
	for _, why := range n.ownership.Tokens().TooLong {
		out.Add(warning.RegisterRecordLong, subject, "a unit cannot be claimed or fenced: %s", why)
	}
	for _, p := range n.ownership.Tokens().PastEnds {
		out.Add(warning.IntervalPastEnd, fmt.Sprintf("%s/%d", p.Topic, p.Partition),
			"the partition takes no writes, because the ownership register has an offset that is in no log: %s; see geogate register repair --dry-run", p)
	}
	switch r := n.ownership.Status(); {
	case r.State == "regressed":
		out.Add(warning.RegisterRegressed, subject, "the ownership register went backwards, and this instance takes no writes: %s; see geogate register repair --dry-run", r.Regressed)
	case r.State == "unreachable":
		out.Add(warning.RegisterUnreachable, subject, "the ownership register cannot be reached; when the lease has run out, writes are refused")
	case r.Reachable < r.Voters:
		out.Add(warning.RegisterDegraded, subject, "%d of %d servers of the ownership register are reachable", r.Reachable, r.Voters)
	}
}

func recordOf(t *ownership.Tokens, unit string) *ownership.UnitRecord {
	r := t.Units[unit].Record
	return &r
}

func (n *Node) unitStatus(name string, r *ownership.UnitRecord) gateway.UnitStatus {
	u := gateway.UnitStatus{Unit: name, Epoch: uint64(r.Epoch), State: string(r.State)}
	if r.Owner != "" {
		u.Owner = &r.Owner
	}
	if left, ok := n.ownership.LeaseLeft(name); ok {
		seconds := float64(left.Round(100*time.Millisecond).Milliseconds()) / 1000
		u.LeaseSeconds = &seconds
	}
	return u
}

// intervals is the newest table of a topic's partition for the links: nil without
// a register. It may give another table once intervalsChanged was closed.
func (n *Node) intervals(topic string, partition int32) *event.ValidityTable {
	return n.tables.Table(topic, partition)
}

// intervalsChanged is closed when intervals may give a newer table next; nil, which
// never is, without a register.
func (n *Node) intervalsChanged() <-chan struct{} {
	if n.ownership == nil {
		return nil
	}
	return n.ownership.Changed()
}
