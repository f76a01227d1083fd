package expr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/geogate/geogate/internal/event"
)

const (
	// MaxSource is the longest predicate accepted, in characters.
	MaxSource = 4096
	// MaxText is the longest key or header value that a predicate looks at, in
	// bytes; a longer one is an error.
	MaxText = 64 << 10

	maxDepth = 64
	maxCost  = 1_000_000 // about one per comparison, with keys of MaxText
	ownName  = "gg-"     // prefix of the gateway's headers
)

// ErrEvaluate is wrapped by every error of Match: the predicate could not be
// decided for this record. The messages hold no key and no value.
var ErrEvaluate = errors.New("predicate cannot be decided")

// Error is one mistake in a predicate. Line and Column count from 1 in its text.
type Error struct {
	Line, Column int
	Message      string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message) }

// Errors are all mistakes of one predicate; it is never empty.
type Errors []*Error

// Error implements error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Input is what a predicate is asked about.
type Input struct {
	Key             []byte // nil is null
	Headers         []event.Header
	Topic, From, To string
}

// Predicate is a compiled predicate. It is immutable and safe for concurrent use.
type Predicate struct {
	source  string
	program cel.Program
	tracked bool     // an operator in it may swallow errors
	key     bool     // it reads the key
	headers bool     // it reads headers
	whole   bool     // it reads them other than by name: all of them count
	needed  []string // headers that it reads and does not test for; names are folded
	read    []string // headers that it reads
	named   []string // headers that it reads or tests for
}

var environment = func() *cel.Env {
	env, err := cel.NewCustomEnv(
		cel.StdLib(), cel.ClearMacros(), cel.Macros(cel.HasMacro),
		cel.Variable("key", cel.StringType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("topic", cel.StringType),
		cel.Variable("from", cel.StringType),
		cel.Variable("to", cel.StringType),
		cel.ParserExpressionSizeLimit(MaxSource), cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
	if err != nil {
		panic(err) // the declarations above are the program's own
	}
	return env
}()

// Compile checks a predicate's syntax, types and cost. The error is an [Errors].
func Compile(source string) (*Predicate, error) {
	return compile(source, cel.BoolType, "true or false")
}

// compile checks an expression that must be of a type, which messages call what.
func compile(source string, want *cel.Type, what string) (p *Predicate, err error) {
	// The compiler is another project's and the text may be anybody's.
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, Errors{{1, 1, fmt.Sprintf("not readable: %v", r)}}
		}
	}()
	if !utf8.ValidString(source) {
		return nil, Errors{{1, 1, "not UTF-8"}}
	}
	checked, issues := environment.Compile(source)
	if issues.Err() != nil {
		return nil, located(issues)
	}
	root := ast.NavigateAST(checked.NativeRep())
	p = &Predicate{source: source}
	if errs := p.analyse(checked.NativeRep(), root); len(errs) > 0 {
		return nil, errs
	}
	if t := checked.OutputType(); !t.IsExactType(want) {
		return nil, Errors{{1, 1, fmt.Sprintf("must be %s, is %s", what, t)}}
	}
	estimate, err := environment.EstimateCost(checked, sizes{})
	if err != nil {
		return nil, Errors{{1, 1, fmt.Sprintf("cost cannot be estimated: %v", err)}}
	}
	if estimate.Max > maxCost {
		return nil, Errors{{1, 1, fmt.Sprintf("may cost %d for one record, at most %d are accepted", estimate.Max, maxCost)}}
	}
	opts := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if p.tracked {
		opts = append(opts, cel.EvalOptions(cel.OptTrackState))
	}
	if p.program, err = environment.Program(checked, opts...); err != nil {
		return nil, Errors{{1, 1, err.Error()}}
	}
	return p, nil
}

// located turns the compiler's complaints into ours.
func located(issues *cel.Issues) Errors {
	var out Errors
	for _, e := range issues.Errors() {
		message := e.Message
		if strings.Contains(message, "undeclared reference to 'value'") {
			message = "value comes with field rules; until then a predicate reads key, headers, topic, from and to"
		}
		out = append(out, &Error{max(1, e.Location.Line()), e.Location.Column() + 1, message})
	}
	slices.SortStableFunc(out, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return out
}

// analyse finds out what the predicate reads, and refuses reading headers by a
// name that is only known when it runs: whether it is missing could then not be
// found out beforehand.
func (p *Predicate) analyse(tree *ast.AST, root ast.NavigableExpr) (errs Errors) {
	tests := map[string]bool{}
	for _, e := range ast.MatchDescendants(root, ast.AllMatcher()) {
		switch e.Kind() {
		case ast.IdentKind:
			p.key = p.key || e.AsIdent() == "key"
			if isHeaders(e) {
				p.headers = true
				p.whole = p.whole || !byName(e)
			}
		case ast.SelectKind:
			s := e.AsSelect()
			if !isHeaders(s.Operand()) {
				continue
			}
			if s.IsTestOnly() {
				tests[fold(s.FieldName())] = true
			} else {
				p.read = append(p.read, fold(s.FieldName()))
			}
		case ast.CallKind:
			call := e.AsCall()
			args := call.Args()
			switch name := call.FunctionName(); {
			case name == operators.LogicalAnd || name == operators.LogicalOr:
				p.tracked = true
			case name == operators.In && isHeaders(args[1]):
				if s, ok := literal(args[0]); ok {
					tests[fold(s)] = true
				}
			case name == operators.Index && isHeaders(args[0]):
				s, ok := literal(args[1])
				if !ok {
					at := tree.SourceInfo().GetStartLocation(e.ID())
					errs = append(errs, &Error{max(1, at.Line()), at.Column() + 1, `a header is read by its name, like headers["x"]`})
				}
				p.read = append(p.read, fold(s))
			}
		}
	}
	slices.Sort(p.read)
	p.read = slices.Compact(p.read)
	p.named = slices.AppendSeq(slices.Clone(p.read), maps.Keys(tests))
	for _, name := range p.read {
		if strings.HasPrefix(name, ownName) {
			errs = append(errs, &Error{1, 1, fmt.Sprintf("header %q is the gateway's own and is not read by predicates", name)})
		}
		if !tests[name] {
			p.needed = append(p.needed, name)
		}
	}
	return errs
}

// byName tells whether headers, at this place, are asked for one by its name, or
// whether they have one. Everything else, a comparison above all, takes all of
// them: CEL calls two maps equal in which a value is an error.
func byName(headers ast.NavigableExpr) bool {
	parent, ok := headers.Parent()
	if !ok {
		return false
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return true
	case ast.CallKind:
		call := parent.AsCall()
		switch call.FunctionName() {
		case operators.Index:
			return call.Args()[0].ID() == headers.ID()
		case operators.In:
			return call.Args()[1].ID() == headers.ID()
		}
	}
	return false
}

func isHeaders(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "headers" }

func literal(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// sizes tells the cost estimate how large what a predicate reads may be.
type sizes struct{}

func (sizes) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	path := node.Path()
	switch {
	case len(path) == 1 && path[0] == "headers":
		return &cost.SizeEstimate{Max: 1 << 10}
	case len(path) == 1 && (path[0] == "topic" || path[0] == "from" || path[0] == "to"):
		return &cost.SizeEstimate{Max: 249}
	case len(path) > 0:
		return &cost.SizeEstimate{Max: MaxText}
	}
	return nil
}

func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// String is the predicate's text.
func (p *Predicate) String() string { return p.source }

// Match decides for one record. An error wraps ErrEvaluate.
func (p *Predicate) Match(in *Input) (bool, error) {
	out, err := p.eval(in)
	if err != nil {
		return false, err
	}
	matched, ok := out.(types.Bool)
	if !ok {
		return false, fmt.Errorf("%w: no truth value", ErrEvaluate)
	}
	return bool(matched), nil
}

func (p *Predicate) eval(in *Input) (ref.Val, error) {
	a := activation{in: in}
	if p.key {
		switch {
		case in.Key == nil:
			return nil, fmt.Errorf("%w: the key is null", ErrEvaluate)
		case len(in.Key) > MaxText:
			return nil, fmt.Errorf("%w: the key has %d bytes, more than %d", ErrEvaluate, len(in.Key), MaxText)
		case !utf8.Valid(in.Key):
			return nil, fmt.Errorf("%w: the key is not UTF-8", ErrEvaluate)
		}
	}
	if p.headers {
		var err error
		if a.headers, err = p.lastValues(in.Headers); err != nil {
			return nil, err
		}
	}
	out, details, err := p.program.Eval(&a)
	if err != nil {
		return nil, fmt.Errorf("%w: an operation failed", ErrEvaluate) // CEL's message may hold a value
	}
	if p.tracked {
		state := details.State()
		for _, id := range state.IDs() {
			if v, _ := state.Value(id); types.IsError(v) || types.IsUnknown(v) {
				return nil, fmt.Errorf("%w: an operation failed", ErrEvaluate)
			}
		}
	}
	return out, nil
}

// activation gives a program its variables.
type activation struct {
	in      *Input
	headers ref.Val
}

// ResolveName implements CEL's Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "key":
		return types.String(a.in.Key), true
	case "headers":
		return a.headers, a.headers != nil
	case "topic":
		return types.String(a.in.Topic), true
	case "from":
		return types.String(a.in.From), true
	case "to":
		return types.String(a.in.To), true
	}
	return nil, false
}

// Parent implements CEL's Activation.
func (a *activation) Parent() cel.Activation { return nil }
