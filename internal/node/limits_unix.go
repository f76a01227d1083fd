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

// freeBytes is how much room the process has in the file system of a directory; ok is
// false where that cannot be found out.
func freeBytes(dir string) (n int64, ok bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
