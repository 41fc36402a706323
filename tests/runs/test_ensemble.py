"""A folder of seeds or folds: the median run stands for it, or the mean of all, worked out here from each run's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.e2e
WORDS = "the movie book was good bad fine plays read one two".split()
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(30)]
LONG = " ".join(RNG.choice(WORDS, 40))


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def texts(label: Callable[[int], Any]) -> str:
    return lines([{"text": text, "label": label(at)} for at, text in enumerate(TEXTS)])


TAGGED = lines(
    [
        {"tokens": text.split(), "tags": ["AB"[len(word) % 2] for word in text.split()], "intent": "xy"[at % 2]}
        for at, text in enumerate(TEXTS)
    ]
)
CHOICES = lines([{"text": text, "choices": text.split()[:3], "label": at % 3} for at, text in enumerate(TEXTS)])
ANSWERS = lines([{"question": "why", "context": text, "answers": {"text": [text[:3]], "answer_start": [0]}} for text in TEXTS])


@pytest.fixture
def train(run_bertkit, make_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., None]:
    """A function that trains three seeds in the folder "runs"; options may say otherwise."""
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)

    def train(family: str, content: str, *options: object) -> None:
        (tmp_path / "my.jsonl").write_text(content, encoding="utf-8")
        several = () if {"--seeds", "--folds"} & {*options} else ("--seeds", 3, "--validation", "my.jsonl")
        how = "--max-length 16 --precision fp32 --device cpu --max-steps 3 --no-baselines -o runs".split()
        ran = run_bertkit("finetune", family, "--train", "my.jsonl", "-m", model, *how, *several, *options)
        assert ran.code == 0, ran.err

    return train


@pytest.fixture
def predicted(run_bertkit) -> Callable[..., list[dict[str, Any]]]:
    """A function that gives what `predict` writes for the rows of my.jsonl."""

    def predicted(target: str, *options: object, file: str = "my.jsonl") -> list[dict[str, Any]]:
        ran = run_bertkit("predict", target, file, *options)
        assert ran.code == 0, ran.err
        return [json.loads(line) for line in ran.out.splitlines()]

    return predicted


RUNS = tuple(f"runs/seed-{number}" for number in (1, 2, 3))


def probabilities_of(row: dict[str, Any], name: str) -> np.ndarray:
    """Those of two classes, from that of the best."""
    return np.array([row["probability"], 1 - row["probability"]][:: 1 if row["label"] == name else -1])


def test_classes(train, predicted, run_bertkit) -> None:
    train("text-classification", texts(lambda at: "ab"[at % 2]), "--truncate", "windows", "--max-length", 7)
    mean = np.mean([[probabilities_of(row, "a") for row in predicted(run)] for run in RUNS], axis=0)
    found = predicted("runs", "--ensemble")
    assert [row["label"] for row in found] == ["ab"[at] for at in mean.argmax(axis=1)]
    assert [row["probability"] for row in found] == pytest.approx(mean.max(axis=1), abs=1e-6)
    scores = json.loads(run_bertkit("eval", "runs", "--ensemble", "--json").out)
    right = [row["label"] == "ab"[at % 2] for at, row in enumerate(found)]
    assert scores == {"validation/accuracy": pytest.approx(np.mean(right))}
    assert len({*map(str, (predicted(run) for run in RUNS))}) == 3, "the runs differ"


def test_several_labels(train, predicted, tmp_path: Path) -> None:
    train("text-classification", texts(lambda at: ["a"] * (at % 2) + ["b"] * (at % 3 > 0)), "--multi-label")
    each = [predicted(run) for run in RUNS]
    mean = np.array([[[row["probabilities"][name] for name in "ab"] for row in rows] for rows in each]).mean(axis=0)
    configs = [json.loads((tmp_path / run / "config.json").read_text(encoding="utf-8")) for run in RUNS]
    thresholds = np.mean([[config["bertkit"]["thresholds"][name] for name in "ab"] for config in configs], axis=0)
    assert len({str(config["bertkit"]["thresholds"]) for config in configs}) == 3
    found = predicted("runs", "--ensemble")
    assert [[*row["probabilities"].values()] for row in found] == [pytest.approx(row, abs=1e-6) for row in mean]
    assert [row["labels"] for row in found] == [
        [name for name, is_on in zip("ab", row, strict=True) if is_on] for row in mean >= thresholds
    ]


def test_numbers(train, predicted) -> None:
    train("text-classification", texts(lambda at: at / 2), "--regression")
    mean = np.mean([[row["prediction"] for row in predicted(run)] for run in RUNS], axis=0)
    assert [row["prediction"] for row in predicted("runs", "--ensemble")] == pytest.approx(mean, abs=1e-6)


def test_choices(train, predicted) -> None:
    train("multiple-choice", CHOICES)
    mean = np.mean([[row["probabilities"] for row in predicted(run)] for run in RUNS], axis=0)
    found = predicted("runs", "--ensemble")
    assert [row["probabilities"] for row in found] == [pytest.approx(row, abs=1e-6) for row in mean]
    assert [row["choice"] for row in found] == mean.argmax(axis=1).tolist()


@pytest.mark.parametrize("options", [(), ("--head", "crf"), ("--intent",)])
def test_tags(options: tuple[str, ...], train, predicted, tmp_path: Path) -> None:
    train("token-classification", TAGGED, *options)
    (tmp_path / "new.jsonl").write_text(lines([{"text": text} for text in (*TEXTS, LONG)]), encoding="utf-8")
    each = [predicted(run, file="new.jsonl") for run in RUNS]
    found = predicted("runs", "--ensemble", file="new.jsonl")
    for at, row in enumerate(found):
        pairs = [list(zip(rows[at]["tags"], rows[at]["probabilities"], strict=True)) for rows in each]
        mean = np.mean(
            [[probability if tag == "A" else 1 - probability for tag, probability in words] for words in pairs], axis=0
        )
        assert row["probabilities"] == pytest.approx(np.maximum(mean, 1 - mean), abs=1e-5)
        assert row["tags"] == ["A" if share > 0.5 else "B" for share in mean]
        if "--intent" in options:
            said = [(rows[at]["intent"], rows[at]["intent_probability"]) for rows in each]
            share = np.mean([probability if intent == "x" else 1 - probability for intent, probability in said])
            assert (row["intent"], row["intent_probability"]) == (
                "x" if share > 0.5 else "y",
                pytest.approx(max(share, 1 - share)),
            )


def test_the_median_run_stands_for_the_folder(train, predicted, run_bertkit, tmp_path: Path) -> None:
    train("text-classification", texts(lambda at: "ab"[at % 2]))
    path = tmp_path / "runs" / "seeds.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    for each, median in (([0.5, 0.9, 0.7], 3), ([0.7, 0.5, 0.9], 1), ([None, 0.2, 0.8], 2), ([None, None, None], 1)):
        summary["scores"]["validation/accuracy"]["each"] = each
        path.write_text(json.dumps(summary), encoding="utf-8")
        assert predicted("runs") == predicted(f"runs/seed-{median}")
    ran = run_bertkit("eval", "runs", "--json")
    assert json.loads(ran.out) == json.loads(run_bertkit("eval", "runs/seed-1", "--json").out)
    assert [
        line for line in ran.err.splitlines() if "seed-1" in line and "validation/accuracy" in line and "--ensemble" in line
    ]


def test_folds_are_averaged_on_rows_that_none_was_trained_on(train, predicted, run_bertkit) -> None:
    train("text-classification", texts(lambda at: "ab"[at % 2]), "--folds", 2)
    assert predicted("runs", "--ensemble")
    for more, code in (
        ((), 2),
        (("--split", "train"), 2),
        (("--validation", "my.jsonl"), 0),
        (("--test", "my.jsonl", "--split", "test"), 0),
    ):
        assert run_bertkit("eval", "runs", "--ensemble", *more).code == code, more
    assert run_bertkit("eval", "runs").code == 0


def test_what_cannot_be_averaged(train, run_bertkit, tmp_path: Path) -> None:
    train("question-answering", ANSWERS, "--seeds", 2, "--validation", "my.jsonl")

    def refused(code: int, *command: object) -> None:
        ran = run_bertkit(*command, "--ensemble")
        assert (ran.code, ran.out, sum(line.startswith("error: ") for line in ran.err.splitlines())) == (code, "", 1)

    refused(2, "predict", "runs", "my.jsonl")
    refused(2, "eval", "runs")
    refused(2, "predict", "runs/seed-1", "my.jsonl")
    assert run_bertkit("eval", "runs").code == 0
    (tmp_path / "runs" / "seeds.json").write_text('{"plan": {}}', encoding="utf-8")  # a stopped series
    refused(2, "eval", "runs")
    assert run_bertkit("eval", "runs").code == 2


def test_runs_with_other_labels_are_not_averaged(train, run_bertkit, tmp_path: Path) -> None:
    train("text-classification", texts(lambda at: "ab"[at % 2]))
    config = tmp_path / "runs" / "seed-2" / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"a"', '"c"'), encoding="utf-8")
    assert run_bertkit("predict", "runs", "my.jsonl", "--ensemble").code == 4
