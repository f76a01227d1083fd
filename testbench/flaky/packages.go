//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// pkg is a package with tests.
type pkg struct {
	ImportPath   string
	Dir          string
	Module       struct{ Path string }
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string

	concurrent bool
}

// name is the package's path within the module.
func (p *pkg) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
}

// runs is how often the package is run alone, and again beside the load.
func (p *pkg) runs(o options) int {
	if p.concurrent {
		return o.count
	}
	return o.few
}

// findPackages lists the packages that have tests.
func findPackages(ctx context.Context, patterns []string) ([]*pkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Module,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w: %s", err, said.Bytes())
	}
	var pkgs []*pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		err := dec.Decode(p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("decode list of packages: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		if p.concurrent, err = p.isConcurrent(); err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		return nil, fmt.Errorf("no package of %s has tests", strings.Join(patterns, " "))
	}
	return pkgs, nil
}

// isConcurrent tells whether the package or its tests run goroutines or hand
// callbacks to a library.
func (p *pkg) isConcurrent() (bool, error) {
	for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, fmt.Errorf("parse %s: %w", name, err)
		}
		if concurrent(f) {
			return true, nil
		}
	}
	return false, nil
}

// callers are modules and packages that run goroutines of their own and call
// back from them.
func callers() []string {
	return []string{
		"github.com/nats-io", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kfake", "github.com/fsnotify/fsnotify",
		"github.com/dgraph-io/badger", "golang.org/x/sync/errgroup", "go.uber.org/fx", "net/http", "net/http/httptest", "os/exec", "testing/synctest",
	}
}

// concurrent tells whether a file starts a goroutine (go, a WaitGroup's or
// errgroup's Go, t.Parallel), sets a timer that calls back, or imports one of the
// callers.
func concurrent(f *ast.File) bool {
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err == nil && slices.ContainsFunc(callers(), func(c string) bool { return path == c || strings.HasPrefix(path, c+"/") }) {
			return true
		}
	}
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Go", "AfterFunc", "Parallel", "RunParallel"}, sel.Sel.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}
