package ownership

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProofOnlyFromAcknowledgement (I8): in package ownership no code outside the path
// of a write's acknowledgement makes a proof, a lease, or a token. What was read,
// watched or broadcast can so start nothing.
func TestProofOnlyFromAcknowledgement(t *testing.T) {
	found := map[string]int{}
	for _, file := range protocolFiles(t) {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			for what, inLiteral := range makes(fn) {
				found[what]++
				if allowed, ok := makers[what]; !ok || allowed.function != fn.Name.Name || allowed.inCallback && !inLiteral {
					t.Errorf("%s makes %s; only %s may, where the write is acknowledged", fn.Name.Name, what, allowed.function)
				}
			}
		}
	}
	for what := range makers {
		if found[what] == 0 {
			t.Errorf("nothing makes %s: the test looks for the wrong thing", what)
		}
	}
}

type maker struct {
	function   string
	inCallback bool // in the function that its write calls when it is acknowledged
}

// makers are the only places that may make what holding a unit rests on.
var makers = map[string]maker{
	"a proof":           {"own", true},
	"a lease":           {"renew", true},
	"an acknowledgment": {"written", false},
	"a held epoch":      {"Tokens", false},
}

func protocolFiles(t *testing.T) (files []*ast.File) {
	dir := filepath.Join("..", "..", "..", "router", "ownership")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// makes finds what a function makes, and whether it does so in a function literal.
func makes(fn *ast.FuncDecl) map[string]bool {
	out := map[string]bool{}
	var stack []ast.Node
	inLiteral := func() bool {
		for _, n := range stack {
			if _, ok := n.(*ast.FuncLit); ok {
				return true
			}
		}
		return false
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		switch n := n.(type) {
		case *ast.CompositeLit:
			if id, ok := n.Type.(*ast.Ident); ok && len(n.Elts) > 0 {
				switch id.Name {
				case "proof":
					out["a proof"] = inLiteral()
				case "lease":
					out["a lease"] = inLiteral()
				}
			}
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "then" && len(n.Args) == 3 {
				if id, ok := n.Args[2].(*ast.Ident); ok && id.Name == "true" {
					out["an acknowledgment"] = inLiteral()
				}
			}
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				switch {
				case selects(l, "proofs"):
					out["a proof"] = inLiteral()
				case selects(l, "Held"):
					out["a held epoch"] = inLiteral()
				case field(l, "lease", "until"), field(l, "lease", "rev"):
					out["a lease"] = inLiteral()
				}
			}
		}
		return true
	})
	return out
}

// selects tells whether an expression is an element of a field.
func selects(e ast.Expr, name string) bool {
	ix, ok := e.(*ast.IndexExpr)
	if !ok {
		return false
	}
	sel, ok := ix.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == name
}

// field tells whether an expression is a field of a field.
func field(e ast.Expr, outer, inner string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != inner {
		return false
	}
	x, ok := sel.X.(*ast.SelectorExpr)
	return ok && x.Sel.Name == outer
}
