package strict

import (
	"strings"
	"unicode/utf8"
)

// within gives the place in the file of one character of the text at the path,
// for texts in a language of their own, such as a predicate: line and column
// count from 1 in the text. Where the file does not hold the text character by
// character (a folded text, a quoted one over several lines) it is the place at
// which the text begins.
func (d *Document) within(path Path, line, column int) Position {
	v := d.root
	for _, element := range path {
		next, _ := v.child(element)
		if next == nil {
			return d.Position(path...)
		}
		v = next
	}
	at := v.at
	if v.kind != text || at.Line < 1 || at.Line > len(d.lines) {
		return at
	}
	rest, ok := after(d.lines[at.Line-1], at.Column-1)
	if !ok {
		return at
	}
	switch {
	case strings.HasPrefix(rest, "|"):
		return d.inBlock(at, line, column)
	case line != 1:
		return at
	case strings.HasPrefix(rest, "'"), strings.HasPrefix(rest, `"`):
		n, ok := quotedWidth(rest, column-1)
		if !ok {
			return at
		}
		at.Column += n
	case strings.HasPrefix(rest, ">"):
		return at
	default:
		at.Column += column - 1
	}
	return at
}

// after gives what follows the first n characters of a line.
func after(line string, n int) (string, bool) {
	for ; n > 0 && line != ""; n-- {
		_, size := utf8.DecodeRuneInString(line)
		line = line[size:]
	}
	return line, n == 0
}

// inBlock finds a place in a literal block, whose indicator is at at: its
// lines follow, all indented as the first one that is not blank.
func (d *Document) inBlock(at Position, line, column int) Position {
	for _, l := range d.lines[at.Line:] {
		if body := strings.TrimLeft(l, " "); strings.TrimSpace(body) != "" {
			return Position{File: at.File, Line: at.Line + line, Column: len(l) - len(body) + column}
		}
	}
	return at
}

// quotedWidth tells how many characters of a quoted scalar come before the one
// at the index of its content. ok is false when the scalar ends earlier.
func quotedWidth(s string, index int) (width int, ok bool) {
	quote := s[0]
	s, width = s[1:], 1
	for ; index > 0; index-- {
		n := 1
		switch {
		case s == "":
			return 0, false
		case quote == '\'' && strings.HasPrefix(s, "''"):
			n = 2
		case s[0] == quote:
			return 0, false
		case quote == '"' && s[0] == '\\' && len(s) > 1:
			n = 2 + map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]]
		}
		if s, ok = after(s, n); !ok {
			return 0, false
		}
		width += n
	}
	return width, true
}
