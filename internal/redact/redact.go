// Package redact takes keys and values of records out of texts that libraries made:
// errors of the store print keys in hex, and what a broker or a parser says may quote
// what it was given. Every text for a log or the status passes through it.
package redact

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// maxQuoted is how long a quoted text may be: names are shorter, keys and values
	// need not be.
	maxQuoted = 256
	// maxText bounds what is left, in bytes.
	maxText = 4 << 10
)

var (
	// dump are lines of a hex dump, as the store appends to an error about a long key.
	dump = regexp.MustCompile(`(?m)\n?^[0-9a-f]{8}  [0-9a-f]{2} .*$`)
	// named is what the store calls a key: quoted, in hex, or as a list of bytes.
	named = regexp.MustCompile(`(?i)\b(key)(?: ?[:=] ?"(?:[^"\\]|\\.)*"|:? \[[0-9a-f ]+\]?)`)
	// bytesText are many bytes in hex or as a list of numbers, whatever they are called. An
	// identifier of 64 hex digits stays.
	bytesText = regexp.MustCompile(`\b[0-9a-fA-F]{65,}\b|\b(?:[0-9a-fA-F]{2} ){15,}[0-9a-fA-F]{2}\b|\[(?:\d{1,3} ){15,}\d{1,3}\]`)
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

const notShown = "(not shown)"

// Text is s without what may be a key or a value, and not longer than some kilobytes.
func Text(s string) string {
	if len(s) > 2*maxText { // what is cut off is not looked at
		s = s[:2*maxText]
	}
	s = dump.ReplaceAllString(s, "")
	s = named.ReplaceAllString(s, "${1} "+notShown)
	s = bytesText.ReplaceAllString(s, notShown)
	s = quoted.ReplaceAllStringFunc(s, func(q string) string {
		if len(q) > maxQuoted {
			return fmt.Sprintf("(%d bytes not shown)", len(q)-2)
		}
		return q
	})
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return s
}

// Attr is for [slog.HandlerOptions.ReplaceAttr]: errors are logged through [Text], and what
// has a text is logged as that, where JSON would have a list of bytes or a number.
func Attr(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindAny {
		switch v := a.Value.Any().(type) {
		case error:
			return slog.String(a.Key, Text(v.Error()))
		case fmt.Stringer:
			return slog.String(a.Key, v.String())
		}
	}
	return a
}
