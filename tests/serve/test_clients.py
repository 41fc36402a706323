"""Unmodified clients: huggingface_hub's InferenceClient with a real server, and transformers as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from serving import listening, serving

pytestmark = pytest.mark.e2e
TEXTS = ["the good movie", "a bad book, broken", "we like the story of a river bank", "open the new ticket", "no"]
LABELS, TAGS = ("blame", "none", "praise"), ("O", "B-X", "I-X", "B-Y")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests are offline, and then the client asks no server at all, not even this machine's."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def folders(make_model_dir: Callable[..., Path]) -> dict[str, Path]:
    """A model of each of the client's tasks, with weights that decide one way here and another there."""

    def make(architecture: str, seed: int, **config: Any) -> Path:
        return make_model_dir(architecture, seed=seed, initializer_range=0.5, **config)

    return {
        "labels": make("BertForSequenceClassification", 3, labels=LABELS),
        "tags": make("BertForTokenClassification", 4, labels=TAGS),
        "answers": make("BertForQuestionAnswering", 5),
        "fills": make("BertForMaskedLM", 6),
    }


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with serving(folders) as served, listening(served.app) as found:
        yield found


def pipeline(folders: dict[str, Path], name: str, task: str, **how: Any) -> Any:
    return transformers.pipeline(task, model=str(folders[name]), device="cpu", **how)


def test_text_classification(url: str, folders: dict[str, Path]) -> None:
    client = InferenceClient(base_url=url)  # the first model, which needs no name
    oracle = pipeline(folders, "labels", "text-classification", top_k=None)
    for text in TEXTS:
        found, (expected,) = client.text_classification(text), oracle([text])
        assert [each.label for each in found] == [each["label"] for each in expected]
        assert [each.score for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)
    best = [client.text_classification(text, top_k=1) for text in TEXTS]
    assert {len(each) for each in best} == {1}
    assert len({each[0].label for each in best}) > 1, "a constant would pass"


def test_a_pair_of_texts(url: str, folders: dict[str, Path]) -> None:
    pair: Any = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    found = InferenceClient(base_url=f"{url}/models/labels").text_classification(pair)
    (expected,) = pipeline(folders, "labels", "text-classification", top_k=None)([pair])
    assert [(each.label, pytest.approx(each.score, abs=1e-5)) for each in found] == [
        (each["label"], each["score"]) for each in expected
    ]
    assert found[0].score != pytest.approx(InferenceClient(base_url=url).text_classification(TEXTS[0])[0].score, abs=1e-4)


@pytest.mark.parametrize("strategy", [None, "simple", "first"])
def test_token_classification(url: str, folders: dict[str, Path], strategy: Any) -> None:
    client = InferenceClient(base_url=f"{url}/models/tags")
    oracle = pipeline(folders, "tags", "token-classification", aggregation_strategy="first")
    seen = set()
    for text in TEXTS:
        found = client.token_classification(text, aggregation_strategy=strategy)
        expected = oracle(text)
        for name in ("entity_group", "start", "end", "word"):
            assert [each[name] for each in found] == [each[name] for each in expected]
        assert [each.score for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)
        seen |= {(each.entity_group, each.start, each.end) for each in found}
    assert len(seen) > 2, "a constant would pass"


def test_the_tag_of_each_word(url: str, folders: dict[str, Path]) -> None:
    client = InferenceClient(base_url=f"{url}/models/tags")
    oracle = pipeline(folders, "tags", "token-classification", aggregation_strategy="none", ignore_labels=["B-Y"])
    found = client.token_classification(TEXTS[2], aggregation_strategy="none", ignore_labels=["B-Y"])
    assert [(each.entity, each.word) for each in found] == [(each["entity"], each["word"]) for each in oracle(TEXTS[2])]
    with pytest.raises(HfHubHTTPError, match=r"aggregation_strategy is 'max'; expected none, simple or first"):
        client.token_classification(TEXTS[0], aggregation_strategy="max")


def spans_by_logits(folder: Path, question: str, context: str) -> list[tuple[float, int, int]]:
    """All spans of a context, best first: the sum of their logits, and their characters. transformers' own pipeline for this
    task ended with its version 4.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    places = inputs.pop("offset_mapping")[0].tolist()
    inside = [at for at, part in enumerate(inputs.sequence_ids(0)) if part == 1]
    with torch.no_grad():
        outputs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)(**inputs)
    start, end = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
    spans = [(start[a] + end[b], places[a][0], places[b][1]) for a, b in product(inside, inside) if a <= b]
    return sorted(spans, reverse=True)


def test_question_answering(url: str, folders: dict[str, Path]) -> None:
    client = InferenceClient(base_url=f"{url}/models/answers")
    seen = set()
    for question, context in zip(TEXTS, TEXTS[::-1]):
        best = spans_by_logits(folders["answers"], question, context)[:20]
        probabilities = np.exp([score - best[0][0] for score, _, _ in best])
        probabilities /= probabilities.sum()
        found = client.question_answering(question, context)
        assert (found.start, found.end, found.answer) == (*best[0][1:], context[best[0][1] : best[0][2]])  # type: ignore[union-attr]
        assert found.score == pytest.approx(probabilities[0], abs=1e-5)  # type: ignore[union-attr]
        several: Any = client.question_answering(question, context, top_k=3)
        assert [(each.start, each.end) for each in several] == [span[1:] for span in best[:3]]
        seen.add(found.answer)  # type: ignore[union-attr]
    assert len(seen) > 1


@pytest.mark.parametrize("text", ["the [MASK] movie", "we like the [MASK] of a river.", "A [MASK] book and a [MASK] story"])
def test_fill_mask(url: str, folders: dict[str, Path], text: str) -> None:
    client, oracle = InferenceClient(base_url=f"{url}/models/fills"), pipeline(folders, "fills", "fill-mask")
    for top_k in (None, 1, 7):
        found: Any = client.fill_mask(text, top_k=top_k)
        expected = oracle(text, **({} if top_k is None else {"top_k": top_k}))
        for ours, theirs in zip(*(each if text.count("[MASK]") > 1 else [each] for each in (found, expected)), strict=True):
            assert [(each.token, each.token_str) for each in ours] == [(each["token"], each["token_str"]) for each in theirs]
            assert [each.score for each in ours] == pytest.approx([each["score"] for each in theirs], abs=1e-5)
            if text.count("[MASK]") == 1:
                plain = [each["sequence"].replace(" ", "") for each in theirs]
                assert [each.sequence.lower().replace(" ", "") for each in ours] == plain


def test_fill_mask_among_targets(url: str, folders: dict[str, Path]) -> None:
    client, oracle = InferenceClient(base_url=f"{url}/models/fills"), pipeline(folders, "fills", "fill-mask")
    targets = ["movie", "river", "##ing"]
    found, expected = client.fill_mask("the [MASK]", targets=targets), oracle("the [MASK]", targets=targets)
    assert [(each.token_str, pytest.approx(each.score, abs=1e-6)) for each in found] == [
        (each["token_str"], each["score"]) for each in expected
    ]
    for top_k in (1, 2, 9):
        capped, expected = (
            client.fill_mask("the [MASK]", targets=targets, top_k=top_k),
            oracle("the [MASK]", targets=targets, top_k=top_k),
        )
        assert [each.token_str for each in capped] == [each["token_str"] for each in expected]
    with pytest.raises(HfHubHTTPError, match="'nowhere' is not in"):
        client.fill_mask("the [MASK]", targets=["nowhere"])
    with pytest.raises(HfHubHTTPError, match=r"no \[MASK\] in the text"):
        client.fill_mask("the movie")


def test_a_token(folders: dict[str, Path]) -> None:
    with serving({"labels": folders["labels"]}, token="secret") as served, listening(served.app) as url:
        assert InferenceClient(base_url=url, token="secret").text_classification(TEXTS[0])
        for token in ("other", None):
            with pytest.raises(HfHubHTTPError) as error:
                InferenceClient(base_url=url, token=token).text_classification(TEXTS[0])
            assert error.value.response.status_code == 401
