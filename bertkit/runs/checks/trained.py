"""The checks that train models, --label-errors and --learning-curve: their options, and the folder that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import UsageError
from bertkit.files import Kind, OutputFolder
from bertkit.model.devices import start_accelerator
from bertkit.readers import Examples
from bertkit.report import show
from bertkit.runs.checks import label_errors, learning_curve
from bertkit.runs.checks.target import ToTrain
from bertkit.runs.directory import replaced
from bertkit.runs.finetuning.finetune import input_paths
from bertkit.tasks.recipe import Recipe

OUTPUT = Kind.repeatable(
    "check of labels",
    rf"{label_errors.RUNS}|label_errors\.(csv|json)|{learning_curve.RUNS}|learning_curve\.json",
)


@dataclass(frozen=True)
class TrainedChecks:
    """The options of the checks that train; false if none is requested. learning_curve: percentages of the training rows."""

    label_errors: bool
    folds: int | None
    learning_curve: str | None
    seeds: int | None
    output_dir: Path | None
    overwrite: bool

    def __bool__(self) -> bool:
        return self.label_errors or self.learning_curve is not None

    def refuse_incomplete(self) -> None:
        """Raise UsageError for an option without effect, or a wrong one."""
        needs = {
            "--folds": (self.folds, self.label_errors, "--label-errors"),
            "--seeds": (self.seeds, self.learning_curve, "--learning-curve"),
            "--output-dir": (self.output_dir, self, "--label-errors or --learning-curve"),
            "--overwrite": (self.overwrite, self, "--label-errors or --learning-curve"),
        }
        for flag, (given, needed, name) in needs.items():
            if given and not needed:
                raise UsageError(f"{flag} has no effect without {name}", hint=f"add {name}, or leave it out")
        self._shares()

    def refuse_unfit(self, recipe: Recipe) -> None:
        """Raise UsageError for a recipe that these checks do not apply to. recipe: resolved."""
        if self.label_errors:
            label_errors.refuse_classless(recipe)
        if self.learning_curve is not None:
            learning_curve.refuse_unevaluated(recipe)

    def _shares(self) -> list[float]:
        return [] if self.learning_curve is None else learning_curve.parse_shares(self.learning_curve)

    def run(self, recipe: Recipe, rows: Examples, *, name: str, model: str, count: int) -> dict[str, Any]:
        """Train what is not trained yet, and show what is found, as returned. count: of rows to show.

        recipe: resolved; name: what finetune calls it. rows: to train on, standardized. Raises UsageError, MachineError.
        """
        assert self.output_dir is not None
        if self.label_errors:
            label_errors.refuse_trained(model, recipe, rows)
        accelerator = start_accelerator(recipe.training.device)
        reads: list[str | Path] = [model, *input_paths(recipe, name)]
        folder = OutputFolder.prepare(self.output_dir, OUTPUT, resume=True, overwrite=self.overwrite, reads=reads)
        start, found = ToTrain(recipe, name, model, self.output_dir), {}
        with replaced(folder, accelerator):
            if self.label_errors:
                found["label_errors"] = label_errors.find_label_errors(start, self.folds or 5)
                show(label_errors.report_label_errors(found["label_errors"], self.output_dir, count))
            if shares := self._shares():
                found["learning_curve"] = learning_curve.measure_learning_curve(start, shares, seeds=self.seeds or 3)
                show(learning_curve.report_learning_curve(found["learning_curve"]))
        return found
