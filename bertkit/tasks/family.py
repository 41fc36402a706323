"""The task family that data is for, if its format, column names and the options leave no doubt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.config import TrainConfig, convert, options_of
from bertkit.errors import flag_of, listed
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column
from bertkit.readers.formats import (
    ANY_WORDS,
    ARROW,
    C3,
    CONLL,
    LABEL_STUDIO,
    PARALLEL,
    SPLITS,
    SQUAD,
    TEXTS,
    Format,
    endings_of,
    find_split_file,
    read_blocks,
    recognize,
)
from bertkit.readers.parsers.parallel import is_parallel
from bertkit.tasks import FAMILIES, MultipleChoice, QuestionAnswering, TextClassification, TokenClassification
from bertkit.tasks.list_cells import holds_spans
from bertkit.tasks.multiple_choice.recipe import guess_choices
from bertkit.tasks.question_answering.references import usual_column
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.sources import refuse_url
from bertkit.tasks.token_classification.sentences import LISTS

# A .txt file can hold anything, so its content decides.
_COLUMNS = replace(CONLL, endings=tuple(ending for ending in CONLL.endings if ending != ".txt"))
_OF_FORMAT: dict[Format, type[Recipe]] = {
    _COLUMNS: TokenClassification,
    SQUAD: QuestionAnswering,
    C3: MultipleChoice,
}
_READING = ("separator", "columns", "rows", "on_error")  # options of tables and JSON
_OPENING = ("encoding", "max_file_size")  # of all files


class Guess(NamedTuple):
    """family: None if in doubt. why: what it was guessed from, or the columns that leave it open."""

    family: str | None
    why: str


def guess_family(file: str | Path, options: Mapping[str, Any]) -> Guess:
    """The family for the data in a file, given by path or URL, or in the first split of a folder.

    options: those of the command line, by name. Raises DataError for a file that cannot be read.
    """
    able = [name for name, family in FAMILIES.items() if not any(_lacks(family, option) for option in options)]
    if len(able) == 1:
        flags = [flag_of(name) for name in options if any(_lacks(family, name) for family in FAMILIES.values())]
        return Guess(able[0], ", ".join(flags))
    refuse_url(options.get("data"))
    path = Path(file)
    if path.is_dir() and not is_parallel(path):
        endings = endings_of([form for family in FAMILIES.values() for form in family.formats])
        files = (find_split_file(path, split, (*endings, ".txt", ANY_WORDS)) for split in SPLITS)
        saved = chain.from_iterable(sorted(path.rglob(f"*{ending}")) for ending in ARROW.endings)
        of_hub = (file for file in saved if not file.name.startswith("cache-"))  # beside the data lies what `map` computed
        if (found := next((file for file in chain(files, of_hub) if file is not None), None)) is None:
            return Guess(None, "no file is named after a split")
        path = file = found
    if path.is_dir():
        return Guess(TokenClassification.family, PARALLEL.name)
    declared = options_of(Recipe)
    reading = {name: convert(declared[name], options[name]) for name in _READING if name in options}
    opening = {name: convert(declared[name], options[name]) for name in _OPENING if name in options}
    form = None
    if not reading.keys() & {"columns", "rows"}:
        form = recognize(file, (*_OF_FORMAT, *TEXTS), **opening)
        if form in _OF_FORMAT:
            return Guess(_OF_FORMAT[form].family, form.name)
    rows = next(read_blocks(file, TEXTS, **opening, **reading))
    names = [*rows.columns]
    if form is LABEL_STUDIO:
        classes = "label" in names and not any(rows.columns["entities"])
        return Guess((TextClassification if classes else TokenClassification).family, form.name)
    if TokenClassification.family in able and (why := _words_or_spans(rows)) is not None:
        return Guess(TokenClassification.family, why)
    family = next((family for family, fits in _FITS.items() if family in able and fits(names, options)), None)
    return Guess(family, f"columns {listed(names, 12)}")


def _lacks(family: type[Recipe], option: str) -> bool:
    return option not in options_of(family) and option not in options_of(TrainConfig)


# Whether these column names, and these option names, are enough to train each family; the more specific ones first.
_FITS: dict[str, Callable[[Collection[str], Collection[str]], bool]] = {
    TokenClassification.family: lambda names, given: _have_tags(names) and not _have_labels(names, given),
    MultipleChoice.family: lambda names, given: (
        guess_choices(names) is not None and ("label" in given or guess_column(names, "answer") is not None)
    ),
    QuestionAnswering.family: lambda names, given: (
        all(usual_column(names, role) for role in ("question", "context", "answers"))
        and ("answers" in names or guess_column(names, "label") is None)  # else whether an answer is right
    ),
    TextClassification.family: lambda names, given: (
        {"text", "label"} <= {*given}
        or (_have_labels(names, given) and not _have_tags(names) and not _may_be_a_question(names, given))
    ),
}


def _words_or_spans(rows: Examples) -> str | None:
    """The reason to take rows for single words, or for texts with lists of spans; None for other rows."""
    roles = {role: guess_column(rows.columns, role) for role in ("sentence", "tokens", "tags")}
    if None not in roles.values():
        return f"columns {', '.join(map(str, roles.values()))}"
    words = roles["tokens"] and next(iter(rows.columns[roles["tokens"]]), None)
    if roles["tags"] and isinstance(words, list):
        return f"columns {roles['tokens']}, which holds words, and {roles['tags']}"
    for name in (*LISTS, "spans"):
        spans = next((value for value in rows.columns.get(name, ()) if isinstance(value, list) and value), None)
        if holds_spans(spans):
            return f"column {name}, which holds places in a text"
    return None


def _have_tags(names: Collection[str]) -> bool:
    return not {"tags", "ner_tags", "entities"}.isdisjoint(names)


def _may_be_a_question(names: Collection[str], given: Collection[str]) -> bool:
    """Whether the text may belong to a passage in another column, unless it is named by an option or called just text."""
    text = guess_column(names, "text")
    return "text" not in given and usual_column(names, "context") is not None and text is not None and text.lower() != "text"


def _have_labels(names: Collection[str], given: Collection[str]) -> bool:
    return all(role in given or guess_column(names, role) is not None for role in ("text", "label"))
