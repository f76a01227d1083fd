package docs_test

import (
	"path"
	"strings"
	"testing"
)

const (
	maxArchitecture = 200 // lines of ARCHITECTURE.md
	maxLife         = 15  // lines of one of its sections "Life of …", without blank ones
)

// TestArchitectureIsShort keeps ARCHITECTURE.md a page to read in one sitting.
func TestArchitectureIsShort(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	if n := strings.Count(text, "\n"); n > maxArchitecture {
		t.Errorf("ARCHITECTURE.md has %d lines, at most %d: move details to docs/internals", n, maxArchitecture)
	}
	lives := 0
	for _, section := range strings.Split(text, "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		if !strings.HasPrefix(title, "Life of") {
			continue
		}
		lives++
		n := 0
		for line := range strings.Lines(body) {
			if strings.TrimSpace(line) != "" {
				n++
			}
		}
		if n > maxLife {
			t.Errorf("%q has %d lines, at most %d: move details to docs/internals/protocols.md", title, n, maxLife)
		}
		if !strings.Contains(body, "](") {
			t.Errorf("%q links no code", title)
		}
	}
	if lives < 3 {
		t.Errorf("%d sections \"Life of …\", want those of a write, a copied record and a fence", lives)
	}
}

// TestPackagesAreListed: the table of packages has all but those of testbench.
func TestPackagesAreListed(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	packages := make(map[string]bool)
	sources(t, func(name, _ string) { packages[path.Dir(name)] = true })
	for name := range packages {
		if !strings.HasPrefix(name, "testbench") && name != "." && !strings.Contains(text, "\n| `"+name+"` |") {
			t.Errorf("the table of packages in ARCHITECTURE.md lacks %s", name)
		}
	}
}
