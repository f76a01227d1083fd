//go:build unix

package dirlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/dirlock"
)

// holding is the variable that makes the test binary a process which takes a directory and
// waits for its end.
const holding = "GEOGATE_TEST_HOLD"

func TestMain(m *testing.M) {
	dir := os.Getenv(holding)
	if dir == "" {
		os.Exit(m.Run())
	}
	release, err := dirlock.Take(dir, 0, nil)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("taken")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
	_ = release()
}

// hold starts a process that has the directory.
func hold(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), holding+"="+dir)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "taken\n" {
		t.Fatalf("a process that takes %s says %q", dir, line)
	}
	return p
}

// TestTakeAfterKill: who starts at once after the one before was killed gets the directory,
// and need not wait for the parent of that one to notice.
func TestTakeAfterKill(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		p := hold(t, dir)
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		release, err := dirlock.Take(dir, dirlock.Patience, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTakeFromLiving: who has the directory and goes on keeps it, and is named.
func TestTakeFromLiving(t *testing.T) {
	dir := t.TempDir()
	p := hold(t, dir)
	name := fmt.Sprintf("process %d", p.Process.Pid)
	said := []string{}
	_, err := dirlock.Take(dir, 200*time.Millisecond, func(holder string) { said = append(said, holder) })
	if !errors.Is(err, dirlock.ErrInUse) || !strings.Contains(err.Error(), name) {
		t.Errorf("got %v, want that %s has it", err, name)
	}
	if len(said) != 1 || said[0] != name {
		t.Errorf("said %q", said)
	}
	// It is let go while somebody waits.
	release, err := dirlock.Take(dir, dirlock.Patience, func(string) { _ = p.Process.Kill() })
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := dirlock.Take(dir, 0, nil); !errors.Is(err, dirlock.ErrInUse) {
		t.Errorf("taken twice: %v", err)
	}
}

// TestAwait: a lock on the directory itself is waited for, and none is left.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := dirlock.Await(dir, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
}
