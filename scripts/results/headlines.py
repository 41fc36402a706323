"""The README's headline figures, next to those of transformers' Trainer; `make results` takes them from results/*.json."""

from __future__ import annotations

import statistics
from typing import Any

from bertkit.files import read_json
from scripts.bench import training
from scripts.provenance import RESULTS
from scripts.results import trainer

NAME = "headlines"
# A task of training.py -> what its speed is called
SPEED = {
    "mrpc": "MRPC, sentence pairs/s",
    "sst2": "SST-2, sentences/s",
    "conll2003": "CoNLL-2003, sentences/s",
    "squad": "SQuAD, windows/s",
    "pretrain_128": "pre-training, tokens/s",
}
# A task of trainer.py -> what its score is called
ACCURACY = {"mrpc_five": "MRPC, accuracy", "rte_five": "RTE, accuracy", "sst2_five": "SST-2 (5,000 rows), accuracy"}
SETTINGS = {
    "dynamic": "fp32, dynamic padding",
    "grouped": "fp32, grouped by length",
    "best": "bf16, grouped by length",
    "bf16": "bf16, padded to max_length",
}
HEADER = ["figure", "bertkit", "Trainer (its setting)", "ratio", "machine", "measured by"]


def rows() -> list[list[str]]:
    """A row each figure, both sides measured on one machine."""
    return [*map(_speed, SPEED), *map(_accuracy, ACCURACY)]


def _speed(task: str) -> list[str]:
    workload = training.TASKS[task]
    values = _read(workload.result)
    rates = {side: statistics.median(found[workload.measure]) for side, found in values["tasks"][task]["sides"].items()}
    ours = rates["bertkit"]
    peer = max((side for side in rates if not side.startswith("bertkit")), key=rates.__getitem__)
    theirs = f"{rates[peer]:.1f} ({SETTINGS[peer]})"
    ratio, command = f"{ours / rates[peer]:.2f}", f'`make bench ARGS="--tasks {task}"`'
    return [SPEED[task], f"{ours:.1f}", theirs, ratio, _machine(values), command]


def _accuracy(task: str) -> list[str]:
    values = _read(trainer.NAME)
    both = trainer.sides(values, task)
    if both is None:
        raise SystemExit(f"error: results/{task}.json is missing\nhint: python -m scripts.results {task}")
    ours, theirs = (f"{100 * statistics.fmean(side):.1f}" for side in both)
    command = f'`make results ARGS="{task} {trainer.NAME}"`'
    return [ACCURACY[task], ours, f"{theirs} (fp32, dynamic padding)", "-", _machine(values), command]


def _machine(values: dict[str, Any]) -> str:
    return values["machine"].replace("(R)", "").replace(" Processor @", "")


def _read(name: str) -> dict[str, Any]:
    return read_json(RESULTS / f"{name}.json")
