"""Folds: every row is held out once, each fold trains as it would alone, they resume, and their scores are summed up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trained
from html_pages import assert_inert
from trained import read_json, weights

from bertkit.errors import DataError, UsageError
from bertkit.progress import format_interval
from bertkit.runs.evaluation.compare import compare
from bertkit.runs.evaluation.evaluate import evaluate_target
from bertkit.runs.reporting.report import write_report
from bertkit.runs.series import summarize
from bertkit.runs.target import open_target
from bertkit.tasks import Recipe
from bertkit.training import loop as training

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write_rows(tmp_path_factory.mktemp("data") / "rows.csv", 6)


@pytest.fixture(scope="module")
def train(make_model_dir, rows: Path) -> Callable[..., Path]:
    """A function that trains three folds for an epoch."""
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)

    def train(output_dir: Path, folds: int | None = 3, **options: Any) -> Path:
        how = {"model": model, "file": rows, "batch_size": 8, "num_epochs": 1, "seed": 5} | options
        return trained.train(output_dir, folds=folds, **how)

    return train


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("folds") / "several")


def held_out(run: Path) -> list[str]:
    """The texts of a run's validation rows."""
    return evaluate_target(open_target(str(run), None, {})).splits["validation"].examples.columns["text"]


def test_each_fold_trains_as_it_would_alone_and_each_row_is_held_out_once(
    train, whole: Path, rows: Path, tmp_path: Path
) -> None:
    train(tmp_path / "alone", None, validation="2/3")
    assert weights(whole / "fold-2") == weights(tmp_path / "alone")
    runs = [whole / f"fold-{number}" for number in (1, 2, 3)]
    assert Counter(text for run in runs for text in held_out(run)) == Counter(
        line.partition(",")[2] for line in rows.read_text(encoding="utf-8").splitlines()[1:]
    )
    assert {read_json(run / "run.json")["training"]["seed"] for run in runs} == {5}
    found = read_json(whole / "folds.json")
    each = [read_json(run / "run.json")["best"]["scores"] for run in runs]
    assert found["folds"] == [1, 2, 3]
    for name in ("validation/accuracy", "validation/loss"):
        assert found["scores"][name] == summarize([scores[name] for scores in each])
    assert sorted(path.name for path in whole.iterdir()) == ["fold-1", "fold-2", "fold-3", "folds.json"]


def test_the_mean_of_folds_warns_about_the_training_rows_of_any(whole: Path, rows: Path, tmp_path: Path, run_bertkit) -> None:
    header, *lines = rows.read_text(encoding="utf-8").splitlines()
    unseen = {*held_out(whole / "fold-2")}
    kept = [line for line in lines if line.partition(",")[2] not in unseen]
    (tmp_path / "kept.csv").write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    ran = run_bertkit("eval", whole, "--ensemble", "--split", "test", "--test", tmp_path / "kept.csv")
    assert ran.code == 0, ran.err
    assert "fold-2 was trained on these rows" in " ".join(ran.err.split())


def test_the_options_of_a_fold_hold_out_the_same_rows(tmp_path: Path) -> None:
    """Also of a recipe with rows of its own, and of a folder."""
    from bertkit.runs.series import FOLDS
    from bertkit.tasks.catalog import load_recipe
    from bertkit.tasks.saved import options_of_run, to_json
    from bertkit.tasks.splits import read_splits

    for split in ("train", "validation", "test"):
        trained.write_rows(tmp_path / f"{split}.csv", 6)
    own, folder = load_recipe("helpdesk"), load_recipe("text-classification").overridden({"data": str(tmp_path)})
    both = replace(folder, eval_splits=("validation", "test"))
    assert read_splits(both.overridden({"validation": "1/2"}).resolved()).rows.keys() == {"train", "validation", "test"}
    for recipe in (own, folder, both):
        everything = read_splits(recipe.resolved(), ["train"]).rows["train"]
        for number in (1, 2):
            fold = FOLDS.run(recipe, number, 2)
            rows = read_splits(fold.resolved()).rows
            assert [*rows] == ["train", "validation"]
            assert len(rows["train"]) + len(rows["validation"]) == len(everything)
            options = options_of_run({"recipe": to_json(fold, name="any"), "training": {}})
            again = read_splits(recipe.overridden(options).resolved()).rows
            assert [again[split].lines for split in rows] == [part.lines for part in rows.values()]


def test_what_must_be_beaten_is_the_mean_of_the_folds(train, tmp_path: Path) -> None:
    folder = train(tmp_path / "compared", 2, baselines=True)
    of_runs = [read_json(folder / f"fold-{fold}" / "run.json")["baselines"] for fold in (1, 2)]
    found = read_json(folder / "folds.json")["baselines"]
    assert list(found) == ["most frequent", "bag of words", "linear probe"]
    assert found == {name: pytest.approx((of_runs[0][name] + of_runs[1][name]) / 2) for name in found}


def test_the_file_is_read_once(train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_file, paths = Recipe.read_file, []

    def reading(recipe: Recipe, path: str, **options: Any) -> Any:
        paths.append(path)
        return read_file(recipe, path, **options)

    monkeypatch.setattr(Recipe, "read_file", reading)
    train(tmp_path / "run", 3, max_steps=1)
    assert len(paths) == 1


def test_a_report_of_folds_shows_the_same_fold_and_compares_all(train, whole: Path, tmp_path: Path) -> None:
    ours, others = Path(shutil.copytree(whole, tmp_path / "ours")), train(tmp_path / "others", learning_rate=1e-2)
    for folder, each in ((ours, [0.0, 0.5, 1.0]), (others, [0.5, 0.0, 1.0])):  # whose medians are the folds 2 and 1
        summary = read_json(folder / "folds.json")
        next(iter(summary["scores"].values()))["each"] = each
        (folder / "folds.json").write_text(json.dumps(summary), encoding="utf-8")
    write_report([str(ours), str(others)], tmp_path / "both.html")
    page = assert_inert((tmp_path / "both.html").read_text(encoding="utf-8"))
    assert page.text.count("this page shows fold-2") == 2
    found = compare([str(ours), str(others)])["differences"]
    shown = {row[1]: row[3] for row in page.tables["paired bootstrap over rows"][1:]}
    assert shown == {row["score"]: format_interval(row["interval"], "+.4f") for row in found}


def test_stopped_folds_resume_and_finished_ones_are_kept(train, whole: Path, tmp_path: Path, monkeypatch) -> None:
    cut, seed_dropout, steps = tmp_path / "cut", training.seed_dropout, []

    def stopping(*values: Any) -> None:
        steps.append(values)
        if len(steps) == 5:  # a fold has three steps
            os.kill(os.getpid(), signal.SIGTERM)
        seed_dropout(*values)

    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(cut)
    assert sorted(path.name for path in cut.iterdir()) == ["fold-1", "fold-2", "folds.json"]
    first = (cut / "fold-1" / "model.safetensors").stat().st_mtime_ns
    for _ in range(2):  # the second time all are finished
        assert read_json(train(cut) / "folds.json")["scores"] == read_json(whole / "folds.json")["scores"]
    assert (cut / "fold-1" / "model.safetensors").stat().st_mtime_ns == first
    assert [weights(cut / f"fold-{number}") for number in (1, 2, 3)] == [
        weights(whole / f"fold-{number}") for number in (1, 2, 3)
    ]


def test_folds_of_other_settings_or_rows_are_refused(train, rows: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_bytes(rows.read_bytes())
    folder = train(tmp_path / "run", 2, file=mine, max_steps=1)

    def refused(**options: Any) -> None:
        before = sorted(folder.rglob("*"))
        with pytest.raises(UsageError) as error:
            train(folder, **{"folds": 2, "file": mine, "max_steps": 1, **options})
        assert (error.value.where, sorted(folder.rglob("*"))) == (str(folder), before)

    refused(folds=3)
    refused(folds=None, seeds=2)
    refused(learning_rate=1e-2)
    refused(seed=6)
    mine.write_bytes(rows.read_bytes().replace(b"good,", b"bad,", 1))
    refused()


def test_a_label_of_one_fold_alone_is_refused_before_the_first_fold_trains(train, rows: Path, tmp_path: Path) -> None:
    rare = tmp_path / "rare.csv"
    rare.write_text(rows.read_text(encoding="utf-8") + "rare,one of its kind\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        train(tmp_path / "run", file=rare)
    assert (error.value.where, (tmp_path / "run").exists()) == (f"{rare}:34", False)
    assert re.match(r"fold \d: unknown label .rare.", error.value.what)


def test_folds_of_a_folders_training_rows(train, rows: Path, whole: Path, run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "data" / f"{split}.csv").write_bytes(rows.read_bytes())
    data = read_json(whole / "fold-1" / "run.json")["model"]["name"]
    how = "--text text --label label --folds 3 --seed 5 --max-steps 1 --max-length 16 --device cpu -o run".split()
    ran = run_bertkit("finetune", "text-classification", "--data", "data", "-m", data, *how)
    assert ran.code == 0, ran.err
    for number in (1, 2, 3):
        ours, theirs = (read_json(folder / f"fold-{number}" / "run.json")["data"] for folder in (tmp_path / "run", whole))
        assert [ours[split]["rows_sha256"] for split in ours] == [theirs[split]["rows_sha256"] for split in theirs]
        assert [*ours] == ["train", "validation"]
