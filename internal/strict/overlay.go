package strict

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Overlay is one value that does not come from the file but from a variable or a
// flag, and that covers what the file says.
type Overlay struct {
	// Source names in messages where the value comes from, such as
	// $GEOGATE_HTTP__LISTEN or --set.
	Source string
	// Path are the keys that lead to the value.
	Path []string
	// Text is the value. It is read as the type at the path needs it: true and 8 are
	// text for a name and none for a switch and a number; a list is split at commas;
	// an empty text is false, 0 or no elements.
	Text string
}

// over lays the overlays over the document; later ones win. Those whose path
// cannot be in a file for into are errors instead.
func (d *Document) over(into any, overlays []Overlay) (*Document, []*Error) {
	var errs []*Error
	out := *d
	for _, o := range overlays {
		at := Position{File: o.Source}
		if err := checkPath(reflect.TypeOf(into), o.Path); err != nil {
			err.Position = at
			errs = append(errs, err)
			continue
		}
		out.root = out.root.over(mapKey{at: out.root.at, value: out.root}, o.Path, &value{kind: loose, at: at, text: o.Text})
	}
	return &out, errs
}

// over gives a copy of v, which old leads to, in which the path leads to the leaf.
// What the leaf covers stays below it and is checked with it: a mistake in a file is
// one also where it has no effect.
func (v *value) over(old mapKey, path []string, leaf *value) *value {
	if len(path) == 0 {
		covering := *leaf
		if v != nil {
			covering.covered = &old
		}
		return &covering
	}
	next := value{kind: mapping, at: leaf.at}
	if v != nil && v.kind == mapping {
		next = *v
		next.keys = slices.Clone(v.keys)
	} else if v != nil && v.kind == null {
		next.at = v.at
	} else if v != nil {
		next.covered = &old
	}
	i := slices.IndexFunc(next.keys, func(k mapKey) bool { return k.name == path[0] })
	if i < 0 {
		var none *value
		next.keys = append(next.keys, mapKey{name: path[0], at: leaf.at, value: none.over(mapKey{}, path[1:], leaf)})
		return &next
	}
	k := &next.keys[i]
	below := k.value.over(*k, path[1:], leaf)
	if below.at == leaf.at {
		k.at = leaf.at // nothing of the file is in force here
	}
	k.value = below
	return &next
}

// as gives a text from outside the file the form that the type needs. A text that
// does not have it stays one, for the decoder to refuse.
func (v *value) as(t reflect.Type) *value {
	out := &value{kind: text, at: v.at, text: v.text}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == durationType || reflect.PointerTo(t).Implements(textUnmarshalerType) {
		return out
	}
	switch t.Kind() {
	case reflect.Bool:
		if b, err := strconv.ParseBool(cmp.Or(v.text, "false")); err == nil {
			out.kind, out.scalar = boolean, b
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n, err := strconv.ParseInt(cmp.Or(v.text, "0"), 0, 64); err == nil {
			out.kind, out.scalar = number, n
		}
	case reflect.Float32, reflect.Float64:
		if f, err := strconv.ParseFloat(cmp.Or(v.text, "0"), 64); err == nil {
			out.kind, out.scalar = number, f
		}
	case reflect.Slice:
		out.kind = list
		if v.text == "" {
			break
		}
		for part := range strings.SplitSeq(v.text, ",") {
			out.items = append(out.items, &value{kind: loose, at: v.at, text: part})
		}
	}
	return out
}
