//go:build unix

package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/testbench/client"
)

// ask runs the program and gives what it printed, and its exit code.
func (d *deployment) ask(t *testing.T, args ...string) (text string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.us.program, args...)
	cmd.Env = append(os.Environ(), "GEOGATE_GATEWAY=http://"+d.us.management)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestWipedWitness: a witness that has lost its directory does not come back under its
// name. Under another one it joins, and replaces the lost one, and the register works
// without one of the others.
func TestWipedWitness(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true})
	if text, code := d.ask(t, "register", "replace", "ctl-witness", "--dry-run"); code != 3 || !strings.Contains(text, "ctl-witness runs") {
		t.Errorf("a witness that runs: exit code %d, %s", code, text)
	}
	if err := d.witness.Stop(stopWait); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "witness", "nats")); err != nil {
		t.Fatal(err)
	}
	config, log := filepath.Join(d.dir, "witness.yaml"), filepath.Join(d.dir, "witness.log")
	if text, code := d.ask(t, "witness", "--config", config); code != 3 || !strings.Contains(text, "geogate register replace ctl-witness") {
		t.Fatalf("a wiped witness: exit code %d, %s", code, text)
	}
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, "witness.yaml", strings.Replace(string(b), "name: ctl-witness", "name: ctl-witness-2", 1))
	d.witness = startChild(t, d.us.program, log, "witness", "--config", config)
	d.us.await(t, "a plan for the replacement", func(context.Context) error {
		if text, code := d.ask(t, "register", "replace", "ctl-witness", "--dry-run"); code != 0 {
			return errors.New(text)
		}
		return nil
	})
	// While the servers still take the new one in, they take no other out: the command says
	// that it has to be asked again.
	d.us.await(t, "the replacement", func(context.Context) error {
		switch text, code := d.ask(t, "register", "replace", "ctl-witness", "--reason", "its disk is gone"); code {
		case 0:
			return nil
		case 12:
			return errors.New(text)
		default:
			t.Fatalf("replacement: exit code %d, %s", code, text)
			return nil
		}
	})
	if text, code := d.ask(t, "register", "replace", "ctl-witness", "--reason", "the answer was lost"); code != 0 {
		t.Errorf("asked for again: exit code %d, %s", code, text)
	}
	if text, code := d.ask(t, "register", "status"); code != 0 || strings.Contains(text, "ctl-witness ") || !strings.Contains(text, "ctl-witness-2") {
		t.Errorf("status: exit code %d, %s", code, text)
	}
	d.eu.kill() // with one of the others gone, the new one's vote is needed
	for i := range 10 {
		if _, err := d.us.Store(t.Context(), client.Write{Topic: "flights", Key: fmt.Sprintf("k%d", i), Value: []byte(`1`), Idem: fmt.Sprintf("replaced-%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if text, code := d.ask(t, "fence", "--region", "eu", "--reason", "it is gone"); code != 10 && code != 0 {
		t.Errorf("fence: exit code %d, %s", code, text)
	}
}

// TestStrangersAtTheRegister: processes of the host that come to the register's ports, as
// a server without the deployment's secret, as a server that speaks without encryption,
// and as a client, are sent away, and both regions write on.
func TestStrangersAtTheRegister(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true})
	stranger, err := embed.StartNATS(embed.NATS{
		Name: "ctl-stranger", StoreDir: t.TempDir(), ClusterListen: freeAddress(t), Secret: []byte("0a9b8c7d6e5f40312233"),
		Routes: []string{"nats-route://" + d.routes["us"], "nats-route://" + d.routes["eu"], "nats-route://" + d.routes["witness"]},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Close() })

	fence := `{"subject":"own.region.us","seq":4611686018427387904,"record":{"v":1,"region":"us","id":1,"live_epoch":4611686018427387904,"state":"FENCED","by":"eu"}}`
	for member, at := range d.routes {
		for _, name := range []string{"ctl-us", "ctl-eu", "ctl-other"} {
			conn, err := net.DialTimeout("tcp", at, patience)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			// All at once: it is for the server to stop reading.
			fmt.Fprintf(conn, "CONNECT {\"echo\":true,\"verbose\":false,\"pedantic\":false,\"name\":%q,\"cluster\":\"geogate\"}\r\n", name)
			fmt.Fprintf(conn, "INFO {\"server_id\":\"N%s\",\"server_name\":%q,\"cluster\":\"geogate\",\"headers\":true}\r\n", strings.Repeat("A", 55), name)
			fmt.Fprintf(conn, "RMSG $G fence.own.region.us %d\r\n%s\r\nRMSG $G $JS.API.STREAM.DELETE.OWN 0\r\n\r\nPING\r\n", len(fence), fence)
			said, err := io.ReadAll(conn)
			if strings.Contains(string(said), "INFO") || strings.Contains(string(said), "PONG") || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s talks with a stranger, or listens for long: %.200q, %v", member, said, err)
			}
			conn.Close()
		}
	}
	for i := range 20 {
		for _, r := range d.regions() {
			if _, err := r.Store(t.Context(), client.Write{Topic: "flights", Key: fmt.Sprintf("k%d", i), Value: []byte(`1`), Idem: fmt.Sprintf("%s-%d", r.name, i)}); err != nil {
				t.Fatalf("write %d in %s: %v", i, r.name, err)
			}
		}
	}
	if n := stranger.Routes(); n != 0 {
		t.Errorf("a server without the secret has %d routes", n)
	}
	for _, r := range d.regions() {
		r.awaitReady(t)
	}
}
