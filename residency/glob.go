package residency

import (
	"fmt"
	"strings"
)

// glob is a topic name in which * stands for any characters, dots too, and ? for
// one.
type glob string

const maxTopic = 249 // of a topic's name in Kafka

// parseGlob reads a pattern. One with a character that no topic name has would
// match nothing, and a rule that denies nothing is a border that is not there.
func parseGlob(s string) (glob, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("a pattern is empty")
	case len(s) > maxTopic+1:
		return "", fmt.Errorf("pattern has %d characters, a topic name at most %d", len(s), maxTopic)
	case s[0] == '/':
		return "", fmt.Errorf("%q: regular expressions are not accepted here, write topic names with * and ?", s)
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-*?", c) >= 0) {
			return "", fmt.Errorf("%q: %q is in no topic name", s, rune(c))
		}
	}
	return glob(s), nil
}

// match compares in time bounded by the product of the lengths: after a mismatch
// only the last star is tried further on.
func (g glob) match(name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(g) && g[p] == '*':
			star, mark = p, n
			p++
		case p < len(g) && (g[p] == '?' || g[p] == name[n]):
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
