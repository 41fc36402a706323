"""A typical transformers script that predicts a file, or a line from standard input; prediction.py times all of it.

python -m scripts.bench.pipeline_predict RUN texts.jsonl
"""

import json
import sys

from transformers import pipeline

run, *files = sys.argv[1:]
if files:
    with open(files[0], encoding="utf-8") as file:
        texts = [json.loads(line)["sentence"] for line in file]
else:
    texts = [line.rstrip("\n") for line in sys.stdin]
order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
predict = pipeline("text-classification", model=run, device="cpu")
found = dict(zip(order, predict([texts[at] for at in order], batch_size=32, truncation=True, max_length=128)))
for at, text in enumerate(texts):
    print(json.dumps({"sentence": text, **found[at]}))
