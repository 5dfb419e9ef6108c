package worker

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"reflect"
	"time"
)

// sizeOf estimates the bytes that hang on the variable at ptr; -1 where it is unknown or cannot be looked through until the time given.
// Unless nothing else runs (quiet), maps count by their length alone: to go through one that somebody writes to ends the process.
func sizeOf(ptr any, until time.Time, quiet bool) (n int64) {
	if ptr == nil {
		return -1
	}
	defer func() { // a value that changes while it is looked at
		if recover() != nil {
			n = -1
		}
	}()
	s := sizer{seen: map[uintptr]bool{}, until: until, quiet: quiet}
	v := reflect.ValueOf(ptr).Elem()
	s.add(int64(v.Type().Size()))
	s.walk(v)
	if s.gaveUp {
		return -1
	}
	return s.total
}

type sizer struct {
	seen   map[uintptr]bool
	total  int64
	steps  int
	until  time.Time
	gaveUp bool
	quiet  bool
}

func (s *sizer) add(n int64) { s.total += n }

func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Uintptr, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return true
	case reflect.Array:
		return flat(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !flat(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}

// walk adds what v refers to, v itself aside.
func (s *sizer) walk(v reflect.Value) {
	if s.gaveUp {
		return
	}
	if s.steps++; s.steps%1024 == 0 && time.Now().After(s.until) {
		s.gaveUp = true
		return
	}
	switch v.Kind() {
	case reflect.String:
		s.add(int64(v.Len()))
	case reflect.Slice:
		if v.IsNil() || s.seen[v.Pointer()] {
			return
		}
		s.seen[v.Pointer()] = true
		s.add(int64(v.Cap()) * int64(v.Type().Elem().Size()))
		if !flat(v.Type().Elem()) {
			for i := range v.Len() {
				s.walk(v.Index(i))
			}
		}
	case reflect.Array:
		if !flat(v.Type().Elem()) {
			for i := range v.Len() {
				s.walk(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			s.walk(v.Field(i))
		}
	case reflect.Pointer:
		if v.IsNil() || s.seen[v.Pointer()] {
			return
		}
		s.seen[v.Pointer()] = true
		s.add(int64(v.Type().Elem().Size()))
		s.walk(v.Elem())
	case reflect.Interface:
		if !v.IsNil() {
			e := v.Elem()
			if e.Kind() != reflect.Pointer {
				s.add(int64(e.Type().Size()))
			}
			s.walk(e)
		}
	case reflect.Map:
		if v.IsNil() || s.seen[v.Pointer()] {
			return
		}
		s.seen[v.Pointer()] = true
		t := v.Type()
		s.add(int64(v.Len()) * int64(t.Key().Size()+t.Elem().Size()+8))
		if !s.quiet || flat(t.Key()) && flat(t.Elem()) {
			return
		}
		for it := v.MapRange(); it.Next() && !s.gaveUp; {
			s.walk(it.Key())
			s.walk(it.Value())
		}
	}
}

var timeType = reflect.TypeFor[time.Time]()

// plain says whether values of t are data alone, so that they can be written and read back; the error names what is not.
func plain(t reflect.Type, seen map[reflect.Type]bool) error {
	if t == timeType || seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128, reflect.String:
		return nil
	case reflect.Slice, reflect.Array:
		return plain(t.Elem(), seen)
	case reflect.Map:
		if err := plain(t.Key(), seen); err != nil {
			return err
		}
		return plain(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				return fmt.Errorf("%s has the unexported field %s", t, f.Name)
			}
			if err := plain(f.Type, seen); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s is no plain data", t)
}

func save(ptr any) ([]byte, error) {
	if ptr == nil {
		return nil, fmt.Errorf("it is not in the worker")
	}
	v := reflect.ValueOf(ptr).Elem()
	if err := plain(v.Type(), map[reflect.Type]bool{}); err != nil {
		return nil, err
	}
	if (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.IsNil() {
		return []byte{}, nil
	}
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).EncodeValue(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func restore(ptr any, data []byte) error {
	if ptr == nil {
		return fmt.Errorf("it is not in the worker")
	}
	if len(data) == 0 {
		return nil
	}
	return gob.NewDecoder(bytes.NewReader(data)).DecodeValue(reflect.ValueOf(ptr))
}
