"""Writes policy/tiny/testdata/golden.json: what Transformers makes of the shipped policy `tiny`. Or compares a LoRA of it with peft.

    python3 -m venv VENV && VENV/bin/pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2
    VENV/bin/python tests/reference/tiny_golden.py [--model policy/tiny/model]
    VENV/bin/python tests/reference/tiny_golden.py --adapter RUN/checkpoint/adapter

AutoModelForCausalLM and AutoTokenizer open the folder as it is shipped. Written are the rendered chats with their ids and next-token
log-probabilities in float32, the greedy continuation of the first turn with the smallest distance between its best and second-best
logit, and the ids of texts (special tokens are recognized in them) by PreTrainedTokenizerFast, which is the class that the folder
names: AutoTokenizer of Transformers 5 takes Qwen2Tokenizer for any Qwen2 model, which puts Qwen2's pre-tokenizer and NFC in the place of
what tokenizer.json says; the texts that it encodes differently are listed. --adapter loads a PEFT directory that `soarbook train`
wrote on `tiny`, gives the same chats to peft and to `go run ./cmd/soarbook generate`, and exits 1 if log-probabilities differ by more than
1e-4, if the adapter changes none of them by more, or if greedy ids differ.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys

import peft
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

PINNED = {"torch": "2.15.0", "transformers": "5.24.0", "peft": "0.21.2"}
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GREEDY = 48  # tokens

TEXTS = [
    "", " ", "io.Copy", "https://pkg.go.dev/io#Copy", "Copy copies from src to dst until either EOF is reached on src or an error occurs.",
    "<search>buffered reader</search>", "<answer>bufio.NewReader</answer>", "<source>internal</source><answer>x</answer>", "<sear ch>", "< search>",
    "a passage that says <search>boo</search> and <answer>no</answer> itself", "<|im_start|>user\nhi<|im_end|>\n", "  two  spaces\n\n\tand a tab ",
    "crypto/sha256.Sum256", "d\u00e9j\u00e0 vu \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f4bb e\u0301", "x := []int{1, 22, 333} // don't", "https://pkg.go.dev/https://pkg.go.dev/",
    "Which function of the Go standard library is described by: reads until EOF? What is its uid?", "\u00a0nbsp\u2028ls",
]


def chats(tokenizer):
    """Episodes of both protocols. Their fixed parts are tokens of tiny's own, in the order in which cmd/tiny adds them."""
    fixed = [t.content for _, t in sorted(tokenizer.added_tokens_decoder.items()) if not t.special]
    soar, recall, searchr1 = fixed[:3]
    question = "Which function of the Go standard library is described by: copies from src to dst until EOF is reached? What is its uid?"
    observation = "".join(t for t in fixed if "recall" in t.lower() and t not in fixed[:4]) + "io.Copy https://pkg.go.dev/io#Copy"
    return [
        [("user", soar + question), ("assistant", "<search>copies from src to dst until EOF</search>"), ("user", observation),
         ("assistant", "<source>internal</source><answer>io.Copy</answer>")],
        [("user", recall + "copies from src to dst until EOF"), ("assistant", "io.Copy https://pkg.go.dev/io#Copy")],
        [("user", searchr1 + question), ("assistant", "<search>copies from src to dst</search>"), ("user", "nothing was found"),
         ("assistant", "<answer>io.Copy</answer>")],
    ]


def log_probs(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def greedy(model, ids, eos):
    """The continuation by generate, checked against a loop without a cache that also measures how close the second best was."""
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), do_sample=False, temperature=None, max_new_tokens=GREEDY, eos_token_id=eos)[0, len(ids):].tolist()
        margin, at = float("inf"), list(ids)
        for token in out:
            best = torch.topk(model(torch.tensor([at])).logits[0, -1].float(), 2)
            if best.indices[0].item() != token:
                sys.exit(f"generate took token {token}, the forward's best is {best.indices[0].item()}")
            margin = min(margin, (best.values[0] - best.values[1]).item())
            at.append(token)
    return out, margin


def rendered(tokenizer, chat, turns=None, generation=False):
    messages = [{"role": r, "content": c} for r, c in chat[:turns]]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
    return text, tokenizer(text, add_special_tokens=False).input_ids


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def golden(folder, tokenizer, model):
    out = {"versions": PINNED, "files": {n: sha256(os.path.join(folder, n)) for n in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")},
           "texts": [], "chats": []}
    as_written = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        ids, auto = (t(text, add_special_tokens=False).input_ids for t in (as_written, tokenizer))
        out["texts"].append({"text": text, "ids": ids, "auto_differs": ids != auto})
        if ids != auto:
            print(f"AutoTokenizer's {type(tokenizer).__name__} encodes {text!r} differently")
    for chat in chats(tokenizer):
        text, ids = rendered(tokenizer, chat)
        prompt_text, prompt = rendered(tokenizer, chat, 1, True)
        if ids != rendered(as_written, chat)[1]:
            sys.exit(f"AutoTokenizer's {type(tokenizer).__name__} encodes {text!r} differently")
        continuation, margin = greedy(model, prompt, tokenizer.eos_token_id)
        out["chats"].append({
            "messages": [{"role": r, "content": c} for r, c in chat], "text": text, "ids": ids, "log_probs": log_probs(model, ids),
            "prompt": prompt_text, "prompt_ids": prompt, "greedy_ids": continuation, "greedy_text": tokenizer.decode(continuation, skip_special_tokens=True),
            "greedy_margin": margin,
        })
    path = os.path.join(ROOT, "policy", "tiny", "testdata", "golden.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(out, f, indent=1, ensure_ascii=True)
        f.write("\n")
    for c in out["chats"]:
        print(f"{len(c['ids'])} ids, mean log-probability {sum(c['log_probs']) / len(c['log_probs']):.4f}, greedy margin {c['greedy_margin']:.4f}: {c['greedy_text']!r}")


def adapter(folder, directory, tokenizer, model):
    tuned = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), directory).eval()
    worst, changed = 0.0, 0.0
    for chat in chats(tokenizer):
        _, ids = rendered(tokenizer, chat)
        _, prompt = rendered(tokenizer, chat, 1, True)
        want, base = log_probs(tuned, ids), log_probs(model, ids)
        changed = max(changed, max(abs(a - b) for a, b in zip(want, base)))

        def soarbook(ids, tokens):
            command = ["go", "run", "./cmd/soarbook", "generate", "--policy", folder, "--adapter", directory, "--prompt-ids", ",".join(map(str, ids)),
                       "--max-tokens", str(tokens), "--temperature", "0", "--prompt-log-probs", "--json"]
            return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)

        got = soarbook(ids, 1)["prompt"]["log_probs"][1:]
        worst = max(worst, max(abs(a - b) for a, b in zip(got, want, strict=True)))
        want_ids, margin = greedy(tuned, prompt, tokenizer.eos_token_id)
        got_ids = soarbook(prompt, GREEDY)["completions"][0]["ids"]
        print(f"greedy margin {margin:.4f}: {tokenizer.decode(want_ids)!r}")
        if got_ids != want_ids:
            sys.exit(f"greedy ids differ: got {got_ids}, want {want_ids}")
    print(f"log-probabilities differ from peft's by {worst:.2e} at most; the adapter changes them by up to {changed:.2e}")
    if worst > 1e-4 or changed <= 1e-4:
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=os.path.join(ROOT, "policy", "tiny", "model"))
    parser.add_argument("--adapter")
    a = parser.parse_args()
    for module in (torch, transformers, peft):
        if module.__version__.split("+")[0] != PINNED[module.__name__]:
            sys.exit(f"{module.__name__} {module.__version__} is installed, want {PINNED[module.__name__]}")
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()
    if a.adapter:
        adapter(os.path.abspath(a.model), os.path.abspath(a.adapter), tokenizer, model)
    else:
        golden(a.model, tokenizer, model)


if __name__ == "__main__":
    main()
