"""The model card, README.md of a run folder: what the model is, its scores, how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.corpus.objectives import OBJECTIVES

_CARD = """---
library_name: transformers
pipeline_tag: {family}
base_model: {model}
tags:
- bertkit
- {recipe}
---

# {model}, fine-tuned on {recipe}

Trained by bertkit {version} on {rows} rows of {source}: {steps} steps of {batch_size}, peak learning rate {learning_rate},
seed {seed}. The weights here are those of step {best_step}, the best by {objective}.

| score | best (step {best_step}) | last (step {steps}) |
|---|---|---|
{scores}

{usage}

All settings are in `run.json`, the metrics of each step in `metrics.jsonl`.
"""


_PIPELINE = """```python
from transformers import pipeline

predict = pipeline("{family}", model="path/to/this/folder"{more})
print(predict({example}))
```"""
_OWN_CODE = """```python
from transformers import {architecture}, AutoTokenizer

model = {architecture}.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

or `bertkit predict path/to/this/folder FILE`, which also reads the file and decodes the predictions."""
_ENCODER_ONLY = """Its head is bertkit's own: transformers opens the folder as an encoder only (`AutoModel`). `bertkit predict
path/to/this/folder FILE` uses the head too."""


_PRETRAINED = """---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- bertkit
---

# BERT, pre-trained on {corpus}

{origin}, by bertkit {version}: {objective}, {steps} steps of {batch_size} sequences of {lengths}, peak
learning rate {learning_rate}, seed {seed}. The weights here are those of step {best_step}.

{scores}```python
from transformers import pipeline

{use}
```

or fine-tune it: `bertkit finetune RECIPE --model path/to/this/folder --output-dir runs/mine`. With its pre-training heads it is
transformers' {opens}.

All settings are in `run.json`, the metrics of each step in `metrics.jsonl`.
"""


def pretraining_card(run: dict[str, Any]) -> str:
    """Markdown with the hub's metadata, from the run.json of a pre-training run."""
    best, training, fresh = run["best"], run["training"], "config" in run["model"]
    objective = OBJECTIVES[training["objective"]]
    generate = 'generate = pipeline("text-generation", model="path/to/this/folder")\nprint(generate("the beginning of a text"))'
    fill = 'fill = pipeline("fill-mask", model="path/to/this/folder")\nprint(fill("a text with a [MASK] in it"))'
    pairs = ", whose two next-sentence logits mean that segment B is " + " or ".join(objective.pair_labels)
    rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in best["scores"].items())
    return _PRETRAINED.format(
        corpus=Path(run["data"]["corpus"]["source"]).name,
        origin="Trained from fresh weights" if fresh else f"Trained further from {run['model']['name']}",
        version=run["versions"].get("bertkit", ""),
        steps=run["last"]["step"],
        best_step=best["step"],
        scores=f"| held out | step {best['step']} |\n|---|---|\n{rows}\n" if rows else "",
        lengths=f"at most {training['max_length']} tokens"
        if not training["phases"]
        else f"{' then '.join(training['phases'])} tokens",
        objective=objective.name + ("" if objective.causal else f", masking by {training['masking']}"),
        pipeline="text-generation" if objective.causal else "fill-mask",
        use=generate if objective.causal else fill,
        opens=f"`{objective.head.__name__}`" + (pairs if objective.pair_term else ""),
        **{name: training[name] for name in ("batch_size", "learning_rate", "seed")},
    )


def _usage(family: str, task: dict[str, Any], architecture: str) -> str:
    """How to use the model: transformers' pipeline for the task, or its class if there is none."""
    if architecture == "BertModel":
        return _ENCODER_ONLY
    if family == "text-classification":
        example = '{"text": "one", "text_pair": "two"}' if task.get("text_pair") else '"a text"'
        return _PIPELINE.format(family=family, more="", example=example)
    if family == "token-classification":
        more = ', aggregation_strategy="simple"' if task.get("scheme") else ""
        return _PIPELINE.format(family=family, more=more, example='"a text"')
    return _OWN_CODE.format(architecture=architecture)


def model_card(run: dict[str, Any], model: str, architecture: str) -> str:
    """Markdown with the hub's metadata, from run.json; architecture: the class that opens the model."""
    best, last, recipe, training = run["best"], run["last"], run["recipe"], run["training"]
    data = next(iter(run["data"].values()))

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    return _CARD.format(
        family=recipe["family"],
        model=model,
        recipe=Path(recipe["name"]).stem,
        version=run["versions"].get("bertkit", ""),
        rows=data["rows"],
        source=Path(data["source"]).name,
        steps=last["step"],
        best_step=best["step"],
        batch_size=training["batch_size"],
        learning_rate=training["learning_rate"],
        seed=training["seed"],
        objective=next(iter(best["scores"]), "the last step"),
        scores="\n".join(f"| {name} | {cell(v)} | {cell(last['scores'].get(name))} |" for name, v in best["scores"].items()),
        usage=_usage(recipe["family"], run["task"], architecture),
    )
