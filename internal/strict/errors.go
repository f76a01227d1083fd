package strict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Position is a place in a file. Line and Column count from 1, columns in
// characters. The zero Line means that the place is not in the file, for
// example because the value came from a flag.
type Position struct {
	File         string
	Line, Column int
}

// String gives file:line:column, or what of it is known.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.File == "":
		return fmt.Sprintf("%d:%d", p.Line, p.Column)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one thing that is wrong in a file.
type Error struct {
	Position
	// Path leads to the value, like regions.us.kafka or links[0].name. It is
	// empty when the whole file is meant.
	Path Path
	// Message says what is wrong in one sentence without a full stop.
	Message string
	// Nearest is the known name that looks most like the one given, or "".
	Nearest string
}

// Error gives "file:line:column: path: message; did you mean …?" on one line.
func (e *Error) Error() string {
	var b strings.Builder
	if at := e.Position.String(); at != "" {
		b.WriteString(at + ": ")
	}
	if len(e.Path) > 0 {
		b.WriteString(e.Path.String() + ": ")
	}
	b.WriteString(e.Message)
	if e.Nearest != "" {
		fmt.Fprintf(&b, "; did you mean %q?", e.Nearest)
	}
	return b.String()
}

// Errors are all errors of one file, ordered by position. It is never empty
// when it is returned as an error.
type Errors struct {
	All []*Error
}

// Error gives one line per error.
func (e *Errors) Error() string {
	lines := make([]string, len(e.All))
	for i, one := range e.All {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the single errors, so that errors.As finds an [Error].
func (e *Errors) Unwrap() []error {
	out := make([]error, len(e.All))
	for i, one := range e.All {
		out[i] = one
	}
	return out
}

// err orders the errors by position, with those that are not in the file last,
// ordered by their source, and returns nil when there are none. Errors at one
// place keep the order in which they were found.
func (e *Errors) err() error {
	if len(e.All) == 0 {
		return nil
	}
	slices.SortStableFunc(e.All, func(a, b *Error) int {
		switch inA, inB := a.Line > 0, b.Line > 0; {
		case inA && !inB:
			return -1
		case inB && !inA:
			return 1
		case !inA:
			return cmp.Compare(a.File, b.File)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}

// Path leads from the root of a file to a value. Its elements are keys (string)
// and list indexes (int).
type Path []any

// At builds a [Path] from keys (string) and list indexes (int).
func At(elements ...any) Path { return Path(elements) }

// And gives the path extended by further elements; p itself is not changed.
func (p Path) And(elements ...any) Path {
	return append(slices.Clone(p), elements...)
}

// String gives the path as people write it: regions.us.kafka.seeds[0]. A key
// that would be misread is quoted.
func (p Path) String() string {
	var b strings.Builder
	for _, element := range p {
		switch x := element.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", x)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			if plainKey(x) {
				b.WriteString(x)
			} else {
				b.WriteString(strconv.Quote(x))
			}
		default:
			fmt.Fprintf(&b, "[%v]", x)
		}
	}
	return b.String()
}

func plainKey(s string) bool {
	for _, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (r < '0' || r > '9') && r != '_' && r != '-' {
			return false
		}
	}
	return s != ""
}

// Problem is one thing that is wrong with a decoded value, before anybody has
// looked up the value's place in a file.
type Problem struct {
	Path    Path
	Message string
	Nearest string
	// Line and Column, if not 0, name a character of the text at the path.
	Line, Column int
}

// Problems collects what is wrong with a decoded value. The zero value is ready
// to use. As an error it names paths only; [Document.Locate] adds positions.
type Problems struct {
	All []Problem
}

// Add notes a problem with the value at the path.
func (p *Problems) Add(at Path, format string, args ...any) {
	p.All = append(p.All, Problem{Path: at, Message: fmt.Sprintf(format, args...)})
}

// AddWithin notes a problem with one character of the text at the path; line and
// column count from 1 in the text.
func (p *Problems) AddWithin(at Path, line, column int, format string, args ...any) {
	p.All = append(p.All, Problem{Path: at, Message: fmt.Sprintf(format, args...), Line: line, Column: column})
}

// Unknown notes that the value at the path is not one of the known names, and
// suggests the nearest of them. What is the kind of name, such as "mode".
func (p *Problems) Unknown(at Path, what, have string, known ...string) {
	message := fmt.Sprintf("unknown %s %q", what, have)
	nearest := Nearest(have, known)
	if nearest == "" && len(known) > 0 {
		message += ", known: " + strings.Join(known, ", ")
	}
	p.All = append(p.All, Problem{Path: at, Message: message, Nearest: nearest})
}

// Err gives the problems as an error, or nil when there are none.
func (p *Problems) Err() error {
	if len(p.All) == 0 {
		return nil
	}
	return p
}

// Error gives one line per problem.
func (p *Problems) Error() string {
	lines := make([]string, len(p.All))
	for i, one := range p.All {
		lines[i] = (&Error{Path: one.Path, Message: one.Message, Nearest: one.Nearest}).Error()
	}
	return strings.Join(lines, "\n")
}

// Locate gives err with the positions of d when it is, or wraps, [Problems].
// A path that is not in the file gets the position of the nearest value above
// it that is. Any other error, and nil, come back as they are.
func (d *Document) Locate(err error) error {
	var problems *Problems
	if !errors.As(err, &problems) {
		return err
	}
	var located Errors
	for _, p := range problems.All {
		at := d.Position(p.Path...)
		if p.Line > 0 {
			at = d.within(p.Path, p.Line, p.Column)
		}
		located.All = append(located.All, &Error{Position: at, Path: p.Path, Message: p.Message, Nearest: p.Nearest})
	}
	return located.err()
}
