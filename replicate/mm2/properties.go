package mm2

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/magiconair/properties"

	"github.com/geogate/geogate/internal/javaclient"
)

// Limits of a file, which MirrorMaker 2 does not have. A file that lists a thousand topics by
// name has some hundred kilobytes.
const (
	maxFile     = 4 << 20
	maxSettings = 20_000
)

// Setting is a key and its value, from one line or several joined by backslashes.
type Setting = javaclient.Setting

// LineError is a mistake in a file of settings.
type LineError struct {
	File string
	Line int // 0: none in particular
	Err  error
}

// Error implements error.
func (e *LineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the mistake without its place.
func (e *LineError) Unwrap() error { return e.Err }

// ReadProperties reads a file in the form of java.util.Properties, in ISO 8859-1 as
// MirrorMaker 2 does, in the order of its lines. A key may come more than once; the last
// one counts. Text like ${file:/run/secrets:x} stays as it is. Errors are [*LineError].
func ReadProperties(file string, src []byte) ([]Setting, error) {
	if len(src) > maxFile {
		return nil, &LineError{File: file, Err: fmt.Errorf("the file is larger than %d MiB", maxFile>>20)}
	}
	loader := properties.Loader{Encoding: properties.ISO_8859_1, DisableExpansion: true}
	var out []Setting
	for line := range logicalLines(src) {
		p, err := loader.LoadBytes(line.text)
		if err != nil {
			return nil, &LineError{File: file, Line: line.number, Err: errors.New("not a setting: write key=value, and a backslash as \\\\")}
		}
		for _, key := range p.Keys() {
			value, _ := p.Get(key)
			out = append(out, Setting{Line: line.number, Key: key, Value: value})
		}
		if len(out) > maxSettings {
			return nil, &LineError{File: file, Line: line.number, Err: fmt.Errorf("more than %d settings", maxSettings)}
		}
	}
	return out, nil
}

type logicalLine struct {
	number int
	text   []byte
}

// logicalLines splits a file where a line ends that no backslash continues, and leaves
// comments out: the library forgets where a key stood.
func logicalLines(src []byte) func(yield func(logicalLine) bool) {
	return func(yield func(logicalLine) bool) {
		number := 0
		for len(src) > 0 {
			first, begin := number+1, src
			length := 0
			for {
				line, next := cutLine(begin[length:])
				number++
				length += next
				if comment(line) && number == first || !continued(line) || length == len(begin) {
					break
				}
			}
			src = begin[length:]
			text := begin[:length]
			if len(src) == 0 && continued(text) { // by nothing
				text = text[:len(text)-1]
			}
			if line, _ := cutLine(text); comment(line) || len(bytes.TrimSpace(text)) == 0 {
				continue
			}
			if !yield(logicalLine{first, text}) {
				return
			}
		}
	}
}

// cutLine gives the first line without its end, and where the next one begins.
func cutLine(src []byte) (line []byte, next int) {
	i := bytes.IndexAny(src, "\r\n")
	switch {
	case i < 0:
		return src, len(src)
	case src[i] == '\r' && i+1 < len(src) && src[i+1] == '\n':
		return src[:i], i + 2
	}
	return src[:i], i + 1
}

func comment(line []byte) bool {
	line = bytes.TrimLeft(line, " \t\f")
	return len(line) > 0 && (line[0] == '#' || line[0] == '!')
}

// continued tells whether a line ends in an odd number of backslashes.
func continued(line []byte) bool {
	return (len(line)-len(bytes.TrimRight(line, `\`)))%2 == 1
}
