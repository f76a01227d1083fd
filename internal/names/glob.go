package names

import "fmt"

// Glob is a topic name in which * stands for any characters, dots too, and ? for one.
type Glob string

// ParseGlob reads a glob. One that is empty or that has a character of no topic name
// would match nothing and is an error, which does not repeat the glob.
func ParseGlob(s string) (Glob, error) {
	if s == "" {
		return "", fmt.Errorf("a pattern is empty")
	}
	for i := range len(s) {
		if c := s[i]; c != '*' && c != '?' && !topicByte(c) {
			return "", fmt.Errorf("%q is in no topic name", rune(c))
		}
	}
	return Glob(s), nil
}

// Literal reports whether the glob has no wildcards and so names one topic.
func (g Glob) Literal() bool {
	for i := range len(g) {
		if g[i] == '*' || g[i] == '?' {
			return false
		}
	}
	return true
}

// Match reports whether the glob names the topic. It takes time bounded by the product
// of the lengths: after a mismatch only the last star is tried further on.
func (g Glob) Match(topic string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(topic) {
		switch {
		case p < len(g) && g[p] == '*':
			star, mark = p, n
			p++
		case p < len(g) && (g[p] == '?' || g[p] == topic[n]):
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	for p < len(g) && g[p] == '*' {
		p++
	}
	return p == len(g)
}
