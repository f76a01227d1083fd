package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is a deviation from the protocol: an exact replacement in one source
// file. The text must be there once, so that a mutant whose clause has moved is
// noticed.
type mutant struct {
	name      string
	deviation string
	edits     []edit
}

type edit struct {
	file     string // from the module's root
	old, new string
}

// runMutants builds and runs each mutant and prints the table of what caught it.
func runMutants(only string, most uint64) bool {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "find the module:", err)
		return false
	}
	dir, err := os.MkdirTemp("", "sim-mutants-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return false
	}
	defer os.RemoveAll(dir)
	ok, killed := true, 0
	fmt.Printf("%-26s %-72s %s\n", "mutant", "deviation", "caught")
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		if only != "" && !slices.Contains(strings.Split(only, ","), m.name) {
			continue
		}
		caught, err := m.run(strings.TrimSpace(string(root)), dir, most)
		switch {
		case err != nil:
			caught, ok = "ERROR: "+err.Error(), false
		case caught == "":
			caught, ok = fmt.Sprintf("NOT CAUGHT in %d seeds", most), false
		default:
			killed++
		}
		fmt.Printf("%-26s %-72s %s\n", m.name, m.deviation, caught)
	}
	fmt.Printf("sim: %d mutants caught, all: %v\n", killed, ok)
	return ok
}

// overlay writes the changed files and maps the originals to them.
func (m *mutant) overlay(root, dir string) (map[string]string, error) {
	files := map[string]string{}
	for i, e := range m.edits {
		path := filepath.Join(root, e.file)
		from := path
		if replaced, ok := files[path]; ok {
			from = replaced
		}
		src, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		if n := strings.Count(string(src), e.old); n != 1 {
			return nil, fmt.Errorf("%s has the text %d times: %.60q", e.file, n, e.old)
		}
		to := filepath.Join(dir, fmt.Sprintf("%s-%d.go", m.name, i))
		if err := os.WriteFile(to, []byte(strings.Replace(string(src), e.old, e.new, 1)), 0o600); err != nil {
			return nil, fmt.Errorf("write mutant: %w", err)
		}
		files[path] = to
	}
	return files, nil
}

// run builds the mutant with an overlay and plays seeds until one fails.
func (m *mutant) run(root, dir string, most uint64) (caught string, err error) {
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	spec, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return "", fmt.Errorf("encode overlay: %w", err)
	}
	file, bin := filepath.Join(dir, m.name+".json"), filepath.Join(dir, m.name)
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	build := exec.Command("go", "build", "-overlay", file, "-o", bin, "./testbench/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mutant: %w: %s", err, out)
	}
	defer os.Remove(bin)
	which := "logs"
	if slices.ContainsFunc(ownershipMutants, func(o mutant) bool { return o.name == m.name }) {
		which = "ownership"
	}
	out, err := exec.Command(bin, "--world", which, "--first", "--seeds", fmt.Sprintf("1-%d", most)).Output()
	if err == nil {
		return "", nil
	}
	found := regexp.MustCompile(`(?m)^seed (\d+): (\S+): `).FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("run mutant: %w: %.200s", err, out)
	}
	return fmt.Sprintf("at seed %s (%s)", found[1], found[2]), nil
}
