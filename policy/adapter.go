package policy

import (
	"context"
	"fmt"
	"strings"

	"github.com/gomlx/compute"

	"github.com/soarbook/soarbook/policy/checkpoint"
)

// adapter is a LoRA adapter on the device.
type adapter struct {
	config  checkpoint.AdapterConfig
	updates []checkpoint.Update // without A and B, which are on the device
	scale   float64
	buffers map[string][2]compute.Buffer // A [in, r] and B [r, out], float32, by [linearName]
	ranks   map[string]int               // r, by linearName
}

// linearName is the name of a linear's weight in the checkpoint.
func linearName(layer int, linear string) string {
	return checkpoint.LayerPrefix(layer) + linear + ".weight"
}

func updateName(u checkpoint.Update) string { return linearName(u.Layer, u.Linear.Name) }

// loadAdapter copies an adapter that fits the model to the device.
func loadAdapter(backend compute.Backend, w *checkpoint.AdapterWeights) (*adapter, error) {
	l := &adapter{config: w.Config, scale: w.Config.Scale(), buffers: map[string][2]compute.Buffer{}, ranks: map[string]int{}}
	r := w.Config.Rank
	for _, u := range w.Updates {
		down, err := upload(backend, transpose(u.A, r, u.Linear.In), u.Linear.In, r)
		if err != nil {
			l.close()
			return nil, err
		}
		up, err := upload(backend, transpose(u.B, u.Linear.Out, r), r, u.Linear.Out)
		if err != nil {
			free(down)
			l.close()
			return nil, err
		}
		name := updateName(u)
		l.buffers[name] = [2]compute.Buffer{down, up}
		l.ranks[name] = r
		u.A, u.B = nil, nil
		l.updates = append(l.updates, u)
	}
	return l, nil
}

// weights copies the adapter to the host.
func (l *adapter) weights() (*checkpoint.AdapterWeights, error) {
	w := &checkpoint.AdapterWeights{Config: l.config}
	r := l.config.Rank
	for _, u := range l.updates {
		ab := l.buffers[updateName(u)]
		a, err := download[float32](ab[0], u.Linear.In*r)
		if err != nil {
			return nil, err
		}
		b, err := download[float32](ab[1], r*u.Linear.Out)
		if err != nil {
			return nil, err
		}
		u.A, u.B = transpose(a, u.Linear.In, r), transpose(b, r, u.Linear.Out)
		w.Updates = append(w.Updates, u)
	}
	return w, nil
}

// transpose returns x [rows, columns] as [columns, rows].
func transpose(x []float32, rows, columns int) []float32 {
	y := make([]float32, len(x))
	for i := range rows {
		for j := range columns {
			y[j*rows+i] = x[i*columns+j]
		}
	}
	return y
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

// SetAdapter puts a LoRA adapter on the policy, in place of the one that it has; nil takes it off. The model's weights stay
// where they are. What was cached with the former adapter is forgotten, what was cached without any is kept. w is copied.
func (p *Policy) SetAdapter(ctx context.Context, w *checkpoint.AdapterWeights) error {
	if w != nil {
		if err := w.Check(p.config); err != nil {
			return fmt.Errorf("policy %s: set adapter: %w", p.name, err)
		}
	}
	if err := p.lock(ctx); err != nil {
		return fmt.Errorf("policy %s: set adapter: %w", p.name, err)
	}
	defer p.unlock()
	var next *adapter
	if w != nil {
		var err error
		if next, err = loadAdapter(p.device.Backend, w); err != nil {
			return fmt.Errorf("policy %s: set adapter: %w", p.name, err)
		}
	}
	former := p.engine.adapter
	if former != nil {
		p.cache.drop(func(r *row) bool { return !r.base })
	}
	for _, r := range p.cache.rows {
		r.base = next != nil // without an adapter there is one kind of row
	}
	p.engine.adapter = next
	former.close()
	return nil
}

// Adapter returns a copy of the policy's LoRA adapter, nil if it has none. [checkpoint.WriteAdapter] writes it.
func (p *Policy) Adapter(ctx context.Context) (*checkpoint.AdapterWeights, error) {
	if err := p.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: adapter: %w", p.name, err)
	}
	defer p.unlock()
	if p.engine.adapter == nil {
		return nil, nil
	}
	w, err := p.engine.adapter.weights()
	if err != nil {
		return nil, fmt.Errorf("policy %s: adapter: %w", p.name, err)
	}
	return w, nil
}
