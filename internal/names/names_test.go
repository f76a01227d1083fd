package names_test

import (
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/names"
)

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		glob, topic string
		want        bool
	}{
		{"orders", "orders", true},
		{"orders", "order", false},
		{"orders", "orders2", false},
		{"*", "", true},
		{"*", "a.b", true},
		{"a*", "a.b.c", true},
		{"*.c", "a.b.c", true},
		{"a*b*c", "axxbxbxc", true},
		{"a*b*c", "axxbxbx", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"?", "", false},
		{"a.c", "abc", false},
		{strings.Repeat("a*", 100) + "b", strings.Repeat("a", 249), false}, // in time
	} {
		g, err := names.ParseGlob(tt.glob)
		if err != nil {
			t.Errorf("%s: %v", tt.glob, err)
			continue
		}
		if got := g.Match(tt.topic); got != tt.want {
			t.Errorf("%s matches %s: %t", tt.glob, tt.topic, got)
		}
		if g.Literal() == strings.ContainsAny(tt.glob, "*?") {
			t.Errorf("%s is literal: %t", tt.glob, g.Literal())
		}
	}
	for _, bad := range []string{"", "a b", "/a/", "ä", "a\n"} {
		if g, err := names.ParseGlob(bad); err == nil {
			t.Errorf("%q is read as %q", bad, g)
		}
	}
}

func TestForms(t *testing.T) {
	for name, want := range map[string]bool{
		"us": true, "eu-west-1": true, "a": true, strings.Repeat("a", 31): true,
		"": false, "US": false, "1a": false, "-a": false, "a.b": false, "a_b": false, strings.Repeat("a", 32): false,
	} {
		if got := names.IsRegion(name); got != want {
			t.Errorf("%q is a region's name: %t", name, got)
		}
	}
	for name, want := range map[string]bool{"A.b_c-9": true, "a b": false, "a/b": false, "a*": false, "é": false} {
		if got := names.HasTopicBytes(name); got != want {
			t.Errorf("%q has the characters of a topic's name: %t", name, got)
		}
	}
}
