"""The model card, README.md of a run folder: what the model is, its scores, how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os.path import abspath
from pathlib import Path
from typing import Any

import yaml

from bertkit.corpus.objectives import OBJECTIVES
from bertkit.progress import format_interval
from bertkit.readers.formats import SPLITS
from bertkit.readers.remote import file_name
from bertkit.runs.publishing.usage import usage
from bertkit.training.state import is_loss

_CARD = """---
{front}---

# {model}, fine-tuned on {recipe}

Trained by bertkit {version} on {rows} rows of {source}: {steps} steps of {batch_size}, peak learning rate {learning_rate},
seed {seed}. These are the weights of step {best_step}, {chosen}.{rounded}

| score | best (step {best_step}) | 95% interval | last (step {steps}) |
|---|---|---|---|
{scores}

## Use

{usage}

## Data

| split | rows | source | sha256 of its texts |
|---|---|---|---|
{data}
{labels}
## Limits

{limits}

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
learning rate {learning_rate}, seed {seed}. These are the weights of step {best_step}.

{scores}```python
from transformers import pipeline

{use}
```

or fine-tune it: `bertkit finetune RECIPE --model path/to/this/folder --output-dir runs/mine`. With its pre-training heads it is
transformers' {opens}.

All settings are in `run.json`, the metrics of each step in `metrics.jsonl`.
"""


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_NO_METRIC = re.compile(r"/(threshold_.*|constant_predictions)$")
_READ = {"head": "the beginning", "tail": "the end", "head+tail": "the beginning and the end"}
_ROUNDED = """
The scores were computed in bf16 during training. In fp32, as transformers opens the model, or with `bertkit eval`, which sums
in another order, they may differ in the third digit, and with few rows in earlier ones too."""


def _one_line(name: str) -> str:
    return " ".join(name.split())


def _plain(text: Any) -> str:
    """A text on one line, escaped for Markdown and HTML."""
    return re.sub(r"[\\`*\[\]<>|&#~$]|(?<!\w)_|_(?!\w)", r"\\\g<0>", _one_line(str(text)))


def hub_id(model: str) -> str | None:
    """A model's name if it is on the hub, not a folder on this machine."""
    local = model == "minilm" or Path(model).expanduser().exists()
    return model if not local and _HUB_ID.fullmatch(model) else None


def _called(model: str) -> str:
    """A model's name without paths on this machine."""
    return hub_id(model) or _one_line(Path(abspath(model)).name)  # also of . and ..


def pretraining_card(run: dict[str, Any]) -> str:
    """Markdown with the hub's metadata, from the run.json of a pre-training run."""
    best, training, fresh = run["best"], run["training"], "sha256" not in run["model"]
    objective = OBJECTIVES[training["objective"]]
    generate = 'generate = pipeline("text-generation", model="path/to/this/folder")\nprint(generate("the beginning of a text"))'
    fill = 'fill = pipeline("fill-mask", model="path/to/this/folder")\nprint(fill("a text with a [MASK] in it"))'
    pairs = ", whose two next-sentence logits mean that segment B is " + " or ".join(objective.pair_labels)
    rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in best["scores"].items())
    corpora = [corpus for each in (run, *(run.get("continued") or ())) for corpus in each["data"].values()]
    masking = "entity" if training["masking"] == "entities" else training["masking"]
    return _PRETRAINED.format(
        corpus=_plain(" and ".join(dict.fromkeys(Path(abspath(corpus["source"])).name for corpus in corpora))),
        origin="Trained from scratch" if fresh else f"Continued pre-training from {_plain(_called(run['model']['name']))}",
        version=run["versions"].get("bertkit", ""),
        steps=run["last"]["step"],
        best_step=best["step"],
        scores=f"| held out | step {best['step']} |\n|---|---|\n{rows}\n" if rows else "",
        lengths=f"at most {training['max_length']} tokens"
        if not training["phases"]
        else f"{' then '.join(training['phases'])} tokens",
        objective=objective.name + ("" if objective.causal else f", {masking} masking"),
        pipeline="text-generation" if objective.causal else "fill-mask",
        use=generate if objective.causal else fill,
        opens=f"`{objective.head.__name__}`" + (pairs if objective.pair_term else ""),
        **{name: training[name] for name in ("batch_size", "learning_rate", "seed")},
    )


def model_card(run: dict[str, Any], model: str, architecture: str) -> str:
    """Markdown with the hub's metadata, from run.json; architecture: the class that opens the model."""
    best, last, recipe, training = run["best"], run["last"], run["recipe"], run["training"]
    name, intervals = _one_line(Path(recipe["name"]).stem), run.get("intervals") or {}
    split, data = next(iter(run["data"].items()))
    called = f"{_called(model)}, fine-tuned on {name}"
    opens = architecture != "BertModel"  # else a pipeline would give the head random weights
    front = {
        "library_name": "transformers" if opens else "bertkit",
        "pipeline_tag": recipe["family"] if opens else None,
        "language": recipe.get("language"),
        "base_model": hub_id(model),
        "datasets": [hub["path"]] if (hub := hub_set(run)) else None,
        "tags": ["bertkit", name],
        "model-index": [{"name": called, "results": results}] if (results := [*_results(run)]) else None,
    }

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    objective = next(iter(best["scores"]), "")
    rows = [
        (_plain(name), cell(value), format_interval(intervals.get(name)) or "-", cell(last["scores"].get(name)))
        for name, value in best["scores"].items()
    ]
    splits = [
        (_plain(split), f"{each['rows']}", _plain(_source(run, split)), f"`{each['rows_sha256']}`")
        for split, each in run["data"].items()
    ]
    labels = run["task"].get("labels")
    return _CARD.format(
        front=yaml.safe_dump(
            {key: value for key, value in front.items() if value}, sort_keys=False, allow_unicode=True, width=120
        ),
        model=_plain(_called(model)),
        recipe=_plain(name),
        version=run["versions"].get("bertkit", ""),
        rows=data["rows"],
        source=_plain(_source(run, split)),
        steps=last["step"],
        best_step=best["step"],
        batch_size=training["batch_size"],
        learning_rate=training["learning_rate"],
        seed=training["seed"],
        chosen=f"the best by {_plain(objective)}" if objective else "the last one",
        scores=_rows(rows),
        data=_rows(splits),
        labels=f"\nLabels: {', '.join(map(_plain, labels))}.\n" if labels else "",
        limits="\n".join(f"- {limit}" for limit in _limits(run, _plain(objective))),
        usage=usage(recipe["family"], run["task"], architecture),
        rounded=_ROUNDED if run["dtype"] == "bfloat16" else "",
    )


def _rows(rows: Sequence[Sequence[str]]) -> str:
    """The rows of a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def hub_set(run: dict[str, Any]) -> dict[str, Any] | None:
    """The hub data set that a run was trained on: path, name and revision; None for other data."""
    own = any(run["recipe"].get(name) for name in ("data", *SPLITS))
    return None if own else (run["recipe"].get("dataset") or {}).get("hub")


def _source(run: dict[str, Any], split: str) -> str:
    """Where a split comes from, without paths on this machine."""
    hub = hub_set(run)
    return hub["path"] if hub else _one_line(file_name(run["data"][split]["source"]))


def _results(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The scores of each split in the form of the hub's model-index (huggingface_hub, repocard_data.py)."""
    hub = hub_set(run) or {}
    for split, data in run["data"].items():
        scores = {
            name.removeprefix(f"{split}/"): (name, value)
            for name, value in run["best"]["scores"].items()
            if name.startswith(f"{split}/") and value is not None and not (_NO_METRIC.search(name) or is_loss(name))
        }
        metrics = [
            {"type": metric, "value": value}
            | ({"args": {"interval": bounds}} if (bounds := (run.get("intervals") or {}).get(name)) else {})
            for metric, (name, value) in scores.items()
        ]
        dataset: dict[str, Any] = {"type": _source(run, split), "name": _source(run, split), "split": split}
        dataset |= {key: hub[of] for key, of in (("config", "name"), ("revision", "revision")) if hub.get(of)}
        dataset["args"] = {"rows": data["rows"], "sha256": data["rows_sha256"]}
        if metrics:
            yield {"task": {"type": run["recipe"]["family"]}, "dataset": dataset, "metrics": metrics}


def _limits(run: dict[str, Any], objective: str) -> Iterator[str]:
    """What a user should not expect of the model."""
    task, splits = run["task"], [*run["data"]]
    yield f"The scores hold for texts like those of {_plain(_source(run, splits[-1]))}; for others they may be lower."
    if run["best"]["scores"]:
        yield f"The best step was chosen by {objective} on the rows that it is scored on, so that score is a little too high."
    if task.get("truncate") in _READ:
        yield f"It reads only {_READ[task['truncate']]} of a text longer than {task['max_length']} tokens."
    if task.get("labels"):
        yield "It knows only the labels above."
