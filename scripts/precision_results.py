"""Whether training in bf16 costs scores: five seeds in fp32 and five in bf16, with the same rows, weights and settings.

Everything that rounds in bf16 counts: products, attention, dropout, and the working copy of the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import comparison
import markdown
import pretraining_results as pretraining
from command_lines import DATA
from entries import GLUE, PRECISION
from provenance import ROOT, provenance

NAME = PRECISION
SEEDS = 5
TASKS = {
    "MRPC": f"mrpc --data {GLUE}/MRPC --max-train-samples 2000 --num-epochs 3 --learning-rate 1e-4",
    "CoNLL-2003": f"conll2003 --data {DATA}/CoNLL2003 --max-train-samples 3000 --num-epochs 2 --learning-rate 2e-4",
    "SQuAD 1.1": f"squad --train {DATA}/SQuAD/train-v1.1.rebuilt.json.xz --validation 1% --max-train-samples 2000 "
    "--num-epochs 1 --learning-rate 1e-4",
}
PRECISIONS = ("fp32", "bf16")
FOLDER = f"runs/results/{NAME}"
HEADER = ["data set", "dev rows", "score", *PRECISIONS, "bf16 - fp32, points"]


def folders(task: str) -> list[str]:
    """Where the runs of a task are, in either precision."""
    return [f"{FOLDER}/{TASKS[task].split()[0]}/{precision}" for precision in PRECISIONS]


def commands() -> list[str]:
    """The command lines, as a user types them."""
    return [line for task in TASKS for line in (*_training(task), comparison.command(*folders(task)))]


def _training(task: str) -> list[str]:
    common = f"bertkit finetune {TASKS[task]} --model minilm --no-baselines --seeds {SEEDS}"
    each = zip(PRECISIONS, folders(task), strict=True)
    return [f"{common} --precision {precision} --output-dir {folder}" for precision, folder in each]


def measure(*, force: bool) -> dict[str, Any]:
    """What results/precision.json keeps. Finished runs are not made again, unless `force`."""
    lines = [line for task in TASKS for line in _training(task)]
    made = [f"{folder}/seeds.json" for task in TASKS for folder in folders(task)]
    made_by = pretraining.run_commands(dict(zip(made, lines, strict=True)), ROOT / FOLDER, force=force)
    origin = provenance() | {"commit": made_by[made[0]]["commit"]}
    found = {task: comparison.compare(*folders(task)) for task in TASKS}
    run = json.loads((ROOT / folders("MRPC")[0] / "seed-1" / "run.json").read_text(encoding="utf-8"))
    seeds = list(range(1, SEEDS + 1))
    return {"name": NAME, "command": commands(), **origin, "seeds": seeds, "model": run["model"], "tasks": found}


# --- for docs/speed.md -----------------------------------------------------------------------------------------------------


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table under HEADER."""
    return [
        [
            task,
            f"{found['rows']:,}",
            found["score"],
            *(f"{100 * score:.1f}" for score in found["scores"]),
            f"**{comparison.told(found)}**",
        ]
        for task, found in values["tasks"].items()
    ]


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/speed.md."""
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=3))
