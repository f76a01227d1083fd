package node

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/seats"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/router"
)

// assemble makes the parts and connects them; nothing runs yet.
func (n *Node) assemble(secret []byte) (err error) {
	names := make(map[event.RegionID]string)
	for _, r := range n.topology.Regions() {
		names[r.ID] = r.Name
	}
	n.control, err = control.New(control.Config{
		Region: n.own, Regions: names, Names: n.topology,
		Ahead: func(s event.Stamp) bool { return hlc.Bounds{}.Ahead(s, time.Now()) },
		Opts:  n.kafkaOpts("control"), Skipped: &n.skipped, Defects: &n.defects, Decoder: n.decoder, Secret: secret, Logger: n.log,
		Runs: func(from event.RegionID) control.SavedRuns { return newSavedRuns(n.store, from) },
	})
	if err != nil {
		return err
	}
	n.incidents = &incidents{control.NewIncidents(n.control, n.client, n.cfg.Idempotency.Window, n.log), n.topology}
	n.topics = topics.New(n.topicsConfig())
	n.settings = &settings{node: n, secret: secretOf(secret), accept: n.deps.AcceptSettings}
	if err := n.assembleSeats(); err != nil {
		return err
	}
	if err := n.assembleOwnership(); err != nil {
		return err
	}
	for _, l := range n.cfg.Outgoing() {
		if err := n.assembleLink(l); err != nil {
			return err
		}
	}
	n.retention = retention.New(retention.Config{
		Admin: kadm.NewClient(n.client), Server: n.seeds()[0], Window: n.cfg.Idempotency.Window, Every: n.deps.RetentionEvery,
		Topics: n.topics.Needed, Needs: n.unread, Lost: n.incidents.lostBeginning, Logger: n.log,
	})
	if err := registerMetrics(n.deps.Registry, "warnings", warningMetrics{n}); err != nil {
		return err
	}
	if err := registerMetrics(n.deps.Registry, "incidents", n.incidents); err != nil {
		return err
	}
	if err := registerMetrics(n.deps.Registry, "retention", n.retention); err != nil {
		return err
	}
	if err := registerMetrics(n.deps.Registry, "other regions", (*peers)(n)); err != nil {
		return err
	}
	if err := registerMetrics(n.deps.Registry, "the build", buildInfo()); err != nil {
		return err
	}
	return n.assembleGateway(secret)
}

// embeddedTransactions is how many transactions of seats an embedded Kafka gets at a time.
// It syncs one write after the other: more transactions would only wait there until they
// time out.
const embeddedTransactions = 16

// assembleSeats makes the seats.
func (n *Node) assembleSeats() (err error) {
	transactions := 0
	if n.cfg.Regions[n.cfg.Region].Kafka.Embedded != nil {
		transactions = embeddedTransactions
	}
	n.seats, err = seats.New(seats.Config{
		Region: n.cfg.Region, ID: n.own, Instance: n.cfg.Instance, Topology: n.topology, Policy: n.policy,
		Topics: n.topics, Control: n.control, Client: n.client, Opts: n.kafkaOpts, Store: n.store, Decoder: n.decoder, Guard: n.guard(),
		Admit: n.settings.admit, Incidents: n.incidents.keeper, Transactions: transactions,
		Window: n.cfg.Idempotency.Window, MaxRecord: int(n.cfg.HTTP.MaxRecord), WriteBytes: int64(n.cfg.HTTP.MaxInflight), Uncompressed: n.deps.Uncompressed, Defects: &n.defects, Skipped: &n.skipped, Logger: n.log,
	})
	if err != nil {
		return err
	}
	return registerMetrics(n.deps.Registry, "seats", n.seats)
}

// unread is what the instance still has to read of logs in its own region.
func (n *Node) unread() map[txn.TopicPartition][]retention.Need {
	out := make(map[txn.TopicPartition][]retention.Need)
	for p, x := range n.seats.Unread() {
		out[p] = append(out[p], x)
	}
	for _, l := range n.links {
		l.addUnread(out)
	}
	return out
}

func (n *Node) assembleLink(l LinkConfig) error {
	to, _ := n.topology.ID(l.To)
	var opts []kgo.Opt // for what the link writes itself; batches that it carries stay as they are
	if n.deps.Uncompressed {
		opts = append(opts, kgo.ProducerBatchCompression(kgo.NoCompression()))
	}
	link, err := replicate.New(replicate.Config{
		Name: l.Name,
		From: router.Region{Name: n.cfg.Region, ID: n.own}, To: router.Region{Name: l.To, ID: to},
		Source: append(n.clusters[n.cfg.Region].Opts("geogate-link-"+l.Name), opts...), Target: append(n.clusters[l.To].Opts("geogate-link-"+l.Name), opts...),
		Include: l.Include, Exclude: l.Exclude,
		Border: n.guard(), Restrictable: n.restrictable,
		Topology: n.topology,
		Decoder:  n.decoder,
		Ready:    n.control.Ready(), Barriers: n.control, Incarnation: n.control.Incarnation,
		Incarnations: func(topic string, partition int32) []control.Incarnation {
			return n.control.Incarnations(n.own, topic, partition)
		},
		Intervals: n.intervals, IntervalsChanged: n.intervalsChanged,
		Unit: func(topic string) string { return n.policy.Domain(topic).Unit(n.cfg.Region) },
		NativeOnly: func(topic string, id event.TopicID) bool {
			return n.policy.Domain(topic).Kind == conflict.Events && !n.control.HasBarrier(id)
		},
		Settings: n.settings.record, Incidents: n.incidents.keeper,
		Skipped: &n.skipped, Defects: &n.defects,
		Logger: n.log, Registerer: n.deps.Registry,
	})
	if err != nil {
		return fmt.Errorf("assemble link %s: %w", l.Name, err)
	}
	n.links = append(n.links, &linkRun{Link: link, name: l.Name})
	return nil
}

func (n *Node) assembleGateway(secret []byte) error {
	configz, err := strict.Marshal(n.cfg) // a configuration names files, it holds no secret
	if err != nil {
		return err
	}
	h := n.cfg.HTTP
	connections, reduced := dataConnections(n.cfg, openFilesLimit())
	if reduced != "" {
		n.log.Warn(reduced)
	}
	owner := &gatewayOwnership{n.cfg.Region, n.ownership, n.tables, n.policy, n.topology, n.seats}
	n.starting = newStarting(n.log, n.startPhases(owner.writable)...)
	n.server, err = gateway.New(gateway.Config{
		Region: n.own, Topology: n.topology,
		Data:   gateway.ListenerConfig{Listen: h.Listen, AllowedHosts: h.AllowedHosts, MaxConnections: connections},
		Manage: n.cfg.Management.Listener(), Pprof: n.cfg.Management.Pprof,
		MaxBody: int64(h.MaxBody), MaxRecord: int64(h.MaxRecord), MaxInflight: int64(h.MaxInflight), MaxReaders: h.MaxReaders,
		Secret: secret, Drain: n.cfg.Drain,
	}, gateway.Deps{
		Topics: &topicList{n.topics, n.links}, Seats: n.seats, Logs: n.control, Status: n,
		Ownership: owner, Incidents: n.incidents, Forgetter: n.seats, Started: n.starting.over,
		Probes: []gateway.Probe{
			{Name: "kafka", Ready: n.kafka.Ready},
			{Name: "seats", Ready: n.seats.Ready},
			{Name: "writes", Writes: true, Ready: owner.writable},
		},
		Kafka: n.kafkaOpts("reads"), Decoder: n.decoder, Configz: configz, Skipped: &n.skipped,
		Logger: n.log, Registry: n.deps.Registry,
	})
	return err
}
