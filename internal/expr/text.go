package expr

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// Text is a compiled expression that gives a text, like the region that a record
// belongs to. It reads what predicates read, under the same rules. It is immutable
// and safe for concurrent use.
type Text struct{ p *Predicate }

// CompileText checks an expression's syntax, type and cost. The error is an
// [Errors].
func CompileText(source string) (*Text, error) {
	p, err := compile(source, cel.StringType, "a string")
	if err != nil {
		return nil, err
	}
	return &Text{p}, nil
}

// String is the expression's text.
func (t *Text) String() string { return t.p.source }

// Value gives the text for one record. An error wraps ErrEvaluate.
func (t *Text) Value(in *Input) (string, error) {
	out, err := t.p.eval(in)
	if err != nil {
		return "", err
	}
	s, ok := out.(types.String)
	if !ok {
		return "", fmt.Errorf("%w: no text", ErrEvaluate)
	}
	return string(s), nil
}
