//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestProgress: runs that a file has are not done again and count, also the failed ones; a
// line that was cut off, and a run that the budget has cut short, are done again.
func TestProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	a, b := &pkg{ImportPath: "m/a", concurrent: true}, &pkg{ImportPath: "m/b"}
	o := options{count: 2, few: 1, seed: 7}
	runs := plan([]*pkg{a, b}, o)
	p, err := openProgress(path, &o, false)
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range []result{{took: time.Second, passed: 3}, {failed: []string{"TestX"}, log: "x.log"}, {cut: true}} {
		res.planned = runs[i]
		if err := p.keep(res); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.file.WriteString(`{"package":"m/a","shuf`); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as often as one likes
		o = options{count: 2, few: 1, seed: 99}
		if p, err = openProgress(path, &o, false); err != nil {
			t.Fatal(err)
		}
		if o.seed != 7 {
			t.Fatalf("seed %d, the file has 7", o.seed)
		}
		rest, done := p.left(runs, false)
		if len(rest) != 1 || rest[0] != runs[2] {
			t.Errorf("%v is to do, want the third", rest)
		}
		if len(done) != 2 || done[0].passed != 3 || done[0].took != time.Second || !slices.Equal(done[1].failed, []string{"TestX"}) || done[1].log != "x.log" {
			t.Errorf("done: %+v", done)
		}
		if rest, done := p.left(runs, true); len(rest) != 3 || len(done) != 0 {
			t.Errorf("beside the load %d are to do and %d done", len(rest), len(done))
		}
	}
	for name, other := range map[string]options{"count": {count: 3, few: 1, seed: 7}, "run": {count: 2, few: 1, seed: 7, run: "TestX"}, "seed": {count: 2, few: 1, seed: 8}} {
		if _, err := openProgress(path, &other, true); err == nil {
			t.Errorf("another %s is taken for the same runs", name)
		}
	}
	if err := os.WriteFile(path, []byte("something else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openProgress(path, &o, false); err == nil {
		t.Error("another file is taken for progress")
	}
}
