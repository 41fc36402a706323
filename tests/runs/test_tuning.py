"""Tuning: the search space, which process trains what, kills, signals, pruning, budgets, and rows that no trial sees."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Ran
from html_pages import assert_inert
from shell import ROOT
from trained import read_json

from bertkit.cli.tune import _seconds
from bertkit.errors import UsageError
from bertkit.readers import Examples
from bertkit.report import Finding, Table
from bertkit.runs.encoded import hash_of_rows
from bertkit.runs.run_file import require_run, write_run_file
from bertkit.runs.tuning import study
from bertkit.runs.tuning.rate_range import WINDOW, report_range
from bertkit.runs.tuning.search_space import Range, Space, read_space
from bertkit.runs.tuning.study import _describe, report_tuning
from bertkit.runs.tuning.trials import JOURNAL, LOST, TRIES, Trials
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.task import Task

ROWS = 60
# A metric that a test can steer: it scores by what the file `script.py` beside it says, in each process anew.
RECIPE = '''"""Scripted: a task of the tests"""
from pathlib import Path

from bertkit.tasks import TextClassification


def scripted(predictions, references):
    names = {"accuracy": float((predictions == references).mean()), "here": Path(__file__).parent}
    if not any(names["here"].glob("out/trial-*")):  # it is tried before the first trial
        return names["accuracy"]
    exec((names["here"] / "script.py").read_text(), names)
    return names["score"]


recipe = TextClassification(text="text", label="label", metrics=(scripted,))
'''
ACCURACY = "score = accuracy"
FIXED = ("--max-length", "16", "--max-steps", "2", "--device", "cpu", "--precision", "fp32", "--seeds", "2")


def write_rows(path: Path) -> None:
    """Different texts, of which the label is the first word."""
    words = np.random.default_rng(0).choice("the movie book was fine plays read one two".split(), (ROWS, 3))
    lines = [f"{('good', 'bad')[row % 2]},{('good', 'bad')[row % 2]} {' '.join(words[row])} {row}" for row in range(ROWS)]
    path.write_text("label,text\n" + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def model(make_model_dir) -> Path:
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows, and a recipe that scores by accuracy until `script.py` says otherwise."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "task.py").write_text(RECIPE)
    (tmp_path / "script.py").write_text(ACCURACY)
    return tmp_path


@pytest.fixture
def tune(place: Path, model: Path, run_bertkit: Callable[..., Ran]) -> Callable[..., Ran]:
    """A function that runs the command in this process, on the recipe unless another task is named."""
    return lambda *more, task="./task.py": run_bertkit(*command(model, *more, task=task))


def command(model: Path, *more: object, task: str = "./task.py") -> list[str]:
    return ["tune", task, "--train", "rows.csv", "-m", str(model), "-o", "out", *FIXED, *map(str, more)]


@pytest.fixture
def start(model: Path, place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts the command in a process of its own."""
    with contextlib.ExitStack() as stack:

        def start(*more: object) -> subprocess.Popen[str]:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            argv = [sys.executable, "-m", "bertkit", *command(model, *more)]
            process = stack.enter_context(subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield start


def trials() -> list[dict[str, Any]]:
    """By their number."""
    return sorted(read_json("out/tune.json")["trials"], key=lambda trial: trial["trial"])


def states() -> list[str]:
    return [trial["state"] for trial in trials()]


RATES = ("--search", "learning-rate=1e-1,1e-3,1e-4")
SIX = (*RATES, "--search", "batch-size=8,16")


# --- what is searched --------------------------------------------------------------------------------------------------------


def space(*searched: str, fixed: tuple[str, ...] = (), **options: Any) -> Space:
    return read_space(searched, load_recipe("mrpc").overridden(options), fixed)


def test_the_grid_is_the_papers() -> None:
    """Devlin et al. (2019), appendix A.3: three lists; a recipe's own values are among what is searched."""
    grid = {(batch, rate, epochs) for batch in (16, 32) for rate in (5e-5, 3e-5, 2e-5) for epochs in (2, 3, 4)}
    whole = space()
    points = [whole.point(number, seed=1) for number in range(18)]
    assert {(point["batch_size"], point["learning_rate"], point["num_epochs"]) for point in points} == grid
    assert whole.points == len(grid) == 18
    assert points != [whole.point(number, seed=2) for number in range(18)]


def test_typed_options_are_fixed_for_all_trials() -> None:
    assert space(fixed=("learning_rate",)) == {"batch_size": (16, 32), "num_epochs": (2, 3, 4)}
    assert set(space(max_steps=5)) == {"batch_size", "learning_rate"}
    with pytest.raises(UsageError, match="nothing is left to search"):
        space(fixed=("learning_rate", "batch_size"), max_steps=5)


def test_a_search_wins_over_a_recipe_file() -> None:
    """As an option would: the file's steps are replaced by the epochs, unless the user gives both."""
    assert space("num-epochs=2,3", max_steps=5) == {"num_epochs": (2.0, 3.0)}
    with pytest.raises(UsageError, match="--search varies --num-epochs, and --max-steps is set too"):
        space("num-epochs=2,3", fixed=("max_steps",))


def test_a_search_is_values_or_a_range() -> None:
    found = space(
        *("learning-rate=1e-5..1e-4:log", "--batch-size=16,32", "num_epochs=2..4", "dropout=0.0..0.5"),
        *("pooling=cls,mean", "adam-bias-correction=true,false"),
    )
    assert found == {
        "learning_rate": Range(1e-5, 1e-4, True),
        "batch_size": (16, 32),
        "num_epochs": (2.0, 3.0, 4.0),
        "dropout": Range(0.0, 0.5, False),
        "pooling": ("cls", "mean"),
        "adam_bias_correction": (True, False),
    }
    assert (found.points, space("batch-size=2..4").points) == (None, 3)
    assert space("weight-decay=0..1") == {"weight_decay": Range(0.0, 1.0, False)}
    assert space("num-epochs=2.0..4") == {"num_epochs": (2.0, 3.0, 4.0)}
    assert space("num-epochs=1.5..4") == {"num_epochs": Range(1.5, 4.0, False)}


def test_a_grid_has_an_end() -> None:
    whole = ("batch-size=1..1000", "num-epochs=1..100")
    assert space(*whole).points == 100_000
    with pytest.raises(UsageError, match="a grid of 200000 points"):
        space(*whole, "pooling=cls,mean")


def test_the_points_do_not_depend_on_the_order_of_the_options() -> None:
    one, other = space("batch-size=16,32", "learning-rate=5e-5,3e-5"), space("learning-rate=5e-5,3e-5", "batch-size=16,32")
    points = [one.point(number, 42) for number in range(4)]
    assert points == [other.point(number, 42) for number in range(4)]
    assert len({*map(str, points)}) == 4


BAD = {
    "learning-rate": "expected NAME=",
    "lerning-rate=1,2": "not an option of training",
    "train=a,b": "not an option of training",
    "doc-stride=8,16": "not an option of training",
    "learning-rate=1e-4..1e-5": "a lower and a higher end",
    "learning-rate=0..1e-4:log": "a lower and a higher end",
    "learning-rate=much,more": "expected a number",
    "learning-rate=": "expected a number",
    "learning-rate=1e-5:log": "is not NAME=",
    "batch-size=0,8": "--search batch-size=0,8: --batch-size is 0; expected at least 1",
    "batch-size=8..64:log": "means all of them",
    "batch-size=1..5000": "means all of them",
    "optimizer=adamw..lamb": "is not NAME=",
    "optimizer=sgd": "expected adamw or lamb",
    "track=wandb": "is not NAME=",
    "num-epochs=2,3": "--max-steps is set too",
    "seed=1,2": "the winner is trained with seeds of its own",
    "learning-rate=1..x": "--search learning-rate=1..x",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_search_is_one_line(tune, bad: str) -> None:
    ran = tune("--seed", 1, "--search", bad)
    line, *hint = ran.err.splitlines()
    hints = 0 if bad == "optimizer=sgd" else 1  # the error lists the choices
    assert (ran.code, line[:7], BAD[bad] in line, len(hint)) == (2, "error: ", True, hints), ran.err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "more",
    [
        *(("--search", "batch-size=8"), ("--trials", 3), ("--budget", "1h"), ("--held-out", "test"), ()),
        *(("--keep-trials",), ("--overwrite",), ("--no-prune",), ("--seeds", 3)),
        *(("--learning-rate", 1e-4), ("--warmup-ratio", 0.0), ("--max-steps", 9), ("--num-epochs", 1)),
        *(("--eval-steps", 5), ("--logging-steps", 5)),
    ],
)
def test_the_range_test_ignores_nothing(tune, run_bertkit, model: Path, more: tuple) -> None:
    told = {"--no-prune": "--prune/--no-prune"}.get(more[0], more[0]) if more else "--output-dir"
    ran = run_bertkit("tune", "./task.py", "-m", model, "--find-learning-rate", *(more or ("-o", "out")))
    assert (ran.code, f"{told} has no effect with --find-learning-rate" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("more", ["--find-learning-rate", "-o out"])
def test_several_processes_are_refused(
    run_bertkit, model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setattr("bertkit.runs.tuning.trials.start_accelerator", lambda _: SimpleNamespace(num_processes=2))
    ran = run_bertkit("tune", "text-classification", "--train", "rows.csv", "-m", model, *more.split())
    assert (ran.code, "tune trains in one process, but was launched as 2" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("split", ["train", "validation", "set_aside"])
def test_rows_of_the_trials_cannot_be_held_out(tune, place: Path, split: str) -> None:
    ran = tune("--held-out", split, task="text-classification")
    assert (ran.code, f"--held-out is {split}; expected rows that no trial sees" in ran.err) == (2, True), ran.err
    assert not Path("out").exists()


def test_a_recipe_without_rows_to_evaluate_on_is_refused(run_bertkit, model: Path, place: Path) -> None:
    (place / "task.py").write_text(RECIPE.replace("metrics=", "eval_splits=(), metrics="))
    (place / "data").mkdir()
    (place / "rows.csv").rename(place / "data" / "train.csv")
    ran = run_bertkit("tune", "./task.py", "--data", "data", "-m", model, "-o", "out", *FIXED)
    assert (ran.code, "there is no split to evaluate on" in ran.err) == (2, True), ran.err
    assert not Path("out").exists()


def test_the_help_does_not_offer_what_tune_refuses(run_bertkit) -> None:
    assert "all its tasks" not in " ".join(run_bertkit("tune", "--help").out.split())


def test_an_option_is_searched_once(tune) -> None:
    assert "twice" in tune("--search", "batch-size=8", "--search", "batch_size=16").err


@pytest.mark.parametrize(("text", "seconds"), [("2h", 7200), ("30m", 1800), ("1h30m", 5400), ("0.5s", 0.5), (" 1.5h ", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0m", "2 weeks", "1.2.3h", "-1h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time"):
        _seconds(text)


def test_without_optuna_one_line_says_what_to_install(tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    ran = tune()
    assert (ran.code, ran.err) == (5, 'error: tune needs the package optuna\nhint: python -m pip install "bertkit[tune]"\n')
    assert not Path("out").exists()


# --- trials, and the winner --------------------------------------------------------------------------------------------------


@pytest.mark.e2e
def test_trials_are_runs_and_the_winner_is_trained_again(tune, run_bertkit, place: Path, model: Path, make_model_dir) -> None:
    ran = tune(*SIX, task="text-classification")
    assert ran.code == 0, ran.err
    assert "the best model is in out/trial-" not in ran.err, "all but one lose their weights"
    found = trials()
    assert states() == ["finished"] * 6
    tried = {(trial["settings"]["learning_rate"], trial["settings"]["batch_size"]) for trial in found}
    assert tried == {(rate, size) for rate in (1e-1, 1e-3, 1e-4) for size in (8, 16)}
    runs = [require_run(Path(f"out/trial-{number}")) for number in range(6)]
    for trial, run in zip(found, runs, strict=True):
        assert (run["status"], "intervals" in run) == ("finished", False), "nobody reads a trial's card"
        assert trial["settings"].items() <= run["training"].items()
        assert trial["score"] == run["best"]["scores"]["validation/accuracy"]
    best = max(range(6), key=lambda number: found[number]["score"])  # of equal ones the first
    winner = read_json("out/tune.json")["winner"]
    assert (winner["trial"], winner["settings"]) == (best, found[best]["settings"])
    weights = [path.parent.name for path in Path("out").glob("trial-*/model.safetensors")]
    assert weights == [f"trial-{best}"] == [path.parent.name for path in Path("out").glob("trial-*/checkpoint-*")]
    for seed in (1, 2):
        run = require_run(Path(f"out/best/seed-{seed}"))
        assert (run["status"], run["training"]["seed"], "intervals" in run) == ("finished", seed, True)
        assert winner["settings"].items() <= run["training"].items()
    assert read_json("out/best/seeds.json")["seeds"] == [1, 2]
    assert {each["setting"] for each in read_json("out/tune.json")["mattered"]} == {"learning_rate", "batch_size"}

    assert run_bertkit("report", "out", "--output", "tuned.html").code == 0
    tables = assert_inert(Path("tuned.html").read_text(encoding="utf-8")).tables
    assert sorted(row[0] for row in tables["out: trials"][1:]) == ["0", "1", "2", "3", "4", "5"]
    assert {row[0] for row in tables["importance of settings"][1:]} == {"learning_rate", "batch_size"}
    assert any(title.startswith(f"the winner, trial {best}: ") for title in tables)

    before = {path: path.stat().st_mtime_ns for path in Path("out").glob("trial-*/run.json")}
    again = tune(*SIX, task="text-classification")
    assert (again.code, {path: path.stat().st_mtime_ns for path in before}) == (0, before)
    refused = tune(*RATES, task="text-classification")
    assert (refused.code, "different settings" in refused.err, "batch_size" in refused.err) == (2, True, True), refused.err
    others = make_model_dir("BertModel", seed=22) / "model.safetensors"
    before = (model / "model.safetensors").read_bytes()
    try:
        (model / "model.safetensors").write_bytes(others.read_bytes())
        refused = tune(*SIX, task="text-classification")
    finally:
        (model / "model.safetensors").write_bytes(before)
    assert (refused.code, "different settings: model has changed" in refused.err) == (2, True), refused.err


@pytest.mark.e2e
def test_a_stop_while_another_winner_is_trained_again_is_resumed(tune, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more trials, another one may win; tune.json names it before its first seed has begun."""
    (place / "script.py").write_text("score = 0.5")
    assert tune(*RATES, "--trials", 1).code == 0
    first = read_json("out/best/seed-1/run.json")["training"]["learning_rate"]

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (place / "script.py").write_text("score = 0.9")
    with monkeypatch.context() as patch:
        patch.setattr(study, "finetune_series", stopped)
        assert tune(*RATES, "--trials", 2).code == 130
    ran = tune(*RATES, "--trials", 2)
    assert ran.code == 0, ran.err
    assert read_json("out/tune.json")["winner"]["trial"] == 1
    rates = [read_json(path)["training"]["learning_rate"] for path in sorted(Path("out/best").glob("seed-*/run.json"))]
    assert first not in rates
    assert len({*rates}) == 1


def texts(examples: Examples) -> set[str]:
    return set(examples.columns["text"])


@pytest.mark.e2e
@pytest.mark.parametrize("validation", ["20%", "dev.csv"])
def test_held_out_rows_are_in_no_trial(tune, place: Path, monkeypatch: pytest.MonkeyPatch, validation: str) -> None:
    """Seen by what is encoded: the rows of each split of each run, and the hashes that its run.json keeps of them."""
    from bertkit.runs.finetuning import finetune
    from bertkit.runs.tuning import study as tuning

    (place / "dev.csv").write_text("label,text\ngood,good dev\nbad,bad dev\n")
    seen: list[tuple[str, set[str], str]] = []

    def spied(task: Task, split: str, rows: Examples, *more: Any, **named: Any) -> Any:
        encoded = encode_split(task, split, rows, *more, **named)
        seen.append((split, texts(encoded.examples), hash_of_rows(task.recipe, encoded.examples)))
        return encoded

    encode_split = finetune.encode_split
    for module in (finetune, tuning):
        monkeypatch.setattr(module, "encode_split", spied)
    ran = tune(*RATES, "--validation", validation, "--held-out", "15%", task="text-classification")
    assert ran.code == 0, ran.err
    with (place / "rows.csv").open() as file:
        given = {row["text"] for row in csv.DictReader(file)}
    (held_out,) = {frozenset(rows) for split, rows, _ in seen if split == "set_aside"}
    used = [rows for split, rows, _ in seen if split != "set_aside"]
    assert len(held_out) == 0.15 * ROWS
    assert held_out <= given
    assert len(used) == 2 * (3 + 2) + 2  # training and dev rows of each trial and seed; then the winner's runs are scored
    assert not any(rows & held_out for rows in used)
    assert set().union(*used) >= given - held_out
    hashes = {split: {each for of, _, each in seen if of == split} for split in ("train", "validation")}
    for run in map(read_json, place.glob("out/*/**/run.json")):
        assert all(run["data"][split]["rows_sha256"] in hashes[split] for split in hashes)


@pytest.mark.e2e
def test_the_gap_is_that_of_the_winners_runs(tune, run_bertkit, place: Path) -> None:
    assert tune(*RATES, "--num-epochs", 2, task="text-classification").code == 0
    gap = read_json("out/tune.json")["gap"]["accuracy"]
    scores: dict[str, list[float]] = {"validation": [], "set_aside": []}
    for split, of_runs in scores.items():
        for seed in (1, 2):
            ran = run_bertkit("eval", f"out/best/seed-{seed}", "--split", split, "--json")
            of_runs.append(json.loads(ran.out)[f"{split}/accuracy"])
    dev, held_out = map(statistics.fmean, scores.values())
    assert (gap["dev"], gap["held_out"], gap["difference"]) == pytest.approx((dev, held_out, dev - held_out))
    low, high = gap["interval"]
    assert -1 <= low <= gap["difference"] <= high <= 1


@pytest.mark.e2e
def test_a_split_can_judge_the_winner(tune, place: Path) -> None:
    (place / "test.csv").write_text("label,text\ngood,good one\nbad,bad one\nbad,bad two\n")
    ran = tune(*RATES, "--test", "test.csv", task="text-classification")
    assert (ran.code, "3 rows" in ran.err) == (0, True), ran.err
    assert read_json("out/trial-0/run.json")["recipe"]["set_aside"] is None
    (place / "test.csv").write_text("text\ngood one\n")
    assert tune(*RATES, "--test", "test.csv", "--overwrite").code == 3


@pytest.mark.e2e
def test_one_process_twice_tries_the_same(tune, place: Path) -> None:
    drawn = ("--search", "learning-rate=1e-4..1e-2:log", "--search", "batch-size=8,16")
    tried = []
    for count in ((4,), (2, 4)):  # at once, and with a pause
        for trials_so_far in count:
            assert tune(*drawn, "--trials", trials_so_far).code == 0
        tried.append([(trial["settings"], trial["score"]) for trial in trials()])
        Path("out").rename(f"out-{len(tried)}")
    assert tried[0] == tried[1]
    assert len({trial[0]["learning_rate"] for trial in tried[0]}) == 4


@pytest.mark.e2e
def test_where_lower_is_better_the_winner_has_the_lowest_score(tune, place: Path) -> None:
    (place / "task.py").write_text(RECIPE.replace("recipe = ", "scripted.greater_is_better = False\nrecipe = "))
    (place / "script.py").write_text('score = {1: 3.0, 2: 1.0, 3: 2.0}[len(list((here / "out").glob("trial-*")))]')
    assert tune(*RATES).code == 0
    assert [(trial["score"], trial["evaluations"]) for trial in trials()] == [(3.0, [3.0]), (1.0, [1.0]), (2.0, [2.0])]
    tuned = read_json("out/tune.json")
    assert (tuned["winner"]["trial"], tuned["winner"]["scores"]["validation/scripted"]) == (1, 1.0)
    assert [trial["trial"] for trial in tuned["trials"]] == [1, 2, 0], "best first"
    (mattered,) = tuned["mattered"]
    assert sorted(mattered["means"].values()) == [1.0, 2.0, 3.0]


# --- several processes, kills, signals ---------------------------------------------------------------------------------------

UNTIL_TWO_ARE_BEGUN = """
import time
for _ in range(600):
    if len(list((here / "out").glob("trial-*"))) > 1:
        break
    time.sleep(0.1)
score = accuracy
"""


@pytest.mark.e2e
def test_two_processes_share_the_trials(place: Path, start) -> None:
    (place / "script.py").write_text(UNTIL_TWO_ARE_BEGUN)
    both = [start(*SIX) for _ in range(2)]
    ends = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    own = [set(map(int, re.findall(r"^trial (\d+) \(", err, flags=re.MULTILINE))) for _, err in ends]
    assert all(own)
    assert not own[0] & own[1]
    assert own[0] | own[1] == set(range(6))
    assert states() == ["finished"] * 6
    assert len({json.dumps(trial["settings"]) for trial in trials()}) == 6
    assert sum("is trained again" in err for _, err in ends) == 1


ONCE = """
import os, signal
score = accuracy
if not (here / "was").exists():
    (here / "was").touch()
    os.kill(os.getpid(), signal.{})
"""


AT_THE_THIRD_EVALUATION = """
import os, signal
score = accuracy
with open(here / "evaluations", "a+") as file:
    file.write("x")
    file.seek(0)
    if len(file.read()) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.e2e
def test_the_trial_of_a_killed_process_is_tried_again(place: Path, start, tune) -> None:
    """An evaluation that is repeated keeps its number: the pruner compares those of one number."""
    (place / "script.py").write_text(AT_THE_THIRD_EVALUATION)
    how = ("--max-steps", 4, "--eval-steps", 1)
    killed = start(*SIX, *how)
    _, err = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, err
    ran = tune(*SIX, *how)
    assert ran.code == 0, ran.err
    assert (states(), "lost" in ran.err) == (["finished"] * 6, False)
    assert len({json.dumps(trial["settings"]) for trial in trials()}) == 6
    assert ("trial 0 (number 1 of this process)" in ran.err, "resuming from out/trial-0/checkpoint-" in ran.err) == (
        True,
        True,
    ), ran.err
    resumed, others = ran.err.split("trial 1 (", 1)
    assert ("newly initialized" in resumed, "newly initialized" in others) == (False, True)
    assert [len(trial["evaluations"]) for trial in trials()] == [4] * 6
    assert read_json("out/trial-0/run.json")["status"] == "finished"


def test_a_trial_that_always_kills_its_process_is_given_up(tmp_path: Path) -> None:
    for _ in range(TRIES):  # the process ends without a word
        with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:
            assert found.next(2).number == 0
    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:
        assert found.next(2).number == 1
        assert [found.state_of(trial) for trial in found.of("FAIL")] == [LOST]


@pytest.mark.e2e
def test_lost_trials_and_equal_scores_are_told(place: Path, tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.runs.tuning.trials.TRIES", 1)
    (place / "script.py").write_text("raise SystemExit  # as a kill, nothing is noted")
    with pytest.raises(SystemExit):
        tune(*RATES)
    (place / "script.py").write_text("score = 0.5")
    ran = tune(*RATES)
    assert (ran.code, states()) == (0, [LOST, "finished", "finished"]), ran.err
    assert (winner := read_json("out/tune.json")["winner"]["trial"]) == 1
    told = " ".join(ran.err.split())
    assert f"trials {winner}, 2 have the best score; the first is used" in told
    lost = trials()[0]["settings"]["learning_rate"]
    assert re.search(rf"warning: 1 of 3 trials .*killed.*learning_rate {lost}\b", told), told


def test_a_trial_that_was_killed_after_its_end_is_not_trained_again(tmp_path: Path) -> None:
    def trained(on_evaluation: Callable[[float], None]) -> dict[str, Any]:
        on_evaluation(0.5)
        parts = {"recipe": {"family": "text-classification"}, "training": {}, "model": {}, "data": {}}
        write_run_file(tmp_path / "trial-0", {"status": "finished", "best": {"scores": {"accuracy": 0.5}}, **parts})
        raise KeyboardInterrupt

    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found, pytest.raises(KeyboardInterrupt):
        found.train(found.next(2), trained)
    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:
        found.train(found.next(2), lambda **_: pytest.fail("it is trained again"))
        assert (found.best().number, found.best().value) == (0, 0.5)


UNTIL_IT_MAY = """
import time
(here / "waits").touch()
while not (here / "may").exists():
    time.sleep(0.1)
score = accuracy
"""


@pytest.mark.e2e
def test_others_see_that_a_process_lives(place: Path, start, tune) -> None:
    """While one trains trial 0, another trains all others, and leaves the winner to it."""
    (place / "script.py").write_text(UNTIL_IT_MAY)
    first = start(*SIX)
    while not (place / "waits").exists():
        assert first.poll() is None
        time.sleep(0.1)
    (place / "script.py").write_text(ACCURACY)  # for the other
    ran = tune(*SIX)
    assert (ran.code, "another process is still training trial 0" in ran.err) == (0, True), ran.err
    assert not Path("out/best").exists()
    (place / "may").touch()
    _, err = first.communicate()
    assert (first.returncode, states()) == (0, ["finished"] * 6), err


@pytest.mark.e2e
def test_a_stopped_trial_goes_on(place: Path, start, tune) -> None:
    (place / "script.py").write_text(ONCE.format("SIGINT"))
    how = ("--max-steps", 4, "--eval-steps", 1)
    stopped = start(*SIX, *how)
    _, err = stopped.communicate()
    assert stopped.returncode == 130, err
    ran = tune(*SIX, *how)
    assert (ran.code, states(), "resuming from out/trial-0/checkpoint-" in ran.err) == (0, ["finished"] * 6, True), ran.err
    assert [len(trial["evaluations"]) for trial in trials()] == [4] * 6


def test_the_sampler_counts_with_what_others_train(tmp_path: Path) -> None:
    with Trials(tmp_path, Space(rate=Range(0.0, 1.0, False)), seed=0, prunes=False) as found:
        found.next(2)
        assert found.study.sampler._constant_liar


def test_what_ends_a_trial_unexpectedly_is_told(tmp_path: Path) -> None:
    def run(**_: Any) -> dict[str, Any]:
        raise ZeroDivisionError("by nought\nand more")

    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found, pytest.raises(ZeroDivisionError):
        found.train(found.next(2), run)
    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:  # the process ended
        found.next(2)
        assert [found.state_of(trial) for trial in found.of("FAIL")] == ["failed: ZeroDivisionError: by nought"]


def test_what_a_full_disk_ends_goes_on(tmp_path: Path) -> None:
    """Also where it has left half a line in the journal."""

    def run(**_: Any) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found, pytest.raises(OSError, match="No space"):
        found.train(found.next(2), run)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:
        assert journal.read_bytes().startswith(whole)
        assert all(json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines())
        assert found.next(2).number == 0, "the same trial"
        assert not found.of("FAIL")
    with Trials(tmp_path, Space(rate=(1.0, 2.0)), seed=0, prunes=False) as found:
        assert [trial.number for trial in found.of("RUNNING")] == [0]


# --- ends before the end -----------------------------------------------------------------------------------------------------

SIXTH_IS_WORSE = (
    'score = 0.0 if len(list((here / "out").glob("trial-*"))) == 6 and not (here / "out/best").exists() else accuracy + 1'
)


@pytest.mark.e2e
@pytest.mark.parametrize("prune", [True, False])
def test_a_pruned_trial_ends_early(place: Path, tune, prune: bool) -> None:
    (place / "script.py").write_text(SIXTH_IS_WORSE)
    how = ("--max-steps", 3, "--eval-steps", 1, *(["--prune"] if prune else []))  # a grid is not pruned by itself
    assert tune(*SIX, *how).code == 0
    ended = ["pruned"] if prune else ["finished"]
    assert (states(), read_json("out/trial-5/run.json")["status"]) == (["finished"] * 5 + ended, ended[0])
    assert [len(trial["evaluations"]) for trial in trials()] == [3] * 5 + [1 if prune else 3]
    steps = [json.loads(line)["step"] for line in Path("out/trial-5/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == (1 if prune else 3)


@pytest.mark.e2e
def test_no_trial_begins_that_would_end_after_the_budget(tune) -> None:
    ran = tune(*SIX, "--budget", "0.01s")  # one trial is always begun
    assert "--budget: this process starts no more trials, as the next may end too late; 1 of 6 trials started" in ran.err
    assert (ran.code, states()) == (0, ["finished"]), ran.err
    rest = tune(*SIX)
    assert (rest.code, "--budget" in rest.err, len(states())) == (0, False, 6)


@pytest.mark.e2e
def test_a_trial_that_fails_is_named_and_the_others_go_on(place: Path, tune) -> None:
    ran = tune("--search", "reinit-layers=0,9", "--search", "batch-size=8,16")
    failed = [trial["state"] for trial in trials() if trial["settings"]["reinit_layers"] == 9]
    assert (ran.code, len(failed), all("failed: " in state for state in failed)) == (0, 2, True), ran.err
    (place / "script.py").write_text("score = None")
    ran = tune(*RATES, "--overwrite")
    assert (ran.code, "no trial has a score" in ran.err) == (2, True), ran.err


# --- what mattered, and learning rates ---------------------------------------------------------------------------------------


def test_importance_is_that_of_the_setting_that_decides(tmp_path: Path) -> None:
    with Trials(tmp_path, Space(matters=(1.0, 2.0, 3.0), idle=(1.0, 2.0, 3.0)), seed=0, prunes=False) as found:
        while (trial := found.next(9)) is not None:

            def run(on_evaluation: Callable[[float], None]) -> dict[str, Any]:
                on_evaluation(trial.params["matters"])
                return {"best": {"scores": {}}}

            found.train(trial, run)
        importances = found.importances()
        assert (found.best().params["matters"], [*importances]) == (3.0, ["matters", "idle"])
    assert (importances["matters"] > 0.95, sum(importances.values())) == (True, pytest.approx(1))


@pytest.mark.parametrize("scores", [(0.5,), (0.5, 0.5), (0.5, 0.75)])
def test_what_mattered_is_told_or_why_not(scores: tuple[float, ...], tmp_path: Path) -> None:
    with Trials(tmp_path, Space(matters=tuple(range(len(scores)))), seed=0, prunes=False) as found:
        for score in scores:
            trial = found.next(len(scores))
            assert trial is not None

            def run(on_evaluation: Callable[[float], None], score: float = score) -> dict[str, Any]:
                on_evaluation(score)
                return {"best": {"scores": {"validation/accuracy": score}}}

            found.train(trial, run)
        report = report_tuning({"plan": {"tuning": {"search": ["matters"]}}, **_describe(found, 1)}, tmp_path)
    titles = [part.title for part in report.parts if isinstance(part, Table)]
    told = [part.what for part in report.parts if isinstance(part, Finding)]
    assert ("importance of settings" in titles, len(told)) == (len(set(scores)) > 1, len(set(scores)) == 1)
    assert len(report_tuning({"plan": {"tuning": {"search": ["matters"]}}}, tmp_path).parts) == 1, "it has not ended"


def test_the_range_is_where_the_loss_falls() -> None:
    rates = [step * 1e-6 for step in range(100)]
    losses = [1.0] * 30 + [1.0 - 0.02 * step for step in range(30)] + [0.4 + 0.05 * step for step in range(40)]
    low, high = report_range(rates, losses).json["bounds"]
    assert 30e-6 <= low <= (30 + WINDOW) * 1e-6
    assert abs(high - 60e-6) <= WINDOW * 1e-6
    assert report_range(rates, [1.0 + step for step in range(100)]).json["bounds"] is None


@pytest.mark.e2e
def test_a_range_test_writes_nothing(run_bertkit, model: Path, place: Path) -> None:
    before = sorted(path.name for path in place.iterdir())
    how = ("--max-length", 16, "--device", "cpu", "--precision", "fp32")
    search = ("tune", "text-classification", "--train", "rows.csv", "-m", model, "--find-learning-rate", *how)
    # The schedule does not matter: all steps warm up.
    ran = run_bertkit(*search, "--schedule", "warmup_stable_decay", "--decay-ratio", "0.3")
    assert (ran.code, "learning-rate range test" in ran.err) == (0, True), ran.err
    assert sorted(path.name for path in place.iterdir()) == before
