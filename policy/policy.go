package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/policy/chat"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
	shipped "github.com/soarbook/soarbook/policy/tiny"
	"github.com/soarbook/soarbook/policy/tokenizer"
)

// The built-in policies.
const (
	Tiny     = "tiny"         // shipped with soarbook, see package policy/tiny
	SmolLM2  = "smollm2-135m" // SmolLM2-135M-Instruct, fetched by `soarbook setup --policy smollm2-135m`
	Default  = Tiny           // used where none is named
	smolPath = "`soarbook setup --policy " + SmolLM2 + "`"
)

// ErrUnknown is what the error of [Open] wraps when there is no policy of the given name.
var ErrUnknown = errors.New("unknown policy")

// Names returns the names of the built-in policies, sorted.
func Names() []string { return []string{SmolLM2, Tiny} }

// Options says how a policy is opened. Start from [DefaultOptions].
type Options struct {
	Adapter string       // PEFT LoRA directory; "" for none
	Device  string       // see package device; "" is the best one here
	Logger  *slog.Logger // told what was opened where; nil is silent

	MaxBatch   int   // most completions sampled side by side; ≥ 1
	MaxContext int   // longest context, in tokens, ≥ 2; never more than the model was made for
	CacheBytes int64 // device memory for the keys and values of contexts to come; 0 keeps none
}

// DefaultOptions returns options for a machine of at least 8 GB.
func DefaultOptions() Options {
	return Options{MaxBatch: 16, MaxContext: 1 << 20, CacheBytes: 2 << 30}
}

// Validate reports the first option that cannot be used.
func (o Options) Validate() error {
	switch {
	case o.MaxBatch < 1:
		return fmt.Errorf("policy: MaxBatch is %d; use 1 or more (start from DefaultOptions)", o.MaxBatch)
	case o.MaxContext < 2:
		return fmt.Errorf("policy: MaxContext is %d; use 2 or more (start from DefaultOptions)", o.MaxContext)
	case o.CacheBytes < 0:
		return fmt.Errorf("policy: CacheBytes is %d; use 0 or more", o.CacheBytes)
	}
	return nil
}

// Stats counts what a policy has done since it was opened.
type Stats struct {
	PrefilledTokens int64   // context tokens that were computed
	ReusedTokens    int64   // context tokens of completions that did not have to be: a request's tokens are one or the other
	ScoredTokens    int64   // tokens whose log-probability was asked for
	DecodedTokens   int64   // sampled tokens
	Compilations    int     // compiled programs
	CompileSeconds  float64 // of which Seconds includes those that calls waited for
	Seconds         float64 // in Generate and LogProbs
	PrefillSeconds  float64 // of which reading contexts
	DecodeSeconds   float64 // of which sampling after the first token of each completion
	CachedRows      int     // contexts whose keys and values are kept
	CachedBytes     int64   // device memory of them
}

// Policy is a causal language model on a device. It satisfies rollout.Policy. Its methods are safe for concurrent use;
// those that compute wait for each other.
type Policy struct {
	name         string
	path         string // of its files
	config       checkpoint.Config
	tokenizer    *tokenizer.Tokenizer // nil for a directory without one
	template     *chat.Template       // nil for a model without one
	eos          []int32
	contextLimit int
	maxBatch     int
	readRows     int // contexts that are read side by side, if
	readTokens   int // that many tokens are enough to keep the device busy
	device       *device.Device

	turn   chan struct{} // holds one token while the engine is free
	engine *engine
	cache  *rowCache
	stats  Stats
}

// Open opens the policy of a built-in name (see [Names]), of a directory in Hugging Face layout, or of a GGUF file. It
// downloads nothing: a built-in policy that is not in the cache folder is an error that says how to get it.
func Open(ctx context.Context, name string, o Options) (*Policy, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return open(ctx, name, o, func() (*device.Device, error) { return device.Open(o.Device) })
}

func open(ctx context.Context, name string, o Options, openDevice func() (*device.Device, error)) (*Policy, error) {
	path, err := locate(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	defer c.Close() //nolint:errcheck // the weights are on the device; unmapping cannot lose anything
	p := &Policy{
		name: name, path: path, config: c.Config, contextLimit: min(c.Config.MaxPositions, o.MaxContext), maxBatch: o.MaxBatch,
		readRows: 4, readTokens: 256, turn: make(chan struct{}, 1),
	}
	if p.tokenizer, err = openTokenizer(c, path); err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	if p.tokenizer != nil && p.tokenizer.VocabSize() > c.Config.VocabSize {
		return nil, fmt.Errorf("policy %s: the tokenizer does not fit the model: its ids go up to %d, the model's vocabulary to %d; use the tokenizer.json that came with these weights", name, p.tokenizer.VocabSize()-1, c.Config.VocabSize-1)
	}
	if p.tokenizer != nil && p.tokenizer.ChatTemplate() != "" {
		p.template, err = chat.New(p.tokenizer.ChatTemplate(), chat.Tokens{Named: p.tokenizer.NamedTokens(), Special: p.tokenizer.SpecialTokens()})
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", name, err)
		}
	}
	p.findEOS()

	var lora *checkpoint.AdapterWeights
	if o.Adapter != "" {
		if lora, err = checkpoint.ReadAdapter(o.Adapter, c.Config); err != nil {
			return nil, fmt.Errorf("policy %s: %w", name, err)
		}
	}
	if p.device, err = openDevice(); err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	if p.device.HalfPrecision { // a GPU
		p.readRows, p.readTokens = 8, 2048
	}
	w, err := loadWeights(ctx, c, p.device)
	if err != nil {
		p.device.Close()
		return nil, err
	}
	if p.engine, err = newEngine(&p.config, w); err != nil {
		p.device.Close()
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	if lora != nil {
		if p.engine.adapter, err = loadAdapter(p.device.Backend, lora); err != nil {
			p.device.Close()
			return nil, fmt.Errorf("policy %s: %w", name, err)
		}
	}
	p.cache = &rowCache{limit: o.CacheBytes, bytes: p.engine.rowBytes}
	p.turn <- struct{}{}
	if o.Logger != nil {
		o.Logger.Info("policy opened", "policy", name, "architecture", c.Config.Architecture, "device", p.device.Name, "why", p.device.Reason)
		if unused := c.Unused(); len(unused) > 0 {
			o.Logger.Warn("the checkpoint holds tensors that its architecture does not use", "policy", name, "tensors", unused)
		}
	}
	return p, nil
}

// locate returns the path of a policy's files.
func locate(ctx context.Context, name string) (string, error) {
	switch name {
	case Tiny:
		return shipped.Ensure(ctx)
	case SmolLM2:
		dir, err := asset.Dir()
		if err != nil {
			return "", fmt.Errorf("policy %s: %w", name, err)
		}
		path := filepath.Join(dir, asset.SmolLM2Pin.Files[0].Path)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("policy %s: it is not in the cache folder: %w; run %s", name, err, smolPath)
		}
		return path, nil
	}
	if _, err := os.Stat(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%w %q: there is neither a built-in policy of that name (%s) nor such a directory", ErrUnknown, name, strings.Join(Names(), ", "))
		}
		return "", fmt.Errorf("policy %q: %w", name, err)
	}
	return name, nil
}

// openTokenizer returns the checkpoint's tokenizer, nil where it has none.
func openTokenizer(c *checkpoint.Checkpoint, path string) (*tokenizer.Tokenizer, error) {
	if vocab, ok := c.GGUFVocab(); ok {
		return tokenizer.FromGGUF(vocab)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, err
	}
	t, err := tokenizer.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return t, err
}

// findEOS collects the ids that end a completion, from the model and from its tokenizer.
func (p *Policy) findEOS() {
	for _, id := range p.config.EOS {
		p.eos = append(p.eos, int32(id))
	}
	if p.tokenizer != nil {
		if id, ok := p.tokenizer.EOS(); ok && !slices.Contains(p.eos, id) {
			p.eos = append(p.eos, id)
		}
	}
}

// Close releases the device and all that is on it. The policy must not be used afterwards.
func (p *Policy) Close() error {
	<-p.turn
	p.cache.drop(func(*row) bool { return true })
	p.engine.close()
	p.device.Close()
	return nil
}

// lock waits for the engine, as long as ctx allows.
func (p *Policy) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Policy) unlock() { p.turn <- struct{}{} }

// Stats returns what the policy has done so far; it waits for a call that is running.
func (p *Policy) Stats() Stats {
	<-p.turn
	defer p.unlock()
	s := p.stats
	s.Compilations, s.CompileSeconds = p.engine.compilations, p.engine.compileTime.Seconds()
	s.CachedRows, s.CachedBytes = len(p.cache.rows), p.cache.size
	return s
}

// Forget drops all cached keys and values.
func (p *Policy) Forget() {
	<-p.turn
	defer p.unlock()
	p.cache.drop(func(*row) bool { return true })
}

// String names the policy.
func (p *Policy) String() string { return p.name }

// Config returns the model's configuration.
func (p *Policy) Config() checkpoint.Config { return p.config }

// Device returns what the policy computes on.
func (p *Policy) Device() *device.Device { return p.device }

// ContextLimit returns the most tokens that context and completion may have together.
func (p *Policy) ContextLimit() int { return p.contextLimit }

// EOS returns the ids that end a completion.
func (p *Policy) EOS() []int32 { return slices.Clone(p.eos) }

// Tokenizer returns the policy's tokenizer, nil if it has none.
func (p *Policy) Tokenizer() *tokenizer.Tokenizer { return p.tokenizer }

// Encode returns the ids of t, without adding any. A policy without a tokenizer has none.
func (p *Policy) Encode(t sampling.Text) []int32 {
	if p.tokenizer == nil {
		return nil
	}
	return p.tokenizer.Encode(t)
}

// Decode returns the text of ids, special tokens written out; what is not UTF-8 becomes U+FFFD. A policy without a
// tokenizer has no text.
func (p *Policy) Decode(ids []int32) string {
	if p.tokenizer == nil {
		return ""
	}
	return tokenizer.Replace(p.tokenizer.Decode(ids))
}

// RenderChat renders messages with the model's own chat template. With addGenerationPrompt the text ends where the
// assistant's reply begins.
func (p *Policy) RenderChat(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error) {
	if p.template == nil {
		return nil, fmt.Errorf("policy %s: it has no chat template; use completion mode", p.name)
	}
	text, err := p.template.Render(messages, addGenerationPrompt)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.name, err)
	}
	return text, nil
}
