"""Question answering: the span of a context that answers a question, or none (Devlin et al., 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, ModelError, UsageError, listed, plural
from bertkit.features import IGNORED, Features, Ragged
from bertkit.metrics.answers import best_threshold, score_characters, score_words
from bertkit.metrics.bootstrap import Scorer
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples, is_blank
from bertkit.report import Finding, Piece
from bertkit.tasks.baselines import NO_ANSWER, SLIDING_WINDOW, Found, Frozen, sliding_window, usual_length
from bertkit.tasks.block import KeptHead
from bertkit.tasks.counts import Count
from bertkit.tasks.output import OutputColumns, OutputLayout
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.probabilities import softmax
from bertkit.tasks.question_answering.answers import best_answers
from bertkit.tasks.question_answering.places import LOST, WAYS, find_answers, first_spans, rows_by_way
from bertkit.tasks.question_answering.recipe import QuestionAnswering
from bertkit.tasks.question_answering.references import are_mostly_chinese
from bertkit.tasks.question_answering.windows import encode_windows
from bertkit.tasks.task import Encoding, Logits, Task

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer

_NOWHERE: dict[str, Any] = {"text": "", "start": None, "end": None, "probability": 0.0}  # of an empty context
_UNSURE = 1e-9  # stands for a probability of 0, so that a wrong answer with it still counts as an error
_MORE_OVERLAP = "lower --doc-stride, or raise --max-length"  # so that windows overlap by an answer
_AROUND = 200  # characters of the context shown on each side of an answer


class References(NamedTuple):
    """What an answer is compared with.

    texts: all accepted answers to the question; empty if it has none. by_characters: whether to compare characters instead of
    words. unanswerable: whether questions of this split may have no answer.
    """

    texts: list[str]
    by_characters: bool
    unanswerable: bool


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringTask(Task):
    """A prediction's value is the answer's text, "" for no answer; details: id, start, end, nbest, and, if questions may have
    no answer, null_odds: the score of no answer minus that of the best answer.

    unanswerable: from the recipe, or decided by the training rows. matching: likewise. null_threshold: if null_odds exceeds it,
    there is no answer; None until tuned.
    """

    hf_class: ClassVar[str] = "BertForQuestionAnswering"
    recipe_class: ClassVar[type[QuestionAnswering]] = QuestionAnswering
    input_roles: ClassVar[tuple[str, ...]] = ("question", "context")
    truncated_by: ClassVar[str] = "--max-query-length"  # windows lose nothing of a context

    recipe: QuestionAnswering
    unanswerable: bool | None = None
    matching: str = "auto"
    null_threshold: float | None = None

    @classmethod
    def fit_examples(cls, recipe: QuestionAnswering, examples: Examples, kept: KeptHead | None = None) -> Self:
        answers = examples.columns["answers"]
        without = [row for row, known in enumerate(answers) if not known]
        if len(without) == len(examples):
            hint = "is this a test split, or are the answers in another column (--answers NAME)?"
            raise DataError("no question of the training data has an answer", where=examples.source, hint=hint)
        if without and recipe.unanswerable is False:
            what = f"{len(without)} of {len(examples)} questions have no answer, but all need one; this is the first"
            raise DataError(what, where=examples.where(without[0]), hint="if some may have none: --unanswerable")
        task = cls(recipe=recipe, unanswerable=recipe.unanswerable, matching=recipe.matching)
        unanswerable = task._unanswerable(answers)
        if recipe.null_threshold is not None and not unanswerable:
            raise UsageError("--null-threshold is for questions without an answer; all have one", hint="leave it out")
        matching = "characters" if task._by_characters(examples) else "words"
        return replace(task, unanswerable=unanswerable, matching=matching, null_threshold=recipe.null_threshold)

    @classmethod
    def _restore(
        cls, recipe: QuestionAnswering, config: BertConfig, block: Mapping[str, Any], where: str
    ) -> QuestionAnsweringTask:
        recipe = replace(recipe, question_column=recipe.question_column or block.get("question_column"))
        threshold = recipe.null_threshold or 0.0  # the default of a model that was never tuned
        matching = recipe.matching
        if matching == "auto":
            matching = block.get("matching", "auto")  # as the training rows decided
        return cls(recipe=recipe, unanswerable=recipe.unanswerable, matching=matching, null_threshold=threshold)

    def fitted(self) -> dict[str, Any]:
        fitted = {"unanswerable": self.unanswerable, "matching": self.matching, "null_threshold": self.null_threshold}
        return fitted | {"question": None, "question_column": self.recipe.question_column}

    def _unanswerable(self, answers: Sequence[Any]) -> bool:
        """Whether questions may have no answer; if not yet decided, whether one of these has none."""
        return self.unanswerable if self.unanswerable is not None else not all(answers)

    def _by_characters(self, examples: Examples) -> bool:
        return self.matching == "characters" or (self.matching == "auto" and are_mostly_chinese(examples.columns["context"]))

    def build(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForQuestionAnswering

        return BertForQuestionAnswering(config)

    # --- features and predictions ---

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, *, max_length: float | None = None, labelled: bool = True
    ) -> Encoding:
        """One feature per window; the head reads all tokens. Labels "start" and "end" are positions of a row's first answer.

        They are 0, at [CLS], if the window does not contain the whole answer, or there is none. A row has no label if its
        answer does not occur in its context, or if there is none although every question should have one.
        """
        longest = self.max_tokens(max_length)
        query = longest if max_length == math.inf else self.recipe.max_query_length
        answers = examples.columns["answers"] if labelled else [[]] * len(examples)
        places = find_answers(examples.columns["context"], answers)
        windows = encode_windows(
            examples.columns["question"],
            examples.columns["context"],
            first_spans(places, answers),
            tokenizer,
            max_length=longest,
            max_query_length=query,
            doc_stride=self.recipe.doc_stride,
        )
        labels: dict[str, Ragged] = {}
        num_windows = len(windows.examples)
        counts = [
            Count(num_windows, "{}", "window", beyond=len(examples)),
            Count(sum(map(is_blank, examples.columns["question"])), "{} without a question", "row"),
            Count(windows.cut, f"{{}} longer than {query} tokens truncated", "question"),
        ]
        if labelled:
            has_answer = np.array([bool(accepted) for accepted in answers])
            lost = has_answer & (windows.spans[:, 0] < 0)
            if has_answer.any() and lost.sum() == has_answer.sum():
                where = examples.where(int(np.flatnonzero(lost)[0]))
                raise DataError(
                    f"none of {plural(int(lost.sum()), 'answer')} is found in its context", where=where, hint=LOST.hint
                )
            ignored = lost if self._unanswerable(answers) else lost | ~has_answer
            for term, positions in zip(("start", "end"), windows.positions(), strict=True):
                labels[term] = Ragged.column(np.where(ignored[windows.examples], IGNORED, positions))
            whole = np.bincount(windows.examples, weights=labels["start"].values > 0, minlength=len(examples)) > 0
            by_way = rows_by_way(places) | {LOST: np.flatnonzero(lost).tolist()}  # also an answer without a token
            counts += [Count(len(by_way[how]), f"{{}} {how.what}", "answer") for how in WAYS if how is not LOST]
            first = listed([examples.where(row) for row in by_way[LOST]], 3)
            most = self.recipe.max_answer_length
            too_long = ~lost & has_answer & (np.diff(windows.spans, axis=1)[:, 0] >= most)
            counts += [
                Count(int((~has_answer).sum()), "{} without an answer", "question"),
                Count(len(by_way[LOST]), f"{{}} {LOST.what}, ignored ({first})", "answer"),
                Count(int((has_answer & ~lost & ~whole).sum()), f"{{}} not within one window ({_MORE_OVERLAP})", "answer"),
                Count(int(too_long.sum()), f"{{}} of more than {most} tokens, never predicted (--max-answer-length)", "answer"),
            ]
        features = Features(
            input_ids=windows.input_ids,
            token_type_ids=windows.token_type_ids,
            examples=windows.examples,
            labels=labels,
            extras={"context": Ragged.column(windows.context), "starts": windows.starts, "ends": windows.ends},
        )
        return Encoding(features, tuple(counts))

    @staticmethod
    def no_row_has(labels: Sequence[str]) -> str:
        which, others = ("every", "without an answer") if "no answer" in labels else ("no", "with one")
        return f"{which} question has an answer; the scores do not cover questions {others}"

    def lacking(self, examples: Examples) -> tuple[Count, ...]:
        return (Count(sum(map(is_blank, examples.columns["context"])), "{} without a context", "row"),)

    def check(self, examples: Examples) -> Iterator[Finding]:
        """Blank questions; answers not at their answer_start, by how they were found; an error for those not found."""
        if blank := [row for row, question in enumerate(examples.columns["question"]) if is_blank(question)]:
            what = f"{plural(len(blank), 'row')} without a question"
            yield Finding("warning", what, examples.places(blank), "fix or remove them")
        rows = rows_by_way(find_answers(examples.columns["context"], examples.columns["answers"]))
        for how in reversed(WAYS):
            if rows[how]:
                what = f"{plural(len(rows[how]), 'answer')} {how.what}"
                yield Finding(how.severity, what, examples.places(rows[how]), how.hint)

    def decode(
        self, outputs: Logits, features: Features, examples: Examples, others: Sequence[Logits] = ()
    ) -> list[Prediction]:
        """One prediction per example: the answer, its span, its probability among the n best, and the n best themselves.

        There is no span if no answer wins or the context is empty.
        """
        if others:
            raise ModelError(f"predictions of {self.family} cannot be averaged over models", hint="choose one of the runs")
        n_best_size, max_answer_length = self.recipe.n_best_size, self.recipe.max_answer_length
        best = best_answers(outputs, features, len(examples), n_best_size=n_best_size, max_answer_length=max_answer_length)
        tables: list[NDArray] = [best.start, best.end, best.start_logits, best.end_logits]
        if unanswerable := self._unanswerable(examples.columns.get("answers", ())):
            nowhere = np.full(len(examples), -1)
            no_answer = (nowhere, nowhere, best.null_start, best.null_end)
            tables = [np.column_stack(pair) for pair in zip(tables, no_answer, strict=True)]
        scores = (tables[2] + tables[3]).astype(np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")
        counts = np.isfinite(scores).sum(axis=1).tolist()
        columns = [np.take_along_axis(table, order, axis=1).tolist() for table in (*tables, softmax(scores))]
        predictions = []
        for row, (context, count) in enumerate(zip(examples.columns["context"], counts, strict=True)):
            nbest = [_candidate(context, *values) for values in zip(*(column[row][:count] for column in columns), strict=True)]
            details = {"id": examples.columns["id"][row], "nbest": nbest}
            if unanswerable:
                details["null_odds"] = float(best.null_odds[row])
            predictions.append(Prediction("", details=details))
        return self.decide(predictions)

    def decide(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """The best of the n best answers, or no answer if null_odds exceed the threshold."""
        decided = []
        for prediction in predictions:
            held_back = prediction.details.get("null_odds", -math.inf) > (self.null_threshold or 0.0)
            chosen = next((each for each in prediction.details["nbest"] if (each["start"] is None) == held_back), _NOWHERE)
            details = {**prediction.details, "start": chosen["start"], "end": chosen["end"]}
            decided.append(Prediction(chosen["text"], chosen["probability"], details=details))
        return decided

    def scored_with(self, others: Sequence[Self]) -> Self:
        if any(other.unanswerable != self.unanswerable for other in others):
            hint = "train all of them with --unanswerable, or all with --no-unanswerable"
            raise ModelError("only some of the runs were trained with questions that have no answer", hint=hint)
        return replace(super().scored_with(others), null_threshold=None)  # each has decided by its own

    def averaged_with(self, others: Sequence[Self]) -> Self:
        raise UsageError("--ensemble averages class probabilities, but answers are spans", hint="leave it out")

    def truth(self, examples: Examples) -> list[Any]:
        answers = examples.columns["answers"]
        how = self._by_characters(examples), self._unanswerable(answers)
        return [References([text for text, _ in accepted], *how) for accepted in answers]

    def scorer(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Scorer:
        """f1 and exact_match as in SQuAD 1.1 or CMRC 2018; if questions may have no answer, the scores of SQuAD 2.0.

        In SQuAD 2.0, best_f1 (the first, which decides the best step) and best_exact use the best thresholds, best_f1_thresh
        and best_exact_thresh; f1 and exact use null_threshold.
        """
        given = _compare_all([prediction.value for prediction in predictions], truth)
        if not truth[0].unanswerable:
            return lambda rows: {"f1": float(given[rows, 1].mean()), "exact_match": float(given[rows, 0].mean())}
        ungated, has_answer, answered, null_odds = self._ungated(predictions, truth)
        if self.null_threshold is not None:
            held_back = (null_odds > self.null_threshold)[:, None]
            given = np.where(held_back, ~has_answer[:, None], ungated).astype(np.float64)

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

    def _ungated(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
        """(E, 2): exact match and F1 of the best answers, without a threshold; (E,): whether the question has an answer,
        whether the best answer is not empty, and null_odds.
        """
        answers = [next((c["text"] for c in p.details["nbest"] if c["start"] is not None), "") for p in predictions]
        has_answer = np.array([bool(references.texts) for references in truth])
        null_odds = np.array([prediction.details["null_odds"] for prediction in predictions])
        return _compare_all(answers, truth), has_answer, np.array([bool(text) for text in answers]), null_odds

    def baselines(self, train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[Prediction]]:
        """A sliding window of the usual answer's length; and no answer, if questions may have none."""
        length = usual_length([answers[0][0] for answers in train.columns["answers"] if answers])
        contexts = examples.columns["context"]
        pairs = zip(examples.columns["question"], contexts, strict=True)
        windows = [sliding_window(question, context, length) for question, context in pairs]
        found = {NO_ANSWER: [_guess("", None)] * len(contexts)} if self.unanswerable else {}
        return found | {SLIDING_WINDOW: [*map(_guess, contexts, windows)]}

    def tuned(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Self:
        """This task with the threshold that gives the best F1 on these rows."""
        if self.recipe.null_threshold is not None or not truth[0].unanswerable:
            return self
        ungated, has_answer, answered, null_odds = self._ungated(predictions, truth)
        return replace(self, null_threshold=best_threshold(ungated[:, 1], has_answer, answered, null_odds).between)

    def error(self, prediction: Prediction, truth: Any) -> float:
        return (1.0 - _compare(prediction.value, truth)[1]) * (prediction.probability or _UNSURE)

    # --- as people and files see it ---

    def counts_of(self, predictions: Sequence[Prediction]) -> tuple[Count, ...]:
        unanswered = sum(not prediction.value for prediction in predictions)
        return (Count(unanswered, "{} that the model does not answer", "question"),)

    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        details = dict(prediction.details)
        inputs = {"id": details.pop("id"), "question": examples.columns["question"][row]}
        span = {"start": details.pop("start"), "end": details.pop("end")}
        return {**inputs, "answer": prediction.value, **span, "probability": prediction.probability, **details}

    def columns(self, examples: Examples) -> OutputColumns:
        null_odds = ("null_odds",) if self._unanswerable(examples.columns.get("answers", ())) else ()
        predicted = ("answer", "start", "end", "probability", "nbest", *null_odds)
        return OutputColumns(("id", "question"), predicted)

    @property
    def details(self) -> Mapping[str, str]:
        return {"n_best": "nbest"}

    def detail(self, prediction: Prediction, layout: OutputLayout) -> dict[str, Any]:
        return {"nbest": prediction.details["nbest"][: layout.n_best or 1]}

    def format_truth(self, truth: Any, examples: Examples, row: int) -> str:
        return " / ".join(dict.fromkeys(truth.texts)) or "no answer"

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        """The question, and the answer in brackets and colour within its surroundings."""
        context, start, end = examples.columns["context"][row], prediction.details["start"], prediction.details["end"]
        text = plain(examples.columns["question"][row])
        text.stylize("bold")
        if start is None:
            text.append("\n  no answer", style="yellow")
        else:
            before, after = context[max(0, start - _AROUND) : start], context[end : end + _AROUND].rstrip()
            answer = plain(f"[{context[start:end]}]")
            answer.stylize("bold reverse green")
            text.append("\n").append(plain(("..." if start > _AROUND else "") + before)).append(answer)
            text.append(plain(after + ("..." if end + _AROUND < len(context) else "")))
        return text.append(f" ({prediction.probability:.2f})\n", style="dim")

    def laid_out(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, list[Piece]]:
        """Both answers within their context; the expected one is the first of the accepted answers."""
        context, answers = examples.columns["context"][row], examples.columns["answers"][row]
        ((first, last),) = first_spans(find_answers([context], [answers]), [answers]).tolist()
        start, end = prediction.details["start"], prediction.details["end"]
        return {
            "question": [Piece(examples.columns["question"][row])],
            "expected": _marked(context, first, last, self.format_truth(truth, examples, row)),
            "predicted": [*_marked(context, start, end, "no answer"), Piece(f" ({prediction.probability:.0%})")],
        }

    def describe_targets(self, features: Features, feature: int) -> list[dict[int, str]]:
        start, end = (int(features.labels[term][feature][0]) for term in ("start", "end"))
        if start == IGNORED:
            return [{}]
        if start == 0:
            return [{0: "no answer here"}]
        return [{start: "answer"} if start == end else {start: "answer starts", end: "answer ends"}]

    def files(self, predictions: Sequence[Prediction], truth: Sequence[Any], examples: Examples) -> dict[str, str]:
        """predictions.json, nbest_predictions.json and, if there may be no answer, null_odds.json, as run_squad writes them."""
        kept = ("text", "probability", "start_logit", "end_logit")
        content: dict[str, list[Any]] = {
            "predictions.json": [p.value for p in predictions],
            "nbest_predictions.json": [[{name: c[name] for name in kept} for c in p.details["nbest"]] for p in predictions],
        }
        if truth[0].unanswerable:
            content["null_odds.json"] = [p.details["null_odds"] for p in predictions]
        by_id = {name: dict(zip(examples.columns["id"], values, strict=True)) for name, values in content.items()}
        return {name: json.dumps(values, indent=4, ensure_ascii=False) + "\n" for name, values in by_id.items()}


def _marked(context: str, start: int | None, end: int, otherwise: str) -> list[Piece]:
    """A context with an answer marked, or `otherwise` if it contains none."""
    if start is None or start < 0:
        return [Piece(otherwise)]
    return [Piece(context[:start]), Piece(context[start:end], "answer"), Piece(context[end:])]


def _compare(answer: str, truth: References) -> tuple[float, float]:
    """Exact match and F1 of an answer."""
    if truth.by_characters:
        return score_characters(answer, truth.texts)
    return score_words(answer, truth.texts, unanswerable=truth.unanswerable)


def _compare_all(answers: Sequence[str], truth: Sequence[References]) -> NDArray[np.float64]:
    """(E, 2) exact match and F1 of answers."""
    return np.array([_compare(*pair) for pair in zip(answers, truth, strict=True)])


def _candidate(context: str, start: int, end: int, start_logit: float, end_logit: float, probability: float) -> dict[str, Any]:
    """One of the n best answers; start -1: no answer."""
    text = context[start:end] if start >= 0 else ""
    place = {"start": start, "end": end} if start >= 0 else {"start": None, "end": None}
    return {"text": text, "probability": probability, "start_logit": start_logit, "end_logit": end_logit, **place}


def _guess(context: str, found: Found | None) -> Prediction:
    """A baseline's answer, or none. The lower its score, the more likely is no answer."""
    if found is None:
        return Prediction("", details={"nbest": [], "null_odds": 0.0})
    answer = _candidate(context, found.start, found.end, found.score, found.score, 1.0)
    return Prediction(answer["text"], details={"nbest": [answer], "null_odds": -found.score})
