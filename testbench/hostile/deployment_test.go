//go:build unix

package hostile_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/proc"
)

const (
	// patience bounds every wait for a condition. It is generous: a loaded machine is no
	// fault of the program.
	patience = 90 * time.Second
	// pollEvery is the distance between two questions about what must come about.
	pollEvery = 50 * time.Millisecond
	// stopWait is more than the drain, 10 s.
	stopWait = 30 * time.Second
)

// spec says what to start. The zero spec is one region, us, without a register, beside
// an embedded Kafka or, with GEOGATE_TEST_KAFKA=1, beside Apache Kafka.
type spec struct {
	// pair starts regions us and eu, linked both ways.
	pair bool
	// register has an ownership register: one server of us alone, or three of a pair
	// and a witness.
	register bool
	// embedded keeps the Kafkas embedded, for what is about those.
	embedded bool
	// broker are lines of server.properties of each Apache broker.
	broker map[string]string
	// ownership and residency are policy files; "" is defaultOwnership and none.
	ownership, residency string
	// set are settings of every instance, as key=value of serve's --set. Only lists and
	// scalars can be given.
	set []string
	// flags are more flags of every serve.
	flags []string
	// dir is where everything of the deployment is; "" is a temporary directory.
	dir string
	// under is a shell command that prepares what every serve inherits, like ulimit.
	under string
	// program is another build of the program, [programWith]; "" is the ordinary one.
	program string
}

// defaultOwnership declares entity topic flights and events topic github.
const defaultOwnership = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 4}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 4}
`

// region is one region of a deployment: a child process beside its Kafka. Its client
// part reaches the gateway's listeners.
type region struct {
	client.Client
	name   string
	seeds  []string       // of its Kafka
	broker *apache.Broker // nil where the Kafka is embedded

	data, management string // listeners, host:port
	config, log      string // files
	program          string
	flags            []string
	under            string
	process          *proc.Process // of the latest start
}

// deployment is all regions that a spec started.
type deployment struct {
	dir     string
	us, eu  *region // eu is nil without pair
	witness *proc.Process
	// routes are where the servers of a pair's register listen for each other, by member.
	routes map[string]string
}

func (d *deployment) regions() []*region {
	return slices.DeleteFunc([]*region{d.us, d.eu}, func(r *region) bool { return r == nil })
}

// deploy starts what a spec says and waits until every region takes writes. The end of
// the test stops it, and prints the end of the logs of a test that failed.
func deploy(t *testing.T, s spec) *deployment {
	t.Helper()
	if s.program == "" {
		s.program = program(t)
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	d := &deployment{dir: s.dir, us: &region{name: "us"}}
	if s.pair {
		d.eu = &region{name: "eu"}
	}
	for _, r := range d.regions() {
		r.Client = client.Client{HTTP: client.NewHTTP(), Retry: pollEvery}
		r.data, r.management = freeAddress(t), freeAddress(t)
		r.Address = client.At("http://"+r.data, "http://"+r.management)
		r.log, r.program = filepath.Join(d.dir, r.name+".log"), s.program
		for _, v := range s.set {
			r.flags = append(r.flags, "--set", v)
		}
		r.flags, r.under = append(r.flags, s.flags...), s.under
	}
	d.startKafkas(t, s)
	d.configure(t, s)
	t.Cleanup(func() { d.stop(t) })
	var started sync.WaitGroup
	for _, r := range d.regions() {
		r.launch(t)
	}
	for _, r := range d.regions() {
		started.Go(func() { r.awaitReady(t) })
	}
	started.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return d
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := apache.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// startKafkas starts an Apache broker for each region, or chooses where the embedded one
// will listen.
func (d *deployment) startKafkas(t *testing.T, s spec) {
	t.Helper()
	if s.embedded || os.Getenv("GEOGATE_TEST_KAFKA") != "1" {
		for _, r := range d.regions() {
			r.seeds = []string{freeAddress(t)}
		}
		return
	}
	var started sync.WaitGroup
	for _, r := range d.regions() {
		started.Go(func() {
			var err error
			r.broker, err = apache.Start(t.Context(), apache.Config{Dir: filepath.Join(d.dir, "kafka-"+r.name), HeapMB: 384, Properties: s.broker})
			if err != nil {
				t.Error(err)
				return
			}
			r.seeds = r.broker.Seeds()
		})
	}
	started.Wait()
	t.Cleanup(func() { // after the gateways have stopped
		for _, r := range d.regions() {
			if r.broker != nil {
				if err := r.broker.Stop(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

var configText = template.Must(template.New("config").Parse(`version: 1
region: {{.Own.Name}}
data_dir: {{.Own.Name}}
regions:
{{- range .Regions}}
  {{.Name}}: {id: {{.ID}}, kafka: { {{- if .Embedded}}embedded: {listen: "{{.Kafka}}"}{{else}}seeds: ["{{.Kafka}}"]{{end -}} }}
{{- end}}
{{- if .Pair}}
links:
  - {from: us, to: eu}
  - {from: eu, to: us}
{{- end}}
{{- if .Register}}
nats: {{.Register}}
{{- end}}
http: {listen: "{{.Own.Data}}"}
management: {listen: "{{.Own.Management}}"}
idempotency: {secret_file: secret}
policies: {ownership: ownership.yaml{{if .Residency}}, residency: residency.yaml{{end}}}
drain: 10s
`))

// configRegion is what the text of a configuration says of one region.
type configRegion struct {
	Name                    string
	ID                      int
	Embedded                bool
	Kafka, Data, Management string
}

// configure writes the files that the processes read, and starts the witness.
func (d *deployment) configure(t *testing.T, s spec) {
	t.Helper()
	if s.ownership == "" {
		s.ownership = defaultOwnership
	}
	d.write(t, "ownership.yaml", s.ownership)
	d.write(t, "secret", "0123456789abcdef0123456789abcdef\n")
	d.write(t, "nats.secret", "fedcba9876543210fedcba9876543210\n")
	if s.residency != "" {
		d.write(t, "residency.yaml", s.residency)
	}
	register := d.register(t, s)
	for i, r := range d.regions() {
		var regions []configRegion
		for j, other := range d.regions() {
			regions = append(regions, configRegion{
				Name: other.name, ID: j + 1, Embedded: other == r && r.broker == nil,
				Kafka: other.seeds[0], Data: other.data, Management: other.management,
			})
		}
		var text bytes.Buffer
		if err := configText.Execute(&text, map[string]any{
			"Own": regions[i], "Regions": regions, "Pair": s.pair, "Register": register[r.name], "Residency": s.residency,
		}); err != nil {
			t.Fatal(err)
		}
		r.config = d.write(t, r.name+".yaml", text.String())
	}
}

// register is the value of nats for each region. The witness of a pair is started.
func (d *deployment) register(t *testing.T, s spec) map[string]string {
	t.Helper()
	if !s.register {
		return nil
	}
	if !s.pair {
		return map[string]string{"us": "{mode: solo, embedded: {}}"}
	}
	members := []string{"us", "eu", "witness"}
	at := map[string]string{}
	d.routes = at
	for _, m := range members {
		at[m] = freeAddress(t)
	}
	out := map[string]string{}
	for _, m := range members {
		var routes []string
		for _, other := range members {
			if other != m {
				routes = append(routes, fmt.Sprintf("%q", "nats-route://"+at[other]))
			}
		}
		out[m] = fmt.Sprintf("{embedded: {name: ctl-%s, cluster: %q, routes: [%s], secret_file: nats.secret}}", m, at[m], strings.Join(routes, ", "))
	}
	config := d.write(t, "witness.yaml", fmt.Sprintf("version: 1\ndata_dir: witness\nnats: %s\nmanagement: {listen: %q}\n", out["witness"], freeAddress(t)))
	d.witness = startChild(t, s.program, filepath.Join(d.dir, "witness.log"), "witness", "--config", config)
	for _, m := range members {
		out[m] = strings.Replace(out[m], "{embedded", "{mode: quorum, embedded", 1)
	}
	return out
}

func (d *deployment) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startChild starts the program; what it prints is added to the file log.
func startChild(t *testing.T, program, log string, args ...string) *proc.Process {
	t.Helper()
	return startUnder(t, program, "", log, args...)
}

// startUnder starts the program in a shell that has run a command before.
func startUnder(t *testing.T, program, under, log string, args ...string) *proc.Process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(program, args...)
	if under != "" {
		cmd = exec.Command("sh", append([]string{"-c", under + ` && exec "$0" "$@"`}, cmd.Args...)...)
	}
	cmd.Stdout, cmd.Stderr = f, f
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// launch starts the region's process and does not wait until it serves.
func (r *region) launch(t *testing.T) {
	t.Helper()
	r.process = startUnder(t, r.program, r.under, r.log, append([]string{"serve", "--config", r.config}, r.flags...)...)
}

// start starts the region's process and waits until it takes writes.
func (r *region) start(t *testing.T) {
	t.Helper()
	r.launch(t)
	r.awaitReady(t)
	if t.Failed() {
		t.FailNow()
	}
}

// awaitReady waits until the region takes writes. Any goroutine may call it.
func (r *region) awaitReady(t *testing.T) {
	if err := r.poll(t, func(ctx context.Context) error { return r.Ready(ctx) }); err != nil {
		t.Errorf("region %s is not ready: %v", r.name, err)
	}
}

// await waits until ask gives no error, and ends the test when it does not come about.
func (r *region) await(t *testing.T, what string, ask func(ctx context.Context) error) {
	t.Helper()
	if err := r.poll(t, ask); err != nil {
		t.Fatalf("region %s: %s did not come about: %v", r.name, what, err)
	}
}

// poll asks until there is no error, the process has ended, or patience is over.
func (r *region) poll(t *testing.T, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return client.Poll(ctx, pollEvery, func() error {
		err := ask(ctx)
		select {
		case <-r.process.Done():
			if err != nil {
				cancel()
				return fmt.Errorf("the process has ended with exit code %d: %w", r.process.ExitCode(), err)
			}
		default:
		}
		return err
	})
}

// kill ends the region's process as a crash would.
func (r *region) kill() { r.process.Kill() }

// terminate ends the region's process in order.
func (r *region) terminate(t *testing.T) {
	t.Helper()
	if err := r.process.Stop(stopWait); err != nil {
		t.Fatal(err)
	}
	if code := r.process.ExitCode(); code != 0 {
		t.Fatalf("region %s ends with exit code %d after SIGTERM", r.name, code)
	}
}

// mustRun fails the test if the region's process has ended.
func (r *region) mustRun(t *testing.T) {
	t.Helper()
	select {
	case <-r.process.Done():
		t.Fatalf("the process of region %s has ended with exit code %d", r.name, r.process.ExitCode())
	default:
	}
}

// readiness asks /readyz, with a query or "".
func (r *region) readiness(t *testing.T, query string) (status int, text string) {
	t.Helper()
	resp, err := r.HTTP.Get("http://" + r.management + "/readyz" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// awaitWarning waits until the status has a warning, and gives it.
func (r *region) awaitWarning(t *testing.T, code warning.Code, subject string) (w warning.Warning) {
	t.Helper()
	r.await(t, fmt.Sprintf("warning %s %s", code, subject), func(ctx context.Context) error {
		s, err := r.status(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Warnings, func(w warning.Warning) bool { return w.Code == code && w.Subject == subject })
		if i < 0 {
			return fmt.Errorf("warnings %v", s.Warnings)
		}
		w = s.Warnings[i]
		return nil
	})
	return w
}

// status is what the region says of itself.
func (r *region) status(ctx context.Context) (s gateway.Status, err error) {
	return s, r.Manage(ctx, "/v1/status", &s)
}

// command runs a command of an operator against the region.
func (r *region) command(t *testing.T, args ...string) output {
	t.Helper()
	return command(t, append(args, "--gateway", "http://"+r.management)...)
}

// kafka is a client of the region's Kafka that puts records into the partitions that
// they name, as a neighbour with write access does. The end of the test closes it.
func (r *region) kafka(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(r.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8 << 20),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// put writes records to the region's Kafka, past the gateway.
func (r *region) put(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	if err := r.kafka(t).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatalf("put records into the Kafka of %s: %v", r.name, err)
	}
}

// mustStore writes a record through the gateway, asking again as a careful client does.
func (r *region) mustStore(t *testing.T, w client.Write) client.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := r.Store(ctx, w)
	if err != nil {
		t.Fatalf("region %s: %v", r.name, err)
	}
	return a
}

// memory is the resident memory of the region's process in bytes, now and at its highest
// since the process started or [region.resetPeak].
func (r *region) memory(t *testing.T) (now, peak int64) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.process.Pid()))
	if err != nil {
		r.mustRun(t)
		t.Skipf("resident memory is read from /proc: %v", err)
	}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		into := map[string]*int64{"VmRSS": &now, "VmHWM": &peak}[name]
		if into == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		*into = kib << 10
	}
	return now, peak
}

// resetPeak lets the highest resident memory begin with what it is now.
func (r *region) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.process.Pid()), []byte("5"), 0); err != nil {
		t.Skipf("reset the peak of resident memory: %v", err)
	}
}

// stop ends all processes. Those that do not end in order are killed.
func (d *deployment) stop(t *testing.T) {
	var all sync.WaitGroup
	children := []*proc.Process{}
	for _, r := range d.regions() {
		r.HTTP.CloseIdleConnections()
		if r.process != nil {
			children = append(children, r.process)
		}
	}
	for _, p := range children {
		all.Go(func() {
			p.Signal(syscall.SIGCONT)
			if err := p.Stop(stopWait); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if d.witness != nil {
		if err := d.witness.Stop(stopWait); err != nil {
			t.Error(err)
		}
	}
	if !t.Failed() {
		return
	}
	for _, r := range d.regions() {
		t.Logf("the log of %s ends:\n%s", r.name, tail(r.log))
	}
}

// tail is the end of a file.
func tail(file string) string {
	const most = 8000
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-most):])
}
