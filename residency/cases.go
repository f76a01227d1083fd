package residency

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/names"
	"github.com/geogate/geogate/internal/strict"
)

// Cases are what a policy's owner expects of it: `geogate policy test` asks the
// policy about each.
type Cases struct {
	Version int    `yaml:"version"`
	Kind    string `yaml:"kind"`
	Cases   []Case `yaml:"cases"`
}

// Case is one record on one way, and what must become of it.
type Case struct {
	Name    string            `yaml:"name"`
	Topic   string            `yaml:"topic"`
	From    string            `yaml:"from"`
	To      string            `yaml:"to"`
	Key     *string           `yaml:"key"` // left out: null
	Headers map[string]string `yaml:"headers"`
	// Expect is allow or deny; Rule, if given, the rule that must decide.
	Expect string `yaml:"expect"`
	Rule   string `yaml:"rule"`
}

// LoadCases reads a file of cases; see [ParseCases].
func LoadCases(path string, regions []string) (*Cases, error) {
	src, err := readFile("cases", path)
	if err != nil {
		return nil, err
	}
	return ParseCases(path, src, regions)
}

// ParseCases reads cases from a file's content. regions are the names of the
// deployment's regions; nil accepts any. The error is a [*strict.Errors].
func ParseCases(name string, src []byte, regions []string) (*Cases, error) {
	var f Cases
	if err := strict.CheckKind(name, src, casesKind); err != nil {
		return nil, err
	}
	doc, err := strict.Read(name, src, &f)
	if err != nil {
		return nil, err
	}
	var bad strict.Problems
	if f.Version != 1 {
		bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	if f.Kind != casesKind {
		bad.Add(strict.At("kind"), "must be %s", casesKind)
	}
	if len(f.Cases) == 0 {
		bad.Add(strict.At("cases"), "needs at least one case")
	}
	for i, c := range f.Cases {
		at := strict.At("cases", i)
		for key, err := range (Way{c.Topic, c.From, c.To}).problems(regions) {
			bad.Add(at.And(key), "%v", err)
		}
		if c.Expect != "allow" && c.Expect != "deny" {
			bad.Unknown(at.And("expect"), "expectation", c.Expect, "allow", "deny")
		}
	}
	return &f, doc.Locate(bad.Err())
}

// Way is the way of a topic's records from their region to another.
type Way struct{ Topic, From, To string }

// Check says why there is no such way. A policy denies what it has never heard of,
// and whoever asks about a misspelt name would take that for an answer.
func (w Way) Check(regions []string) error {
	for key, err := range w.problems(regions) {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// problems gives what is wrong, by the name of the part.
func (w Way) problems(regions []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		topic := func() error {
			if w.Topic == "" {
				return errors.New("is needed")
			}
			if strings.ContainsAny(w.Topic, "*?") {
				return fmt.Errorf("%q is a pattern, name one topic", w.Topic)
			}
			_, err := parseGlob(w.Topic)
			return err
		}
		region := func(name string) error {
			switch {
			case name == "":
				return errors.New("is needed")
			case !names.IsRegion(name):
				return fmt.Errorf("%q is not a region name, want 1 to 31 of a-z, 0-9 and -, first a letter", name)
			case regions != nil && !slices.Contains(regions, name):
				return fmt.Errorf("region %q is unknown, known are %s", name, strings.Join(regions, ", "))
			}
			return nil
		}
		if err := topic(); err != nil && !yield("topic", err) {
			return
		}
		if err := region(w.From); err != nil && !yield("from", err) {
			return
		}
		err := region(w.To)
		if err == nil && w.From == w.To {
			err = fmt.Errorf("is %s, where the record is", w.From)
		}
		if err != nil {
			yield("to", err)
		}
	}
}

// Record is the case's record.
func (c *Case) Record() *Record {
	r := &Record{}
	if c.Key != nil {
		r.Key = []byte(*c.Key)
	}
	for name, value := range c.Headers {
		r.Headers = append(r.Headers, event.Header{Key: name, Value: []byte(value)})
	}
	slices.SortFunc(r.Headers, func(a, b event.Header) int { return cmp.Compare(a.Key, b.Key) })
	return r
}

// Run asks the policy. wrong is empty if it does as expected.
func (c *Case) Run(p *Policy) (v Verdict, wrong string) {
	v = p.Compile(c.Topic, c.From, c.To).Decide(c.Record())
	var bad []string
	if v.Allow != (c.Expect == "allow") {
		bad = append(bad, fmt.Sprintf("want %s, is %s", c.Expect, v))
	}
	if c.Rule != "" && c.Rule != v.Rule {
		bad = append(bad, fmt.Sprintf("want rule %s, %s decides", c.Rule, v.Rule))
	}
	return v, strings.Join(bad, "; ")
}

// String says the verdict for people.
func (v Verdict) String() string {
	word := "deny"
	if v.Allow {
		word = "allow"
	}
	if v.Doubt {
		return word + " by " + v.Rule + " (a predicate cannot be decided)"
	}
	return word + " by " + v.Rule
}
