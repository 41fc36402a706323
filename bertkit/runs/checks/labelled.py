"""Problems of labelled data: labels, duplicates, characters, and lengths as the model sees them.

Every check runs on every split; none stops at the first problem. Data with an error cannot be trained on, or its scores are
meaningless; a warning costs accuracy; a note is good to know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertkit.config import filled
from bertkit.errors import DataError, excerpt, listed, plural, quoted
from bertkit.model.precision import refuse_int8
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples, Remarks
from bertkit.readers.faults import summary_of
from bertkit.report import SEVERITIES, Finding, Report, Table
from bertkit.runs.checks.texts import check_texts, check_tokens, duplicates, without_text
from bertkit.tasks.class_loss import ClassLossRecipe
from bertkit.tasks.defaults import choose_settings
from bertkit.tasks.labels import misspelt
from bertkit.tasks.leaks import leaks
from bertkit.tasks.recipe import Recipe, settle_columns
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task

_ROW = re.compile(r":\d+$")  # of a place in a file
_RARE = 10  # labels with fewer training rows are hardly learned
_SHOWN = 12  # of labels, in a line


@dataclass(frozen=True)
class Checked:
    """splits: the examples of the splits that could be read. labels: counts of labels. numbers: statistics of regression
    targets. lengths: statistics of tokens per sequence, if a model is given. All by split.
    """

    splits: dict[str, Examples]
    findings: list[Finding]
    labels: dict[str, Counter[str]]
    numbers: dict[str, dict[str, float]]
    lengths: dict[str, dict[str, float]]
    remarks: Remarks = Remarks()

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def report(self, title: str) -> Report:
        """Tables of labels and lengths, and the findings sorted by severity."""
        by_severity = (("note", self.remarks.notes), ("warning", self.remarks.warnings))
        remarks = [Finding(severity, line) for severity, lines in by_severity for line in lines]
        findings = sorted([*remarks, *self.findings], key=lambda finding: SEVERITIES.index(finding.severity))
        parts: list[Table | Finding] = [*remarks]
        for split, numbers in self.numbers.items():
            cells = [f"{value:g}" for value in numbers.values()]
            parts.append(Table(f"{title}: target values of {split}", list(numbers), [cells]))
        if names := list(dict.fromkeys(name for counts in self.labels.values() for name, _ in counts.most_common())):
            rows = [[name, *(counts.get(name, 0) for counts in self.labels.values())] for name in names[:30]]
            more = f": the 30 most frequent of {len(names)}" if len(names) > 30 else ""
            parts.append(Table(f"{title}: labels{more}", ["label", *self.labels], rows))
        if self.lengths:
            columns = list(next(iter(self.lengths.values())))
            rows = [[split, *(str(round(lengths[name], 1)) for name in columns)] for split, lengths in self.lengths.items()]
            parts.append(Table(f"{title}: tokens per sequence", ["split", *columns], rows))
        counts = Counter(finding.severity for finding in findings)
        total = ", ".join(plural(counts[severity], severity) for severity in SEVERITIES)
        values = {
            "rows": {split: len(examples) for split, examples in self.splits.items()},
            "labels": {split: dict(counts.most_common()) for split, counts in self.labels.items()},
            **({"numbers": self.numbers} if self.numbers else {}),
            "lengths": self.lengths,
            "findings": [asdict(finding) for finding in findings],
        }
        own = sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        return Report([*parts, *own, Finding("note", total)], values)


def check_data(recipe: Recipe, splits: Sequence[str], pretrained: Pretrained | None) -> Checked:
    """Check the splits of a recipe; the first is for training. Without a model, tokens are not checked."""
    refuse_int8(recipe.training.precision, "training")
    if recipe.names_files and "validation" not in splits:  # rows to be held out are checked with the others
        recipe = replace(recipe, validation=recipe.train)
    rows, findings = _read(recipe, splits)
    known = [place for finding in findings for place in finding.places]
    faults = [finding.what.partition(": ")[2] for finding in findings if finding.places]  # without the split's name
    lists_all = recipe.on_error == "fail" and any(map(_ROW.search, known))
    if lists_all:  # to list all broken rows, and to check the others
        recipe = replace(recipe, on_error="skip")
        rows, _ = _read(recipe, splits)
    if recipe.data and splits[0] == "train" and not recipe.eval_splits:
        what = "there are no rows to evaluate on, which finetune needs"
        findings.append(Finding("warning", what, (recipe.data,), "add a validation file, or --validation 10%"))
    recipe, remarks = _settled(recipe, rows.get(splits[0]), pretrained)
    standardized = {split: _standardized(recipe, split, own) for split, own in rows.items()}
    examples_of = {split: each.examples for split, each in standardized.items() if each.examples is not None}
    for split, each in standardized.items():
        own = each.remarks
        if lists_all:
            if others := [why for why in own.left_out if not any(f"({place})" in why for place in known)]:
                what = f"{split}: {summary_of(others, verb='cannot use')}"
                findings.append(Finding("error", what, (), "correct or remove them, or leave them out with --on-error skip"))
            own = Remarks(own.notes, tuple(line for line in own.warnings if not any(fault in line for fault in faults)))
        remarks += Remarks(*(tuple(f"{split}: {line}" for line in lines) for lines in own.summed()))
    labels, numbers = _counted(recipe, examples_of)
    labelled = {split: examples for split, examples in examples_of.items() if standardized[split].is_labelled}
    of_labels, of_task, named = _label_faults(recipe, labelled, labels)
    labels |= _counted(recipe, named)[0]  # as the task spells them
    remarks += of_task
    findings += [*of_labels, *_check_labels(recipe, labels, splits[0])]
    for split, each in standardized.items():
        findings += _check_split(recipe, split, each)
    findings += leaks(recipe, splits[0], examples_of)
    findings = [finding for finding in findings if finding.what not in remarks.warnings]  # of rows that were read again
    lengths: dict[str, dict[str, float]] = {}
    if pretrained is not None:
        for split, examples in examples_of.items():
            of_split, of_tokens = check_tokens(recipe, split, examples, pretrained)
            lengths |= {split: of_split} if of_split else {}
            findings += of_tokens
    return Checked(examples_of, findings, labels, numbers, lengths, remarks)


def _read(recipe: Recipe, splits: Sequence[str]) -> tuple[dict[str, Examples], list[Finding]]:
    """The rows of the splits that can be read, and why the others cannot."""
    rows: dict[str, Examples] = {}
    findings: dict[str, Finding] = {}  # by what is said, which held-out rows share with the training rows
    for split in splits:
        try:
            rows |= read_splits(recipe, [split]).rows
        except DataError as error:
            findings.setdefault(str(error), _error(split, error))
            for line in error.warnings:
                findings.setdefault(line, Finding("warning", f"{split}: {line}"))
    return rows, [*findings.values()]


def _settled(recipe: Recipe, training: Examples | None, pretrained: Pretrained | None) -> tuple[Recipe, Remarks]:
    """The recipe with its columns and, if a model is given, the settings that finetune would choose. training: its rows."""
    chosen: dict[str, Any] = {}
    remarks = Remarks()
    if training is not None:
        with suppress(DataError):  # raised again, and reported, when the split is standardized
            columns = settle_columns(recipe, training)
            recipe, remarks = replace(recipe, **columns.named), columns.remarks
            if pretrained is not None:
                chosen = choose_settings(recipe, training, pretrained)
    return replace(recipe, training=filled(recipe.training, chosen)), remarks


def _counted(recipe: Recipe, splits: Mapping[str, Examples]) -> tuple[dict[str, Counter[str]], dict[str, dict[str, float]]]:
    """The counts of each split's labels, and the statistics of its numbers if the task is regression."""
    names_of = {split: [*chain.from_iterable(recipe.labels_of(examples))] for split, examples in splits.items()}
    if recipe.predicts_numbers:
        return {split: Counter() for split in splits}, {split: _statistics(names) for split, names in names_of.items()}
    return {split: Counter(names) for split, names in names_of.items()}, {}


def _check_split(recipe: Recipe, split: str, own: _Standardized) -> Iterator[Finding]:
    """What a split has to report by itself, except for labels and tokens."""
    if own.examples is None:
        yield from own.refused
        return
    yield from without_text(recipe, split, own.examples, own.refused)
    yield from check_texts(recipe, split, own.examples)
    yield from duplicates(recipe, split, own.examples)
    if own.is_labelled:
        yield from (replace(each, what=f"{split}: {each.what}") for each in Task.unfitted(recipe).check(own.examples))


class _Standardized(NamedTuple):
    """examples: of a split; None if they cannot be used even without labels. refused: why the split cannot be trained on.
    is_labelled: whether the examples have labels; in text classification, they may have some even if `refused` is not empty.
    remarks: on the examples, or on the rows as they were read, which may explain why they cannot be used.
    """

    examples: Examples | None
    refused: list[Finding]
    is_labelled: bool
    remarks: Remarks


def _standardized(recipe: Recipe, split: str, rows: Examples) -> _Standardized:
    refused: list[Finding] = []
    try:
        examples = recipe.standardize(rows, labelled=True)
        return _Standardized(examples, refused, is_labelled=True, remarks=examples.remarks)
    except DataError as error:
        finding = _error(split, error)
        if split not in recipe.splits:  # a test split may have no labels
            finding = replace(finding, severity="note", what=f"{split}: cannot be scored: {error.what}", hint=None)
        refused.append(finding)
        others = _others_refused(recipe, split, rows, error.where) if finding.severity == "error" else []
    blank = Task.families[recipe.family].refuses_only_blank  # these rows are listed anyway
    try:
        examples = recipe.standardize(rows, labelled=False)
        refused += [] if blank else others
        return _Standardized(examples, refused, is_labelled="label" in examples.columns, remarks=rows.remarks)
    except DataError as error:
        refused += others or [finding for finding in [_error(split, error)] if finding not in refused]
        return _Standardized(None, refused, is_labelled=False, remarks=rows.remarks)


def _others_refused(recipe: Recipe, split: str, rows: Examples, reported: str | None) -> list[Finding]:
    """The rows that training would refuse too, besides the one at the place `reported`."""
    with suppress(DataError):  # it is not the fault of a row
        every = replace(recipe, on_error="skip").refused(rows, labelled=True) if recipe.on_error != "skip" else {}
        if others := [why for row, why in every.items() if rows.where(row) != reported]:
            what = f"{split}: {plural(len(others), 'more row')} cannot be used: {listed(others, 5, '; ')}"
            return [Finding("error", what, hint="fix them, or leave them out with --on-error skip")]
    return []


def _error(split: str, error: DataError) -> Finding:
    return Finding("error", f"{split}: {error.what}", (error.where,) if error.where else (), error.hint)


# --- labels ------------------------------------------------------------------------------------------------------------------


def _label_faults(
    recipe: Recipe, splits: Mapping[str, Examples], labels: Mapping[str, Counter[str]]
) -> tuple[list[Finding], Remarks, dict[str, Examples]]:
    """Label errors that training would raise, except for labels missing from training; the remarks from fitting and naming
    labels; and the examples with the task's label names. splits: those with labels.
    """
    training = recipe.train_split
    needed = [split for split in splits if split in recipe.splits or labels[split]]
    if training not in needed:
        return [], Remarks(), {}
    try:
        task = Task.families[recipe.family].fit_examples(recipe, splits[training])
    except DataError as error:
        return [_error(training, error)], Remarks(), {}
    findings, remarks, named = [], task.remarks, {}
    known = {*labels[training], *task.labels}
    for split in needed:
        try:
            named[split] = task.name_labels(splits[split])
            notes = [note for note in named[split].remarks.notes if note not in splits[split].remarks.notes]
            remarks += Remarks(tuple(f"{split}: {note}" for note in notes))
        except DataError as error:
            if not (task.labels_are_classes and task.refuses_labels({*labels[split]} - known, known)):  # they are found anyway
                findings.append(_error(split, error))
    return findings, remarks, named


def _check_labels(recipe: Recipe, labels: Mapping[str, Counter[str]], training: str) -> Iterator[Finding]:
    known = labels.get(training)
    if not known:
        return
    if recipe.has_classes:
        yield from _check_classes(recipe, known, training)
    for split, counts in labels.items():
        if only := sorted(set(counts) - set(known)):
            hint = (
                "use one spelling, or add training rows with these labels"
                if recipe.has_classes
                else "add such rows to training"
            )
            severity = "error" if Task.unfitted(recipe).refuses_labels(only, known) else "warning"
            names = listed([*map(quoted, only)], _SHOWN)
            yield Finding(severity, f"{split}: labels missing from {training}: {names}", hint=hint)
        if split != training and (never := sorted(set(known) - set(counts))) and counts:
            yield Finding("note", f"{split}: {Task.families[recipe.family].no_row_has(never)}")


def _check_classes(recipe: Recipe, known: Counter[str], training: str) -> Iterator[Finding]:
    are_classes = Task.families[recipe.family].labels_are_classes
    common = [name for name, count in known.items() if count >= _RARE and are_classes]
    rare = sorted((name for name, count in known.items() if count < _RARE), key=known.__getitem__)
    if rare:
        weighted = isinstance(recipe, ClassLossRecipe) and recipe.other_loss is None
        hint = "add rows, merge labels, or try --class-weights balanced" if weighted else "add rows, or merge labels"
        meant = [misspelt(name, common) for name in rare[:_SHOWN]]
        suggestions = ["" if each is None else f", or {quoted(each)}?" for each in meant]
        cut = (quoted(excerpt(name, 40)) for name in rare)
        shown = [f"{name} ({known[own]}{more})" for own, name, more in zip(rare, cut, suggestions, strict=False)]
        names = listed(shown, _SHOWN, total=len(rare))
        yield Finding("warning", f"{training}: {plural(len(rare), 'label')} with fewer than {_RARE} rows: {names}", hint=hint)
    name, most = known.most_common(1)[0]
    if most > 0.9 * known.total() and len(known) > 1:
        share = f"{most / known.total():.1%} of labels are {quoted(name)}"
        yield Finding("note", f"{training}: {share}: accuracy says little; look at the F1 of the other labels")


def _statistics(numbers: Sequence[str]) -> dict[str, float]:
    """Statistics of the regression targets that are finite numbers; empty if none are."""
    parsed = []
    for number in numbers:
        with suppress(ValueError):
            parsed.append(float(number))
    values = np.array(parsed, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    summary = {"lowest": values.min(), "mean": values.mean(), "median": np.median(values), "highest": values.max()}
    return {name: float(value) for name, value in summary.items()} | {"different": float(len(np.unique(values)))}
