"""Two ways to fine-tune, five seeds of each with the same rows and settings otherwise, and what one gains over the other.

`results.py` runs them: the commands of a comparison, one after the other. Each is skipped where its output exists, and resumes
where it was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import comparison
import markdown
import pretraining_results as pretraining
from command_lines import DATA
from entries import GLUE, LINGNLI, PRECISION, STILTS
from provenance import ROOT, provenance

SEEDS = 5


@dataclass(frozen=True)
class Paired:
    """name: of the result. ways: the two, by name, with their options. tasks: data set -> arguments of `finetune`. prepared:
    what is there when a command that comes first has done its work -> the command.
    """

    name: str
    ways: Mapping[str, str]
    tasks: Mapping[str, str]
    prepared: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Of all its runs."""
        return f"runs/results/{self.name}"

    def runs(self, task: str) -> list[str]:
        """Where the runs of a task are, of either way."""
        return [f"{self.folder}/{self.tasks[task].split()[0]}/{way.replace(' ', '-')}" for way in self.ways]

    def training(self, task: str) -> dict[str, str]:
        """What is there when a command has done its work -> the command, for either way."""
        common = f"bertkit finetune {self.tasks[task]} --no-baselines --seeds {SEEDS}"
        each = zip(self.ways.values(), self.runs(task), strict=True)
        return {f"{folder}/seeds.json": f"{common} {options} --output-dir {folder}" for options, folder in each}

    def commands(self) -> list[str]:
        """The command lines, as a user types them."""
        return [
            *self.prepared.values(),
            *(line for task in self.tasks for line in (*self.training(task).values(), comparison.command(*self.runs(task)))),
        ]

    def measure(self, *, force: bool) -> dict[str, Any]:
        """What results/NAME.json keeps. Finished runs are not made again, unless `force`."""
        lines = {made: line for task in self.tasks for made, line in self.training(task).items()}
        made_by = pretraining.run_commands({**self.prepared, **lines}, ROOT / self.folder, force=force)
        origin = provenance() | {"commit": made_by[next(iter(lines))]["commit"]}
        found = {task: comparison.compare(*self.runs(task)) for task in self.tasks}
        first = self.runs(next(iter(self.tasks)))[0]
        run = json.loads((ROOT / first / "seed-1" / "run.json").read_text(encoding="utf-8"))
        seeds = list(range(1, SEEDS + 1))
        return {"name": self.name, "command": self.commands(), **origin, "seeds": seeds, "model": run["model"], "tasks": found}

    def render(self, values: Mapping[str, Any]) -> str:
        """The block of a page."""
        before, after = self.ways
        header = ["data set", "dev rows", "score", before, after, f"{after} - {before}, points"]
        return markdown.block([values], markdown.table(header, rows(values), numbers_from=3))


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table: each data set's scores, in percent, and the difference with its 95% interval."""
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


# Everything that rounds in bf16 counts: products, attention, dropout, and the working copy of the weights.
BY_PRECISION = Paired(
    PRECISION,
    {precision: f"--model minilm --precision {precision}" for precision in ("fp32", "bf16")},
    {
        "MRPC": f"mrpc --data {GLUE}/MRPC --max-train-samples 2000 --num-epochs 3 --learning-rate 1e-4",
        "CoNLL-2003": f"conll2003 --data {DATA}/CoNLL2003 --max-train-samples 3000 --num-epochs 2 --learning-rate 2e-4",
        "SQuAD 1.1": f"squad --train {DATA}/SQuAD/train-v1.1.rebuilt.json.xz --validation 1% --max-train-samples 2000 "
        "--num-epochs 1 --learning-rate 1e-4",
    },
)
_RELATED = f"runs/results/{STILTS}/mnli/seed-1"
AFTER_NLI = Paired(
    STILTS,
    {"alone": "--model minilm", "after LingNLI": f"--model {_RELATED} --fresh-head"},
    {
        task: f"{recipe} --data {GLUE}/{task} --learning-rate 1e-4 --num-epochs 3"
        for task, recipe in {"RTE": "rte", "MRPC": "mrpc", "STS-B": "stsb"}.items()
    },
    {
        f"{_RELATED}/README.md": f"bertkit finetune mnli {LINGNLI} --model minilm --no-baselines --seed 1 "
        f"--output-dir {_RELATED}"
    },
)
COMPARISONS = (BY_PRECISION, AFTER_NLI)
