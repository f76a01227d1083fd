package gateway

import (
	"errors"
	"fmt"
	"strings"
)

const maxIdempotencyKey = 255

// checkIdempotencyKey allows what a structured-field string may hold, 1 to 255
// characters.
func checkIdempotencyKey(key string) error {
	if len(key) == 0 || len(key) > maxIdempotencyKey {
		return fmt.Errorf("must have 1 to %d characters, has %d", maxIdempotencyKey, len(key))
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return errors.New("must hold printable ASCII characters only")
		}
	}
	return nil
}

// parseIdempotencyKey reads the header Idempotency-Key: a structured-field
// string in quotes, or the bare key. lines are all the header's lines; none is
// no key.
func parseIdempotencyKey(lines []string) (string, error) {
	if len(lines) == 0 {
		return "", nil
	}
	bad := func(format string, args ...any) (string, error) {
		return "", invalid(codeKeyInvalid, atHeader("Idempotency-Key", format, args...))
	}
	if len(lines) > 1 {
		return bad("the header is given %d times", len(lines))
	}
	text := strings.Trim(lines[0], " \t")
	key := text
	if strings.HasPrefix(text, `"`) {
		var err error
		if key, err = unquoteKey(text); err != nil {
			return bad("%s", err)
		}
	} else if strings.ContainsAny(text, " \t\"") {
		return bad("a key with spaces or quotes must be quoted")
	}
	if err := checkIdempotencyKey(key); err != nil {
		return bad("%s", err)
	}
	return key, nil
}

// unquoteKey reads a structured-field string (RFC 8941, 3.3.3) without parameters.
func unquoteKey(text string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errors.New("the quoted key has an escape other than \\\" and \\\\")
			}
			b.WriteByte(text[i])
		case c == '"':
			if i != len(text)-1 {
				return "", errors.New("the quoted key is followed by more text")
			}
			return b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("the quoted key has no closing quote")
}
