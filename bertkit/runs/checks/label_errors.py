"""`bertkit check --label-errors`: every row is judged by the fold that was not trained on it; then all rows are ranked."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit import progress
from bertkit.errors import UsageError, plural
from bertkit.files import read_json, relative, write_files, write_json
from bertkit.metrics.confident_learning import ConfidentLearning, Judged, Verdicts
from bertkit.model.config import PRETRAINING
from bertkit.model.devices import Processes, start_accelerator
from bertkit.readers import Examples
from bertkit.report import Finding, Report, Table
from bertkit.runs.encoded import hash_of_rows
from bertkit.runs.finetuning.series import finetune_series
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.prediction.writers import Csv
from bertkit.runs.request import Request
from bertkit.runs.run_file import read_run_file
from bertkit.runs.series import FOLDS
from bertkit.runs.target import open_target
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import to_json
from bertkit.tasks.splits import read_splits

RUNS, RANKED, FOUND = "folds", "label_errors.csv", "label_errors.json"
WORST = 100  # rows in label_errors.json


class JudgedFold(NamedTuple):
    """The rows that a fold's model was not trained on, with label names, and its judgements. words: for tags, as the model
    reads them. truth: as text.
    """

    examples: Examples
    words: Sequence[list[str]] | None
    texts: Sequence[tuple[str, ...]]
    truth: Sequence[str]
    judged: dict[str, Judged]


def refuse_classless(recipe: Recipe) -> None:
    """Raise UsageError for labels that are not classes. recipe: resolved."""
    if not recipe.has_classes or recipe.predicts_numbers:
        what = "label errors can be found only in classes, several labels per text, and tags"
        hint = "leave out --label-errors: check shows what else is wrong with these rows"
        kind = f"{recipe.family} with --regression" if recipe.has_classes else recipe.family
        raise UsageError(f"{what}; this recipe is {kind}", hint=hint)


def refuse_or_warn_of_trained(request: Request, rows: Examples) -> None:
    """Raise UsageError for a model that was fine-tuned on the rows to judge; warn about any other fine-tuned one.

    Both may have memorized labels. request: its recipe is resolved. rows: standardized.
    """
    model, recipe = request.model, request.recipe
    run = read_run_file(Path(model)) if Path(model).is_dir() else None
    if run is None or run["recipe"].get("family") == PRETRAINING:
        return
    hint = f"start from its own base model: --model {run['model']['name']}"
    own, of_rows = to_json(recipe, name=""), hash_of_rows(recipe, rows)
    of_same_data = all(run["recipe"].get(source) == own.get(source) for source in ("train", "data", "dataset"))
    if of_same_data or any(of.get("rows_sha256") == of_rows for of in run["data"].values()):
        what = "the model was trained on these very rows and would repeat their labels"
        raise UsageError(what, where=model, hint=hint)
    progress.warn(f"{model} is a fine-tuned run: if it saw some of these rows, it may have memorized their labels; {hint}")


def find_label_errors(request: Request, output_dir: Path, *, folds: int) -> dict[str, Any]:
    """Train the folds that are not trained yet, and rank all training rows by how likely their labels are wrong.

    request: its recipe is resolved, and its head fresh. Returns the content of label_errors.json: numbers of rows and labels,
    `pairs` of given and suggested labels with their counts, and the `worst` rows. All rows are in label_errors.csv. Raises what
    fine-tuning raises. Call `refuse_classless` and `refuse_or_warn_of_trained` first.
    """
    recipe = request.recipe
    if getattr(recipe, "intent", False):
        progress.note("--label-errors judges the tags of words; intents are not judged")
    accelerator = start_accelerator(recipe.training.device)
    finetune_series(FOLDS, request, output_dir / RUNS, count=folds, is_part=True)
    read: dict[str, Examples] = {}  # so that all folds read the file only once
    own = [FOLDS.run(recipe, number, folds).resolved() for number in range(1, folds + 1)]
    trained = zip(own, FOLDS.runs_in(output_dir / RUNS), strict=True)
    rows, values = _ranked([_judge(*fold, read, accelerator) for fold in trained])
    found = {"rows": len(rows), "folds": folds, "model": request.model, **values, "worst": rows[:WORST]}
    if accelerator.is_main_process:
        table = Csv(list(rows[0]), safe=True)
        content = table.begin() + table.write(rows)
        path, before = output_dir / RANKED, read_json(output_dir / FOUND).get("ranked_sha256")
        found["ranked_sha256"] = _hash(content)
        if path.is_file() and _hash(path.read_bytes()) not in (before, _hash(content)):
            progress.note(f"{path} has been changed since and is kept; remove it to have it written again")
        else:
            write_files(output_dir, {RANKED: lambda aside: aside.write_bytes(content)})
        write_json(output_dir / FOUND, found)
    return found


def _hash(content: bytes) -> str:
    return sha256(content.removeprefix(BOM_UTF8)).hexdigest()  # which a spreadsheet may leave out


def _judge(recipe: Recipe, run: Path, read: dict[str, Examples], processes: Processes) -> JudgedFold:
    """A fold's judgement of the rows that it held out. recipe: the fold's own."""
    target = open_target(str(run), None, {}, to_predict=True, quiet=True)
    task, held_out = target.task, read_splits(recipe, ["validation"], read=read).rows["validation"]
    examples = task.examples(held_out, labelled=True)
    predictor = TaskPredictor(target, processes)
    split, _ = predictor.encode(examples)
    with progress.bar(f"judge {run.name}", len(split.features)) as bar:
        judged = predictor.judge(split, bar)
    truth = [task.format_truth(each, examples, row) for row, each in enumerate(task.truth(examples))]
    return JudgedFold(examples, task.judged_words(examples), [*task.recipe.texts_of(examples)], truth, judged)


def _ranked(folds: Sequence[JudgedFold]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows of the table, the most suspicious first, ranked by their worst labels; and the counts."""
    rows = [(fold, row) for fold in folds for row in range(len(fold.examples))]
    begins = np.cumsum([0, *(len(fold.examples) for fold in folds)]).tolist()
    learned, verdicts = [], []
    for kind in folds[0].judged:
        parts = [fold.judged[kind] for fold in folds]
        judged = Judged.join([part._replace(rows=part.rows + begin) for part, begin in zip(parts, begins, strict=False)])
        learned.append(ConfidentLearning.of(judged))
        verdicts.append(Verdicts.of(judged, learned[-1]))
    ranked = Verdicts._make(map(np.concatenate, zip(*verdicts, strict=True))).ranked()
    errors = ranked.are_errors
    counts = np.bincount(ranked.rows, errors, minlength=len(rows)).astype(int).tolist()
    worst = ranked.worst()
    several = len(worst.rows) < len(ranked.rows)  # labels a row
    each = map(Verdicts._make, zip(*(values.tolist() for values in worst), strict=True))
    table = [{**_judged_row(*rows[one.rows], one, several=several), "likely_errors": counts[one.rows]} for one in each]
    hits, of_most_frequent = np.sum([each.hits for each in learned], axis=0) / len(errors)
    pairs = Counter(zip(ranked.given[errors], ranked.suggested[errors], strict=True)).most_common()
    return table, {
        "labels": len(errors),
        "accuracy": round(float(hits), 4),
        "accuracy_of_most_frequent_label": round(float(of_most_frequent), 4),
        "likely_errors": int(errors.sum()),
        "rows_with_likely_errors": sum(count > 0 for count in counts),
        "expected_errors": round(sum(each.expected_errors for each in learned), 1),
        "pairs": [{"given": given, "suggested": suggested, "count": count} for (given, suggested), count in pairs],
    }


def _judged_row(fold: JudgedFold, row: int, found: Any, *, several: bool) -> dict[str, Any]:
    """A row of the table. found: the one of `Verdicts` for the row's worst label. several: whether rows have several labels."""
    other = found.suggested != found.given
    return {
        "file": relative(fold.examples.source),
        "row": fold.examples.lines[row],
        **dict(zip(("text", "text_pair"), fold.texts[row], strict=False)),
        **({"labels": fold.truth[row]} if several else {}),
        **({"word": fold.words[row][found.places], "place": found.places + 1} if fold.words else {}),
        "given": found.given,
        "suggested": found.suggested if other else "",
        "score": round(found.scores, 6),
        "given_probability": round(found.of_given, 6),
        "suggested_probability": round(found.of_suggested, 6) if other else None,
    }


def report_label_errors(found: Mapping[str, Any], folder: Path, count: int) -> Report:
    """Tables of the pairs and of the first `count` rows. found: from `find_label_errors`, or label_errors.json."""
    pairs = [[*pair.values()] for pair in found["pairs"][:count]]
    title = "likely errors"
    if len(pairs) < len(found["pairs"]):
        title += f": the {len(pairs)} most frequent of {len(found['pairs'])} pairs"
    shown = ("row", "text", "text_pair", "word", "given", "suggested", "score")
    columns = [name for name in shown if name in found["worst"][0]]
    worst = [[*(each[name] for name in columns), "yes" if each["likely_errors"] else ""] for each in found["worst"][:count]]
    what = f"{found['likely_errors']} of {plural(found['labels'], 'label')} are likely errors, in "
    what += f"{found['rows_with_likely_errors']} of {plural(found['rows'], 'row')}; "
    what += f"about {found['expected_errors']:g} are wrong according to the confident joint"
    accuracy, least = (found.get(name, 1.0) for name in ("accuracy", "accuracy_of_most_frequent_label"))
    weak = accuracy <= least + 2 * math.sqrt(least * (1 - least) / found["labels"])  # two standard errors
    doubt = f"the models agree with {accuracy:.0%} of the labels, hardly more than the most frequent label alone ({least:.0%})"
    return Report(
        [
            *([Finding("warning", f"{doubt}: do not trust this list; train longer")] if weak and least < 1 else []),
            *([Table(title, ["given", "suggested", "count"], pairs)] if pairs else []),
            Table("most suspicious rows", [*columns, "likely error"], worst),
            Finding("note", "score: 0 means that the model is sure of another label, 1 that it is sure of the given one"),
            Finding("note", what),
            Finding("note", f"all rows, ranked: {folder / RANKED}"),
        ],
        found,
    )
