//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"github.com/geogate/geogate/testbench/proc"
)

// loadArgument makes this program burn processor time instead of running tests.
const loadArgument = "burn-every-core"

// load is the process that burns processor time.
type load struct {
	proc *proc.Process
	in   io.Closer
}

// startLoad starts it. It ends with stop, or when this process ends.
func startLoad() (*load, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	cmd := exec.Command(self, loadArgument)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	return &load{proc: p, in: in}, nil
}

func (l *load) stop() {
	l.in.Close()
	l.proc.Kill()
}

// burn keeps every core busy until the standard input ends, which it does with
// the parent.
func burn() {
	for range runtime.NumCPU() {
		go func() {
			for n := uint64(1); n != 0; n++ { // never 0 within a lifetime
			}
		}()
	}
	io.Copy(io.Discard, os.Stdin)
}
