//go:build unix

package docs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/geogate/geogate/testbench/proc"
)

// documentedPorts are all that the operators' guide gives to two regions and a
// witness.
var documentedPorts = []int{18081, 18091, 19092, 16222, 18082, 18092, 29092, 26222, 18093, 31222}

// TestThreeProcesses follows the operators' guide: it writes the files that stand
// there, starts the processes, runs the commands, and then takes the witness away,
// without which everything goes on.
func TestThreeProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program and runs three processes")
	}
	t.Parallel()
	const name = "docs/guide/operators.md"
	d := newPlace(t)
	d.ports = freePorts(t)
	var before string
	var started []*proc.Process
	count := 0
	for _, b := range blocks(t, name, read(t, name)) {
		switch {
		case b.mark == "file":
			if err := os.WriteFile(filepath.Join(d.dir, b.arg), []byte(d.ports.Replace(b.text)), 0o600); err != nil {
				t.Fatal(err)
			}
		case b.mark == "start":
			for line := range strings.Lines(b.text) {
				started = append(started, d.start(t, strings.Fields(line)))
			}
		case b.mark == "three" && assignments.MatchString(b.text):
			before += b.text
		case b.mark == "three":
			count++
			if err := d.try(before+b.text, false, b.wants); err != nil {
				t.Fatalf("%s:%d: %v", name, b.line, err)
			}
		}
	}
	if len(started) != 3 || count < 5 {
		t.Fatalf("%d processes and %d examples were found", len(started), count)
	}
	if err := started[0].Stop(demoStop); err != nil {
		t.Fatalf("stop witness: %v", err)
	}
	const write = `
until bin/geogate status --gateway http://127.0.0.1:18091 | grep -q 'REGISTER ok  2 of 3'; do sleep 1; done
until curl -sf http://127.0.0.1:18081/v1/topics/flights/records -H 'Content-Type: application/json' \
  -d '{"key":{"type":"string","data":"DTW"},"value":null}'; do sleep 1; done; echo
bin/geogate status --gateway http://127.0.0.1:18091`
	if err := d.try(write, false, []string{`"unit":"air/us"`, "REGISTER ok  2 of 3 voters", "WARN REGISTER_DEGRADED register: 2 of 3 servers"}); err != nil {
		t.Errorf("without the witness: %v", err)
	}
}

// start runs one command line until the test ends.
func (d *place) start(t *testing.T, line []string) *proc.Process {
	t.Helper()
	cmd := exec.Command(filepath.Join(d.dir, line[0]), line[1:]...)
	cmd.Dir = d.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(demoStop); err != nil {
			t.Errorf("stop %v: %v\n%s", line, err, &stderr)
		}
	})
	return p
}

// freePorts maps the documented addresses to free ones, below the ports that
// systems give to outgoing connections.
func freePorts(t *testing.T) *strings.Replacer {
	t.Helper()
	var pairs []string
	for _, port := range documentedPorts {
		l := listenAnywhere(t)
		defer l.Close() // all are held until the last is chosen
		_, own, _ := net.SplitHostPort(l.Addr().String())
		pairs = append(pairs, fmt.Sprintf("127.0.0.1:%d", port), l.Addr().String(), fmt.Sprintf("ready %d ", port), "ready "+own+" ")
	}
	return strings.NewReplacer(pairs...)
}

func listenAnywhere(t *testing.T) net.Listener {
	t.Helper()
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))); err == nil {
			return l
		}
	}
	t.Fatal("no port is free")
	return nil
}
