"""Several seeds: each one trains as it would alone, they resume, and their summary is checked against scipy and by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained
from html_pages import assert_inert
from scipy import stats
from trained import before_step, read_json, weights

import bertkit
from bertkit.errors import ModelError, UsageError
from bertkit.files import relative
from bertkit.files.output_folder import lock
from bertkit.progress import format_interval
from bertkit.runs.evaluation.compare import compare
from bertkit.runs.finetuning.series import describe_runs
from bertkit.runs.reporting.report import write_report
from bertkit.runs.series import SEEDS, runs_to_use, summarize
from bertkit.runs.target import open_target

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write_rows(tmp_path_factory.mktemp("data") / "rows.csv", 5)


@pytest.fixture(scope="module")
def train(make_model_dir, rows: Path) -> Callable[..., Path]:
    """A function that trains with three seeds for an epoch."""
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)

    def train(output_dir: Path, seeds: int | None = 3, **options: Any) -> Path:
        how = {"model": model, "file": rows, "batch_size": 8, "num_epochs": 1} | options
        return trained.train(output_dir, seeds=seeds, **how)

    return train


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three seeds."""
    return train(tmp_path_factory.mktemp("seeds") / "several")


@pytest.fixture
def several(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole` that may be changed."""
    return Path(shutil.copytree(whole, tmp_path / "several"))


def stop(run: Callable[[], Any], *, seed: int = 2, step: int = 1) -> None:
    """Send SIGTERM in a step of a seed."""
    with before_step(step, seed=seed), pytest.raises(KeyboardInterrupt):
        run()


def test_each_seed_trains_as_it_would_alone(train, whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "alone", None, seed=2)
    assert weights(whole / "seed-2") == weights(tmp_path / "alone")
    assert len({weights(whole / f"seed-{seed}") for seed in (1, 2, 3)}) == 3
    found = read_json(whole / "seeds.json")
    each = [read_json(whole / f"seed-{seed}" / "run.json")["best"]["scores"] for seed in (1, 2, 3)]
    assert found["seeds"] == [1, 2, 3]
    for name in ("validation/accuracy", "validation/loss"):
        assert found["scores"][name] == summarize([scores[name] for scores in each])
    assert sorted(path.name for path in whole.iterdir()) == ["seed-1", "seed-2", "seed-3", "seeds.json"]


def test_stopped_seeds_resume_and_more_can_be_added(train, whole: Path, tmp_path: Path, capsys) -> None:
    cut = tmp_path / "cut"
    stop(lambda: train(cut, 2))
    first = (cut / "seed-1" / "model.safetensors").stat().st_mtime_ns
    assert read_json(train(cut, 2) / "seeds.json")["seeds"] == [1, 2]
    assert (cut / "seed-1" / "model.safetensors").stat().st_mtime_ns == first
    train(cut, 3)
    assert [weights(cut / f"seed-{seed}") for seed in (1, 2, 3)] == [weights(whole / f"seed-{seed}") for seed in (1, 2, 3)]
    assert read_json(cut / "seeds.json")["scores"] == read_json(whole / "seeds.json")["scores"]
    assert "do not count" not in capsys.readouterr().err
    assert read_json(train(cut, 1) / "seeds.json")["seeds"] == [1]
    assert "has more seeds, which the summary leaves out: 2, 3" in " ".join(capsys.readouterr().err.split())


def test_a_signal_in_a_seeds_last_step_stops_before_the_next(train, whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    last = read_json(whole / "seed-1" / "run.json")["total_steps"] - 1
    stop(lambda: train(cut), seed=1, step=last)
    assert [path.name for path in cut.iterdir() if path.is_dir()] == ["seed-1"]
    with pytest.warns(match="seed-1 is not finished: using its best model so far"):
        bertkit.load(cut / "seed-1")
    train(cut)
    assert [weights(cut / f"seed-{seed}") for seed in (1, 2, 3)] == [weights(whole / f"seed-{seed}") for seed in (1, 2, 3)]
    bertkit.load(cut / "seed-1")  # which would raise its warnings


def test_a_report_says_which_seed_it_shows(train, whole: Path, tmp_path: Path, capsys) -> None:
    write_report([str(whole)], tmp_path / "report.html")
    assert re.search(r"of 3 seeds, the median by validation/accuracy\n", capsys.readouterr().err), "report has no --ensemble"
    runs_to_use(str(train(tmp_path / "two", 2)), ensemble=False)
    assert "of 2 seeds, the lower median by validation/accuracy; --ensemble averages all" in capsys.readouterr().err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    median = Path(*runs_to_use(str(whole), ensemble=False)).name
    assert f"{relative(whole)} has several runs; this page shows {median}</" in page


def test_a_report_compares_all_seeds_as_compare_does(train, whole: Path, tmp_path: Path, monkeypatch) -> None:
    other = train(tmp_path / "other", 2, learning_rate=1e-2, baselines=True)
    summary = read_json(other / "seeds.json")
    first = next(iter(summary["scores"].values()))
    first["each"] = [1.0, 0.0]  # so that the page shows the seed without baselines of its own
    (other / "seeds.json").write_text(json.dumps(summary), encoding="utf-8")
    assert Path(*runs_to_use(str(other), ensemble=False)).name == "seed-2"
    opened: list[Path] = []

    def recorded(name: str, *rest: Any) -> Any:
        opened.append(Path(name))
        return open_target(name, *rest)

    for module in ("evaluation.compare", "reporting.task_report"):
        monkeypatch.setattr(f"bertkit.runs.{module}.open_target", recorded)
    write_report([str(whole), str(other)], tmp_path / "both.html")
    assert sorted(opened) == sorted([*SEEDS.runs_in(other), *SEEDS.runs_in(whole)]), "each run predicts its rows once"
    page = assert_inert((tmp_path / "both.html").read_text(encoding="utf-8"))
    found = compare([str(whole), str(other)])["differences"]
    shown = {row[1]: row[3] for row in page.tables["paired bootstrap over rows and one run of each side"][1:]}
    assert shown == {row["score"]: format_interval(row["interval"], "+.4f") for row in found}
    assert len(found) > 0
    assert read_json(other / "seed-2" / "run.json").get("baselines") is None
    (scores,) = [table for title, table in page.tables.items() if title.endswith("compared") and table[1][0] == relative(other)]
    assert [row[0] for row in scores[2:]] == [*read_json(other / "seed-1" / "run.json")["baselines"]]


def test_a_stopped_overwrite_leaves_no_run_with_other_settings(train, several: Path) -> None:
    faster = {"learning_rate": 1e-3}
    stop(lambda: train(several, overwrite=True, **faster))
    assert (several.parent / "several.old-1" / "seed-3" / "run.json").is_file()
    train(several, **faster, micro_batch_tokens=64, logging_steps=1)  # which may change between seeds
    rates = {read_json(several / f"seed-{seed}" / "run.json")["training"]["learning_rate"] for seed in (1, 2, 3)}
    assert rates == {1e-3}


def test_each_run_counts_where_the_summary_is_missing_or_damaged(train, several: Path) -> None:
    summary = several / "seeds.json"
    kept = read_json(summary)
    for content in ("{", "[]", '{"seeds": 3}'):
        summary.write_text(content, encoding="utf-8")
        with pytest.raises(ModelError) as damaged:
            train(several)
        assert damaged.value.where == str(summary)
    summary.rename(several / ".unfinished-seeds.json")  # as a full disk leaves it
    with pytest.raises(UsageError) as error:
        train(several, learning_rate=1e-3)
    assert (error.value.where, "learning_rate was 0.0003, now 0.001" in error.value.what) == (str(several / "seed-1"), True)
    del kept["plan"]["data"]  # nobody knows whether the finished runs were trained on the rows that are there now
    for _ in range(2):
        train(several)
        assert read_json(summary) == kept


def test_seeds_of_other_rows_are_told_apart_without_a_summary_too(train, several: Path, rows: Path) -> None:
    before = rows.read_bytes()
    (several / "seeds.json").unlink()
    rows.write_bytes(before.replace(b"good", b"bad", 1))
    try:
        with pytest.raises(UsageError, match="the data changed between seed 1 and seed 4"):
            train(several, 4)
        with pytest.raises(UsageError, match="the data changed between seed 1 and seed 4"):
            train(several, 3)
    finally:
        rows.write_bytes(before)


def test_overwriting_moves_nothing_before_all_is_checked(train, several: Path) -> None:
    with pytest.raises(ModelError):
        train(several, overwrite=True, model=several.parent / "nowhere")
    with pytest.raises(UsageError):  # of the training itself
        train(several, overwrite=True, reinit_layers=99)
    with lock(several / "seed-2"), pytest.raises(UsageError) as error:
        train(several, overwrite=True)
    assert error.value.where == str(several / "seed-2")
    assert [path.name for path in several.parent.iterdir()] == ["several"]


def test_the_same_file_by_another_path_is_the_same(train, several: Path, rows: Path) -> None:
    before = weights(several / "seed-2"), (several / "seed-2" / "run.json").stat().st_mtime_ns
    train(several, train=os.path.relpath(rows), validation=f"{rows.parent}/./rows.csv")
    assert (weights(several / "seed-2"), (several / "seed-2" / "run.json").stat().st_mtime_ns) == before


def test_other_settings_or_data_are_refused(train, several: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        train(several, learning_rate=1e-3)
    assert (error.value.where, "learning_rate was 0.0003, now 0.001" in error.value.what) == (str(several), True)
    for overwrite in (False, True):  # a single run is not a folder of seeds
        with pytest.raises(UsageError) as error:
            train(several / "seed-1", overwrite=overwrite)
        assert error.value.where == str(several / "seed-1")


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_other_rows_or_weights_are_refused_before_any_training(
    seeds: int, train, several: Path, rows: Path, make_model_dir, tmp_path: Path
) -> None:
    """Also where all seeds are finished: their scores are not those of the rows that are there now."""
    model, before = Path(read_json(several / "seeds.json")["plan"]["model"]["name"]), rows.read_bytes()
    weights_before = (model / "model.safetensors").read_bytes()
    changes = {rows: before.replace(b"good", b"bad", 1)}
    changes[model / "model.safetensors"] = (make_model_dir("BertModel", seed=22) / "model.safetensors").read_bytes()
    try:
        for path, changed in changes.items():
            path.write_bytes(changed)
            with pytest.raises(UsageError) as error:
                train(several, seeds)
            what = "data has changed" if path == rows else "model has changed"
            assert error.value.what == f"the folder holds seeds with different settings: {what}"
            rows.write_bytes(before)
    finally:
        rows.write_bytes(before)
        (model / "model.safetensors").write_bytes(weights_before)
    assert not (several / "seed-4").exists()
    train(several, 3)


def test_runs_with_constant_predictions_are_counted(train, tmp_path: Path) -> None:
    runs = {
        1: {"best": {"scores": {"validation/accuracy": 0.5, "validation/constant_predictions": 1.0}}},
        2: {"best": {"scores": {"validation/accuracy": 0.75, "validation/f1_A": 0.5}}},
    }
    found = describe_runs(SEEDS, runs)
    assert (found["constant"], list(found["scores"])) == ([1], ["validation/accuracy", "validation/f1_A"])
    assert found["scores"]["validation/f1_A"]["each"] == [None, 0.5]
    same = tmp_path / "same.csv"  # for which every model predicts the same
    same.write_text("label,text\n" + "a,the movie\nb,the movie\n" * 4, encoding="utf-8")
    assert read_json(train(tmp_path / "same", 2, file=same) / "seeds.json")["constant"] == [1, 2]


def test_what_must_be_beaten_is_fitted_once_for_all_seeds(train, tmp_path: Path) -> None:
    folder = train(tmp_path / "compared", 2, baselines=True)
    of_runs = [read_json(folder / f"seed-{seed}" / "run.json")["baselines"] for seed in (1, 2)]
    assert (list(of_runs[0]), of_runs[1]) == (["most frequent", "bag of words", "linear probe"], None)
    assert read_json(folder / "seeds.json")["baselines"] == of_runs[0]


def test_remarks_on_rows_that_all_seeds_share_are_shown_once(train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("label,text,author\n" + "a,the movie,me\nb,the book,you\n" * 4, encoding="utf-8")
    train(tmp_path / "mine", 2, file=mine)
    assert capsys.readouterr().err.count("not used: author") == 1


def test_a_summary_of_scores() -> None:
    values = [0.61, 0.55, 0.7, 0.52, 0.66]
    found = summarize(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found["interval"] == pytest.approx([low, high])
    assert (found["median"], found["each"]) == (0.61, values)
    assert (found["mean"], found["std"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert summarize([0.5, None]) == {"median": 0.5, "mean": 0.5, "std": None, "interval": None, "each": [0.5, None]}
    assert summarize([None])["mean"] is None
    assert summarize([0.5, 0.5, 0.5])["interval"] is None, "equal seeds do not tell how sure the mean is"


@pytest.mark.parametrize(
    ("score", "values", "interval"),
    [
        ("validation/accuracy", (0.97, 1.0, 0.99), (None, 1.0)),
        ("validation/f1_PER", (0.02, 0.0, 0.01), (0.0, None)),
        ("validation/HasAns_exact", (0.97, 1.0, 0.99), (None, 1.0)),
        ("validation/pearson", (-0.99, -1.0, -0.97), (-1.0, None)),
        ("validation/loss", (0.02, 0.3, 1.0), (0.0, None)),
        ("validation/perplexity", (1.5, 9.0, 30.0), (1.0, None)),
        ("validation/best_f1_thresh", (0.02, -0.3, 1.0), (None, None)),
        ("validation/points", (99.0, 100.0, 98.0), (None, None)),
        ("validation/my_f1", (99.0, 100.0, 98.0), (None, None)),
    ],
)
def test_an_interval_ends_where_its_score_does(score: str, values: tuple, interval: tuple) -> None:
    runs = {seed: {"best": {"scores": {score: value}}} for seed, value in enumerate(values, 1)}
    found = describe_runs(SEEDS, runs)["scores"][score]["interval"]
    by_t = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found == pytest.approx([own if end is None else end for own, end in zip(by_t, interval, strict=True)])
