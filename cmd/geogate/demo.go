package main

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/dirlock"
	"github.com/geogate/geogate/internal/node"
)

// demoRegion is one of the two regions of the demo.
type demoRegion struct {
	Name                              string
	ID                                int
	Data, Management, Kafka, Register int // ports on loopback
}

// demoRegions have the ports that the documentation names.
func demoRegions() []demoRegion {
	return []demoRegion{
		{Name: "us", ID: 1, Data: 18081, Management: 18091, Kafka: 19092, Register: 16222},
		{Name: "eu", ID: 2, Data: 18082, Management: 18092, Kafka: 29092, Register: 26222},
	}
}

// demoWitness is the third server of the register.
type demoWitness struct {
	Management, Register int // ports on loopback
}

func (r demoRegion) dataURL() string       { return fmt.Sprintf("http://127.0.0.1:%d", r.Data) }
func (r demoRegion) managementURL() string { return fmt.Sprintf("http://127.0.0.1:%d", r.Management) }

type demo struct {
	dir     string
	fresh   bool
	ports   string
	once    bool
	regions []demoRegion
	witness demoWitness
	out     io.Writer
	started time.Time
}

func newDemo(environment) *cobra.Command {
	d := demo{regions: demoRegions(), witness: demoWitness{Management: 18093, Register: 31222}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run two regions and a witness in this process, with data in them, and say what to try",
		Long: `Run two regions, us and eu, and a witness in this process: each region with its own embedded Kafka and its own
gateway, linked both ways, and each of the three with one server of the ownership register. The regions are filled
with flights (entities, by airport) and GitHub webhooks (events), of which a residency policy keeps all but two
repositories' in eu, and keep running until interrupted.

State, configuration files and the log stay in --dir; the next start goes on from there. A fresh demo takes its first
write within a few seconds; on a kept state the register's servers first elect a leader, which may take 10 s.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.out, d.started = cmd.OutOrStdout(), time.Now()
			return d.run()
		},
	}
	cmd.Flags().StringVar(&d.dir, "dir", ".geogate-demo", "`directory` for state, configuration and log")
	cmd.Flags().BoolVar(&d.fresh, "fresh", false, "forget an earlier demo's state first")
	cmd.Flags().StringVar(&d.ports, "ports", "fixed", "`fixed`, the ports that the documentation names, or auto, free ones")
	cmd.Flags().BoolVar(&d.once, "once", false, "end after both regions have everything")
	return cmd
}

// demoEntries are what the demo writes into its directory: all that --fresh
// deletes, whatever directory it is given.
var demoEntries = []string{
	"us", "eu", "witness", "us.yaml", "eu.yaml", witnessFile, "ownership.yaml", "residency.yaml", "secret", "nats.secret", "seeded", demoLog,
}

const (
	demoLog     = "demo.log"
	witnessFile = "witness.yaml"
)

func (d *demo) run() error {
	if err := d.choosePorts(); err != nil {
		return err
	}
	release, err := d.lock()
	if err != nil {
		return err
	}
	defer release()
	configs, third, err := d.prepare()
	if err != nil {
		return exitWith(exitPrecondition, "prepare demo: %w", err)
	}
	logFile, err := os.OpenFile(filepath.Join(d.dir, demoLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return exitWith(exitPrecondition, "open demo log: %w", err)
	}
	defer logFile.Close()
	log := newLogger(logFile, "info")

	fmt.Fprintf(d.out, "Starting regions us and eu, and a witness; log in %s.\n", logFile.Name())
	// The witness starts first and stops last: the regions give their leases back to
	// the register.
	app := fx.New(witness(log, third, false), instances(log, false, false, configs...), fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner) {
		own(lc, sd, node.Component{Name: "demo", Run: func(ctx context.Context) error { return d.guide(ctx, sd, log) }})
	}))
	return runApp(app, configs[0].Drain, log)
}

// lock takes the directory for this demo: another one that runs there would lose its
// files to --fresh.
func (d *demo) lock() (release func() error, err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, exitWith(exitPrecondition, "prepare demo: %w", err)
	}
	release, err = dirlock.Take(d.dir, dirlock.Patience, func(holder string) {
		fmt.Fprintf(d.out, "%s runs a demo in %s; waiting for it to end.\n", holder, d.dir)
	})
	if errors.Is(err, dirlock.ErrInUse) {
		return nil, exitWith(exitPrecondition, "another demo runs in %s; stop it, or give this one a directory of its own with --dir", d.dir)
	}
	if err != nil {
		return nil, exitWith(exitPrecondition, "prepare demo: %w", err)
	}
	return release, nil
}

// choosePorts takes free ports, or finds out early, and in words that help, that
// the fixed ones are taken.
func (d *demo) choosePorts() error {
	switch d.ports {
	case "auto", "fixed":
	default:
		return exitWith(exitUsage, "--ports %s: want fixed or auto", d.ports)
	}
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for _, port := range d.allPorts() {
		listen := func() (net.Listener, error) { return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port)) }
		if d.ports == "auto" {
			listen = listenAnywhere
		}
		l, err := listen()
		if err != nil {
			return exitWith(exitPrecondition, "port %d is taken, by another demo perhaps; --ports auto takes free ones (make demo ARGS=\"--ports auto\"): %w", *port, err)
		}
		// All are held until the last is chosen, so that none is chosen twice.
		held = append(held, l)
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

func (d *demo) allPorts() []*int {
	all := []*int{&d.witness.Management, &d.witness.Register}
	for i := range d.regions {
		r := &d.regions[i]
		all = append(all, &r.Data, &r.Management, &r.Kafka, &r.Register)
	}
	return all
}

// routes are the register's servers as the one that listens on the port own names
// the others.
func (d *demo) routes(own int) (others []string) {
	for _, port := range []int{d.regions[0].Register, d.regions[1].Register, d.witness.Register} {
		if port != own {
			others = append(others, fmt.Sprintf("nats-route://127.0.0.1:%d", port))
		}
	}
	return others
}

// listenAnywhere takes a free port below those that systems give to outgoing
// connections: a port of that range, given back until its server starts, may be
// the next connection's.
func listenAnywhere() (net.Listener, error) {
	const lowest, highest, tries = 20000, 32000, 100
	for range tries {
		port := lowest + rand.IntN(highest-lowest)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("none of %d ports tried between %d and %d is free", tries, lowest, highest)
}

var demoConfig = template.Must(template.New("config").Parse(`# Written by geogate demo at every start. Run one region alone with: geogate serve --config {{.Own.Name}}.yaml
version: 1
region: {{.Own.Name}}
data_dir: {{.Own.Name}}
regions:
{{- range .Regions}}
{{- if eq .Name $.Own.Name}}
  {{.Name}}: {id: {{.ID}}, kafka: {embedded: {listen: "127.0.0.1:{{.Kafka}}"}}}
{{- else}}
  {{.Name}}: {id: {{.ID}}, kafka: {seeds: ["127.0.0.1:{{.Kafka}}"]}}
{{- end}}
{{- end}}
links:
  - {from: us, to: eu}
  - {from: eu, to: us}
nats:
  mode: quorum
  embedded:
    name: ctl-{{.Own.Name}}
    cluster: "127.0.0.1:{{.Own.Register}}"
    routes: [{{range $i, $r := .Routes}}{{if $i}}, {{end}}"{{$r}}"{{end}}]
    secret_file: nats.secret
http: {listen: "127.0.0.1:{{.Own.Data}}"}
management: {listen: "127.0.0.1:{{.Own.Management}}"}
idempotency: {secret_file: secret}
policies: {residency: residency.yaml, ownership: ownership.yaml}
`))

var demoWitnessConfig = template.Must(template.New("witness").Parse(`# Written by geogate demo at every start. Run it alone with: geogate witness --config witness.yaml
version: 1
data_dir: witness
nats:
  embedded:
    name: ctl-witness
    cluster: "127.0.0.1:{{.Own.Register}}"
    routes: [{{range $i, $r := .Routes}}{{if $i}}, {{end}}"{{$r}}"{{end}}]
    secret_file: nats.secret
management: {listen: "127.0.0.1:{{.Own.Management}}"}
`))

const demoResidency = `# Written by geogate demo at every start. Ask it with: geogate policy explain residency.yaml --topic github --from eu --to us --key K
version: 1
kind: ResidencyPolicy
name: demo
revision: 1
default: deny
groups: {europe: [eu]}
topics: [{match: ["github"], format: json}]
rules:
  - {id: public-repos, effect: allow, topics: ["github"], from: [eu], to: ["*"], when: 'key in ["octo-org/octo-repo", "octocat/hello-world"]'}
  - {id: github-from-us, effect: allow, topics: ["github"], from: [us], to: ["*"]}
  - {id: flights, effect: allow, topics: ["flights"], from: ["*"], to: ["*"]}
`

const demoOwnership = `# Written by geogate demo at every start.
version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 6}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 6}
`

// prepare writes the files of both regions and of the witness, and reads them back
// as serve and witness do.
func (d *demo) prepare() (configs []node.Config, third node.WitnessConfig, err error) {
	if d.fresh {
		for _, entry := range demoEntries {
			if err := os.RemoveAll(filepath.Join(d.dir, entry)); err != nil {
				return nil, third, err
			}
		}
	}
	for name, text := range map[string]string{"ownership.yaml": demoOwnership, "residency.yaml": demoResidency} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
			return nil, third, err
		}
	}
	for _, name := range []string{"secret", "nats.secret"} {
		if err := d.keepSecret(name); err != nil {
			return nil, third, err
		}
	}
	for _, r := range d.regions {
		path := filepath.Join(d.dir, r.Name+".yaml")
		if err := writeTemplate(path, demoConfig, map[string]any{"Own": r, "Regions": d.regions, "Routes": d.routes(r.Register)}); err != nil {
			return nil, third, err
		}
		flags := configFlags{file: path}
		c, err := flags.load(environment{}) // one process, two regions: the environment is neither's
		if err != nil {
			return nil, third, err
		}
		configs = append(configs, c.Config)
	}
	path := filepath.Join(d.dir, witnessFile)
	if err := writeTemplate(path, demoWitnessConfig, map[string]any{"Own": d.witness, "Routes": d.routes(d.witness.Register)}); err != nil {
		return nil, third, err
	}
	third, err = loadWitness(path)
	return configs, third, err
}

// keepSecret makes a secret that the regions share once: keys written by an earlier run
// are found only under the same one.
func (d *demo) keepSecret(name string) error {
	path := filepath.Join(d.dir, name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(crand.Text()+"\n"), 0o600)
}

func writeTemplate(path string, t *template.Template, values any) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(t.Execute(f, values), f.Close())
}

// guide fills the regions, waits until each has what the other got, and prints
// what to try. It is the demo's last component and ends with the app.
func (d *demo) guide(ctx context.Context, sd fx.Shutdowner, log *slog.Logger) error {
	s := seeder{regions: d.regions, started: d.started, log: log}
	marker := filepath.Join(d.dir, "seeded")
	_, err := os.Stat(marker)
	if err == nil {
		fmt.Fprintln(d.out, "Data of the last run is kept (--fresh starts over).")
	} else {
		count, err := s.seed(ctx)
		if err != nil {
			return err
		}
		if err := os.WriteFile(marker, nil, 0o600); err != nil {
			return fmt.Errorf("note that the demo is seeded: %w", err)
		}
		fmt.Fprintf(d.out, "First write answered after %.1f s; %d records written, odd lines in us, even lines in eu.\n", s.first.Seconds(), count)
	}
	fenced, err := s.settle(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Both regions have everything, and the right to write, after %.1f s.\n", time.Since(d.started).Seconds())
	for _, region := range fenced {
		fmt.Fprintf(d.out, "But %s was fenced by an earlier command and refuses writes: see 9 below.\n", region)
	}
	if err := demoGuide.Execute(d.out, map[string]string{
		"US": d.regions[0].dataURL(), "EU": d.regions[1].dataURL(), "Management": d.regions[0].managementURL(),
		"Program": os.Args[0], // which need not be in the shell's path
		"Policy":  filepath.Join(d.dir, "residency.yaml"),
	}); err != nil {
		return fmt.Errorf("print guide: %w", err)
	}
	if d.once {
		if err := sd.Shutdown(fx.ExitCode(exitDone)); err != nil {
			return fmt.Errorf("end demo: %w", err)
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// demoGuide is what to try, each as one line for a shell with curl.
var demoGuide = template.Must(template.New("guide").Parse(`
Try, in another terminal:

1. Write in us and read it in eu; the token makes the read wait for the write.
   T=$(curl -s {{.US}}/v1/topics/flights/records -H 'Content-Type: application/json' -d '{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":7}}}' | sed 's/.*"token":"\([^"]*\)".*/\1/'); curl -s -H "Geogate-Token: $T" {{.EU}}/v1/topics/flights/entities/DTW; echo

2. Retry a write in the other region with its idempotency key: the first answer comes again, and there is one event.
   for r in {{.US}} {{.EU}}; do curl -si $r/v1/topics/github/records -H 'Content-Type: application/json' -H 'Idempotency-Key: try-2' -d '{"key":{"type":"string","data":"me/repo"},"value":{"type":"json","data":{"event":"star"}}}' | grep -i -e '^idempotent' -e '"dot"'; sleep 1; done

3. Update one airport in both regions at once, and see which update won and why.
   for r in {{.US}} {{.EU}}; do curl -s $r/v1/topics/flights/records -H 'Content-Type: application/json' -d "{\"key\":{\"type\":\"string\",\"data\":\"ZRH\"},\"value\":{\"type\":\"json\",\"data\":{\"from\":\"$r\"}}}" >/dev/null & done; wait; sleep 1; curl -s {{.US}}/v1/topics/flights/entities/ZRH; echo; curl -s '{{.US}}/v1/conflicts?topic=flights&limit=1000' | sed 's/},{"topic"/}\n{"topic"/g' | grep ZRH | tail -1

4. Follow the merged stream of both regions (interrupt to stop).
   curl -sN -H 'Accept: application/x-ndjson' '{{.EU}}/v1/topics/github/records?view=merged&from=earliest&follow=true' | cut -c1-160

5. Read some events in us, stop, and go on in eu with the cursor: no gap, no repeat.
   C=$(curl -s '{{.US}}/v1/topics/github/records?view=merged&from=earliest&limit=5' | sed 's/.*"next":"\([^"]*\)".*/\1/'); curl -s "{{.EU}}/v1/topics/github/records?view=merged&from=$C&limit=5" | cut -c1-400; echo

6. See links, lag and owners.
   {{.Program}} status --gateway {{.Management}}

7. Write in eu an event that must not leave it: eu shows it, us never does, and the policy says why.
   curl -s {{.EU}}/v1/topics/github/records -H 'Content-Type: application/json' -d '{"key":{"type":"string","data":"eu-corp/payroll"},"value":{"type":"json","data":{"event":"push"}}}' >/dev/null; sleep 1; for r in {{.US}} {{.EU}}; do curl -s "$r/v1/topics/github/records?view=merged&from=earliest&limit=1000" | grep -q eu-corp/payroll && echo "shown by $r" || echo "unknown to $r"; done; {{.Program}} policy explain {{.Policy}} --topic github --from eu --to us --key eu-corp/payroll

8. Fence eu, and have a write refused there: the answer names the unit, its epoch, who fenced it and why.
   {{.Program}} fence --gateway {{.Management}} --region eu --reason 'trying it out'; curl -s {{.EU}}/v1/topics/flights/records -H 'Content-Type: application/json' -d '{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":8}}}'; echo

9. Let eu write again. It first waits until no earlier lease can hold, up to 19 s; until then writes get 503 with Retry-After.
   {{.Program}} unfence --gateway {{.Management}} --region eu; curl -sf --retry 30 --retry-delay 1 {{.EU}}/v1/topics/flights/records -H 'Content-Type: application/json' -d '{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"delay":9}}}'; echo

Interrupt to stop.
`))
