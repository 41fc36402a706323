"""Question answering: the span of a context that answers a question, or none (Devlin et al., 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.config import TrainConfig, option
from bertkit.errors import DataError, UsageError
from bertkit.features import IGNORED, Features, Ragged
from bertkit.metrics.answers import best_threshold, score_characters, score_words
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.columns import require_column
from bertkit.readers.content import Content
from bertkit.readers.formats import DELIMITED, SQUAD, TABLES, Format, endings_of, read_file
from bertkit.tasks.probabilities import softmax
from bertkit.tasks.question_answering.answers import best_answers
from bertkit.tasks.question_answering.references import are_mostly_chinese, read_answers, read_ids, read_texts
from bertkit.tasks.question_answering.windows import encode_windows, find_answer
from bertkit.tasks.task import NOTHING_CUT, Encoding, Task

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer

_KEPT = ("unanswerable", "null_threshold")  # in config.json, for whoever has the model without its run.json
_AROUND = 200  # characters of the context shown on each side of an answer


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """A recipe of this family; see Task for where its data comes from. Its metrics are those of SQuAD or CMRC 2018.

    unanswerable: whether a question may have no answer, as in SQuAD 2.0; None: where some training rows have none, or for a
    model that was trained elsewhere some of the rows it is scored on.
    """

    family: ClassVar[str] = "question-answering"
    hf_class: ClassVar[str] = "BertForQuestionAnswering"
    file_endings: ClassVar[tuple[str, ...]] = endings_of((SQUAD, *TABLES))
    cut_by: ClassVar[str] = "--max-query-length"  # windows lose nothing of a context
    inputs: ClassVar[tuple[str, ...]] = (
        "question",
        "context",
        "doc_stride",
        "max_query_length",
        "max_answer_length",
        "n_best_size",
        "unanswerable",
        "null_threshold",
    )

    training: TrainConfig = TrainConfig(max_length=384)
    question: str | None = option(None, "column of the question; for a page of plain text the question itself")
    context: str | None = option(None, "column of the text that answers the question")
    answers: str | None = option(None, "column of the answers: with answer_start inside, or in a table beside it")
    doc_stride: int = option(
        128, "from the begin of one window of a long context to that of the next", unit="tokens", minimum=1
    )
    max_query_length: int = option(64, "longest question; what is longer is cut, and counted", unit="tokens", minimum=1)
    max_answer_length: int = option(30, "longest answer", unit="tokens", minimum=1)
    n_best_size: int = option(20, "how many answers to each question are ranked", minimum=1)
    unanswerable: bool | None = option(None, "questions may have no answer; default: where training data has such rows")
    matching: str = option(
        "auto",
        "how answers are compared: by English words, or by Chinese characters",
        choices=("auto", "words", "characters"),
    )
    null_threshold: float | None = option(
        None,
        "say 'no answer' where its score exceeds the best answer's by more than this; default: tuned by finetune",
    )
    question_column: str = "question"  # where `question` does not name one
    threshold_tuned: bool = False

    def settled(self) -> Self:
        if self.metrics:
            raise UsageError("a recipe of this family has no metrics of its own; expected none", hint="leave metrics= out")
        return super().settled()

    @property
    def greater_is_better(self) -> bool:
        return True

    # --- data ---

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        """The questions of SQuAD's JSON, of a table or JSON lines; or one question, `question` itself, on a plain text."""
        # A page may hold tabs: a table by its look alone has a column of the question.
        table = replace(DELIMITED, looks_like=lambda content: self._question in map(str.strip, content.first_line.split("\t")))
        tables = (table if form is DELIMITED else form for form in TABLES)
        formats = (SQUAD, *tables, Format("a page of text", (), lambda content: True, self._parse_page))
        return read_file(path, formats, separator=self.separator, columns=columns or self.columns)

    def _parse_page(self, content: Content) -> Iterator[Examples]:
        text = content.text()
        if not text.strip():
            raise DataError("the file is empty", where=content.source)
        if self.question is None:
            hint = 'ask it: --question "Who ...?"; or give a table with the columns question and context'
            raise UsageError("the file is plain text, and no question about it is given", where=content.source, hint=hint)
        yield Examples({self.question: [self.question], self._context: [text]}, content.source, lines=[1])

    @property
    def _question(self) -> str:
        return self.question or self.question_column

    @property
    def _context(self) -> str:
        return self.context or "context"

    def split_by(self, examples: Examples) -> tuple[tuple[str, ...], None]:
        return (require_column(examples, self._context, option="--context"),), None

    @classmethod
    def asked_for(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        options = super().asked_for(saved) | {"question": saved.get("question_column")}
        return options | ({"null_threshold": None} if saved.get("threshold_tuned") else {})

    def with_columns_found(self) -> Self:
        return replace(self, question=None, question_column=self._question)  # to predict, `question` may be a question

    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split as id, question, context, and answers: for each row a list of (text, start).

        start is None where the data has none.
        to_predict: without answers; empty texts are kept, so that every row has its prediction. Raises DataError with the row.
        """
        examples = self.read(split)
        if len(examples) == 0:
            raise DataError(f"split {split!r} has no rows", where=examples.source)
        question = require_column(examples, self._question, option="--question")
        context = require_column(examples, self._context, option="--context")
        standard: dict[str, list[Any]] = {
            "id": read_ids(examples, unique=not to_predict),
            "question": read_texts(examples, question, may_be_empty=True),  # CMRC 2018 has an empty one
            "context": read_texts(examples, context, may_be_empty=to_predict),
        }
        if not to_predict:
            standard["answers"] = read_answers(examples, self.answers)
        return replace(examples, columns=standard, label_names={})

    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        """This recipe with `unanswerable` and `matching` settled. Raises DataError where an answer is missing that must not."""
        without = [row for row, answers in enumerate(examples.columns["answers"]) if not answers]
        if len(without) == len(examples):
            raise DataError("no question of the training data has an answer", where=examples.source)
        if without and self.unanswerable is False:
            what = f"{len(without)} of {len(examples)} questions have no answer, this one first; expected one"
            raise DataError(what, where=examples.where(without[0]), hint="where some have none: --unanswerable")
        if self.null_threshold is not None and not self._unanswerable(examples):
            raise UsageError("--null-threshold is for questions without an answer, and all have one", hint="leave it out")
        return replace(self, unanswerable=self._unanswerable(examples), matching=self._matching(examples))

    def with_scores(self, scores: Mapping[str, float | None]) -> Self:
        found = scores.get(f"{self.eval_splits[0]}/best_f1_thresh")
        if self.null_threshold is not None or found is None:
            return self
        return replace(self, null_threshold=found, threshold_tuned=True)

    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        known = {name: config.extra.get(name) for name in _KEPT if getattr(self, name) is None}
        recipe = replace(self, **known)  # type: ignore[arg-type]
        return replace(recipe, null_threshold=recipe.null_threshold or 0.0)  # a model that was never tuned answers as it is

    def model_config(self, config: BertConfig) -> BertConfig:
        config = super().model_config(config)
        own = {name: value for name in _KEPT if (value := getattr(self, name)) is not None}
        return replace(config, extra=config.extra | own)

    def _unanswerable(self, examples: Examples) -> bool:
        if self.unanswerable is not None:
            return self.unanswerable
        return not all(examples.columns.get("answers", ()))

    def _matching(self, examples: Examples) -> str:
        if self.matching != "auto":
            return self.matching
        return "characters" if are_mostly_chinese(examples.columns["context"]) else "words"

    # --- features, model, predictions ---

    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """One feature a window, read whole; labels "start" and "end" are positions in it of the row's first answer.

        They are 0, at [CLS], where the window lacks some of the answer, or the question has none. A row whose answer does not
        stand in its context has no label; nor has one without an answer where every question has one.
        """
        unplaced = sum(start is None for answers in examples.columns.get("answers", ()) for _, start in answers)
        spans, moved = self._spans(examples) if labelled else (np.full((len(examples), 2), -1), 0)
        windows = encode_windows(
            examples.columns["question"],
            examples.columns["context"],
            spans,
            tokenizer,
            max_length=max_length,
            max_query_length=self.max_query_length,
            doc_stride=self.doc_stride,
        )
        labels: dict[str, Ragged] = {}
        remarks = {f"{len(windows.examples)} windows": len(windows.examples) > len(examples)}
        unasked = sum(not question.strip() for question in examples.columns["question"])
        remarks[f"{unasked} without a question"] = unasked > 0
        remarks[f"{windows.cut} questions longer than {self.max_query_length} tokens cut"] = windows.cut > 0
        if labelled:
            start, end = windows.positions()
            has_answer = np.array([bool(answers) for answers in examples.columns["answers"]])
            lost = has_answer & (windows.spans[:, 0] < 0)
            if has_answer.any() and lost.sum() == has_answer.sum():
                what = f"none of the {lost.sum()} answers stands at its answer_start, nor within reach of it"
                hint = "answer_start counts the characters of the context before the answer"
                raise DataError(what, where=examples.where(int(np.flatnonzero(lost)[0])), hint=hint)
            ignored = lost if self._unanswerable(examples) else lost | ~has_answer
            for term, positions in (("start", start), ("end", end)):
                labels[term] = Ragged.column(np.where(ignored[windows.examples], IGNORED, positions))
            whole = np.bincount(windows.examples, weights=start > 0, minlength=len(examples)) > 0
            apart = int((has_answer & ~lost & ~whole).sum())
            remarks |= {
                f"{unplaced} answers without answer_start, taken where they first stand": unplaced > 0,
                f"{moved} answers found near their answer_start": moved > 0,
                f"{lost.sum()} not found": bool(lost.any()),
                f"{apart} in no window whole": apart > 0,
            }
        features = Features(
            input_ids=windows.input_ids,
            token_type_ids=windows.token_type_ids,
            examples=windows.examples,
            labels=labels,
            extras={"context": Ragged.column(windows.context), "starts": windows.starts, "ends": windows.ends},
        )
        return Encoding(features, tuple(remark for remark, holds in remarks.items() if holds))

    def _spans(self, examples: Examples) -> tuple[NDArray[np.int64], int]:
        """(E, 2) characters of each row's first answer, -1 where there is none; and how many were not at their answer_start."""
        spans, moved = np.full((len(examples), 2), -1, dtype=np.int64), 0
        for row, (context, answers) in enumerate(zip(examples.columns["context"], examples.columns["answers"], strict=True)):
            if answers:
                text, start = answers[0]
                found = context.find(text) if start is None else find_answer(context, text, start)
                spans[row] = (found, found + len(text)) if found >= 0 else -1
                moved += start is not None and found not in (-1, start)
        return spans, moved

    def build_model(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForQuestionAnswering

        return BertForQuestionAnswering(config)

    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example: its answer, the characters it stands at, its share of the n best, and these.

        Where no answer wins, or the context is empty, `answer` is empty and has no place. null_odds: by how much the score of
        no answer exceeds that of the best answer.
        """
        found = best_answers(
            outputs, features, len(examples), n_best_size=self.n_best_size, max_answer_length=self.max_answer_length
        )
        tables: list[NDArray] = [found.start, found.end, found.start_logits, found.end_logits]
        if unanswerable := self._unanswerable(examples):
            nowhere = np.full(len(examples), -1)
            nothing: list[NDArray] = [nowhere, nowhere, found.null_start, found.null_end]
            tables = [np.column_stack([tables[at], nothing[at]]) for at in range(4)]
        scores = (tables[2] + tables[3]).astype(np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")
        counts = np.isfinite(scores).sum(axis=1).tolist()
        columns = [np.take_along_axis(table, order, axis=1).tolist() for table in (*tables, softmax(scores))]
        held_back = found.null_odds > (self.null_threshold or 0.0)
        predictions = []
        for row, (context, count) in enumerate(zip(examples.columns["context"], counts, strict=True)):
            nbest = [_candidate(context, *values) for values in zip(*(column[row][:count] for column in columns), strict=True)]
            wins_nothing = bool(unanswerable and held_back[row])
            best = next((candidate for candidate in nbest if (candidate["start"] is None) == wins_nothing), None)
            best = best or {"text": "", "start": None, "end": None, "probability": 0.0}
            prediction = {
                "id": examples.columns["id"][row],
                "answer": best["text"],
                "start": best["start"],
                "end": best["end"],
                "probability": best["probability"],
                "nbest": nbest,
            }
            if unanswerable:
                prediction["null_odds"] = float(found.null_odds[row])
            predictions.append(prediction)
        return predictions

    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        return {prediction["answer"] for prediction in predictions}

    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """f1 and exact_match as SQuAD 1.1 or CMRC 2018 has them; where questions may have no answer, all that SQuAD 2.0 has.

        best_f1 (which comes first there, and so decides) and best_exact are those of the best thresholds, best_f1_thresh and
        best_exact_thresh; f1 and exact those of null_threshold, or where that is still to be tuned, of best_f1_thresh.
        """
        return self.scorer(predictions, examples)(np.arange(len(examples)))

    def scorer(
        self, predictions: Sequence[Mapping[str, Any]], examples: Examples
    ) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
        given = self._scores([prediction["answer"] for prediction in predictions], examples)
        if not self._unanswerable(examples):
            return lambda rows: dict(zip(("f1", "exact_match"), given[rows].mean(axis=0)[::-1].tolist(), strict=True))
        # The best answers themselves, with nothing held back.
        answers = [next((c["text"] for c in p["nbest"] if c["start"] is not None), "") for p in predictions]
        answered, null_odds = np.array([bool(text) for text in answers]), np.array([p["null_odds"] for p in predictions])
        has_answer = np.array([bool(known) for known in examples.columns["answers"]])
        ungated = self._scores(answers, examples)
        if self.null_threshold is None:
            tuned = best_threshold(ungated[:, 1], has_answer, answered, null_odds).value
            given = np.where((null_odds > tuned)[:, None], ~has_answer[:, None], ungated).astype(np.float64)

        def scores(rows: NDArray[np.int64]) -> dict[str, float | None]:
            found: dict[str, float | None] = {}
            for column, name in ((1, "f1"), (0, "exact")):
                best = best_threshold(ungated[rows, column], has_answer[rows], answered[rows], null_odds[rows])
                found |= {f"best_{name}": best.score, f"best_{name}_thresh": best.value}
            found["exact"], found["f1"] = given[rows].mean(axis=0).tolist()
            for name, chosen in (("HasAns", has_answer[rows]), ("NoAns", ~has_answer[rows])):
                if chosen.any():
                    found[f"{name}_exact"], found[f"{name}_f1"] = given[rows[chosen]].mean(axis=0).tolist()
            return found

        return scores

    def _scores(self, answers: Sequence[str], examples: Examples) -> NDArray[np.float64]:
        """(E, 2) exact match and F1 of answers."""
        references = [[text for text, _ in known] for known in examples.columns["answers"]]
        pairs = zip(answers, references, strict=True)
        if self._matching(examples) == "characters":
            return np.array([score_characters(*pair) for pair in pairs])
        return np.array([score_words(*pair, unanswerable=self._unanswerable(examples)) for pair in pairs])

    # --- what a user sees ---

    def uncut(self) -> Self:
        return replace(self, max_query_length=NOTHING_CUT)

    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        start, end = (int(features.labels[term][at][0]) for term in ("start", "end"))
        if start == IGNORED:
            return [{}]
        if start == 0:
            return [{0: "no answer here"}]
        return [{start: "answer starts", end: "answer ends"} if start != end else {start: "answer"}]

    def wrongness(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> NDArray[np.float64]:
        f1 = self._scores([prediction["answer"] for prediction in predictions], examples)[:, 1]
        return (1.0 - f1) * np.array([prediction["probability"] for prediction in predictions])

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return list(zip(examples.columns["question"], examples.columns["context"], strict=True))

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        known = examples.columns.get("answers", [None] * len(examples))
        return [() if its is None else ("answered",) if its else ("no answer",) for its in known]

    def gold(self, examples: Examples) -> list[str]:
        return [" / ".join(dict.fromkeys(text for text, _ in known)) or "no answer" for known in examples.columns["answers"]]

    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        questions = examples.columns["question"]
        return [{"id": found["id"], "question": questions[at], **found} for at, found in enumerate(predictions)]

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        """The question, and the answer in brackets and colour within what surrounds it."""
        context, start, end = examples.columns["context"][at], prediction["start"], prediction["end"]
        text = plain(examples.columns["question"][at])
        text.stylize("bold")
        if start is None:
            return text.append("\n  no answer", style="yellow").append(f" ({prediction['probability']:.2f})\n", style="dim")
        before, after = context[max(0, start - _AROUND) : start], context[end : end + _AROUND].rstrip()
        answer = plain(f"[{context[start:end]}]")
        answer.stylize("bold reverse green")
        shown = plain(("..." if start > _AROUND else "") + before) + answer
        shown += plain(after + ("..." if end + _AROUND < len(context) else ""))
        return text.append("\n").append(shown).append(f" ({prediction['probability']:.2f})\n", style="dim")

    def files(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, str]:
        """predictions.json and nbest_predictions.json, and where there may be no answer null_odds.json, as run_squad's."""
        kept = ("text", "probability", "start_logit", "end_logit")
        content: dict[str, dict[str, Any]] = {
            "predictions.json": {p["id"]: p["answer"] for p in predictions},
            "nbest_predictions.json": {p["id"]: [{name: c[name] for name in kept} for c in p["nbest"]] for p in predictions},
        }
        if self._unanswerable(examples):
            content["null_odds.json"] = {p["id"]: p["null_odds"] for p in predictions}
        return {name: json.dumps(values, indent=4, ensure_ascii=False) + "\n" for name, values in content.items()}


def _candidate(context: str, start: int, end: int, start_logit: float, end_logit: float, probability: float) -> dict[str, Any]:
    """One of the n best answers; start -1: no answer."""
    text = context[start:end] if start >= 0 else ""
    place = {"start": start, "end": end} if start >= 0 else {"start": None, "end": None}
    return {"text": text, "probability": probability, "start_logit": start_logit, "end_logit": end_logit, **place}
