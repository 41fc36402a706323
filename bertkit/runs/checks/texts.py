"""What `bertkit check` finds in texts: broken or repeated texts, and problems with their tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from bertkit.errors import plural
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples, is_blank
from bertkit.report import Finding
from bertkit.tasks.leaks import rows_by_text
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task

_MUCH_UNKNOWN = 0.01  # share of the tokens
_QUOTED = re.compile(r'"[^"]+(?:""[^"]*)*"|"(?:""[^"]*)+"')
_STEP = 8  # suggestions for --max-length are multiples of it
_SUSPICIOUS = {
    "U+FFFD, the replacement of characters lost to a wrong encoding": re.compile("\ufffd"),
    "UTF-8 read as Latin-1 or Windows-1252, such as \u00c3\u00a9 for \u00e9": re.compile(
        "[\u00c2-\u00c3][\u0080-\u00bf]|\u00e2\u20ac"
    ),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "HTML markup": re.compile(r"<br ?/?>|</?[pib]>|&(amp|lt|gt|quot|nbsp|#\d+);"),
}


def without_text(recipe: Recipe, split: str, examples: Examples, refusals: Sequence[Finding]) -> Iterator[Finding]:
    """Why training refuses a split, and rows without text; one finding if the latter is the reason."""
    empty = [row for row, texts in enumerate(recipe.texts_of(examples)) if all(map(is_blank, texts))]
    what = f"{split}: {plural(len(empty), 'row')} without text"
    places = {examples.where(row) for row in empty}
    reason = next((refusal for refusal in refusals if places.intersection(refusal.places)), None)
    yield from (refusal for refusal in refusals if refusal is not reason)
    if reason is not None:
        severity = "error" if reason.severity == "error" else "warning"
        yield Finding(severity, what + reason.what.removeprefix(split), examples.places(empty), reason.hint)
    elif empty:
        yield Finding("warning", what, examples.places(empty), "fix or remove them")


def check_texts(recipe: Recipe, split: str, examples: Examples) -> Iterator[Finding]:
    for name, pattern in _SUSPICIOUS.items():
        rows = [row for row, texts in enumerate(recipe.texts_of(examples)) if any(pattern.search(text) for text in texts)]
        if rows:
            severity = "note" if "HTML" in name else "warning"
            yield Finding(severity, f"{split}: {plural(len(rows), 'row')} with {name}", examples.places(rows), "clean the text")
    if not re.search(r"\.(tsv|tab)(\.\w+)?$", examples.source):
        return
    quoted, doubled = [], 0  # tables with quotes double those of a text
    for row, texts in enumerate(recipe.texts_of(examples)):
        if in_quotes := [*filter(_QUOTED.fullmatch, texts)]:
            quoted.append(row)
            doubled += any('""' in text[1:-1] for text in in_quotes)
    if doubled > 1 or len(quoted) > len(examples) / 2:
        what = f"{split}: {plural(len(quoted), 'row')} with a text in quotes, which are read as part of it"
        hint = "tab-separated files have no quotes: remove them, or name the file .csv"
        yield Finding("warning", what, examples.places(quoted), hint)


def duplicates(recipe: Recipe, split: str, examples: Examples) -> Iterator[Finding]:
    """Rows of a split with equal texts, with the same label and with different ones."""
    labels = recipe.labels_of(examples)
    contradictions: list[list[int]] = []
    repeats: list[list[int]] = []
    for rows in rows_by_text(recipe, examples).values():
        firsts = {labels[row]: row for row in reversed(rows)}  # the first row with each label
        if len(firsts) > 1:
            contradictions.append(sorted(firsts.values()))
        elif len(rows) > 1:
            repeats.append(rows)
    if contradictions:
        one = "number" if recipe.predicts_numbers else "label"
        what = f"{split}: {plural(len(contradictions), 'text')} with different {one}s"
        yield Finding("warning", what, examples.places([*chain.from_iterable(contradictions)]), f"choose one {one} for each")
    if repeats:
        what = f"{split}: {plural(sum(len(rows) - 1 for rows in repeats), 'duplicate row')}"
        yield Finding("note", what, examples.places([*chain.from_iterable(repeats)]), "remove them unless they are intended")


def check_tokens(
    recipe: Recipe, split: str, examples: Examples, pretrained: Pretrained
) -> tuple[dict[str, float], list[Finding]]:
    tokenizer, positions = pretrained.tokenizer, pretrained.config.max_position_embeddings
    features, _ = Task.unfitted(recipe).encode(examples, tokenizer, max_length=math.inf, labelled=False)
    per_sequence, limit = features.input_ids.lengths, recipe.training.max_length
    if not len(per_sequence):  # no row has a word, which is a finding of its own
        return {}, []
    lengths = {
        "mean": float(per_sequence.mean()),
        **{f"{percent}%": float(np.percentile(per_sequence, percent)) for percent in (50, 90, 99)},
        "longest": float(per_sequence.max()),
    }
    findings = []
    if longer := int((per_sequence > limit).sum()):
        findings.append(_too_long(recipe, split, longer, per_sequence, positions))
    elif split == recipe.train_split and (needed := int(-(-lengths["longest"] // _STEP) * _STEP)) < limit:
        findings.append(Finding("note", f"{split}: --max-length {needed} is enough for every sequence"))
    unknown = features.input_ids.values == tokenizer.unk_token_id
    if share := float(unknown.mean()):
        # Nothing is truncated, so a row has one feature, or none if it has no words.
        whole = [int(row) for feature, row in enumerate(features.examples) if _all_unknown(features, feature, unknown)]
        much = share > _MUCH_UNKNOWN
        hint = "does the model's vocabulary match the data's language, alphabet and case?" if much else None
        findings.append(Finding("warning" if much else "note", f"{split}: {share:.2%} of the tokens are [UNK]", hint=hint))
        if whole:
            what = f"{split}: {plural(len(whole), 'row')} with nothing but [UNK]"
            findings.append(Finding("warning", what, examples.places(whole)))
    return lengths, findings


def _too_long(recipe: Recipe, split: str, longer: int, lengths: Any, positions: int) -> Finding:
    """What happens to sequences longer than --max-length."""
    limit = recipe.training.max_length
    what = f"{split}: {longer} of {plural(len(lengths), 'sequence')} longer than --max-length {limit}"
    if not recipe.truncates:
        return Finding("note", f"{what}, split into windows")
    needed = int(-(-float(np.percentile(lengths, 99)) // _STEP) * _STEP)
    hint = f"99% fit in --max-length {needed}" if limit < needed <= positions else None
    if needed > positions:
        option = Task.families[recipe.family].untruncated_by
        whole = f"; {option} reads the whole text" if option else ""
        hint = f"the model takes at most {positions} tokens{whole}"
    return Finding("warning" if longer > len(lengths) / 100 else "note", what, hint=hint)


def _all_unknown(features: Any, feature: int, unknown: Any) -> bool:
    """Whether a feature's first sequence is only [UNK], apart from special tokens."""
    first = features.offsets[feature]
    start, end = features.input_ids.offsets[first : first + 2]
    return end - start > 2 and bool(unknown[start + 1 : end - 1].all())
