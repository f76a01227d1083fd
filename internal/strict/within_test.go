package strict_test

import (
	"errors"
	"testing"

	"github.com/geogate/geogate/internal/strict"
)

func TestWithin(t *testing.T) {
	doc, err := strict.Parse("f.yaml", []byte(`rules:
  - {id: a, when: key == "x", then: 'it''s "so"'}
  - when: "é\u00e9\n= x"
    fold: >
      one
      two
    block: |

      first line
        second
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path         strict.Path
		line, column int
		want         string
	}{
		{strict.At("rules", 0, "when"), 1, 8, "f.yaml:2:26"},
		{strict.At("rules", 0, "then"), 1, 4, "f.yaml:2:42"}, // behind the doubled quote
		{strict.At("rules", 0, "then"), 1, 6, "f.yaml:2:44"},
		{strict.At("rules", 0, "then"), 2, 1, "f.yaml:2:37"},
		{strict.At("rules", 1, "when"), 1, 3, "f.yaml:3:19"}, // behind an escape
		{strict.At("rules", 1, "when"), 1, 90, "f.yaml:3:11"},
		{strict.At("rules", 1, "fold"), 1, 3, "f.yaml:4:11"},
		{strict.At("rules", 1, "block"), 2, 1, "f.yaml:9:7"},
		{strict.At("rules", 1, "block"), 3, 5, "f.yaml:10:11"},
		{strict.At("rules", 1, "nothing"), 1, 1, "f.yaml:3:5"},
		{strict.At("rules"), 1, 4, "f.yaml:2:3"},
	} {
		var bad strict.Problems
		bad.AddWithin(c.path, c.line, c.column, "bad")
		var located *strict.Errors
		if !errors.As(doc.Locate(bad.Err()), &located) {
			t.Fatal("a problem is not located")
		}
		if got := located.All[0].Position.String(); got != c.want {
			t.Errorf("%v %d:%d is at %s, want %s", c.path, c.line, c.column, got, c.want)
		}
	}
}
