package proc

import "syscall"

// groupAttr puts the child into a group of its own, so that signals reach
// what it starts, and lets the kernel kill it when its parent thread dies.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
