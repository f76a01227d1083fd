//go:build unix

package proc_test

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/proc"
)

func sh(t *testing.T, script string) *proc.Process {
	t.Helper()
	p, err := proc.Start(exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestExitCode(t *testing.T) {
	if code := sh(t, "exit 7").ExitCode(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}

func TestKillReachesTheGroup(t *testing.T) {
	r, w := &strings.Builder{}, exec.Command("sh", "-c", "sleep 60 & echo $!; wait")
	w.Stdout = r // held open by the grandchild until it ends, too
	p, err := proc.Start(w)
	if err != nil {
		t.Fatal(err)
	}
	p.Kill() // would hang here if the grandchild lived on
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, proc.ErrEnded) {
		t.Errorf("signal after the end: %v", err)
	}
	if p.ExitCode() != -1 {
		t.Errorf("exit code %d", p.ExitCode())
	}
}

func TestStop(t *testing.T) {
	if err := sh(t, "sleep 60").Stop(10 * time.Second); err != nil {
		t.Errorf("stop: %v", err)
	}
	p := sh(t, "sleep 60")
	p.Signal(syscall.SIGSTOP)
	if err := p.Stop(10 * time.Second); err != nil {
		t.Errorf("stop a stopped process: %v", err)
	}
	deaf := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
	out, err := deaf.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = proc.Start(deaf); err != nil {
		t.Fatal(err)
	}
	out.Read(make([]byte, 1)) // the trap is set
	if err := p.Stop(50 * time.Millisecond); err == nil {
		t.Error("a process that ignores SIGTERM stopped in time")
	}
}

func TestStartError(t *testing.T) {
	if _, err := proc.Start(exec.Command("/does/not/exist")); err == nil {
		t.Error("started")
	}
}
