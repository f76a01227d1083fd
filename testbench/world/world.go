package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/cutproxy"
)

const (
	// patience is how long a test waits for what must come about. It is far more
	// than anything takes, so that a loaded machine fails no test.
	patience = 2 * time.Minute
	// pollEvery is the distance between two questions about it.
	pollEvery = 20 * time.Millisecond
	// readyWithin bounds the wait for an instance that was started.
	readyWithin = 2 * time.Minute
)

// names are the regions of a world, in the order of their ids from 1 on.
var names = []string{"us", "eu", "ap"}

// DefaultOwnership declares an entity topic of each policy and a topic of events.
const DefaultOwnership = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 2}
  - {name: notes, match: ["notes"], kind: entity, mode: multi_writer, policy: keep, partitions: 1}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 2}
`

// Options are what a world is made of; zero members take the defaults named.
type Options struct {
	Regions   int    // 1 to 3; default 2: us and eu
	Ownership string // the policy of all regions; default DefaultOwnership
	// Topics are made in every region before its first instance starts.
	Topics []Topic
	// Register gives all regions one ownership register; without it none can be
	// fenced.
	Register bool
	// Unlinked leaves the links out of the configuration.
	Unlinked bool
	// Configure changes the configuration of an instance before it starts.
	Configure func(*node.Config)
	// Kafka, if not nil, gives the brokers of a region; else it is an embedded one.
	Kafka func(region string) (seeds []string)
	// RetentionEvery is how often instances look whether logs are kept for long enough.
	RetentionEvery time.Duration
	// JoinEpochs is how many ended epochs of a region a unit's record has before they are
	// joined; 0 is 8.
	JoinEpochs int
}

// Topic is a topic that exists before geogate does.
type Topic struct {
	Name       string
	Partitions int32
	Region     string // only there; "" is everywhere
}

// World is a running deployment. Its methods may be called from the test's own
// goroutine alone, except where they say otherwise.
type World struct {
	t       testing.TB
	options Options
	dir     string
	policy  string // file
	log     *journal
	http    *http.Client
	regions []*Region

	register *embed.NATSServer // nil: there is none

	mu  sync.Mutex
	cut map[[2]string]bool // links that are cut, by from and to
}

// Region is one region of the world.
type Region struct {
	w    *World
	Name string
	ID   event.RegionID

	kafka     *embed.KafkaServer // nil if Options.Kafka gave another
	seeds     []string
	client    *kgo.Client // past all proxies
	admin     *kadm.Client
	instances []*Instance
}

// Start starts Kafka and one instance in every region and links them all. The
// test ends with everything stopped.
func Start(t testing.TB, o Options) *World {
	t.Helper()
	o.Regions = cmp.Or(o.Regions, 2)
	o.Ownership = cmp.Or(o.Ownership, DefaultOwnership)
	if o.Regions < 1 || o.Regions > len(names) {
		t.Fatalf("a world of %d regions; there are names for %d", o.Regions, len(names))
	}
	w := &World{t: t, options: o, dir: t.TempDir(), log: newJournal(), cut: make(map[[2]string]bool)}
	w.http = client.NewHTTP()
	t.Cleanup(w.close)
	w.policy = filepath.Join(w.dir, "ownership.yaml")
	if err := os.WriteFile(w.policy, []byte(o.Ownership), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.openRegister(); err != nil {
		t.Fatal(err)
	}
	for i := range o.Regions {
		r := &Region{w: w, Name: names[i], ID: event.RegionID(i + 1)}
		w.regions = append(w.regions, r)
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, len(w.regions))
	var all sync.WaitGroup
	for i, r := range w.regions {
		r.instances = []*Instance{r.instance(0)}
		all.Go(func() { errs[i] = r.instances[0].start() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("start world: %v", err)
	}
	return w
}

// startKafka starts the region's Kafka.
func (r *Region) startKafka() (err error) {
	if r.w.options.Kafka != nil {
		r.seeds = r.w.options.Kafka(r.Name)
	} else if r.kafka, err = embed.StartKafka(embed.Kafka{
		Listen: "127.0.0.1:0", DataDir: filepath.Join(r.w.dir, r.Name, "kafka"), Unsynced: true, Logger: slog.New(slog.DiscardHandler), // it warns of every slow fsync
	}); err == nil {
		r.seeds = r.kafka.Seeds()
	}
	if err != nil {
		return fmt.Errorf("start kafka of %s: %w", r.Name, err)
	}
	return nil
}

// open starts the region's Kafka with the topics that it shall have.
func (r *Region) open() (err error) {
	if err := r.startKafka(); err != nil {
		return err
	}
	if r.client, err = kgo.NewClient(kgo.SeedBrokers(r.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics()); err != nil {
		return fmt.Errorf("make client of %s: %w", r.Name, err)
	}
	r.admin = kadm.NewClient(r.client)
	for _, t := range r.w.options.Topics {
		if t.Region == "" || t.Region == r.Name {
			if err := r.CreateTopic(t.Name, t.Partitions); err != nil {
				return err
			}
		}
	}
	return nil
}

// CreateTopic makes a topic in the region's Kafka, as an operator would.
func (r *Region) CreateTopic(name string, partitions int32) error {
	ctx, cancel := r.w.context()
	defer cancel()
	if _, err := r.admin.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		return fmt.Errorf("create topic %s in %s: %w", name, r.Name, err)
	}
	return nil
}

// Region finds a region by its name.
func (w *World) Region(name string) *Region {
	for _, r := range w.regions {
		if r.Name == name {
			return r
		}
	}
	w.t.Fatalf("no region %s in this world", name)
	return nil
}

// Regions are all regions in the order of their ids.
func (w *World) Regions() []*Region { return slices.Clone(w.regions) }

// ID finds a region's id; with Name it makes a World event.RegionNames.
func (w *World) ID(name string) (event.RegionID, bool) {
	for _, r := range w.regions {
		if r.Name == name {
			return r.ID, true
		}
	}
	return 0, false
}

// Name gives a region's name.
func (w *World) Name(id event.RegionID) string {
	if int(id) < 1 || int(id) > len(w.regions) {
		return ""
	}
	return w.regions[id-1].Name
}

// context bounds one thing that must come about.
func (w *World) context() (context.Context, context.CancelFunc) {
	if w.options.Register {
		return context.WithTimeout(context.Background(), patienceWithRegister)
	}
	return context.WithTimeout(context.Background(), patience)
}

// Run runs a part of a test as a subtest that fails by itself.
func (w *World) Run(name string, part func(*testing.T, *World)) {
	w.t.Helper()
	outer := w.t.(*testing.T) // benchmarks have no parts
	outer.Run(name, func(t *testing.T) {
		w.t = t
		defer func() { w.t = outer }()
		part(t, w)
	})
}

// Eventually asks until what it asks for is so, and fails the test with the last
// answer's reason if it is never.
func (w *World) Eventually(what string, ask func() error) {
	w.t.Helper()
	ctx, cancel := w.context()
	defer cancel()
	if err := client.Poll(ctx, pollEvery, ask); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// Note writes a line into the world's log, for whoever reads what went wrong.
func (w *World) Note(what string, attributes ...any) {
	w.log.logger("", "test").Info(what, attributes...)
}

// Cut makes the cluster of a region unreachable for the links from another.
func (w *World) Cut(from, to string) {
	w.setCut(from, to, true)
	for _, in := range w.Region(from).instances {
		if p := in.links[to]; p != nil {
			p.Cut()
		}
	}
}

// Heal takes Cut back.
func (w *World) Heal(from, to string) {
	w.t.Helper()
	w.setCut(from, to, false)
	for _, in := range w.Region(from).instances {
		if p := in.links[to]; p != nil && in.away == 0 {
			if err := p.Heal(); err != nil {
				w.t.Fatalf("heal link from %s to %s: %v", from, to, err)
			}
		}
	}
}

// CutAll and HealAll are Cut and Heal of every link.
func (w *World) CutAll() { w.each(w.Cut) }

// HealAll takes every cut back.
func (w *World) HealAll() { w.each(w.Heal) }

func (w *World) each(do func(from, to string)) {
	for _, a := range w.regions {
		for _, b := range w.regions {
			if a != b {
				do(a.Name, b.Name)
			}
		}
	}
}

func (w *World) setCut(from, to string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{from, to}] = cut
}

func (w *World) isCut(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[[2]string{from, to}]
}

// close stops all instances, then all Kafkas, and shows the log if the test has
// failed.
func (w *World) close() {
	defer w.log.close()
	for _, r := range w.regions {
		for _, in := range r.instances {
			if err := in.stop(); err != nil && !errors.Is(err, node.ErrSuperseded) && !errors.Is(err, node.ErrRefused) {
				w.t.Errorf("stop %s: %v", in.Name, err)
			}
		}
	}
	for _, r := range w.regions {
		for _, in := range r.instances {
			in.closeProxies()
		}
		if r.client != nil {
			r.client.Close()
		}
		if r.kafka != nil {
			if err := r.kafka.Close(); err != nil {
				w.t.Errorf("close kafka of %s: %v", r.Name, err)
			}
		}
	}
	if w.register != nil {
		if err := w.register.Close(); err != nil {
			w.t.Errorf("close register: %v", err)
		}
	}
	w.http.CloseIdleConnections()
	if w.t.Failed() {
		w.t.Logf("the world's log:\n%s", w.log)
	}
}

var _ event.RegionNames = (*World)(nil)

// proxies makes the doors of an instance: to its own cluster and to each link's
// target.
func (in *Instance) proxies() (err error) {
	r := in.region
	if in.own, err = cutproxy.Start(r.seeds, "127.0.0.1:0"); err != nil {
		return fmt.Errorf("start proxy of %s: %w", in.Name, err)
	}
	for _, to := range r.w.regions {
		if to == r {
			continue
		}
		p, err := cutproxy.Start(to.seeds, "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("start proxy of %s to %s: %w", in.Name, to.Name, err)
		}
		in.links[to.Name] = p
		if r.w.isCut(r.Name, to.Name) {
			p.Cut()
		}
	}
	return nil
}

func (in *Instance) closeProxies() {
	for _, p := range in.links {
		p.Close()
	}
	if in.own != nil {
		in.own.Close()
	}
}

// logger is the world's log for a region's part.
func (j *journal) logger(region, part string) *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: j.level})).With("region", region, "part", part)
}
