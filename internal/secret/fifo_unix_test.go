//go:build unix

package secret_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/secret"
)

// TestFIFO: who reads a named pipe that nobody writes into waits without end.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := secret.ReadIssued(path)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "is not a file") {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("still waits for a writer of the pipe")
	}
}
