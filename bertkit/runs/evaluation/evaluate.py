"""`bertkit eval`: the scores of a model, with intervals, per-class tables, warnings and the worst errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit import progress
from bertkit.errors import UsageError, listed, plural
from bertkit.files import write_files
from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.classification import load_metrics
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import refuse_too_many_segments
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.report import Finding, Piece, Report, Table, show
from bertkit.runs.encoded import Split, encode_split
from bertkit.runs.evaluation.held_out_corpora import evaluate_corpora
from bertkit.runs.evaluation.seen_rows import warn_if_seen
from bertkit.runs.inference.language_model import is_language_model, refuse_task_options
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.output_paths import refuse_unfit_folder
from bertkit.runs.scoring import Scored, published_scores
from bertkit.runs.series import runs_to_use
from bertkit.runs.target import Opened, open_target, refuse_shared_pipes
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.saved import refuse_code
from bertkit.tasks.task import Task
from bertkit.training.state import is_loss


class Predicted(NamedTuple):
    """A model's predictions, one per row."""

    task: Task
    predictions: list[Prediction]
    truth: Sequence[Any]
    examples: Examples

    def scorer(self) -> Scorer:
        """A function that scores any of these rows."""
        return self.task.scorer(self.predictions, self.truth)

    def errors(self) -> NDArray[np.float64]:
        """(rows,) how wrong each prediction is; 0 if right."""
        return np.array([self.task.error(*pair) for pair in zip(self.predictions, self.truth, strict=True)])

    def worst(self, count: int) -> tuple[list[int], str]:
        """The rows with the greatest errors, at most `count`, and how many there are, in words."""
        errors = self.errors()
        worst = [int(row) for row in np.argsort(-errors, kind="stable")[:count] if errors[row] > 0]
        return worst, f"the worst {len(worst)} of {plural(int((errors > 0).sum()), 'error')}" if worst else "no errors"

    def laid_out(self, row: int) -> dict[str, list[Piece]]:
        """A row for an HTML page, as returned by `Task.laid_out`."""
        return self.task.laid_out(self.predictions[row], self.truth[row], self.examples, row)


class Evaluated(NamedTuple):
    """predictor: the model that predicted; trained_from: the model that it was fine-tuned from. rows: of each split, as read.
    splits: the same rows as examples and features.
    """

    predictor: TaskPredictor
    trained_from: str
    scored: Scored
    rows: dict[str, Examples]
    splits: dict[str, Split]

    def of(self, split: str) -> Predicted:
        """The predictions for a split."""
        scored = self.scored
        return Predicted(scored.task, scored.predictions[split], scored.truth[split], self.splits[split].examples)


def evaluate(
    name: str,
    recipe: str | None,
    overrides: Mapping[str, Any],
    *,
    splits: Sequence[str] = (),
    corpora: Sequence[str] = (),
    output_dir: Path | None = None,
    ensemble: bool = False,
    intervals: bool = False,
    errors: int = 0,
    on_scores: Callable[[dict[str, Any]], object] = lambda scores: None,
) -> dict[str, Any]:
    """Show and return a model's scores on splits, or those of a pre-trained model on the held-out part of corpora.

    splits, corpora: by default those of the recipe, or of the run. output_dir: a folder to write the predictions into, if any.
    ensemble: average the runs of a series. intervals, errors: as in `report_scores`. on_scores: called with the scores before
    the predictions are written, so that a full disk cannot lose them. Raises UserError.
    """
    if output_dir is not None:
        refuse_unfit_folder(output_dir)
    run, *others = runs_to_use(name, ensemble=ensemble)
    if recipe is None and is_language_model(run):
        options = {"split": splits, "output_dir": output_dir, "intervals": intervals, "errors": errors}
        refuse_task_options({**overrides, **{option: value for option, value in options.items() if value}})
        scores = evaluate_corpora(run, corpora, overrides)
        show(Report([Table(name, ["score", "value"], [[*score] for score in scores.items()])]))
        on_scores(scores)
        return scores
    if corpora:
        what = "--corpus is for pre-trained models; this model is scored on the labelled rows of a task"
        raise UsageError(what, hint="leave it out; --split, --validation or --test chooses the rows")
    opened = open_target(run, recipe, overrides, others=others)
    found = evaluate_target(opened, splits)
    progress.note(f"computed in {found.predictor.precision.name}")
    report = report_scores(name, found, intervals=intervals, errors=errors)
    show(report)
    on_scores(report.json)
    if output_dir is not None and progress.is_main_process():
        write_predictions(opened.task, found, output_dir)
    return report.json


def evaluate_target(target: Opened, splits: Sequence[str] = (), *, checked: bool = False) -> Evaluated:
    """Predict and score every split; by default those of the target's recipe. checked: whether the remarks on their rows have
    been shown. Raises UsageError, DataError.
    """
    recipe = target.task.recipe.resolved()
    splits = splits or (recipe.first_eval_split, *recipe.eval_splits[1:])
    refuse_code(recipe)
    if note := load_metrics(recipe.metrics):
        progress.note(note)
    target.refuse_other_folds(splits)
    accelerator = start_accelerator(recipe.training.device)
    refuse_shared_pipes((recipe.validation, recipe.test), accelerator)
    target = target.with_recipe(recipe)
    predictor, rows = TaskPredictor(target, accelerator), target.read(splits)
    task = predictor.task
    tokenizer = target.pretrained.tokenizer
    data = {split: encode_split(task, split, examples, tokenizer, checked=checked) for split, examples in rows.items()}
    for name, split in data.items():
        refuse_too_many_segments(split.features, target.pretrained.config)
        warn_if_seen(target, task, name, split.examples, rows[name])
    scored = predictor.evaluate(data)
    accelerator.wait_for_everyone()
    return Evaluated(predictor, target.trained_from, scored, rows, data)


def score_intervals(scored: Scored) -> dict[str, list[float] | None]:
    """The 95% bootstrap interval of each score, "split/metric"; None if the score is undefined on every draw."""
    bounds: dict[str, list[float] | None] = {}
    for split, predictions in scored.predictions.items():
        draws = progress.with_bar(bootstrap.resampled(len(predictions)), "resample", bootstrap.RESAMPLES)
        found = bootstrap.intervals(scored.task.scorer(predictions, scored.truth[split]), draws)
        bounds |= {f"{split}/{name}": pair and list(pair) for name, pair in found.items()}
    return bounds


def report_scores(title: str, found: Evaluated, *, intervals: bool = False, errors: int = 0) -> Report:
    """Scores of each split, next to published ones; the task's tables and warnings, and the worst errors.

    intervals: whether to show each score's 95% interval. errors: number of worst errors to show per split.
    """
    scored, task = found.scored, found.scored.task
    published = published_scores(task.recipe, found.trained_from)
    parts: list[Table | Finding | Text] = []
    bounds = score_intervals(scored) if intervals else {}
    remarks = []
    for split, predictions in scored.predictions.items():
        truth = scored.truth[split]
        for part in task.report(predictions, truth):
            if isinstance(part, Table):
                parts.append(part._replace(title=f"{split}: {part.title}"))
            else:
                remarks.append(replace(part, what=f"{split}: {part.what}"))
        if errors:
            parts += _worst(found.of(split), errors, split)
        if warning := task.label_order_warning(predictions, truth):
            remarks.append(Finding("warning", f"{split}: {warning}"))
    columns = ["score", "value", *(["95% interval"] if intervals else [])]
    rows: list[list[Any]] = []
    for name, value in scored.scores.items():
        rows.append([name, value, *([progress.format_interval(bounds.get(name))] if intervals else [])])
        rows[-1] += [published.get(name)] if published else []
    parts.append(Table(title, columns + ([f"published, {found.trained_from}"] if published else []), rows))
    if constant := [name for name in scored.scores if intervals and not bounds.get(name) and not is_loss(name)]:
        parts.append(Finding("note", f"no interval for {listed(constant)}: all resamples of the rows have the same value"))
    parts += [Finding("note", f"published: {task.recipe.reference_source}")] if published else []
    return Report([*parts, *remarks], {**scored.scores, **({"intervals": bounds} if intervals else {})})


def write_predictions(task: Task, found: Evaluated, output_dir: Path) -> None:
    """Write the predictions, which replace earlier ones; those on further splits go into subfolders."""
    for number, name in enumerate(found.splits):
        folder = output_dir / name if number else output_dir
        _, predictions, truth, examples = found.of(name)
        write_files(folder, task.files(predictions, truth, examples), locked=False)
        progress.note(f"wrote the predictions on {name} to {folder}")


def _worst(found: Predicted, count: int, split: str) -> list[Finding | Text]:
    """The predictions with the greatest errors."""
    task, predictions, truth, examples = found
    worst, note = found.worst(count)
    parts: list[Finding | Text] = [Finding("note", f"{split}: {note}")]
    for row in worst:
        line = Text(f"{examples.where(row)}: expected ", style="dim") + plain(task.format_truth(truth[row], examples, row))
        predicted = task.format_prediction(predictions[row], examples, row)
        parts.append(line + Text("; predicted:\n" if "\n" in predicted.plain else "; predicted ", style="dim") + predicted)
    return parts
