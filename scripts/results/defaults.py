"""The gain of the settings that bertkit chooses over fixed ones, on data sets not used to design the rule.

Each set is trained with five seeds by both; a paired bootstrap over rows and seeds compares their test scores. `make
results` runs this; docs/defaults.md explains the rule.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.files import read_json
from scripts import markdown
from scripts.provenance import ROOT
from scripts.results import comparison
from scripts.results.command_lines import Measured, measured_once, run_commands
from scripts.results.defaults_data import CHOSEN_ON, MEASURED_ON, PAIRS, TEXTS, DataSet

NAME = "defaults"
FIXED = "--learning-rate 5e-5 --num-epochs 3 --batch-size 32 --max-length 128"
SEEDS = 5
FOLDER = Path("runs/results") / NAME
HEADER = ["data set", "predicts", "rows", "score", "fixed", "chosen", "chosen - fixed", "chosen - probe", "steps", "minutes"]


def commands() -> list[str]:
    """The commands of one set; $SET is its folder, $FAMILY its family."""
    files = "--train $SET/train.jsonl --validation 10% --test $SET/test.jsonl"
    finetune = f"bertkit finetune $FAMILY {files} --model minilm --seeds {SEEDS}"
    return [
        f"{finetune} {FIXED} --output-dir $SET/fixed",
        f"{finetune} --output-dir $SET/chosen",
        comparison.command("$SET/fixed", "$SET/chosen", "--split test"),
    ]


def measure(*, force: bool) -> dict[str, Any]:
    """What results/defaults.json keeps. Each set is kept when it ends, and taken from there the next time."""
    measured: dict[str, Measured] = {}
    for each in MEASURED_ON:
        folder = FOLDER / each.name.replace(" ", "-")
        kept = ROOT / folder / "result.json"
        measured[each.name] = measured_once(kept, commands(), partial(_measure_set, each, folder, force), force=force)
    sets = {name: found.values for name, found in measured.items()}
    return {
        "name": NAME,
        **measured[MEASURED_ON[0].name].origin,
        "seeds": list(range(1, SEEDS + 1)),
        "model": sets[MEASURED_ON[0].name]["model"],
        "chosen_on": [each.name for each in CHOSEN_ON],
        "sets": sets,
    }


def _measure_set(each: DataSet, folder: Path, force: bool) -> dict[str, Any]:
    each.write(ROOT / folder)
    quoted = shlex.quote(str(folder))
    lines = [line.replace("$SET", quoted).replace("$FAMILY", each.family) for line in commands()[:-1]]
    made = [str(folder / side / f"seed-{SEEDS}" / "README.md") for side in ("fixed", "chosen")]
    run_commands(dict(zip(made, lines, strict=True)), ROOT / folder, force=force)
    compared = comparison.compare(f"{quoted}/fixed", f"{quoted}/chosen", "--split test")
    runs = {
        side: [read_json(path) for path in sorted((ROOT / folder / side).glob("seed-*/run.json"))]
        for side in ("fixed", "chosen")
    }
    first = runs["chosen"][0]
    probe = _beside_the_probe(ROOT / folder) if each.family == TEXTS and each.kind != PAIRS else None
    return {
        "kind": each.kind,
        "model": first["model"],
        "rows": {split: data["rows"] for split, data in first["data"].items()} | {"test": compared["rows"]},
        "score": compared["score"],
        "scores": dict(zip(("fixed", "chosen"), compared["scores"], strict=True)),
        "difference": compared["difference"],
        "interval": compared["interval"],
        "probe": probe,
        "chosen": first["chosen"],
        "steps": {side: of_side[0]["total_steps"] for side, of_side in runs.items()},
        "seconds": {side: sum(run["seconds"] for run in of_side) / len(of_side) for side, of_side in runs.items()},
    }


def _beside_the_probe(folder: Path) -> dict[str, Any]:
    """The score of a linear probe of the frozen weights on the test rows, and what the chosen settings' runs gain over it."""
    import numpy as np

    from bertkit.metrics.bootstrap import RESAMPLES, interval, resampled
    from bertkit.model.devices import start_accelerator
    from bertkit.model.pretrained import open_pretrained
    from bertkit.runs.finetuning.baselines import fit_baselines
    from bertkit.runs.inference.task_predictor import predict_with_progress
    from bertkit.runs.target import open_target
    from bertkit.tasks.baselines import LINEAR_PROBE
    from bertkit.tasks.splits import read_splits

    opened = [open_target(str(path), None, {}) for path in sorted((folder / "chosen").glob("seed-*"))]
    task, recipe = opened[0].task, opened[0].task.recipe.resolved()
    read = read_splits(recipe, ("train", "test")).rows
    train, test = (task.examples(read[split], labelled=True) for split in ("train", "test"))
    found = fit_baselines(task, train, test, "test", open_pretrained("minilm"), start_accelerator())
    assert found is not None
    truth = task.truth(found.examples)
    probe = task.scorer(found.predictions[LINEAR_PROBE], truth)
    models = [task.scorer(predict_with_progress(each, found.examples), truth) for each in opened]
    rng = np.random.default_rng(0)
    drawn = []
    for rows in resampled(len(truth), RESAMPLES, rng):
        drawn.append(_first(models[rng.integers(len(models))](rows)) - _first(probe(rows)))
    everything = np.arange(len(truth))
    score = _first(probe(everything))
    return {
        "score": score,
        "difference": float(np.mean([_first(model(everything)) for model in models])) - score,
        "interval": list(interval(drawn) or ()),
    }


def _first(scores: Mapping[str, float | None]) -> float:
    return float(next(iter(scores.values())) or 0.0)


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table under HEADER."""
    table = []
    for name, each in values["sets"].items():
        minutes = [f"{each['seconds'][side] / 60:.1f}" for side in ("fixed", "chosen")]
        table.append(
            [
                name,
                each["kind"],
                str(each["rows"]["train"]),
                each["score"],
                *(f"{100 * each['scores'][side]:.1f}" for side in ("fixed", "chosen")),
                f"**{comparison.difference_text(each)}**",
                comparison.difference_text(each["probe"]) if each["probe"] else "-",
                " -> ".join(str(each["steps"][side]) for side in ("fixed", "chosen")),
                " -> ".join(minutes),
            ]
        )
    return table


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/results.md."""
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=4))
