//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/cutproxy"
	"github.com/geogate/geogate/testbench/kept"
	"github.com/geogate/geogate/testbench/proc"
)

const (
	// stopWait is more than the configured drain.
	stopWait = 30 * time.Second
	// readyWait is more than a start takes.
	readyWait = 90 * time.Second
	// settleWait is more than a native transaction stays open, and a claim waits.
	settleWait = 90 * time.Second
)

// member is a region or the witness.
type member struct {
	Name                              string
	ID                                int // 0: the witness
	Data, Management, Kafka, Register int // ports on loopback
	Peer                              string
	PeerID                            int
	PeerKafka                         string // through the line that can be cut
	Routes                            [2]int

	proc   *proc.Process
	region *kept.Region
	line   *cutproxy.Proxy // in front of its Kafka, for the other region
	client *kgo.Client     // a native producer
}

// deployment is three processes.
type deployment struct {
	program, dir string
	members      map[string]*member
	started      time.Time
}

func (d *deployment) note(format string, args ...any) {
	fmt.Printf("%6.1f s  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *deployment) region(name string) *kept.Region { return d.members[name].region }

func (d *deployment) all() []*kept.Region { return []*kept.Region{d.region("us"), d.region("eu")} }

// prepare takes ports and writes the configuration.
func prepare(program, dir string) (*deployment, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &deployment{program: program, dir: dir, started: time.Now(), members: map[string]*member{
		"us": {Name: "us", ID: 1, Peer: "eu", PeerID: 2}, "eu": {Name: "eu", ID: 2, Peer: "us", PeerID: 1}, "witness": {Name: "witness"},
	}}
	if err := d.takePorts(); err != nil {
		return nil, err
	}
	for _, name := range []string{"us", "eu"} {
		if err := d.reach(d.members[name]); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, d.configure()
}

// takePorts gives every member its ports, and the other two's in the register.
func (d *deployment) takePorts() (err error) {
	for _, m := range d.members {
		for _, port := range []*int{&m.Data, &m.Management, &m.Kafka, &m.Register} {
			if *port, err = apache.FreePort(); err != nil {
				return err
			}
		}
	}
	for _, m := range d.members {
		i := 0
		for _, other := range []string{"us", "eu", "witness"} {
			if other != m.Name {
				m.Routes[i] = d.members[other].Register
				i++
			}
		}
	}
	return nil
}

// reach makes the ways to a region: for its clients, for the other region's link, and
// for native producers.
func (d *deployment) reach(m *member) (err error) {
	seeds := []string{fmt.Sprintf("127.0.0.1:%d", m.Kafka)}
	if m.line, err = cutproxy.Start(seeds, "127.0.0.1:0"); err != nil {
		return err
	}
	d.members[m.Peer].PeerKafka = m.line.Addr()
	m.region = &kept.Region{Name: m.Name, Seeds: seeds, Client: client.Client{
		HTTP: client.NewHTTP(), Address: client.At(fmt.Sprintf("http://127.0.0.1:%d", m.Data), fmt.Sprintf("http://127.0.0.1:%d", m.Management)),
	}}
	m.client, err = kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	return err
}

// configure writes all files.
func (d *deployment) configure() error {
	files := map[string]string{"ownership.yaml": ownershipText, "residency.yaml": residencyText, "secret": "kept-since-e4aa663\n"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for name, m := range d.members {
		text := regionConfig
		if m.ID == 0 {
			text = witnessConfig
		}
		t, err := template.New(name).Parse(text)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(d.dir, name+".yaml"))
		if err != nil {
			return err
		}
		if err := errors.Join(t.Execute(f, m), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// start starts members and waits until they are ready.
func (d *deployment) start(ctx context.Context, names ...string) error {
	for _, name := range names {
		d.note("start %s", name)
		m := d.members[name]
		verb := "serve"
		if m.ID == 0 {
			verb = "witness"
		}
		log, err := os.OpenFile(filepath.Join(d.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		cmd := exec.Command(d.program, verb, "--config", name+".yaml")
		cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, log, log
		m.proc, err = proc.Start(cmd)
		if err := errors.Join(err, log.Close()); err != nil {
			return err
		}
	}
	for _, name := range names {
		if r := d.members[name].region; r != nil {
			ready, cancel := context.WithTimeout(ctx, readyWait)
			err := kept.Poll(ready, func() error { return r.Ready(ready) })
			cancel()
			if err != nil {
				return fmt.Errorf("wait for %s to be ready: %w", name, err)
			}
		}
	}
	return nil
}

func (d *deployment) stop(name string) error {
	d.note("stop %s", name)
	return d.members[name].proc.Stop(stopWait)
}

func (d *deployment) kill(name string) {
	d.note("kill %s", name)
	d.members[name].proc.Kill()
}

func (d *deployment) close() {
	for _, name := range []string{"us", "eu", "witness"} {
		m := d.members[name]
		if m.proc != nil {
			m.proc.Signal(syscall.SIGCONT)
			m.proc.Kill()
		}
		if m.client != nil {
			m.client.Close()
		}
		if m.line != nil {
			m.line.Close()
		}
	}
}

// cut makes a region's Kafka unreachable for the other's link.
func (d *deployment) cut(to string) {
	d.note("cut the link to %s", to)
	d.members[to].line.Cut()
}

func (d *deployment) heal(to string) error {
	d.note("heal the link to %s", to)
	return d.members[to].line.Heal()
}

// settle waits until every region has folded what is in the logs of every region
// that policy gives it, no link lags, and every unit but the spare one is owned.
func (d *deployment) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	var last error
	err := kept.Poll(ctx, func() error {
		var now []error
		for _, topic := range []string{flights, notes, github, prices, orders} {
			now = append(now, d.folded(ctx, topic))
		}
		err := errors.Join(append(now, settled(ctx, d.region("us")), settled(ctx, d.region("eu")))...)
		if ctx.Err() == nil {
			last = err
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait until all is copied and folded: %w", last)
	}
	return nil
}

// folded tells what of a topic some region has not folded: a cursor at the end of its
// merged view says how far it is.
func (d *deployment) folded(ctx context.Context, topic string) error {
	want := map[int32]event.Vector{}
	for _, name := range []string{"us", "eu"} {
		if topic == prices && name != "eu" {
			continue // nothing of its log counts, and the link sends nothing of it
		}
		m := d.members[name]
		ends, err := kadm.NewClient(m.client).ListEndOffsets(ctx, topic)
		if err := errors.Join(err, ends.Error()); err != nil {
			return err
		}
		ends.Each(func(o kadm.ListedOffset) {
			v := want[o.Partition]
			v[m.ID].Next = o.Offset
			want[o.Partition] = v
		})
	}
	for _, r := range d.all() {
		var page struct {
			Next string `json:"next"`
		}
		if err := r.Get(ctx, "/v1/topics/"+topic+"/records?view=merged&from=latest", &page); err != nil {
			return err
		}
		c, err := event.ParseCursor(page.Next)
		if err != nil {
			return err
		}
		for p, v := range want {
			at := c.At[p]
			if topic == prices {
				at[d.members["us"].ID] = v[d.members["us"].ID]
			}
			if at != v {
				return fmt.Errorf("%s has folded %v of partition %d of %s, the logs end at %v", r.Name, at, p, topic, v)
			}
		}
	}
	return nil
}

func settled(ctx context.Context, r *kept.Region) error {
	var s struct {
		Links []struct {
			From   string          `json:"from"`
			State  string          `json:"state"`
			Lag    *int64          `json:"lag_records"`
			Parked json.RawMessage `json:"parked"`
		} `json:"links"`
		Units []struct {
			Unit  string  `json:"unit"`
			Owner *string `json:"owner"`
		} `json:"units"`
	}
	if err := r.Manage(ctx, "/v1/status", &s); err != nil {
		return err
	}
	for _, l := range s.Links {
		// The topic that was made again is parked.
		if l.From == r.Name && l.State != "parked" && (l.State != "running" || l.Lag == nil || *l.Lag != 0) {
			return fmt.Errorf("the link from %s is not at its end: %s, parked %s", r.Name, l.State, l.Parked)
		}
	}
	for _, u := range s.Units {
		if u.Owner == nil && u.Unit != kept.FencedUnit {
			return fmt.Errorf("nobody owns %s", u.Unit)
		}
	}
	return nil
}

// The files below are those that e4aa663 was given, and stay so whatever later
// versions and their examples say: they are what has to stay readable. So they share
// no text with the demo's (cmd/geogate/demo.go), which changes with the product.

const regionConfig = `version: 1
region: {{.Name}}
data_dir: {{.Name}}
regions:
  {{.Name}}: {id: {{.ID}}, kafka: {embedded: {listen: "127.0.0.1:{{.Kafka}}"}}}
  {{.Peer}}: {id: {{.PeerID}}, kafka: {seeds: ["{{.PeerKafka}}"]}}
links:
  - {from: us, to: eu}
  - {from: eu, to: us}
nats:
  mode: quorum
  embedded:
    name: ctl-{{.Name}}
    cluster: "127.0.0.1:{{.Register}}"
    routes: ["nats-route://127.0.0.1:{{index .Routes 0}}", "nats-route://127.0.0.1:{{index .Routes 1}}"]
  lease: {duration: 12s, margin: 100ms, renew: 500ms, timeout: 1s}
http: {listen: "127.0.0.1:{{.Data}}"}
management: {listen: "127.0.0.1:{{.Management}}"}
idempotency: {secret_file: secret, window: 24h}
policies: {residency: residency.yaml, ownership: ownership.yaml}
drain: 10s
`

const witnessConfig = `version: 1
data_dir: witness
nats:
  embedded:
    name: ctl-witness
    cluster: "127.0.0.1:{{.Register}}"
    routes: ["nats-route://127.0.0.1:{{index .Routes 0}}", "nats-route://127.0.0.1:{{index .Routes 1}}"]
management: {listen: "127.0.0.1:{{.Management}}"}
`

const ownershipText = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 2}
  - {name: notes, match: ["notes"], kind: entity, mode: multi_writer, policy: keep, partitions: 1}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 2}
  - {name: prices, match: ["prices"], kind: entity, mode: single_region, owner: eu, policy: lww, partitions: 1, on_foreign_write: reject}
  - {name: orders, match: ["orders"], kind: entity, mode: by_key, owner: 'headers["home"]', policy: lww, partitions: 1, on_foreign_write: reject}
  - {name: spare, match: ["spare"], kind: events, mode: multi_writer, partitions: 1}
  - {name: payroll, match: ["payroll"], kind: events, mode: multi_writer, partitions: 1}
`

const residencyText = `version: 1
kind: ResidencyPolicy
name: kept
revision: 3
default: deny
groups: {europe: [eu]}
topics: [{match: ["github"], format: json}]
rules:
  - {id: public-repos, effect: allow, topics: ["github"], from: [eu], to: ["*"], when: 'key in ["octo-org/octo-repo", "octocat/hello-world"]'}
  - {id: github-from-us, effect: allow, topics: ["github"], from: [us], to: ["*"]}
  - {id: open, effect: allow, topics: ["flights", "notes", "prices", "orders", "spare", "scratch"], from: ["*"], to: ["*"]}
`
