package kept

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// title begins a section's name in a golden file.
const title = "## "

// Format is the text of a golden file.
func Format(sections []Section) []byte {
	var b bytes.Buffer
	for _, s := range sections {
		fmt.Fprintf(&b, "%s%s\n", title, s.Name)
		for _, l := range s.Lines {
			fmt.Fprintln(&b, l)
		}
	}
	return b.Bytes()
}

// Load reads a golden file.
func Load(path string) (sections []Section, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read golden file: %w", err)
	}
	for l := range strings.Lines(string(raw)) {
		l = strings.TrimSuffix(l, "\n")
		if name, ok := strings.CutPrefix(l, title); ok {
			sections = append(sections, Section{Name: name})
			continue
		}
		if len(sections) == 0 {
			return nil, fmt.Errorf("read golden file %s: it begins without a section", path)
		}
		s := &sections[len(sections)-1]
		s.Lines = append(s.Lines, l)
	}
	return sections, nil
}

// Split parts a snapshot into what [Ownership] and what [Data] reads.
func Split(sections []Section) (ruled, data []Section) {
	for _, s := range sections {
		words := strings.Fields(s.Name)
		if len(words) > 1 && slices.Contains([]string{"status", "ownership", "orphans"}, words[1]) {
			ruled = append(ruled, s)
		} else {
			data = append(data, s)
		}
	}
	return ruled, data
}

// Diff tells what differs, section by section, and which reader of which format
// reads it. It is empty if nothing does.
func Diff(want, got []Section) string {
	var b strings.Builder
	byName := map[string][]string{}
	for _, s := range got {
		byName[s.Name] = s.Lines
	}
	for _, s := range want {
		lines, ok := byName[s.Name]
		delete(byName, s.Name)
		switch {
		case !ok:
			fmt.Fprintf(&b, "%s%s: not read at all; it is read from %s\n", title, s.Name, source(s.Name))
		case !slices.Equal(lines, s.Lines):
			fmt.Fprintf(&b, "%s%s differs; it is read from %s\n", title, s.Name, source(s.Name))
			diffLines(&b, s.Lines, lines)
		}
	}
	for _, s := range got {
		if _, ok := byName[s.Name]; ok {
			fmt.Fprintf(&b, "%s%s: read, and not in the golden file\n", title, s.Name)
		}
	}
	return b.String()
}

// maxDiff bounds the lines shown of one section.
const maxDiff = 6

func diffLines(b *strings.Builder, want, got []string) {
	shown := 0
	show := func(sign string, from, without []string) {
		for i, l := range from {
			if slices.Contains(without, l) || shown >= maxDiff {
				continue
			}
			shown++
			fmt.Fprintf(b, "  %s %d: %s\n", sign, i+1, l)
		}
	}
	show("- kept", want, got)
	show("+ read", got, want)
	if shown == 0 {
		fmt.Fprintf(b, "  %d lines, in another order or number than the %d kept\n", len(got), len(want))
	}
}

// source says where a section's kind comes from, and which document tells its
// format.
func source(name string) string {
	words := strings.Fields(name)
	if len(words) < 2 {
		return "nothing known"
	}
	view := words[len(words)-1]
	switch words[1] {
	case "status":
		return "configuration, register, positions and generations of links (docs/format/ownership.md, link.md)"
	case "ownership":
		return "the register's stream in nats/ (docs/format/ownership.md, reader: the ownership packages)"
	case "orphans":
		return "orphan records in the store and in _geogate.state.<topic> (docs/format/state.md, reader: conflict/view)"
	case "topics":
		return "_geogate.topics (docs/format/control.md, reader: internal/control) and ownership.yaml"
	case "entities":
		return "_geogate.state.<topic> and its copy in the store (docs/format/state.md, reader: conflict/view)"
	case "conflicts":
		return "_geogate.conflicts (docs/format/merged.md, reader: gateway)"
	case "audit":
		return "_geogate.audit (docs/format/audit.md, reader: residency)"
	case "records":
		return cmp.Or(map[string]string{
			"merged": "<topic>.merged (docs/format/merged.md, reader: gateway)",
			"local":  "the topic's own log and barriers in _geogate.control (docs/format/envelope.md, control.md, readers: internal/event, internal/control)",
		}[view], "the copied log, with positions, runs and barriers (docs/format/envelope.md, link.md, readers: internal/offsets, internal/control)")
	}
	return "nothing known"
}
