package kept

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
)

// The files beside the archives.
const (
	GoldenFile = "golden.txt"
	HeldFile   = "held.json"
)

// Archive is the name of the archive with a member's data directory.
func Archive(member string) string { return member + ".tar.gz" }

// FencedUnit is the unit that was left fenced.
const FencedUnit = "spare/eu"

// Held is what clients of that time hold.
type Held struct {
	Answers []HeldAnswer `json:"answers"`
	Cursors []HeldCursor `json:"cursors"`
}

// HeldAnswer is a write with an idempotency key, and how it was answered.
type HeldAnswer struct {
	Region string `json:"region"`
	Write
	Answer string `json:"answer"`
}

// HeldCursor is a place in the merged view of a topic, given by a region, and what
// follows it there: the dots of records.
type HeldCursor struct {
	Region string   `json:"region"`
	Topic  string   `json:"topic"`
	Cursor string   `json:"cursor"`
	Rest   []string `json:"rest"`
}

// Save writes what is held into a file.
func (h *Held) Save(path string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(h); err != nil {
		return fmt.Errorf("encode what clients hold: %w", err)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// LoadHeld reads the file that Save wrote.
func LoadHeld(path string) (*Held, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what clients hold: %w", err)
	}
	var h Held
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, fmt.Errorf("read what clients hold in %s: %w", path, err)
	}
	return &h, nil
}

// Check has every client come back: each retry is answered with the same bytes, each
// token finds its write applied, each cursor goes on with the same records.
func (h *Held) Check(ctx context.Context, region func(string) *Region) error {
	var errs []error
	for _, a := range h.Answers {
		errs = append(errs, a.check(ctx, region(a.Region)))
	}
	for _, c := range h.Cursors {
		errs = append(errs, c.check(ctx, region(c.Region)))
	}
	return errors.Join(errs...)
}

func (a *HeldAnswer) check(ctx context.Context, r *Region) error {
	reply, err := r.Store(ctx, a.Write)
	if err != nil {
		return fmt.Errorf("retry key %q: %w", a.Idem, err)
	}
	if !reply.Replayed || reply.Body != a.Answer {
		return fmt.Errorf("retry of key %q in %s (index of keys: dedupe, docs/format/envelope.md)\n was: %s\n now: %s (replayed: %v)",
			a.Idem, a.Region, a.Answer, reply.Body, reply.Replayed)
	}
	return nil
}

func (c *HeldCursor) check(ctx context.Context, r *Region) error {
	rest, _, err := r.Dots(ctx, c.Topic, c.Cursor, 0)
	if err != nil {
		return fmt.Errorf("go on at a cursor (docs/format/envelope.md, reader: internal/event): %w", err)
	}
	if len(rest) < len(c.Rest) || !slices.Equal(rest[:len(c.Rest)], c.Rest) {
		return fmt.Errorf("cursor %s of %s in %s goes on with\n %v, it was\n %v", c.Cursor, c.Topic, r.Name, rest, c.Rest)
	}
	return nil
}

// Dots reads the merged view of a topic from a cursor, to its end or up to a number
// of records, and gives the cursor behind them.
func (r *Region) Dots(ctx context.Context, topic, from string, limit int) (dots []string, next string, err error) {
	for {
		page, err := r.Page(ctx, topic, "merged", from, pageOf(limit, len(dots)))
		if err != nil {
			return nil, "", fmt.Errorf("read merged view of %s in %s: %w", topic, r.Name, err)
		}
		for _, rec := range page.Records {
			dots = append(dots, rec.Dot)
		}
		if from = page.Next; page.End || limit > 0 && len(dots) >= limit {
			return dots, from, nil
		}
	}
}

// pageOf is how many records to ask for, of a number that is wanted in all; 0 wants
// everything.
func pageOf(limit, have int) int {
	const most = 500
	if limit > 0 {
		return min(most, limit-have)
	}
	return most
}
