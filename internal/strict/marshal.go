package strict

import (
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Marshal writes v, a value of a type that Decode reads, as YAML that Decode
// reads back to the same value: keys in the order of the fields, maps in the
// order of their keys, durations and sizes as people write them.
func Marshal(v any) ([]byte, error) {
	out, err := yaml.MarshalWithOptions(v, yaml.Indent(2), yaml.IndentSequence(true),
		yaml.CustomMarshaler(func(d time.Duration) ([]byte, error) { return []byte(FormatDuration(d)), nil }),
		yaml.CustomMarshaler(func(s Size) ([]byte, error) { return []byte(s.String()), nil }),
	)
	if err != nil {
		return nil, fmt.Errorf("write yaml: %w", err)
	}
	return out, nil
}

// FormatDuration gives a duration without the zero parts that its String has:
// 24h rather than 24h0m0s. [time.ParseDuration] reads it back.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
