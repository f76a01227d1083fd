package replicate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

// BarrierChecker says of a commit marker at the source whether it is a seat's barrier;
// *control.Follower implements it. An error means that it is not known yet.
type BarrierChecker interface {
	IsBarrier(ctx context.Context, topic event.TopicID, partition int32, producerID int64, producerEpoch int16) (bool, error)
	// Decide returns once IsBarrier can tell about all markers from memory.
	Decide(ctx context.Context, markers []control.Marker) error
}

// Incidents keeps what was deleted before it was read; *control.Incidents implements it.
type Incidents interface {
	Report(x incident.Incident)
	// Missing is what of a stretch of a log nobody has accepted as lost.
	Missing(p incident.Place, until int64) (from, to int64)
}

// Config describes a link.
type Config struct {
	Name     string // for people
	From, To router.Region

	// Source and Target are the options of clients that reach the clusters: seeds, TLS, SASL,
	// a dialler.
	Source, Target []kgo.Opt

	Include, Exclude []string // topic patterns; see router.NewMatcher

	// Shards is the number of transactional producers, 1 to 32. 0 takes what the
	// link ran with last, DefaultShards at first; another number than that moves
	// the link to a new generation.
	Shards int
	// FetchBytes bounds what all shards together fetch at once; they keep about
	// three times that. Default 8 MiB.
	FetchBytes int
	// DiscoverEvery is how often topics are looked for, less often where there are thousands
	// of partitions (txn.LookEvery); it is done sooner after some
	// were found. Default 3 s.
	DiscoverEvery time.Duration

	// Topology checks names, those in the registries' records and those of topics
	// without one; nil: nobody does.
	Topology *router.Topology

	// Ready, if not nil, is awaited before topics are looked for: Incarnation has
	// its answers once it is closed.
	Ready <-chan struct{}
	// Barriers may be nil where no seat writes: then no marker is a barrier.
	Barriers BarrierChecker
	// Incarnation is the number of a source partition's incarnation; nil means
	// that every partition has its first, 0.
	Incarnation func(topic string, id event.TopicID, partition int32) uint16

	// Incarnations, if not nil, lists what is recorded of the incarnations of a source
	// partition. The target is told of them once more when a topic is first copied:
	// while it was not, the records stayed.
	Incarnations func(topic string, partition int32) []control.Incarnation

	// Border, if not nil, says what may leave; nothing else does. The link writes
	// what it decided to _geogate.audit of its source.
	Border *residency.Guard
	// Restrictable may give a reason why records of a topic cannot be denied one
	// by one; such a topic is not carried under rules that look at records.
	Restrictable func(topic string) error

	// Intervals, if not nil, says what the ownership register knows of the logs of a
	// topic's partition; nil for one that is in no unit. What lies past a cut of the
	// source's own log is not sent. Revisions do not fall.
	Intervals func(topic string, partition int32) *event.ValidityTable
	// IntervalsChanged gives a channel that is closed when Intervals may say more
	// than it did before the call. It goes with Intervals.
	IntervalsChanged func() <-chan struct{}
	// Unit, if not nil, names the unit of ownership that a topic of the source
	// belongs to, for people.
	Unit func(topic string) string

	// Decoder opens batches that do not pass unopened; nil: one with default
	// limits.
	Decoder *txn.Decoder
	// NativeOnly tells whether a topic of the source may be copied into a compacted one: it
	// has no entities, and no gateway writes to it. Nil: none may.
	NativeOnly func(topic string, id event.TopicID) bool

	// Settings, if not nil, gives the value of the control record of settings that the own
	// instance writes: the target is told of no other.
	Settings func() []byte

	// Incidents, if not nil, keeps what the source deleted before it was copied; the link
	// goes on without what is accepted there.
	Incidents Incidents

	// Skipped remembers records of internal topics that cannot be used, Defects panics;
	// nil: nobody does.
	Skipped *warning.Skipped
	Defects *defect.Log

	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil: no metrics
}

// Validate returns an error that wraps ErrConfig for what can be seen without a
// network.
func (c Config) Validate() error {
	var bad []error
	addProblem := func(format string, args ...any) {
		bad = append(bad, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	for _, r := range []router.Region{c.From, c.To} {
		if err := router.CheckAlias(r.Name); err != nil || !r.ID.Valid() {
			addProblem("region %q with id %d", r.Name, r.ID)
		}
	}
	if c.From == c.To {
		addProblem("from and to are both %q; a link needs two regions", c.From.Name)
	}
	if len(c.Source) == 0 || len(c.Target) == 0 {
		addProblem("nothing says how to reach the source or the target cluster")
	}
	if c.Shards < 0 || c.Shards > maxShards {
		addProblem("%d shards, want 1 to %d", c.Shards, maxShards)
	}
	if (c.Intervals == nil) != (c.IntervalsChanged == nil) {
		addProblem("Intervals and IntervalsChanged must be set together")
	}
	if _, err := router.NewMatcher(c.Include, c.Exclude); err != nil {
		bad = append(bad, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	return errors.Join(bad...)
}

const (
	defaultFetchBytes    = 8 << 20
	defaultDiscoverEvery = 3 * time.Second
)

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, c.From.Name+"-"+c.To.Name)
	c.FetchBytes = cmp.Or(c.FetchBytes, defaultFetchBytes)
	c.DiscoverEvery = cmp.Or(c.DiscoverEvery, defaultDiscoverEvery)
	if c.Decoder == nil {
		c.Decoder = txn.NewDecoder(txn.Limits{})
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = c.Logger.With("link", c.Name)
	return c
}

// client makes a client for one end of the link.
func (c *Config) client(reach []kgo.Opt) (*kgo.Client, error) {
	cl, err := txn.NewClient(append([]kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.RetryTimeout(10 * time.Second),
		kgo.ProducerLinger(0), // what it writes alone, a transaction waits for
		txn.WatchBreaks(),     // the other region's embedded Kafka may start again meanwhile
	}, reach...)...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return cl, nil
}

func (c *Config) source() (*kgo.Client, error) { return c.client(c.Source) }
func (c *Config) target() (*kgo.Client, error) { return c.client(c.Target) }

func (c *Config) positions() string { return control.PositionsFrom(c.From.Name) }
func (c *Config) runs() string      { return control.RunsFrom(c.From.Name) }

func (c *Config) coreConfig(g Generation, shard int) CoreConfig {
	return CoreConfig{
		Generation: g, Shard: shard, Positions: c.positions(), Runs: c.runs(), Timeout: txn.DefaultTimeout, Decoder: c.Decoder,
		Origin: c.From.ID, Target: c.To.ID, HasRegister: c.Intervals != nil,
	}
}

// skipper gives what passes over a record of an internal topic at the target.
func (c *Config) skipper(log *slog.Logger) func(at topicPartition, offset int64, err error) {
	return func(at topicPartition, offset int64, err error) {
		if c.Skipped.Add(c.To.Name+" "+at.Topic, at.Partition, offset, err) {
			log.Error("record of an internal topic cannot be used and is skipped", "topic", at.Topic, "partition", at.Partition, "offset", offset, "err", err)
		}
	}
}

// reportDefect remembers and logs a panic, and tells whether err is one.
func (c *Config) reportDefect(log *slog.Logger, subject string, err error, effect string) bool {
	var d *defect.Error
	if !errors.As(err, &d) {
		return false
	}
	c.Defects.Add(subject, d, effect)
	log.Error("the program has a defect", "subject", subject, "panic", d.Value, "at", d.Place, "effect", effect, "stack", d.Stack)
	return true
}
