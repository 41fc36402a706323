"""How a quantized graph is compared with its model; in the graph's place stands the model itself, with some outputs changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from seqeval.metrics import f1_score
from test_export import ABC, COLUMNS, TEXTS, Case, jsonl, tagged, texts, trained
from torch import Tensor, nn

from bertkit.model.batch import Batch, Outputs
from bertkit.runs.export.folder import _open
from bertkit.runs.export.quantized import Verdict, compare_language_models, compare_tasks
from bertkit.runs.inference.language_model import LanguageModelPredictor
from bertkit.runs.inference.task_predictor import TaskPredictor

pytestmark = [pytest.mark.all_draws, pytest.mark.e2e]
Changes = Mapping[tuple[int, str], Callable[[Tensor], Tensor]]


class Changed(nn.Module):
    """A head with other outputs. changes: by feature and name. It takes one feature at a time, as a quantized graph must."""

    def __init__(self, head: nn.Module, changes: Changes) -> None:
        super().__init__()
        self.head, self.changes = head, changes

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        return self.head.raw(batch)  # type: ignore[operator]

    def forward(self, batch: Batch) -> Outputs:
        (feature,) = batch.features.tolist()
        logits = self.head(batch).logits
        return Outputs({}, {name: self.changes.get((feature, name), lambda same: same)(rows) for name, rows in logits.items()})


def turned(logits: Tensor) -> Tensor:
    """The logits with another class as the greatest."""
    return logits.roll(1, -1)


def compared(predictor: TaskPredictor, changes: Changes, rows: Any, dev: int) -> tuple[Verdict, list[Any], list[Any]]:
    """The verdict on all rows as texts and the first ones as dev rows; and the model's predictions and the truth of these."""
    labelled = rows.dev.select(range(dev))
    splits = [predictor.encode(each)[0] for each in (rows.texts, labelled)]
    graphs: Any = (Changed(predictor.model, {}), Changed(predictor.model, changes))
    found = compare_tasks(predictor, graphs, *splits)
    return found, predictor.decode(splits[1]), [*predictor.task.truth(labelled)]


def the_run(case: Case, folder: Path, make_model_dir: Callable[..., Path]) -> tuple[TaskPredictor, Any]:
    predictor, rows = _open(str(trained(case, folder, make_model_dir)), int8=True, texts=None)
    assert isinstance(predictor, TaskPredictor)
    return predictor, rows


def is_of(found: Verdict, name: str, exact: float, quantized: float) -> bool:
    """Whether the score is this one, and its interval is of the difference."""
    assert found.score is not None
    assert found.interval is not None
    low, high = found.interval
    return (
        found.score == (name, pytest.approx(exact, rel=1e-4), pytest.approx(quantized, rel=1e-4))
        and low < quantized - exact < high
    )


def test_classes_that_differ_are_counted_and_scored(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    predictor, rows = the_run(Case("text-classification", texts(ABC) * 4, (), COLUMNS), tmp_path, make_model_dir)
    changes = {(feature, "logits"): turned for feature in (0, 1, 9)}
    found, predictions, truth = compared(predictor, changes, rows, 8)
    assert (found.texts, found.decisions, found.agreement) == (32, 32, 1 - 5 / 32), "two of the three are in the dev rows"
    labels = predictor.task.labels
    exact = [each.value for each in predictions]
    quantized = [labels[(labels.index(label) + 1) % 3] if row < 2 else label for row, label in enumerate(exact)]
    assert is_of(found, "accuracy", *(sklearn.metrics.accuracy_score(truth, each) for each in (exact, quantized)))
    assert found.greater_is_better


def test_each_word_and_each_intent_is_a_decision(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    case = Case("token-classification", tagged(intent=ABC), (), ("--intent",))
    predictor, rows = the_run(case, tmp_path, make_model_dir)
    found, predictions, truth = compared(predictor, {(0, "logits"): turned, (1, "intent"): turned}, rows, 2)
    words = [len(each.value) for each in predictor.decode(predictor.encode(rows.texts)[0])]
    assert words[:2] == [len(text.split()) for text in TEXTS[:2]]
    count = sum(words) + 6 + sum(words[:2]) + 2
    assert (found.decisions, found.agreement) == (count, pytest.approx(1 - 2 * (words[0] + 1) / count))
    labels = predictor.task.labels
    exact = [each.value for each in predictions]
    quantized = [[labels[(labels.index(tag) + 1) % len(labels)] for tag in exact[0]], exact[1]]
    tags = [each.tags for each in truth]
    assert found.score == ("f1", *(pytest.approx(f1_score(tags, each)) for each in (exact, quantized)))


def test_numbers_may_differ_by_a_tenth_of_a_deviation(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    options = (*COLUMNS, "--regression", "--metric", "mean_squared_error")
    case = Case("text-classification", texts([0.5, 1.5, 3.0] * 2), (), options)
    predictor, rows = the_run(case, tmp_path, make_model_dir)
    exact = np.array([each.value for each in predictor.decode(predictor.encode(rows.texts)[0])])
    shifts = np.std(exact) * np.array([0.099, 0.101, -0.099, -0.101, 5.0, 0.0])
    changes = {(row, "logits"): lambda logits, shift=shift: logits + shift for row, shift in enumerate(shifts.tolist())}
    found, _, truth = compared(predictor, changes, rows, 6)
    assert (found.decisions, found.agreement) == (12, 0.5)
    scores = [sklearn.metrics.mean_squared_error(truth, each) for each in (exact, exact + shifts)]
    assert is_of(found, "mean_squared_error", *scores)
    assert not found.greater_is_better
    assert found.near == pytest.approx(0.1 * np.std(exact))
    assert f"50.00% of 12 numbers agree within {found.near:.3g}, a tenth of the numbers' standard deviation" in found.faults[0]


class Guesser(nn.Module):
    """In the place of a language model: it says the same token everywhere, but another one in some features."""

    def __init__(self, token: int, mask: int, others: Mapping[int, int]) -> None:
        super().__init__()
        self.token, self.mask, self.others = token, mask, others

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        return {}

    def likeliest(self, batch: Batch, k: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        assert k == 1
        assert batch.rows is not None
        assert {*batch.input_ids[batch.rows].tolist()} == {self.mask}, "it sees no answer"
        features = np.repeat(batch.features.numpy(), batch.row_counts)
        tokens = torch.tensor([[self.others.get(feature, self.token)] for feature in features.tolist()])
        return torch.ones(tokens.shape), tokens


def test_masked_tokens_are_decisions_scored_by_the_tokens_they_were(make_model_dir: Callable[..., Path]) -> None:
    predictor = LanguageModelPredictor.open(str(make_model_dir("BertForMaskedLM")), "cpu", "fp32")
    vocab, mask = predictor.pretrained.tokenizer.vocab, predictor.pretrained.tokenizer.mask_token_id
    right, wrong = vocab["movie"], vocab["book"]
    predictor.__dict__["_modules"] = [Guesser(right, mask, {0: wrong})]
    graphs: Any = [Guesser(right, mask, others) for others in ({}, {1: wrong, 5: wrong})]
    texts = [" ".join(["movie"] * (14 if number == 5 else 7)) for number in range(10)]  # one word in seven is masked
    found = compare_language_models(predictor, graphs, [*texts, ""])
    assert (found.texts, found.decisions, found.agreement) == (10, 11, pytest.approx(1 - 4 / 11)), "a blank text has none"
    assert found.score == ("masked_accuracy", pytest.approx(10 / 11), pytest.approx(8 / 11))
    assert found.interval is not None
    assert found.interval[0] < -2 / 11 < found.interval[1]


@pytest.mark.parametrize("most", [4, 6])
@pytest.mark.parametrize("architecture", ["BertForMaskedLM", None])
def test_of_many_texts_some_are_compared_from_all_over_the_file(
    architecture: str | None, most: int, tmp_path: Path, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of a file in place of a run's own, whose dev rows are compared nevertheless."""
    monkeypatch.setattr("bertkit.runs.export.folder.TEXTS_COMPARED", most)
    case = Case("text-classification", texts(ABC), (), COLUMNS)
    model = trained(case, tmp_path, make_model_dir) if architecture is None else make_model_dir(architecture)
    file = jsonl(tmp_path / "texts.jsonl", [{"text": f"text {row}"} for row in range(6)])
    _, rows = _open(str(model), int8=True, texts=str(file))
    assert rows is not None
    assert [*rows.texts.columns["text"]] == [f"text {row}" for row in ((0, 1, 3, 4) if most == 4 else range(6))]
    assert (rows.dev is None) == (architecture is not None)
    if rows.dev is not None:
        assert [*rows.dev.columns["text"]] == TEXTS
