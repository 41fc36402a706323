"""The checks that train models, --label-errors and --learning-curve: their options and their output folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import UsageError
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.model.devices import start_accelerator
from bertkit.readers import Examples
from bertkit.report import show
from bertkit.runs.checks import label_errors, learning_curve
from bertkit.runs.directory import replaced
from bertkit.runs.request import Request
from bertkit.tasks.recipe import Recipe

_FILES = (label_errors.RUNS, label_errors.RANKED, label_errors.FOUND, learning_curve.RUNS, learning_curve.FOUND)
OUTPUT = Kind("check of labels", None, re.compile("|".join(map(re.escape, _FILES))))


@dataclass(frozen=True)
class TrainingChecks:
    """The options of the checks that train. learning_curve: percentages of the training rows, such as "25,50,100"."""

    label_errors: bool
    folds: int | None
    learning_curve: str | None
    seeds: int | None
    output_dir: Path | None
    overwrite: bool

    @property
    def requested(self) -> bool:
        return self.label_errors or self.learning_curve is not None

    def refuse_without_effect(self) -> None:
        """Raise UsageError for an option of a check that is not requested, and for wrong percentages."""
        needs = {
            "--folds": (self.folds, self.label_errors, "--label-errors"),
            "--seeds": (self.seeds, self.learning_curve, "--learning-curve"),
            "--output-dir": (self.output_dir, self.requested, "--label-errors or --learning-curve"),
            "--overwrite": (self.overwrite, self.requested, "--label-errors or --learning-curve"),
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

    def run(self, request: Request, rows: Examples, *, count: int) -> dict[str, Any]:
        """Train what is not trained yet, and show what is found, as returned. count: of rows to show.

        request: its recipe is resolved, and its head fresh. rows: to train on, standardized. Raises UsageError, MachineError.
        """
        assert self.output_dir is not None
        if self.label_errors:
            label_errors.refuse_or_warn_of_trained(request, rows)
        accelerator = start_accelerator(request.recipe.training.device)
        folder = OutputFolder.prepare(self.output_dir, OUTPUT, resume=True, overwrite=self.overwrite, reads=request.reads)
        found = {}
        with replaced(folder, accelerator):
            if self.label_errors:
                found["label_errors"] = label_errors.find_label_errors(request, self.output_dir, folds=self.folds or 5)
                show(label_errors.report_label_errors(found["label_errors"], self.output_dir, count))
            if shares := self._shares():
                found["learning_curve"] = learning_curve.measure_learning_curve(
                    request, self.output_dir, shares, seeds=self.seeds or 3
                )
                show(learning_curve.report_learning_curve(found["learning_curve"]))
        return found
