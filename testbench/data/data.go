// Package data holds small excerpts of real data for the demo, the tests and
// the acceptance, and reads the whole files where they are at hand. The README
// beside it names the sources and licences.
package data

import (
	"bytes"
	_ "embed" // for the two excerpts
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed flights.ndjson
var flights []byte

//go:embed github.ndjson
var github []byte

// Names of the whole files in the directory that Load reads.
const (
	FlightsFile = "flights-10k.ndjson"
	GitHubFile  = "github-webhooks.ndjson"
)

// Line is one record of a file.
type Line struct {
	// Number counts from 1.
	Number int
	// Key is the entity's key: the origin airport of a flight, the repository
	// of a webhook.
	Key string
	// Value is the whole line, valid JSON without a newline.
	Value []byte
}

// Flights returns the excerpt of flights, keyed by origin airport.
func Flights() []Line { return mustLines("flights.ndjson", flights, "origin") }

// GitHub returns the excerpt of webhook payloads, keyed by repository.
func GitHub() []Line { return mustLines("github.ndjson", github, "key") }

// Load returns both whole files from dir, or both excerpts when dir is empty.
// Full says which.
func Load(dir string) (flights, github []Line, full bool, err error) {
	if dir == "" {
		return Flights(), GitHub(), false, nil
	}
	read := func(name, key string) (lines []Line) {
		if err != nil {
			return nil
		}
		var raw []byte
		if raw, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			err = fmt.Errorf("read data: %w", err)
			return nil
		}
		lines, err = parse(name, raw, key)
		return lines
	}
	flights = read(FlightsFile, "origin")
	github = read(GitHubFile, "key")
	return flights, github, true, err
}

// mustLines parses an excerpt; a test proves that it never panics.
func mustLines(name string, raw []byte, key string) []Line {
	lines, err := parse(name, raw, key)
	if err != nil {
		panic(err)
	}
	return lines
}

// parse cuts a file into lines and takes each line's key from a member.
func parse(name string, raw []byte, key string) ([]Line, error) {
	var lines []Line
	for text := range bytes.Lines(raw) {
		n := len(lines) + 1
		text = bytes.TrimRight(text, "\r\n")
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			return nil, fmt.Errorf("parse %s:%d: %w", name, n, err)
		}
		var k string
		if err := json.Unmarshal(members[key], &k); err != nil {
			return nil, fmt.Errorf("parse %s:%d: member %q: %w", name, n, key, err)
		}
		lines = append(lines, Line{Number: n, Key: k, Value: text})
	}
	return lines, nil
}
