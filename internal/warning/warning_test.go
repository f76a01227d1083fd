package warning_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/warning"
)

func TestOrderIsBySeverityCodeAndInsertion(t *testing.T) {
	var l warning.List
	l.Add(warning.PatternUnmatched, "us-eu", "pattern %q matches no topic", "x*")
	l.Add(warning.Quarantined, "flights/3", "second")
	l.Add(warning.LinkFailed, "us-eu", "first of all")
	l.Add(warning.Quarantined, "flights/1", "third")
	want := []string{
		"LINK_FAILED us-eu: first of all", "QUARANTINED flights/3: second", "QUARANTINED flights/1: third",
		`PATTERN_UNMATCHED us-eu: pattern "x*" matches no topic`,
	}
	got := l.All()
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i, w := range got {
		if w.String() != want[i] {
			t.Errorf("warning %d is %s, want %s", i, w, want[i])
		}
		if (w.Severity == warning.Notice) != (w.Code == warning.PatternUnmatched) {
			t.Errorf("%s has severity %s", w, w.Severity)
		}
	}
}

func TestNumberIsBounded(t *testing.T) {
	var l warning.List
	const n = 3 * warning.MaxPerCode
	for i := range n {
		l.Add(warning.PatternUnmatched, fmt.Sprint(i), "x")
	}
	l.Add(warning.Quarantined, "t/0", "x")
	got := l.All()
	if len(got) != warning.MaxPerCode+2 {
		t.Fatalf("%d warnings are listed", len(got))
	}
	last := got[len(got)-1]
	if last.Code != warning.MoreWarnings || last.Subject != "PATTERN_UNMATCHED" || last.Severity != warning.Notice {
		t.Errorf("the last is %+v", last)
	}
	if c := l.Count(); c[warning.PatternUnmatched] != n || c[warning.Quarantined] != 1 {
		t.Errorf("counts %v", c)
	}
}

func TestNoWarningsAreAnEmptyList(t *testing.T) {
	var l warning.List
	if got := l.All(); got == nil || len(got) != 0 {
		t.Errorf("%#v", got)
	}
}

func TestDetailsAreOneBoundedLine(t *testing.T) {
	var l warning.List
	l.Add(warning.LinkFailed, "us-eu", "%s", "two\nlines "+strings.Repeat("ü", 1000))
	d := l.All()[0].Detail
	if !strings.HasPrefix(d, "two lines ü") || len(d) > warning.MaxDetail+len("…") || !utf8.ValidString(d) || !strings.HasSuffix(d, "ü…") {
		t.Errorf("%d bytes: %q", len(d), d)
	}
}
