// Package dirlock takes directories for one process at a time.
//
// A lock is the kernel's, on an open file: it ends with the process, however that ends,
// and leaves nothing that an operator must clear. It does not end at once. A process that
// was killed holds its files until the last of its threads has left the kernel, which may
// take seconds while the disk is slow. So a process that finds a directory taken waits.
package dirlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ErrInUse is wrapped by the error that says that another process has the directory.
var ErrInUse = errors.New("directory is in use by another process")

// Patience is how long Take waits for a process that is ending.
const Patience = 5 * time.Second

// retryEvery is the time between two looks whether a directory is free.
const retryEvery = 50 * time.Millisecond

// file is what is locked.
const file = "lock"

// Take takes a directory for this process until release is called. If another process has
// it, Take waits up to patience, and first calls waiting, if not nil, with what is known of
// that process. The error wraps ErrInUse if the directory is still taken then.
func Take(dir string, patience time.Duration, waiting func(holder string)) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := await(f, dir, patience, waiting); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// Only for people: the kernel knows whether the lock is held.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f.Close, nil
}

// Await waits up to patience until no other process has locked the directory itself, as
// Badger does. It takes no lock.
func Await(dir string, patience time.Duration, waiting func(holder string)) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	return errors.Join(await(f, dir, patience, waiting), f.Close())
}

func await(f *os.File, dir string, patience time.Duration, waiting func(holder string)) error {
	for began := time.Now(); ; time.Sleep(retryEvery) {
		free, err := lock(f)
		switch {
		case err != nil:
			return fmt.Errorf("lock %s: %w", dir, err)
		case free:
			return nil
		case time.Since(began) >= patience:
			return fmt.Errorf("%w: %s has had %s for at least %v; stop it, or give this process a directory of its own", ErrInUse, holder(dir), dir, patience)
		case waiting != nil:
			waiting(holder(dir))
			waiting = nil
		}
	}
}

// holder names the process that last wrote that it has the directory.
func holder(dir string) string {
	for _, name := range []string{file, "LOCK"} { // the second is Badger's
		b, err := os.ReadFile(filepath.Join(dir, name))
		if pid := strings.TrimSpace(string(b)); err == nil && pid != "" && len(pid) < 20 {
			if _, err := strconv.Atoi(pid); err == nil {
				return "process " + pid
			}
		}
	}
	return "another process"
}
