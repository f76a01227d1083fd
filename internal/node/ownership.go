package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/router/ownership/register"
)

// assembleAuthority connects the instance with the ownership register, if there is
// one.
func (n *Node) assembleAuthority() (err error) {
	c := n.cfg.NATS
	if !c.Register() {
		return nil
	}
	log := n.log.With("part", "authority")
	n.authority, err = ownership.NewClient(ownership.ClientConfig{
		Region: n.cfg.Region, ID: n.own, Regions: n.topology, Instance: n.cfg.Instance,
		Policy: n.policy, Lease: c.Lease, DataDir: n.cfg.DataDir, Voters: c.voters(),
		Dial: func(h ownership.Handlers) (ownership.Register, error) {
			return register.Dial(register.Config{
				Dialer: n.deps.NATS, URLs: c.URLs, Name: "geogate-" + n.cfg.Instance,
				Replicas: c.voters(), Timeout: c.Lease.Timeout, Logger: log,
			}, h)
		},
		Mirror: mirror.New(mirror.Config{
			Region: n.cfg.Region, Opts: n.kafkaOpts("witness"), Client: n.client, Topics: txn.NewTopics(n.client), Logger: log,
		}),
		Logs: &unitLogs{n}, Logger: log,
		Orphans: func() map[string]uint64 { return n.seats.orphans() },
	})
	if err != nil {
		return err
	}
	alone := event.RegionID(0)
	if n.deps.OwnRegister {
		alone = n.own
	}
	n.tables = ownership.NewIntervals(n.authority.Tokens, n.policy, n.topology, alone)
	return registerMetrics(n.deps.Registry, "ownership", n.authority)
}

// unitLogs implements ownership.UnitLogs with the instance's topics and seats.
type unitLogs struct{ n *Node }

// topicsOf are the local topics of a unit's domain, freshly listed.
func (u *unitLogs) topicsOf(ctx context.Context, unit string) ([]gateway.Topic, error) {
	if err := u.n.topics.refresh(ctx); err != nil {
		return nil, err
	}
	all, err := u.n.topics.locals(ctx)
	if err != nil {
		return nil, err
	}
	domain, _ := ownership.UnitDomain(unit)
	var out []gateway.Topic
	for _, t := range all {
		if t.Domain.Name == domain {
			out = append(out, t)
		}
	}
	return out, nil
}

// Ends implements ownership.UnitLogs.
func (u *unitLogs) Ends(ctx context.Context, unit string) ([]ownership.Extent, error) {
	topics, err := u.topicsOf(ctx, unit)
	if err != nil || len(topics) == 0 {
		return nil, err
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	ends, err := kadm.NewClient(u.n.client).ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list where the logs of %s end: %w", unit, err)
	}
	var out extents
	for _, t := range topics {
		for p := range t.Partitions {
			e, ok := ends.Lookup(t.Name, p)
			if !ok {
				return nil, fmt.Errorf("list where the logs of %s end: no answer for %s/%d", unit, t.Name, p)
			}
			out.set(t.Name, u.n.control.Incarnation(t.Name, t.ID, p), p, e.Offset)
		}
	}
	return out, nil
}

// Settle implements ownership.UnitLogs.
func (u *unitLogs) Settle(ctx context.Context, unit string) error {
	domain, _ := ownership.UnitDomain(unit)
	for _, h := range u.n.seats.list() {
		if u.n.policy.Domain(h.topic).Name == domain {
			h.seat.Settle()
		}
	}
	return ctx.Err()
}

// Applied implements ownership.UnitLogs: the most of this region's committed vectors,
// of what has arrived where nothing folds, and of what other regions have
// published. A topic of which no other region is given anything is left out: that
// nobody has applied it says nothing.
func (u *unitLogs) Applied(ctx context.Context, unit, region string) ([]ownership.Extent, error) {
	topics, err := u.topicsOf(ctx, unit)
	if err != nil {
		return nil, err
	}
	origin, ok := u.n.topology.ID(region)
	if !ok {
		return nil, fmt.Errorf("region %s is not one of the deployment", region)
	}
	var out extents
	for _, t := range topics {
		for p := range t.Partitions {
			if !u.given(t, p, origin) {
				continue
			}
			at := u.appliedAt(t, p, origin)
			out.set(t.Name, at.Incarnation, p, at.Next)
		}
	}
	return out, nil
}

// given tells whether any region is given records of an origin's topic: the
// residency policy lets at least some of them leave, and there is a remote topic
// here, or another region has published that it has applied some.
func (u *unitLogs) given(t gateway.Topic, p int32, origin event.RegionID) bool {
	for _, r := range u.n.topology.Others(u.n.topology.Name(origin)) {
		if g := u.n.guard(); g != nil {
			rule := g.Rule(t.Name, u.n.topology.Name(origin), r.Name)
			if rule.Effect == residency.Deny && rule.Rule != residency.StoppedRule {
				continue
			}
		}
		if r.ID == u.n.own {
			if _, made := u.n.control.Remote(origin, t.Name); made {
				return true
			}
		} else if told, ok := u.n.control.Progress(r.ID, t.Name, p); ok && told.Promised[origin] != (event.Point{}) {
			return true
		}
	}
	return false
}

func (u *unitLogs) appliedAt(t gateway.Topic, p int32, origin event.RegionID) event.Point {
	var most event.Point
	take := func(at event.Point) {
		if most.Compare(at) < 0 {
			most = at
		}
	}
	if h := u.n.seats.find(place{t.Name, p}); h != nil {
		v, _ := h.view.Committed()
		take(v[origin])
	} else if remote, ok := u.n.control.Remote(origin, t.Name); ok {
		if c, ok := u.n.control.Covered(origin, remote.ID, p); ok {
			take(c.Source)
		}
	}
	for _, r := range u.n.topology.Regions() {
		if r.ID == origin {
			continue
		}
		if progress, ok := u.n.control.Progress(r.ID, t.Name, p); ok {
			take(progress.Promised[origin])
		}
	}
	return most
}

// extents collects offsets by topic and incarnation.
type extents []ownership.Extent

func (e *extents) set(topic string, incarnation uint16, partition int32, offset int64) {
	for i := range *e {
		if x := &(*e)[i]; x.Topic == topic && x.Incarnation == incarnation {
			x.Offsets = grow(x.Offsets, partition)
			x.Offsets[partition] = offset
			return
		}
	}
	offsets := grow(nil, partition)
	offsets[partition] = offset
	*e = append(*e, ownership.Extent{Topic: topic, Incarnation: incarnation, Offsets: offsets})
}

func grow(offsets []int64, partition int32) []int64 {
	for int(partition) >= len(offsets) {
		offsets = append(offsets, -1)
	}
	return offsets
}

// seatAuthority implements seat.WritePermit for one partition.
type seatAuthority struct {
	authority *ownership.Client
	tables    *ownership.Intervals
	unit      string
	topic     string
	partition int32

	last atomic.Pointer[tokensTable]

	mu       sync.Mutex
	revision uint64 // of the unit's record that reach was made from
	reach    *event.Vector
}

// tokensTable is what follows from tokens for one partition.
type tokensTable struct {
	tokens *ownership.Tokens
	table  *event.ValidityTable
}

// seatAuthority gives the authority of a seat; nil where there is no register.
func (s *seats) seatAuthority(topic gateway.Topic, partition int32) seat.WritePermit {
	if s.authority == nil {
		return nil
	}
	return &seatAuthority{
		authority: s.authority, tables: s.tables,
		unit: topic.Domain.Unit(s.cfg.Region), topic: topic.Name, partition: partition,
	}
}

// Grant implements seat.WritePermit.
func (a *seatAuthority) Grant() (seat.Grant, error) {
	g, err := a.authority.Grant(a.unit)
	if err != nil {
		return seat.Grant{}, err
	}
	if t := a.authority.Tokens(); t.Outdates(a.Intervals(), a.unit) {
		return seat.Grant{}, fmt.Errorf("%w: the ownership register's watch has not come to revision %d", seat.ErrNotReady, t.Units[a.unit].Revision)
	}
	return seat.Grant{Epoch: g.Epoch, Live: g.Live, Reach: a.reached()}, nil
}

// Holds implements seat.WritePermit.
func (a *seatAuthority) Holds(g seat.Grant) bool {
	return a.authority.Holds(a.unit, ownership.Grant{Epoch: g.Epoch, Live: g.Live})
}

// Intervals implements seat.WritePermit. It is asked for every write, so what follows
// from the same tokens is not found out twice.
func (a *seatAuthority) Intervals() *event.ValidityTable {
	t := a.authority.Tokens()
	if last := a.last.Load(); last != nil && last.tokens == t {
		return last.table
	}
	table := a.tables.From(t, a.topic, a.partition)
	a.last.Store(&tokensTable{t, table})
	return table
}

// Changed implements seat.WritePermit.
func (a *seatAuthority) Changed() <-chan struct{} { return a.authority.Changed() }

// reached is how far logs must be indexed: the own one to where the epoch began,
// those of earlier owners to their cuts.
func (a *seatAuthority) reached() *event.Vector {
	u := a.authority.Tokens().Units[a.unit]
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.revision == u.Revision {
		return a.reach
	}
	v := a.tables.Reach(&u.Record, a.topic, a.partition)
	a.revision, a.reach = u.Revision, &v
	return a.reach
}

// gatewayOwnership implements gateway.Ownership.
type gatewayOwnership struct {
	region    string
	authority *ownership.Client    // nil: there is no register
	tables    *ownership.Intervals // with it
	policy    *ownership.Policy
	topology  *router.Topology
	seats     *seats
}

// Check implements gateway.Ownership.
func (o *gatewayOwnership) Check(unit string) error {
	if o.authority != nil {
		_, err := o.authority.Grant(unit)
		return err
	}
	if home := o.policy.HomeOf(unit); home != o.region {
		id := ownership.NotOwnerError{Unit: unit, Owner: home, State: ownership.UnitActive}
		return &id
	}
	return nil
}

// Units implements gateway.Ownership.
func (o *gatewayOwnership) Units() ([]gateway.UnitView, error) {
	if o.authority == nil {
		return nil, nil
	}
	t := o.authority.Tokens()
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
	more := true
	for _, h := range o.seats.list() {
		domain := o.policy.Domain(h.topic)
		if name, _ := ownership.UnitDomain(unit); !more || domain.Name != name {
			continue
		}
		err := h.view.Orphans(func(x conflict.Orphaned) bool {
			at := gateway.OrphanPlace{Topic: h.topic, At: x.At}
			if at.Compare(after) > 0 && domain.Unit(o.topology.Name(x.At.Region)) == unit {
				more = fn(at, &x)
			}
			return more
		})
		if err != nil {
			return fmt.Errorf("list orphans of %s/%d: %w", h.topic, h.partition, err)
		}
	}
	return nil
}

// Command implements gateway.Ownership.
func (o *gatewayOwnership) Command(ctx context.Context, cmd ownership.Command) (ownership.Result, error) {
	if o.authority == nil {
		return ownership.Result{}, gateway.ErrNoRegister
	}
	return o.authority.Ask(ctx, cmd), nil
}

// registerStatus fills in what status says of ownership.
func (n *Node) registerStatus(st *gateway.Status) {
	own := n.cfg.Region
	if n.authority == nil {
		for _, unit := range n.policy.Home(own) {
			st.Units = append(st.Units, gateway.UnitStatus{
				Unit: unit, Owner: &own, Epoch: uint64(event.FirstEpoch(n.own)), State: string(ownership.UnitActive),
			})
		}
		return
	}
	r := n.authority.Status()
	st.Register = &gateway.Register{State: r.State, Voters: r.Voters, Reachable: r.Reachable}
	if r.Write > 0 {
		ms := float64(r.Write.Microseconds()) / 1000
		st.Register.WriteMS = &ms
	}
	switch r.State {
	case "regressed":
		st.Warnings = append(st.Warnings, "the ownership register went backwards, and this instance takes no writes: "+r.Regressed)
	case "unreachable":
		st.Warnings = append(st.Warnings, "the ownership register cannot be reached; when the lease has run out, writes are refused")
	default:
		if r.Reachable < r.Voters {
			st.Warnings = append(st.Warnings, fmt.Sprintf("%d of %d servers of the ownership register are reachable", r.Reachable, r.Voters))
		}
	}
	t := n.authority.Tokens()
	for i := range st.Regions {
		if k, ok := t.Regions[st.Regions[i].Name]; ok {
			live := k.Record.Live
			st.Regions[i].State, st.Regions[i].LiveEpoch = string(k.Record.State), &live
		}
	}
	orphans := n.seats.orphans()
	for _, name := range t.UnitNames() {
		u := n.unitStatus(name, recordOf(t, name))
		u.Orphans = orphans[name]
		st.Units = append(st.Units, u)
	}
}

// orphans counts what the region's views have met, by unit.
func (s *seats) orphans() map[string]uint64 {
	out := make(map[string]uint64)
	for _, h := range s.list() {
		domain, met := s.topics.policy.Domain(h.topic), h.view.Status().Orphans
		for _, r := range s.topology.Regions() {
			out[domain.Unit(r.Name)] += uint64(met[r.ID])
		}
	}
	return out
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
	if left, ok := n.authority.LeaseLeft(name); ok {
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
	if n.authority == nil {
		return nil
	}
	return n.authority.Changed()
}
