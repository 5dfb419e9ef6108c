"""Loads an adapter that `soarbook train` wrote in peft and compares its log-probabilities with soarbook's.

    python3 -m venv VENV && VENV/bin/pip install -r bench/trl/requirements.txt
    VENV/bin/python tests/reference/peft_check.py RUN/checkpoint/adapter [--policy policy/tiny/model]

Run it from the repository root. 64 random ids go through `soarbook generate --adapter DIR --prompt-log-probs` and through
AutoModelForCausalLM with peft. Exits 1 if a log-probability differs by more than 1e-4, or if the adapter changes none of them by ten times that.
"""
import argparse
import json
import random
import subprocess

import peft
import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("adapter")
parser.add_argument("--policy", default="policy/tiny/model")
args = parser.parse_args()

model = transformers.AutoModelForCausalLM.from_pretrained(args.policy, dtype=torch.float32).eval()
rng = random.Random(1)
ids = [rng.randrange(model.config.vocab_size) for _ in range(64)]


def log_probs(m):
    with torch.no_grad():
        table = m(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return [table[t, ids[t + 1]].item() for t in range(len(ids) - 1)]


base = log_probs(model)
want = log_probs(peft.PeftModel.from_pretrained(model, args.adapter).eval())
out = subprocess.run(["go", "run", "./cmd/soarbook", "generate", "--policy", args.policy, "--adapter", args.adapter, "--max-tokens", "1", "--temperature", "0",
                      "--prompt-ids", ",".join(map(str, ids)), "--prompt-log-probs", "--json"], check=True, stdout=subprocess.PIPE)
got = json.loads(out.stdout)["prompt"]["log_probs"][1:]
worst = max(abs(g - w) for g, w in zip(got, want, strict=True))
moved = max(abs(b - w) for b, w in zip(base, want, strict=True))
print(f"{len(got)} log-probabilities: soarbook and peft {peft.__version__} (Transformers {transformers.__version__}) differ by at most {worst:.2g} nats; "
      f"the adapter moves them by up to {moved:.2g}")
raise SystemExit(worst > 1e-4 or moved < 1e-3)
