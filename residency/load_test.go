//go:build unix

package residency_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/geogate/geogate/residency"
)

// What is no file of a policy's size is not read: a pipe would never end, and
// while it is waited for, nothing would stop.
func TestLoadOddFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, content []byte, mode os.FileMode) string {
		if err := os.WriteFile(path(name), content, mode); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	good := write("good", []byte(demo), 0o600)
	if err := syscall.Mkfifo(path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": good, "loop": path("loop"), "dangling": path("nowhere"), "zero": "/dev/zero"} {
		if err := os.Symlink(to, path(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, want string }{
		{good, ""},
		{path("link"), ""},
		{dir, "no regular file"},
		{path("pipe"), "no regular file"},
		{path("zero"), "no regular file"},
		{path("loop"), "too many"},
		{path("dangling"), "no such file"},
		{write("empty", nil, 0o600), "empty"},
		{write("huge", append([]byte(demo), bytes.Repeat([]byte("#\n"), residency.MaxFile/2)...), 0o600), "larger than"},
		{write("two", []byte(demo+"---\n"+demo), 0o600), "document"},
		{write("half", []byte(demo[:len(demo)-7]), 0o600), ":"},
		{write("nul", []byte(demo+"\x00"), 0o600), ":"},
	} {
		_, err := residency.Load(c.path, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", filepath.Base(c.path), err, c.want)
		}
	}
	if os.Getuid() != 0 {
		if _, err := residency.Load(write("secret", []byte(demo), 0o000), nil); !errors.Is(err, os.ErrPermission) {
			t.Errorf("unreadable: %v", err)
		}
	}
}
