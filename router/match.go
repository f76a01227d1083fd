package router

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/geogate/geogate/internal/names"
)

// Pattern names topics: a glob, in which * is any characters (dots too,
// as topic names have no hierarchy) and ? for one, or a regular expression
// between slashes, which must match the whole name.
type Pattern struct {
	text string
	glob names.Glob
	re   *regexp.Regexp // in the place of glob
}

// ParsePattern reads a pattern. A glob may hold only characters that a topic
// name can hold, besides * and ?; anything else could never match and is
// [ErrPattern], as is a broken expression.
func ParsePattern(s string) (Pattern, error) {
	if len(s) >= 2 && s[0] == '/' && s[len(s)-1] == '/' {
		re, err := regexp.Compile(`^(?:` + s[1:len(s)-1] + `)$`)
		if err != nil {
			return Pattern{}, fmt.Errorf("%w %q: %w", ErrPattern, s, err)
		}
		return Pattern{text: s, re: re}, nil
	}
	if s == "" {
		return Pattern{}, fmt.Errorf("%w: it is empty", ErrPattern)
	}
	g, err := names.ParseGlob(s)
	if err != nil {
		return Pattern{}, fmt.Errorf("%w %q: %w (write a regular expression between slashes)", ErrPattern, s, err)
	}
	return Pattern{text: s, glob: g}, nil
}

// Match tells whether the pattern names the topic.
func (p Pattern) Match(topic string) bool {
	if p.re != nil {
		return p.re.MatchString(topic)
	}
	return p.glob.Match(topic)
}

// String is the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Literal gives the one topic that a pattern without wildcards names.
func (p Pattern) Literal() (topic string, ok bool) { return p.text, p.re == nil && p.glob.Literal() }

// Matcher decides which topics a link carries.
type Matcher struct {
	include, exclude []Pattern
}

// NewMatcher reads the two lists of a link. Without an include pattern nothing
// is included.
func NewMatcher(include, exclude []string) (*Matcher, error) {
	var m Matcher
	for _, list := range []struct {
		from []string
		to   *[]Pattern
	}{{include, &m.include}, {exclude, &m.exclude}} {
		for _, s := range list.from {
			p, err := ParsePattern(s)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, p)
		}
	}
	return &m, nil
}

// Ruling says what a [Matcher] decided for a topic and why.
type Ruling struct {
	// Included tells whether the topic is carried.
	Included bool
	// List is "include" or "exclude", whichever decided, or "" when no pattern
	// matched.
	List string
	// Pattern is the first pattern of that list that matched.
	Pattern string
}

// String gives the reason as people read it, like `include "*"`.
func (r Ruling) String() string {
	if r.List == "" {
		return "no pattern"
	}
	return fmt.Sprintf("%s %q", r.List, r.Pattern)
}

// Match decides for one topic; exclude wins. Internal topics are a matter of
// [Internal], not of patterns: callers leave them out before they ask.
func (m *Matcher) Match(topic string) Ruling {
	matches := func(p Pattern) bool { return p.Match(topic) }
	if i := slices.IndexFunc(m.exclude, matches); i >= 0 {
		return Ruling{List: "exclude", Pattern: m.exclude[i].text}
	}
	if i := slices.IndexFunc(m.include, matches); i >= 0 {
		return Ruling{Included: true, List: "include", Pattern: m.include[i].text}
	}
	return Ruling{}
}

// Idle gives the patterns, include before exclude, that match none of the
// topics: usually misspelt, so people are warned of them. "*" is not listed, as
// an empty cluster is no mistake.
func (m *Matcher) Idle(topics []string) []string {
	var idle []string
	for _, p := range slices.Concat(m.include, m.exclude) {
		if p.text != "*" && !slices.ContainsFunc(topics, p.Match) {
			idle = append(idle, p.text)
		}
	}
	return idle
}
