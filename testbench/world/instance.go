package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/testbench/cutproxy"
	"github.com/geogate/geogate/testbench/natscluster"
)

const (
	// drain is the configured drain of instances: long enough for what is in
	// flight, short enough for a test.
	drain = time.Second
	// stopWait is how long an instance's components may take to end.
	stopWait = 60 * time.Second
)

// Instance is one instance of a region.
type Instance struct {
	Name string

	region *Region
	dir    string
	own    *cutproxy.Proxy            // to the region's Kafka
	links  map[string]*cutproxy.Proxy // to each target's, by region
	door   *natscluster.Door          // to the ownership register; nil: there is none
	away   int                        // more than 0: its proxies are cut, since it was killed

	node    atomic.Pointer[node.Node] // nil while it does not run
	running *node.Running             // nil while it does not run
	crash   context.CancelFunc        // ends all components at once, but for the first
}

func (r *Region) instance(number int) *Instance {
	name := fmt.Sprintf("%s-%d", r.Name, number)
	return &Instance{Name: name, region: r, dir: filepath.Join(r.w.dir, r.Name, name), links: make(map[string]*cutproxy.Proxy)}
}

// config is the instance's configuration: the form of a file, on free ports.
func (in *Instance) config(d *node.Deps) (node.Config, error) {
	w := in.region.w
	c := node.Defaults()
	c.Version, c.Region, c.Instance, c.DataDir = 1, in.region.Name, in.Name, in.dir
	c.Drain = drain
	c.HTTP.Listen, c.Management.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Policies.Ownership = w.policy
	c.Regions = make(map[string]node.RegionConfig)
	for _, r := range w.regions {
		seeds := in.own.Seeds()[:1]
		if r != in.region {
			seeds = in.links[r.Name].Seeds()[:1]
		}
		c.Regions[r.Name] = node.RegionConfig{ID: r.ID, Kafka: node.KafkaConfig{Seeds: seeds}}
	}
	w.each(func(from, to string) {
		if !w.options.Unlinked {
			c.Links = append(c.Links, node.LinkConfig{From: from, To: to})
		}
	})
	in.useRegister(&c, d)
	if w.options.Configure != nil {
		w.options.Configure(&c)
	}
	c = c.Complete()
	return c, c.Validate()
}

// start assembles the instance and starts its components in their order.
func (in *Instance) start() error {
	in.log("start")
	defer in.log("started")
	if in.own == nil {
		if err := in.proxies(); err != nil {
			return err
		}
	}
	o := &in.region.w.options
	deps := node.Deps{
		Logger: in.region.w.log.logger(in.region.Name, in.Name), Registry: prometheus.NewRegistry(),
		RetentionEvery: o.RetentionEvery, JoinEpochs: o.JoinEpochs,
	}
	c, err := in.config(&deps)
	if err != nil {
		return fmt.Errorf("configure %s: %w", in.Name, err)
	}
	n, err := node.New(c, deps)
	if err != nil {
		return fmt.Errorf("assemble %s: %w", in.Name, err)
	}
	in.node.Store(n)
	crashed, crash := context.WithCancel(context.Background())
	components := n.Components()
	for i := range components {
		if i > 0 { // the first holds what the others share
			components[i].Run = endedBy(crashed, components[i].Run)
		}
		components[i].Run = in.logged(components[i])
	}
	in.crash, in.running = crash, node.Start(components...)
	return nil
}

// endedBy gives a component that also ends with another context.
func endedBy(crashed context.Context, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(crashed, cancel)()
		return run(ctx)
	}
}

// logged gives a component that notes its end in the world's log.
func (in *Instance) logged(c node.Component) func(context.Context) error {
	return func(ctx context.Context) error {
		defer in.log("ended " + c.Name)
		return c.Run(ctx)
	}
}

// log notes in the world's log what the test does to the instance.
func (in *Instance) log(what string) {
	in.region.w.log.logger(in.region.Name, "world").Info(what, "instance", in.Name)
}

// stop stops the components in the reverse order, each before the next, as the
// program does on SIGTERM. Stopping what does not run is no error.
func (in *Instance) stop() error {
	in.log("stop")
	defer in.log("stopped")
	defer in.node.Store(nil) // it answers while it drains
	_, err := in.end()
	return err
}

// end stops the components that run. Stuck tells that one of them does not end: the
// error then has the stacks of all goroutines.
func (in *Instance) end() (stuck bool, err error) {
	if in.running == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	err = in.running.Stop(ctx)
	in.running = nil
	in.crash()
	if ctx.Err() == nil {
		return false, err
	}
	stacks := make([]byte, 1<<20)
	return true, fmt.Errorf("%w within %s\n%s", err, stopWait, stacks[:runtime.Stack(stacks, true)])
}

// kill takes the instance away from one moment to the next: nothing of it reaches
// any Kafka any more, whatever its parts try on their way down. What a process
// leaves behind when it is killed is left behind: open transactions, produces
// without an answer, clients without one.
func (in *Instance) kill() error {
	in.log("kill")
	defer in.log("killed")
	errs := []error{in.Ended()} // nothing that happened before was to end it
	in.away++
	in.node.Store(nil)
	in.own.Cut()
	for _, p := range in.links {
		p.Cut()
	}
	if in.door != nil {
		in.door.Shut()
	}
	if in.running != nil {
		in.crash()
	}
	if stuck, err := in.end(); stuck {
		errs = append(errs, err) // what else they end with comes of the cut lines
	}
	return errors.Join(errs...)
}

// back gives a killed instance its lines again.
func (in *Instance) back() error {
	if in.away == 0 {
		return nil
	}
	in.away = 0
	if in.door != nil {
		in.door.Open()
	}
	errs := []error{in.own.Heal()}
	for to, p := range in.links {
		if !in.region.w.isCut(in.region.Name, to) {
			errs = append(errs, p.Heal())
		}
	}
	return errors.Join(errs...)
}

// Ended returns the error of a component that ended by itself, nil while all run.
// The program would stop the instance; here the others go on, so that a test can
// see what they answer.
func (in *Instance) Ended() error {
	if in.running == nil {
		return nil
	}
	return in.running.Err()
}

// LoseAnswers makes answers of the instance's own Kafka to requests of an api key
// get lost until keep is called.
func (in *Instance) LoseAnswers(key int16) (keep func()) { return in.own.LoseAnswers(key) }

// Hold keeps requests of an api key from the instance's own Kafka until release.
func (in *Instance) Hold(key int16) (release func()) { return in.own.Hold(key) }

// Kill takes the region's instances away at once, without drain; its Kafka stays.
func (w *World) Kill(region string) {
	w.t.Helper()
	for _, in := range w.Region(region).instances {
		if err := in.kill(); err != nil {
			w.t.Fatalf("kill %s: %v", in.Name, err)
		}
	}
}

// Stop stops the region's instances in order, with drain; its Kafka stays.
func (w *World) Stop(region string) {
	w.t.Helper()
	for _, in := range w.Region(region).instances {
		if err := in.stop(); err != nil {
			w.t.Fatalf("stop %s: %v", in.Name, err)
		}
	}
}

// StartAgain starts the region's instances that do not run.
func (w *World) StartAgain(region string) {
	w.t.Helper()
	if err := w.TryStartAgain(region); err != nil {
		w.t.Fatal(err)
	}
}

// TryStartAgain is StartAgain where that may fail.
func (w *World) TryStartAgain(region string) error {
	for _, in := range w.Region(region).instances {
		if in.node.Load() != nil {
			continue
		}
		if err := errors.Join(in.back(), in.start()); err != nil {
			return fmt.Errorf("start %s again: %w", in.Name, err)
		}
	}
	return nil
}

// DeleteStore deletes what the region's instances keep on disk beside Kafka. They
// must not run.
func (w *World) DeleteStore(region string) {
	w.t.Helper()
	for _, in := range w.Region(region).instances {
		if in.node.Load() != nil {
			w.t.Fatalf("%s runs; its store is not to be deleted", in.Name)
		}
		if err := os.RemoveAll(filepath.Join(in.dir, "store")); err != nil {
			w.t.Fatal(err)
		}
	}
}

// AddInstance starts one more instance of a region beside those that run. It is
// the one that [Region] methods talk to from then on. What is to be done before it
// starts, when its connections can already be held, is done in order.
func (w *World) AddInstance(region string, before ...func(*Instance)) *Instance {
	w.t.Helper()
	r := w.Region(region)
	in := r.instance(len(r.instances))
	r.instances = append(r.instances, in)
	if err := in.proxies(); err != nil {
		w.t.Fatal(err)
	}
	for _, do := range before {
		do(in)
	}
	if err := in.start(); err != nil {
		w.t.Fatal(err)
	}
	return in
}

// Instance is the n-th instance of the region, from 0.
func (r *Region) Instance(n int) *Instance { return r.instances[n] }

// last is the instance that requests go to.
func (r *Region) last() *Instance { return r.instances[len(r.instances)-1] }
