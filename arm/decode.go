package arm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// decode reads canonical JSON into the struct v, strictly: an unknown key, a missing one and a wrong type are errors with the key's
// path. A field's key is its tag `key`; ",optional" after it leaves the field as it is where the key is missing. Embedded structs
// share their parent's object, pointers to structs are optional objects.
func decode(path string, raw []byte, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		if d, ok := v.Interface().(interface{ setDefaults() }); ok {
			d.setDefaults()
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil || bytes.Equal(raw, []byte("null")) {
			return fmt.Errorf("%s: got %s, want %s", path, shorten(raw), kindName(v.Type()))
		}
		return nil
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil || keys == nil {
		return fmt.Errorf("%s: got %s, want an object", orRoot(path), shorten(raw))
	}
	known := map[string]field{}
	fields(v, known)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		f, ok := known[key]
		if !ok {
			return fmt.Errorf("%s: unknown key; %s takes %s", join(path, key), orRoot(path), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := decode(join(path, key), keys[key], f.value); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		if _, ok := keys[key]; !ok && !known[key].optional {
			return fmt.Errorf("%s: missing; want %s", join(path, key), kindName(known[key].value.Type()))
		}
	}
	return nil
}

type field struct {
	value    reflect.Value
	optional bool
}

func fields(v reflect.Value, all map[string]field) {
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if t.Anonymous {
			fields(v.Field(i), all)
			continue
		}
		if key, option, _ := strings.Cut(t.Tag.Get("key"), ","); key != "" {
			all[key] = field{v.Field(i), option == "optional"}
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func orRoot(path string) string {
	if path == "" {
		return "the config"
	}
	return path
}

// shorten quotes a value in an error.
func shorten(raw []byte) string {
	const most = 60
	if r := []rune(string(raw)); len(r) > most {
		return string(r[:most]) + "…"
	}
	return string(raw)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of 0 or more"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array of strings"
	}
	return "an object"
}

// settings lists the fields of a config struct by their keys.
func settings(v any) map[string]any {
	x := reflect.New(reflect.TypeOf(v)).Elem()
	x.Set(reflect.ValueOf(v))
	known, all := map[string]field{}, map[string]any{}
	fields(x, known)
	for key, f := range known {
		all[key] = f.value.Interface()
	}
	return all
}
