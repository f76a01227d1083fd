// Package node assembles one instance of a region from the packages that do the
// work: it opens what they share, wires them, and gives the result as components
// that the program, or a test world, runs. Nobody wires twice.
//
// Parts meet in Kafka, not in memory: the gateway's seats write the log, links
// and folds read it. What node connects directly is the seat with its indexes and
// its view, and the HTTP edge with both.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/seats"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency/policyfile"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
)

const (
	// reachTimeout is how long a starting instance waits for its own cluster,
	// which may be starting too.
	reachTimeout = 30 * time.Second
)

// ErrSuperseded is returned by an instance's components when another instance of
// the region has taken its seats, or another process its name: it has stopped and must
// not take them back.
var ErrSuperseded = seat.ErrSuperseded

// ErrRefused is wrapped by errors that say that the instance must not run as the
// cluster and the configuration are; it has changed nothing that matters.
var ErrRefused = topics.ErrRefused

// ErrUnreachable is returned by New when the region's own Kafka has not answered
// in the time that New waits for it. Nothing was changed.
var ErrUnreachable = errors.New("the region's own Kafka does not answer")

// Node is one instance of a region.
type Node struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	topology *router.Topology
	policy   *ownership.Policy
	own      event.RegionID

	store     *badger.DB
	clusters  map[string]*connect.Cluster // by region: the own one, and the targets of links
	client    *kgo.Client                 // carries administration, transactions and what is not a write
	control   *control.Follower
	incidents *incidents
	topics    *topics.Catalogue
	retention *retention.Watch
	ownership *ownership.Client    // nil: there is no register
	tables    *ownership.Intervals // nil: there is no register
	seats     *seats.Seats
	links     []*linkRun
	server    *gateway.Server
	kafka     *watch
	disk      *disk
	residency *policyfile.Follower // nil without a residency policy
	settings  *settings
	starting  *starting
	skipped   warning.Skipped // by all readers of internal topics
	defects   defect.Log      // panics that were recovered
	decoder   *txn.Decoder    // of all that read batches
}

// New opens the store and the listeners, waits for the region's own Kafka, and
// makes the internal topics there. Other regions need not be reachable. After an error
// nothing stays open; after none, the components must be run, or Close called.
func New(cfg Config, deps Deps) (_ *Node, err error) {
	n := &Node{cfg: cfg, deps: deps, log: deps.Logger, disk: newDisk(cfg.DataDir)}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.topology, err = cfg.Topology(); err != nil {
		return nil, err
	}
	n.own, _ = n.topology.ID(cfg.Region)
	if n.policy, err = cfg.Ownership(); err != nil {
		return nil, err
	}
	if err = n.openResidency(); err != nil {
		return nil, err
	}
	secret, err := cfg.Secret()
	if err != nil {
		return nil, err
	}
	if err = n.openClusters(); err != nil {
		return nil, err
	}
	if err = n.disk.look(); err != nil {
		return nil, err
	}
	n.decoder = txn.NewDecoder(cfg.Limits.Batches())
	if n.store, err = openStore(cfg.DataDir, n.log); err != nil {
		return nil, err
	}
	if err := n.reach(); err != nil {
		return nil, err
	}
	if err := n.assemble(secret); err != nil {
		return nil, err
	}
	return n, nil
}

// reach connects to the own cluster and makes the internal topics.
func (n *Node) reach() (err error) {
	n.client, err = txn.NewClient(append(n.kafkaOpts("shared"), seat.ProducerOpts(seats.BatchBytes(int(n.cfg.HTTP.MaxRecord)), n.deps.Uncompressed)...)...)
	if err != nil {
		return fmt.Errorf("make kafka client: %w", err)
	}
	n.kafka = &watch{client: n.client, region: n.cfg.Region, cluster: n.clusters[n.cfg.Region]}
	within := cmp.Or(n.deps.ReachTimeout, reachTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for said := false; ; said = true {
		err := n.tryReach(ctx)
		if err == nil {
			return nil
		}
		switch refusal := topics.Refusal(err); {
		case refusal != nil:
			return refusal
		case ctx.Err() != nil:
			return fmt.Errorf("within %s: %w", within, n.refusedBy(err))
		case !said:
			n.log.Warn("the region's own Kafka cannot be used yet; trying again", "seeds", n.seeds(), "within", within.String(), "err", n.refusedBy(err))
		}
		if sleep.For(ctx, retryMost) != nil {
			return fmt.Errorf("within %s: %w", within, n.refusedBy(err))
		}
	}
}

// topicsConfig is for the catalogue of topics; control is nil before it can be read.
func (n *Node) topicsConfig() topics.Config {
	return topics.Config{
		Region: n.cfg.Region, ID: n.own, Register: n.cfg.NATS.Register(), Topology: n.topology, Policy: n.policy,
		Client: n.client, Control: n.control, Window: n.cfg.Idempotency.Window, Logger: n.log,
	}
}

// tryReach asks the own cluster once whether it is there, and makes the internal
// topics, for which a cluster that has just started may not be ready.
func (n *Node) tryReach(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	if err := n.client.Ping(ask); err != nil {
		return fmt.Errorf("%w: region %s at %v: %w", ErrUnreachable, n.cfg.Region, n.seeds(), err)
	}
	if !n.cfg.NATS.Register() {
		if err := n.noRegister(ctx); err != nil {
			return err
		}
	}
	return topics.New(n.topicsConfig()).PrepareInternal(ctx)
}

// noRegister refuses to run without a register where one rules: what is written without
// it would be orphans at once.
func (n *Node) noRegister(ctx context.Context) error {
	revision, used, err := mirror.InUse(ctx, n.client, n.decoder)
	switch {
	case err != nil:
		return fmt.Errorf("find out whether region %s has an ownership register: %w", n.cfg.Region, err)
	case used:
		return fmt.Errorf("%w: region %s has an ownership register (%s has it to revision %d) and this configuration has none: writes without it would be orphans at once. "+
			"Configure nats as before, or give the register up, in every region, with geogate register abandon, asked of a gateway that still has it",
			ErrRefused, n.cfg.Region, mirror.OwnershipTopic, revision)
	}
	return nil
}

// Close closes a node whose components are not run.
func (n *Node) Close() {
	if n.server != nil {
		n.server.Close()
	}
	n.closeShared()
}

// closeShared closes what the components share, after the last of them.
func (n *Node) closeShared() {
	if n.client != nil {
		n.client.Close()
	}
	if n.store != nil {
		if err := n.store.Close(); err != nil {
			n.log.Warn("cannot close store", "err", err)
		}
	}
}

// Components are the parts of the instance in the order in which they start; they
// stop in the reverse order. The first holds what the others share.
func (n *Node) Components() []Component {
	cs := []Component{
		{Name: "shared", Run: func(ctx context.Context) error {
			<-ctx.Done()
			n.closeShared()
			return nil
		}},
		{Name: "connections", Run: n.runConnections},
		{Name: "control", Run: n.control.Run},
		{Name: "incidents", Run: n.incidents.keeper.Run},
		{Name: "topics", Run: n.topics.Run},
		{Name: "kafka", Run: n.kafka.Run},
		{Name: "disk", Run: n.disk.Run},
	}
	if n.ownership != nil {
		// Before the seats, which ask it, and stopped after them: an instance says
		// that it holds nothing any more when it answers nothing any more.
		cs = append(cs, Component{Name: "ownership", Run: n.runOwnership})
	}
	cs = append(cs, Component{Name: "settings", Run: n.settings.Run}, Component{Name: "seats", Run: n.seats.Run})
	if n.residency != nil {
		cs = append(cs, Component{Name: "residency", Run: n.residency.Run})
	}
	for _, l := range n.links {
		cs = append(cs, Component{Name: "link " + l.name, Run: l.Run})
	}
	cs = append(cs, Component{Name: "retention", Run: n.retention.Run}, Component{Name: "needless runs", Run: newNeedlessRuns(n).Run})
	return append(cs, Component{Name: "start", Run: n.starting.Run}, Component{Name: "gateway", Run: n.server.Run})
}

// DataAddr and ManagementAddr are where the instance listens.
func (n *Node) DataAddr() string { return n.server.DataAddr() }

// ManagementAddr is where operators reach the instance.
func (n *Node) ManagementAddr() string { return n.server.ManageAddr() }

// registerMetrics registers a collector, telling what it is when that does not work.
func registerMetrics(r prometheus.Registerer, what string, c prometheus.Collector) error {
	if err := r.Register(c); err != nil {
		return fmt.Errorf("register metrics of %s: %w", what, err)
	}
	return nil
}
