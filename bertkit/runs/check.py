"""What a model will see of labelled data, and what is wrong with it: labels, duplicates, lengths, characters.

Everything is looked for in every split, and nothing stops at the first fault. An error keeps the data from being trained on, or
its scores from meaning anything; a warning costs scores; a note is good to know.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import DataError, UsageError, listed
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.readers.formats import C3, CONLL, JSON, SQUAD, TEXTS, find_split_file, recognize
from bertkit.report import SEVERITIES, Checked, Finding
from bertkit.runs.directory import read_recipe, read_run_file, refuse_folder_of_runs
from bertkit.tasks import FAMILIES, MultipleChoice, QuestionAnswering, TextClassification, TokenClassification
from bertkit.tasks.labels import spelt_alike
from bertkit.tasks.recipe import Recipe, load_recipe, override
from bertkit.tasks.task import NOTHING_CUT

_RARE = 10  # times that a label stands in training, below which it is hardly learnt
_MUCH_UNKNOWN = 0.01  # of the tokens
_LEAKED = 0.01  # of the rows to evaluate on
_LOOKED_AT = 10_000  # characters of a file, to tell what it is
_STEP = 8  # --max-length is suggested in steps of so many tokens
_TROUBLE = {
    "U+FFFD, which stands for characters that a wrong encoding lost": re.compile("\ufffd"),
    "UTF-8 read as Latin-1 or Windows-1252, such as \u00c3\u00a9 for \u00e9": re.compile(
        "[\u00c2-\u00c3][\u0080-\u00bf]|\u00e2\u20ac"
    ),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]"),
    "marks of HTML": re.compile(r"<br ?/?>|</?[pib]>|&(amp|lt|gt|quot|nbsp|#\d+);"),
}


def open_data(target: str, recipe_name: str | None, typed: Mapping[str, Any]) -> tuple[Recipe, tuple[str, ...], str | None]:
    """The recipe of a run folder, a folder or file of data, or a name; its splits, training first; and the run's own model.

    A folder or file is of the recipe that is named, or of the family that it looks like. Raises UsageError, DataError.
    """
    path = Path(target)
    values = read_run_file(path) if path.is_dir() else None
    if values is not None:
        recipe = override(read_recipe(values, path), typed).with_data_typed(typed).settled()
        return recipe, _splits(recipe), target
    refuse_folder_of_runs(path)
    if path.is_dir():
        if "data" in typed:
            raise UsageError(f"--data names a second folder beside {target}", hint="leave out one of the two")
        recipe = override(load_recipe(recipe_name or _family_of_folder(path)), {"data": target, **typed}).settled_to_train()
        there = [split for split in (*_splits(recipe), "test") if recipe.folder.has(path, split, recipe.file_endings)]
        if not there:
            raise DataError("the folder holds no corpus, no run, and no file that is named after a split", where=target)
        evaluated = tuple(split for split in recipe.eval_splits if split in there)
        return replace(recipe, train_split=there[0], eval_splits=evaluated), tuple(dict.fromkeys(there)), None
    if path.is_file() and path.suffix != ".py":
        if "train" in typed:
            raise UsageError(f"--train names a second training file beside {target}", hint="leave out one of the two")
        recipe = override(load_recipe(recipe_name or _family_of_file(path)), {"train": target, **typed}).settled_to_train()
        if "validation" not in typed:  # all rows are looked at, and none held out
            recipe = replace(recipe, validation=recipe.train)
        return recipe, ("train", *(split for split in ("validation", "test") if split in typed)), None
    if recipe_name is not None:
        raise UsageError(f"--recipe says what a file or folder is for; {target} is a recipe", hint="leave out one of the two")
    if path.suffix not in ("", ".py"):
        raise DataError("there is no such file", where=target)
    recipe = override(load_recipe(target), typed).settled_to_train()
    if recipe.folder.files and recipe.train_split not in recipe.folder.files:  # a set to evaluate on alone
        recipe = replace(recipe, train_split=recipe.eval_splits[0])
    return recipe, _splits(recipe), None


def _splits(recipe: Recipe) -> tuple[str, ...]:
    return tuple(dict.fromkeys((recipe.train_split, *recipe.eval_splits)))


def _family_of_folder(folder: Path) -> str:
    """The family of a folder's files, by the first one that a split is named after."""
    endings = dict.fromkeys(ending for family in FAMILIES.values() for ending in family.file_endings)
    files = (find_split_file(folder, split, tuple(endings)) for split in ("train", "validation", "test"))
    return next((_family_of_file(file) for file in files if file is not None), TextClassification.family)


def _family_of_file(path: Path) -> str:
    """Which family a file looks like data of."""
    form, beginning = recognize(path, (CONLL, SQUAD, C3, *TEXTS))
    beginning = beginning[:_LOOKED_AT]
    if form is CONLL or (form is JSON and re.search(r'"(tags|ner_tags|entities)"\s*:', beginning)):
        return TokenClassification.family
    if form is SQUAD or (form is JSON and re.search(r'"context"\s*:', beginning)):
        return QuestionAnswering.family
    return MultipleChoice.family if form is C3 else TextClassification.family


def check_data(recipe: Recipe, splits: Sequence[str], pretrained: Pretrained | None) -> Checked:
    """Look at the splits of a recipe; the first is that of training. Without a model, tokens are not looked at."""
    with suppress(DataError):  # which reading the split will find again
        recipe = recipe.with_columns_found()
    findings: list[Finding] = []
    found: dict[str, Examples] = {}
    faulty: set[str] = set()  # splits that could not be read as training reads them
    for split in splits:
        before = len(findings)
        examples = _read(recipe, split, findings)
        if len(findings) > before:
            faulty.add(split)
        if examples is not None:
            found[split] = examples
    all_labels = {split: [name for its in recipe.labels_of(examples) for name in its] for split, examples in found.items()}
    regression = isinstance(recipe, TextClassification) and recipe.regression
    labels = {split: Counter[str]() if regression else Counter(its) for split, its in all_labels.items()}
    numbers = {split: _spread(its) for split, its in all_labels.items()} if regression else {}
    findings += [*_refused(recipe, found, labels, faulty), *_of_labels(recipe, labels, splits[0])]
    for split, examples in found.items():
        findings += [*_of_texts(recipe, split, examples), *_repeated(recipe, split, examples)]
        findings += _without_label(recipe, split, examples)
    findings += _shared(recipe, splits[0], found)
    lengths: dict[str, dict[str, float]] = {}
    if pretrained is not None:
        for split, examples in found.items():
            lengths[split], more = _of_tokens(recipe, split, examples, pretrained)
            findings += more
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Checked(found, findings, labels, numbers, lengths)


def _read(recipe: Recipe, split: str, findings: list[Finding]) -> Examples | None:
    """The examples of a split; where training would refuse them, as far as they can be read at all."""
    for to_predict in (False, True) if split in _splits(recipe) else (True,):
        try:
            return recipe.load(split, to_predict=to_predict)
        except DataError as error:
            if (finding := _error(split, error)) not in findings:
                findings.append(finding)
    return None


def _error(split: str, error: DataError) -> Finding:
    return Finding("error", f"{split}: {error.what}", (error.where,) if error.where else (), error.hint)


# --- labels ------------------------------------------------------------------------------------------------------------------


def _refused(
    recipe: Recipe, splits: Mapping[str, Examples], labels: Mapping[str, Counter[str]], faulty: Collection[str]
) -> Iterator[Finding]:
    """What training would refuse of the labels of its splits, but for labels that only one side has."""
    training = recipe.train_split
    classified = isinstance(recipe, TextClassification)
    read = [split for split, its in splits.items() if split not in faulty or (classified and "label" in its.columns)]
    needed = [split for split in _splits(recipe) if split in read]
    if training not in needed:
        return
    try:
        settled = recipe.with_labels(splits[training])
    except DataError as error:
        yield _error(training, error)
        return
    known = {*labels[training], *(getattr(settled, "labels", None) or ())}
    for split in needed:
        if known.issuperset(labels[split]):
            try:
                settled.gold(splits[split])
            except DataError as error:
                yield _error(split, error)


def _are_refused(recipe: Recipe, only: Sequence[str], known: Collection[str]) -> bool:
    """Whether training refuses labels that it does not have: classes always, tags that are known ones in other letters."""
    if isinstance(recipe, TextClassification):
        return not set(only) <= set(recipe.labels or ())
    return not {name.casefold() for name in only}.isdisjoint(name.casefold() for name in known)


def _of_labels(recipe: Recipe, labels: Mapping[str, Counter[str]], training: str) -> Iterator[Finding]:
    known = labels.get(training)
    if not known:
        return
    rare = [f"{name} ({count})" for name, count in sorted(known.items(), key=lambda item: item[1]) if count < _RARE]
    if rare:
        weighted = isinstance(recipe, TextClassification) and not recipe.multi_label
        hint = "add rows, join labels, or try --class-weights balanced" if weighted else "add rows, or join labels"
        yield Finding(
            "warning", f"{training}: {len(rare)} labels stand fewer than {_RARE} times: {listed(rare, 12)}", hint=hint
        )
    for names in spelt_alike(known):
        what = f"{training}: labels that differ in case or white space alone: {', '.join(map(repr, names))}"
        yield Finding("warning", what, hint="spell them alike")
    name, most = known.most_common(1)[0]
    if most > 0.9 * known.total() and len(known) > 1:
        yield Finding(
            "note", f"{training}: {most / known.total():.1%} are {name}: accuracy says little; watch F1 of the others"
        )
    for split, counts in labels.items():
        if only := sorted(set(counts) - set(known)):
            hint = "spell labels alike, or add rows that have them to training"
            severity = "error" if _are_refused(recipe, only, known) else "warning"
            yield Finding(severity, f"{split}: labels that {training} does not have: {listed(only, 12)}", hint=hint)
        if split != training and (never := sorted(set(known) - set(counts))) and counts:
            yield Finding("note", f"{split}: no row has {listed(never, 12)}, of which its scores say nothing")


def _without_label(recipe: Recipe, split: str, examples: Examples) -> Iterator[Finding]:
    """Rows of -1, which data sets write where there is no label: a user may have meant a class."""
    values = examples.columns.get("label", [])
    if not isinstance(recipe, TextClassification) or recipe.regression or "-1" in (recipe.labels or ()):
        return
    rows = [row for row, value in enumerate(values) if isinstance(value, (int, str)) and str(value) == "-1"]
    if 0 < len(rows) < len(values):
        what = f"{split}: {len(rows)} rows have the label -1, which stands for no label"
        yield _of_rows("warning", what, rows, examples, "where it is a class, name them all: --labels=-1,0,1")


def _spread(numbers: Sequence[str]) -> dict[str, float]:
    """What regression is to predict, of those that are numbers; nothing where none is."""
    found = []
    for number in numbers:
        with suppress(ValueError):
            found.append(float(number))
    values = np.array(found)[np.isfinite(found)] if found else np.array([])
    summaries: dict[str, Callable[[Any], Any]] = {"lowest": np.min, "mean": np.mean, "median": np.median, "highest": np.max}
    if not len(values):
        return {}
    return {name: float(summary(values)) for name, summary in summaries.items()} | {"different": float(len(np.unique(values)))}


# --- texts -------------------------------------------------------------------------------------------------------------------


def _of_texts(recipe: Recipe, split: str, examples: Examples) -> Iterator[Finding]:
    texts = recipe.texts_of(examples)
    empty = [row for row, its in enumerate(texts) if not any(text.strip() for text in its)]
    if empty:
        yield _of_rows("warning", f"{split}: {len(empty)} rows without text", empty, examples, "mend or remove them")
    for name, pattern in _TROUBLE.items():
        rows = [row for row, its in enumerate(texts) if any(pattern.search(text) for text in its)]
        if rows:
            severity = "note" if "HTML" in name else "warning"
            yield _of_rows(severity, f"{split}: {len(rows)} rows hold {name}", rows, examples, "clean the text")


def _repeated(recipe: Recipe, split: str, examples: Examples) -> Iterator[Finding]:
    """Rows of a split with equal texts: with the same labels, and with others."""
    labels = recipe.labels_of(examples)
    groups = [rows for rows in _by_text(recipe, examples).values() if len(rows) > 1]
    unlike = [rows for rows in groups if len({labels[row] for row in rows}) > 1]
    alike = [rows for rows in groups if len({labels[row] for row in rows}) == 1]
    if unlike:
        what = f"{split}: {len(unlike)} texts stand there with different labels"
        yield _of_rows("warning", what, [row for rows in unlike for row in rows], examples, "settle on one label each")
    if alike:
        what = f"{split}: {sum(map(len, alike)) - len(alike)} rows repeat another"
        yield _of_rows("note", what, [row for rows in alike for row in rows], examples, "remove what is no use twice")


def _shared(recipe: Recipe, training: str, splits: Mapping[str, Examples]) -> Iterator[Finding]:
    """Texts of the training data that other splits have too."""
    if training not in splits:
        return
    known = _by_text(recipe, splits[training])
    labels = recipe.labels_of(splits[training])
    for split, examples in splits.items():
        if split == training:
            continue
        own = recipe.labels_of(examples)
        both = [(row, known[text]) for text, rows in _by_text(recipe, examples).items() if text in known for row in rows]
        if not both:
            continue
        others = sum(bool(own[row]) and own[row] not in {labels[other] for other in seen} for row, seen in both)
        what = f"{split}: {len(both)} of {len(examples)} rows stand in {training} too"
        what += f", {others} of them with another label" if others else ""
        severity = "warning" if len(both) > _LEAKED * len(examples) else "note"
        yield _of_rows(severity, what, sorted(row for row, _ in both), examples, "remove them from one of the two")


def _by_text(recipe: Recipe, examples: Examples) -> dict[tuple[str, ...], list[int]]:
    """The rows of each text, but for case and white space; those without any are another finding."""
    rows: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, its in enumerate(recipe.texts_of(examples)):
        rows[tuple(" ".join(text.casefold().split()) for text in its)].append(row)
    return {texts: its for texts, its in rows.items() if any(texts)}


# --- tokens ------------------------------------------------------------------------------------------------------------------


def _of_tokens(
    recipe: Recipe, split: str, examples: Examples, pretrained: Pretrained
) -> tuple[dict[str, float], list[Finding]]:
    tokenizer, positions = pretrained.tokenizer, pretrained.config.max_position_embeddings
    features, _ = recipe.uncut().encode(examples, tokenizer, NOTHING_CUT, labelled=False)
    per_sequence, limit = features.input_ids.lengths, recipe.training.max_length
    lengths = {
        "mean": float(per_sequence.mean()),
        **{f"{percent}%": float(np.percentile(per_sequence, percent)) for percent in (50, 90, 99)},
        "longest": float(per_sequence.max()),
    }
    findings = []
    if longer := int((per_sequence > limit).sum()):
        findings.append(_longer(recipe, split, longer, per_sequence, positions))
    elif split == recipe.train_split and (needed := int(-(-lengths["longest"] // _STEP) * _STEP)) < limit:
        findings.append(Finding("note", f"{split}: nothing is longer than --max-length {needed}, which would do"))
    unknown = features.input_ids.values == tokenizer.unk_token_id
    if share := float(unknown.mean()):
        whole = [row for row in range(len(examples)) if _all_unknown(features, row, unknown)]
        much = share > _MUCH_UNKNOWN
        hint = "is it the model's language, alphabet and case?" if much else None
        what = f"{split}: {share:.2%} of the tokens are [UNK], for which the vocabulary has no pieces"
        findings.append(Finding("warning" if much else "note", what, hint=hint))
        if whole:
            findings.append(_of_rows("warning", f"{split}: {len(whole)} rows are [UNK] alone", whole, examples, None))
    return lengths, findings


def _longer(recipe: Recipe, split: str, longer: int, lengths: Any, positions: int) -> Finding:
    """What becomes of sequences that are longer than --max-length."""
    limit = recipe.training.max_length
    what = f"{split}: {longer} of {len(lengths)} sequences are longer than --max-length {limit}"
    cut_by = recipe.truncate if isinstance(recipe, TextClassification) else None
    if cut_by == "windows" or not isinstance(recipe, (TextClassification, MultipleChoice)):
        return Finding("note", f"{what}, and are read in windows")
    needed = int(-(-float(np.percentile(lengths, 99)) // _STEP) * _STEP)
    hint = f"99% fit in --max-length {needed}" if limit < needed <= positions else None
    if needed > positions:
        hint = f"the model takes {positions} tokens at most{'; --truncate windows reads all of a text' if cut_by else ''}"
    return Finding("warning" if longer > len(lengths) / 100 else "note", what, hint=hint)


def _all_unknown(features: Any, row: int, unknown: Any) -> bool:
    """Whether an example's first sequence is [UNK] but for its special tokens."""
    first = features.offsets[row]  # uncut, a feature a row
    start, end = features.input_ids.offsets[first : first + 2]
    return end - start > 2 and bool(unknown[start + 1 : end - 1].all())


def _of_rows(severity: str, what: str, rows: Sequence[int], examples: Examples, hint: str | None) -> Finding:
    return Finding(severity, what, tuple(examples.where(row) for row in rows[:3]), hint)
