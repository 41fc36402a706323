"""The labels for tags: their names, form and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, UsageError, did_you_mean, listed, plural
from bertkit.features import IGNORED
from bertkit.model.config import BertConfig
from bertkit.readers import Examples, Remarks
from bertkit.tasks.labels import labels_of_model, refuse_other_spellings, refuse_repeated
from bertkit.tasks.token_classification.faults import stray_tags_warning
from bertkit.tasks.token_classification.recipe import TokenClassification
from bertkit.tasks.token_classification.sentences import with_tags
from bertkit.tasks.token_classification.tags import (
    as_chunk_tags,
    canonical,
    convert,
    count_illegal,
    detect_scheme,
    respell,
    scheme_of,
)
from bertkit.tasks.token_classification.whole_words import whole_words


def refuse_other_tags(tags: Sequence[Sequence[str]], examples: Examples) -> None:
    """Raise DataError with the row if not all tags are chunk tags, as those of the training data were."""
    if detect_scheme(tags) is None:
        row = next(row for row, sentence in enumerate(tags) if detect_scheme([sentence]) is None)
        what = f"not all tags are chunk tags such as B-PER, as in training: {', '.join(dict.fromkeys(tags[row]))}"
        hint = "correct the tag, or name the column of tags with --column"
        if all(map(str.isdecimal, tags[row])):
            hint = "name the tags in the order of their numbers: --labels O,B-PER,..."
        raise DataError(what, where=examples.where(row), hint=hint)


def settle_labels(
    tags: Sequence[Sequence[str]], given: tuple[str, ...] | None, scheme: str | None, examples: Examples
) -> tuple[str, ...]:
    """The labels for the tags of the training data: those given, or all that occur, O first. Raises UsageError, DataError."""
    labels = given or tuple(sorted({tag for row in tags for tag in row}, key=lambda tag: (tag != "O", tag)))
    refuse_repeated(labels)
    if scheme is not None and (stray := next((label for label in labels if detect_scheme([[label]]) is None), None)):
        raise UsageError(f"--labels has {stray!r}; expected O and chunk tags such as B-PER, as the data has")
    for row, sentence in enumerate(tags):
        if unknown := next((tag for tag in sentence if tag not in labels), None):
            what = f"unknown tag {unknown!r}; expected one of {listed(labels, 12)}"
            raise DataError(what, where=examples.where(row), hint=f"{did_you_mean(unknown, labels)} (--labels sets them)")
    words = sum(map(len, tags))
    if given is None and len(labels) > 50 and len(labels) > words / 5:
        what = f"{len(labels)} distinct tags in {words} words, such as {labels[-1]!r}: is this the column of the words?"
        hint = "--column (CoNLL) or --tags (JSON, tables) says where the tags are"
        raise DataError(what, where=examples.source, hint=hint)
    if len(labels) < 2:
        role = "entities" if "places" in examples.columns else "tags"
        hint = f"is this the column of the {role}? --{role} chooses another one"
        raise DataError(f"every word has the tag {labels[0]!r}; expected two or more tags", where=examples.source, hint=hint)
    return labels


def _find_scheme(recipe: TokenClassification, examples: Examples) -> tuple[str | None, Remarks]:
    """The user's scheme, or that of the data. Raises UsageError for a scheme if the tags are not chunk tags."""
    found = detect_scheme(examples.columns["tags"])
    if found is not None:
        scheme = recipe.scheme or found
        converted = "" if scheme == found else f", converted to {scheme}"
        return scheme, Remarks((f"tag scheme of the training data: {found}{converted}",))
    if recipe.scheme or recipe.constrained:
        flag = f"--scheme {recipe.scheme}" if recipe.scheme else "--constrained"
        tag = next(tag for tags in examples.columns["tags"] for tag in tags if detect_scheme([[tag]]) is None)
        raise UsageError(f"{flag} is for chunk tags such as B-PER; the data has {tag!r}")
    warning = stray_tags_warning(examples)
    return None, Remarks.of(warning=warning)


def settle_tags(
    recipe: TokenClassification, examples: Examples, config: BertConfig | None
) -> tuple[Sequence[list[str]], str | None, tuple[str, ...] | None, Remarks]:
    """The tags to learn, for whole words; their scheme; and the labels of --labels, if given, in the same form.

    config: of the model whose head is kept, if any; the tags then use its scheme and letters, unless --scheme says otherwise.
    """
    tags, form = in_form_of(config, examples.columns["tags"])
    given = recipe.labels and tuple(in_form_of(config, [recipe.labels])[0][0])
    known = given or (labels_of_model(config) if config is not None else ())
    wanted = recipe.scheme
    if config is not None and wanted is None and detect_scheme(tags) is not None:
        wanted = scheme_of(known)
    scheme, remarks = _find_scheme(replace(recipe, scheme=wanted), with_tags(examples, tags))
    if scheme is not None:
        tags, converted = in_scheme(tags, scheme)
        remarks += converted._replace(notes=())  # `_find_scheme` has noted them
        if known:
            tags = respell(tags, known)
        elif recipe.scheme is not None:
            tags = [[canonical(tag) for tag in row] for row in tags]  # --scheme converts BMES and BILOU to IOBES
    whole = whole_words(with_tags(examples, tags), known, scheme).columns["tags"]
    return whole, scheme, given, Remarks.of(note=form) + remarks


def in_scheme(tags: list[list[str]], scheme: str) -> tuple[list[list[str]], Remarks]:
    """Tags of any scheme, converted to this one if some do not fit it."""
    found = detect_scheme(tags)
    counts = Counter(chain.from_iterable(tags))
    strays = {tag: count for tag, count in counts.items() if scheme != "iobes" and scheme_of([tag]) == "iobes"}
    if found != scheme and count_illegal(tags, scheme):
        remarks = Remarks((f"tags converted from {found} to {scheme}",))
    elif strays:  # as labels, they would make iobes the scheme of the model
        what = f"{plural(sum(strays.values()), 'tag')} of the scheme iobes, such as {min(strays)}, converted to {scheme}"
        remarks = Remarks(warnings=(what,))
    else:
        return tags, Remarks()
    return [convert(row, scheme) for row in tags], remarks


def in_form_of(config: BertConfig | None, sentences: Sequence[Sequence[str]]) -> tuple[list[list[str]], str | None]:
    """`as_chunk_tags`, unless the model whose head is kept itself uses another form."""
    if config is not None and detect_scheme([labels_of_model(config)]) is None:
        return [list(tags) for tags in sentences], None
    return as_chunk_tags(sentences)


def number_names(
    names: Sequence[str], known: Sequence[str], what: str, place: Callable[[str], str]
) -> tuple[NDArray[np.int64], Counter[str]]:
    """The number of each name among the known ones; IGNORED for others, which are counted.

    Raises DataError for a name that differs from a known one only in case; place: returns its row.
    """
    number = {name: number for number, name in enumerate(known)}
    unknown = Counter(name for name in names if name not in number)
    refuse_other_spellings(unknown, known, what, place)
    return np.array([number.get(name, IGNORED) for name in names], dtype=np.int64), unknown


def number_all(
    labels: Sequence[str], predicted: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """All tags, those of `labels` first; and (words,) the numbers of the predicted tags and of the references among them."""
    flat = [[*chain.from_iterable(rows)] for rows in (predicted, references)]
    number = {name: number for number, name in enumerate(dict.fromkeys(chain(labels, *flat)))}
    of_predicted, of_references = (np.array([number[tag] for tag in tags], dtype=np.int64) for tags in flat)
    return [*number], of_predicted, of_references
