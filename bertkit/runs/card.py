"""The model card, README.md of a run folder: what the model is, its scores, how to use it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bertkit.corpus.objectives import OBJECTIVES
from bertkit.runs.usage import usage

_CARD = """---
{front}---

# {model}, fine-tuned on {recipe}

Trained by bertkit {version} on {rows} rows of {source}: {steps} steps of {batch_size}, peak learning rate {learning_rate},
seed {seed}. The weights here are those of step {best_step}, the best by {objective}.{rounded}

| score | best (step {best_step}) | last (step {steps}) |
|---|---|---|
{scores}

{usage}

All settings are in `run.json`, the metrics of each step in `metrics.jsonl`.
"""


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


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_ROUNDED = """
The scores are those of bf16, in which the model was trained; in fp32, as transformers opens it, they may differ in the third
digit."""


def _one_line(name: str) -> str:
    return " ".join(name.split())


def _hub_id(model: str) -> str | None:
    """The name of a model if it is one of the hub, not a folder of this machine."""
    local = model == "minilm" or Path(model).expanduser().exists()
    return model if not local and _HUB_ID.fullmatch(model) else None


def _called(model: str) -> str:
    """A model's name without the folders of this machine."""
    return _hub_id(model) or _one_line(Path(model).name)


def pretraining_card(run: dict[str, Any]) -> str:
    """Markdown with the hub's metadata, from the run.json of a pre-training run."""
    best, training, fresh = run["best"], run["training"], "sha256" not in run["model"]
    objective = OBJECTIVES[training["objective"]]
    generate = 'generate = pipeline("text-generation", model="path/to/this/folder")\nprint(generate("the beginning of a text"))'
    fill = 'fill = pipeline("fill-mask", model="path/to/this/folder")\nprint(fill("a text with a [MASK] in it"))'
    pairs = ", whose two next-sentence logits mean that segment B is " + " or ".join(objective.pair_labels)
    rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in best["scores"].items())
    return _PRETRAINED.format(
        corpus=_one_line(Path(run["data"]["corpus"]["source"]).name),
        origin="Trained from fresh weights" if fresh else f"Trained further from {_called(run['model']['name'])}",
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


def model_card(run: dict[str, Any], model: str, architecture: str) -> str:
    """Markdown with the hub's metadata, from run.json; architecture: the class that opens the model."""
    best, last, recipe, training = run["best"], run["last"], run["recipe"], run["training"]
    data, name = next(iter(run["data"].values())), _one_line(Path(recipe["name"]).stem)
    front = {"library_name": "transformers", "pipeline_tag": recipe["family"]}
    if base := _hub_id(model):
        front["base_model"] = base

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    return _CARD.format(
        front=yaml.safe_dump({**front, "tags": ["bertkit", name]}, sort_keys=False, allow_unicode=True),
        model=_called(model),
        recipe=name,
        version=run["versions"].get("bertkit", ""),
        rows=data["rows"],
        source=_one_line(Path(data["source"]).name),
        steps=last["step"],
        best_step=best["step"],
        batch_size=training["batch_size"],
        learning_rate=training["learning_rate"],
        seed=training["seed"],
        objective=next(iter(best["scores"]), "the last step"),
        scores="\n".join(f"| {name} | {cell(v)} | {cell(last['scores'].get(name))} |" for name, v in best["scores"].items()),
        usage=usage(recipe["family"], run["task"], architecture),
        rounded=_ROUNDED if run["dtype"] == "bfloat16" else "",
    )
