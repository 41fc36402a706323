"""A run that was stopped ends as if it had not been: the same command, the same bytes."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from bertkit.cli import main
from bertkit.training import loop as training

STEPS_PER_EPOCH, EPOCHS = 5, 3  # 38 rows by 8; the last step of an epoch has 6
STEP, MICRO_STEP = 7, 1  # where a run is stopped: in the second epoch, with the gradients of one micro-batch in hand


@pytest.fixture
def command(make_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., list[str]]:
    """`finetune` with dropout and several micro-batches a step, into a folder of tmp_path."""
    rng = random.Random(3)
    words = "good bad movie book story plot actor team ticket page order phone".split()
    for name, count in (("train", 38), ("dev", 9)):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for row in range(count):
                writer.writerow([" ".join(rng.choices(words, k=rng.randint(3, 15))), ("no", "yes")[row % 2]])
    model = make_model_dir("BertModel", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)

    def arguments(name: str, *more: str) -> list[str]:
        data = ["--train", str(tmp_path / "train.csv"), "--validation", str(tmp_path / "dev.csv"), "--model", str(model)]
        sizes = ["--batch-size", "8", "--max-length", "24", "--micro-batch-tokens", "32", "--num-epochs", str(EPOCHS)]
        rest = [
            "--learning-rate",
            "3e-3",
            "--logging-steps",
            "2",
            "--device",
            "cpu",
            "--precision",
            "fp32",
            "--output-dir",
            str(tmp_path / name),
        ]
        return ["finetune", "text-classification", *data, *sizes, *rest, *more]

    return arguments


def hash_of(run: Path) -> str:
    return sha256((run / "model.safetensors").read_bytes()).hexdigest()


def log_of(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl but for the times."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in event.items() if name != "tokens_per_second"} for event in events]


def last_hash(run: Path) -> str:
    """Of the last model, which its checkpoint holds; the root has the best one."""
    return hash_of(run / f"checkpoint-{STEPS_PER_EPOCH * EPOCHS}")


def assert_same_run(found: Path, expected: Path) -> None:
    assert last_hash(found) == last_hash(expected)
    assert hash_of(found) == hash_of(expected)
    runs = [json.loads((run / "run.json").read_text(encoding="utf-8")) for run in (found, expected)]
    assert runs[0]["status"] == "finished"
    assert runs[0]["best"] == runs[1]["best"]
    assert runs[0]["last"] == runs[1]["last"]


def stop_with(number: int, monkeypatch: pytest.MonkeyPatch, *, step: int = STEP, micro_step: int = MICRO_STEP) -> None:
    """Have this process get a signal before the forward pass of a micro-batch."""
    seed_dropout = training.seed_dropout

    def stopping(model: Any, seed: int, *place: int) -> None:
        if place[:2] == (step, micro_step):
            os.kill(os.getpid(), number)
        seed_dropout(model, seed, *place)

    monkeypatch.setattr(training, "seed_dropout", stopping)


# Counts what the loop does and kills its own process, SIGKILL and all: no `finally`, no flushing, no handler.
KILLED = """
import os, signal, sys
from bertkit.training import loop as training
from bertkit.cli import main
seed_dropout, seen = training.seed_dropout, []
def killing(model, seed, step, micro_step, rank):
    seen.append((step, micro_step))
    if (step, micro_step) == (int(sys.argv[1]), int(sys.argv[2])):
        assert (step, micro_step - 1) in seen
        collected = "bf16" in sys.argv  # to the masters; in float32 the module holds them
        assert any(p.grad is not None for p in model.parameters()) != collected
        print("in mid-accumulation", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    seed_dropout(model, seed, step, micro_step, rank)
training.seed_dropout = killing
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_in_mid_accumulation_the_same_command_ends_with_the_same_bytes(
    precision: str, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("whole", "--precision", precision)) == 0
    arguments = command("killed", "--precision", precision)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(STEP), str(MICRO_STEP), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    run = tmp_path / "killed"
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "in mid-accumulation\n"), killed.stderr
    assert [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{STEPS_PER_EPOCH}"]
    assert log_of(run)[-1]["step"] > STEPS_PER_EPOCH, "it had logged a step that the checkpoint does not hold"
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "running"

    if precision == "fp32":  # a process of its own; a second one would only take time
        done = subprocess.run(
            [sys.executable, "-m", "bertkit", *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        code, shown = done.returncode, done.stderr
    else:
        capsys.readouterr()
        code, shown = main(arguments), capsys.readouterr().err
    assert code == 0, shown
    assert str(run / f"checkpoint-{STEPS_PER_EPOCH}") in shown
    assert_same_run(run, tmp_path / "whole")
    assert log_of(run) == log_of(tmp_path / "whole")


def test_dropout_and_precision_decide_the_bytes(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """The hashes above could differ: another seed, no dropout and another precision each give another model."""
    variants = {"a": (), "b": ("--seed", "7"), "c": ("--dropout", "0"), "d": ("--precision", "bf16")}
    for name, more in variants.items():
        assert main(command(name, "--precision", "fp32", "--num-epochs", "1", *more)) == 0
    assert len({hash_of(tmp_path / name) for name in variants}) == 4
    assert main(command("e", "--precision", "fp32", "--num-epochs", "1")) == 0
    torch.rand(3)
    assert hash_of(tmp_path / "e") == hash_of(tmp_path / "a")


@pytest.mark.parametrize(("number", "optimizer"), [(signal.SIGINT, "adamw"), (signal.SIGTERM, "lamb")])
def test_a_signal_saves_and_the_same_command_resumes(
    number: int,
    optimizer: str,
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--optimizer", optimizer)
    assert main(command("whole", *options)) == 0
    run = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        stop_with(number, patch)
        capsys.readouterr()
        assert main(command("stopped", *options)) == 130
    shown = capsys.readouterr().err
    assert f"step {STEP + 1};" in shown.splitlines()[-1]
    assert "Traceback" not in shown
    assert [path.name for path in run.glob("*checkpoint-*")] == [f"checkpoint-{STEP + 1}"]
    if optimizer == "lamb":
        assert main(command("stopped")) == 2, "AdamW, the default, is another setting"
    assert main(command("stopped", *options)) == 0
    assert_same_run(run, tmp_path / "whole")
    assert [event["step"] for event in log_of(run)] == [event["step"] for event in log_of(tmp_path / "whole")]


def test_a_kill_before_the_first_checkpoint_starts_over(command: Callable[..., list[str]], tmp_path: Path) -> None:
    assert main(command("whole")) == 0
    arguments = command("killed")
    killed = subprocess.run([sys.executable, "-c", KILLED, "3", "1", *arguments], capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert log_of(tmp_path / "killed"), "it had logged something"
    assert main(arguments) == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


@pytest.fixture
def unfinished(command: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped in its second epoch."""
    with monkeypatch.context() as patch:
        stop_with(signal.SIGINT, patch)
        assert main(command("run")) == 130
    return tmp_path / "run"


def content_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def refused(command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Checks that a command ends with this exit code and one line of error that has these words."""

    def refused(arguments: list[str], *words: object, code: int = 2) -> None:
        capsys.readouterr()
        assert main(arguments) == code
        shown = capsys.readouterr().err
        assert "Traceback" not in shown
        (error,) = [line for line in shown.splitlines() if line.startswith("error: ")]
        assert [word for word in map(str, words) if word not in error] == []

    return refused


def test_what_is_refused_changes_nothing(
    unfinished: Path, command: Callable[..., list[str]], refused: Callable[..., None], tmp_path: Path
) -> None:
    """Of an unfinished run: settings and data that differ are named, with both values."""
    before = content_of(unfinished)
    refused(command("run", "--resume", "never"), unfinished)
    refused(command("run", "--resume", "yes"), "'yes'")
    refused(command("run", "--learning-rate", "1e-3"), unfinished, "learning_rate", 0.003, 0.001)
    refused(command("run", "--seed", "1"), unfinished, "seed was 42", 1)
    refused(command("run", "--text", "label", "--label", "text"), code=3)
    lines = (tmp_path / "train.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    lines[1] = "good " + lines[1]
    (tmp_path / "train.csv").write_text("".join(lines), encoding="utf-8")
    refused(command("run"), unfinished, "train.sha256")
    assert content_of(unfinished) == before


def test_resume_takes_a_checkpoint_by_its_path(
    unfinished: Path, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("whole")) == 0
    checkpoint = unfinished / f"checkpoint-{STEP + 1}"
    capsys.readouterr()
    assert main(command("run", "--resume", str(checkpoint))) == 0
    assert str(checkpoint) in capsys.readouterr().err
    assert_same_run(unfinished, tmp_path / "whole")


def test_a_checkpoint_opens_on_the_first_cpu_as_torchrun_calls_it(unfinished: Path) -> None:
    class Optimizer:
        def restore(self, state: dict[str, torch.Tensor]) -> None:
            self.state = state

    optimizer: Any = Optimizer()
    state = training._restore(unfinished / f"checkpoint-{STEP + 1}", optimizer, torch.device("cpu:0"))
    assert state.step == STEP + 1
    assert optimizer.state


def test_resume_from_another_folder_leaves_that_as_it_was_and_has_the_best_model(
    unfinished: Path, command: Callable[..., list[str]], refused: Callable[..., None], tmp_path: Path
) -> None:
    assert main(command("whole")) == 0
    best = json.loads((tmp_path / "whole" / "run.json").read_text(encoding="utf-8"))["best"]["step"]
    assert best <= STEP, "the best step is one that the new folder never makes"
    before = content_of(unfinished)
    checkpoint = str(unfinished / f"checkpoint-{STEP + 1}")
    assert main(command("other", "--resume", checkpoint)) == 0
    assert content_of(unfinished) == before
    assert_same_run(tmp_path / "other", tmp_path / "whole")
    steps = [[event["step"] for event in log_of(tmp_path / name)] for name in ("other", "whole")]
    assert steps[0] == steps[1]

    refused(command("third", "--resume", checkpoint, "--learning-rate", "1e-3"), "learning_rate", 0.003, 0.001)
    refused(command("run", "--resume", checkpoint, "--overwrite"), unfinished)
    (unfinished / "run.json").unlink()
    refused(command("third", "--resume", checkpoint), checkpoint, "run.json")
    assert not (tmp_path / "third").exists()


def test_a_finished_run_and_a_folder_of_something_else_are_refused(
    command: Callable[..., list[str]], refused: Callable[..., None], tmp_path: Path
) -> None:
    arguments = command("run", "--max-steps", "2")
    assert main(arguments) == 0
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").write_text("years of work", encoding="utf-8")
    before = content_of(tmp_path)
    refused(arguments, tmp_path / "run")
    refused(command("thesis"), tmp_path / "thesis")
    refused(command("thesis", "--overwrite"), tmp_path / "thesis")
    assert content_of(tmp_path) == before


def test_overwrite_moves_aside_and_starts_over(
    unfinished: Path, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(unfinished)
    capsys.readouterr()
    assert main(command("run", "--overwrite", "--seed", "5", "--max-steps", "2")) == 0
    assert str(tmp_path / "run.old-1") in capsys.readouterr().err
    assert content_of(tmp_path / "run.old-1") == before
    assert json.loads((unfinished / "run.json").read_text(encoding="utf-8"))["training"]["seed"] == 5
    assert [event["step"] for event in log_of(unfinished)] == [2, 2]
    assert main(command("run", "--overwrite", "--max-steps", "1")) == 0
    assert (tmp_path / "run.old-2" / "run.json").is_file()


def test_a_damaged_checkpoint_is_refused(
    unfinished: Path, command: Callable[..., list[str]], refused: Callable[..., None]
) -> None:
    path = unfinished / f"checkpoint-{STEP + 1}" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(command("run"), path.name, path.parent, code=4)


def test_what_a_kill_left_half_written_is_passed_over(
    unfinished: Path, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert main(command("whole")) == 0
    half = unfinished / ".unfinished-checkpoint-12"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert main(command("run")) == 0
    assert_same_run(unfinished, tmp_path / "whole")
    assert not list(unfinished.glob(".unfinished-*"))


def test_a_loss_that_is_not_finite_ends_the_command_with_one_line(
    command: Callable[..., list[str]], refused: Callable[..., None], tmp_path: Path
) -> None:
    refused(command("run", "--learning-rate", "1e30", "--warmup-ratio", "0"), "loss", "step 2")
    run = tmp_path / "run"
    assert not list(run.glob("*checkpoint*"))
    assert not (run / "model.safetensors").exists()
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "running"


# --- the other families ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["helpdesk_pages", "helpdesk_replies", "helpdesk_mentions"])
def test_every_family_resumes_where_it_was(
    recipe: str, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model_dir("BertModel", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, seed=5)
    settings = ["--batch-size", "8", "--max-length", "64", "--max-steps", "6", "--eval-steps", "3", "--precision", "fp32"]

    def arguments(name: str) -> list[str]:
        place = ["--model", str(model), "--output-dir", str(tmp_path / name), "--device", "cpu"]
        return ["finetune", recipe, *place, *settings]

    assert main(arguments("whole")) == 0
    with monkeypatch.context() as patch:
        stop_with(signal.SIGTERM, patch, step=4, micro_step=0)
        assert main(arguments("again")) == 130
    assert (tmp_path / "again" / "checkpoint-5").is_dir()
    assert main(arguments("again")) == 0
    for file in ("model.safetensors", "config.json", "checkpoint-6/model.safetensors", "checkpoint-6/config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    runs = [json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")) for name in ("again", "whole")]
    assert [runs[0][key] for key in ("best", "last", "recipe")] == [runs[1][key] for key in ("best", "last", "recipe")]
