"""C3's JSON: a list of documents, each [lines, [{question, choice, answer}, ...], id] (Sun et al., 2020)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.errors import DataError, excerpt
from bertkit.readers import Examples
from bertkit.readers.content import Content
from bertkit.readers.json_loading import load_json, refuse_lone_surrogates

_HINT = "expected a list of [document lines, [{question, choice, answer}, ...], id]"


def parse_c3(content: Content) -> Iterator[Examples]:
    """One row per question: id (of its document), context (its lines), question, choice (a list), answer (None without one).

    The names are those of CLUE's copy on the hub. A row's place is its document's id and the question's number in it, from 1.
    Raises DataError with the place for anything not of this form.
    """
    source, text = content.source, content.text()
    documents = load_json(text, source, _HINT)
    refuse_lone_surrogates(text, ((document, "a document", f"{source}:[{index}]") for index, document in enumerate(documents)))
    rows, places = [], []
    for index, document in enumerate(documents):
        lines, questions, name = _parts(document, f"{source}:[{index}]")
        for number, question in enumerate(questions, start=1):
            place = f"{name}#{number}"
            if not isinstance(question, dict) or not {"question", "choice"} <= question.keys():
                raise DataError(f"this is not a question: {_excerpt(question)}", where=f"{source}:{place}", hint=_HINT)
            rows.append((name, lines, question["question"], question["choice"], question.get("answer")))
            places.append(place)
    if not rows:
        raise DataError("the file holds no questions", where=source, hint=_HINT)
    names = ("id", "context", "question", "choice", "answer")
    columns: dict[str, Sequence[Any]] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    yield Examples(columns=columns, source=source, lines=places)


def looks_like_c3(content: Content) -> bool:
    """Whether JSON is of this form: a list that begins with a list, which does not begin with a text, as spaCy's data does."""
    return re.match(r'\s*\[\s*\[(?!\s*")', content.beginning) is not None


def _parts(document: Any, where: str) -> tuple[list[str], list[Any], str]:
    """A document's lines, questions and id."""
    parts = document if isinstance(document, list) and len(document) == 3 else (None, None, None)
    lines, questions, name = parts
    if not isinstance(lines, list) or not isinstance(questions, list) or not isinstance(name, (str, int)):
        raise DataError(f"this is not a document: {_excerpt(document)}", where=where, hint=_HINT)
    return lines, questions, str(name)


def _excerpt(value: Any) -> str:
    return excerpt(json.dumps(value, ensure_ascii=False), 60)
