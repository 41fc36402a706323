"""Runs side by side: scores as `eval` has them, the interval against a bootstrap by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit.readers import Examples
from bertkit.runs.compare import Side, _differing, compare


@pytest.fixture
def place(run_bertkit, make_model_dir, tmp_path: Path):
    """A function that trains a run; rows whose words tell half of the labels."""
    rng = np.random.default_rng(0)
    words = "the movie book was good bad fine plays read one two".split()
    lines = [
        f"{label},{' '.join(rng.choice(words, 5))} {'good' if label == 'b' else 'bad'}" for label in rng.choice(["a", "b"], 60)
    ]
    (tmp_path / "rows.csv").write_text("label,text\n" + "\n".join(lines) + "\n", encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--device", "cpu", "--precision", "fp32")

    def finetune(output: str, *options: Any, data: tuple[Any, ...] = data) -> None:
        more = ("-m", model, "-o", output, "--batch-size", 8, "--num-epochs", 2, *options)
        ran = run_bertkit("finetune", "text-classification", *data, *more)
        assert ran.code == 0, ran.err

    return finetune


def right(run_bertkit, run: str) -> np.ndarray:
    """Whether each row's prediction is its label."""
    said = [json.loads(line)["label"] for line in run_bertkit("predict", run, "rows.csv").out.splitlines()]
    gold = [line.split(",")[0] for line in Path("rows.csv").read_text(encoding="utf-8").splitlines()[1:]]
    return np.array(said) == np.array(gold)


def test_two_runs(run_bertkit, place) -> None:
    place("one", "--learning-rate", 1e-5)
    place("two", "--learning-rate", 3e-3)
    ran = run_bertkit("compare", "one", "two", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["split"], found["rows"]) == ("validation", 60)
    for side in found["sides"]:
        scores = json.loads(run_bertkit("eval", side["name"], "--json").out)
        assert side["scores"]["accuracy"] == scores["validation/accuracy"]
    assert found["settings"] == {"training.learning_rate": [1e-5, 3e-3]}
    one, two = right(run_bertkit, "one"), right(run_bertkit, "two")
    (row,) = found["differences"]
    assert (row["side"], row["score"]) == ("two", "accuracy")
    assert row["difference"] == pytest.approx(two.mean() - one.mean())
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 60, (20_000, 60))
    by_hand = two[drawn].mean(axis=1) - one[drawn].mean(axis=1)
    assert row["interval"] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.03)
    assert row["higher"] == pytest.approx((by_hand > 0).mean(), abs=0.05)
    for shown in ("minus one", "settings that differ", "training.learning_rate"):
        assert shown in ran.err
    same = json.loads(run_bertkit("compare", "one", "one", "--json").out)
    assert same["differences"][0]["interval"] == [0.0, 0.0], "the same rows are drawn for both sides"
    assert same["settings"] == {}


def test_a_side_of_several_seeds(run_bertkit, place) -> None:
    place("seeds", "--seeds", 3, "--learning-rate", 1e-3)
    place("alone", "--learning-rate", 1e-3, "--seed", 1)
    found = json.loads(run_bertkit("compare", "alone", "seeds", "--json").out)
    alone, seeds = found["sides"]
    assert (alone["runs"], seeds["runs"]) == (1, 3)
    each = [right(run_bertkit, f"seeds/seed-{seed}") for seed in (1, 2, 3)]
    assert seeds["scores"]["accuracy"] == pytest.approx(np.mean([its.mean() for its in each]))
    assert found["settings"] == {}, "a seed is no setting"
    one, rng = right(run_bertkit, "alone"), np.random.default_rng(0)
    drawn = rng.integers(0, 60, (20_000, 60))
    by_hand = np.stack(each)[rng.integers(0, 3, 20_000)[:, None], drawn].mean(axis=1) - one[drawn].mean(axis=1)
    assert found["differences"][0]["interval"] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.03)


def test_seeds_are_drawn_and_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def scorer(right: list[int]) -> Any:
        return lambda rows: {"accuracy": float(np.array(right)[rows].mean()), "f1": None}

    run = {"recipe": {}, "training": {}, "model": {}}
    sides = [Side("half", run, [scorer([0, 1] * 50)]), Side("apart", run, [scorer([0] * 100), scorer([1] * 100)])]
    monkeypatch.setattr("bertkit.runs.compare._open", lambda *_: (sides, Examples({}, "rows", range(100)), "validation"))
    found = compare(["half", "apart"])
    accuracy, f1 = found["differences"]
    assert accuracy["difference"] == 0
    assert accuracy["interval"][0] < -0.4 < 0.4 < accuracy["interval"][1], "either of the two seeds may be the one"
    assert (f1["difference"], f1["interval"], found["sides"][0]["scores"]["f1"]) == (None, None, None)


def test_scores_that_some_rows_or_runs_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """As f1_TYPE of taggers: it is there where the type is, in the drawn rows and in what a run predicts."""

    def scorer(row: int, name: str) -> Any:
        return lambda rows: {"accuracy": 0.5, **({name: 1.0} if row in rows else {})}

    run = {"recipe": {}, "training": {}, "model": {}}
    sides = [Side(name, run, [scorer(0, "f1_A"), scorer(0, f"f1_{name}")]) for name in ("A", "B")]
    monkeypatch.setattr("bertkit.runs.compare._open", lambda *_: (sides, Examples({}, "rows", range(3)), "validation"))
    found = compare(["A", "B"], resamples=50)
    assert [side["scores"]["f1_A"] for side in found["sides"]] == [1.0, None]
    assert [(its["score"], its["interval"]) for its in found["differences"]] == [("accuracy", [0.0, 0.0]), ("f1_A", [0.0, 0.0])]


def test_a_tuned_threshold_is_no_setting() -> None:
    tuned = {"null_threshold": 2.0, "threshold_tuned": True}
    runs = [{"recipe": its, "training": {}, "model": {}} for its in (tuned, {"null_threshold": 1.0, "threshold_tuned": False})]
    one, other = (Side(name, run, []) for name, run in zip("ab", runs, strict=True))
    assert _differing([one, replace(one, run=runs[0] | {"recipe": {**tuned, "null_threshold": 3.0}})]) == {}
    assert _differing([one, other]) == {"recipe.null_threshold": [None, 1.0]}


def test_what_is_refused(run_bertkit, place, tmp_path: Path, tiny_model_dir: Path) -> None:
    place("one")
    ran = run_bertkit("compare", "one")
    assert (ran.code, "expected two or more" in ran.err) == (2, True)
    ran = run_bertkit("compare", "one", tiny_model_dir)
    assert (ran.code, "run.json" in ran.err) == (2, True)
    rows = Path("rows.csv").read_text(encoding="utf-8")
    (tmp_path / "others.csv").write_text(rows.replace("movie", "book"), encoding="utf-8")
    data = ("--train", "others.csv", "--validation", "others.csv", "--max-length", 16, "--device", "cpu", "--precision", "fp32")
    place("two", data=data)
    ran = run_bertkit("compare", "one", "two")
    assert ran.code == 2
    error = ran.err.splitlines()[-2]
    assert (ran.code, error.startswith("error: the validation rows"), error.endswith("in the text (two)")) == (2, True, True)


def test_what_is_no_run_is_found_before_any_is_evaluated(run_bertkit, place, tmp_path: Path, monkeypatch) -> None:
    place("one")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("bertkit.runs.compare.evaluate_target", lambda *_: pytest.fail("a run was evaluated"))
    ran = run_bertkit("compare", "one", "empty")
    assert (ran.code, ran.err.endswith("(empty)\n"), ran.err.count("\n")) == (2, True, 1)
