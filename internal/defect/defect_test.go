package defect_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/warning"
)

// work runs fn as the work of a partition is run.
func work(fn func()) (err error) {
	defer defect.Catch(&err)
	fn()
	return nil
}

func TestPanicBecomesAnError(t *testing.T) {
	var key []byte
	for _, tt := range []struct {
		name, value string
		fn          func()
	}{
		{"runtime", "runtime error: slice bounds out of range [1:0]", func() { _ = key[1:] }},
		{"text", "no such case", func() { panic("no such case") }},
		{"content", "*errors.errorString", func() { panic(errors.New("content of a record")) }},
		{"long", strings.Repeat("x", 200), func() { panic(strings.Repeat("x", 300)) }},
	} {
		var d *defect.Error
		if err := work(tt.fn); !errors.As(err, &d) {
			t.Errorf("%s: %v is no defect", tt.name, err)
			continue
		}
		if d.Value != tt.value || !strings.HasPrefix(d.Place, "defect/defect_test.go:") || !strings.Contains(d.Stack, "defect_test.go") {
			t.Errorf("%s: value %q at %s", tt.name, d.Value, d.Place)
		}
	}
	if err := work(func() {}); err != nil {
		t.Error(err)
	}
}

func TestLogCountsAndWarns(t *testing.T) {
	var l defect.Log
	for i := range 3 {
		l.Add(fmt.Sprintf("flights/%d", 1-i%2), &defect.Error{Value: "v", Place: "p:1"}, "the partition is held")
	}
	var out warning.List
	l.Warnings(&out)
	all := out.All()
	if len(all) != 2 || all[0].Subject != "flights/0" || !strings.Contains(all[1].Detail, "panicked here 2 times, the last time at p:1 (v); the partition is held.") {
		t.Errorf("warnings %v", all)
	}
	if l.Total() != 3 {
		t.Errorf("total %d", l.Total())
	}
	for i := range 5000 {
		l.Add(fmt.Sprint("t/", i), &defect.Error{}, "x")
	}
	out = warning.List{}
	if l.Warnings(&out); out.Count()[warning.Defect] != 1000 || l.Total() != 5003 {
		t.Errorf("%d subjects, %d in all", out.Count()[warning.Defect], l.Total())
	}
}

func TestNilLogRemembersNothing(t *testing.T) {
	var l *defect.Log
	var out warning.List
	l.Add("x", &defect.Error{}, "y")
	if l.Warnings(&out); l.Total() != 0 || len(out.All()) != 0 {
		t.Error("a nil Log remembers")
	}
}
