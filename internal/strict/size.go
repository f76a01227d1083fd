package strict

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 512, 64KiB, 32MiB, 10GiB or 2TiB.
type Size int64

// The binary units that a [Size] is written in.
const (
	KiB Size = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

var sizeUnits = []struct {
	name string
	unit Size
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

// parseSize reads a whole number of bytes with an optional binary unit. Decimal
// units are refused rather than guessed at: MB means two different things.
func parseSize(s string) (Size, error) {
	digits, unit := s, Size(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.unit
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size, write a whole number of bytes or like 64KiB, 32MiB, 1GiB", s)
	}
	if n > math.MaxInt64/int64(unit) {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return Size(n) * unit, nil
}

// String gives the size in the largest unit that keeps it whole, so that
// [Size.UnmarshalText] reads back the same number.
func (s Size) String() string {
	for _, u := range sizeUnits[:len(sizeUnits)-1] {
		if s != 0 && s%u.unit == 0 {
			return strconv.FormatInt(int64(s/u.unit), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText gives the form of String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the forms of [Size.UnmarshalText].
func (s *Size) UnmarshalText(text []byte) error {
	n, err := parseSize(string(text))
	if err == nil {
		*s = n
	}
	return err
}
