package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mutant is a deviation from the protocol: an exact replacement in one source
// file of the product. The text must be there once, so that a mutant whose clause
// has moved is noticed.
type mutant struct {
	name      string
	deviation string
	edits     []edit
}

type edit struct {
	file     string // from the module's root
	old, new string
}

// world is the world that a mutant is played in.
func (m *mutant) world() string {
	if slices.ContainsFunc(ownershipMutants, func(o mutant) bool { return o.name == m.name }) {
		return "ownership"
	}
	return "logs"
}

// mutantTable is where the seeds of all mutants are written down.
const mutantTable = "docs/internals/mutants.md"

// mutation is one run over the mutants.
type mutation struct {
	root string // of the module
	dir  string // for binaries
	base string // the simulator without a mutant
	most uint64 // seeds to try
	// known are the seeds of the table, which are tried first.
	known map[string]uint64
}

// caught is what became of a mutant.
type caught struct {
	*mutant
	seed    uint64 // 0: no seed caught it
	checker string
	text    string // what the checker said
	err     error
	took    time.Duration
}

// mutateOptions say which mutants are run, and how.
type mutateOptions struct {
	only  string // names separated by commas; "": all
	most  uint64
	scan  bool // try the seeds from 1 on, whatever the table says
	write bool // write the table, or the rows of those that are run
}

// runMutants builds each mutant, plays seeds until a checker objects that does not
// object without the mutant, and prints what caught it. It runs GOMAXPROCS of them at
// a time.
func runMutants(ctx context.Context, o mutateOptions) bool {
	start := time.Now()
	x, err := newMutation(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return false
	}
	defer os.RemoveAll(x.dir)
	var list []mutant
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		if o.only == "" || slices.Contains(strings.Split(o.only, ","), m.name) {
			list = append(list, m)
		}
	}
	results := make([]caught, len(list))
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex // of standard output
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				c := x.catch(ctx, &list[i])
				c.took = time.Since(began)
				mu.Lock()
				results[i] = c
				fmt.Println(c.line())
				mu.Unlock()
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	wg.Wait()
	ok, n := true, 0
	fmt.Printf("\n%s", table(results))
	for i := range results {
		if results[i].seed == 0 {
			ok = false
		} else {
			n++
		}
	}
	if o.write && ok {
		if err := x.writeTable(results); err != nil {
			fmt.Fprintln(os.Stderr, "sim:", err)
			ok = false
		}
	}
	fmt.Printf("sim: %d of %d mutants caught, in %v\n", n, len(list), time.Since(start).Round(time.Second))
	return ok
}

func newMutation(ctx context.Context, o mutateOptions) (*mutation, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	x := &mutation{root: strings.TrimSpace(string(root)), most: o.most, known: map[string]uint64{}}
	if !o.scan {
		if x.known, err = readMutantTable(filepath.Join(x.root, mutantTable)); err != nil {
			return nil, err
		}
	}
	if x.dir, err = os.MkdirTemp("", "sim-mutants-"); err != nil {
		return nil, fmt.Errorf("make a directory for mutants: %w", err)
	}
	x.base = filepath.Join(x.dir, "base")
	if err := x.build(ctx, x.base); err != nil {
		return nil, errors.Join(fmt.Errorf("build the simulator: %w", err), os.RemoveAll(x.dir))
	}
	return x, nil
}

func (x *mutation) build(ctx context.Context, to string, flags ...string) error {
	args := append([]string{"build", "-ldflags=-s -w", "-o", to}, flags...)
	build := exec.CommandContext(ctx, "go", append(args, "./testbench/sim")...)
	build.Dir = x.root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
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

// catch builds a mutant with an overlay and plays seeds until one is caught: first
// the table's, then all from 1 on.
func (x *mutation) catch(ctx context.Context, m *mutant) caught {
	c := caught{mutant: m}
	bin := filepath.Join(x.dir, m.name)
	if c.err = x.buildMutant(ctx, m, bin); c.err != nil {
		return c
	}
	defer os.Remove(bin)
	if seed := x.known[m.name]; seed > 0 && seed <= x.most {
		if found, err := x.play(ctx, m, bin, seed, seed); err == nil && found.seed == seed && x.sound(ctx, &found) {
			return found
		}
	}
	for from := uint64(1); from <= x.most; {
		found, err := x.play(ctx, m, bin, from, x.most)
		switch {
		case err != nil || found.seed == 0:
			c.err = err
			return c
		case found.checker == "panic":
			c.err = fmt.Errorf("seed %d panics: %s", found.seed, found.text)
			return c
		case x.sound(ctx, &found):
			return found
		}
		fmt.Printf("seed %d of world %s fails without a mutant, too\n", found.seed, m.world())
		from = found.seed + 1
	}
	return c
}

func (x *mutation) buildMutant(ctx context.Context, m *mutant, bin string) error {
	overlay, err := m.overlay(x.root, x.dir)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return fmt.Errorf("encode overlay: %w", err)
	}
	file := filepath.Join(x.dir, m.name+".json")
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		return fmt.Errorf("write overlay: %w", err)
	}
	if err := x.build(ctx, bin, "-overlay", file); err != nil {
		return fmt.Errorf("build mutant: %w", err)
	}
	return nil
}

var violation = regexp.MustCompile(`(?m)^seed (\d+): (\S+): (.*)$`)

// play runs seeds of a mutant until one fails.
func (x *mutation) play(ctx context.Context, m *mutant, bin string, from, to uint64) (c caught, err error) {
	c.mutant = m
	run := exec.CommandContext(ctx, bin, "--world", m.world(), "--first", "--regime", regime, "--seeds", fmt.Sprintf("%d-%d", from, to))
	run.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := run.Output()
	if err == nil {
		return c, nil
	}
	found := violation.FindStringSubmatch(string(out))
	if found == nil {
		return c, fmt.Errorf("run mutant: %w: %.200s", err, out)
	}
	if c.seed, err = strconv.ParseUint(found[1], 10, 64); err != nil {
		return c, fmt.Errorf("run mutant: %w", err)
	}
	c.checker, c.text = found[2], found[3]
	return c, nil
}

// sound tells whether the seed passes without the mutant: then its checker has caught
// the mutant, and nothing else.
func (x *mutation) sound(ctx context.Context, c *caught) bool {
	run := exec.CommandContext(ctx, x.base, "--world", c.world(), "--seed", strconv.FormatUint(c.seed, 10))
	run.Env = append(os.Environ(), "GOMAXPROCS=1")
	return run.Run() == nil
}

func (c *caught) line() string {
	switch {
	case c.err != nil:
		return fmt.Sprintf("%-28s ERROR: %v", c.name, c.err)
	case c.seed == 0:
		return fmt.Sprintf("%-28s NOT CAUGHT (%v)", c.name, c.took.Round(time.Second))
	}
	return fmt.Sprintf("%-28s seed %d (%s, %v): %.120s", c.name, c.seed, c.checker, c.took.Round(time.Second), c.text)
}

// table is the Markdown table of what caught each mutant.
func table(results []caught) string {
	var b strings.Builder
	b.WriteString("| mutant | what it breaks | world | checker | seed |\n|---|---|---|---|---|\n")
	for i := range results {
		c := &results[i]
		seed := "not caught"
		if c.seed > 0 {
			seed = strconv.FormatUint(c.seed, 10)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", c.name, c.deviation, c.world(), cmp.Or(c.checker, "–"), seed)
	}
	return b.String()
}

// tableBegin is the line of the document after which the table begins.
const tableBegin = "<!-- table: make sim MUTANTS=1 ARGS=--write -->"

// writeTable writes the rows of the mutants that were run; those of others stay.
func (x *mutation) writeTable(results []caught) error {
	path := filepath.Join(x.root, mutantTable)
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the table of mutants: %w", err)
	}
	head, rows, found := strings.Cut(string(old), tableBegin)
	if !found {
		return fmt.Errorf("%s has no line %q", mutantTable, tableBegin)
	}
	if err := os.WriteFile(path, []byte(head+tableBegin+"\n\n"+merged(rows, results)), 0o644); err != nil {
		return fmt.Errorf("write the table of mutants: %w", err)
	}
	return nil
}

// merged is the table of all mutants, with the old rows of those that were not run.
func merged(old string, results []caught) string {
	fresh := make(map[string]string)
	lines := strings.SplitAfter(table(results), "\n")
	for i := range results {
		fresh[results[i].name] = lines[2+i]
	}
	for line := range strings.Lines(old) {
		if found := mutantRow.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil && fresh[found[1]] == "" {
			fresh[found[1]] = line
		}
	}
	out := lines[0] + lines[1]
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		out += fresh[m.name]
	}
	return out
}

// mutantRow is a row of the table.
var mutantRow = regexp.MustCompile("^\\| `([a-z0-9-]+)` \\|.*\\| (\\d+|not caught) \\|$")

// readMutantTable reads the seed of each mutant.
func readMutantTable(path string) (map[string]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the table of mutants: %w", err)
	}
	defer f.Close()
	seeds := map[string]uint64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if found := mutantRow.FindStringSubmatch(lines.Text()); found != nil {
			seeds[found[1]], _ = strconv.ParseUint(found[2], 10, 64) // 0: not caught
		}
	}
	return seeds, nil
}
