//go:build unix

package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/proc"
)

// Bounds of the examples. They are generous: a busy machine is no fault of the
// documentation.
const (
	demoStart   = 90 * time.Second
	demoStop    = 40 * time.Second
	exampleTime = 60 * time.Second // a region that was fenced waits for 18.4 s before it writes
)

// TestExamples runs every example that a document marks as runnable, and every
// command that the demo prints, against a demo on free ports.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program and runs a demo")
	}
	t.Parallel()
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the examples need %s: %v", tool, err)
		}
	}
	d := startDemo(t)
	count := 0
	for name, text := range documents(t) {
		all := blocks(t, name, text)
		if !slices.ContainsFunc(all, func(b block) bool { return b.mark == "run" }) {
			continue
		}
		t.Run(name, func(t *testing.T) { count += d.runAll(t, all) })
	}
	if count < 10 {
		t.Errorf("only %d examples were found", count)
	}
	t.Run("printed", d.runPrinted)
	t.Run("metrics", d.checkMetrics)
}

// assignments is a block that only sets variables to words: what later blocks of
// its document go on with.
var assignments = regexp.MustCompile(`^([A-Z_]+=[^\s$]+\n)+$`)

// runAll runs the marked blocks of one document and gives their number.
func (d *place) runAll(t *testing.T, all []block) (count int) {
	var before string
	for _, b := range all {
		switch {
		case b.mark == "file":
			if err := os.WriteFile(filepath.Join(d.dir, b.arg), []byte(b.text), 0o600); err != nil {
				t.Error(err)
			}
			continue
		case b.mark != "run":
			continue
		case assignments.MatchString(b.text):
			before += b.text
			continue
		case len(b.wants) == 0:
			t.Errorf("line %d: nothing is said about the output", b.line)
		}
		count++
		if err := d.try(before+b.text, false, b.wants); err != nil {
			t.Errorf("line %d: %v", b.line, err)
		}
	}
	return count
}

// Some examples race with the links: what they show comes about within a second,
// or in the same moment, unless the machine is busy. They are tried again for
// triesFor, tryAgain after the last try.
const (
	triesFor = 60 * time.Second
	tryAgain = 500 * time.Millisecond
)

var idempotencyKey = regexp.MustCompile(`Idempotency-Key: "?[\w/-]+`)

// try runs a script until its output has what it should have. Each try has
// idempotency keys of its own.
func (d *place) try(script string, endless bool, wants []string) (err error) {
	last := time.Now().Add(triesFor)
	for n := 0; n == 0 || time.Now().Before(last); n++ {
		text := script
		if n > 0 {
			text = idempotencyKey.ReplaceAllString(script, fmt.Sprintf("$0-again-%d", n))
			if err := sleep.For(context.Background(), tryAgain); err != nil {
				return err
			}
		}
		out, failed := d.shell(text, endless, wants)
		want := missing(out, wants)
		switch {
		case failed != nil && (!endless || want != ""):
			err = fmt.Errorf("%w\n%s\n%s", failed, text, out)
		case want != "":
			err = fmt.Errorf("the output lacks %q\n%s\n%s", want, text, out)
		default:
			return nil
		}
	}
	return err
}

// shell runs a script as documented, with the demo's ports and program. An endless one
// is ended once its output has what it should have.
func (d *place) shell(script string, endless bool, wants []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), exampleTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e")
	cmd.Stdin = strings.NewReader(d.ports.Replace(script))
	cmd.Dir = d.dir // where bin/geogate is
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // what it has started, too
	cmd.WaitDelay = time.Second
	out := &output{enough: func(so string) {
		if endless && missing(so, wants) == "" {
			cancel()
		}
	}}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return out.String(), err
}

// output keeps what a script prints, and shows all of it after each piece. The two
// streams of a command that are one writer are written by one goroutine.
type output struct {
	strings.Builder
	enough func(so string)
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Builder.Write(p)
	o.enough(o.String())
	return n, err
}

// runPrinted runs what the demo prints.
func (d *demo) runPrinted(t *testing.T) {
	wants := [][]string{
		{`"key":{"type":"string","data":"DTW"}…"delay":7`},
		{`"dot":"us/0/`, `dempotent-Replayed: true`, `"dot":"us/0/`},
		{`"data":"ZRH"`, `"reason":"concurrent"`},
		{`{"topic":"github"`},
		{`{"records":[{"topic":"github"`},
		{"REGION us", "us-eu…running", "air/us"},
		{"unknown to ", "shown by ", "this record: deny by default"},
		{"fenced; every answered write lies below the cut", "air/eu", `"status":409…"code":"NOT_OWNER"…"unit":"air/eu"`},
		{"region eu may claim its own units again", `"region":"eu"…"unit":"air/eu"`},
	}
	printed := regexp.MustCompile(`(?m)^(\d)\. .*\n {3}(.+)$`).FindAllStringSubmatch(d.output(), -1)
	if len(printed) != len(wants) {
		t.Fatalf("%d examples, want %d:\n%s", len(printed), len(wants), d.output())
	}
	own := place{dir: d.dir, ports: strings.NewReplacer()} // what it prints has the ports in use, of which one may be another's documented port
	for i, m := range printed {
		if err := own.try(m[2], strings.Contains(m[2], "follow=true"), wants[i]); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
}

// rare are metrics that a demo need not have: they begin with the first of what
// they count.
var rare = []string{"geogate_beyond_limits_total", "geogate_fold_quarantined_total", "geogate_fold_replaced_records_total", "geogate_rejected_total", "geogate_unread_margin_records", "geogate_write_refusals_total"}

// checkMetrics holds what the demo measures against the operators' table: each
// metric is there with its type and its labels.
func (d *demo) checkMetrics(t *testing.T) {
	gateway := client.Client{HTTP: client.NewHTTP(), Address: client.At("", "http://"+d.management)}
	defer gateway.HTTP.CloseIdleConnections()
	var text string
	err := client.Poll(t.Context(), 200*time.Millisecond, func() error { // what is looked at because somebody scrapes comes with the next scrape
		body, _, err := gateway.DoManagement(t.Context(), http.MethodGet, "/metrics", nil, nil)
		if text = string(body); err == nil && !strings.Contains(text, "\ngeogate_fold_lag_records{") {
			err = errors.New("the metrics do not say how far folds are behind")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	table := metricTable(t)
	label := regexp.MustCompile(`(\w+)="`)
	types := regexp.MustCompile(`(?m)^# TYPE (geogate_\w+) (\w+)$`).FindAllStringSubmatch(text, -1)
	if len(types) < 20 {
		t.Fatalf("only %d metrics:\n%s", len(types), text)
	}
	shown := make(map[string]bool)
	for _, m := range types {
		shown[m[1]] = true
		row, ok := table[m[1]]
		if !ok || row.kind != m[2] {
			t.Errorf("%s is a %s, the operators' guide says %q", m[1], m[2], row.kind)
			continue
		}
		sample := regexp.MustCompile(`(?m)^` + m[1] + `(?:_count)?(?:\{(.*)\})? \S+$`).FindStringSubmatch(text)
		if sample == nil {
			t.Errorf("%s has no sample", m[1])
			continue
		}
		var labels []string
		for _, l := range label.FindAllStringSubmatch(sample[1], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		if got := strings.Join(labels, ","); got != row.labels {
			t.Errorf("%s has labels %q, the operators' guide says %q", m[1], got, row.labels)
		}
	}
	for name := range table {
		if !shown[name] && !slices.Contains(rare, name) {
			t.Errorf("%s is documented, and a demo does not show it", name)
		}
	}
}

// place is where documented commands run: a directory with the program in
// bin/geogate.
type place struct {
	dir   string
	ports *strings.Replacer // from the documented addresses to those in use
}

// building is held while the program is built: a second build finds what the first one
// has compiled.
var building sync.Mutex

// newPlace builds the program.
func newPlace(t *testing.T) place {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	p := place{dir: t.TempDir()}
	build := exec.Command("go", "build", "-trimpath", "-o", p.program(), "./cmd/geogate")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return p
}

func (d *place) program() string { return filepath.Join(d.dir, "bin", "geogate") }

// demo is a running demo.
type demo struct {
	place
	management string

	mu  sync.Mutex
	out bytes.Buffer
}

// Write implements io.Writer for the demo's standard output.
func (d *demo) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Write(p)
}

func (d *demo) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.String()
}

// startDemo builds the program and runs a demo until the test ends.
func startDemo(t *testing.T) *demo {
	t.Helper()
	d := &demo{place: newPlace(t)}
	cmd := exec.Command(d.program(), "demo", "--dir", ".geogate-demo", "--ports", "auto")
	cmd.Dir = d.dir
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = d, &stderr
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(demoStop); err != nil {
			t.Errorf("stop demo: %v\n%s", err, &stderr)
		}
	})
	deadline := time.NewTimer(demoStart)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(d.output(), "Interrupt to stop.\n") {
		select {
		case <-p.Done():
			t.Fatalf("the demo ended with code %d\n%s\n%s", p.ExitCode(), d.output(), &stderr)
		case <-deadline.C:
			t.Fatalf("the demo is not ready after %v\n%s", demoStart, d.output())
		case <-tick.C:
		}
	}
	d.learnPorts(t)
	return d
}

// learnPorts reads the ports from the configuration that the demo has written.
func (d *demo) learnPorts(t *testing.T) {
	t.Helper()
	var pairs []string
	documented := map[string][3]int{"us": {18081, 18091, 19092}, "eu": {18082, 18092, 29092}}
	for _, region := range []string{"us", "eu"} {
		src, err := os.ReadFile(filepath.Join(d.dir, ".geogate-demo", region+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var c node.Config
		if err := strict.Decode(region, src, &c); err != nil {
			t.Fatal(err)
		}
		own := []string{c.HTTP.Listen, c.Management.Listen, c.Own().Kafka.Embedded.Listen}
		for i, port := range documented[region] {
			pairs = append(pairs, fmt.Sprintf("127.0.0.1:%d", port), own[i])
		}
		if region == "us" {
			d.management = c.Management.Listen
		}
	}
	d.ports = strings.NewReplacer(pairs...)
}
