//go:build unix

// Package proc runs child processes that cannot outlive a test: each has a
// process group of its own, ends with its parent on Linux, and is always waited
// for.
package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// ErrEnded is returned for a signal to a process that has ended.
var ErrEnded = errors.New("proc: process has ended")

// Process is a started child. Its methods may be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been waited for
}

// Start starts cmd. One goroutine keeps a system thread until the child has
// ended, because the kernel's "kill with parent" is bound to the thread that
// forked.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = groupAttr()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // the state is read through ExitCode
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start process: %w", err)
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode waits for the end and returns the exit code, or -1 after a signal.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends s to the whole group.
func (p *Process) Signal(s syscall.Signal) error {
	select {
	case <-p.done:
		return ErrEnded
	default:
	}
	if err := syscall.Kill(-p.Pid(), s); err != nil {
		return fmt.Errorf("signal process %d: %w", p.Pid(), err)
	}
	return nil
}

// Kill ends the group at once and waits for it.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the group to end, waking it first if it was stopped, and kills it
// when it takes longer than within, which is an error.
func (p *Process) Stop(within time.Duration) error {
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("stop process %d: not down after %s, killed", p.Pid(), within)
	}
}
