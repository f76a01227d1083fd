//go:build unix

package node

import "syscall"

// openFilesLimit is how many files and connections the process may have open;
// 0 is not known. The runtime has raised it to what the system allows.
func openFilesLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), 1<<30))
}
