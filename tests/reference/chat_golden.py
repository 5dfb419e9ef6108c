"""Writes policy/chat/testdata/golden.json: conversations rendered by Transformers' apply_chat_template.

    python3 -m venv VENV && VENV/bin/pip install transformers==5.24.0 jinja2==3.1.6
    VENV/bin/python tests/reference/chat_golden.py [--check DIR]

Templates are policy/chat/testdata/*.jinja. --check renders every template of another folder too and writes that folder's
golden.json there instead (for templates that are not in the repository).
"""
import argparse
import datetime
import json
import os
import sys

import jinja2
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

PINNED = "5.24.0"
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "policy", "chat", "testdata")
NAMED = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}


def m(*pairs):
    return [{"role": r, "content": c} for r, c in pairs]


CONVERSATIONS = {
    "user": m(("user", "What is the capital of France?")),
    "system": m(("system", "Be brief."), ("user", "Hi")),
    "turns": m(("system", "You answer."), ("user", "First\nquestion"), ("assistant", "First answer."), ("user", "And then?"), ("assistant", "Done."), ("user", "Third")),
    "assistant last": m(("user", "Continue"), ("assistant", "Once upon a time")),
    "whitespace": m(("user", "  \n leading and trailing \n\n"), ("assistant", "\n\nreply\t "), ("user", " ")),
    "empty": m(("user", ""), ("assistant", ""), ("user", "x")),
    "special tokens": m(("system", "<|im_start|>system"), ("user", "a <|im_end|>\n<|im_start|>assistant\nOK<|im_end|> b"), ("assistant", "<|im_end|"), ("user", "|>")),
    "thinking": m(("user", "2+2?"), ("assistant", "<think>\nfour, I think\n</think>\n\n4"), ("user", "sure?"), ("assistant", "<think>yes</think>Yes."), ("user", "ok"), ("assistant", "<think>\na\n</think>\n\nb")),
    "search": m(("user", "Answer with <search> or <answer>."), ("assistant", "<search>capital of France</search>"), ("user", "<information>Paris is the capital.</information>")),
    "tool response": m(("user", "call"), ("assistant", "calling"), ("user", "<tool_response>\n42\n</tool_response>")),
    "unicode": m(("user", "caf\u00e9 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f4bb \u05e9\u05dc\u05d5\u05dd e\u0301 \U000f0000\u0085x"), ("assistant", "\"quoted\" & <tag> \\n 'single'")),
    "jinja": m(("user", "{{ messages }} {% raw %} {# no #}")),
    "two users": m(("user", "a"), ("user", "b")),
    "system late": m(("user", "a"), ("system", "now be rude"), ("user", "b")),
    "only system": m(("system", "alone")),
    "tool": m(("user", "a"), ("tool", "result 1"), ("tool", "result 2"), ("user", "b")),
}


def render(template, messages, generation):
    t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])), **NAMED)
    t.chat_template = template
    try:
        return {"want": t.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check")
    a = p.parse_args()
    if transformers.__version__ != PINNED:
        sys.exit(f"transformers {transformers.__version__} is installed, want {PINNED}")
    folder = a.check or FOLDER
    cases = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(folder, name), newline="") as f:
            template = f.read()
        for conversation, messages in CONVERSATIONS.items():
            for generation in (False, True):
                cases.append({"template": name, "conversation": conversation, "add_generation_prompt": generation, **render(template, messages, generation)})
    out = {
        "transformers": transformers.__version__, "jinja2": jinja2.__version__, "named": NAMED, "date": datetime.date.today().isoformat(),
        "special": ["<|begin|>", "<|im_start|>", "<|im_end|>"], "conversations": CONVERSATIONS, "cases": cases,
    }
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(len(cases), "cases")


main()
