//go:build unix && !linux

package proc

import "syscall"

// groupAttr puts the child into a group of its own, so that signals reach
// what it starts.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
