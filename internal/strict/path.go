package strict

import "reflect"

// CheckPath reports whether a file that Decode would read into v could have a
// value at the path of keys. The error is a [*Error] without a position, with
// the nearest known name, as Decode gives it for the file. It serves sources of
// configuration that name one key at a time.
func CheckPath(v any, keys ...string) error {
	if err := checkPath(reflect.TypeOf(v), keys); err != nil {
		return err
	}
	return nil
}

func checkPath(t reflect.Type, keys []string) *Error {
	var path Path
	for _, key := range keys {
		path = path.And(key)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch {
		case t.Kind() == reflect.Map:
			t = t.Elem()
		case t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textUnmarshalerType):
			known := fieldNames(t)
			index, ok := known.index[key]
			if !ok {
				return unknownKey(path, key, known, reflect.Zero(t))
			}
			t = t.Field(index).Type
		default:
			return &Error{Path: path, Message: "unknown key: " + path[:len(path)-1].String() + " has no keys below it"}
		}
	}
	return nil
}

// unknownKey is the complaint about a key that the struct type of holder does
// not have.
func unknownKey(path Path, key string, known fieldSet, holder reflect.Value) *Error {
	if later, ok := holder.Interface().(Later); ok && later.Later()[key] != "" {
		return &Error{Path: path, Message: later.Later()[key]}
	}
	return &Error{Path: path, Message: "unknown key", Nearest: Nearest(key, known.names)}
}
