"""The recipe of question answering: which columns hold question, context and answers, and how answers are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from bertkit.config import DATA, USE, TrainConfig, option
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.columns import require_column
from bertkit.readers.content import Content
from bertkit.readers.formats import DELIMITED, SQUAD, TABLES, Format, read_blocks
from bertkit.readers.parsers.delimited import sniff_separator
from bertkit.tasks.question_answering.places import LOST, find_answers
from bertkit.tasks.question_answering.references import answers_column, read_answers, read_ids, repeated_ids, usual_column
from bertkit.tasks.recipe import Columns, Recipe

_OF_SQUAD = ("id", "answer_start", "is_impossible", "title")  # the roles of SQuAD's columns that no option names


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Recipe):
    """A recipe of this family; see Recipe for where its data comes from. Its metrics are those of SQuAD or CMRC 2018.

    unanswerable: whether questions may have no answer, as in SQuAD 2.0; None: whether some training rows have none (or, for a
    model trained elsewhere, some rows to score). question_column: the question's column if `question` is itself a question.
    """

    family: ClassVar[str] = "question-answering"
    in_order: ClassVar[tuple[str, ...]] = ("question", "context")
    usual_length: ClassVar[int] = 384
    has_classes: ClassVar[bool] = False
    formats: ClassVar[tuple[Format, ...]] = (SQUAD, *TABLES)

    training: TrainConfig = TrainConfig(max_length=384)
    question: str | None = option(
        None, "column of the question; for plain text, the question itself", unit="column", commands=USE
    )
    context: str | None = option(None, "column of the text that answers the question", unit="column", commands=USE)
    answers: str | None = option(
        None, "column of the answers; answer_start is inside them or in a column of that name", unit="column", commands=DATA
    )
    doc_stride: int = option(
        128, "distance between the starts of successive windows of a long context", unit="tokens", minimum=1, commands=USE
    )
    max_query_length: int = option(
        64, "longest question; longer ones are truncated and counted", unit="tokens", minimum=1, commands=USE
    )
    max_answer_length: int = option(30, "longest answer", unit="tokens", minimum=1, commands=USE)
    n_best_size: int = option(20, "number of ranked answers to each question", minimum=1, commands=USE)
    unanswerable: bool | None = option(
        None, "whether questions may have no answer; default: yes if some in the training data have none", commands=USE
    )
    matching: str = option(
        "auto",
        "how to compare answers: words, as in English; characters, as in Chinese; or auto, by the language of the data",
        choices=("auto", "words", "characters"),
        commands=DATA,
    )
    null_threshold: float | None = option(
        None,
        "predict no answer if its score exceeds the best answer's by more than this; default: tuned by finetune",
        commands=USE,
    )
    question_column: str | None = None

    def resolved(self) -> Self:
        if self.metrics:
            raise UsageError("recipes of question answering have fixed metrics; expected none", hint="leave metrics= out")
        return super().resolved()

    def read_blocks(
        self, path: str | Path, *, columns: tuple[str, ...] | None = None, labelled: bool = True
    ) -> Iterator[Examples]:
        """The questions in SQuAD's JSON, a table or JSON lines; or one question, `question` itself, about a plain text."""
        # A page may contain tabs: without a table's file ending, it is a table only if it has a question column.
        table = replace(DELIMITED, looks_like=self._is_table)
        formats = (table if form is DELIMITED else form for form in self.formats)
        page = Format("a page of text", (), lambda content: True, self._parse_page)
        return read_blocks(path, (*formats, page), columns=columns or self.columns, labelled=labelled, **self.reading)

    def _is_table(self, content: Content) -> bool:
        separator = sniff_separator(content)
        names = [] if separator is None else [name.strip().strip('"') for name in content.first_line.split(separator)]
        return self._question in names or usual_column(names, "question") is not None

    def _parse_page(self, content: Content) -> Iterator[Examples]:
        text = content.text()
        if not text.strip():
            raise DataError("the file is empty", where=content.source)
        if self.question is None:
            hint = 'add --question "Who ...?", or pass a table with the columns question and context'
            raise UsageError("the file is plain text, so --question is required", where=content.source, hint=hint)
        yield Examples({self.question: [self.question], self._context: [text]}, content.source, lines=[1])

    def find_columns(self, rows: Examples) -> Columns:
        question = self.question or self.question_column or usual_column(rows.columns, "question") or self._question
        context = self.context or usual_column(rows.columns, "context")
        return Columns({"question": None, "question_column": question, "context": context})  # in predict, `question` may be one

    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        others = (usual_column(rows.columns, role) or role for role in _OF_SQUAD)
        return {self._question, self._context, answers_column(rows, self.answers), *others}

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], None]:
        return (require_column(rows, self._context, option="--context"),), None

    def _standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """Columns id, question, context; labelled: also answers, for each row a list of (text, start), start maybe None."""
        question = require_column(rows, self._question, option="--question")
        context = require_column(rows, self._context, option="--context")
        standard: dict[str, Sequence[Any]] = {
            "id": read_ids(rows),
            "question": rows.texts(question, may_be_empty=True),  # CMRC 2018 has an empty one
            "context": rows.texts(context, may_be_empty=not labelled),
        }
        if labelled:
            standard["answers"], ignored = read_answers(rows, self.answers)
            rows = rows.with_remarks(ignored)
        return replace(rows, columns=standard, label_names={}, own_names={"question": question, "context": context})

    def refused(self, rows: Examples, *, labelled: bool) -> dict[int, str]:
        found = super().refused(rows, labelled=labelled)  # `_standardize` does not look for repeated ids
        if labelled and self.on_error == "skip" and (column := usual_column(rows.columns, "id")) is not None:
            kept = [row for row in range(len(rows)) if row not in found]
            ids = replace(rows, columns={"id": rows.columns[column]}).select(kept)
            found |= {kept[at]: str(error) for at, error in repeated_ids(ids)}
        return dict(sorted(found.items()))

    def _numbered(self, rows: Examples) -> Examples:
        if not {self._question, self._context} <= rows.columns.keys():
            return rows  # an error will list the columns that the file has
        return replace(rows, columns={**rows.columns, "id": read_ids(rows)})

    def usable(self, rows: Examples, *, labelled: bool) -> Examples:
        rest = super().usable(rows, labelled=labelled)
        if labelled and (again := next(repeated_ids(rest), None)):
            self._standardize(rest, labelled=True)  # an error of a column comes first
            raise again[1]
        return rest

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return list(zip(examples.columns["question"], examples.columns["context"], strict=True))

    def num_learned(self, examples: Examples) -> int:
        places = find_answers(examples.columns["context"], examples.columns["answers"])
        return sum(self.unanswerable is not False if place is None else place.how is not LOST for place in places)

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        known = examples.columns.get("answers", [None] * len(examples))
        return [() if answers is None else ("answered",) if answers else ("no answer",) for answers in known]

    def column_of(self, role: str) -> str:
        return self._question if role == "question" else super().column_of(role)

    @property
    def _question(self) -> str:
        return self.question or self.question_column or "question"

    @property
    def _context(self) -> str:
        return self.context or "context"
