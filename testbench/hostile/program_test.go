//go:build unix

package hostile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// buildDir is where the program is built, for all tests of the process.
var buildDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hostile")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// root is the module's.
const root = "../.."

// buildOnce builds the program as it is released, without the race detector.
var buildOnce = sync.OnceValues(func() (string, error) {
	// What the go command reads is no input of the test cache. Reading the folders of
	// the sources here makes them one: a change of the program runs the tests again.
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(buildDir, "geogate")
	return path, buildTo(path)
})

func buildTo(path string, flags ...string) error {
	build := exec.Command("go", append(append([]string{"build", "-trimpath"}, flags...), "-o", path, "./cmd/geogate")...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return nil
}

// edit replaces a text, which is there once, in a source file.
type edit struct{ file, old, new string }

// programWith builds the program with changed sources: a defect that the sources do not
// have, to see what becomes of it. The program itself has no switches for that.
func programWith(t *testing.T, e edit) string {
	t.Helper()
	program(t)
	dir := t.TempDir()
	from, err := filepath.Abs(filepath.Join(root, e.file))
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), e.old); n != 1 {
		t.Fatalf("%s has the text %d times: %q", e.file, n, e.old)
	}
	changed, overlay, bin := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "geogate")
	files, err := json.Marshal(map[string]any{"Replace": map[string]string{from: changed}})
	if err == nil {
		err = os.WriteFile(changed, []byte(strings.Replace(string(src), e.old, e.new, 1)), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, files, 0o600)
	}
	if err == nil {
		err = buildTo(bin, "-overlay", overlay)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// program is the path of the built program. It skips the test unless attacks are asked
// for: they take minutes, most of them waiting and memory, and the race detector sees
// nothing of the program that they attack.
func program(t *testing.T) string {
	t.Helper()
	if os.Getenv("GEOGATE_TEST_HOSTILE") != "1" {
		t.Skip("attacks the built program: make hostile, or GEOGATE_TEST_HOSTILE=1")
	}
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output is what a command printed, and its exit code.
type output struct {
	out, err string
	code     int
}

// command runs the program to its end.
func command(t *testing.T, args ...string) output {
	t.Helper()
	var o output
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("geogate %v: %v", args, err)
	}
	o.out, o.err, o.code = stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	return o
}
