//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/cutproxy"
	"github.com/geogate/geogate/testbench/proc"
)

const (
	partitions = 6
	// readyWait bounds a gateway's start, replay included.
	readyWait = 60 * time.Second
	// stopWait is more than the configured drain.
	stopWait = 40 * time.Second
)

// region is one gateway process beside its own Kafka.
type region struct {
	name string
	id   event.RegionID
	dir  string // data_dir

	kafkaPort int // embedded broker; 0 on Apache Kafka
	broker    *apache.Broker
	gateway   client.Client
	manage    string // base URL of the management listener, for commands
	proxy     *cutproxy.Proxy
	taps      []*cutproxy.Proxy // others before the region's listeners, closed with it

	bin, config, log string
	flags            []string // of serve
	proc             *proc.Process
}

// seeds are the region's own brokers, past any proxy.
func (r *region) seeds() []string {
	if r.broker != nil {
		return r.broker.Seeds()
	}
	return []string{fmt.Sprintf("127.0.0.1:%d", r.kafkaPort)}
}

// world is both regions and the lines between them.
type world struct {
	us, eu *region
	http   *http.Client
}

func (w *world) regions() []*region { return []*region{w.us, w.eu} }

func (w *world) other(r *region) *region {
	if r == w.us {
		return w.eu
	}
	return w.us
}

func (w *world) byName(name string) *region {
	for _, r := range w.regions() {
		if r.name == name {
			return r
		}
	}
	return nil
}

// Name and ID make a world event.RegionNames.
func (w *world) Name(id event.RegionID) string {
	for _, r := range w.regions() {
		if r.id == id {
			return r.name
		}
	}
	return ""
}

func (w *world) ID(name string) (event.RegionID, bool) {
	if r := w.byName(name); r != nil {
		return r.id, true
	}
	return 0, false
}

// startWorld starts brokers, proxies and gateways. It returns what it started
// even with an error, so that the caller can take it down.
func startWorld(ctx context.Context, o options, dir, bin string) (*world, error) {
	w := &world{
		us:   &region{name: "us", id: 1, bin: bin},
		eu:   &region{name: "eu", id: 2, bin: bin},
		http: client.NewHTTP(),
	}
	for _, r := range w.regions() {
		r.dir = filepath.Join(dir, r.name)
		if err := w.startKafka(ctx, o, dir, r); err != nil {
			return w, err
		}
		port, err := apache.FreePort()
		if err != nil {
			return w, err
		}
		if r.proxy, err = cutproxy.Start(r.seeds(), fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			return w, err
		}
	}
	for _, r := range w.regions() {
		if err := w.configure(dir, r); err != nil {
			return w, err
		}
	}
	errs := make(chan error, 2)
	for _, r := range w.regions() {
		go func() { errs <- w.up(ctx, r) }()
	}
	return w, errors.Join(<-errs, <-errs)
}

// linksIdle waits until both links have nothing left to do, as long as ctx lasts.
func (w *world) linksIdle(ctx context.Context) error {
	for _, r := range w.regions() {
		var l linkStatus
		var err error
		ok := poll(ctx, 50*time.Millisecond, func() bool {
			l, err = r.link(ctx)
			return err == nil && l.State == "running" && l.LagRecords != nil && *l.LagRecords == 0
		})
		if !ok {
			return fmt.Errorf("link from %s has lag after %s: %+v: %w", r.name, quietWait, l, errors.Join(ctx.Err(), err))
		}
	}
	return nil
}

// down stops both gateways in order, and notes those that do not say that all is
// well.
func (w *world) down(note func(format string, args ...any)) error {
	for _, r := range w.regions() {
		code, err := r.down()
		if err != nil {
			return err
		}
		if code != 0 {
			note("%s exits %d after SIGTERM", r.name, code)
		}
	}
	return nil
}

func (w *world) startKafka(ctx context.Context, o options, dir string, r *region) (err error) {
	if o.kafka == "apache" {
		r.broker, err = apache.Start(ctx, apache.Config{Version: o.version, Dir: filepath.Join(dir, "kafka-"+r.name), HeapMB: 640})
		return err
	}
	r.kafkaPort, err = apache.FreePort()
	return err
}

var configText = template.Must(template.New("config").Parse(`version: 1
region: {{.Name}}
instance: {{.Name}}-0
data_dir: {{.Dir}}
regions:
  {{.Name}}: {id: {{.ID}}, kafka: {{.Own}}}
  {{.PeerName}}: {id: {{.PeerID}}, kafka: {seeds: ["{{.PeerAddr}}"]}}
links: [{name: {{.Name}}-{{.PeerName}}, from: {{.Name}}, to: {{.PeerName}}, include: ["*"], exclude: []}]
nats:
  mode: solo
  embedded: {name: ctl-{{.Name}}}
http: {listen: "127.0.0.1:{{.HTTP}}"}
management: {listen: "127.0.0.1:{{.Manage}}", pprof: true}
idempotency: {window: 24h}
policies: {ownership: {{.Ownership}}}
log: {level: info}
drain: 30s
`))

const ownershipText = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 6}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 6}
`

// configure writes the files of one region. The peer's Kafka is named by its
// proxy, so that this region's link, and nothing else, runs over it.
func (w *world) configure(dir string, r *region) error {
	peer := w.other(r)
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = apache.FreePort(); err != nil {
			return err
		}
	}
	own := fmt.Sprintf(`{seeds: [%q]}`, r.seeds()[0])
	if r.broker == nil {
		own = fmt.Sprintf(`{embedded: {listen: %q}}`, r.seeds()[0])
	}
	ownership := filepath.Join(dir, "ownership.yaml")
	if err := os.WriteFile(ownership, []byte(ownershipText), 0o644); err != nil {
		return err
	}
	var text bytes.Buffer
	err := configText.Execute(&text, map[string]any{
		"Name": r.name, "ID": r.id, "Dir": r.dir, "Own": own,
		"PeerName": peer.name, "PeerID": peer.id, "PeerAddr": peer.proxy.Addr(),
		"HTTP": ports[0], "Manage": ports[1], "Ownership": ownership,
	})
	if err != nil {
		return err
	}
	r.listens(w.http, fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1]))
	r.config = filepath.Join(dir, r.name+".yaml")
	r.log = filepath.Join(dir, r.name+".log")
	return os.WriteFile(r.config, text.Bytes(), 0o644)
}

// up starts a region's gateway and waits until it is ready.
func (w *world) up(ctx context.Context, r *region) error {
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.bin, append([]string{"serve", "--config", r.config}, r.flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if r.proc, err = proc.Start(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	ok := poll(ctx, 20*time.Millisecond, func() bool {
		select {
		case <-r.proc.Done():
			cancel()
			return false
		default:
		}
		return r.gateway.Ready(ctx) == nil
	})
	if !ok {
		return fmt.Errorf("gateway %s is not ready: %s", r.name, tailOf(r.log))
	}
	return nil
}

// down stops a region's gateway in order and returns its exit code.
func (r *region) down() (int, error) {
	if err := r.proc.Stop(stopWait); err != nil {
		return -1, fmt.Errorf("gateway %s: %w", r.name, err)
	}
	return r.proc.ExitCode(), nil
}

// cut cuts both lines; heal joins them again.
func (w *world) cut() {
	for _, r := range w.regions() {
		r.proxy.Cut()
	}
}

func (w *world) heal() error {
	var errs []error
	for _, r := range w.regions() {
		errs = append(errs, r.proxy.Heal())
	}
	return errors.Join(errs...)
}

// close takes down whatever still runs, gateways before brokers.
func (w *world) close() error {
	var all sync.WaitGroup
	for _, r := range w.regions() {
		if r.proc != nil {
			all.Go(func() {
				r.proc.Signal(syscall.SIGCONT) // it may have been stopped
				r.proc.Signal(syscall.SIGTERM)
				select {
				case <-r.proc.Done():
				case <-time.After(5 * time.Second):
					r.proc.Kill()
				}
			})
		}
	}
	all.Wait()
	var errs []error
	for _, r := range w.regions() {
		if r.proxy != nil {
			errs = append(errs, r.proxy.Close())
		}
		for _, t := range r.taps {
			errs = append(errs, t.Close())
		}
		if r.broker != nil {
			errs = append(errs, r.broker.Stop())
		}
	}
	return errors.Join(errs...)
}

// logTails returns the ends of both gateways' logs as an error, for a report.
func (w *world) logTails() error {
	return fmt.Errorf("us log ends: %s\neu log ends: %s", tailOf(w.us.log), tailOf(w.eu.log))
}

func tailOf(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if len(raw) > 1500 {
		raw = raw[len(raw)-1500:]
	}
	return strings.TrimSpace(string(raw))
}

// poll calls ok until it holds or ctx ends.
func poll(ctx context.Context, every time.Duration, ok func() bool) bool {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
