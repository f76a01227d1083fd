package expr

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/geogate/geogate/internal/event"
)

// fold gives a header's name without regard to the case of ASCII letters: HTTP
// lower-cases names on the way, other producers do not, and a rule must not depend
// on which way a record came.
func fold(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= 'A' && c <= 'Z' {
			b := []byte(name)
			for ; i < len(b); i++ {
				if b[i] >= 'A' && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return name
}

// lastValues is the record's headers as a predicate sees them, by folded name: of
// those with one name the last. A value that is no text, and a name that comes in
// two spellings, are errors for whoever asks for that name, or for all of them.
func (p *Predicate) lastValues(hs []event.Header) (ref.Val, error) {
	values := make(map[ref.Val]ref.Val, len(hs))
	spelled := make(map[string]string, len(hs))
	twice, unreadable := make(map[string]bool), make(map[string]bool)
	for i := range hs {
		name := hs[i].Key
		if strings.HasPrefix(name, ownName) {
			continue
		}
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("%w: a header's name is not UTF-8", ErrEvaluate)
		}
		folded := fold(name)
		if before, known := spelled[folded]; known && before != name {
			twice[folded] = true
		}
		spelled[folded] = name
		v := hs[i].Value
		if unreadable[folded] = v == nil || len(v) > MaxText || !utf8.Valid(v); unreadable[folded] {
			v = nil // who tests for the name does not look at it
		}
		values[types.String(folded)] = types.String(v)
	}
	return headerMap{types.NewRefValMap(types.DefaultTypeAdapter, values)}, p.doubt(spelled, twice, unreadable)
}

// doubt is why a predicate cannot be decided by the headers: spelled are the names
// that there are, twice those in two spellings, unreadable those of no text.
func (p *Predicate) doubt(spelled map[string]string, twice, unreadable map[string]bool) error {
	for _, name := range p.named {
		if twice[name] {
			return fmt.Errorf("%w: header %q comes in two spellings", ErrEvaluate, name)
		}
	}
	for _, name := range p.needed {
		if _, ok := spelled[name]; !ok {
			return fmt.Errorf("%w: header %q is missing and not tested for", ErrEvaluate, name)
		}
	}
	if p.whole && len(twice) > 0 {
		return fmt.Errorf("%w: a header comes in two spellings, and all are looked at", ErrEvaluate)
	}
	for _, bad := range unreadable {
		if p.whole && bad {
			return fmt.Errorf("%w: a header is no text, and all are looked at", ErrEvaluate)
		}
	}
	for _, name := range p.read {
		if unreadable[name] {
			return fmt.Errorf("%w: header %q is no text", ErrEvaluate, name)
		}
	}
	return nil
}

// headerMap is a map of headers by folded name: whoever asks may spell a name in any
// case.
type headerMap struct{ traits.Mapper }

func foldKey(key ref.Val) ref.Val {
	if s, ok := key.(types.String); ok {
		return types.String(fold(string(s)))
	}
	return key
}

// Contains implements traits.Container.
func (m headerMap) Contains(key ref.Val) ref.Val { return m.Mapper.Contains(foldKey(key)) }

// Find implements traits.Mapper.
func (m headerMap) Find(key ref.Val) (ref.Val, bool) { return m.Mapper.Find(foldKey(key)) }

// Get implements traits.Indexer.
func (m headerMap) Get(key ref.Val) ref.Val { return m.Mapper.Get(foldKey(key)) }

// Equal implements ref.Val: names are compared folded, values byte for byte. A map
// with two spellings of one name equals no record's headers.
func (m headerMap) Equal(other ref.Val) ref.Val {
	o, ok := other.(traits.Mapper)
	if !ok || o.Size() != m.Size() {
		return types.False
	}
	seen := make(map[ref.Val]bool)
	for it := o.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		folded := foldKey(key)
		have, found := m.Mapper.Find(folded)
		if !found || seen[folded] || have.Equal(o.Get(key)) != types.True {
			return types.False
		}
		seen[folded] = true
	}
	return types.True
}
