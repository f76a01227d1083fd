package residency_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/residency"
)

const head = "version: 1\nkind: ResidencyPolicy\nname: demo\nrevision: 1\ndefault: deny\n"

// demo is the policy of the pinned interfaces.
const demo = head + `groups: {europe: [eu]}
topics: [{match: ["github"], format: json}]
rules:
  - {id: public-repos, effect: allow, topics: ["github"], from: [eu], to: ["*"], when: 'key in ["octo-org/octo-repo", "octocat/hello-world"]'}
  - {id: github-from-us, effect: allow, topics: ["github"], from: [us], to: ["*"]}
  - {id: flights, effect: allow, topics: ["flights"], from: ["*"], to: ["*"]}
`

var regions = []string{"us", "eu"}

func parse(t testing.TB, src string) *residency.Policy {
	t.Helper()
	p, err := residency.Parse("p.yaml", []byte(src), regions)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDemo(t *testing.T) {
	p := parse(t, demo)
	if p.Name != "demo" || p.Revision != 1 || p.MaxAge != residency.DefaultMaxAge || len(p.SHA256()) != 64 {
		t.Fatalf("%+v", p)
	}
	for _, c := range []struct {
		topic, from, to string
		key             string
		effect          residency.Effect
		want            string
	}{
		{"github", "eu", "us", "octocat/hello-world", residency.PerRecord, "allow by public-repos"},
		{"github", "eu", "us", "eu-corp/payroll", residency.PerRecord, "deny by default"},
		{"github", "eu", "us", "\xff", residency.PerRecord, "deny by default (a predicate cannot be decided)"},
		{"github", "us", "eu", "eu-corp/payroll", residency.Allow, "allow by github-from-us"},
		{"flights", "eu", "us", "DTW", residency.Allow, "allow by flights"},
		{"flights2", "eu", "us", "DTW", residency.Deny, "deny by default"},
	} {
		r := p.Compile(c.topic, c.from, c.to)
		if got := r.Decide(&residency.Record{Key: []byte(c.key)}).String(); got != c.want || r.Effect != c.effect {
			t.Errorf("%s %s→%s %q: %s (%v), want %s (%v)", c.topic, c.from, c.to, c.key, got, r.Effect, c.want, c.effect)
		}
	}
}

func TestGroupsAndDeny(t *testing.T) {
	p := parse(t, head+`groups: {europe: [eu]}
max_age: 90s
rules:
  - {id: a, effect: allow, topics: ["*"], from: ["*"], to: ["*"]}
  - {id: pin, effect: deny, topics: ["health.*"], from: ["@europe"], to: ["us"]}
  - {id: secret, effect: deny, topics: ["*"], from: ["@europe"], to: ["us"], when: 'headers["class"] == "secret"'}
`)
	if p.MaxAge != 90*time.Second {
		t.Fatal(p.MaxAge)
	}
	class := func(v string) []event.Header { return []event.Header{{Key: "class", Value: []byte(v)}} }
	for _, c := range []struct {
		topic, from, to string
		headers         []event.Header
		want            string
	}{
		{"health.x", "eu", "us", nil, "deny by pin"},
		{"healthx", "eu", "us", class("secret"), "deny by secret"},
		{"healthx", "eu", "us", class("open"), "allow by a"},
		{"healthx", "eu", "us", nil, "deny by secret (a predicate cannot be decided)"},
		{"health.x", "us", "eu", nil, "allow by a"},
	} {
		steps, v := p.Explain(c.topic, c.from, c.to, &residency.Record{Headers: c.headers})
		if v.String() != c.want {
			t.Errorf("%s %s→%s: %s, want %s", c.topic, c.from, c.to, v, c.want)
		}
		if n := len(slices.DeleteFunc(steps, func(s residency.Step) bool { return !s.Decides })); n != 1 {
			t.Errorf("%s: %d steps decide", c.topic, n)
		}
	}
}

// TestHeaderNamesHaveNoCase: raw HTTP lower-cases names, JSON and native producers do
// not; a deny rule must match all the same, and an allow rule must not be reached by a
// second header under another spelling.
func TestHeaderNamesHaveNoCase(t *testing.T) {
	p := parse(t, head+`rules:
  - {id: secret, effect: deny, topics: ["*"], from: [eu], to: ["*"], when: 'has(headers.class) && headers.class == "secret"'}
  - {id: public, effect: allow, topics: ["*"], from: [eu], to: ["*"], when: 'headers["Class"] == "public"'}
`)
	for _, c := range []struct {
		headers []event.Header
		want    string
	}{
		{[]event.Header{{Key: "class", Value: []byte("secret")}}, "deny by secret"},
		{[]event.Header{{Key: "CLASS", Value: []byte("secret")}}, "deny by secret"},
		{[]event.Header{{Key: "class", Value: []byte("public")}}, "allow by public"},
		{[]event.Header{{Key: "cLass", Value: []byte("public")}}, "allow by public"},
		{[]event.Header{{Key: "Class", Value: []byte("secret")}, {Key: "class", Value: []byte("public")}}, "deny by secret (a predicate cannot be decided)"},
		{[]event.Header{{Key: "class", Value: []byte("secret")}, {Key: "class", Value: []byte("public")}}, "allow by public"},
	} {
		r := p.Compile("t", "eu", "us")
		if got := r.Decide(&residency.Record{Headers: c.headers}).String(); got != c.want {
			t.Errorf("%q: %s, want %s", c.headers, got, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"", "p.yaml:1:1: version: must be 1"},
		{strings.Replace(demo, "default: deny", "default: allow", 1), "p.yaml:5:1: default: must be deny"},
		{strings.Replace(demo, "default: deny\n", "", 1), "default: must be deny"},
		{strings.Replace(demo, "revision: 1", "revision: 0", 1), "p.yaml:4:1: revision"},
		{strings.Replace(demo, "from: [us]", "from: [uss]", 1), `p.yaml:10:68: rules[1].from[0]: unknown region "uss"; did you mean "us"?`},
		{strings.Replace(demo, "from: [us]", `from: ["@europa"]`, 1), `unknown group "europa"; did you mean "europe"?`},
		{strings.Replace(demo, "id: flights", "id: public-repos", 1), "rule public-repos is there already"},
		{strings.Replace(demo, "id: flights", "id: default", 1), "take another id"},
		{strings.Replace(demo, "effect: allow", "efect: allow", 1), `did you mean "effect"?`},
		{strings.Replace(demo, "key in", "kex in", 1), "p.yaml:9:89: rules[0].when: undeclared reference to 'kex'"},
		{strings.Replace(demo, `key in`, `value.id in`, 1), "value comes with field rules"},
		{demo + "---\nversion: 1\n", "second document"},
		{strings.Replace(demo, `to: ["*"], when`, `to: [], when`, 1), "needs at least one region"},
		{strings.Replace(demo, `topics: ["flights"]`, `topics: ["/fl.*/"]`, 1), "regular expressions are not accepted"},
		{strings.Replace(demo, `topics: ["flights"]`, `topics: ["fl ights"]`, 1), "is in no topic name"},
		{strings.Replace(demo, "format: json", "format: avro", 1), "comes with field rules"},
		{strings.Replace(demo, "to: [\"*\"]}\n", "to: [\"*\"], when: ''}\n", 1), "is empty"},
		{strings.Replace(demo, "to: [\"*\"]}\n", "to: [\"*\"], tombstones: pass}\n", 1), "comes with field rules"},
		{head, "rules: needs at least one rule"},
		{head + "max_age: 1ms\nrules: [{id: a, effect: deny, topics: ['*'], from: ['*'], to: ['*']}]\n", "max_age: must be within"},
	} {
		_, err := residency.Parse("p.yaml", []byte(c.src), regions)
		var errs *strict.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if _, err := residency.Load(filepath.Join(t.TempDir(), "none.yaml"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// rules draws rules that often speak of the same records, some with predicates
// that cannot be decided for some of them.
func rules(t *rapid.T, from int) []string {
	when := []string{
		"", "", `, when: 'key == "a"'`, `, when: 'key != "a"'`, `, when: 'headers["h"] == "1"'`,
		`, when: 'has(headers.h) && headers.h == "1"'`, `, when: 'int(key) > 3 || topic == "t"'`, `, when: "true"`, `, when: "false"`,
	}
	var out []string
	for i := range rapid.IntRange(1, 6).Draw(t, "rules") {
		out = append(out, fmt.Sprintf("  - {id: r%d, effect: %s, topics: [%q], from: [%q], to: [%q]%s}\n", from+i,
			rapid.SampledFrom([]string{"allow", "allow", "deny"}).Draw(t, "effect"),
			rapid.SampledFrom([]string{"*", "t", "t*", "u"}).Draw(t, "topics"),
			rapid.SampledFrom([]string{"*", "eu", "us"}).Draw(t, "from"),
			rapid.SampledFrom([]string{"*", "us", "eu"}).Draw(t, "to"),
			rapid.SampledFrom(when).Draw(t, "when")))
	}
	return out
}

func record(t *rapid.T) *residency.Record {
	r := &residency.Record{Key: rapid.SampledFrom([][]byte{nil, []byte("a"), []byte("7"), {0xff}}).Draw(t, "key")}
	if v := rapid.SampledFrom([]string{"", "1", "2", "\xff"}).Draw(t, "header"); v != "" {
		r.Headers = append(r.Headers, event.Header{Key: "h", Value: []byte(v)})
	}
	return r
}

func compile(t *rapid.T, rules []string) *residency.Ruling {
	p, err := residency.Parse("p", []byte(head+"rules:\n"+strings.Join(rules, "")), regions)
	if err != nil {
		t.Fatal(err)
	}
	return p.Compile("t", "eu", "us")
}

func TestOrderOfRulesNeverMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rules(t, 0)
		first := compile(t, rs)
		second := compile(t, rapid.Permutation(rs).Draw(t, "order"))
		rec := record(t)
		if a, b := first.Decide(rec), second.Decide(rec); a != b || first.Effect != second.Effect || first.Rule != second.Rule {
			t.Fatalf("%v and %v", a, b)
		}
	})
}

func TestAddingADenyNeverAllowsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rules(t, 0)
		var more []string
		for _, r := range rules(t, 100) {
			more = append(more, strings.Replace(r, "effect: allow", "effect: deny", 1))
		}
		rec := record(t)
		if before, after := compile(t, rs).Decide(rec), compile(t, append(rs, more...)).Decide(rec); after.Allow && !before.Allow {
			t.Fatalf("%v became %v", before, after)
		}
	})
}

// What each rule makes of the record is worked out for it alone; then the
// verdict must follow from the four lines of the semantics.
func TestVerdictFollowsFromTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rules(t, 0)
		rec := record(t)
		denied, allowed := false, false
		for _, r := range rs {
			// A rule's own effect, alone and as an allow rule, tells whether it matches.
			alone := compile(t, []string{strings.Replace(r, "effect: deny", "effect: allow", 1)}).Decide(rec)
			if strings.Contains(r, "effect: deny") {
				denied = denied || alone.Allow || alone.Doubt
			} else {
				allowed = allowed || alone.Allow
			}
		}
		ruling := compile(t, rs)
		if v := ruling.Decide(rec); v.Allow != (allowed && !denied) {
			t.Fatalf("%v, but a rule that denies matches: %v, one that allows: %v", v, denied, allowed)
		}
		if v := ruling.Decide(rec); ruling.Effect != residency.PerRecord && v.Allow != (ruling.Effect == residency.Allow) {
			t.Fatalf("%v under %v", v, ruling.Effect)
		}
	})
}

func TestGlobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.StringMatching(`[ab.*?]{1,8}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab.]{1,8}`).Draw(t, "topic")
		p, err := residency.Parse("p", fmt.Appendf(nil, "%srules: [{id: a, effect: allow, topics: [%q], from: [eu], to: [us]}]\n", head, g), nil)
		if err != nil {
			t.Fatal(err)
		}
		var match func(g, s string) bool
		match = func(g, s string) bool {
			switch {
			case g == "":
				return s == ""
			case g[0] == '*':
				return match(g[1:], s) || s != "" && match(g, s[1:])
			}
			return s != "" && (g[0] == '?' || g[0] == s[0]) && match(g[1:], s[1:])
		}
		if got := p.Compile(name, "eu", "us").Effect == residency.Allow; got != match(g, name) {
			t.Fatalf("%q on %q: %v", g, name, got)
		}
	})
}

func TestGuard(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	open := parse(t, strings.Replace(demo, "default: deny\n", "default: deny\nmax_age: 60s\n", 1))
	g := residency.NewGuard(open)
	changed, first := g.Changed(), g.Rule("flights", "eu", "us")
	if first.Effect != residency.Allow || first.Version != g.Version() {
		t.Fatalf("%+v", first)
	}
	if g.Loaded(open) || first.Version != g.Version() {
		t.Fatal("the same file again is a change")
	}
	// A file that no longer loads leaves the policy in force for max_age.
	broken := errors.New("broken")
	if g.Failed(now, broken) || g.Failed(now.Add(59*time.Second), broken) {
		t.Fatal("stopped before max_age")
	}
	if st := g.Status(); st.State != residency.On || !errors.Is(st.Err, broken) || !g.Deadline().Equal(now.Add(60*time.Second)) {
		t.Fatalf("%+v", st)
	}
	if !g.Failed(now.Add(60*time.Second), broken) || g.Failed(now.Add(61*time.Second), broken) {
		t.Fatal("did not stop once at max_age")
	}
	select {
	case <-changed:
	default:
		t.Fatal("nobody was told")
	}
	if r := g.Rule("flights", "eu", "us"); r.Effect != residency.Deny || r.Rule != residency.StoppedRule || first.Version == g.Version() {
		t.Fatalf("%+v", r)
	}
	if st := g.Status(); st.State != residency.Stopped || st.SHA256 != open.SHA256() {
		t.Fatalf("%+v", st)
	}
	if !g.Loaded(open) || g.Rule("flights", "eu", "us").Effect != residency.Allow || g.Status().Err != nil {
		t.Fatal("a good file does not open the border again")
	}
	// A good file in between restarts the time.
	g.Failed(now, broken)
	g.Loaded(open)
	if g.Failed(now.Add(61*time.Second), broken) {
		t.Fatal("an old failure counts")
	}
	g.Loaded(open)
	// A clock that is set back again and again does not keep the border open.
	at, stopped := now, false
	for range 14 {
		stopped = stopped || g.Failed(at, broken)
		at = at.Add(5 * time.Second)
		stopped = stopped || g.Failed(at, broken)
		at = at.Add(-time.Hour)
	}
	if !stopped {
		t.Fatal("a clock that goes back gives the policy more time than max_age")
	}
}

func TestCases(t *testing.T) {
	cases, err := residency.ParseCases("c.yaml", []byte(`version: 1
kind: ResidencyCases
cases:
  - {name: open, topic: github, from: eu, to: us, key: octocat/hello-world, expect: allow, rule: public-repos}
  - {name: no key, topic: github, from: eu, to: us, expect: deny}
  - {name: wrong, topic: github, from: us, to: eu, key: x, headers: {a: b}, expect: deny, rule: default}
`), []string{"eu", "us"})
	if err != nil {
		t.Fatal(err)
	}
	p := parse(t, demo)
	var wrong []string
	for i := range cases.Cases {
		if _, w := cases.Cases[i].Run(p); w != "" {
			wrong = append(wrong, cases.Cases[i].Name+": "+w)
		}
	}
	if want := []string{"wrong: want deny, is allow by github-from-us; want rule default, github-from-us decides"}; !slices.Equal(wrong, want) {
		t.Fatalf("%q, want %q", wrong, want)
	}
	if _, err := residency.ParseCases("c.yaml", []byte("version: 1\nkind: ResidencyCases\ncases: [{topic: a, expect: maybe}]\n"), nil); err == nil ||
		!strings.Contains(err.Error(), "c.yaml:3:20: cases[0].expect") || !strings.Contains(err.Error(), "cases[0].from: is needed") {
		t.Fatal(err)
	}
}

// A policy denies what it has never heard of, so a case about a misspelt name would
// be met by accident.
func TestCasesAboutNothing(t *testing.T) {
	for _, c := range []struct{ way, want string }{
		{"topic: git*, from: eu, to: us", "cases[0].topic: \"git*\" is a pattern"},
		{"topic: git hub, from: eu, to: us", "cases[0].topic"},
		{"topic: github, from: EU, to: us", "cases[0].from: \"EU\" is not a region name"},
		{"topic: github, from: ue, to: us", "cases[0].from: region \"ue\" is unknown"},
		{"topic: github, from: eu, to: '@europe'", "cases[0].to"},
		{"topic: github, from: eu, to: '*'", "cases[0].to"},
		{"topic: github, from: eu, to: eu", "cases[0].to: is eu, where the record is"},
	} {
		_, err := residency.ParseCases("c", []byte("version: 1\nkind: ResidencyCases\ncases: [{"+c.way+", expect: deny}]\n"), []string{"eu", "us"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.way, err, c.want)
		}
	}
}

func FuzzParseCases(f *testing.F) {
	f.Add([]byte("version: 1\nkind: ResidencyCases\ncases:\n  - {topic: github, from: eu, to: us, key: k, headers: {a: b}, expect: deny, rule: default}\n"))
	p := parse(f, demo)
	f.Fuzz(func(t *testing.T, src []byte) {
		cases, err := residency.ParseCases("f", src, nil)
		if err != nil {
			var errs *strict.Errors
			if !errors.As(err, &errs) || len(errs.All) == 0 {
				t.Fatal(err)
			}
			return
		}
		for i := range cases.Cases {
			cases.Cases[i].Run(p)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(demo))
	f.Add([]byte(""))
	f.Add([]byte(head + "rules:\n  - id: a\n    effect: deny\n    topics: [a]\n    from: ['*']\n    to: ['*']\n    when: |\n      key ==\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := residency.Parse("f", src, nil)
		if err != nil {
			var errs *strict.Errors
			if !errors.As(err, &errs) || len(errs.All) == 0 {
				t.Fatal(err)
			}
			for _, e := range errs.All {
				if e.Line < 1 || e.Column < 1 {
					t.Fatalf("no place: %v", e)
				}
			}
			return
		}
		// Nothing leaves that no rule speaks of.
		if r := p.Compile("\x00", "eu", "us"); r.Effect != residency.Deny && !strings.Contains(string(src), "*") && !strings.Contains(string(src), "?") {
			t.Fatalf("%+v", r)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	r := parse(b, demo).Compile("github", "eu", "us")
	rec := &residency.Record{Key: []byte("eu-corp/payroll")}
	for b.Loop() {
		if r.Decide(rec).Allow {
			b.Fatal("allowed")
		}
	}
}
