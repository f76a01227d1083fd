package javaclient

import (
	"errors"
	"slices"
	"strings"
)

// jaas is the value of sasl.jaas.config: one login module with its options.
type jaas struct {
	module  string
	options map[string]string
}

// errUnfinished is for a value that ends in the middle, as one does whose continuation lines
// lack their backslashes.
var errUnfinished = errors.New(`the value ends in the middle: put a semicolon at its end, and a backslash at the end of each line but the last`)

// parseJAAS reads a text like `class required name="value" …;`. Its errors have no option's value
// in them.
func parseJAAS(text string) (jaas, error) {
	out := jaas{options: make(map[string]string)}
	tokens, err := jaasTokens(text)
	if err != nil {
		return out, err
	}
	if len(tokens) == 0 {
		return out, errors.New("is missing")
	}
	if len(tokens) < 3 || tokens[len(tokens)-1] != (token{kind: ';'}) {
		return out, errUnfinished
	}
	out.module = tokens[0].text
	if flag := strings.ToLower(tokens[1].text); !slices.Contains([]string{"required", "requisite", "sufficient", "optional"}, flag) {
		return out, errors.New("the class of the module must be followed by the word required")
	}
	rest := tokens[2 : len(tokens)-1]
	for len(rest) > 0 {
		if len(rest) < 3 || rest[0].kind != 'w' || rest[1].kind != '=' || rest[2].kind != 'w' && rest[2].kind != '"' {
			return out, errors.New("write options as name=\"value\", and one module only")
		}
		if _, twice := out.options[rest[0].text]; twice {
			return out, errors.New("an option comes twice")
		}
		out.options[rest[0].text] = rest[2].text
		rest = rest[3:]
	}
	return out, nil
}

// token is a word, a quoted text, or one of = and ;.
type token struct {
	kind byte // 'w', '"', '=' or ';'
	text string
}

func jaasTokens(s string) (out []token, err error) {
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case strings.IndexByte(" \t\r\n\f", c) >= 0:
			i++
		case c == '=' || c == ';':
			out = append(out, token{kind: c})
			i++
		case c == '"' || c == '\'':
			text, n, ok := quoted(s[i:])
			if !ok {
				return nil, errUnfinished
			}
			out = append(out, token{'"', text})
			i += n
		default:
			n := strings.IndexAny(s[i:], " \t\r\n\f=;\"'")
			if n < 0 {
				n = len(s) - i
			}
			out = append(out, token{'w', s[i : i+n]})
			i += n
		}
	}
	return out, nil
}

// quoted reads a text in quotes, in which a backslash escapes the next character; n is the
// length with the quotes.
func quoted(s string) (text string, n int, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return b.String(), i + 1, true
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(s[i])
		}
	}
	return "", 0, false
}
