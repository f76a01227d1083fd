package world

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/sim/kafka"
	"github.com/geogate/geogate/testbench/sim/sched"
)

// epoch0 is the true time at the start of every history.
var epoch0 = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

const (
	entityTopic = "ent"
	eventsTopic = "evt"
)

// config is what a seed draws for the whole history.
type config struct {
	regions    int
	procs      int // instances per region
	partitions int // of the entity topic
	rule       event.Rule
	window     time.Duration
	skew       time.Duration // of clocks, either way
	faults     float64       // share of requests that go wrong
	late       float64       // share of markers that take long
	foldEvery  time.Duration
	length     time.Duration // of the time of faults
	writes     int
	entities   int
	truncate   bool          // remote logs may lose their tail
	elections  bool          // remote partitions may change leaders
	foreign    bool          // other applications write into local topics
	contested  bool          // seats change hands all the time, and the old hand goes on
	pause      time.Duration // a process may be paused between two steps
	register   bool          // there is an ownership register
	retires    bool          // where frontiers follow closely, regions are retired
	join       int           // so many ended epochs of a unit are joined
	outside    bool          // starts and cuts stand outside of units' records
	single     bool          // one region alone may write the events topic
	border     bool          // a residency policy says what may leave a region

	regime      regime
	tidies      bool          // what lies below frontiers is dropped
	linkPause   float64       // chance that a link's process is paused before a step
	lateMost    time.Duration // how long late markers take at most
	electWithin time.Duration // after an append, a remote partition's election
}

type region struct {
	id       event.RegionID
	name     string
	kafka    *kafka.Cluster
	procs    []*proc
	assigned map[kafka.TP]int // which instance holds a seat
	linked   map[*region]int  // which instance runs the link to a region
}

// store is a data directory: a cache of the logs.
type store struct {
	journals map[kafka.TP]*journal
	keys     map[kafka.TP]*dedupe.Memory
	swept    map[kafka.TP]event.Stamp // the highest closed stamp by which keys were swept
}

func newStore() *store {
	return &store{journals: map[kafka.TP]*journal{}, keys: map[kafka.TP]*dedupe.Memory{}, swept: map[kafka.TP]event.Stamp{}}
}

// Violation is a broken guarantee.
type Violation struct {
	Rule string // G1 … G8, or what part of the world failed
	Text string
}

// Result is what became of a seed.
type Result struct {
	Seed       uint64
	Violations []Violation
	Trace      string
	Steps      int           // things done
	Time       time.Duration // virtual
	Counts     map[string]int
}

// World is one history under way.
type World struct {
	*sched.Scheduler
	cfg      config
	calm     bool // no further faults
	regions  []*region
	seats    []kafka.TP // the local partitions, the same in every region
	cuts     map[[2]event.RegionID]int
	oneWay   map[[2]event.RegionID]int // what processes of the first send to the second is lost
	shards   map[[2]event.RegionID]int // wanted for the link from, to
	objects  []any
	ops      []*op
	batches  []*together
	nextLook time.Duration          // when to look again whether all is drained
	quiet    bool                   // all is drained
	open     int                    // client operations that may still be retried
	own      *registerModel         // nil: there is no ownership register
	border   *border                // nil: there is no residency policy
	highest  map[string]event.Epoch // of each unit, under which somebody acted
	slow     map[slowKey]time.Duration
	fight    *fight // the newest for a link
	// nextDeposal is when a link may be taken again while its decision is on its way.
	nextDeposal time.Duration

	verdicts map[verdictKey]judged.Item
	failures []Violation
	counts   map[string]int
}

type verdictKey struct {
	reader string // region that judged
	topic  string
	how    string
	at     event.Dot
}

// Options say what a run keeps.
type Options struct {
	Trace bool
}

// Run plays the history of a seed and checks it.
func Run(seed uint64, o Options) Result {
	w := &World{Scheduler: sched.New(seed, 0x9e3779b97f4a7c15, o.Trace), cuts: map[[2]event.RegionID]int{}, shards: map[[2]event.RegionID]int{}, verdicts: map[verdictKey]judged.Item{}, counts: map[string]int{}, highest: map[string]event.Epoch{}, oneWay: map[[2]event.RegionID]int{}, slow: map[slowKey]time.Duration{}}
	w.cfg.drawRegister(seed)
	w.cfg.drawRetires(seed)
	w.cfg.drawBorder(seed)
	w.cfg.drawRegime(seed)
	func() {
		defer func() {
			if x := recover(); x != nil && !w.Tracing() {
				w.fail("panic", "%v", x)
			} else if x != nil {
				panic(x)
			}
		}()
		w.play()
	}()
	return Result{Seed: seed, Violations: w.failures, Steps: w.Steps(), Time: w.Now(), Counts: w.counts, Trace: w.Trace()}
}

func (w *World) play() {
	w.draw()
	w.tune()
	w.build()
	w.schedule()
	w.Run(w.cfg.length, w.failed)
	w.heal()
	w.nextLook = w.Now() + 2*time.Second
	if w.border != nil {
		w.nextLook = w.Now() + 6*time.Second // what links have in flight of topics that stay ends by itself
	}
	if w.counts["truncations"] > 0 {
		w.nextLook = w.Now() + 20*time.Second // a link that has nothing to copy looks now and then
	}
	w.Run(w.Now()+90*time.Second, func() bool { return w.failed() || w.drained() })
	if left := w.undrained(); !w.failed() && left != "" {
		w.fail("drain", "%s", left)
	}
	if !w.failed() {
		w.check()
		w.checkBatches()
	}
}

func (w *World) failed() bool { return len(w.failures) > 0 }

func (w *World) fail(rule, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.Logf("VIOLATION %s: %s", rule, text)
	if len(w.failures) < 20 {
		w.failures = append(w.failures, Violation{rule, text})
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (w *World) draw() {
	r, c := w.Rand(), w.cfg
	w.cfg = config{
		regions:    pick(r, 1, 2, 2, 2, 3),
		procs:      2,
		partitions: pick(r, 1, 1, 1, 2),
		rule:       pick(r, event.LWW, event.LWW, event.Keep),
		window:     pick(r, 24*time.Hour, 24*time.Hour, 8*time.Second, 3*time.Second, time.Second),
		skew:       pick(r, 0, 50*time.Millisecond, 300*time.Millisecond, 2*time.Second),
		faults:     pick(r, 0, 0.01, 0.04, 0.12),
		late:       pick(r, 0, 0.05, 0.3),
		foldEvery:  pick(r, time.Millisecond, 20*time.Millisecond, 300*time.Millisecond),
		length:     w.Between(8*time.Second, 20*time.Second),
		writes:     10 + r.IntN(50),
		entities:   pick(r, 1, 2, 3),
		truncate:   r.IntN(4) == 0,
		elections:  r.IntN(3) == 0,
		foreign:    r.IntN(4) == 0,
		contested:  r.IntN(3) == 0,
		pause:      pick(r, 0, 10*time.Millisecond, time.Second, 3*time.Second),
		register:   c.register,
		retires:    c.retires,
		single:     c.single,
		border:     c.border,
		regime:     c.regime,
		tidies:     c.tidies,
	}
}

// names and topics

func remoteTP(from *region, tp kafka.TP) kafka.TP {
	return kafka.TP{Topic: from.name + "." + tp.Topic, Partition: tp.Partition}
}

func (w *World) foldConfig(topic string) conflict.Config {
	if topic == eventsTopic {
		return conflict.Config{Kind: conflict.Events, Window: w.cfg.window}
	}
	return conflict.Config{Kind: conflict.Entities, Rule: w.cfg.rule, Window: w.cfg.window}
}

func (w *World) build() {
	for i := range w.cfg.partitions {
		w.seats = append(w.seats, kafka.TP{Topic: entityTopic, Partition: int32(i)})
	}
	w.seats = append(w.seats, kafka.TP{Topic: eventsTopic})
	for i := range w.cfg.regions {
		w.regions = append(w.regions, w.newRegion(event.RegionID(i+1)))
	}
	for _, r := range w.regions {
		for _, from := range w.regions {
			if from == r {
				continue
			}
			for _, tp := range w.seats {
				r.kafka.Create(remoteTP(from, tp).Topic, w.partitions(tp.Topic), false)
			}
			r.kafka.Create(control.PositionsFrom(from.name), control.LinkPartitions, true)
			r.kafka.Create(control.RunsFrom(from.name), control.LinkPartitions, true)
			r.linked[from] = w.Rand().IntN(w.cfg.procs)
			w.shards[[2]event.RegionID{r.id, from.id}] = pick(w.Rand(), 1, 1, 2, 3)
			r.kafka.Create(control.ControlFrom(from.name), 1, true)
		}
		for i := range w.cfg.procs {
			p := &proc{w: w, region: r, name: fmt.Sprintf("%s-%d", r.name, i), store: newStore(), orders: map[*region]int{}}
			if w.cfg.skew > 0 {
				p.skew = w.Between(-w.cfg.skew, w.cfg.skew)
			}
			r.procs = append(r.procs, p)
		}
		for _, tp := range w.seats {
			r.assigned[tp] = w.Rand().IntN(w.cfg.procs)
		}
	}
	w.buildRegister()
	w.buildBorder()
	for _, r := range w.regions {
		for _, p := range r.procs {
			p.start()
		}
	}
}

func (w *World) newRegion(id event.RegionID) *region {
	r := &region{id: id, name: fmt.Sprintf("r%d", id), assigned: map[kafka.TP]int{}, linked: map[*region]int{}}
	r.kafka = kafka.New(kafka.Config{
		Name: r.name, Bumps: w.Chance(0.7), TxnTimeout: 15 * time.Second,
		Marker: func(rnd *rand.Rand) time.Duration {
			if !w.calm && rnd.Float64() < w.cfg.late {
				return w.Between(50*time.Millisecond, w.cfg.lateMost)
			}
			return w.Between(200*time.Microsecond, 3*time.Millisecond)
		},
		Wall: func() int64 { return epoch0.Add(w.Now()).UnixMilli() },
	}, w)
	r.kafka.Create(control.TopicControl, 1, true)
	for _, tp := range w.seats {
		n := w.partitions(tp.Topic)
		r.kafka.Create(tp.Topic, n, false)
		r.kafka.Create(control.StateOf(tp.Topic), n, true)
		r.kafka.Create(stepsTP(tp).Topic, n, false)
	}
	return r
}

func (w *World) partitions(topic string) int {
	if topic == entityTopic {
		return w.cfg.partitions
	}
	return 1
}

// network

func cutKey(a, b *region) [2]event.RegionID {
	return [2]event.RegionID{min(a.id, b.id), max(a.id, b.id)}
}

func (w *World) isCut(a, b *region) bool {
	return a != b && (w.cuts[cutKey(a, b)] > 0 || w.oneWay[[2]event.RegionID{a.id, b.id}] > 0)
}

func (w *World) latency(a, b *region) time.Duration {
	if a == b {
		return w.Between(100*time.Microsecond, 2*time.Millisecond)
	}
	if !w.calm && w.Chance(0.02) {
		return w.Between(80*time.Millisecond, 1500*time.Millisecond)
	}
	return w.Between(10*time.Millisecond, 60*time.Millisecond)
}

// objects stand for encoded values whose bytes do not matter here.

func (w *World) keep(o any) []byte {
	w.objects = append(w.objects, o)
	return binary.BigEndian.AppendUint64(nil, uint64(len(w.objects)-1))
}

func (w *World) object(b []byte) any { return w.objects[binary.BigEndian.Uint64(b)] }
