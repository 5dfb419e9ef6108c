"""Writes trec.json: random rankings with graded judgments and what trec_eval says of them.

python3 -m venv venv && venv/bin/pip install pytrec-eval-terrier && venv/bin/python trec.py
"""
import importlib.metadata
import json
import pathlib
import random

import pytrec_eval

random.seed(1)
cases = []
for _ in range(100):
    pool = [f"d{i}" for i in range(random.randint(1, 40))]
    judged = {d: random.choice([0, 0, 1, 1, 2, 3]) for d in random.sample(pool, random.randint(1, len(pool)))}
    if not any(judged.values()):
        judged[pool[0]] = 1
    ranking = random.sample(pool, random.randint(1, len(pool)))
    run = {d: float(len(ranking) - i) for i, d in enumerate(ranking)}
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, {"ndcg_cut.10", "recall.5", "recip_rank"})
    measures = evaluator.evaluate({"q": run})["q"]
    cases.append({"ranking": ranking, "judged": judged, "ndcg_10": measures["ndcg_cut_10"],
                  "recall_5": measures["recall_5"], "recip_rank": measures["recip_rank"]})
pathlib.Path(__file__).with_name("trec.json").write_text(json.dumps(
    {"about": "pytrec-eval-terrier " + importlib.metadata.version("pytrec-eval-terrier"), "cases": cases}) + "\n")
