// Package checkpoint owns the files of a causal language model: it opens a Hugging Face directory (config.json and
// safetensors) or a GGUF file, checks that everything the architecture needs is there, and hands out the weights,
// memory-mapped, under one set of names and in one layout. It also reads PEFT (LoRA) adapters and writes safetensors.
//
// Names and layout are those of Hugging Face Transformers: "model.layers.3.self_attn.q_proj.weight" has shape
// [out, in], and q and k are in the half-split RoPE layout (rotate_half), whatever the file's own names and layout.
//
// The package imports no tensor library: it deals in bytes, []float32 and bfloat16 bits, so that tools which only look at a
// checkpoint stay small. It reads both formats itself, because go-huggingface v0.4.0 does not fit: its safetensors reader
// takes a hub.Repo and gives GoMLX tensors, checks neither offsets against the file nor sizes against shapes nor duplicate
// names (a truncated file is a slice panic); its GGUF reader copies through read(2) into GoMLX tensors and keeps its
// dequantization unexported. The dequantization here is checked against ggml's own Python package (testdata/dequant).
//
// Departures from Transformers, all refusals by name instead of a silent difference: architectures other than
// Qwen2ForCausalLM, Qwen3ForCausalLM and LlamaForCausalLM; RoPE types other than default and llama3; sliding windows;
// attention_bias and mlp_bias; quantized safetensors; weights that are neither float32, float16 nor bfloat16.
//
// Formats: safetensors (https://github.com/huggingface/safetensors#format), GGUF
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), PEFT
// (https://huggingface.co/docs/peft/developer_guides/checkpoint).
package checkpoint
