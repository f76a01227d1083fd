package mm2

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// errPattern is returned for a regular expression of Java that cannot be taken over.
var errPattern = errors.New("cannot be taken over")

// Patterns turns a list of MirrorMaker 2 into patterns of a link. The list has regular
// expressions of java.util.regex, separated by commas, each of which matches whole names. Those
// that a glob can express become globs, which are easier to read; others stay regular
// expressions, between slashes. Expressions that RE2 lacks or reads differently are errors.
func Patterns(list string) ([]string, error) {
	var out []string
	for _, item := range splitList(list) {
		p, err := pattern(item)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// splitList splits as Kafka's ConfigDef does a list: at every comma, also within an
// expression.
func splitList(list string) []string {
	list = strings.TrimSpace(list)
	if list == "" {
		return nil
	}
	items := strings.Split(list, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

func pattern(re string) (string, error) {
	if re == "" {
		return "", fmt.Errorf("an empty item %w: remove the comma", errPattern)
	}
	if glob, ok := globOf(re); ok {
		return glob, nil
	}
	if err := readsAlike(re); err != nil {
		return "", fmt.Errorf("%q %w: %w", re, errPattern, err)
	}
	return "/" + re + "/", nil
}

// globOf writes an expression as a glob. It knows letters, digits, _ and -, escaped
// punctuation that a topic's name may have, and the dot with or without * and +.
func globOf(re string) (glob string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(re); i++ {
		switch c := re[i]; {
		case c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
			b.WriteByte(c)
		case c == '\\' && i+1 < len(re) && strings.IndexByte(".-_", re[i+1]) >= 0:
			i++
			b.WriteByte(re[i])
		case c == '.' && strings.HasPrefix(re[i+1:], "*"):
			i++
			b.WriteByte('*')
		case c == '.' && strings.HasPrefix(re[i+1:], "+"):
			i++
			b.WriteString("?*")
		case c == '.':
			b.WriteByte('?')
			continue
		default:
			return "", false
		}
		if i+1 < len(re) && strings.IndexByte("*+?{", re[i+1]) >= 0 {
			return "", false // it is repeated, lazily or possessively
		}
	}
	if strings.Contains(b.String(), "**") {
		return "", false
	}
	return b.String(), true
}

var (
	repetition = regexp.MustCompile(`^\{[0-9]+(,[0-9]*)?\}`)
	braced     = regexp.MustCompile(`^[pPx]\{[^}]*\}`) // behind a backslash
)

// readsAlike tells whether Java and Go read an expression alike, as far as names of topics
// and groups are concerned.
func readsAlike(re string) error {
	if strings.ContainsAny(re, "\r\n") {
		return errors.New("it contains a line end")
	}
	class := false
	for i := 0; i < len(re); i++ {
		switch c := re[i]; {
		case c == '\\':
			i++
			if named := braced.FindString(re[i:]); named != "" {
				i += len(named) - 1
			}
		case !class && c == '{' && (i == 0 || !repetition.MatchString(re[i:])):
			return errors.New("a { that begins no repetition is an error in Java; MirrorMaker 2 splits lists at every comma, also in x{1,2}: write xx? instead")
		case class && c == '[':
			return errors.New("a class within a class is a union in Java and a character in RE2; write one class")
		case class && strings.HasPrefix(re[i:], "&&"):
			return errors.New("&& within a class is an intersection in Java and two characters in RE2; write the class out")
		case class && c == ']':
			class = false
		case c == '[':
			class = true
			// A bracket right behind the opening one is a character to both.
			rest := strings.TrimPrefix(re[i+1:], "^")
			if strings.HasPrefix(rest, "]") {
				i = len(re) - len(rest)
			}
		}
	}
	if _, err := regexp.Compile(`^(?:` + re + `)$`); err != nil {
		return fmt.Errorf("RE2 has no look-around, back reference or possessive repetition, or the expression is broken: %w", err)
	}
	return nil
}
