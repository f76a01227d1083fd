package node

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/strict"
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
	n.control, err = control.New(control.Config{Region: n.own, Regions: names, Opts: n.kafkaOpts("control"), Logger: n.log})
	if err != nil {
		return err
	}
	n.topics.registry, n.topics.follower, n.topics.own = follower{n.control}, n.control, n.own
	if err := n.assembleAuthority(); err != nil {
		return err
	}
	if err := n.assembleSeats(); err != nil {
		return err
	}
	for _, l := range n.cfg.Outgoing() {
		if err := n.assembleLink(l); err != nil {
			return err
		}
	}
	return n.assembleGateway(secret)
}

// follower answers what the registry says, reading it to its end for a "no".
type follower struct{ *control.Follower }

// Registered implements registry.
func (f follower) Registered(ctx context.Context, name string) (control.Topic, bool, error) {
	if x, ok := f.Topic(name); ok {
		return x, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	if err := f.Sync(ctx); err != nil {
		return control.Topic{}, false, fmt.Errorf("read registry: %w", err)
	}
	x, ok := f.Topic(name)
	return x, ok, nil
}

func (n *Node) assembleSeats() error {
	tail, err := seat.NewTail(seat.TailConfig{Opts: n.kafkaOpts("seats"), Control: n.control, Logger: n.log})
	if err != nil {
		return err
	}
	producer, err := seat.NewProducer(n.batchBytes(), n.deps.Uncompressed, n.kafkaOpts("writes")...)
	if err != nil {
		return err
	}
	ids := txn.NewTopics(n.client)
	n.seats = &seats{
		cfg: n.cfg, own: n.own, topology: n.topology, log: n.log, uncompressed: n.deps.Uncompressed,
		topics: n.topics, control: n.control, authority: n.authority, tables: n.tables, producer: producer, client: n.client, ids: ids,
		tail: tail, clock: hlc.NewClock(time.Now, hlc.Bounds{}), store: n.store,
		fetcher:  &fetcher{own: n.own, control: n.control, topics: ids},
		requests: make(chan *holding, openRequests), prepared: make(chan struct{}), held: make(map[place]*holding),
		present: make(map[string]control.TopicID),
	}
	return registerMetrics(n.deps.Registry, "seats", n.seats)
}

// batchBytes is the largest batch that seats send: one record of the largest
// size that the edge lets in, with its envelope.
func (n *Node) batchBytes() int32 { return int32(n.cfg.HTTP.MaxRecord) + recordRoom + batchRoom }

// batchRoom is what a batch adds to its only record.
const batchRoom = 256

func (n *Node) assembleLink(l LinkConfig) error {
	to, _ := n.topology.ID(l.To)
	var opts []kgo.Opt // for what the link writes itself; batches that it carries stay as they are
	if n.deps.Uncompressed {
		opts = append(opts, kgo.ProducerBatchCompression(kgo.NoCompression()))
	}
	link, err := replicate.New(replicate.Config{
		Name: l.Name,
		From: router.Region{Name: n.cfg.Region, ID: n.own}, To: router.Region{Name: l.To, ID: to},
		Source: n.seeds(), Target: n.cfg.Regions[l.To].Kafka.Seeds,
		Include: l.Include, Exclude: l.Exclude, SourceOptions: opts, TargetOptions: opts,
		Border: n.guard(), Restrictable: n.restrictable,
		Ready: n.control.Ready(), Barriers: n.control, Incarnation: n.control.Incarnation,
		Intervals: n.intervals, IntervalsChanged: n.intervalsChanged,
		Unit:   func(topic string) string { return n.policy.Domain(topic).Unit(n.cfg.Region) },
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
	n.server, err = gateway.New(gateway.Config{
		Region: n.own, Topology: n.topology,
		Listen: h.Listen, Manage: n.cfg.Management.Listen, Pprof: n.cfg.Management.Pprof,
		MaxBody: int64(h.MaxBody), MaxRecord: int64(h.MaxRecord), MaxInflight: int64(h.MaxInflight),
		Secret: secret, Drain: n.cfg.Drain,
	}, gateway.Deps{
		Topics: &topicList{n.topics, n.links}, Seats: n.seats, Logs: n.control, Status: n,
		Ownership: &gatewayOwnership{n.cfg.Region, n.authority, n.tables, n.policy, n.topology, n.seats},
		Probes: []gateway.Probe{
			{Name: "kafka", Ready: n.kafka.Ready},
			{Name: "seats", Ready: n.seats.Ready},
		},
		Kafka: n.kafkaOpts("reads"), Configz: configz,
		Logger: n.log, Registry: n.deps.Registry,
	})
	return err
}

// topicList is topics with what the links do with them.
type topicList struct {
	*topics
	links []*linkRun
}
