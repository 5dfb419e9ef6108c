"""Writes the golden files of this folder with the reference implementations of the formats.

python -m venv v && v/bin/pip install numpy==2.4.6 gguf==0.19.0 safetensors==0.8.0 && v/bin/python generate.py
"""
import numpy as np
import gguf
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

rng = np.random.default_rng(20261130)


def f16(n):
    """Finite halves of every size: normal, subnormal, zero, either sign."""
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-8, 1, n)).astype(np.float16)
    x[: n // 8] = 0
    return rng.permutation(x)


# Every quantization: random blocks (scales finite), and what ggml's own Python package makes of them.
halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
out = {}
for name, at in halves.items():
    block, size = gguf.GGML_QUANT_SIZES[Q[name]]
    blocks = 1024 // block
    raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    for a in at:
        raw[:, a:a + 2] = f16(blocks).view(np.uint8).reshape(blocks, 2)
    rows = raw.reshape(2, -1)
    out[name + ".blocks"] = rows
    out[name + ".values"] = gguf.quants.dequantize(rows, Q[name]).astype(np.float32)
save_file(out, "dequant.safetensors", {"made_by": "gguf 0.19.0"})

# A file with several types and shapes, for byte-for-byte comparison with WriteSafetensors.
save_file({
    "b.f32": np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5,
    "a.f16": np.arange(5, dtype=np.float16),
    "c.i64": np.array([-1, 2**40], dtype=np.int64),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "scalar": np.array(7, dtype=np.uint8),
    "ünï\"code\\": np.array([1.5], dtype=np.float64),
}, "python.safetensors", {"format": "pt"})

# A small model of GGUF's arch llama as llama.cpp's converter lays it out (q and k permuted), and the same in Hugging Face's layout.
layers, d, heads, kv, hd, ff, vocab = 2, 32, 4, 2, 8, 64, 40


def permute(w, n):  # LlamaModel.permute of convert_hf_to_gguf.py
    return w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


w = gguf.GGUFWriter("llama-small.gguf", "llama")
w.add_block_count(layers)
w.add_embedding_length(d)
w.add_feed_forward_length(ff)
w.add_head_count(heads)
w.add_head_count_kv(kv)
w.add_context_length(128)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(50000.0)
w.add_rope_dimension_count(hd)
w.add_vocab_size(vocab)
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("smollm")
w.add_token_list([f"t{i}" for i in range(vocab)])
w.add_token_types([3, 3] + [1] * (vocab - 2))
w.add_token_merges(["t 1", "t 2"])
w.add_bos_token_id(0)
w.add_eos_token_id(1)
w.add_eot_token_id(2)
w.add_add_bos_token(True)
w.add_chat_template("{{ messages }}")
hf = {}


def add(ggml, name, shape, q, heads=0):
    x = rng.standard_normal(shape).astype(np.float32)
    if q == Q.F32:
        stored = x
    elif q == Q.F16:
        stored = x.astype(np.float16)
    else:
        stored = gguf.quants.quantize(x, q)
    hf[name] = gguf.quants.dequantize(stored, q).astype(np.float32) if q not in (Q.F32, Q.F16) else stored.astype(np.float32)
    if heads:  # permuting rows and quantizing along them commute
        stored = permute(stored, heads)
    w.add_tensor(ggml, stored, raw_dtype=q)


add("token_embd.weight", "model.embed_tokens.weight", (vocab, d), Q.Q8_0)
for i in range(layers):
    g, h = f"blk.{i}.", f"model.layers.{i}."
    add(g + "attn_norm.weight", h + "input_layernorm.weight", (d,), Q.F32)
    add(g + "attn_q.weight", h + "self_attn.q_proj.weight", (heads * hd, d), [Q.Q4_1, Q.F32][i], heads)
    add(g + "attn_q.bias", h + "self_attn.q_proj.bias", (heads * hd,), Q.F32, heads)
    add(g + "attn_k.weight", h + "self_attn.k_proj.weight", (kv * hd, d), [Q.Q8_0, Q.F16][i], kv)
    add(g + "attn_k.bias", h + "self_attn.k_proj.bias", (kv * hd,), Q.F32, kv)
    add(g + "attn_v.weight", h + "self_attn.v_proj.weight", (kv * hd, d), Q.Q4_0)
    add(g + "attn_v.bias", h + "self_attn.v_proj.bias", (kv * hd,), Q.F32)
    add(g + "attn_output.weight", h + "self_attn.o_proj.weight", (d, heads * hd), Q.Q5_0)
    add(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", (d,), Q.F32)
    add(g + "ffn_gate.weight", h + "mlp.gate_proj.weight", (ff, d), Q.Q5_1)
    add(g + "ffn_up.weight", h + "mlp.up_proj.weight", (ff, d), Q.F16)
    add(g + "ffn_down.weight", h + "mlp.down_proj.weight", (d, ff), Q.Q4_1)
add("output_norm.weight", "model.norm.weight", (d,), Q.F32)
add("output.weight", "lm_head.weight", (vocab, d), Q.Q8_0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
save_file(hf, "llama-small.safetensors", {"made_by": "gguf 0.19.0"})
