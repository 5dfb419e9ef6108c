package policy

import (
	"fmt"
	"strings"

	"github.com/gomlx/compute"

	"github.com/soarbook/soarbook/policy/checkpoint"
)

// adapter is a LoRA adapter on the device.
type adapter struct {
	scale   float64
	buffers map[string][2]compute.Buffer // A [in, r] and B [r, out], float32, by [linearName]
	ranks   map[string]int               // r, by linearName
}

// linearName is the name of a linear's weight in the checkpoint.
func linearName(layer int, linear string) string {
	return checkpoint.LayerPrefix(layer) + linear + ".weight"
}

func loadAdapter(backend compute.Backend, a *checkpoint.Adapter) (*adapter, error) {
	l := &adapter{scale: a.Config.Scale(), buffers: map[string][2]compute.Buffer{}, ranks: map[string]int{}}
	for _, lora := range a.LoRAs {
		down, err := uploadTensor(backend, lora.A, false, true)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("adapter %s: load %s: %w", a.Path(), lora.A.Name, err)
		}
		up, err := uploadTensor(backend, lora.B, false, true)
		if err != nil {
			free(down)
			l.close()
			return nil, fmt.Errorf("adapter %s: load %s: %w", a.Path(), lora.B.Name, err)
		}
		name := linearName(lora.Layer, lora.Linear.Name)
		l.buffers[name] = [2]compute.Buffer{down, up}
		l.ranks[name] = lora.A.Shape[0]
	}
	return l, nil
}

// signature describes the adapter of a layer, so that layers of the same kind share programs; "" is none.
func (l *adapter) signature(cfg *checkpoint.Config, layer int) string {
	if l == nil {
		return ""
	}
	var parts []string
	for i, linear := range cfg.Linears() {
		if r, ok := l.ranks[linearName(layer, linear.Name)]; ok {
			parts = append(parts, fmt.Sprintf("%d:%d", i, r))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("lora %g(%s)", l.scale, strings.Join(parts, " "))
}

func (l *adapter) close() {
	if l == nil {
		return
	}
	for _, b := range l.buffers {
		free(b[0], b[1])
	}
	clear(l.buffers)
}
