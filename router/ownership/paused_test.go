package ownership_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/natscluster"
	"github.com/geogate/geogate/testbench/proc"
)

// streamName is the register's stream (docs/format/ownership.md).
const streamName = "OWN"

const childEnv = "GEOGATE_TEST_INSTANCE"

// TestInstanceOfAnotherProcess is no test: it is the process that
// TestPausedInstance stops. It says on its output what the unit's grant is
// whenever that changes.
func TestInstanceOfAnotherProcess(t *testing.T) {
	conf := os.Getenv(childEnv)
	if conf == "" {
		t.Skip("only as a child of TestPausedInstance")
	}
	at, routes, _ := strings.Cut(conf, " ")
	n := startNATS(t, embed.NATS{Name: "ctl-eu", StoreDir: t.TempDir(), ClusterListen: at, Routes: strings.Fields(routes), Secret: natscluster.Secret()})
	eu := newSite(t, "eu", 2)
	eu.lease = shortLease()
	handOver := make(chan os.Signal, 1)
	signal.Notify(handOver, syscall.SIGUSR1)
	a, _ := eu.start(register.Config{Dialer: n.Dialer(), Replicas: 3})
	for was := ""; ; {
		g, err := a.Grant("default/eu")
		var foreign *ownership.NotOwnerError
		now := fmt.Sprintf("granted %d", g.Epoch)
		if errors.As(err, &foreign) {
			now = "refused"
		} else if err != nil {
			now = "unproven"
		}
		if now != was {
			fmt.Printf("GRANT %s\n", now)
			was = now
		}
		select {
		case <-handOver:
			n.StepDown(streamName)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// child is an instance in a process of its own.
type child struct {
	p *proc.Process

	mu  sync.Mutex
	now string
}

func (c *child) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func startChild(t testing.TB, conf string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestInstanceOfAnotherProcess$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), childEnv+"="+conf)
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	p, err := proc.Start(cmd)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{p: p}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if state, ok := strings.CutPrefix(lines.Text(), "GRANT "); ok {
				c.mu.Lock()
				c.now = state
				c.mu.Unlock()
			}
			if testing.Verbose() {
				fmt.Println("   child:", time.Now().Format("05.000"), lines.Text())
			}
		}
	}()
	t.Cleanup(func() { c.p.Kill(); <-done; out.Close() })
	return c
}

// TestPausedInstance: an instance whose process was stopped while its region was
// fenced says so soon after it goes on, whether its server led the register or
// not.
func TestPausedInstance(t *testing.T) {
	t.Parallel()
	for name, leads := range map[string]bool{"leader": true, "follower": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pausedInstance(t, leads)
		})
	}
}

// besideChild starts us, which leads the register or not, and a witness in this
// process, and eu in a process of its own; both own their units when it returns.
func besideChild(tb testing.TB, leads bool) (us *site, a *ownership.Client, c *child) {
	at := freeAddresses(tb, 3)
	route := func(i int) string { return "nats-route://" + at[i] }
	us = newSite(tb, "us", 1)
	us.lease = shortLease()
	n := startNATS(tb, embed.NATS{Name: "ctl-us", StoreDir: tb.TempDir(), ClusterListen: at[0], Routes: []string{route(1), route(2)}, Secret: natscluster.Secret()})
	wit := startNATS(tb, embed.NATS{Name: "ctl-wit", StoreDir: tb.TempDir(), ClusterListen: at[2], Routes: []string{route(0), route(1)}, Secret: natscluster.Secret()})
	c = startChild(tb, at[1]+" "+route(0)+" "+route(2))
	a, _ = us.start(register.Config{Dialer: n.Dialer(), Replicas: 3})
	until(tb, patience, "grant of us", granted(a, "default/us"))
	until(tb, patience, "grant of eu", func() bool { return c.state() == "granted 18" })
	for here := true; here == leads; {
		until(tb, patience, "settled register", func() bool { return a.Status().State == "ok" })
		if here = n.Leads(streamName) || wit.Leads(streamName); here == leads {
			c.p.Signal(syscall.SIGUSR1)
			n.StepDown(streamName)
			wit.StepDown(streamName)
			<-time.After(300 * time.Millisecond)
		}
	}
	return us, a, c
}

func pausedInstance(t *testing.T, leads bool) {
	_, a, c := besideChild(t, leads)
	if err := c.p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A signal is sent before it is obeyed: what the child still hears it answers.
	if _, err := syscall.Wait4(c.p.Pid(), nil, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	began := time.Now()
	r := fenceEU(ctx, a, "it does not answer")
	if r.Code != ownership.ResultLoss {
		t.Errorf("fence: %+v", r)
	}
	t.Logf("fence answered after %v", time.Since(began))
	if err := c.p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	until(t, patience, "end of the grant", func() bool { return c.state() != "granted 18" })
	until(t, patience, "refusal", func() bool { return c.state() == "refused" })
	t.Logf("refused %v after it went on", time.Since(began))
}
