"""Two ways to fine-tune, with five seeds each on the same rows and otherwise equal settings, and the gain of one over the
other.

`make results` runs them: the commands of a comparison, one after another. Each is skipped if its output exists, and resumes
where it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertkit.files import read_json
from scripts import markdown
from scripts.provenance import ROOT
from scripts.results import budget_models, comparison
from scripts.results.command_lines import DATA, run_commands
from scripts.results.entries import AFTER_NLI, BY_PRECISION, FROM_BUDGET

SEEDS = 5


@dataclass(frozen=True)
class Ways:
    """Two ways to fine-tune. options: of each, by its name. prepared: what is there when a command that comes first has done
    its work -> the command.
    """

    folder: str
    options: Mapping[str, str]
    prepared: Mapping[str, str]

    def render(self, *results: Mapping[str, Any]) -> str:
        """The block of a page: a row for each data set."""
        before, after = self.options
        header = ["data set", "validation rows", "score", before, after, f"{after} - {before}, points"]
        rows = [*map(row, results)]
        if all("seeds_alone" in values for values in results):
            header.append("over seeds, same rows")
            for cells, values in zip(rows, results, strict=True):
                of_seeds = {"difference": values["seeds_alone"]["mean"], "interval": values["seeds_alone"]["interval"]}
                cells.append(comparison.difference_text(of_seeds))
        return markdown.block(results, markdown.table(header, rows, numbers_from=3))


@dataclass(frozen=True)
class Paired:
    """A data set, fine-tuned in two ways. name: of the result; recipe: arguments of `finetune`."""

    name: str
    recipe: str
    ways: Ways

    @property
    def runs(self) -> list[str]:
        """Where the runs of either way are."""
        return [f"{self.ways.folder}/{self.name}/{way.replace(' ', '-')}" for way in self.ways.options]

    @property
    def training(self) -> dict[str, str]:
        """What is there when a command has done its work -> the command, for either way."""
        common = f"bertkit finetune {self.recipe} --no-baselines --seeds {SEEDS}"
        each = zip(self.ways.options.values(), self.runs, strict=True)
        return {f"{folder}/seed-{SEEDS}/README.md": f"{common} {options} --output-dir {folder}" for options, folder in each}

    def commands(self) -> list[str]:
        """The command lines, as a user types them."""
        return [*self.ways.prepared.values(), *self.training.values(), comparison.command(*self.runs)]

    def measure(self, *, force: bool) -> dict[str, Any]:
        """What results/NAME.json keeps. Finished runs are not made again, unless `force`; what comes first is kept even then,
        as other data sets share it.
        """
        prepared = run_commands(self.ways.prepared, ROOT / self.ways.folder, force=False)
        made_by = run_commands(self.training, ROOT / self.ways.folder / self.name, force=force, after=prepared)
        run = read_json(ROOT / self.runs[0] / "seed-1" / "run.json")
        first, second = self.runs
        compared = comparison.compare(first, second)
        return {
            "name": self.name,
            "command": self.commands(),
            **made_by[next(iter(self.training))]["origin"],
            "seeds": list(range(1, SEEDS + 1)),
            "model": run["model"],
            "data_set": self.recipe.split()[0],
            **compared,
            "seeds_alone": comparison.seed_difference(first, second, compared["score"]),
        }


def row(values: Mapping[str, Any]) -> list[str]:
    """A row of the table: a data set's scores, in percent, and the difference with its 95% interval."""
    scores = [f"{100 * score:.1f}" for score in values["scores"]]
    return [values["data_set"], f"{values['rows']:,}", values["score"], *scores, f"**{comparison.difference_text(values)}**"]


# Everything that rounds in bf16 counts: products, attention, dropout, and the working copy of the weights.
_PRECISIONS = Ways(
    "runs/results/precision", {precision: f"--model minilm --precision {precision}" for precision in ("fp32", "bf16")}, {}
)
_RELATED = "runs/results/stilts/mnli/seed-1"
_LINGNLI = f"--train {DATA}/LingNLI/train.jsonl.gz --validation {DATA}/LingNLI/val.jsonl.gz --learning-rate 1e-4 --num-epochs 1"
_STILTS = Ways(
    "runs/results/stilts",
    {"alone": "--model minilm", "after LingNLI": f"--model {_RELATED} --fresh-head"},
    {
        f"{_RELATED}/README.md": f"bertkit finetune mnli {_LINGNLI} --model minilm --no-baselines --seed 1 "
        f"--output-dir {_RELATED}"
    },
)
_PRETRAINED = {model: budget_models.FOLDERS[model] for model in (budget_models.BASELINE, budget_models.PRESET)}
_BUDGET = Ways(
    budget_models.FOLDER,
    {model: f"--model {folder}" for model, folder in _PRETRAINED.items()},
    {made: budget_models.COMMANDS[made] for made in (f"{folder}/README.md" for folder in _PRETRAINED.values())},
)
COMPARISONS = [
    Paired(name, recipe, ways)
    for ways, recipes in ((_PRECISIONS, BY_PRECISION), (_STILTS, AFTER_NLI), (_BUDGET, FROM_BUDGET))
    for name, recipe in recipes.items()
]
BLOCKS = {"precision": _PRECISIONS.render, "stilts": _STILTS.render, "from_budget": _BUDGET.render}
