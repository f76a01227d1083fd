package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/warning"
)

// TestLinks follows every link between documents, to a heading where it names
// one.
func TestLinks(t *testing.T) {
	docs := documents(t)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				t.Errorf("%s: link %s leads nowhere", name, m[1])
				continue
			}
			if heading != "" && !slices.Contains(headings(docs[file]), heading) {
				t.Errorf("%s: link %s: %s has no such heading", name, m[1], file)
			}
		}
	}
}

// headings are the anchors of a document.
func headings(text string) (all []string) {
	odd := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(text) {
		if h := strings.TrimLeft(line, "#"); h != line && strings.HasPrefix(h, " ") {
			h = odd.ReplaceAllString(strings.ToLower(strings.TrimSpace(h)), "")
			all = append(all, strings.ReplaceAll(h, " ", "-"))
		}
	}
	return all
}

// TestWidth keeps prose readable in a terminal.
func TestWidth(t *testing.T) {
	for name, text := range documents(t) {
		n := 0
		for line := range strings.Lines(text) {
			n++
			if w := utf8.RuneCountInString(line) - 1; w > 150 && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "{") {
				t.Errorf("%s:%d: %d columns", name, n, w)
			}
		}
	}
}

// prefixed are the functions that put a prefix before the name of a metric, which
// is their first argument, by the file in which they do.
var prefixed = map[string]struct{ function, prefix string }{
	"replicate/status.go":         {"newMetric", "geogate_link_"},
	"router/ownership/metrics.go": {"describe", "geogate_ownership_"},
}

// metricNames are the metrics of the code: every string that is a metric's name,
// and what the prefixed ones become.
func metricNames(t *testing.T) []string {
	t.Helper()
	names := make(map[string]bool)
	whole := regexp.MustCompile(`^geogate_[a-z_]*[a-z]$`)
	sources(t, func(name, text string) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && whole.MatchString(s) {
					names[s] = true
				}
			case *ast.CallExpr:
				fn, ok := n.Fun.(*ast.Ident)
				p, has := prefixed[name]
				if !ok || !has || fn.Name != p.function || len(n.Args) < 2 {
					break
				}
				if lit, ok := n.Args[0].(*ast.BasicLit); ok {
					s, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					names[p.prefix+s] = true
				}
			}
			return true
		})
	})
	return slices.Sorted(maps.Keys(names))
}

// metricRow is a line of the table of metrics.
type metricRow struct{ kind, labels string }

func metricTable(t *testing.T) map[string]metricRow {
	t.Helper()
	rows := make(map[string]metricRow)
	row := regexp.MustCompile("(?m)^\\| `(geogate_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([^|]*)\\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/guide/operators.md"), -1) {
		labels := strings.Split(strings.ReplaceAll(strings.TrimSpace(m[3]), "`", ""), ", ")
		slices.Sort(labels)
		rows[m[1]] = metricRow{m[2], strings.Join(labels, ",")}
	}
	return rows
}

// TestMetricsAreDocumented holds the operators' table against the names in the
// code. Types and labels are held against a running demo by TestExamples.
func TestMetricsAreDocumented(t *testing.T) {
	got, want := slices.Sorted(maps.Keys(metricTable(t))), metricNames(t)
	if len(want) < 20 {
		t.Fatalf("only %d metrics were found: %v", len(want), want)
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("the operators' guide does not tell of %s", name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("the operators' guide tells of %s, which the code does not have", name)
		}
	}
}

// TestAlertsAskForWhatIsThere holds the alert rules against the metrics and their labels,
// and the operators' guide against the alerts. What the rules do is tested beside them.
func TestAlertsAskForWhatIsThere(t *testing.T) {
	rules := read(t, "deploy/prometheus/geogate.rules.yaml")
	table := metricTable(t)
	asked := regexp.MustCompile(`\b(geogate_[a-z_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(rules, -1)
	if len(asked) < 20 {
		t.Fatalf("only %d metrics were found", len(asked))
	}
	for _, m := range asked {
		name := m[1]
		if _, ok := table[name]; !ok {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_bucket")
			if table[name].kind != "histogram" {
				t.Errorf("the alert rules ask for %s, which the code does not have", m[1])
				continue
			}
		}
		for _, l := range regexp.MustCompile(`(\w+)=`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(strings.Split(table[name].labels, ","), l[1]) {
				t.Errorf("the alert rules ask for label %s of %s, which has %s", l[1], m[1], table[name].labels)
			}
		}
	}
	guide := read(t, "docs/guide/operators.md")
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(guide, "`"+m[1]+"`") {
			t.Errorf("the operators' guide does not tell of the alert %s", m[1])
		}
	}
}

// TestExitCodes holds the operators' table against the constants.
func TestExitCodes(t *testing.T) {
	codes := regexp.MustCompile(`(?m)^\texit[A-Z]\w+ += (\d+)`).FindAllStringSubmatch(read(t, "cmd/geogate/exit.go"), -1)
	if len(codes) < 5 {
		t.Fatalf("only %d exit codes were found", len(codes))
	}
	// HTTP statuses have three digits.
	told := regexp.MustCompile(`(?m)^\| (\d{1,2}) \|`).FindAllStringSubmatch(read(t, "docs/guide/operators.md"), -1)
	numbers := func(all [][]string) (out []string) {
		for _, m := range all {
			out = append(out, m[1])
		}
		slices.Sort(out)
		return out
	}
	if got, want := numbers(told), numbers(codes); !slices.Equal(got, want) {
		t.Errorf("the operators' guide tells of exit codes %v, the code has %v", got, want)
	}
}

// TestDecisionsAreListed holds the index of decisions against the files.
func TestDecisionsAreListed(t *testing.T) {
	index := read(t, "docs/adr/README.md")
	n := 0
	for name := range documents(t) {
		if base := path.Base(name); path.Dir(name) == "docs/adr" && base != "README.md" {
			if n++; !strings.Contains(index, "]("+base+")") {
				t.Errorf("docs/adr/README.md lacks %s", base)
			}
		}
	}
	if n == 0 {
		t.Error("no decision was found")
	}
}

// TestNothingPrivate refuses what belongs to one machine only.
func TestNothingPrivate(t *testing.T) {
	private := regexp.MustCompile(`/(root|home|tmp|work|Users)/`)
	for name, text := range documents(t) {
		if m := private.FindString(text); m != "" {
			t.Errorf("%s names the path %s…", name, m)
		}
	}
}

// TestConfigurationIsDocumented: the guide names every member that the schema of
// an instance's configuration has.
func TestConfigurationIsDocumented(t *testing.T) {
	var schema any
	if err := json.Unmarshal([]byte(read(t, "docs/schema/config-v1.json")), &schema); err != nil {
		t.Fatal(err)
	}
	guide := read(t, "docs/guide/configuration.md")
	members := properties(schema)
	if len(members) < 20 {
		t.Fatalf("only %d members were found: %v", len(members), members)
	}
	for _, name := range members {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(guide) {
			t.Errorf("docs/guide/configuration.md does not name %s", name)
		}
	}
}

// properties are the names of all members in a JSON schema.
func properties(schema any) (names []string) {
	switch s := schema.(type) {
	case map[string]any:
		for k, v := range s {
			if members, ok := v.(map[string]any); ok && k == "properties" {
				names = slices.AppendSeq(names, maps.Keys(members))
			}
			names = append(names, properties(v)...)
		}
	case []any:
		for _, v := range s {
			names = append(names, properties(v)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestPlainWords refuses words that read like a translation, or have a standard
// term in their place.
func TestPlainWords(t *testing.T) {
	instead := map[string]string{
		`\banew\b`: "again, restarted, recreated", `\bbehind (a|the|its) cut\b`: "past the cut", `\bfor ever\b`: "for good", `\bthereof\b`: "of it",
		`\bwell-nigh\b|\bhitherto\b`: "until now", `\bgiven up\b`: "abandoned, aborted", `\bmade whole\b`: "repaired", `\bbegun\b`: "started",
		`\bcome to know`: "learn", `\blets? in\b`: "accepts", `\bstands? still\b`: "stops",
	}
	for name, text := range documents(t) {
		for form, better := range instead {
			if m := regexp.MustCompile(form).FindString(text); m != "" {
				t.Errorf("%s: %q: write %s", name, m, better)
			}
		}
	}
}

// TestWarningsAreDocumented holds the operators' table of warnings against the codes.
func TestWarningsAreDocumented(t *testing.T) {
	documented := make(map[string]string) // the severity by code
	row := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (error|notice|error or notice) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/guide/operators.md"), -1) {
		documented[m[1]] = m[2]
	}
	codes := regexp.MustCompile(`(?m)^\t\w+ +Code = "([A-Z_]+)"$`).FindAllStringSubmatch(read(t, "internal/warning/warning.go"), -1)
	if len(codes) < 15 || len(codes) != len(warning.Codes()) {
		t.Fatalf("%d codes were found, Codes has %d", len(codes), len(warning.Codes()))
	}
	for _, m := range codes {
		code := warning.Code(m[1])
		want := string(code.Severity())
		if code == warning.MoreWarnings {
			want = "error or notice"
		}
		if got := documented[m[1]]; got != want {
			t.Errorf("the guide gives %s the severity %q, want %q", code, got, want)
		}
		delete(documented, m[1])
	}
	for code := range documented {
		t.Errorf("the guide has a warning %s, the code has none", code)
	}
}
