package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const run = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestQuick"}
{"Action":"pass","Package":"m/a","Test":"TestQuick","Elapsed":0.5}
{"Action":"pass","Package":"m/a","Test":"TestLong/part","Elapsed":9}
{"Action":"pass","Package":"m/a","Test":"TestLong","Elapsed":9.25}
{"Action":"skip","Package":"m/a","Test":"TestSkipped","Elapsed":7}
{"Action":"pass","Package":"m/a","Elapsed":10}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":1}
{"Action":"fail","Package":"m/b","Elapsed":2}
{"Action":"build-output","ImportPath":"m/c","Output":"c.go:1: no such thing\n"}
{"Action":"build-fail","ImportPath":"m/c"}
`

func TestRead(t *testing.T) {
	ts, err := read(strings.NewReader(run))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ts.print(&out, 2)
	want := `c.go:1: no such thing
slowest of 3 tests:
    9.25 s  m/a TestLong
    1.00 s  m/b TestBad
slowest of 2 packages:
   10.00 s  m/a
FAILED  m/b TestBad
FAILED  m/b
FAILED  build of m/c
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	if !slices.Contains(ts.failed, "m/b TestBad") {
		t.Errorf("failed: %q", ts.failed)
	}
}

func TestReadRefusesOther(t *testing.T) {
	if _, err := read(strings.NewReader("ok  \tm/a\t0.1s\n")); err == nil {
		t.Error("plain output was taken")
	}
}
