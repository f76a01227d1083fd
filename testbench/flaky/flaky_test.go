//go:build unix

package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name   string
		out    string
		code   int
		cut    bool
		passed int
		failed []string
	}{
		{"all passed", "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/sub (0.00s)\nPASS\n", 0, false, 1, nil},
		{"one failed", "--- PASS: TestA (0.00s)\n--- FAIL: TestB (1.00s)\n    --- FAIL: TestB/sub (1.00s)\nFAIL\n", 1, false, 1, []string{"TestB"}},
		{"race", "WARNING: DATA RACE\nWARNING: DATA RACE\n--- FAIL: TestB (1.00s)\n", 66, false, 0, []string{"data race", "TestB"}},
		{"time-out", "panic: test timed out after 1s\n", 2, false, 0, []string{"time-out"}},
		{"panic", "panic: no map\n", 2, false, 0, []string{"panic: no map"}},
		{"dead without a word", "", -1, false, 0, []string{"exit code -1"}},
		{"cut short", "--- PASS: TestA (0.00s)\n", -1, true, 1, nil},
		{"cut short after a failure", "--- FAIL: TestA (0.00s)\n", -1, true, 0, []string{"TestA"}},
	} {
		passed, failed := judge([]byte(tt.out), tt.code, tt.cut)
		if passed != tt.passed || !slices.Equal(failed, tt.failed) {
			t.Errorf("%s: %d passed, failed %q; want %d, %q", tt.name, passed, failed, tt.passed, tt.failed)
		}
	}
}

func TestConcurrent(t *testing.T) {
	for src, want := range map[string]bool{
		"func f() { go f() }":                           true,
		"func f() { time.AfterFunc(1, f) }":             true,
		"func f(g *sync.WaitGroup) { g.Go(f) }":         true,
		"func TestX(t *testing.T) { t.Parallel() }":     true,
		"func f() { after() }":                          false,
		`import "github.com/twmb/franz-go/pkg/kgo"`:     true,
		`import "github.com/nats-io/nats.go/jetstream"`: true,
		`import "github.com/twmb/franz-go/pkg/kmsg"`:    false,
		`import "net/http"`:                             true,
		`import "net/url"`:                              false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+src, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := concurrent(f); got != want {
			t.Errorf("%s: %t", src, got)
		}
	}
}

func TestPlan(t *testing.T) {
	pkgs := []*pkg{{ImportPath: "m/a", concurrent: true}, {ImportPath: "m/b"}}
	o := options{count: 20, few: 3, seed: 7}
	first := plan(pkgs, o)
	if n := len(first); n != 23 {
		t.Errorf("%d runs, want 20 + 3", n)
	}
	if !reflect.DeepEqual(first, plan(pkgs, o)) {
		t.Error("the same seed gives another order")
	}
	o.seed = 8
	if reflect.DeepEqual(first, plan(pkgs, o)) {
		t.Error("another seed gives the same order")
	}
}

func TestSummarize(t *testing.T) {
	a, b := &pkg{ImportPath: "m/a", concurrent: true}, &pkg{ImportPath: "m/b"}
	o := options{count: 2, few: 1, seed: 7, logs: "logs"}
	run := func(p *pkg, beside bool, failed ...string) result {
		return result{planned: planned{pkg: p}, beside: beside, failed: failed, log: "one.log", took: time.Second, passed: 3}
	}
	var out bytes.Buffer
	if !summarize(&out, o, []*pkg{a, b}, []result{run(a, false), run(a, true, "TestX"), run(a, true, "TestX", "data race"), run(b, true)}) {
		t.Error("two failures were not told")
	}
	for _, want := range []string{
		"m/a failed in 0 of 1 runs alone and 2 of 2 beside the load", "2 × TestX", "1 × data race", "one.log", "did 4 of the 6 runs", "12 tests passed", "2 FAILED",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "m/b") {
		t.Errorf("a package that passed is listed as failed:\n%s", &out)
	}
	if summarize(&out, o, []*pkg{a, b}, []result{run(a, false), run(b, true)}) {
		t.Error("a failure was told where none was")
	}
}
