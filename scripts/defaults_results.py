"""What the settings that bertkit chooses gain over fixed ones, on data sets that the rule was not chosen on.

Each set is trained with five seeds by both; a paired bootstrap over rows and seeds compares their test scores. `results.py`
runs this; docs/defaults.md explains the rule.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from defaults_data import CHOSEN_ON, MEASURED_ON, DataSet
from entries import DEFAULTS
from provenance import ROOT, provenance

NAME = DEFAULTS
FIXED = "--learning-rate 5e-5 --num-epochs 3 --batch-size 32 --max-length 128"
SEEDS = 5
FOLDER = Path("runs/results") / NAME
HEADER = ["data set", "predicts", "rows", "score", "5e-5 x 3", "chosen", "difference [95% interval]", "steps", "minutes"]


def commands() -> list[str]:
    """The commands of one set; $SET is its folder, $FAMILY its family."""
    files = "--train $SET/train.jsonl --validation 10% --test $SET/test.jsonl"
    finetune = f"bertkit finetune $FAMILY {files} --model minilm --seeds {SEEDS}"
    return [
        f"{finetune} {FIXED} --output-dir $SET/fixed",
        f"{finetune} --output-dir $SET/chosen",
        "bertkit compare $SET/fixed $SET/chosen --split test --json",
    ]


def measure(execute: Callable[..., str], *, force: bool) -> dict[str, Any]:
    """What results/defaults.json keeps. Each set is kept when it ends, and taken from there the next time."""
    origin = provenance()
    sets: dict[str, dict[str, Any]] = {}
    for each in MEASURED_ON:
        folder = FOLDER / each.name.replace(" ", "-")
        kept = ROOT / folder / "result.json"
        if kept.is_file() and not force:
            sets[each.name] = json.loads(kept.read_text(encoding="utf-8"))
            continue
        sets[each.name] = _measure_set(each, folder, execute)
        kept.write_text(json.dumps(sets[each.name]), encoding="utf-8")
    return {
        "name": NAME,
        "command": commands(),
        **origin,
        "seeds": list(range(1, SEEDS + 1)),
        "model": sets[MEASURED_ON[0].name]["model"],
        "chosen_on": [each.name for each in CHOSEN_ON],
        "sets": sets,
    }


def _measure_set(each: DataSet, folder: Path, execute: Callable[..., str]) -> dict[str, Any]:
    each.write(ROOT / folder)
    lines = [line.replace("$SET", shlex.quote(str(folder))).replace("$FAMILY", each.family) for line in commands()]
    *training, comparing = lines
    for line in training:
        execute(line, 0)
    compared = json.loads(execute(comparing, 0))
    score = next(iter(compared["sides"][0]["scores"]))
    (difference,) = [row for row in compared["differences"] if row["score"] == score]
    runs = {
        side: [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder / side).glob("seed-*/run.json"))]
        for side in ("fixed", "chosen")
    }
    first = runs["chosen"][0]
    return {
        "kind": each.kind,
        "model": first["model"],
        "rows": {split: data["rows"] for split, data in first["data"].items()} | {"test": compared["rows"]},
        "score": score,
        "scores": {side["name"].rpartition("/")[2]: side["scores"][score] for side in compared["sides"]},
        "difference": difference["difference"],
        "interval": difference["interval"],
        "chosen": first["chosen"],
        "steps": {side: of_side[0]["total_steps"] for side, of_side in runs.items()},
        "seconds": {side: sum(run["seconds"] for run in of_side) / len(of_side) for side, of_side in runs.items()},
    }


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table under HEADER."""
    table = []
    for name, each in values["sets"].items():
        low, high = each["interval"]
        minutes = [f"{each['seconds'][side] / 60:.1f}" for side in ("fixed", "chosen")]
        table.append(
            [
                name,
                each["kind"],
                str(each["rows"]["train"]),
                each["score"],
                *(f"{100 * each['scores'][side]:.1f}" for side in ("fixed", "chosen")),
                f"**{100 * each['difference']:+.1f}** [{100 * low:+.1f}, {100 * high:+.1f}]",
                " -> ".join(str(each["steps"][side]) for side in ("fixed", "chosen")),
                " -> ".join(minutes),
            ]
        )
    return table
