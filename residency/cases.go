package residency

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
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

// LoadCases reads a file of cases. The error is a [*strict.Errors].
func LoadCases(path string) (*Cases, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cases: %w", err)
	}
	return ParseCases(path, src)
}

// ParseCases reads cases from a file's content.
func ParseCases(name string, src []byte) (*Cases, error) {
	var f Cases
	if err := strict.Decode(name, src, &f); err != nil {
		return nil, err
	}
	doc, err := strict.Parse(name, src)
	if err != nil {
		return nil, err
	}
	var bad strict.Problems
	if f.Version != 1 {
		bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	if f.Kind != "ResidencyCases" {
		bad.Add(strict.At("kind"), "must be ResidencyCases")
	}
	if len(f.Cases) == 0 {
		bad.Add(strict.At("cases"), "needs at least one case")
	}
	for i, c := range f.Cases {
		at := strict.At("cases", i)
		for _, need := range []struct{ key, value string }{{"topic", c.Topic}, {"from", c.From}, {"to", c.To}} {
			if need.value == "" {
				bad.Add(at.And(need.key), "is needed")
			}
		}
		if c.Expect != "allow" && c.Expect != "deny" {
			bad.Unknown(at.And("expect"), "expectation", c.Expect, "allow", "deny")
		}
	}
	return &f, doc.Locate(bad.Err())
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
