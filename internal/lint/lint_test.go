package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/geogate/geogate"

// all in a line of mayImport stands for every package but those below cmd.
const all = "*"

// mayImport is the order of the packages: each may import of ours what its line
// names, and nothing else. A package that is missing here fails the test, so
// that a new one takes a place in the order. A name with "/..." holds for the
// packages below it.
var mayImport = map[string][]string{
	"internal/hlc":      {},
	"internal/strict":   {},
	"internal/lint":     {},
	"internal/names":    {},
	"internal/loopback": {},
	"internal/secret":   {},
	"internal/sleep":    {},
	"internal/dirlock":  {},
	"internal/redact":   {},
	"internal/warning":  {"internal/redact"},
	"internal/connect":  {"internal/loopback", "internal/secret", "internal/strict", "internal/warning"},
	"internal/defect":   {"internal/warning"},
	// The settings of Java's clients, for commands that take over from MirrorMaker 2.
	"internal/javaclient": {"internal/connect", "internal/strict"},
	"internal/embed":      {"internal/dirlock", "internal/loopback", "internal/sleep", "internal/txn"},
	"docs/schema":         {},
	"internal/event":      {"internal/hlc"},
	"internal/judged":     {"internal/event"},
	"internal/keyset":     {"internal/event"},
	"internal/incident":   {"internal/event"},
	"internal/offsets":    {"internal/event"},
	"internal/expr":       {"internal/event"},
	"internal/txn":        {"internal/sleep", "internal/event"},
	"internal/control":    {"internal/incident", "internal/sleep", "internal/warning", "internal/defect", "internal/event", "internal/offsets", "internal/txn"},
	"internal/seat":       {"internal/incident", "internal/sleep", "internal/defect", "internal/event", "internal/judged", "internal/hlc", "internal/txn", "internal/control"},
	"conflict":            {"internal/event", "internal/judged", "internal/hlc"},
	"conflict/view": {
		"internal/warning", "internal/defect", "conflict", "internal/sleep", "internal/event", "internal/judged", "internal/hlc", "internal/txn", "internal/control", "internal/seat", "internal/keyset",
	},
	"residency":        {"internal/event", "internal/names", "internal/strict", "internal/expr"},
	"dedupe":           {"internal/event", "internal/keyset"},
	"router":           {"internal/event", "internal/names", "internal/control"},
	"router/ownership": {"conflict", "internal/sleep", "internal/event", "internal/expr", "internal/strict", "router"},
	// The client takes both by interface: whoever wires connects them.
	"router/ownership/register": {"router/ownership"},
	"router/ownership/mirror":   {"internal/sleep", "internal/warning", "internal/defect", "internal/event", "internal/txn", "router/ownership"},
	"gateway": {
		"internal/loopback", "internal/sleep", "internal/warning", "internal/event", "internal/judged", "internal/hlc", "internal/txn", "internal/control", "internal/seat", "router",
		"router/ownership", "conflict", "conflict/view",
	},
	"replicate/mm2": {"internal/connect", "internal/javaclient", "internal/strict", "router"},
	"replicate": {
		"internal/incident", "internal/sleep", "internal/warning", "internal/defect", "internal/event", "internal/offsets", "internal/txn", "internal/control", "router", "residency",
	},
	"residency/policyfile": {"internal/sleep", "residency"},
	"internal/retention": {
		"internal/warning", "internal/txn",
	},
	"internal/topics": {
		"internal/retention", "internal/warning", "internal/sleep", "conflict", "internal/event", "internal/txn", "internal/control", "internal/seat", "router", "router/ownership", "router/ownership/mirror", "gateway",
	},
	"internal/seats": {
		"internal/retention", "internal/sleep", "internal/defect", "internal/warning", "internal/event", "internal/hlc", "internal/txn", "internal/control", "internal/seat", "internal/topics", "router", "router/ownership",
		"residency", "dedupe", "conflict", "conflict/view", "gateway",
	},
	"internal/node": {all},
	"testbench/...": {all},
	"cmd/...":       {all},
	"tools":         {},
}

// neverImport narrows the lines that say all.
var neverImport = map[string][]string{
	"internal/node": {"testbench", "testbench/...", "internal/embed"},
}

// confined says which packages may import an outside module: all those that
// begin with the path. Nobody else may.
var confined = map[string][]string{
	"github.com/goccy/go-yaml":                {"internal/strict"},
	"github.com/google/uuid":                  {"internal/event"},
	"cel.dev/cel-go":                          {"internal/expr"},
	"github.com/go-json-experiment/json":      {"gateway"},
	"github.com/fsnotify/fsnotify":            {"internal/connect", "residency/policyfile"},
	"github.com/twmb/franz-go/pkg/sasl":       {"internal/connect"},
	"github.com/aws/aws-sdk-go-v2":            {"internal/connect"},
	"golang.org/x/oauth2":                     {"internal/connect"},
	"software.sslmate.com/src/go-pkcs12":      {"internal/connect"},
	"github.com/pavlo-v-chernykh/keystore-go": {"internal/connect"},
	"github.com/dgraph-io/badger":             {"conflict/view", "dedupe", "internal/seats", "internal/node"},
	"github.com/twmb/franz-go/pkg/kfake":      {"internal/embed"},
	"github.com/klauspost/compress":           {"internal/txn"},
	"github.com/pierrec/lz4":                  {"internal/txn"},
	"github.com/nats-io/nats-server":          {"internal/embed"},
	"github.com/nats-io/nats.go":              {"router/ownership/register"},
	"github.com/twmb/franz-go/pkg/kmsg":       {"internal/txn", "internal/embed", "replicate", "testbench/..."},
	"github.com/magiconair/properties":        {"replicate/mm2"},
	"go.uber.org/fx":                          {"cmd/..."},
	"go.uber.org/dig":                         {"cmd/..."},
	"github.com/spf13/cobra":                  {"cmd/..."},
	"github.com/spf13/pflag":                  {"cmd/..."},
	"pgregory.net/rapid":                      {},
	"github.com/anishathalye/porcupine":       {},
	"github.com/santhosh-tekuri/jsonschema":   {},
	"github.com/rogpeppe/go-internal":         {},
	"github.com/cockroachdb/datadriven":       {"testbench/script"},
	"go.uber.org/goleak":                      {},
}

// pure packages take no clock, goroutine or socket, so they may import neither a
// client nor what runs one.
var pure = map[string][]string{
	"internal/offsets": {"net", "net/http", "os", "github.com/twmb/franz-go"},
	"internal/event":   {"net", "net/http", "os", "github.com/twmb/franz-go"},
	"internal/judged":  {"net", "net/http", "os", "github.com/twmb/franz-go"},
	"internal/hlc":     {"net", "net/http", "os", "github.com/twmb/franz-go"},
	"conflict":         {"net", "net/http", "os", "github.com/twmb/franz-go"},
}

// source is one Go file that is no test.
type source struct {
	file string // from the root of the module
	pkg  string // its folder
	ast  *ast.File
	fset *token.FileSet
}

// sources parses the module's files that are not tests.
func sources(t *testing.T) []source {
	t.Helper()
	root := os.DirFS("../..")
	var out []source
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "node_modules" || name == "tools") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{file: name, pkg: path.Dir(name), ast: f, fset: fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d files found; is this the module?", len(out))
	}
	return out
}

// covers tells whether an entry of the tables, a package or a path with "/...",
// names the package.
func covers(entry, pkg string) bool {
	if below, ok := strings.CutSuffix(entry, "/..."); ok {
		return strings.HasPrefix(pkg, below+"/")
	}
	return entry == pkg
}

func coveredBy(entries []string, pkg string) bool {
	return slices.ContainsFunc(entries, func(e string) bool { return covers(e, pkg) })
}

// line finds a package's line in mayImport: its own, or the longest "/..." above.
func line(pkg string) (string, bool) {
	if _, ok := mayImport[pkg]; ok {
		return pkg, true
	}
	best := ""
	for entry := range mayImport {
		if covers(entry, pkg) && len(entry) > len(best) {
			best = entry
		}
	}
	return best, best != ""
}

// within tells whether an import path is a module or a package below it. Module
// paths with a version suffix are written without it in the tables.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

// imports gives the paths that a file imports.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// breach says what is wrong with an import, "" if nothing.
func breach(pkg, importPath string) string {
	own, ours := strings.CutPrefix(importPath, module+"/")
	if !ours {
		for root, holders := range confined {
			if within(importPath, root) && !coveredBy(holders, pkg) {
				return "only " + strings.Join(holders, ", ") + " may import " + root
			}
		}
		for _, root := range pure[pkg] {
			if within(importPath, root) {
				return "the package is pure"
			}
		}
		return ""
	}
	at, ok := line(pkg)
	allowed := mayImport[at]
	switch {
	case !ok:
		return "package " + pkg + " has no line in the import table"
	case strings.HasPrefix(own, "cmd/"):
		return "nothing imports cmd"
	case coveredBy(neverImport[at], own):
		return pkg + " may not import this"
	case slices.Contains(allowed, all) || coveredBy(allowed, own):
		return ""
	}
	return pkg + " may import of ours only: " + strings.Join(allowed, ", ")
}

func TestImportTable(t *testing.T) {
	for _, s := range sources(t) {
		if _, ok := line(s.pkg); !ok {
			t.Errorf("%s: package %s has no line in the import table", s.file, s.pkg)
			continue
		}
		for _, importPath := range s.imports(t) {
			if wrong := breach(s.pkg, importPath); wrong != "" {
				t.Errorf("%s imports %s: %s", s.file, importPath, wrong)
			}
		}
	}
}

// TestTableIsUsed wants every line of the tables to be some package's, and every
// arrow to be used by code: what may be imported is what is imported.
func TestTableIsUsed(t *testing.T) {
	uses := make(map[string][]string) // a line's imports
	for _, s := range sources(t) {
		at, _ := line(s.pkg)
		uses[at] = append(uses[at], s.pkg)
		for _, importPath := range s.imports(t) {
			uses[at] = append(uses[at], strings.TrimPrefix(importPath, module+"/"))
		}
		for root, holders := range confined {
			for _, h := range holders {
				if covers(h, s.pkg) && slices.ContainsFunc(s.imports(t), func(p string) bool { return within(p, root) }) {
					uses[root] = append(uses[root], h)
				}
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(mayImport)) {
		if at != "tools" && len(uses[at]) == 0 {
			t.Errorf("the import table has a line for %s, which no package is on", at)
		}
		for _, to := range mayImport[at] {
			if to != all && !slices.Contains(uses[at], to) {
				t.Errorf("the import table lets %s import %s, and nothing there does", at, to)
			}
		}
	}
	for _, root := range slices.Sorted(maps.Keys(confined)) {
		for _, h := range confined[root] {
			if !slices.Contains(uses[root], h) {
				t.Errorf("%s may import %s, and does not", h, root)
			}
		}
	}
}

// TestTableIsOrdered checks the table itself: it must have no cycle, and name no
// package that has no line.
func TestTableIsOrdered(t *testing.T) {
	state := make(map[string]int) // 1 in progress, 2 done
	var visit func(pkg string, trail []string)
	visit = func(pkg string, trail []string) {
		switch state[pkg] {
		case 1:
			t.Fatalf("cycle: %s", strings.Join(append(trail, pkg), " → "))
		case 2:
			return
		}
		state[pkg] = 1
		for _, next := range mayImport[pkg] {
			if next == all {
				continue
			}
			if _, ok := mayImport[next]; !ok {
				t.Errorf("%s names %s, which has no line", pkg, next)
			}
			visit(next, append(trail, pkg))
		}
		state[pkg] = 2
	}
	for _, pkg := range slices.Sorted(maps.Keys(mayImport)) {
		visit(pkg, nil)
	}
}

// TestBreach proves that the rules catch what they are for.
func TestBreach(t *testing.T) {
	for _, tt := range []struct {
		pkg, importPath string
		want            bool
	}{
		{"internal/event", module + "/router", true},
		{"internal/event", module + "/internal/hlc", false},
		{"gateway", module + "/replicate", true},
		{"replicate", module + "/gateway", true},
		{"conflict/view", module + "/internal/seat", false},
		{"testbench/sim/world", module + "/conflict", false},
		{"conflict", module + "/internal/seat", true},
		{"internal/node", module + "/gateway", false},
		{"internal/node", module + "/internal/embed", true},
		{"internal/node", module + "/testbench/sim", true},
		{"testbench/world", module + "/internal/embed", false},
		{"testbench/world", module + "/cmd/geogate", true},
		{"cmd/geogate", module + "/testbench/data", false},
		{"somewhere/new", module + "/internal/hlc", true},
		{"gateway", "go.uber.org/fx", true},
		{"cmd/geogate", "go.uber.org/fx/fxevent", false},
		{"gateway", "github.com/dgraph-io/badger/v4", true},
		{"dedupe", "github.com/dgraph-io/badger/v4", false},
		{"internal/seat", "github.com/twmb/franz-go/pkg/kmsg", true},
		{"internal/seat", "github.com/twmb/franz-go/pkg/kgo", false},
		{"conflict", "github.com/twmb/franz-go/pkg/kgo", true},
		{"router", "github.com/goccy/go-yaml/ast", true},
		{"router/ownership", "github.com/nats-io/nats.go/jetstream", true},
		{"router/ownership/register", "github.com/nats-io/nats.go/jetstream", false},
		{"router/ownership", module + "/router/ownership/register", true},
		{"internal/node", "github.com/nats-io/nats-server/v2/server", true},
	} {
		if wrong := breach(tt.pkg, tt.importPath); (wrong != "") != tt.want {
			t.Errorf("%s importing %s: %q, want a breach: %t", tt.pkg, tt.importPath, wrong, tt.want)
		}
	}
}

// TestPackageDocs wants exactly one package comment in each package, which
// begins as Go's tools expect.
func TestPackageDocs(t *testing.T) {
	docs := make(map[string][]string)
	for _, s := range sources(t) {
		docs[s.pkg] = append(docs[s.pkg], "")
		if s.ast.Doc == nil {
			continue
		}
		docs[s.pkg][len(docs[s.pkg])-1] = s.file
		text := s.ast.Doc.Text()
		if name := path.Base(s.pkg); s.ast.Name.Name == "main" {
			if !strings.HasPrefix(text, "Command "+name+" ") && !strings.HasPrefix(text, strings.ToUpper(name[:1])+name[1:]+" ") {
				t.Errorf("%s: the package comment begins %.40q, want the command's name", s.file, text)
			}
		} else if !strings.HasPrefix(text, "Package "+s.ast.Name.Name+" ") {
			t.Errorf("%s: the package comment begins %.40q, want Package %s …", s.file, text, s.ast.Name.Name)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(docs)) {
		files := slices.DeleteFunc(docs[pkg], func(f string) bool { return f == "" })
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments, want one: %s", pkg, len(files), strings.Join(files, ", "))
		}
	}
}

// connectionOnly are functions of the Kafka client that decide how a cluster is reached. Only
// internal/connect calls them, and txn.NewClient, so that no client goes round the configured
// connection.
var connectionOnly = []string{"NewClient", "SeedBrokers", "Dialer", "DialTLS", "DialTLSConfig", "SASL", "Rack"}

// TestOneConnection wants all clients of the program, test benches apart, to be made by
// txn.NewClient, with options that internal/connect has made.
func TestOneConnection(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "internal/connect" || s.file == "internal/txn/newclient.go" || strings.HasPrefix(s.pkg, "testbench/") {
			continue
		}
		for _, at := range goesRound(s.ast, s.fset) {
			t.Errorf("%s: use the options of a connect.Cluster, and txn.NewClient", at)
		}
	}
}

// TestGoesRound proves that the rule catches what it is for, whatever the import is called.
func TestGoesRound(t *testing.T) {
	const src = `package p
import k "github.com/twmb/franz-go/pkg/kgo"
import "other/kgo"
var _, _, _ = k.NewClient(k.SeedBrokers("a:1"), k.ClientID("x")), kgo.NewClient(), k.Offset{}`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := goesRound(f, fset); len(got) != 2 {
		t.Errorf("found %v, want NewClient and SeedBrokers", got)
	}
}

// goesRound gives the places where a file calls what connectionOnly names.
func goesRound(f *ast.File, fset *token.FileSet) (out []string) {
	name := ""
	for _, spec := range f.Imports {
		if spec.Path.Value == `"github.com/twmb/franz-go/pkg/kgo"` {
			name = "kgo"
			if spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && name != "" && slices.Contains(connectionOnly, sel.Sel.Name) {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == name {
				out = append(out, fset.Position(n.Pos()).String()+": "+sel.Sel.Name)
			}
		}
		return true
	})
	return out
}

// TestNoInit refuses init functions: what a package does when it is imported
// cannot be seen where it is imported.
func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		for _, decl := range s.ast.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: init function", s.fset.Position(f.Pos()))
			}
		}
	}
}

// TestNoSleepInTests refuses tests that wait for a time instead of a condition.
func TestNoSleepInTests(t *testing.T) {
	root := os.DirFS("../..")
	for _, name := range testFiles(t, root) {
		src, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
					t.Errorf("%s: time.Sleep in a test", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// limits of size, beyond which a file or function is split.
const (
	maxFileLines     = 700
	maxFunctionLines = 70
)

// TestSizes keeps files and functions readable.
func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if n := s.fset.File(s.ast.Pos()).LineCount(); n > maxFileLines {
			t.Errorf("%s has %d lines, at most %d", s.file, n, maxFileLines)
		}
		for _, decl := range s.ast.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, at most %d", s.fset.Position(f.Pos()), f.Name.Name, n, maxFunctionLines)
			}
		}
	}
}
