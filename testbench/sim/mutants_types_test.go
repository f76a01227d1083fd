package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMutantsCompile: the compiler takes every mutant, so that a change that breaks
// the text of one is noticed before make sim MUTANTS=1 is run. It checks the types of
// each package that a mutant changes, against what the compiler says of the packages
// that it imports, which takes some hundredths of a second instead of a build.
func TestMutantsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("lists and compiles the packages that the simulator is made of")
	}
	l := listPackages(t)
	unchanged := map[string]string{} // what a package shows others, by folder
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		overlay, err := m.overlay(l.root, t.TempDir())
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		changed := map[string]map[string]string{} // text by folder and file
		for path, to := range overlay {
			dir, file := filepath.Split(path)
			if dir = filepath.Clean(dir); changed[dir] == nil {
				changed[dir] = map[string]string{}
			}
			changed[dir][file] = readText(t, to)
		}
		for dir, files := range changed {
			mutated, err := l.check(dir, files)
			if err != nil {
				t.Errorf("%s does not compile:\n%v", m.name, err)
				continue
			}
			if _, ok := unchanged[dir]; !ok {
				original, err := l.check(dir, nil)
				if err != nil {
					t.Fatalf("%s does not compile without a mutant, either: %v", dir, err)
				}
				unchanged[dir] = api(original)
			}
			if api(mutated) != unchanged[dir] {
				t.Errorf("%s changes what %s exports: here its importers are not checked", m.name, mutated.Path())
			}
		}
	}
}

func TestMutantCheckFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("lists and compiles the packages that the simulator is made of")
	}
	l := listPackages(t)
	dir := filepath.Join(l.root, "conflict")
	queue := readText(t, filepath.Join(dir, "queue.go"))
	for name, text := range map[string]string{
		"unused variable": queue + "\nfunc f() { x := 1 }\n",
		"unused import":   strings.Replace(queue, "import (", "import (\n\t\"fmt\"", 1),
		"wrong type":      queue + "\nvar x event.RegionID = \"us\"\n",
		"unknown name":    queue + "\nvar x = event.Nothing\n",
		"syntax":          queue + "}",
	} {
		if _, err := l.check(dir, map[string]string{"queue.go": text}); err == nil {
			t.Errorf("%s: compiles", name)
		}
	}
	original, err := l.check(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, add := range map[string]string{
		"function": "func More() {}", "method": "func (p *Partition) More() {}",
		"field": "type more struct{ n, More int }\ntype Later = more", "constant": "const More = 1", "unexported": "func more() {}",
	} {
		p, err := l.check(dir, map[string]string{"queue.go": queue + "\n" + add + "\n"})
		if err != nil {
			t.Fatal(err)
		}
		if got := api(p) != api(original); got != (name != "unexported") {
			t.Errorf("another %s: changes what is exported: %t", name, got)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// packages are those that the simulator is made of.
type packages struct {
	root   string // of the module
	fset   *token.FileSet
	export map[string]string // file with what the compiler says of a package, by import path
	byDir  map[string]listed
	parsed map[string]*ast.File // by path
	others types.Importer
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func listPackages(t *testing.T) *packages {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	l := &packages{root: root, fset: token.NewFileSet(), export: map[string]string{}, byDir: map[string]listed{}, parsed: map[string]*ast.File{}}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles", "./testbench/sim")
	list.Dir = root
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list the packages of the simulator: %v\n%s", err, &stderr)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		l.export[p.ImportPath], l.byDir[p.Dir] = p.Export, p
	}
	l.others = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(l.export[path]) })
	return l
}

// check gives the types of a package of which some files have another text.
func (l *packages) check(dir string, texts map[string]string) (*types.Package, error) {
	p, ok := l.byDir[dir]
	if !ok {
		return nil, fmt.Errorf("the simulator does not have %s", dir)
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(dir, name)
		f := l.parsed[path]
		if text, ok := texts[name]; ok || f == nil {
			var src any // nil: from the file
			if ok {
				src = text
			}
			var err error
			if f, err = parser.ParseFile(l.fset, path, src, parser.SkipObjectResolution); err != nil {
				return nil, err
			}
			if !ok {
				l.parsed[path] = f
			}
		}
		files = append(files, f)
	}
	var found []error
	c := types.Config{Importer: l.others, Error: func(err error) { found = append(found, err) }}
	pkg, err := c.Check(p.ImportPath, l.fset, files, nil)
	if len(found) > 0 {
		err = errors.Join(found...)
	}
	return pkg, err
}

// api lists what other packages can use of one.
func api(p *types.Package) string {
	var b strings.Builder
	line := func(o types.Object) {
		if o.Exported() {
			fmt.Fprintln(&b, o)
		}
	}
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if _, ok := o.(*types.TypeName); !ok || !o.Exported() {
			line(o)
			continue
		}
		for m := range types.NewMethodSet(types.NewPointer(o.Type())).Methods() {
			line(m.Obj())
		}
		if s, ok := o.Type().Underlying().(*types.Struct); ok {
			fmt.Fprintln(&b, "struct", name)
			for f := range s.Fields() {
				line(f)
			}
			continue
		}
		line(o)
	}
	return b.String()
}
