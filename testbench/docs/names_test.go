package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// module is the path under which the packages import each other.
const module = "github.com/geogate/geogate"

// namesTheCode says whether what a document puts in backquotes has to exist.
func namesTheCode(document string) bool {
	switch path.Dir(document) {
	case ".":
		return document == "ARCHITECTURE.md" || document == "CONTRIBUTING.md"
	case "docs/internals", "docs/howto":
		return true
	}
	return false
}

// TestNamesExist looks up what the documents for contributors put in backquotes:
// paths, packages, tests, targets of make, and identifiers with their members.
func TestNamesExist(t *testing.T) {
	in := parseTree(t)
	t.Run("lookup", in.testLookup)
	quoted := regexp.MustCompile("`([^`\n]+)`")
	fenced := regexp.MustCompile("(?ms)^```.*?^```$")
	checked := 0
	for name, text := range documents(t) {
		if !namesTheCode(name) {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			checked++
			if why := in.missing(m[1]); why != "" {
				t.Errorf("%s: `%s`: %s", name, m[1], why)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names were found", checked)
	}
}

// testLookup: what exists is found, and what does not is not.
func (in *tree) testLookup(t *testing.T) {
	for _, name := range []string{
		"conflict", "conflict/view", "testbench/docs/names_test.go", "names_test.go", "docs/internals/*.md", "TestNamesExist", "make test",
		"go test ./testbench/docs", "hlc.Clock", "Clock.mu", "hlc.Clock.mu", "idempotency.window", "us", "_geogate.topics", "<origin>.<topic>", "net/http",
	} {
		if why := in.missing(name); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	for _, name := range []string{
		"conflict/nowhere", "nowhere.go", "docs/nowhere/*.md", "TestNowhere", "make nowhere", "go test ./nowhere", "hlc.Nowhere", "Clock.nowhere",
		"hlc.Clock.nowhere", "Nowhere.Clock", "idempotency.nowhere", "non" + "esuch",
	} {
		if in.missing(name) == "" {
			t.Errorf("%s was found", name)
		}
	}
}

// tree is what the module declares.
type tree struct {
	tests    map[string]bool            // functions of test files that go test runs
	packages map[string]map[string]bool // by name: what they declare outermost
	members  map[string]map[string]bool // by type: methods and fields; embedded types begin with "+"
	words    map[string]bool            // identifiers, and words in strings
	keys     map[string]bool            // properties of the JSON schemas
	files    map[string][]string        // by base name
	imports  map[string]bool            // paths that files import
	foreign  map[string]bool            // packages that are not ours, by the name under which the code uses them
	targets  map[string]bool            // of make
}

func parseTree(t *testing.T) *tree {
	t.Helper()
	in := &tree{
		tests: map[string]bool{}, packages: map[string]map[string]bool{}, members: map[string]map[string]bool{}, words: map[string]bool{},
		keys: map[string]bool{}, files: map[string][]string{}, imports: map[string]bool{}, foreign: map[string]bool{}, targets: map[string]bool{},
	}
	sources(t, func(name, src string) {
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		in.add(name, f)
	})
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		in.targets[m[1]] = true
	}
	schemas, err := filepath.Glob(filepath.Join(root, "docs/schema/*.json"))
	if err != nil || len(schemas) == 0 {
		t.Fatal("no schemas", err)
	}
	for _, name := range schemas {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var schema any
		if err := json.Unmarshal(b, &schema); err != nil {
			t.Fatal(err)
		}
		for _, name := range properties(schema) {
			in.keys[name] = true
		}
	}
	return in
}

func insert(m map[string]map[string]bool, key, member string) {
	if m[key] == nil {
		m[key] = make(map[string]bool)
	}
	m[key][member] = true
}

func (in *tree) add(name string, f *ast.File) {
	in.files[path.Base(name)] = append(in.files[path.Base(name)], name)
	isTest := strings.HasSuffix(name, "_test.go")
	pkg := strings.TrimSuffix(f.Name.Name, "_test")
	foreign := make(map[string]bool)
	for _, spec := range f.Imports {
		p := strings.Trim(spec.Path.Value, `"`)
		in.imports[p] = true
		foreign[packageName(p)] = !strings.HasPrefix(p, module)
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch {
			case d.Recv == nil && isTest && regexp.MustCompile(`^(Test|Fuzz|Benchmark)`).MatchString(d.Name.Name):
				in.tests[d.Name.Name] = true
			case d.Recv == nil:
				insert(in.packages, pkg, d.Name.Name)
			default:
				insert(in.members, typeName(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					insert(in.packages, pkg, s.Name.Name)
					in.addFields(s)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						insert(in.packages, pkg, n.Name)
					}
				}
			}
		}
	}
	word := regexp.MustCompile(`\w+`)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			in.words[n.Name] = true
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && foreign[x.Name] {
				in.foreign[x.Name] = true
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING && !strings.HasSuffix(name, "names_test.go") {
				for _, w := range word.FindAllString(n.Value, -1) {
					in.words[w] = true
				}
			}
		}
		return true
	})
}

// packageName is the name that a package of this path usually has.
func packageName(p string) string {
	if base := path.Base(p); !regexp.MustCompile(`^v\d+$`).MatchString(base) {
		return strings.TrimSuffix(base, ".go")
	}
	return path.Base(path.Dir(p))
}

func (in *tree) addFields(s *ast.TypeSpec) {
	var list *ast.FieldList
	switch typ := s.Type.(type) {
	case *ast.StructType:
		list = typ.Fields
	case *ast.InterfaceType:
		list = typ.Methods
	default:
		return
	}
	for _, field := range list.List {
		for _, n := range field.Names {
			insert(in.members, s.Name.Name, n.Name)
		}
		if len(field.Names) == 0 {
			insert(in.members, s.Name.Name, "+"+typeName(field.Type))
		}
	}
}

// typeName is the name of a receiver's or an embedded type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	makeForm = regexp.MustCompile(`^make ([a-z-]+)`)
	goForm   = regexp.MustCompile(`^go (?:test|run|build|vet) .*?\./([\w/-]*\w)`)
	pathForm = regexp.MustCompile(`^\.?[\w.*-]+(/[\w.*-]+)+/?$|^[\w-]+\.(go|md|json|yaml|txt|mod)$`)
	nameForm = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)*$`)
	testForm = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	// madeAtRunTime are files of an instance, subjects of the register and units.
	madeAtRunTime = regexp.MustCompile(`^(store|kafka|nats)/$|^bin/|^own\.|^fence\.|^hwm$|^(air|catalogue)/\w+$|\.yaml$`)
)

// missing says why a name is not to be found; it is empty for names that exist
// and for what is no name, such as an expression or a topic.
func (in *tree) missing(name string) string {
	if m := makeForm.FindStringSubmatch(name); m != nil {
		if !in.targets[m[1]] {
			return "the Makefile has no such target"
		}
		return ""
	}
	if m := goForm.FindStringSubmatch(name); m != nil {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(m[1]))); err != nil {
			return "there is no such package"
		}
		return ""
	}
	switch {
	case madeAtRunTime.MatchString(name) || strings.HasPrefix(name, "_"):
		return ""
	case testForm.MatchString(name):
		if !in.tests[name] {
			return "there is no such test"
		}
	case pathForm.MatchString(name):
		if all, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(name))); err == nil && len(all) > 0 || in.imports[name] {
			return ""
		}
		if len(in.files[name]) == 0 {
			return "there is no such file"
		}
	case nameForm.MatchString(name):
		return in.undeclared(strings.Split(name, "."))
	}
	return ""
}

func (in *tree) undeclared(parts []string) string {
	if len(parts) == 1 {
		if !in.words[parts[0]] && !in.keys[parts[0]] && in.packages[parts[0]] == nil && !token.IsKeyword(parts[0]) {
			return "the code has no such name"
		}
		return ""
	}
	if !slices.ContainsFunc(parts, func(p string) bool { return !in.keys[p] }) {
		return "" // a key of a file that people write
	}
	if declared := in.packages[parts[0]]; declared[parts[1]] {
		if len(parts) == 2 || in.member(parts[1], parts[2]) {
			return ""
		}
	}
	if len(parts) == 2 && in.member(parts[0], parts[1]) || in.foreign[parts[0]] && in.packages[parts[0]] == nil {
		return ""
	}
	return "no package or type of that name has such a member"
}

// member looks in the type and in what it embeds.
func (in *tree) member(typ, name string) bool {
	if in.members[typ][name] {
		return true
	}
	for m := range in.members[typ] {
		if embedded, ok := strings.CutPrefix(m, "+"); ok && embedded != typ && in.member(embedded, name) {
			return true
		}
	}
	return false
}
