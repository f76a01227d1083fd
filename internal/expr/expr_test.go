package expr_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/expr"
)

func header(name, value string) event.Header { return event.Header{Key: name, Value: []byte(value)} }

func TestMatch(t *testing.T) {
	latin := []byte("Z\xfcrich")
	for _, c := range []struct {
		when string
		in   expr.Input
		want string // true, false or error
	}{
		{`key in ["octo-org/octo-repo", "octocat/hello-world"]`, expr.Input{Key: []byte("octocat/hello-world")}, "true"},
		{`key in ["octo-org/octo-repo"]`, expr.Input{Key: []byte("a")}, "false"},
		{`key.startsWith("eu-")`, expr.Input{Key: []byte("eu-7")}, "true"},
		{`key.matches("^[0-9]+$") && topic == "t" && from == "eu" && to == "us"`, expr.Input{Key: []byte("12"), Topic: "t", From: "eu", To: "us"}, "true"},
		// What a predicate reads of the key must be there and be text.
		{`key == ""`, expr.Input{}, "error"},
		{`key == ""`, expr.Input{Key: []byte{}}, "true"},
		{`key != "x"`, expr.Input{Key: latin}, "error"},
		{`key != "x"`, expr.Input{Key: []byte(strings.Repeat("a", expr.MaxText+1))}, "error"},
		{`topic == "t" || key == "x"`, expr.Input{Key: latin, Topic: "t"}, "error"},
		{`topic == "t"`, expr.Input{Key: latin, Topic: "t"}, "true"},
		// Of duplicate headers the last counts; a missing one is an error unless tested for.
		{`headers["class"] == "pii"`, expr.Input{Headers: []event.Header{header("class", "x"), header("class", "pii")}}, "true"},
		{`headers.class == "pii"`, expr.Input{Headers: []event.Header{header("class", "pii"), header("class", "x")}}, "false"},
		{`headers.class == "pii"`, expr.Input{}, "error"},
		{`headers.class == "pii" || topic == "t"`, expr.Input{Topic: "t"}, "error"},
		{`topic == "t" || headers.class == "pii"`, expr.Input{Topic: "t"}, "error"},
		{`has(headers.class) && headers.class == "pii"`, expr.Input{}, "false"},
		{`"class" in headers && headers["class"] == "pii"`, expr.Input{Headers: []event.Header{header("class", "pii")}}, "true"},
		{`!has(headers.class)`, expr.Input{}, "true"},
		{`headers.class == "pii" && has(headers.class)`, expr.Input{}, "error"}, // tested too late
		{`headers.class != ""`, expr.Input{Headers: []event.Header{{Key: "class", Value: latin}}}, "error"},
		{`headers.class != ""`, expr.Input{Headers: []event.Header{{Key: "class"}}}, "error"},
		{`has(headers.class)`, expr.Input{Headers: []event.Header{{Key: "class", Value: latin}}}, "true"},
		{`has(headers.x) && headers.x == "1"`, expr.Input{Headers: []event.Header{{Key: "n\xff", Value: nil}}}, "error"},
		{`size(headers) == 1`, expr.Input{Headers: []event.Header{{Key: "gg-v", Value: []byte{1}}, header("a", "b")}}, "true"},
		// Names have no case; two that differ only in case are doubt for whoever asks for
		// that name.
		{`headers.class == "pii"`, expr.Input{Headers: []event.Header{header("Class", "pii")}}, "true"},
		{`headers["CLASS"] == "pii"`, expr.Input{Headers: []event.Header{header("class", "pii")}}, "true"},
		{`has(headers.Class)`, expr.Input{Headers: []event.Header{header("cLASS", "pii")}}, "true"},
		{`"CLASS" in headers && headers.class == "pii"`, expr.Input{Headers: []event.Header{header("Class", "pii")}}, "true"},
		{`headers.Class == "x"`, expr.Input{}, "error"},
		{`headers.class == "pii"`, expr.Input{Headers: []event.Header{header("Class", "x"), header("Class", "pii")}}, "true"}, // the last of one spelling
		{`headers.class == "pii"`, expr.Input{Headers: []event.Header{header("Class", "pii"), header("class", "x")}}, "error"},
		{`headers.class == "pii"`, expr.Input{Headers: []event.Header{header("class", "pii"), header("x", ""), header("CLASS", "pii")}}, "error"},
		{`has(headers.class)`, expr.Input{Headers: []event.Header{header("Class", "pii"), header("class", "x")}}, "error"},
		{`"class" in headers`, expr.Input{Headers: []event.Header{header("Class", "pii"), header("class", "x")}}, "error"},
		{`has(headers.other)`, expr.Input{Headers: []event.Header{header("Class", "pii"), header("class", "x")}}, "false"},
		{`size(headers) == 1`, expr.Input{Headers: []event.Header{header("Class", "pii"), header("class", "x")}}, "error"},
		{`headers["straße"] == "1"`, expr.Input{Headers: []event.Header{header("STRAßE", "1")}}, "true"},
		{`"k" in headers`, expr.Input{Headers: []event.Header{header("\u212a", "1")}}, "false"}, // the Kelvin sign is no ASCII letter
		{`"É" in headers`, expr.Input{Headers: []event.Header{header("é", "1")}}, "false"},
		{`size(headers) == 1`, expr.Input{Headers: []event.Header{header("GG-x", "1")}}, "true"}, // not the gateway's own
		// CEL swallows these errors; here they count.
		{`int(key) > 5 || topic == "t"`, expr.Input{Key: []byte("seven"), Topic: "t"}, "error"},
		{`topic == "t" || int(key) > 5`, expr.Input{Key: []byte("seven"), Topic: "t"}, "true"}, // not evaluated
		{`!(int(key) > 5 && topic == "u")`, expr.Input{Key: []byte("seven"), Topic: "t"}, "error"},
		{`key == "é" ? true : false`, expr.Input{Key: []byte("e\u0301")}, "false"},
	} {
		p, err := expr.Compile(c.when)
		if err != nil {
			t.Errorf("%s: %v", c.when, err)
			continue
		}
		got := "false"
		switch ok, err := p.Match(&c.in); {
		case errors.Is(err, expr.ErrEvaluate):
			got = "error"
		case err != nil:
			t.Errorf("%s: %v", c.when, err)
		case ok:
			got = "true"
		}
		if got != c.want {
			t.Errorf("%s with %q %v: %s, want %s", c.when, c.in.Key, c.in.Headers, got, c.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, c := range []struct {
		when, message string
		line, column  int
	}{
		{`key ==`, "Syntax error", 1, 7},
		{`key == 7`, "no matching overload", 1, 5},
		{"topic == \"t\" &&\n  kee == \"x\"", "undeclared reference to 'kee'", 2, 3},
		{`value.country == "DE"`, "value comes with field rules", 1, 1},
		{`key`, "must be true or false", 1, 1},
		{`headers[key] == "x"`, "read by its name", 1, 8},
		{`headers["gg-e"] == "x"`, "gateway's own", 1, 1},
		{`headers["GG-e"] == "x"`, "gateway's own", 1, 1},
		{`key.matches("[")`, "invalid matches", 1, 13},
		{`headers.exists(h, h == "x")`, "undeclared reference to 'h'", 1, 16},
		{strings.Repeat("!", 5000) + "true", "code point", 1, 1},
		{strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500), "recursion", 1, 1},
		{"key == \"\xff\"", "UTF-8", 1, 1},
		{`(key + key + key + key).matches("` + strings.Repeat("a?", 60) + `") && (key+key+key).matches("` + strings.Repeat("b?", 60) + `")`, "may cost", 1, 1},
	} {
		p, err := expr.Compile(c.when)
		var errs expr.Errors
		if !errors.As(err, &errs) {
			t.Errorf("%.60s: compiled to %v, error %v", c.when, p, err)
			continue
		}
		found := false
		for _, e := range errs {
			found = found || strings.Contains(e.Message, c.message) && e.Line == c.line && (e.Column == c.column || c.message == "recursion" || c.message == "code point")
		}
		if !found {
			t.Errorf("%.60s: %v, want %d:%d: %s", c.when, err, c.line, c.column, c.message)
		}
	}
}

// CEL calls two maps equal in which a value is an error, so a header that is no text
// would be like any that it is compared with.
func TestHeadersAsAWhole(t *testing.T) {
	for _, c := range []struct {
		when  string
		value string
		want  string
	}{
		{`headers == {"class": "public"}`, "public", "true"},
		{`headers == {"class": "public"}`, "secret", "false"},
		{`headers == {"class": "public"}`, "\xff", "doubt"},
		{`headers != {"class": "public"}`, "\xff", "doubt"},
		{`headers == {"CLASS": "public"}`, "public", "true"},
		{`{"Class": "public"} == headers`, "public", "true"},
		{`headers != {"CLASS": "public"}`, "public", "false"},
		{`headers in [{"Class": "public"}]`, "public", "true"},
		{`[headers] == [{"Class": "public"}]`, "public", "true"},
		{`{"a": headers} == {"a": {"Class": "public"}}`, "public", "true"},
		{`headers == {"Class": "public", "class": "public"}`, "public", "false"},
		{`headers == {"other": "public"}`, "public", "false"},
		{`headers in [{"class": "public"}]`, "\xff", "doubt"},
		{`[headers] == [{"class": "public"}]`, "\xff", "doubt"},
		{`{"a": headers} == {"a": {"class": "public"}}`, "\xff", "doubt"},
		{`headers == dyn({"class": "public"}) || topic == "t"`, "\xff", "doubt"},
		{`"class" in (topic == "t" ? headers : headers)`, "\xff", "doubt"},
		{`[headers][0].class == "public"`, "public", "true"},
		{`"class" in headers && !has(headers.other)`, "\xff", "true"}, // asked for by name only
	} {
		p, err := expr.Compile(c.when)
		if err != nil {
			t.Fatal(c.when, err)
		}
		got := "doubt"
		if m, err := p.Match(&expr.Input{Topic: "t", Headers: []event.Header{header("class", c.value)}}); err == nil {
			got = fmt.Sprint(m)
		}
		if got != c.want {
			t.Errorf("%s with %q: %s, want %s", c.when, c.value, got, c.want)
		}
	}
}

// The message of an error must hold nothing of the record.
func TestErrorsHoldNoValues(t *testing.T) {
	for _, when := range []string{`int(key) > 1`, `int(key) > 1 || topic == "t"`, `int(headers.h) > 1`} {
		p, err := expr.Compile(when)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Match(&expr.Input{Key: []byte("canary-7f3a"), Headers: []event.Header{header("h", "canary-7f3a")}})
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", when, err)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{`key in ["a"]`, `has(headers.x) && headers.x == "y"`, `key.matches("a+")`, "1", `headers["a"]`} {
		f.Add(s, []byte("k"))
	}
	f.Fuzz(func(t *testing.T, when string, key []byte) {
		p, err := expr.Compile(when)
		if err != nil {
			var errs expr.Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("%q: %v", when, err)
			}
			return
		}
		in := &expr.Input{Key: key, Headers: []event.Header{{Key: "a", Value: key}}}
		first, err1 := p.Match(in)
		again, err2 := p.Match(in)
		if first != again || (err1 == nil) != (err2 == nil) {
			t.Fatalf("%q: %v %v, then %v %v", when, first, err1, again, err2)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for _, when := range []string{
		`key in ["octo-org/octo-repo", "octocat/hello-world"]`,
		`key.startsWith("eu-") || key.startsWith("de-")`,
		`has(headers.class) && headers.class == "public"`,
	} {
		b.Run(when, func(b *testing.B) {
			p, err := expr.Compile(when)
			if err != nil {
				b.Fatal(err)
			}
			in := &expr.Input{Key: []byte("octocat/hello-world"), Headers: []event.Header{header("class", "public")}}
			for b.Loop() {
				if _, err := p.Match(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
