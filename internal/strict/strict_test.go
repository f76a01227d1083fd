package strict_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/strict"
)

type kafka struct {
	Seeds    []string  `yaml:"seeds"`
	Embedded *embedded `yaml:"embedded"`
}

type embedded struct {
	Listen string `yaml:"listen"`
}

func (embedded) Later() map[string]string {
	return map[string]string{"routes": "comes with authority"}
}

type region struct {
	ID    uint8 `yaml:"id"`
	Kafka kafka `yaml:"kafka"`
}

type file struct {
	Version int               `yaml:"version"`
	Name    string            `yaml:"name"`
	On      bool              `yaml:"on_start"`
	Ratio   float64           `yaml:"ratio"`
	Regions map[string]region `yaml:"regions"`
	Body    strict.Size       `yaml:"max_body"`
	Window  time.Duration     `yaml:"window"`
	Free    any               `yaml:"free"`
	Hidden  string            `yaml:"-"`
}

func TestDecode(t *testing.T) {
	src := `# a comment
version: 1
name: 'us'   # another
on_start: true
ratio: 1.5
regions:
  us: {id: 1, kafka: {embedded: {listen: "127.0.0.1:1"}}}
  eu:
    id: 0x2
    kafka:
      seeds:
        - a:1
        - b:2
max_body: 32MiB
window: 24h
free: {a: [1, x, true, null]}
`
	got := file{Name: "default", Hidden: "kept"}
	if err := strict.Decode("f.yaml", []byte(src), &got); err != nil {
		t.Fatal(err)
	}
	want := file{
		Version: 1, Name: "us", On: true, Ratio: 1.5, Body: 32 * strict.MiB, Window: 24 * time.Hour, Hidden: "kept",
		Regions: map[string]region{
			"us": {ID: 1, Kafka: kafka{Embedded: &embedded{Listen: "127.0.0.1:1"}}},
			"eu": {ID: 2, Kafka: kafka{Seeds: []string{"a:1", "b:2"}}},
		},
		Free: map[string]any{"a": []any{uint64(1), "x", true, nil}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("decoded\n %+v, want\n %+v", got, want)
	}
}

func TestAbsentKeysKeepDefaults(t *testing.T) {
	for _, src := range []string{"", "# nothing\n", "---\n", "regions:\n"} {
		got := file{Name: "default", Window: time.Second}
		if err := strict.Decode("f.yaml", []byte(src), &got); err != nil {
			t.Errorf("%q: %v", src, err)
		}
		if got.Name != "default" || got.Window != time.Second {
			t.Errorf("%q: defaults lost: %+v", src, got)
		}
	}
}

func TestErrors(t *testing.T) {
	tests := map[string]struct {
		src  string
		want string
	}{
		"unknown key":        {"version: 1\nregoins: {}\n", `f:2:1: regoins: unknown key; did you mean "regions"?`},
		"unknown, not near":  {"zzzzzzz: 1\n", `f:1:1: zzzzzzz: unknown key`},
		"deep unknown key":   {"regions:\n  us:\n    kafka: {sedes: []}\n", `f:3:13: regions.us.kafka.sedes: unknown key; did you mean "seeds"?`},
		"key for later":      {"regions: {us: {kafka: {embedded: {routes: []}}}}", `f:1:35: regions.us.kafka.embedded.routes: comes with authority`},
		"fields without tag": {"Hidden: x\n", `f:1:1: Hidden: unknown key`},
		"duplicate":          {"version: 1\nname: x\nversion: 2\n", `f:3:1: version: duplicate key, first given in line 1`},
		"duplicate in flow":  {"regions: {us: {id: 1, id: 2}}", `f:1:23: regions.us.id: duplicate key, first given in line 1`},
		"anchor":             {"name: &a x\n", `f:1:7: name: anchors are not accepted; write the value out where it is used`},
		"alias":              {"free: &a x\nname: *a\n", "f:1:7: free: anchors are not accepted; write the value out where it is used\nf:2:7: name: aliases are not accepted; write the value out"},
		"merge":              {"<<: {name: x}\n", `f:1:1: merge keys are not accepted; write the values out`},
		"tag":                {"name: !!str 5\n", `f:1:7: name: tags are not accepted`},
		"directive":          {"%YAML 1.2\n---\nname: a\n", `f:1:1: directives are not accepted`},
		"second document":    {"name: a\n---\nname: b\n", `f:2:1: a second document; the file must hold one`},
		"number for text":    {"name: 5\n", `f:1:7: name: want text, have 5; quote it`},
		"text for number":    {"version: one\n", `f:1:10: version: want a whole number, have "one"`},
		"fraction":           {"version: 1.5\n", `f:1:10: version: want a whole number, have 1.5`},
		"range":              {"regions: {us: {id: 256}}\n", `f:1:20: regions.us.id: 256 is out of range`},
		"negative":           {"regions: {us: {id: -1}}\n", `f:1:20: regions.us.id: -1 is out of range`},
		"huge":               {"version: 18446744073709551615\n", `f:1:10: version: want a whole number, have 18446744073709551615`},
		"yes is no boolean":  {"on_start: yes\n", `f:1:11: on_start: want true or false, have "yes"`},
		"infinite":           {"ratio: .inf\n", `f:1:8: ratio: a number must be finite`},
		"map for text":       {"name: {a: b}\n", `f:1:7: name: want text, have a map`},
		"text for map":       {"regions: us\n", `f:1:10: regions: want a map, have "us"`},
		"list for map":       {"- a\n", `f:1:1: want a map, have a list`},
		"text for list":      {"regions: {us: {kafka: {seeds: a}}}", `f:1:31: regions.us.kafka.seeds: want a list, have "a"`},
		"in a list":          {"regions: {us: {kafka: {seeds: [a, 5]}}}", `f:1:35: regions.us.kafka.seeds[1]: want text, have 5; quote it`},
		"empty scalar":       {"name:\nversion: 1\n", `f:1:1: name: needs a value`},
		"empty size":         {"max_body:\n", `f:1:1: max_body: needs a value`},
		"size":               {"max_body: 32MB\n", `f:1:11: max_body: "32MB" is not a size, write a whole number of bytes or like 64KiB, 32MiB, 1GiB`},
		"duration":           {"window: 1 day\n", `f:1:9: window: "1 day" is not a duration, write one like 500ms, 30s or 24h`},
		"bare duration":      {"window: 30\n", `f:1:9: window: want a duration with a unit, like 30s or 24h, have 30`},
		"number as key":      {"1: a\n", `f:1:1: a key must be text; quote it`},
		"syntax":             {"name: [a\n", `f:1:7: sequence end token ']' not found`},
		"tab":                {"regions:\n\tus: 1\n", `f:2:1: found character '	' that cannot start any token`},
		"not text":           {"name: \xff\n", `f:1:7: not UTF-8, or a character that YAML does not allow`},
		"nul":                {"name: a\n\x00", `f:2:1: not UTF-8, or a character that YAML does not allow`},
		"deep brackets":      {"free: " + strings.Repeat("[", 70), `f:1:71: nested deeper than 64 levels`},
		"deep lists":         {strings.Repeat("- ", 70), `f:1:129: nested deeper than 64 levels`},
		"ordered by place":   {"version: x\nnmae: a\nversion: 2\nwindow: 5\n", "f:1:10: version: want a whole number, have \"x\"\nf:2:1: nmae: unknown key; did you mean \"name\"?\nf:3:1: version: duplicate key, first given in line 1\nf:4:9: window: want a duration with a unit, like 30s or 24h, have 5"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := decodeAll("f", tt.src)
			if err == nil {
				t.Fatalf("no error, want %s", tt.want)
			}
			var errs *strict.Errors
			if !errors.As(err, &errs) {
				t.Fatalf("error is a %T", err)
			}
			if got := err.Error(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// decodeAll is Decode into the test's file type.
func decodeAll(name, src string) error {
	var got file
	return strict.Decode(name, []byte(src), &got)
}

func TestFileTooLarge(t *testing.T) {
	err := decodeAll("f", "# "+strings.Repeat("x", strict.MaxBytes))
	if err == nil || !strings.Contains(err.Error(), "at most 1048576 are read") {
		t.Errorf("got %v", err)
	}
}

func TestDeepByIndentation(t *testing.T) {
	var b strings.Builder
	for i := range 70 {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	err := decodeAll("f", b.String())
	if err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("got %v", err)
	}
}

func TestLocate(t *testing.T) {
	d, err := strict.Parse("f.yaml", []byte("version: 1\nregions:\n  us: {id: 1}\n  eu: {id: 1}\nfree:\n  - name: x\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Locate(nil); err != nil {
		t.Errorf("locate nil: %v", err)
	}
	plain := errors.New("other")
	if err := d.Locate(plain); err != plain {
		t.Errorf("another error became %v", err)
	}
	var p strict.Problems
	p.Unknown(strict.At("free", 0, "name"), "name", "x", "y", "long")
	p.Add(strict.At("regions", "eu", "id"), "id %d is taken", 1)
	p.Unknown(strict.At("nats", "mode"), "mode", "sollo", "solo", "quorum")
	p.Add(strict.At("regions", "us", "kafka", "seeds"), "missing")
	want := `f.yaml:1:1: nats.mode: unknown mode "sollo"; did you mean "solo"?
f.yaml:3:3: regions.us.kafka.seeds: missing
f.yaml:4:8: regions.eu.id: id 1 is taken
f.yaml:6:5: free[0].name: unknown name "x"; did you mean "y"?`
	if got := d.Locate(fmt.Errorf("check: %w", p.Err())).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !d.Has("regions", "us", "id") || d.Has("regions", "jp") || d.Has("free", 1) {
		t.Error("Has is wrong")
	}
	if got := p.Error(); !strings.HasPrefix(got, "free[0].name: unknown") {
		t.Errorf("problems without a file: %s", got)
	}
	if (&strict.Problems{}).Err() != nil {
		t.Error("no problems are an error")
	}
}

func TestMap(t *testing.T) {
	d, err := strict.Parse("f", []byte("a: {b: [1, -2, x, true]}\nc: '5'\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": map[string]any{"b": []any{uint64(1), int64(-2), "x", true}}, "c": "5"}
	if got := d.Map(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
	empty, err := strict.Parse("f", nil)
	if err != nil || len(empty.Map()) != 0 {
		t.Errorf("empty file: %v, %v", empty, err)
	}
}

func TestPathString(t *testing.T) {
	if got := strict.At("a", 0, "b-c", "x.y", "").String(); got != `a[0].b-c."x.y".""` {
		t.Error(got)
	}
	base := strict.At("a")
	first, second := base.And("b"), base.And("c")
	if first.String() != "a.b" || second.String() != "a.c" {
		t.Errorf("And shares memory: %s, %s", first, second)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"seeds", "embedded", "listen", "id"}
	for have, want := range map[string]string{
		"seed": "seeds", "sedes": "seeds", "embeded": "embedded", "listne": "listen", "Id": "id",
		"di": "id", "zone": "", "": "", strings.Repeat("x", 1000): "",
	} {
		if got := strict.Nearest(have, known); got != want {
			t.Errorf("%.20q: got %q, want %q", have, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	parse := func(text string) (s strict.Size, err error) { err = s.UnmarshalText([]byte(text)); return s, err }
	for text, want := range map[string]strict.Size{
		"0": 0, "512": 512, "512B": 512, "64KiB": 64 * strict.KiB, "32 MiB": 32 * strict.MiB, "2TiB": 2 * strict.TiB,
	} {
		if got, err := parse(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1MB", "9999999999TiB", "99999999999999999999", "1mib"} {
		if got, err := parse(text); err == nil {
			t.Errorf("%q read as %d", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := strict.Size(rapid.Int64Min(0).Draw(t, "size"))
		if got, err := parse(s.String()); err != nil || got != s {
			t.Fatalf("%d is written as %s and read as %d, %v", s, s, got, err)
		}
	})
}

func TestDecodeTwice(t *testing.T) {
	d, err := strict.Parse("f", []byte("version: 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	var a, b file
	if err := errors.Join(d.Decode(&a), d.Decode(&b)); err != nil || a.Version != 3 || b.Version != 3 {
		t.Errorf("%v, %v, %v", a, b, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("decode into a value that is no pointer did not panic")
		}
	}()
	_ = d.Decode(a)
}

// FuzzDecode checks that no input panics, that errors carry a place in the file,
// and that what is accepted can be looked up.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "version: 1\n", "a: [1, {b: c}]\n", "? a\n: b\n", "- - - x\n", "a: |\n  x\n", "%A\n---\n", "&a b: *a\n", "{a: 1, a: 2}",
		"a: \"\\u00e9\"\n", "!!x y: z", "<<: *a", "a:\n- b\n-\n", "---\n...\n---\n", "regions: {us: {id: 1, kafka: {seeds: [a]}}}\nwindow: 1h\nmax_body: 1KiB",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var got file
		err := strict.Decode("f", src, &got)
		var errs *strict.Errors
		if err != nil && !errors.As(err, &errs) {
			t.Fatalf("error is a %T", err)
		}
		lines := strings.Count(string(src), "\n") + 1
		last := strict.Position{}
		if errs != nil {
			for _, e := range errs.All {
				if e.Line < 1 || e.Column < 1 || e.Line > lines+1 || e.File != "f" {
					t.Fatalf("error %v lies outside the file of %d lines", e, lines)
				}
				if e.Line < last.Line {
					t.Fatalf("errors out of order: %v", err)
				}
				last = e.Position
			}
		}
		if d, err := strict.Parse("f", src); err == nil {
			for key := range d.Map() {
				if !d.Has(key) || d.Position(key).Line < 1 {
					t.Fatalf("key %q has no place", key)
				}
			}
		}
	})
}

func TestMarshal(t *testing.T) {
	in := file{
		Version: 1, Name: "5", On: true, Ratio: 0.5, Body: 32 * strict.MiB, Window: 24 * time.Hour,
		Regions: map[string]region{"us": {ID: 1, Kafka: kafka{Embedded: &embedded{Listen: "127.0.0.1:1"}}}, "eu": {ID: 2, Kafka: kafka{Seeds: []string{"a:1", "*"}}}},
	}
	out, err := strict.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var back file
	if err := strict.Decode("out", out, &back); err != nil {
		// A nil map or list is written as null or {}; both read back as empty.
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := strict.Marshal(back)
	if err != nil || string(again) != string(out) {
		t.Errorf("%v: first\n%s\nthen\n%s", err, out, again)
	}
	for _, want := range []string{"window: 24h\n", "max_body: 32MiB\n", `name: "5"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "duration"))
		if back, err := time.ParseDuration(strict.FormatDuration(d)); err != nil || back != d {
			t.Fatalf("%d is written as %s", d, strict.FormatDuration(d))
		}
	})
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string]string{
		"version": "", "regions.us.kafka.seeds": "", "regions.us.kafka.embedded.listen": "", "regions": "",
		"verison":                          `verison: unknown key; did you mean "version"?`,
		"regions.us.kafka.sedes":           `regions.us.kafka.sedes: unknown key; did you mean "seeds"?`,
		"regions.us.kafka.embedded.routes": `regions.us.kafka.embedded.routes: comes with authority`,
		"version.major":                    `version.major: unknown key: version has no keys below it`,
	} {
		got := ""
		if err := strict.CheckPath(file{}, strings.Split(path, ".")...); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// TestColonInsideFlow checks that a colon ends a plain key only where YAML says
// so: addresses in lists inside of maps are written without quotes.
func TestColonInsideFlow(t *testing.T) {
	for src, want := range map[string]any{
		"f: {s: [127.0.0.1:29092]}":                     map[string]any{"s": []any{"127.0.0.1:29092"}},
		"f: {s: [a:1, b:2], t: c:3}":                    map[string]any{"s": []any{"a:1", "b:2"}, "t": "c:3"},
		"f: {s: [nats-route://127.0.0.1:26222, 1:2:3]}": map[string]any{"s": []any{"nats-route://127.0.0.1:26222", "1:2:3"}},
		"f: {s: [a: 1, b]}":                             map[string]any{"s": []any{map[string]any{"a": uint64(1)}, "b"}},
		`f: {"s":[a:1]}`:                                map[string]any{"s": []any{"a:1"}},
		"f: {s: [ kafka:9092 ,x ]}":                     map[string]any{"s": []any{"kafka:9092", "x"}},
		"f: {s:\n [kafka:9092,\n true:5]}":              map[string]any{"s": []any{"kafka:9092", "true:5"}},
		"f: {a:1}":                                      map[string]any{"a:1": nil},
	} {
		d, err := strict.Parse("f", []byte(src))
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if got := d.Map()["f"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v", src, got)
		}
	}
}
