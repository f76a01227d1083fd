//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/cutproxy"
	"github.com/geogate/geogate/testbench/proc"

	"github.com/geogate/geogate/testbench/client"
)

// deadAddress is what every register server tells the others of itself: nothing
// listens there, so that they meet through the proxies or not at all.
const deadAddress = "127.0.0.1:1"

// threeSites is the second world: both regions and a witness, with one register over
// all three, a residency policy, and a tap in every line.
type threeSites struct {
	*world
	dir, bin string
	secret   []byte

	witness *proc.Process
	routes  []route
	taps    []tap
}

// route is the way of one register server to another.
type route struct {
	from, to string
	proxy    *cutproxy.Proxy
}

// tap is a line that is written down: what it joins, for people, and where its
// bytes are.
type tap struct{ name, dir string }

const witnessName = "witness"

// The topics of the second world. Keys or headers decide what of github and
// patients may leave eu; nothing of private may leave.
const (
	catalogueTopic = "catalogue" // entity, eu's alone
	ordersTopic    = "orders"    // entity, of the region in the header home
	patientsTopic  = "patients"  // entity
	privateTopic   = "private"   // entity

	publicKeys = "public/" // keys of github that may leave begin so
)

const threeSitesOwnership = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 6}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 6}
  - {name: catalogue, match: ["catalogue"], kind: entity, mode: single_region, owner: eu, policy: lww, on_foreign_write: reject, partitions: 6}
  - {name: orders, match: ["orders"], kind: entity, mode: by_key, owner: 'headers["home"]', policy: lww, on_foreign_write: reject, partitions: 6}
  - {name: health, match: ["patients", "private"], kind: entity, mode: multi_writer, policy: lww, partitions: 2}
`

const threeSitesResidency = `version: 1
kind: ResidencyPolicy
name: accept
revision: 1
default: deny
groups: {america: [us]}
topics: [{match: ["github", "patients", "private"], format: json}]
rules:
  - {id: public-repos, effect: allow, topics: ["github"], from: [eu], to: ["@america"], when: 'key in ["octo-org/octo-repo", "octocat/hello-world"] || key.startsWith("public/")'}
  - {id: released, effect: allow, topics: ["patients"], from: [eu], to: ["@america"], when: 'headers["class"] == "public"'}
  - {id: held, effect: deny, topics: ["patients"], from: [eu], to: ["*"], when: '"hold" in headers'}
  - {id: from-us, effect: allow, topics: ["github", "patients"], from: [us], to: ["*"]}
  - {id: open, effect: allow, topics: ["flights", "catalogue", "orders"], from: ["*"], to: ["*"]}
`

var threeSitesConfig = template.Must(template.New("three sites").Parse(`version: 1
region: {{.Name}}
instance: {{.Name}}-0
data_dir: {{.Dir}}
regions:
  {{.Name}}: {id: {{.ID}}, kafka: {{.Own}}}
  {{.PeerName}}: {id: {{.PeerID}}, kafka: {seeds: ["{{.PeerAddr}}"]}}
links: [{name: {{.Name}}-{{.PeerName}}, from: {{.Name}}, to: {{.PeerName}}, include: ["*"], exclude: []}]
nats:
  mode: quorum
  embedded: {{.NATS}}
http: {listen: "{{.HTTP}}"}
management: {listen: "{{.Manage}}"}
idempotency: {window: 24h, secret_file: {{.Secret}}}
policies: {ownership: {{.Ownership}}, residency: {{.Residency}}}
log: {level: info}
drain: 30s
`))

// startThreeSites starts the second world under dir. It returns what it started even
// with an error.
func startThreeSites(ctx context.Context, o options, dir, bin string) (*threeSites, error) {
	t := &threeSites{dir: dir, bin: bin, secret: []byte(randomWord() + randomWord()), world: &world{
		us:   &region{name: "us", id: 1, bin: bin, flags: []string{"--uncompressed"}},
		eu:   &region{name: "eu", id: 2, bin: bin, flags: []string{"--uncompressed"}},
		http: client.NewHTTP(),
	}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return t, err
	}
	brokers := make(chan error, 2)
	for _, r := range t.regions() {
		r.dir = filepath.Join(dir, r.name)
		go func() { brokers <- t.startKafka(ctx, o, dir, r) }()
	}
	if err := errors.Join(<-brokers, <-brokers); err != nil {
		return t, err
	}
	for _, r := range t.regions() {
		addr, err := freeAddress()
		if err != nil {
			return t, err
		}
		if r.proxy, err = cutproxy.Start(r.seeds(), addr); err != nil {
			return t, err
		}
		if err := t.tap(r.proxy, fmt.Sprintf("kafka of %s, from %s", r.name, t.other(r).name)); err != nil {
			return t, err
		}
	}
	nats, err := t.configureRegister()
	if err != nil {
		return t, err
	}
	for name, text := range map[string]string{
		"ownership.yaml": threeSitesOwnership, "residency.yaml": threeSitesResidency, "secret": string(t.secret) + "\n",
		"nats.secret": randomWord() + randomWord() + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return t, err
		}
	}
	for _, r := range t.regions() {
		if err := t.configureRegion(r, nats[r.name]); err != nil {
			return t, err
		}
	}
	if err := t.startWitness(nats[witnessName]); err != nil {
		return t, err
	}
	ups := make(chan error, 2)
	for _, r := range t.regions() {
		go func() { ups <- t.up(ctx, r) }()
	}
	return t, errors.Join(<-ups, <-ups)
}

func freeAddress() (string, error) {
	port, err := apache.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// tap writes a line down under a name of its own.
func (t *threeSites) tap(p *cutproxy.Proxy, name string) error {
	dir := filepath.Join(t.dir, "taps", strings.NewReplacer(" ", "-", ",", "").Replace(name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	p.Tap(dir)
	t.taps = append(t.taps, tap{name, dir})
	return nil
}

// door puts a tapped proxy before a server and gives its address.
func (t *threeSites) door(r *region, to, name string) (string, error) {
	addr, err := freeAddress()
	if err != nil {
		return "", err
	}
	p, err := cutproxy.StartTCP(to, addr)
	if err != nil {
		return "", err
	}
	r.taps = append(r.taps, p)
	return addr, t.tap(p, name)
}

// configureRegister lays a tapped proxy on the way from every register server to
// every other, and gives the servers' configurations by name.
func (t *threeSites) configureRegister() (map[string]string, error) {
	names := []string{t.us.name, t.eu.name, witnessName}
	listen := make(map[string]string)
	for _, name := range names {
		addr, err := freeAddress()
		if err != nil {
			return nil, err
		}
		listen[name] = addr
	}
	out := make(map[string]string)
	for _, from := range names {
		var ways []string
		for _, to := range names {
			if to == from {
				continue
			}
			addr, err := freeAddress()
			if err != nil {
				return nil, err
			}
			p, err := cutproxy.StartTCP(listen[to], addr)
			if err != nil {
				return nil, err
			}
			t.routes = append(t.routes, route{from, to, p})
			if err := t.tap(p, fmt.Sprintf("register of %s, from %s", to, from)); err != nil {
				return nil, err
			}
			ways = append(ways, fmt.Sprintf("%q", "nats-route://"+addr))
		}
		out[from] = fmt.Sprintf("{name: ctl-%s, cluster: %q, advertise: %q, routes: [%s], secret_file: %q}", from, listen[from], deadAddress, strings.Join(ways, ", "),
			filepath.Join(t.dir, "nats.secret"))
	}
	return out, nil
}

// configureRegion writes a region's configuration. Clients come to its listeners,
// and on Apache Kafka its gateway to its own broker, through taps.
func (t *threeSites) configureRegion(r *region, nats string) error {
	peer := t.other(r)
	own := fmt.Sprintf(`{embedded: {listen: %q}}`, r.seeds()[0])
	if r.broker != nil {
		addr, err := freeAddress()
		if err != nil {
			return err
		}
		p, err := cutproxy.Start(r.seeds(), addr)
		if err != nil {
			return err
		}
		r.taps = append(r.taps, p)
		if err := t.tap(p, fmt.Sprintf("kafka of %s, from %s", r.name, r.name)); err != nil {
			return err
		}
		own = fmt.Sprintf(`{seeds: [%q]}`, addr)
	}
	var listen, doors [2]string
	for i, what := range []string{"http", "management"} {
		var err error
		if listen[i], err = freeAddress(); err != nil {
			return err
		}
		if doors[i], err = t.door(r, listen[i], fmt.Sprintf("%s of %s", what, r.name)); err != nil {
			return err
		}
	}
	r.listens(t.http, doors[0], doors[1])
	r.config, r.log = filepath.Join(t.dir, r.name+".yaml"), filepath.Join(t.dir, r.name+".log")
	var text bytes.Buffer
	err := threeSitesConfig.Execute(&text, map[string]any{
		"Name": r.name, "ID": r.id, "Dir": r.dir, "Own": own,
		"PeerName": peer.name, "PeerID": peer.id, "PeerAddr": peer.proxy.Addr(),
		"NATS": nats, "HTTP": listen[0], "Manage": listen[1], "Secret": filepath.Join(t.dir, "secret"),
		"Ownership": filepath.Join(t.dir, "ownership.yaml"), "Residency": filepath.Join(t.dir, "residency.yaml"),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(r.config, text.Bytes(), 0o644)
}

func (t *threeSites) witnessLog() string { return filepath.Join(t.dir, witnessName+".log") }
func (t *threeSites) witnessDir() string { return filepath.Join(t.dir, witnessName) }

func (t *threeSites) startWitness(nats string) error {
	manage, err := freeAddress()
	if err != nil {
		return err
	}
	config := filepath.Join(t.dir, witnessName+".yaml")
	text := fmt.Sprintf("version: 1\ndata_dir: %s\nnats: {embedded: %s}\nmanagement: {listen: %q}\n", t.witnessDir(), nats, manage)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	log, err := os.Create(t.witnessLog())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(t.bin, "witness", "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	t.witness, err = proc.Start(cmd)
	return err
}

// isolate cuts a region's register server off from both others, or joins it again.
func (t *threeSites) isolate(r *region) {
	for _, way := range t.routes {
		if way.from == r.name || way.to == r.name {
			way.proxy.Cut()
		}
	}
}

func (t *threeSites) rejoin(r *region) error {
	var errs []error
	for _, way := range t.routes {
		if way.from == r.name || way.to == r.name {
			errs = append(errs, way.proxy.Heal())
		}
	}
	return errors.Join(errs...)
}

// close takes everything down.
func (t *threeSites) close() error {
	err := t.world.close()
	if t.witness != nil {
		t.witness.Signal(syscall.SIGTERM)
		select {
		case <-t.witness.Done():
		case <-time.After(5 * time.Second):
			t.witness.Kill()
		}
	}
	for _, way := range t.routes {
		err = errors.Join(err, way.proxy.Close())
	}
	return err
}

// command runs geogate against a region's gateway and gives its standard output
// and exit code.
func (t *threeSites) command(ctx context.Context, r *region, args ...string) (out []byte, code int, err error) {
	cmd := exec.CommandContext(ctx, t.bin, append(args, "--gateway", r.manage)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	if err != nil {
		return nil, -1, fmt.Errorf("run geogate %s: %w", strings.Join(args, " "), err)
	}
	if stderr.Len() > 0 && cmd.ProcessState.ExitCode() != 10 {
		return stdout.Bytes(), cmd.ProcessState.ExitCode(), fmt.Errorf("geogate %s: exit %d: %s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), cmd.ProcessState.ExitCode(), nil
}

// order runs an ownership command and, as long as the gateway says that it cannot
// reach the register, runs it again, as an operator would.
func (t *threeSites) order(ctx context.Context, r *region, args ...string) (out []byte, code int, err error) {
	short, cancel := context.WithTimeout(ctx, knowWait)
	defer cancel()
	poll(short, 500*time.Millisecond, func() bool {
		out, code, err = t.command(ctx, r, args...)
		return code != exitUnreachable
	})
	return out, code, err
}

// extent is where epochs begin or end in one topic; offsets by partition, negative
// where nothing is said.
type extent struct {
	Topic       string  `json:"topic"`
	Incarnation uint16  `json:"incarnation"`
	Offsets     []int64 `json:"offsets"`
}

// unit is what the register says of one.
type unit struct {
	Unit     string  `json:"unit"`
	Owner    *string `json:"owner"`
	Epoch    uint64  `json:"epoch"`
	State    string  `json:"state"`
	Revision uint64  `json:"revision"`
	Reason   string  `json:"reason"`
	Epochs   []struct {
		First uint64   `json:"first"` // of those that are joined; 0: none are
		Epoch uint64   `json:"epoch"`
		Owner string   `json:"owner"`
		Ended bool     `json:"ended"`
		Start []extent `json:"start"`
		Cut   []extent `json:"cut"`
	} `json:"epochs"`
}

// units is what a region's gateway knows of the register, by name of the unit.
func (t *threeSites) units(ctx context.Context, r *region) (map[string]unit, error) {
	var p struct {
		Units []unit `json:"units"`
	}
	if err := r.gateway.Manage(ctx, "/v1/ownership", &p); err != nil {
		return nil, fmt.Errorf("read ownership in %s: %w", r.name, err)
	}
	out := make(map[string]unit)
	for _, u := range p.Units {
		out[u.Unit] = u
	}
	return out, nil
}
