"""Comparing runs: their scores, the settings that differ, the interval against a bootstrap written by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_pages import assert_inert
from trained import predictions_of, train

from bertkit.errors import UsageError
from bertkit.readers import Examples
from bertkit.report import Finding, Table
from bertkit.runs.evaluation.compare import Side, compare, compare_sides, report_comparison
from bertkit.runs.evaluation.evaluate import evaluate_target
from bertkit.runs.target import open_target

pytestmark = [pytest.mark.all_draws, pytest.mark.e2e]
DRAWS = np.random.default_rng(0).integers(0, 60, (20_000, 60))


@pytest.fixture(scope="module")
def runs(make_model_dir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs on rows whose words tell half of the labels."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    words = "the movie book was good bad fine plays read one two".split()
    rows = [(label, " ".join(rng.choice(words, 5))) for label in rng.choice(["a", "b"], 60)]
    lines = [f"{label},{text} {'good' if label == 'b' else 'bad'}\n" for label, text in rows]
    (folder / "rows.csv").write_text("label,text\n" + "".join(lines), encoding="utf-8")
    (folder / "others.csv").write_text("label,text\n" + "".join(lines).replace("movie", "book"), encoding="utf-8")
    model, how = make_model_dir("BertModel", seed=21, initializer_range=0.5), {"batch_size": 8, "num_epochs": 2}
    train(folder / "one", model, folder / "rows.csv", **how, learning_rate=1e-5)
    train(folder / "two", model, folder / "rows.csv", **how, learning_rate=3e-3)
    train(folder / "seeds", model, folder / "rows.csv", **how, learning_rate=1e-3, seeds=3)
    train(folder / "other", model, folder / "others.csv")
    return folder


def right(run: Path, rows: Path) -> np.ndarray:
    """Whether each row's prediction is its label."""
    labels = [line.split(",")[0] for line in rows.read_text(encoding="utf-8").splitlines()[1:]]
    predictions = predictions_of(open_target(str(run), None, {}), str(rows))
    return np.array([found.value for found in predictions]) == np.array(labels)


def test_two_runs(runs: Path) -> None:
    names = str(runs / "one"), str(runs / "two")
    found = compare(names)
    assert (found["split"], found["rows"], found["settings"]) == ("validation", 60, {"training.learning_rate": [1e-5, 3e-3]})
    for side in found["sides"]:
        scored = evaluate_target(open_target(side["name"], None, {})).scored
        assert side["scores"]["accuracy"] == scored.scores["validation/accuracy"]
    one, two = (right(runs / name, runs / "rows.csv") for name in ("one", "two"))
    (row,) = found["differences"]
    assert (row["side"], row["score"], row["difference"]) == (names[1], "accuracy", pytest.approx(two.mean() - one.mean()))
    by_hand = two[DRAWS].mean(axis=1) - one[DRAWS].mean(axis=1)
    assert row["interval"] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.03)
    assert row["higher"] == pytest.approx((by_hand > 0).mean(), abs=0.05)
    same = compare(names[:1] * 2, resamples=100)
    assert (same["differences"][0]["interval"], same["settings"]) == ([0.0, 0.0], {}), "both sides have the same rows"


def test_a_run_beside_itself_or_its_copy_is_one_line(runs: Path, tmp_path: Path, run_bertkit) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "one", copy)
    one, two = runs / "one", runs / "two"
    for same in (one, copy):
        ran = run_bertkit("compare", one, same)
        assert (ran.code, "paired bootstrap" in ran.err) == (0, False), ran.err
        assert f"{same} has exactly the same scores as {one}" in " ".join(ran.err.split())
        assert f"validation: {same} was trained on these rows" in " ".join(ran.err.split()), "as this file's rows are both"
    ran = run_bertkit("compare", one, copy, two)
    assert (ran.code, "paired bootstrap" in ran.err, ran.err.count("has exactly the same scores as")) == (0, True, 1), ran.err
    assert "seeds has exactly the same scores as" in run_bertkit("compare", runs / "seeds", runs / "seeds").err
    assert run_bertkit("report", one, copy).code == 0
    page = assert_inert((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "has exactly the same scores as" in page.text
    assert not any("bootstrap" in caption or "fixed and broken" in caption for caption in page.tables)


def test_a_side_of_several_seeds(runs: Path) -> None:
    found = compare([str(runs / "one"), str(runs / "seeds")])
    assert [side["runs"] for side in found["sides"]] == [1, 3]
    each = np.stack([right(runs / "seeds" / f"seed-{seed}", runs / "rows.csv") for seed in (1, 2, 3)])
    assert found["sides"][1]["scores"]["accuracy"] == pytest.approx(each.mean())
    assert list(found["settings"]) == ["training.learning_rate"], "a seed is no setting"
    seed = np.random.default_rng(0).integers(0, 3, len(DRAWS))[:, None]
    by_hand = each[seed, DRAWS].mean(axis=1) - right(runs / "one", runs / "rows.csv")[DRAWS].mean(axis=1)
    assert found["differences"][0]["interval"] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.03)


def test_folds_are_compared_by_their_held_out_rows(runs: Path, make_model_dir, tmp_path: Path) -> None:
    """Each row counts once on each side, scored by the run that was not trained on it, whatever the number of folds."""
    model, how = make_model_dir("BertModel", seed=21, initializer_range=0.5), {"batch_size": 8, "num_epochs": 2}
    for name, folds, rate in (("slow", 3, 1e-5), ("fast", 2, 3e-3)):
        train(tmp_path / name, model, runs / "rows.csv", **how, learning_rate=rate, folds=folds)
    found = compare([str(tmp_path / "slow"), str(tmp_path / "fast")], resamples=100)
    assert (found["rows"], [side["runs"] for side in found["sides"]]) == (60, [1, 1])
    assert "training.learning_rate" in found["settings"]
    for side, folds in zip(found["sides"], (3, 2), strict=True):
        scored = [evaluate_target(open_target(f"{side['name']}/fold-{fold}", None, {})).scored for fold in range(1, folds + 1)]
        right = [p.value == t for each in scored for p, t in zip(each.predictions["validation"], each.truth["validation"])]
        assert (len(right), side["scores"]["accuracy"]) == (60, pytest.approx(np.mean(right)))
    with pytest.raises(UsageError) as other_rows:
        compare([str(tmp_path / "slow"), str(tmp_path / "slow" / "fold-1")])
    assert "--test FILE" in str(other_rows.value.hint)
    (tmp_path / "slow" / "folds.json").unlink()
    with pytest.raises(UsageError) as unfinished:
        compare([str(tmp_path / "fast"), str(tmp_path / "slow")])
    assert ("folds" in unfinished.value.what, str(tmp_path / "slow" / "fold-1") in str(unfinished.value.hint)) == (True, True)


def test_folds_of_answers_are_compared_each_with_its_own_threshold(make_model_dir, tmp_path: Path) -> None:
    texts = ["the movie was good", "the book was bad", "the plays read fine", "one movie was bad"]
    asked = [(text, word) for text in texts for word in ("movie", "book", "read", "two")]
    answers = [[text.split()[-1]] if word in text else [] for text, word in asked]
    rows = [
        {"id": str(row), "question": f"the {word}", "context": text}
        | {"answers": {"text": found, "answer_start": [text.index(answer) for answer in found]}}
        for row, ((text, word), found) in enumerate(zip(asked, answers, strict=True))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    for name, folds in (("two", 2), ("three", 3)):
        train(tmp_path / name, model, tmp_path / "rows.jsonl", family="question-answering", folds=folds, num_epochs=2)
    found = compare([str(tmp_path / "two"), str(tmp_path / "three")], resamples=20)
    assert found["rows"] == 16
    for side, folds in zip(found["sides"], (2, 3), strict=True):
        scored = [evaluate_target(open_target(f"{side['name']}/fold-{fold}", None, {})).scored for fold in range(1, folds + 1)]
        exact = [fold.scores["validation/exact"] for fold in scored for _ in fold.truth["validation"]]
        assert (len(exact), side["scores"]["exact"]) == (16, pytest.approx(np.mean(exact)))


RUN: dict[str, Any] = {"recipe": {}, "training": {}, "model": {}}


def compared(sides: list[Side], rows: int, **options: Any) -> dict[str, Any]:
    return compare_sides(sides, Examples({}, "rows", range(rows)), "validation", **options)


def test_seeds_are_drawn_and_not_averaged() -> None:
    def scorer(right: list[int]) -> Any:
        return lambda rows: {"accuracy": float(np.array(right)[rows].mean()), "f1": None}

    sides = [Side("half", RUN, [scorer([0, 1] * 50)]), Side("apart", RUN, [scorer([0] * 100), scorer([1] * 100)])]
    found = compared(sides, 100)
    accuracy, f1 = found["differences"]
    assert accuracy["difference"] == 0
    assert accuracy["interval"][0] < -0.4 < 0.4 < accuracy["interval"][1], "either of the two seeds may be the one"
    assert (f1["difference"], f1["interval"], f1["higher"]) == (None, None, None)
    assert found["sides"][0]["scores"]["f1"] is None


def test_scores_that_some_rows_or_runs_do_not_have() -> None:
    """As f1_TYPE of taggers: it is there where the type is, in the drawn rows and in what a run predicts."""

    def scorer(row: int, name: str) -> Any:
        return lambda rows: {"accuracy": 0.5, **({name: 1.0} if row in rows else {})}

    sides = [Side(name, RUN, [scorer(0, "f1_A"), scorer(0, f"f1_{name}")]) for name in ("A", "B")]
    found = compared(sides, 3, resamples=50)
    assert [side["scores"]["f1_A"] for side in found["sides"]] == [1.0, None]
    assert [(row["score"], row["interval"]) for row in found["differences"]] == [("accuracy", [0.0, 0.0]), ("f1_A", [0.0, 0.0])]


def test_settings_that_differ() -> None:
    one = Side("one", RUN | {"training": {"seed": 1, "batch_size": 8}, "model": {"name": "a"}}, [lambda rows: {}])
    other = replace(one, run=RUN | {"training": {"seed": 2, "batch_size": 8, "reinit_layers": 2}, "model": {"name": "b"}})
    differ = {"training.reinit_layers": [0, 2], "model.name": ["a", "b"]}
    found = compared([one, other], 3, resamples=1)["settings"]
    assert found == {"training.seed": [1, 2], **differ}, "an older run had the default"
    several = replace(one, scorers=one.scorers * 2)
    assert compared([several, other], 3, resamples=1)["settings"] == differ, "runs of one side differ in their seeds"


def test_epochs_are_no_setting_where_the_number_of_steps_is_given() -> None:
    runs = [RUN | {"training": {"num_epochs": epochs, "max_steps": steps}} for epochs, steps in ((1, 9), (2, 9), (3, None))]
    sides = [Side(str(number), run, [lambda rows: {}]) for number, run in enumerate(runs)]
    assert compared(sides[:2], 3, resamples=1)["settings"] == {}
    found = compared(sides[1:], 3, resamples=1)["settings"]
    assert found == {"training.num_epochs": [None, 3], "training.max_steps": [9, None]}


def test_what_is_better_lower_is_told() -> None:
    score = {"pearson": 0.5, "mean_squared_error": 1.0}
    found = compared([Side(name, RUN, [lambda rows: score]) for name in ("a", "b")], 3, resamples=1)
    (note,) = (part for part in report_comparison(found).parts if isinstance(part, Finding) and "better" in part.what)
    assert (note.severity, note.what) == ("note", "lower is better: mean_squared_error")


def test_runs_without_a_common_score_are_told() -> None:
    found = compared([Side(name, RUN, [lambda rows, name=name: {name: 1.0}]) for name in ("a", "b")], 3, resamples=1)
    scores, warning = report_comparison(found).parts
    assert isinstance(scores, Table)
    assert isinstance(warning, Finding)
    assert scores.rows == [["a", 1.0, None], ["b", None, 1.0]]
    assert (warning.severity, warning.what) == ("warning", "the runs have no score in common: nothing is compared")


@pytest.mark.parametrize(
    ("asked", "dtypes", "differ"),
    [
        (("auto", "bf16"), ("bfloat16", "bfloat16"), None),
        (("auto", "auto"), ("bfloat16", "float32"), ["bf16", "fp32"]),
        (("fp32", "tf32"), ("float32", "float32"), ["fp32", "tf32"]),
        (("auto", "fp32"), (None, None), ["auto", "fp32"]),
    ],
)
def test_an_automatic_precision_is_the_one_that_was_used(
    asked: tuple[str, str], dtypes: tuple[str | None, str | None], differ: list[str] | None
) -> None:
    runs = [RUN | {"training": {"precision": name}, "dtype": dtype} for name, dtype in zip(asked, dtypes, strict=True)]
    found = compared([Side("one", runs[0], [lambda rows: {}]), Side("other", runs[1], [lambda rows: {}])], 3, resamples=1)
    assert found["settings"] == ({} if differ is None else {"training.precision": differ})


def test_runs_of_different_data_are_compared_on_a_file_of_its_own(runs: Path, run_bertkit) -> None:
    (runs / "new.csv").write_text("label,text\n" + "a,the movie\nb,a good book\na,bad plays\n" * 7, encoding="utf-8")
    found = json.loads(run_bertkit("compare", runs / "one", runs / "other", "--test", runs / "new.csv", "--json").out)
    assert (found["split"], found["rows"]) == ("test", 21)
    expected = [right(runs / name, runs / "new.csv").mean() for name in ("one", "other")]
    assert [side["scores"]["accuracy"] for side in found["sides"]] == expected


def test_a_file_of_its_own_is_read_as_the_options_say(runs: Path, run_bertkit) -> None:
    rows = "a;the film\u00e9\nb;a good book\na;bad plays\n" * 7
    (runs / "odd.csv").write_text(rows, encoding="latin-1")
    how = ("--columns", "label,text", "--separator", ";", "--encoding", "latin-1")
    found = json.loads(run_bertkit("compare", runs / "one", runs / "other", "--test", runs / "odd.csv", *how, "--json").out)
    assert (found["split"], found["rows"]) == ("test", 21)


def test_rows_of_a_file_of_its_own_may_be_skipped(runs: Path, run_bertkit) -> None:
    rows = "a,the movie\nb,a good book\na,bad plays\n" * 7
    (runs / "broken.csv").write_text(f"label,text\n{rows}a,\n", encoding="utf-8")
    command = ("compare", runs / "one", runs / "other", "--test", runs / "broken.csv", "--json")
    assert run_bertkit(*command).code == 3
    assert json.loads(run_bertkit(*command, "--on-error", "skip").out)["rows"] == 21


def test_several_labels_of_a_file_of_its_own_are_separated_as_it_says(make_model_dir, run_bertkit, tmp_path: Path) -> None:
    rows = "a,a movie\nb,a book\na#b,good\nb#a,bad\n" * 4
    (tmp_path / "rows.csv").write_text(f"label,text\n{rows}", encoding="utf-8")
    (tmp_path / "new.csv").write_text("label,text\n" + rows.replace("#", " and "), encoding="utf-8")
    for name in ("one", "two"):
        model = make_model_dir("BertModel")
        train(tmp_path / name, model, tmp_path / "rows.csv", multi_label=True, label_separator="#", max_steps=1)
    command = ("compare", tmp_path / "one", tmp_path / "two", "--test", tmp_path / "new.csv", "--json")
    assert "unknown label 'a and b'" in run_bertkit(*command).err
    assert json.loads(run_bertkit(*command, "--label-separator", " and ").out)["rows"] == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--test", "-"), "standard input"),
        (("--test", "new.csv", "--split", "validation"), "--split is validation"),
        (("--encoding", "latin-1"), "--encoding is for reading other rows"),
    ],
)
def test_options_that_no_file_of_its_own_has(runs: Path, run_bertkit, options: tuple[str, ...], said: str) -> None:
    ran = run_bertkit("compare", runs / "one", runs / "other", *options, stdin=b"label,text\na,b\n")
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_runs_that_cannot_be_compared(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as error:
        compare([str(runs / "one"), str(runs / "other")])
    assert (error.value.where, error.value.what.endswith("in these columns: text")) == (str(runs / "other"), True)
    assert "--test FILE" in error.value.hint
    shutil.copytree(runs / "one", tmp_path / "apart" / "unevaluated")
    run = json.loads((tmp_path / "apart" / "unevaluated" / "run.json").read_text(encoding="utf-8"))
    run["recipe"] |= {"train": None, "validation": None, "data": str(runs), "eval_splits": []}
    (tmp_path / "apart" / "unevaluated" / "run.json").write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(UsageError, match="no split to evaluate on"):
        compare([str(tmp_path / "apart" / "unevaluated"), str(runs / "one")])
    monkeypatch.setattr(
        "bertkit.runs.evaluation.compare.evaluate_target", lambda *_, **more: pytest.fail("a run was evaluated")
    )
    with pytest.raises(UsageError) as error:
        compare([str(runs / "one"), str(tmp_path)])
    assert error.value.where == str(tmp_path)
