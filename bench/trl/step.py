"""Measures what TRL and Transformers take for the GRPO step that `soarbook bench --only training` makes.

    python3 -m venv VENV && VENV/bin/pip install -r bench/trl/requirements.txt
    go run ./cmd/soarbook bench --only training --group 8 --trl VENV/bin/python

soarbook runs this file as `PYTHON - DIR SCRATCH GROUP PROMPT REPLY RANK STEPS KL < step.py`; DIR is a model in Hugging Face layout, SCRATCH
a folder to write into. It prints one JSON document: `generate`, tokens per second of `model.generate` for GROUP continuations of one prompt, and of `GRPOTrainer` the
seconds of each step, the tokens per second of its own generation, and the peak of the process's resident memory.
"""
import json
import logging
import random
import resource
import sys
import time
import warnings

directory, scratch = sys.argv[1:3]
group, prompt_tokens, reply_tokens, rank, steps = map(int, sys.argv[3:8])
kl = float(sys.argv[8])
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
started = time.perf_counter()

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

datasets.disable_progress_bars()
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
vocabulary = model.config.vocab_size

# Prompts are numbers with spaces between them, each the id that it names: what is measured is not how text is encoded.
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(vocabulary)}, unk_token="0"))
words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")
model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
rng = random.Random(1)
prompts = [[rng.randrange(2, vocabulary) for _ in range(prompt_tokens)] for _ in range(steps + 2)]


def generate(prompt):
    ids = torch.tensor([prompt] * group)
    begun = time.perf_counter()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                             max_new_tokens=reply_tokens, min_new_tokens=reply_tokens)
    assert out.shape == (group, prompt_tokens + reply_tokens), out.shape
    return group * reply_tokens / (time.perf_counter() - begun)


generate(prompts[-1])  # warm
rate = generate(prompts[-2])


class Timer(transformers.TrainerCallback):
    """Times whole steps: rollout, reference and update."""
    seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.begun = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.begun)


class Trainer(trl.GRPOTrainer):
    """Times generation alone."""
    generating = []

    def _generate_single_turn(self, *args, **kwargs):
        begun = time.perf_counter()
        result = super()._generate_single_turn(*args, **kwargs)
        self.generating.append(time.perf_counter() - begun)
        return result


trainer = Trainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=lambda completions, **kwargs: [float(i % 2) for i in range(len(completions))],
    train_dataset=datasets.Dataset.from_list([{"prompt": " ".join(map(str, p))} for p in prompts[:steps]]),
    peft_config=peft.LoraConfig(r=rank, lora_alpha=2 * rank, task_type="CAUSAL_LM", target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    args=trl.GRPOConfig(
        output_dir=scratch, use_cpu=True, bf16=False, fp16=False, seed=1,
        num_generations=group, per_device_train_batch_size=group, gradient_accumulation_steps=1, max_completion_length=reply_tokens,
        generation_kwargs={"min_new_tokens": reply_tokens}, temperature=1.0, beta=kl, max_steps=steps, gradient_checkpointing=True,
        learning_rate=1e-6, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True),
    callbacks=[Timer()],
)
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
print(json.dumps({
    "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft, trl)},
    "threads": torch.get_num_threads(),
    "generate_tokens_per_s": rate,
    "step_s": Timer.seconds,
    "rollout_tokens_per_s": [group * reply_tokens / s for s in Trainer.generating],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "parameters": sum(p.numel() for p in model.parameters()),
    "trained_parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
    "seconds": time.perf_counter() - started,
}))
