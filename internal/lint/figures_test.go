package lint

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// figures are the sizes of one package.
type figures struct {
	files, lines, testLines int
	names                   int // exported at package level: types, functions, constants, variables
	methods                 int // exported, of exported types
}

// TestFigures prints, with -v, how large each package is and how much of it is
// exported, so that a change of the structure can be compared with what was
// before it. It fails only if it finds nothing to count.
func TestFigures(t *testing.T) {
	all := make(map[string]*figures)
	of := func(pkg string) *figures {
		if all[pkg] == nil {
			all[pkg] = &figures{}
		}
		return all[pkg]
	}
	for _, s := range sources(t) {
		f := of(s.pkg)
		f.files++
		f.lines += s.fset.File(s.ast.Pos()).LineCount()
		for _, decl := range s.ast.Decls {
			names, methods := exported(decl)
			f.names += names
			f.methods += methods
		}
	}
	root := os.DirFS("../..")
	for _, name := range testFiles(t, root) {
		src, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		of(path.Dir(name)).testLines += strings.Count(string(src), "\n")
	}
	var sum figures
	t.Logf("%-34s %5s %7s %7s %9s %8s", "package", "files", "lines", "tests", "exported", "methods")
	for _, pkg := range slices.Sorted(maps.Keys(all)) {
		f := all[pkg]
		t.Logf("%-34s %5d %7d %7d %9d %8d", pkg, f.files, f.lines, f.testLines, f.names, f.methods)
		sum.files, sum.lines, sum.testLines = sum.files+f.files, sum.lines+f.lines, sum.testLines+f.testLines
		sum.names, sum.methods = sum.names+f.names, sum.methods+f.methods
	}
	t.Logf("%-34s %5d %7d %7d %9d %8d", "all", sum.files, sum.lines, sum.testLines, sum.names, sum.methods)
	if sum.names == 0 || sum.testLines == 0 {
		t.Error("no exported names or no test lines found")
	}
}

// exported counts the exported names of one declaration.
func exported(decl ast.Decl) (names, methods int) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		switch {
		case !d.Name.IsExported():
		case d.Recv == nil:
			names++
		case receiver(d).IsExported():
			methods++
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					names++
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() {
						names++
					}
				}
			}
		}
	}
	return names, methods
}

// receiver is the name of a method's type.
func receiver(d *ast.FuncDecl) *ast.Ident {
	expr := d.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x
		default:
			return ast.NewIdent("_")
		}
	}
}

// testFiles are the module's test files.
func testFiles(t *testing.T, root fs.FS) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "tools/") {
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
