// Package script plays protocol scripts: text files that explain a protocol in
// prose, command a core of the product by hand, and show under every command what it
// asked for. A script is a document and a test at once: `go test -run TestScripts
// -rewrite` writes the traces again, and a change of a protocol shows as a change of
// its script.
package script

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Command is one command of a script, with its arguments and its input lines.
type Command = datadriven.TestData

// Trace is what one command has led to, in words.
type Trace struct{ text strings.Builder }

// Say adds a line.
func (t *Trace) Say(format string, args ...any) { fmt.Fprintf(&t.text, format+"\n", args...) }

// Run plays every script below dir. For each, begin gives what executes its commands;
// they speak through the trace.
func Run(t *testing.T, dir string, begin func(*testing.T, *Trace) func(*testing.T, *Command)) {
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		var trace Trace
		execute := begin(t, &trace)
		datadriven.RunTest(t, path, func(t *testing.T, c *datadriven.TestData) string {
			trace.text.Reset()
			execute(t, c)
			if trace.text.Len() == 0 {
				return "(nothing)\n"
			}
			return trace.text.String()
		})
	})
}
