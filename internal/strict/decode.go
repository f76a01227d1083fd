package strict

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// Later is implemented by a struct whose file form will get more keys. Such a
// key is an error that says what it waits for, instead of an unknown key.
type Later interface {
	// Later gives, for each key to come, the end of the sentence "<key> …",
	// such as "secrets are given in files only".
	Later() map[string]string
}

// Decode reads the document into the value that into points to, as the package
// function Decode does. It may be called several times with different values.
//
// Fields are matched by their `yaml` tag, and only those with a tag exist.
// Supported are structs and pointers to them, maps with text keys, lists, text,
// booleans, integers, floats, [time.Duration] (24h), types that implement
// [encoding.TextUnmarshaler] (among them [Size]) and any. An empty value counts
// as an empty struct, map or list and is an error for a scalar. Decode panics
// when into has another type: that is a mistake in the program.
func (d *Document) Decode(into any) error {
	errs := Errors{All: d.decode(into)}
	return errs.err()
}

func (d *Document) decode(into any) []*Error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		panic(fmt.Sprintf("strict: decode into %T, want a non-nil pointer", into))
	}
	dec := decoder{}
	dec.value(d.root, target.Elem(), nil, d.root.at)
	return dec.errs.All
}

type decoder struct{ errs Errors }

func (d *decoder) fail(at Position, path Path, format string, args ...any) {
	d.errs.All = append(d.errs.All, &Error{Position: at, Path: path, Message: fmt.Sprintf(format, args...)})
}

var (
	durationType        = reflect.TypeFor[time.Duration]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value reads v into target. At is the place that a complaint about v names:
// its key's if it has one.
func (d *decoder) value(v *value, target reflect.Value, path Path, at Position) {
	if c := v.covered; c != nil {
		d.value(c.value, reflect.New(target.Type()).Elem(), path, c.at) // for its mistakes
		uncovered := *v
		uncovered.covered = nil
		v = &uncovered
	}
	switch v.kind {
	case broken:
		return
	case loose:
		v = v.as(target.Type())
	}
	if target.CanAddr() && target.Addr().Type().Implements(textUnmarshalerType) {
		d.unmarshaler(v, target, path, at)
		return
	}
	if target.Type() == durationType {
		d.duration(v, target, path)
		return
	}
	switch target.Kind() {
	case reflect.Pointer:
		if v.kind == null {
			return
		}
		if target.IsNil() {
			target.Set(reflect.New(target.Type().Elem()))
		}
		d.value(v, target.Elem(), path, at)
	case reflect.Interface:
		if plain := v.plain(); plain != nil {
			target.Set(reflect.ValueOf(plain))
		}
	case reflect.Struct, reflect.Map, reflect.Slice:
		d.collection(v, target, path)
	default:
		d.scalar(v, target, path, at)
	}
}

func (d *decoder) collection(v *value, target reflect.Value, path Path) {
	want := mapping
	if target.Kind() == reflect.Slice {
		want = list
	}
	if v.kind != want && v.kind != null {
		d.fail(v.at, path, "want %s, have %s", want, v.describe())
		return
	}
	switch target.Kind() {
	case reflect.Struct:
		d.fields(v, target, path)
	case reflect.Map:
		// A map is replaced as a whole, so that a file can also drop a default.
		target.Set(reflect.MakeMapWithSize(target.Type(), len(v.keys)))
		for _, k := range v.keys {
			item := reflect.New(target.Type().Elem()).Elem()
			d.value(k.value, item, path.And(k.name), k.at)
			target.SetMapIndex(reflect.ValueOf(k.name).Convert(target.Type().Key()), item)
		}
	case reflect.Slice:
		target.Set(reflect.MakeSlice(target.Type(), len(v.items), len(v.items)))
		for i, item := range v.items {
			d.value(item, target.Index(i), path.And(i), item.at)
		}
	}
}

func (d *decoder) fields(v *value, target reflect.Value, path Path) {
	known := fieldNames(target.Type())
	for _, k := range v.keys {
		keyPath := path.And(k.name)
		index, ok := known.index[k.name]
		if ok {
			d.value(k.value, target.Field(index), keyPath, k.at)
			continue
		}
		e := unknownKey(keyPath, k.name, known, target)
		e.Position = k.at
		d.errs.All = append(d.errs.All, e)
	}
}

type fieldSet struct {
	names []string
	index map[string]int
}

// fieldNames lists the keys of a struct in the order of its fields.
func fieldNames(t reflect.Type) fieldSet {
	set := fieldSet{index: make(map[string]int, t.NumField())}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name == "" || name == "-" || !t.Field(i).IsExported() {
			continue
		}
		set.names = append(set.names, name)
		set.index[name] = i
	}
	return set
}

func (d *decoder) unmarshaler(v *value, target reflect.Value, path Path, at Position) {
	switch v.kind {
	case null:
		d.fail(at, path, "needs a value")
		return
	case mapping, list:
		d.fail(v.at, path, "want one value, have %s", v.describe())
		return
	}
	if err := target.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(v.text)); err != nil {
		d.fail(v.at, path, "%v", err)
	}
}

func (d *decoder) duration(v *value, target reflect.Value, path Path) {
	if v.kind != text {
		d.fail(v.at, path, "want a duration with a unit, like 30s or 24h, have %s", v.describe())
		return
	}
	t, err := time.ParseDuration(v.text)
	if err != nil {
		d.fail(v.at, path, "%q is not a duration, write one like 500ms, 30s or 24h", v.text)
		return
	}
	target.SetInt(int64(t))
}

func (d *decoder) scalar(v *value, target reflect.Value, path Path, at Position) {
	if v.kind == null {
		d.fail(at, path, "needs a value")
		return
	}
	wrong := func(want string) { d.fail(v.at, path, "want %s, have %s", want, v.describe()) }
	switch target.Kind() {
	case reflect.String:
		switch v.kind {
		case text:
			target.SetString(v.text)
		case number, boolean:
			d.fail(v.at, path, "want text, have %s; quote it", v.describe())
		default:
			wrong("text")
		}
	case reflect.Bool:
		if v.kind != boolean {
			wrong("true or false")
			return
		}
		target.SetBool(v.scalar.(bool))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := v.integer()
		if !ok {
			wrong("a whole number")
		} else if target.OverflowInt(n) {
			d.fail(v.at, path, "%s is out of range", v.text)
		} else {
			target.SetInt(n)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := v.integer()
		if !ok {
			wrong("a whole number")
		} else if n < 0 || target.OverflowUint(uint64(n)) {
			d.fail(v.at, path, "%s is out of range", v.text)
		} else {
			target.SetUint(uint64(n))
		}
	case reflect.Float32, reflect.Float64:
		f, ok := v.float()
		if !ok {
			wrong("a number")
			return
		}
		target.SetFloat(f)
	default:
		panic(fmt.Sprintf("strict: decode into %s", target.Type()))
	}
}

// integer gives a whole number. Numbers over 63 bits count as none: no key
// needs one.
func (v *value) integer() (int64, bool) {
	switch n := v.scalar.(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64
	}
	return 0, false
}

func (v *value) float() (float64, bool) {
	if f, ok := v.scalar.(float64); ok {
		return f, true
	}
	n, ok := v.integer()
	return float64(n), ok && v.kind == number
}

// describe names what was found, with a short scalar's own spelling.
func (v *value) describe() string {
	const longest = 40
	if v.kind != text && v.kind != number && v.kind != boolean || len(v.text) > longest {
		return v.kind.String()
	}
	if v.kind == text {
		return fmt.Sprintf("%q", v.text)
	}
	return v.text
}
