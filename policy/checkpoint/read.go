package checkpoint

import (
	"errors"
	"fmt"
)

// ReadSafetensors reads all tensors of a safetensors file, by name, as float32.
func ReadSafetensors(path string) (tensors map[string][]float32, err error) {
	f, all, err := openSafetensors(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	tensors = map[string][]float32{}
	for name, t := range all {
		x := make([]float32, t.Len())
		if err := t.ReadFloat32(x); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		tensors[name] = x
	}
	return tensors, nil
}
