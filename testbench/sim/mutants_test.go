package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMutantTexts finds the clause of every mutant where the mutant says that it
// is: a clause that was moved or reworded takes its mutant along. That each is
// caught takes longer, and is make sim MUTANTS=1.
func TestMutantTexts(t *testing.T) {
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		changed := make(map[string]string)
		for _, e := range m.edits {
			src, ok := changed[e.file]
			if !ok {
				b, err := os.ReadFile(filepath.Join("..", "..", e.file))
				if err != nil {
					t.Fatal(err)
				}
				src = string(b)
			}
			if n := strings.Count(src, e.old); n != 1 {
				t.Errorf("%s: %s has the text %d times: %.60q", m.name, e.file, n, e.old)
			}
			changed[e.file] = strings.Replace(src, e.old, e.new, 1)
		}
		for file, src := range changed {
			if _, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
}

// TestMutantTable: the table in the documents has a row for every mutant and for
// nothing else, with the seed that catches it.
func TestMutantTable(t *testing.T) {
	seeds, err := readMutantTable(filepath.Join("..", "..", mutantTable))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		seed, ok := seeds[m.name]
		switch {
		case !ok:
			t.Errorf("%s has no row for %s; run make sim MUTANTS=1 ARGS=--write", mutantTable, m.name)
		case seed == 0:
			t.Errorf("%s says that nothing catches %s: a rule that nothing checks", mutantTable, m.name)
		case seed > mostSeeds:
			t.Errorf("%s says that seed %d catches %s: no mutant may need more than %d", mutantTable, seed, m.name, mostSeeds)
		}
		delete(seeds, m.name)
		for _, e := range m.edits {
			if strings.HasPrefix(e.file, "testbench/") {
				t.Errorf("%s changes %s, which is not the product", m.name, e.file)
			}
		}
	}
	for name := range seeds {
		t.Errorf("%s names %s, which is no mutant", mutantTable, name)
	}
}

// TestMergedTable: a run of some mutants leaves the rows of the others, drops those of
// mutants that are gone, and keeps the order of the list.
func TestMergedTable(t *testing.T) {
	first, second := mutants[0], mutants[1]
	row := func(m mutant, seed string) string {
		return "| `" + m.name + "` | " + m.deviation + " | logs | void | " + seed + " |\n"
	}
	old := "head\n" + row(second, "7") + row(first, "8") + "| `no-such-mutant` | something | logs | void | 9 |\n"
	got := merged(old, []caught{{mutant: &second, seed: 12, checker: "void"}})
	if want := row(first, "8") + row(second, "12"); !strings.HasSuffix(got, "|---|\n"+want) {
		t.Errorf("got\n%s\nwant the rows\n%s", got, want)
	}
}
