"""--track: what is refused before anything is done, and what a tracker of Accelerate is told of a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import MachineError, UsageError
from bertkit.model.devices import start_accelerator
from bertkit.training.optimizer import Optimizer
from bertkit.training.tracking import refuse_unusable_trackers, tracked

ROWS = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"


@pytest.fixture
def bertkit(run_bertkit, tiny_model_dir: Path, tmp_path: Path):
    """A function that fine-tunes the tiny model for four steps, evaluated after each second."""
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv")
    steps = ("--max-steps", 4, "--eval-steps", 2, "--logging-steps", 1, "--batch-size", 2, "--max-length", 16)
    common = ("-m", tiny_model_dir, "-o", "run", "--device", "cpu", "--precision", "fp32")
    return lambda *options: run_bertkit("finetune", "text-classification", *data, *common, *steps, *options)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether a package is found, by its name; others as they are."""
    found: dict[str, bool] = {}
    find_spec = importlib.util.find_spec
    here = find_spec("json")

    def find(name: str, *rest: Any) -> Any:
        return (here if found[name] else None) if name in found else find_spec(name, *rest)

    monkeypatch.setattr("importlib.util.find_spec", find)
    return found


@pytest.fixture
def told(packages: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What a stand-in for Accelerate's tracker of TensorBoard is told, in order."""
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
            """Accelerate calls it."""

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            calls.append(("config", values))

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            calls.append(("log", {"step": step, **values}))

        def finish(self) -> None:
            calls.append(("finish", None))

    packages["tensorboard"] = True
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", Recorder)
    return calls


def steps(told: list[tuple[str, Any]]) -> list[int]:
    return [value["step"] for what, value in told if what == "log"]


@pytest.mark.parametrize(
    ("names", "error", "code", "hint"),
    [
        (("tensorbord",), UsageError, 2, "tensorboard?"),
        (("tensorboard", "nothing"), UsageError, 2, ""),
        (("tensorboard", "wandb"), MachineError, 5, "pip install wandb"),
    ],
)
def test_trackers_that_are_unknown_or_missing(
    names: tuple[str, ...], error: type[Exception], code: int, hint: str, packages: dict[str, bool]
) -> None:
    packages |= {"tensorboard": True, "wandb": False}
    with pytest.raises(error) as caught:
        refuse_unusable_trackers(names)
    assert names[-1] in caught.value.what
    assert caught.value.exit_code == code
    assert hint in (caught.value.hint or "")
    refuse_unusable_trackers(names[:-1])
    refuse_unusable_trackers(None)


def test_a_tracker_is_refused_before_the_data_is_encoded(bertkit) -> None:
    ran = bertkit("--track", "tensorbord")
    assert (ran.code, ran.out) == (2, "")
    assert not any(line.startswith("train: ") for line in ran.err.splitlines())
    assert not Path("run").exists()


def test_every_event_reaches_the_tracker(bertkit, told: list[tuple[str, Any]], tmp_path: Path) -> None:
    assert bertkit("--track", "tensorboard").code == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [{name: value for name, value in json.loads(line).items() if value is not None} for line in lines]
    assert [value for what, value in told if what == "log"] == events
    assert steps(told) == [1, 2, 2, 3, 4, 4]
    assert {name for event in events for name in event} > {"validation/accuracy", "learning_rate", "loss"}
    assert [what for what, _ in told] == ["open", "config", *["log"] * 6, "finish"]
    assert told[0][1] == ("bertkit", "run")
    assert {"learning_rate": 3e-4, "batch_size": 2, "max_steps": 4, "seed": 42}.items() <= told[1][1].items()
    assert all(isinstance(value, (int, float, str, bool)) for value in told[1][1].values())
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["training"]["track"] == ["tensorboard"]


def test_each_seed_is_a_run_of_its_own(bertkit, told: list[tuple[str, Any]]) -> None:
    assert bertkit("--track", "tensorboard", "--seeds", 2).code == 0
    assert [what for what, _ in told] == ["open", "config", *["log"] * 6, "finish"] * 2
    assert [value[1] for what, value in told if what == "open"] == ["run/seed-1", "run/seed-2"]
    assert [value["seed"] for what, value in told if what == "config"] == [1, 2]


def test_a_failing_run_ends_its_tracker_and_not_the_process_group(
    told: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = start_accelerator("cpu")
    ended: list[None] = []
    monkeypatch.setattr(type(accelerator.state), "destroy_process_group", lambda *_: ended.append(None))

    def failing_run() -> None:
        with tracked(accelerator, ["tensorboard"], tmp_path, {"seed": 1, "track": ["tensorboard"]}):
            accelerator.log({"loss": 1.0}, 7)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing_run()
    assert told[1:] == [("config", {"seed": 1}), ("log", {"step": 7, "loss": 1.0}), ("finish", None)]
    assert ended == [], "what comes after a run, such as the next seed, needs the process group"


def test_a_tracker_that_does_not_start_is_reported_in_one_line(
    bertkit, told: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no API key configured.\nUse login")

    monkeypatch.setattr(LOGGER_TYPE_TO_CLASS["tensorboard"], "__init__", fails)
    ran = bertkit("--track", "tensorboard")
    assert (ran.code, "--track tensorboard cannot start: no API key configured. Use login" in ran.err) == (5, True)
    assert "leave out --track" in ran.err


def test_a_dry_run_tells_nothing(bertkit, told: list[tuple[str, Any]]) -> None:
    assert bertkit("--track", "tensorboard", "--dry-run").code == 0
    assert told == []


def test_a_run_may_resume_with_a_tracker(bertkit, told: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = Optimizer.step, []

    def interrupted(optimizer: Optimizer, learning_rate: float) -> Any:
        calls.append(learning_rate)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(optimizer, learning_rate)

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", interrupted)
        assert bertkit().code == 130
    assert told == [], "without --track nothing is told"
    assert bertkit("--track", "tensorboard").code == 0
    assert steps(told) == [3, 4, 4]
