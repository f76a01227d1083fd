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
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/proc"
)

const (
	readyWait  = 90 * time.Second
	stopWait   = 60 * time.Second
	partitions = 6 // of each topic

	entityTopic = "flights"     // declared, entities
	nativeTopic = "events"      // not declared: its fold begins when it is read first
	warmTopic   = "events-warm" // folded before nativeTopic, and not measured
	rawTopic    = "raw"         // written past the gateway and carried by no link
)

// region is one gateway process beside its own Kafka.
type region struct {
	name             string
	id               int
	seed             string
	broker           *apache.Broker // nil: embedded in the gateway
	data, management string         // listeners
	config, log      string
	client           client.Client
	process          *proc.Process
}

func (r *region) pid() int {
	if r.process == nil {
		return 0
	}
	return r.process.Pid()
}

// kafkaDir is where the region's Kafka has its logs.
func (w *world) kafkaDir(r *region) string {
	if r.broker != nil {
		return filepath.Join(w.dir, "kafka-"+r.name, "data")
	}
	return filepath.Join(w.dir, r.name)
}

// world is two regions and a witness. us is driven and measured.
type world struct {
	o       options
	kafka   string
	bin     string
	dir     string
	us, eu  *region
	witness *proc.Process
	// alone: of the other region only the Kafka runs, which the link copies to.
	alone   bool
	written int64 // records that us has stored, markers included
}

func (w *world) regions() []*region { return []*region{w.us, w.eu} }

// gateways are the regions whose gateways run.
func (w *world) gateways() []*region {
	if w.alone {
		return []*region{w.us}
	}
	return w.regions()
}

var configText = template.Must(template.New("config").Parse(`version: 1
region: {{.Own.Name}}
data_dir: {{.Own.Name}}
regions:
{{- range .Regions}}
  {{.Name}}: {id: {{.ID}}, kafka: { {{- if .Embedded}}embedded: {listen: "{{.Kafka}}"}{{else}}seeds: ["{{.Kafka}}"]{{end -}} }}
{{- end}}
links:
  - {from: us, to: eu, exclude: ["raw*"]}
  - {from: eu, to: us, exclude: ["raw*"]}
{{- if .Register}}
nats: {{.Register}}
{{- end}}
http: {listen: "{{.Own.Data}}"}
management: {listen: "{{.Own.Management}}", pprof: true}
idempotency: {secret_file: secret{{with .Window}}, window: {{.}}{{end}}}
policies: {ownership: ownership.yaml}
drain: 10s
`))

type configRegion struct {
	Name                    string
	ID                      int
	Embedded                bool
	Kafka, Data, Management string
}

// declared is the ownership policy: entities with so many partitions. Everything else
// is events.
func declared(entities int) string {
	return fmt.Sprintf(`version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: [%q], kind: entity, mode: multi_writer, policy: lww, partitions: %d}
`, entityTopic, entities)
}

// begin starts a world. It returns what it started even with an error, to be closed.
func begin(ctx context.Context, o options, kafka, bin, dir string) (*world, error) {
	w := &world{
		o: o, kafka: kafka, bin: bin, dir: dir, alone: o.peer == "broker" && kafka == "apache",
		us: &region{name: "us", id: 1}, eu: &region{name: "eu", id: 2},
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return w, err
	}
	for _, r := range w.regions() {
		if err := w.place(ctx, r); err != nil {
			return w, err
		}
	}
	registers, err := w.register()
	if err != nil {
		return w, err
	}
	for name, text := range map[string]string{
		"ownership.yaml": declared(o.partitions), "secret": "0123456789abcdef0123456789abcdef\n", "nats.secret": "fedcba9876543210fedcba9876543210\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return w, err
		}
	}
	for _, r := range w.regions() {
		if err := w.configure(r, registers[r.name]); err != nil {
			return w, err
		}
	}
	if config := registers["witness"]; config != "" {
		if w.witness, err = w.child(filepath.Join(dir, "witness.log"), "witness", "--config", config); err != nil {
			return w, err
		}
	}
	return w, together(len(w.gateways()), func(i int) error { return w.up(ctx, w.gateways()[i]) })
}

func freeAddress() (string, error) {
	port, err := apache.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// place chooses a region's addresses, and starts its Kafka if that is one of its own.
func (w *world) place(ctx context.Context, r *region) (err error) {
	if w.kafka == "apache" {
		c := apache.Config{Version: w.o.version, Dir: filepath.Join(w.dir, "kafka-"+r.name), HeapMB: w.o.heap, Measured: true}
		if w.o.window > 0 {
			c.Properties = yearsBroker()
		}
		if r.broker, err = apache.Start(ctx, c); err != nil {
			return err
		}
		r.seed = r.broker.Seeds()[0]
	} else if r.seed, err = freeAddress(); err != nil {
		return err
	}
	if r.data, err = freeAddress(); err != nil {
		return err
	}
	if r.management, err = freeAddress(); err != nil {
		return err
	}
	r.client = client.Client{HTTP: client.NewHTTP(), Retry: 50 * time.Millisecond, Address: client.At("http://"+r.data, "http://"+r.management)}
	r.log, r.config = filepath.Join(w.dir, r.name+".log"), filepath.Join(w.dir, r.name+".yaml")
	return nil
}

// register gives the value of nats for each region, and the witness's configuration.
func (w *world) register() (map[string]string, error) {
	switch {
	case w.o.register == "none":
		return nil, nil
	case w.o.register == "solo" || w.alone:
		return map[string]string{"us": "{mode: solo, embedded: {}}", "eu": "{mode: solo, embedded: {}}"}, nil
	}
	members := []string{"us", "eu", "witness"}
	at, out := map[string]string{}, map[string]string{}
	for _, m := range members {
		var err error
		if at[m], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	for _, m := range members {
		var routes []string
		for _, other := range members {
			if other != m {
				routes = append(routes, fmt.Sprintf("%q", "nats-route://"+at[other]))
			}
		}
		out[m] = fmt.Sprintf("embedded: {name: ctl-%s, cluster: %q, routes: [%s], secret_file: nats.secret}}", m, at[m], strings.Join(routes, ", "))
	}
	manage, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(w.dir, "witness.yaml")
	text := fmt.Sprintf("version: 1\ndata_dir: witness\nnats: {%s\nmanagement: {listen: %q}\n", out["witness"], manage)
	return map[string]string{"us": "{mode: quorum, " + out["us"], "eu": "{mode: quorum, " + out["eu"], "witness": config}, os.WriteFile(config, []byte(text), 0o600)
}

func (w *world) configure(r *region, register string) error {
	var all []configRegion
	for _, other := range w.regions() {
		all = append(all, configRegion{other.name, other.id, other == r && r.broker == nil, other.seed, other.data, other.management})
	}
	var text bytes.Buffer
	values := map[string]any{"Own": all[r.id-1], "Regions": all, "Register": register}
	if w.o.window > 0 {
		values["Window"] = w.o.window
	}
	if err := configText.Execute(&text, values); err != nil {
		return err
	}
	return os.WriteFile(r.config, text.Bytes(), 0o600)
}

// child starts the program.
func (w *world) child(log string, args ...string) (*proc.Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(w.bin, args...)
	cmd.Stdout, cmd.Stderr = out, out
	return proc.Start(cmd)
}

// launch starts a region's gateway.
func (w *world) launch(r *region) (err error) {
	r.process, err = w.child(r.log, "serve", "--config", r.config)
	return err
}

// up starts a region's gateway and waits until it is ready.
func (w *world) up(ctx context.Context, r *region) error {
	if err := w.launch(r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	err := client.Poll(ctx, 20*time.Millisecond, func() error {
		select {
		case <-r.process.Done():
			cancel()
		default:
		}
		return r.client.Ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("gateway of %s is not ready: %w: %s", r.name, err, endOf(r.log))
	}
	return nil
}

func endOf(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-2000):]))
}

// close takes everything down, gateways before brokers.
func (w *world) close() error {
	var errs []error
	for _, r := range w.gateways() {
		if r.process != nil {
			select {
			case <-r.process.Done():
			default:
				errs = append(errs, r.process.Stop(stopWait))
			}
		}
	}
	if w.witness != nil {
		errs = append(errs, w.witness.Stop(stopWait))
	}
	for _, r := range w.regions() {
		if r.broker != nil {
			errs = append(errs, r.broker.Stop())
		}
	}
	return errors.Join(errs...)
}

// kafka is a client of a region's Kafka.
func (r *region) kafka(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(r.seed)}, opts...)...)
}

// create makes a topic in a region's Kafka.
func (r *region) create(ctx context.Context, topic string, n int32) error {
	c, err := r.kafka()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = kadm.NewClient(c).CreateTopic(ctx, n, 1, nil, topic)
	return err
}

// remove deletes a topic, so that what was measured before does not fill the disk.
func (r *region) remove(ctx context.Context, topic string) error {
	c, err := r.kafka()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = kadm.NewClient(c).DeleteTopic(ctx, topic)
	return err
}

// metric is the sum of a metric of the gateway over all labels that begin so.
func (r *region) metric(ctx context.Context, name, labels string) (float64, error) {
	raw, _, err := r.client.DoManagement(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(raw)) {
		series, val, ok := strings.Cut(strings.TrimSpace(line), " ")
		have, with, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		if !ok || have != name || !strings.Contains(with, labels) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(val, &v); err == nil {
			sum, found = sum+v, true
		}
	}
	if !found {
		return 0, fmt.Errorf("no metric %s with %q", name, labels)
	}
	return sum, nil
}

// lag is the lag of a region's link; -1 is unknown.
func (r *region) lag(ctx context.Context) (int64, error) {
	var s struct {
		Links []struct {
			From string `json:"from"`
			Lag  *int64 `json:"lag_records"`
		} `json:"links"`
	}
	if err := r.client.Manage(ctx, "/v1/status", &s); err != nil {
		return -1, err
	}
	for _, l := range s.Links {
		if l.From == r.name && l.Lag != nil {
			return *l.Lag, nil
		}
	}
	return -1, nil
}

// settled waits until both regions have applied what was written to the entity topic
// and the link has nothing left. What runs after a load belongs to its cost.
func (w *world) settled(ctx context.Context) error {
	n, err := w.us.mark(ctx, entityTopic, w.gateways())
	w.written += n
	if err != nil {
		return err
	}
	return w.linked(ctx)
}

// linked waits until the link from us has nothing left to copy.
func (w *world) linked(ctx context.Context) error {
	return client.Poll(ctx, 50*time.Millisecond, func() error {
		lag, err := w.us.lag(ctx)
		if err == nil && lag != 0 {
			err = fmt.Errorf("the link has %d records left", lag)
		}
		return err
	})
}
