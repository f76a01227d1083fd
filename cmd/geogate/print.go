package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// What commands print holds names, reasons and keys that others have chosen, and a
// terminal obeys control characters. So standard output and standard error are terminals
// (below), which let none through, and what is put into lines and columns goes through a
// printer, which lets no text break out of its own.

// terminal writes text, and escapes what a terminal or an editor may obey: control and
// format characters but line ends and tabs, and bytes that are no text. The escapes are
// those of JSON, so that JSON stays what it is. It may be used by several goroutines.
type terminal struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // a character that a write cut in two
}

// Write implements io.Writer.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := append(t.rest, p...)
	t.rest = nil
	if cut := unfinished(in); cut > 0 {
		t.rest = append([]byte(nil), in[len(in)-cut:]...)
		in = in[:len(in)-cut]
	}
	if _, err := t.to.Write([]byte(visible(string(in), "\n\t"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// unfinished is how many bytes at the end begin a character whose rest may come.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// visible escapes the characters of a text that have an effect instead of a shape, but
// those that may stay.
func visible(s, stay string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return hasEffect(r) && !strings.ContainsRune(stay, r) || r == utf8.RuneError }) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\ufffd`)
		case !hasEffect(r) || strings.ContainsRune(stay, r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// hasEffect tells whether a character is a control or format character, directions of text
// among them, or ends a line.
func hasEffect(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }

// printer prints lines and tables. A text that is given to it stays within its line and its
// column. Tables are aligned when a line follows them, or flush is called.
type printer struct {
	out   io.Writer
	table *tabwriter.Writer
}

func newPrinter(out io.Writer) *printer {
	return &printer{out: out, table: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
}

// line prints one line; only the format may have line ends.
func (p *printer) line(format string, args ...any) {
	p.table.Flush()
	for i, a := range args {
		args[i] = cell(a)
	}
	fmt.Fprintf(p.out, format+"\n", args...)
}

// row adds a row to the table.
func (p *printer) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(cell(c))
	}
	fmt.Fprintln(p.table, strings.Join(texts, "\t"))
}

// section begins another table after an empty line.
func (p *printer) section(header ...any) {
	fmt.Fprintln(p.table)
	p.row(header...)
}

// flush prints what has not been.
func (p *printer) flush() error { return p.table.Flush() }

// cell is a value as it may stand in a line: numbers stay numbers.
func cell(v any) any {
	switch v := v.(type) {
	case int, int32, int64, uint8, uint64, float64, bool:
		return v
	case string:
		return visible(v, "")
	}
	return visible(fmt.Sprint(v), "")
}

// printJSON prints an answer of a gateway as it is, if it is JSON.
func printJSON(cmd *cobra.Command, body []byte) error {
	if !utf8.Valid(body) || !json.Valid(body) {
		return exitWith(exitUnreachable, "decode the gateway's answer: it is not JSON")
	}
	_, err := cmd.OutOrStdout().Write(body)
	return err
}
