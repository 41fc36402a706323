"""--track: what is refused before anything is done, and what a tracker of Accelerate is told of a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"


@pytest.fixture
def bertkit(run_bertkit, tiny_model_dir: Path, tmp_path: Path):
    """A function that fine-tunes the tiny model for four steps, evaluated after each second."""
    (tmp_path / "rows.csv").write_text(GOOD, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv")
    steps = ("--max-steps", 4, "--eval-steps", 2, "--logging-steps", 1, "--batch-size", 2, "--max-length", 16)
    common = ("-m", tiny_model_dir, "-o", "run", "--device", "cpu", "--precision", "fp32")
    return lambda *options: run_bertkit("finetune", "text-classification", *data, *common, *steps, *options)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What a stand-in for Accelerate's tracker of TensorBoard is told, in order; a package of that name is found."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

    calls: list[tuple[str, Any]] = []

    class Recorder(GeneralTracker):
        name = "tensorboard"
        requires_logging_directory = True
        tracker = None

        def __init__(self, run_name: str, logging_dir: str) -> None:
            super().__init__()
            calls.append(("open", (run_name, str(logging_dir))))

        def start(self) -> None:
            """Accelerate calls it, and no tracker of these does anything there."""

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            calls.append(("config", values))

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            calls.append(("log", {"step": step, **values}))

        def finish(self) -> None:
            calls.append(("finish", None))

    find_spec = importlib.util.find_spec
    found = find_spec("json")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: found if name == "tensorboard" else find_spec(name, *a))
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", Recorder)
    return calls


def assert_refused_early(ran, code: int, *lines: str) -> None:
    """The command ended with these lines before the data was encoded, and wrote nothing."""
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.splitlines()[-len(lines) :] == list(lines)
    assert not any(line.startswith("train: ") for line in ran.err.splitlines())
    assert not Path("run").exists()


def test_an_unknown_tracker(bertkit) -> None:
    ran = bertkit("--track", "tensorbord")
    what = "error: --track is 'tensorbord'; expected tensorboard or wandb or trackio or mlflow"
    assert_refused_early(ran, 2, what, "hint: did you mean tensorboard?")


def test_a_tracker_whose_package_is_missing(bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    missing = lambda name, *a: None if name == "wandb" else find_spec(name, *a)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", missing)
    ran = bertkit("--track", "wandb")
    assert_refused_early(ran, 5, "error: --track wandb needs the package wandb, which is missing", "hint: pip install wandb")


def test_the_second_of_two_is_looked_at_too(bertkit, told) -> None:
    ran = bertkit("--track", "tensorboard, nothing")
    assert ran.code == 2
    assert "--track is 'nothing'" in ran.err
    assert told == []


def test_every_event_reaches_the_tracker(bertkit, told, tmp_path: Path) -> None:
    ran = bertkit("--track", "tensorboard")
    assert ran.code == 0, ran.err
    assert any(line.startswith("train: 4 rows") for line in ran.err.splitlines())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["step"] for event in events] == [1, 2, 2, 3, 4, 4]
    assert [value for what, value in told if what == "log"] == [
        {name: value for name, value in event.items() if value is not None} for event in events
    ]
    assert any("validation/accuracy" in event for event in events)
    assert any("learning_rate" in event for event in events)
    assert [what for what, _ in told] == ["open", "config", *["log"] * 6, "finish"]
    assert told[0][1] == ("bertkit", "run")
    assert {"learning_rate": 5e-5, "batch_size": 2, "max_steps": 4, "seed": 42}.items() <= told[1][1].items()
    assert all(isinstance(value, (int, float, str, bool)) for value in told[1][1].values())
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["training"]["track"] == ["tensorboard"]


def test_a_run_that_fails_ends_its_tracker(bertkit, told, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("bertkit.runs.finetune.score_splits", broken)
    ran = bertkit("--track", "tensorboard")
    assert ran.code == 1
    assert [what for what, _ in told] == ["open", "config", "log", "log", "finish"]


def test_each_of_several_seeds_is_a_run_of_its_own(bertkit, told) -> None:
    ran = bertkit("--track", "tensorboard", "--seeds", 2)
    assert ran.code == 0, ran.err
    assert [what for what, _ in told] == ["open", "config", *["log"] * 6, "finish"] * 2
    assert [value[1] for what, value in told if what == "open"] == ["run/seed-1", "run/seed-2"]
    assert [value["seed"] for what, value in told if what == "config"] == [1, 2]


def test_the_processes_can_wait_for_each_other_after_the_tracker_is_ended(told, tmp_path: Path, monkeypatch) -> None:
    from bertkit.model.devices import start_accelerator
    from bertkit.training.tracking import tracked

    accelerator = start_accelerator("cpu")
    ended: list[None] = []
    monkeypatch.setattr(type(accelerator.state), "destroy_process_group", lambda *_: ended.append(None))
    with tracked(accelerator, ["tensorboard"], tmp_path, {"seed": 1, "track": ["tensorboard"]}):
        accelerator.log({"loss": 1.0}, 7)
    assert told[1:] == [("config", {"seed": 1}), ("log", {"step": 7, "loss": 1.0}), ("finish", None)]
    assert ended == [], "what comes after a run, such as the next seed, needs the process group"


def test_without_trackers_nothing_is_told(bertkit, told) -> None:
    assert bertkit().code == 0
    assert told == []


def test_a_dry_run_tells_nothing(bertkit, told) -> None:
    ran = bertkit("--track", "tensorboard", "--dry-run")
    assert ran.code == 0, ran.err
    assert told == []


def test_a_run_may_go_on_with_other_trackers(bertkit, told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stopped without a tracker, gone on with one: it is told of what is left."""
    from bertkit.training.optimizer import Optimizer

    step, steps = Optimizer.step, []

    def interrupted(optimizer: Optimizer, learning_rate: float) -> Any:
        steps.append(learning_rate)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(optimizer, learning_rate)

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", interrupted)
        assert bertkit().code == 130
    ran = bertkit("--track", "tensorboard")
    assert ran.code == 0, ran.err
    assert [value["step"] for what, value in told if what == "log"] == [3, 4, 4]
