"""SQuAD's JSON, versions 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), also used by CMRC 2018: a question per row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.content import Content
from bertkit.readers.json_loading import kind_of, load_json, refuse_lone_surrogates

# A list, and its first object.
_ARTICLES = re.compile(r'\s*\[\s*\{\s*("title"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"paragraphs"\s*:\s*\[')
_HINT = "expected SQuAD's form: data[].paragraphs[] with context and qas[], each with id, question and answers[]"


def parse_squad(content: Content) -> Iterator[Examples]:
    """The questions of a file, one block, with the columns of the hub's `squad`: id, title, context, question and answers.

    answers: a dict of two lists, `text` and `answer_start`; without the second if no answer of the question has it, and without
    this column if no question has answers (a test set).
    is_impossible: only if the file has it. `lines` are the ids. An answer need not be at its answer_start: in CMRC 2018 some
    are not. Raises DataError, with the place in the JSON, for anything not of this form, and for an id of two questions.
    """
    source, text = content.source, content.text()
    rows = _questions(load_json(text, source, _HINT), source)
    if not rows:
        raise DataError("the file holds no questions", where=source, hint=_HINT)
    first: dict[str, str] = {}
    for place, row in rows:
        if (earlier := first.setdefault(row["id"], place)) != place:
            what = f"two questions have the id {row['id']!r}: {earlier} and {place}"
            raise DataError(what, where=source, hint="give each question its own id")
    refuse_lone_surrogates(text, ((row, place, f"{source}:{row['id']}") for place, row in rows))

    names = ["id", "title", "context", "question"]
    if any("answers" in row for _, row in rows):
        names.append("answers")
        for place, row in rows:
            if "answers" not in row and not row.get("is_impossible"):
                raise _lacks(place, "answers", source)
            row.setdefault("answers", {"text": [], "answer_start": []})
    if any("is_impossible" in row for _, row in rows):
        names.append("is_impossible")
    columns: dict[str, Sequence[Any]] = {name: [row.get(name, False) for _, row in rows] for name in names}
    yield Examples(columns=columns, source=source, lines=columns["id"])


def looks_like_squad(content: Content) -> bool:
    """Whether JSON is meant to be of this form: an object that begins with "version", or whose "data" lists objects with
    "paragraphs"; or only that list. The text is searched, not parsed.
    """
    text = content.beginning
    if _ARTICLES.match(text):
        return True
    if not re.match(r"\s*\{", text):
        return False
    if re.match(r'\s*\{\s*"version"\s*:', text) and not re.search(r'"data"\s*:\s*\{', text):
        return True
    data = re.search(r'(?<!\\)"data"\s*:\s*\[\s*\{', text)
    return data is not None and re.compile(r'(?<!\\)"paragraphs"\s*:\s*\[').search(text, data.end()) is not None


def _questions(content: Any, source: str) -> list[tuple[str, dict[str, Any]]]:
    """Each question as a row, with its place in the JSON."""
    rows = []
    name = "" if isinstance(content, list) else "data"
    articles = _take(_of(content, dict, "the JSON", source), name, list, "", source) if name else content
    for i, article in enumerate(articles):
        at_article = f"{name}[{i}]"
        _of(article, dict, at_article, source)
        if "question" in article and "paragraphs" not in article:
            hint = "if each object is a question with its context and answers: --rows data" if name else None
            raise DataError(f"{at_article} has no 'paragraphs'", where=source, hint=hint)
        title = _take(article, "title", str, at_article, source) if "title" in article else ""
        for j, paragraph in enumerate(_take(article, "paragraphs", list, at_article, source)):
            at_paragraph = f"{at_article}.paragraphs[{j}]"
            context = _take(_of(paragraph, dict, at_paragraph, source), "context", str, at_paragraph, source)
            for k, question in enumerate(_take(paragraph, "qas", list, at_paragraph, source)):
                place = f"{at_paragraph}.qas[{k}]"
                row = _question(_of(question, dict, place, source), place, source)
                rows.append((place, {"title": title, "context": context, **row}))
    return rows


def _question(question: dict[str, Any], place: str, source: str) -> dict[str, Any]:
    row: dict[str, Any] = {"id": question.get("id"), "question": _take(question, "question", str, place, source)}
    if isinstance(row["id"], int) and not isinstance(row["id"], bool):
        row["id"] = str(row["id"])  # as it will stand, a key, in the file of predictions
    elif not _take(question, "id", str, place, source):
        raise DataError(f"{place}.id is empty; expected an id", where=source)
    if "is_impossible" in question:
        row["is_impossible"] = _take(question, "is_impossible", bool, place, source)
    if "answers" in question:
        answers = [
            _answer(answer, f"{place}.answers[{n}]", source)
            for n, answer in enumerate(_take(question, "answers", list, place, source))
        ]
        starts = [start for _, start in answers]
        row["answers"] = {"text": [text for text, _ in answers], "answer_start": starts}
        if None in starts:
            if any(start is not None for start in starts):
                raise _lacks(f"{place}.answers[{starts.index(None)}]", "answer_start", source)
            del row["answers"]["answer_start"]
    return row


def _answer(answer: Any, place: str, source: str) -> tuple[str, int | None]:
    text = _take(_of(answer, dict, place, source), "text", str, place, source)
    start = answer.get("answer_start")
    if isinstance(start, float) and start.is_integer():
        start = int(start)  # 159.0, as tables with gaps write it
    if "answer_start" in answer and (not isinstance(start, int) or isinstance(start, bool)):
        hint = "it is the index of the answer's first character in the context"
        raise DataError(f"{place}.answer_start is {start!r}; expected a whole number", where=source, hint=hint)
    return text, start


def _take(parent: dict[str, Any], name: str, kind: type, place: str, source: str) -> Any:
    """A field, which must exist and be of this type."""
    if name not in parent:
        raise _lacks(place, name, source)
    return _of(parent[name], kind, f"{place}.{name}".lstrip("."), source)


def _of(value: Any, kind: type, place: str, source: str) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"{place} is {kind_of(value)}; expected {kind_of(kind())}", where=source, hint=_HINT)
    return value


def _lacks(place: str, name: str, source: str) -> DataError:
    return DataError(f"{place or 'the JSON'} has no {name!r}", where=source, hint=_HINT)
