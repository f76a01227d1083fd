//go:build unix

package dirlock

import (
	"errors"
	"os"
	"syscall"
)

// lock tries to lock an open file; free is false if another process has it.
func lock(f *os.File) (free bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
