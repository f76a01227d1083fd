package residency

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/geogate/geogate/internal/expr"
	"github.com/geogate/geogate/internal/names"
	"github.com/geogate/geogate/internal/strict"
)

// DefaultRule is named where no rule has decided: nothing allowed it.
const DefaultRule = "default"

// The bounds of max_age, and what it is when the file does not say.
const (
	DefaultMaxAge = 24 * time.Hour
	minMaxAge     = time.Second
	maxMaxAge     = 30 * 24 * time.Hour
)

// File is the shape of a policy file, version 1.
type File struct {
	Version  int    `yaml:"version"`
	Kind     string `yaml:"kind"`
	Name     string `yaml:"name"`
	Revision int64  `yaml:"revision"`
	Default  string `yaml:"default"`
	// MaxAge is how long the policy stays in force after its file has stopped
	// loading; then nothing leaves any more.
	MaxAge time.Duration       `yaml:"max_age"`
	Groups map[string][]string `yaml:"groups"`
	Topics []TopicEntry        `yaml:"topics"`
	Rules  []RuleEntry         `yaml:"rules"`
}

// Later names the keys to come.
func (File) Later() map[string]string {
	return map[string]string{"classes": comesWithFields, "limits": comesWithFields, "keys": comesWithFields}
}

const comesWithFields = "comes with field rules; until then a record leaves whole or not at all"

// TopicEntry declares what the records of topics are.
type TopicEntry struct {
	Match  []string `yaml:"match"`
	Format string   `yaml:"format"`
}

// RuleEntry is one rule of a [File].
type RuleEntry struct {
	ID     string   `yaml:"id"`
	Effect string   `yaml:"effect"`
	Topics []string `yaml:"topics"`
	From   []string `yaml:"from"`
	To     []string `yaml:"to"`
	When   string   `yaml:"when"`
}

// Later names the keys to come.
func (RuleEntry) Later() map[string]string {
	return map[string]string{
		"value": comesWithFields, "key": comesWithFields, "headers": comesWithFields, "format": comesWithFields,
		"tombstones": comesWithFields, "write_back": comesWithFields, "unlisted": comesWithFields, "timestamp": comesWithFields,
		"to_except": "is not known: name the regions, or write a deny rule",
	}
}

// Load reads the policy file at a path; see [Parse]. A file that is missing or
// empty is an error like any other: a border that is configured must be there.
func Load(path string, regions []string) (*Policy, error) {
	src, err := Read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, src, regions)
}

// MaxFile is the size of the largest file of a policy or of cases, in bytes.
const MaxFile = 1 << 20

// Read returns the content of a policy file. It must be a regular file: reading a
// pipe would wait for its writer.
func Read(path string) ([]byte, error) { return readFile("residency policy", path) }

// readFile reads a file that messages call what.
func readFile(what, path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %s is no regular file", what, path)
	}
	src, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if len(src) > MaxFile {
		return nil, fmt.Errorf("read %s: %s is larger than %d bytes", what, path, MaxFile)
	}
	return src, nil
}

// The kinds of the files.
const (
	policyKind = "ResidencyPolicy"
	casesKind  = "ResidencyCases"
)

// Parse reads a policy, which messages call name. regions are the names of the
// deployment's regions; nil accepts any. The error is a [*strict.Errors] with all
// mistakes and their places, those inside predicates included.
func Parse(name string, src []byte, regions []string) (*Policy, error) {
	var f File
	if err := strict.CheckKind(name, src, policyKind); err != nil {
		return nil, err
	}
	doc, err := strict.Read(name, src, &f)
	if err != nil {
		return nil, err
	}
	c := compiler{doc: doc, regions: regions, groups: map[string][]string{}}
	p := c.policy(&f)
	if err := c.bad.Err(); err != nil {
		return nil, doc.Locate(err)
	}
	p.Digest = sha256.Sum256(src)
	return p, nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

const nameRule = "want 1 to 63 of a-z, 0-9 and -, first a letter or digit"

// compiler checks a decoded file and makes the policy of it.
type compiler struct {
	doc     *strict.Document
	regions []string
	groups  map[string][]string
	bad     strict.Problems
}

func (c *compiler) policy(f *File) *Policy {
	p := &Policy{Name: f.Name, Revision: f.Revision, MaxAge: f.MaxAge}
	if f.Version != 1 {
		c.bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	if f.Kind != policyKind {
		c.bad.Add(strict.At("kind"), "must be %s", policyKind)
	}
	if !nameForm.MatchString(f.Name) {
		c.bad.Add(strict.At("name"), "%q is no policy name, %s", f.Name, nameRule)
	}
	if f.Revision < 1 {
		c.bad.Add(strict.At("revision"), "must be a whole number from 1 on, one more with each change")
	}
	if f.Default != "deny" {
		c.bad.Add(strict.At("default"), "must be deny, the only default that there is")
	}
	switch {
	case f.MaxAge == 0 && !c.doc.Has("max_age"):
		p.MaxAge = DefaultMaxAge
	case f.MaxAge < minMaxAge || f.MaxAge > maxMaxAge:
		c.bad.Add(strict.At("max_age"), "must be within %s and %s", strict.FormatDuration(minMaxAge), strict.FormatDuration(maxMaxAge))
	}
	c.readGroups(f.Groups)
	c.readTopics(f.Topics)
	if len(f.Rules) == 0 {
		c.bad.Add(strict.At("rules"), "needs at least one rule; one that denies everything says so best")
	}
	seen := map[string]int{}
	for i := range f.Rules {
		r := c.rule(strict.At("rules", i), &f.Rules[i])
		if first, twice := seen[r.id]; twice {
			c.bad.Add(strict.At("rules", i, "id"), "rule %s is there already, as number %d", r.id, first+1)
		}
		seen[r.id] = i
		p.rules = append(p.rules, r)
	}
	// From here on the order of the file is forgotten.
	slices.SortFunc(p.rules, func(a, b *rule) int { return cmp.Compare(a.id, b.id) })
	return p
}

func (c *compiler) readGroups(groups map[string][]string) {
	for name, members := range groups {
		at := strict.At("groups", name)
		if !names.IsRegion(name) {
			c.bad.Add(at, "%q is no group name, want 1 to 31 of a-z, 0-9 and -, first a letter", name)
		}
		if len(members) == 0 {
			c.bad.Add(at, "needs at least one region")
		}
		for i, m := range members {
			c.region(at.And(i), m)
		}
		c.groups[name] = members
	}
}

func (c *compiler) region(at strict.Path, name string) {
	switch {
	case !names.IsRegion(name):
		c.bad.Add(at, "%q is not a region name, want 1 to 31 of a-z, 0-9 and -, first a letter", name)
	case c.regions != nil && !slices.Contains(c.regions, name):
		c.bad.Unknown(at, "region", name, c.regions...)
	}
}

func (c *compiler) readTopics(entries []TopicEntry) {
	for i, e := range entries {
		at := strict.At("topics", i)
		c.patterns(at.And("match"), e.Match)
		switch e.Format {
		case "json", "opaque":
		case "avro", "protobuf":
			c.bad.Add(at.And("format"), "format %s %s", e.Format, comesWithFields)
		case "":
			c.bad.Add(at.And("format"), "needs to say json or opaque")
		default:
			c.bad.Unknown(at.And("format"), "format", e.Format, "json", "opaque")
		}
	}
}

func (c *compiler) patterns(at strict.Path, texts []string) (out []names.Glob) {
	if len(texts) == 0 {
		c.bad.Add(at, "needs at least one topic or pattern")
	}
	for i, text := range texts {
		g, err := parseGlob(text)
		if err != nil {
			c.bad.Add(at.And(i), "%v", err)
			continue
		}
		out = append(out, g)
	}
	return out
}

func (c *compiler) rule(at strict.Path, e *RuleEntry) *rule {
	r := &rule{id: e.ID, topics: c.patterns(at.And("topics"), e.Topics)}
	switch {
	case !nameForm.MatchString(e.ID):
		c.bad.Add(at.And("id"), "%q is no rule id, %s", e.ID, nameRule)
	case e.ID == DefaultRule || e.ID == StoppedRule:
		c.bad.Add(at.And("id"), "%s is what counts and audit show where no rule decides; take another id", e.ID)
	}
	switch e.Effect {
	case "allow":
		r.effect = Allow
	case "deny":
		r.effect = Deny
	case "":
		c.bad.Add(at.And("effect"), "needs to say allow or deny")
	default:
		c.bad.Unknown(at.And("effect"), "effect", e.Effect, "allow", "deny")
	}
	r.from, r.to = c.places(at.And("from"), e.From), c.places(at.And("to"), e.To)
	switch {
	case e.When != "":
		r.when = c.predicate(at.And("when"), e.When)
	case c.doc.Has(at.And("when")...):
		// Read as "always" it would open the border.
		c.bad.Add(at.And("when"), "is empty; leave it out for a rule that looks at no record")
	}
	return r
}

func (c *compiler) predicate(at strict.Path, source string) *expr.Predicate {
	p, err := expr.Compile(source)
	var errs expr.Errors
	if errors.As(err, &errs) {
		for _, e := range errs {
			c.bad.AddWithin(at, e.Line, e.Column, "%s", e.Message)
		}
	}
	return p
}

// places reads a list of regions, "@" groups and "*".
func (c *compiler) places(at strict.Path, names []string) (out places) {
	if len(names) == 0 {
		c.bad.Add(at, `needs at least one region, @group or "*"`)
	}
	for i, name := range names {
		group, isGroup := strings.CutPrefix(name, "@")
		switch {
		case name == "*":
			out.all = true
		case isGroup:
			members, ok := c.groups[group]
			if !ok {
				var known []string
				for g := range c.groups {
					known = append(known, g)
				}
				slices.Sort(known)
				c.bad.Unknown(at.And(i), "group", group, known...)
			}
			out.names = append(out.names, members...)
		default:
			c.region(at.And(i), name)
			out.names = append(out.names, name)
		}
	}
	return out
}

// parseGlob reads a pattern of topics. One that can match nothing would be a rule that
// denies nothing: a border that is not there.
func parseGlob(text string) (names.Glob, error) {
	switch {
	case len(text) > names.MaxTopic+1:
		return "", fmt.Errorf("pattern has %d characters, a topic name at most %d", len(text), names.MaxTopic)
	case text != "" && text[0] == '/':
		return "", fmt.Errorf("%q: regular expressions are not accepted here, write topic names with * and ?", text)
	}
	g, err := names.ParseGlob(text)
	if err != nil && text != "" {
		err = fmt.Errorf("%q: %w", text, err)
	}
	return g, err
}
