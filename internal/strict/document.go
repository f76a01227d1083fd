package strict

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxBytes is the largest file that is read. No configuration is near it;
	// the limit bounds what a wrong path (a log, a database) can cost.
	MaxBytes = 1 << 20
	// MaxDepth bounds nesting, since the parser recurses.
	MaxDepth = 64
)

// Document is a parsed file. It is immutable and safe for concurrent use.
type Document struct {
	name  string
	root  *value
	lines []string // of the source, for places inside a text
}

// value is a node of the file reduced to what the accepted subset can hold.
type value struct {
	kind   kind
	at     Position
	text   string // the scalar's content without quotes
	scalar any    // int64, uint64, float64 or bool when kind is number or boolean
	keys   []mapKey
	items  []*value

	covered *mapKey // of the file, where the value was laid over it
}

type mapKey struct {
	name  string
	at    Position
	value *value
}

type kind uint8

const (
	null kind = iota
	text
	number
	boolean
	mapping
	list
	loose  // a text from outside the file, whose form the target decides
	broken // already reported; it causes no further errors
)

// String implements fmt.Stringer.
func (k kind) String() string {
	return [...]string{"nothing", "text", "a number", "true or false", "a map", "a list", "text", "an error"}[k]
}

// Decode reads src, which messages call name, into the value that into points
// to. Keys that the file does not have leave their fields as they are, so
// defaults are set beforehand. The error is a [*Errors]; into then holds what
// could be read and must not be used.
func Decode(name string, src []byte, into any) error {
	_, err := Read(name, src, into)
	return err
}

// Read is Decode for a caller that checks the result further: the document has the
// places of what is wrong with it. Overlays cover values of the file in their
// order, later ones win; what is wrong with them is among the errors, after what is
// wrong in the file, and their place is their source.
func Read(name string, src []byte, into any, overlays ...Overlay) (*Document, error) {
	d, errs := parse(name, src)
	if d != nil {
		var refused []*Error
		d, refused = d.over(into, overlays)
		errs.All = append(errs.All, refused...)
		// Values that parse refused are marked and pass silently, so the rest of
		// the file is checked in the same run.
		errs.All = append(errs.All, d.decode(into)...)
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	return d, nil
}

// CheckKind refuses a file whose member kind is another than the one wanted ("" for a file
// that has none): what is wrong with it is that it is another file, not each key that the
// wanted one does not have. A file without kind, or that cannot be read, passes: its reader
// finds more to say.
func CheckKind(name string, src []byte, want string) error {
	d, errs := parse(name, src)
	if d == nil || errs.err() != nil {
		return nil
	}
	have, ok := d.Map()["kind"].(string)
	if !ok || have == want {
		return nil
	}
	wanted := "a file of kind " + want
	if want == "" {
		wanted = "a configuration, which has no kind,"
	}
	return &Errors{All: []*Error{{Position: d.Position("kind"), Path: At("kind"), Message: fmt.Sprintf("wrong kind of file: this is %q, and %s is wanted here", have, wanted)}}}
}

// Parse reads the shape of a file. The error is a [*Errors]: the first syntax
// error, or every use of what this package refuses.
func Parse(name string, src []byte) (*Document, error) {
	d, errs := parse(name, src)
	if err := errs.err(); err != nil {
		return nil, err
	}
	return d, nil
}

// parse is Parse with the errors as a list that decoding may add to.
func parse(name string, src []byte) (d *Document, errs *Errors) {
	start := Position{File: name, Line: 1, Column: 1}
	refuse := func(at Position, format string, args ...any) (*Document, *Errors) {
		return nil, &Errors{All: []*Error{{Position: at, Message: fmt.Sprintf(format, args...)}}}
	}
	if len(src) > MaxBytes {
		return refuse(start, "file has %d bytes, at most %d are read", len(src), MaxBytes)
	}
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if at, ok := firstInvalid(src); !ok {
		at.File = name
		return refuse(at, "not UTF-8, or a character that YAML does not allow")
	}
	// The parser is another project's, and the file may be anybody's: a panic in
	// it is a file that cannot be read, not the end of a gateway.
	defer func() {
		if r := recover(); r != nil {
			d, errs = refuse(start, "not readable as YAML: %v", r)
		}
	}()

	tokens := joinPlain(lexer.Tokenize(string(src)))
	if tk := tooDeep(tokens); tk != nil {
		return refuse(position(name, tk), "nested deeper than %d levels", MaxDepth)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) && syntax.Token != nil {
			return refuse(position(name, syntax.Token), "%s", syntax.Message)
		}
		return refuse(start, "%v", err)
	}
	r := reader{name: name}
	return &Document{name: name, root: r.file(file), lines: strings.Split(string(src), "\n")}, &r.errs
}

// Position gives the place of the value at the path: of its key where it has
// one. A path that is not in the file gives the place of the nearest value above
// it that is, in the end that of the file's first value.
func (d *Document) Position(path ...any) Position {
	at, _ := d.lookup(path)
	return at
}

// Has reports whether the file has a value at the path.
func (d *Document) Has(path ...any) bool {
	_, found := d.lookup(path)
	return found
}

func (d *Document) lookup(path []any) (Position, bool) {
	v, at := d.root, d.root.at
	for _, element := range path {
		next, place := v.child(element)
		if next == nil {
			return at, false
		}
		v, at = next, place
	}
	return at, true
}

func (v *value) child(element any) (*value, Position) {
	switch x := element.(type) {
	case string:
		for _, k := range v.keys {
			if k.name == x {
				return k.value, k.at
			}
		}
	case int:
		if x >= 0 && x < len(v.items) {
			return v.items[x], v.items[x].at
		}
	}
	return nil, Position{}
}

// Map gives the file as plain maps, lists, strings, numbers and booleans. A file
// without content is an empty map.
func (d *Document) Map() map[string]any {
	if m, ok := d.root.plain().(map[string]any); ok {
		return m
	}
	return map[string]any{}
}

func (v *value) plain() any {
	switch v.kind {
	case mapping:
		m := make(map[string]any, len(v.keys))
		for _, k := range v.keys {
			m[k.name] = k.value.plain()
		}
		return m
	case list:
		items := make([]any, len(v.items))
		for i, item := range v.items {
			items[i] = item.plain()
		}
		return items
	case number, boolean:
		return v.scalar
	case text, loose:
		return v.text
	}
	return nil
}

// firstInvalid finds bytes that no text file has: broken UTF-8, control
// characters, a carriage return alone. The parser would replace or skip them or
// count lines as no editor does, and what is then read is not what the file says.
func firstInvalid(src []byte) (Position, bool) {
	at := Position{Line: 1, Column: 1}
	for len(src) > 0 {
		r, n := utf8.DecodeRune(src)
		if r == utf8.RuneError && n == 1 || r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f || r == '\ufeff' ||
			r == '\r' && (len(src) == 1 || src[1] != '\n') {
			return at, false
		}
		at.Column++
		if r == '\n' {
			at.Line, at.Column = at.Line+1, 1
		}
		src = src[n:]
	}
	return at, true
}

// tooDeep finds the token at which nesting passes MaxDepth before the recursive
// parser sees it. Nesting by indentation costs a file the square of its depth,
// so the size limit bounds it (and reader.value counts it exactly); nesting by
// brackets and by chains of indicators ("- - -") is bounded here.
func tooDeep(tokens token.Tokens) *token.Token {
	brackets, chain := 0, 0
	for _, tk := range tokens {
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		}
		switch tk.Type {
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType, token.MappingValueType:
			chain++
		default:
			chain = 0
		}
		if brackets > MaxDepth || chain > MaxDepth {
			return tk
		}
	}
	return nil
}

// joinPlain makes one token again of a plain scalar with a colon inside, such as
// host:port, that the scanner has split: inside a flow map it takes every colon
// for the end of a key. YAML 1.2 (7.3.3) lets only a colon before a space or a
// flow indicator end a plain key.
func joinPlain(tokens token.Tokens) token.Tokens {
	var out token.Tokens
	for i := 0; i < len(tokens); i++ {
		tk := tokens[i]
		for i+2 < len(tokens) && plain(tk) && tokens[i+1].Type == token.MappingValueType && plain(tokens[i+2]) &&
			touch(tk, tokens[i+1]) && touch(tokens[i+1], tokens[i+2]) {
			text := tk.Value + ":" + tokens[i+2].Value
			tk = token.String(text, text, tk.Position)
			i += 2
		}
		out.Add(tk)
	}
	return out
}

// plain reports whether a token is a scalar without quotes.
func plain(tk *token.Token) bool {
	switch tk.Type {
	case token.StringType, token.IntegerType, token.FloatType, token.BoolType, token.NullType,
		token.BinaryIntegerType, token.OctetIntegerType, token.HexIntegerType:
		return true
	}
	return false
}

// touch reports whether b begins in the column after a's last.
func touch(a, b *token.Token) bool {
	return a.Position.Line == b.Position.Line && a.Position.Column+utf8.RuneCountInString(a.Value) == b.Position.Column
}

func position(name string, tk *token.Token) Position {
	p := Position{File: name, Line: 1, Column: 1}
	if tk != nil && tk.Position != nil {
		p.Line, p.Column = max(1, tk.Position.Line), max(1, tk.Position.Column)
	}
	return p
}

// reader reduces the parser's tree to values and reports what is refused.
type reader struct {
	name string
	errs Errors
}

func (r *reader) refuse(at Position, path Path, format string, args ...any) *value {
	r.errs.All = append(r.errs.All, &Error{Position: at, Path: path, Message: fmt.Sprintf(format, args...)})
	return &value{kind: broken, at: at}
}

func (r *reader) file(f *ast.File) *value {
	var root *value
	for _, doc := range f.Docs {
		if doc.Body == nil && root != nil {
			continue
		}
		if directive, ok := doc.Body.(*ast.DirectiveNode); ok {
			r.refuse(position(r.name, directive.GetToken()), nil, "directives are not accepted")
			continue
		}
		if root != nil && root.kind != null {
			at := position(r.name, doc.Start)
			if doc.Start == nil {
				at = position(r.name, first(doc.Body))
			}
			r.refuse(at, nil, "a second document; the file must hold one")
			continue
		}
		root = r.value(doc.Body, nil)
	}
	if root == nil {
		root = &value{}
	}
	if root.at.Line == 0 {
		root.at = Position{File: r.name, Line: 1, Column: 1}
	}
	return root
}

// first gives the token at which a node begins. A block map's own token is the
// colon of its first entry, which is not where people look.
func first(n ast.Node) *token.Token {
	switch x := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !x.IsFlowStyle && len(x.Values) > 0 {
			return first(x.Values[0])
		}
	case *ast.MappingValueNode:
		return first(x.Key)
	}
	return n.GetToken()
}

func (r *reader) value(n ast.Node, path Path) *value {
	if n == nil {
		return &value{kind: null}
	}
	at := position(r.name, first(n))
	if len(path) > MaxDepth {
		return r.refuse(at, path[:1], "nested deeper than %d levels", MaxDepth)
	}
	switch x := n.(type) {
	case *ast.NullNode:
		return &value{kind: null, at: at}
	case *ast.StringNode:
		return &value{kind: text, at: at, text: x.Value}
	case *ast.LiteralNode:
		return &value{kind: text, at: at, text: x.Value.Value}
	case *ast.BoolNode:
		return &value{kind: boolean, at: at, text: x.Token.Value, scalar: x.Value}
	case *ast.IntegerNode:
		return &value{kind: number, at: at, text: x.Token.Value, scalar: x.Value}
	case *ast.FloatNode:
		return &value{kind: number, at: at, text: x.Token.Value, scalar: x.Value}
	case *ast.InfinityNode, *ast.NanNode:
		return r.refuse(at, path, "a number must be finite")
	case *ast.AliasNode:
		return r.refuse(at, path, "aliases are not accepted; write the value out")
	case *ast.AnchorNode:
		return r.refuse(at, path, "anchors are not accepted; write the value out where it is used")
	case *ast.TagNode:
		return r.refuse(at, path, "tags are not accepted")
	case *ast.MappingNode:
		return r.mapping(at, x.Values, path)
	case *ast.MappingValueNode:
		return r.mapping(at, []*ast.MappingValueNode{x}, path)
	case *ast.SequenceNode:
		v := &value{kind: list, at: at}
		for i, item := range x.Values {
			v.items = append(v.items, r.item(item, path.And(i), at))
		}
		return v
	}
	return r.refuse(at, path, "%s is not accepted here", n.Type())
}

// item reads an element of a list; one without a token of its own (an empty
// entry) takes the list's place.
func (r *reader) item(n ast.Node, path Path, parent Position) *value {
	v := r.value(n, path)
	if v.at.Line == 0 {
		v.at = parent
	}
	return v
}

func (r *reader) mapping(at Position, entries []*ast.MappingValueNode, path Path) *value {
	v := &value{kind: mapping, at: at}
	seen := make(map[string]Position, len(entries))
	for _, entry := range entries {
		keyAt := position(r.name, first(entry.Key))
		name, ok := r.key(entry.Key, keyAt, path)
		if !ok {
			continue
		}
		keyPath := path.And(name)
		child := r.item(entry.Value, keyPath, keyAt)
		if earlier, twice := seen[name]; twice {
			r.refuse(keyAt, keyPath, "duplicate key, first given in line %d", earlier.Line)
			continue
		}
		seen[name] = keyAt
		v.keys = append(v.keys, mapKey{name: name, at: keyAt, value: child})
	}
	return v
}

// key reads a key, which must be text: `1:` and `true:` would be equal to
// "1" and "true" in one reader and different in another.
func (r *reader) key(n ast.MapKeyNode, at Position, path Path) (string, bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.MergeKeyNode:
		r.refuse(at, path, "merge keys are not accepted; write the values out")
	case *ast.MappingKeyNode:
		if s, ok := x.Value.(*ast.StringNode); ok {
			return s.Value, true
		}
		r.refuse(at, path, "a key must be text")
	case *ast.AliasNode, *ast.AnchorNode:
		r.refuse(at, path, "anchors and aliases are not accepted as keys")
	default:
		r.refuse(at, path, "a key must be text; quote it")
	}
	return "", false
}
