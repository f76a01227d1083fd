package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/testbench/cutproxy"
	"github.com/geogate/geogate/testbench/register"
)

const (
	// drain is the configured drain of instances: long enough for what is in
	// flight, short enough for a test.
	drain = time.Second
	// stopWait is how long a component may take to end.
	stopWait = 20 * time.Second
)

// Instance is one instance of a region.
type Instance struct {
	Name string

	region *Region
	dir    string
	own    *cutproxy.Proxy            // to the region's Kafka
	links  map[string]*cutproxy.Proxy // to each target's, by region
	door   *register.Door             // to the ownership register; nil: there is none
	away   int                        // more than 0: its proxies are cut, since it was killed

	node atomic.Pointer[node.Node] // nil while it does not run
	runs []*run                    // in the order of starting
}

// run is one component that was started.
type run struct {
	node.Component
	stop context.CancelFunc
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	end error // once done is closed
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
	deps := node.Deps{Logger: in.region.w.log.logger(in.region.Name, in.Name), Registry: prometheus.NewRegistry()}
	c, err := in.config(&deps)
	if err != nil {
		return fmt.Errorf("configure %s: %w", in.Name, err)
	}
	n, err := node.New(c, deps)
	if err != nil {
		return fmt.Errorf("assemble %s: %w", in.Name, err)
	}
	in.node.Store(n)
	for _, component := range n.Components() {
		in.runs = append(in.runs, begin(component))
	}
	return nil
}

// log notes in the world's log what the test does to the instance.
func (in *Instance) log(what string) {
	in.region.w.log.logger(in.region.Name, "world").Info(what, "instance", in.Name)
}

func begin(c node.Component) *run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{Component: c, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		err := c.Run(ctx)
		switch told := ctx.Err() != nil; {
		case told && errors.Is(err, context.Canceled):
			err = nil
		case !told && err == nil:
			err = errEnded
		}
		r.mu.Lock()
		r.end = err
		r.mu.Unlock()
	}()
	return r
}

// wait waits until the component has ended and returns what it ended with.
func (r *run) wait(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.result()
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return fmt.Errorf("component %s %w within %s\n%s", r.Name, errStuck, within, stacks)
	}
}

func (r *run) result() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return fmt.Errorf("component %s: %w", r.Name, r.end)
	}
	return nil
}

// ended tells whether the component ended, and with what.
func (r *run) ended() (bool, error) {
	select {
	case <-r.done:
		return true, r.result()
	default:
		return false, nil
	}
}

// stop stops the components in the reverse order, each before the next, as the
// program does on SIGTERM. Stopping what does not run is no error.
func (in *Instance) stop() error {
	in.log("stop")
	defer in.log("stopped")
	defer in.node.Store(nil) // it answers while it drains
	var errs []error
	for i := len(in.runs) - 1; i >= 0; i-- {
		in.runs[i].stop()
		errs = append(errs, in.runs[i].wait(stopWait))
		in.log("ended " + in.runs[i].Name)
	}
	in.runs = nil
	return errors.Join(errs...)
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
	for i := len(in.runs) - 1; i > 0; i-- {
		in.runs[i].stop()
	}
	for i := len(in.runs) - 1; i >= 0; i-- {
		in.runs[i].stop() // the first holds what the others share
		if err := in.runs[i].wait(stopWait); errors.Is(err, errStuck) {
			errs = append(errs, err)
		}
		in.log("ended " + in.runs[i].Name)
	}
	in.runs = nil
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
	for _, r := range in.runs {
		if ended, err := r.ended(); ended && err != nil {
			return err
		}
	}
	return nil
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
	for _, in := range w.Region(region).instances {
		if in.node.Load() != nil {
			continue
		}
		if err := errors.Join(in.back(), in.start()); err != nil {
			w.t.Fatalf("start %s again: %v", in.Name, err)
		}
	}
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
// the one that [Region] methods talk to from then on.
func (w *World) AddInstance(region string) *Instance {
	w.t.Helper()
	r := w.Region(region)
	in := r.instance(len(r.instances))
	r.instances = append(r.instances, in)
	if err := in.start(); err != nil {
		w.t.Fatal(err)
	}
	return in
}

// Instance is the n-th instance of the region, from 0.
func (r *Region) Instance(n int) *Instance { return r.instances[n] }

// last is the instance that requests go to.
func (r *Region) last() *Instance { return r.instances[len(r.instances)-1] }

var (
	// errStuck says that a component did not end.
	errStuck = errors.New("does not end")
	// errEnded is what a component that nobody stopped ended with when it had no
	// error: components run until they are told to stop.
	errEnded = errors.New("ended by itself")
)
