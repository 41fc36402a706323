"""A stopped run, resumed by the same command, ends with the same bytes as an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from shapes import MEASURED
from trained import before_step, read_json

from bertkit.cli import main
from bertkit.model.directory import read_state_dict
from bertkit.training import checkpoint
from bertkit.training import loop as training

STEPS_PER_EPOCH, EPOCHS = 5, 3  # 38 rows by 8; the last step of an epoch has 6
STEP, MICRO_STEP = 7, 1  # where a run is stopped: in the second epoch, with the gradients of one micro-batch in hand
CHECKPOINT = f"checkpoint-{STEP + 1}"  # what a signal there leaves
OPTIONS = (
    "--batch-size 8 --max-length 24 --micro-batch-tokens 32 --num-epochs 3 --learning-rate 3e-3 --logging-steps 2 "
    "--device cpu --precision fp32 --no-baselines"
).split()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(6)  # the best step is the first evaluated
    words = "good bad movie book story plot actor team ticket page order phone".split()
    for name, count in (("train", 38), ("dev", 9)):
        rows = [f"{' '.join(rng.choices(words, k=rng.randint(3, 15)))},{'no yes'.split()[row % 2]}\n" for row in range(count)]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def command(make_model_dir: Callable[..., Path], data: Path) -> Callable[..., list[str]]:
    """A function that gives `finetune` with dropout and several micro-batches a step, into a folder."""
    model = make_model_dir("BertModel", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    rows = ["--train", str(data / "train.csv"), "--validation", str(data / "dev.csv"), "--model", str(model)]
    return lambda run, *more: ["finetune", "text-classification", *rows, *OPTIONS, *more, "--output-dir", str(run)]


@pytest.fixture(scope="module")
def whole(command, data: Path) -> Path:
    """A run that nothing stopped."""
    assert main(command(data / "whole")) == 0
    return data / "whole"


@pytest.fixture(scope="module")
def stopped(command, data: Path) -> Path:
    with before_step(STEP, MICRO_STEP, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(data / "stopped")) == 130
    return data / "stopped"


@pytest.fixture
def unfinished(stopped: Path, tmp_path: Path) -> Path:
    """A run that was stopped in its second epoch."""
    return shutil.copytree(stopped, tmp_path / "run")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Checks that a command ends with this exit code and one line of error that has these values."""

    def refused(arguments: list[str], *values: object, code: int = 2) -> None:
        capsys.readouterr()
        assert main(arguments) == code
        shown = capsys.readouterr().err
        assert "Traceback" not in shown
        (error,) = [line for line in shown.splitlines() if line.startswith("error: ")]
        assert [value for value in map(str, values) if value not in error] == []

    return refused


def hash_of(run: Path) -> str:
    return sha256((run / "model.safetensors").read_bytes()).hexdigest()


def log_of(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl but for the times."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in event.items() if name not in MEASURED} for event in events]


def assert_same_run(found: Path, expected: Path) -> None:
    """The best model, which is at the root, and the last one, which its checkpoint holds."""
    last = f"checkpoint-{STEPS_PER_EPOCH * EPOCHS}"
    assert (hash_of(found), hash_of(found / last)) == (hash_of(expected), hash_of(expected / last))
    runs = [read_json(run / "run.json") for run in (found, expected)]
    assert runs[0]["status"] == "finished"
    assert [runs[0][part] for part in ("best", "last")] == [runs[1][part] for part in ("best", "last")]
    assert [event["step"] for event in log_of(found)] == [event["step"] for event in log_of(expected)]


def content_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


# Counts what the loop does and kills its own process, SIGKILL and all: no `finally`, no flushing, no handler.
KILLED = """
import os, signal, sys, time
from bertkit.training import checkpoint
from bertkit.training import loop as training
from bertkit.cli import main
seed_dropout, seen = training.seed_dropout, []
def killing(model, seed, step, micro_step, rank):
    seen.append((step, micro_step))
    if (step, micro_step) == (int(sys.argv[1]), int(sys.argv[2])):
        assert (step, micro_step - 1) in seen
        assert not any(p.grad is not None for p in model.parameters())  # collected to the masters
        while not os.path.isdir(os.path.join(sys.argv[-1], "checkpoint-5")):  # which is written meanwhile
            time.sleep(0.01)
        print("in mid-accumulation", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    seed_dropout(model, seed, step, micro_step, rank)
training.seed_dropout = killing
sys.exit(main(sys.argv[3:]))
"""


def test_killed_in_mid_accumulation_the_same_command_ends_with_the_same_bytes(command, tmp_path: Path, capsys) -> None:
    assert main(command(tmp_path / "whole", "--precision", "bf16")) == 0
    run = tmp_path / "killed"
    arguments = command(run, "--precision", "bf16")  # which ends with the folder
    program = [sys.executable, "-c", KILLED, str(STEP), str(MICRO_STEP), *arguments]
    killed = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "in mid-accumulation\n"), killed.stderr
    assert [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{STEPS_PER_EPOCH}"]
    assert log_of(run)[-1]["step"] > STEPS_PER_EPOCH, "it had logged a step that the checkpoint does not hold"
    assert read_json(run / "run.json")["status"] == "running"
    capsys.readouterr()
    assert main(arguments) == 0
    assert str(run / f"checkpoint-{STEPS_PER_EPOCH}") in capsys.readouterr().err
    assert_same_run(run, tmp_path / "whole")
    assert log_of(run) == log_of(tmp_path / "whole")


@pytest.mark.parametrize("step", [3, STEP])
def test_a_crash_before_or_after_the_first_checkpoint(step: int, command, whole: Path, tmp_path: Path) -> None:
    def crash() -> None:
        raise RuntimeError("died")

    with before_step(step, MICRO_STEP, act=crash):
        assert main(command(tmp_path / "run")) == 1
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == (step == STEP)
    assert log_of(tmp_path / "run"), "it had logged something"
    assert main(command(tmp_path / "run")) == 0
    assert_same_run(tmp_path / "run", whole)
    assert log_of(tmp_path / "run") == log_of(whole)


def test_dropout_and_precision_decide_the_bytes(command, tmp_path: Path) -> None:
    """The hashes above could differ: another seed, no dropout and another precision each give another model."""
    variants = {"a": (), "b": ("--seed", "7"), "c": ("--dropout", "0"), "d": ("--precision", "bf16"), "same": ()}
    for name, more in variants.items():
        assert main(command(tmp_path / name, "--max-steps", "2", *more)) == 0
        torch.rand(3)
    assert len({hash_of(tmp_path / name) for name in variants}) == 4
    assert hash_of(tmp_path / "same") == hash_of(tmp_path / "a")


@pytest.mark.parametrize(("number", "optimizer"), [(signal.SIGINT, "adamw"), (signal.SIGTERM, "lamb")])
def test_a_signal_saves_and_the_same_command_resumes(
    number: int, optimizer: str, command, whole: Path, tmp_path: Path, capsys
) -> None:
    options = ("--optimizer", optimizer)
    if optimizer != "adamw":
        whole = tmp_path / "whole"
        assert main(command(whole, *options)) == 0
    run = tmp_path / "stopped"
    with before_step(STEP, MICRO_STEP, act=lambda: os.kill(os.getpid(), number)):
        capsys.readouterr()
        assert main(command(run, *options)) == 128 + number
    shown = capsys.readouterr().err
    assert f"step {STEP + 1};" in shown.splitlines()[-1]
    assert "Traceback" not in shown
    assert [path.name for path in run.glob("*checkpoint-*")] == [CHECKPOINT]
    if optimizer == "lamb":
        assert main(command(run)) == 2, "AdamW, the default, is another setting"
    (run / ".unfinished-checkpoint-12").mkdir()  # which a kill left half written
    (run / ".unfinished-checkpoint-12" / "model.safetensors").write_bytes(b"half")
    assert main(command(run, *options)) == 0
    assert_same_run(run, whole)
    assert not list(run.glob(".unfinished-*"))


def test_what_is_refused_changes_nothing(unfinished: Path, data: Path, command, refused, tmp_path: Path) -> None:
    """Settings and data that differ are named, with both values."""
    before = content_of(tmp_path)
    checkpoint = str(unfinished / CHECKPOINT)
    refused(command(unfinished, "--resume", "never"), unfinished)
    refused(command(unfinished, "--resume", "yes"), "'yes'")
    refused(command(unfinished, "--learning-rate", "1e-3"), unfinished, "learning_rate", 0.003, 0.001)
    refused(command(unfinished, "--seed", "1"), unfinished, "seed", 42, 1)
    refused(command(unfinished, "--text", "label", "--label", "text"), code=3)
    refused(command(unfinished, "--resume", checkpoint, "--overwrite"), unfinished)
    refused(command(tmp_path / "other", "--resume", checkpoint, "--learning-rate", "1e-3"), "learning_rate", 0.003, 0.001)
    rows = (data / "train.csv").read_text(encoding="utf-8")
    (data / "train.csv").write_text(rows.replace("\n", "\ngood ", 1), encoding="utf-8")
    refused(command(unfinished), unfinished, ": the rows of train have changed")
    (data / "train.csv").write_text(rows, encoding="utf-8")
    assert content_of(tmp_path) == before
    weights = bytearray((unfinished / CHECKPOINT / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (unfinished / CHECKPOINT / "model.safetensors").write_bytes(weights)
    refused(command(unfinished), "model.safetensors", unfinished / CHECKPOINT, code=4)
    (unfinished / "run.json").unlink()
    refused(command(tmp_path / "other", "--resume", checkpoint), checkpoint, "run.json")
    assert not (tmp_path / "other").exists()


def test_a_checkpoint_opens_on_the_first_cpu_as_torchrun_calls_it(stopped: Path) -> None:
    class Optimizer:
        def restore(self, weights: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
            self.weights, self.state = weights, state

    optimizer: Any = Optimizer()
    restored = training._restore(stopped / CHECKPOINT, optimizer, read_state_dict, torch.device("cpu:0"))
    assert restored.step == STEP + 1
    assert optimizer.weights
    assert optimizer.state


def test_resume_from_another_folder_leaves_it_alone_and_has_the_best_model(stopped, command, whole, tmp_path: Path) -> None:
    assert read_json(whole / "run.json")["best"]["step"] <= STEP, "the best step is one that the new folder never makes"
    before = content_of(stopped)
    assert main(command(tmp_path / "other", "--resume", str(stopped / CHECKPOINT))) == 0
    assert content_of(stopped) == before
    assert_same_run(tmp_path / "other", whole)


def test_an_earlier_checkpoint_of_another_folder_needs_nothing_of_its_root(command, whole, tmp_path: Path) -> None:
    kept = ("--keep-checkpoints", "all", "--keep-training-state")
    assert main(command(tmp_path / "all", *kept)) == 0
    root = tmp_path / "all" / "model.safetensors"  # what came later
    root.unlink()
    root.write_bytes(b"damaged")
    earlier = str(tmp_path / "all" / f"checkpoint-{STEPS_PER_EPOCH}")
    assert main(command(tmp_path / "other", *kept, "--resume", earlier)) == 0
    assert_same_run(tmp_path / "other", whole)


def test_thresholds_are_those_of_the_checkpoint_until_the_next_evaluation(command, data: Path, tmp_path: Path) -> None:
    enough = str(data / "train.csv")  # rows to tune thresholds on
    arguments = command(tmp_path / "run", "--multi-label", "--eval-steps", "3", "--validation", enough)
    thresholds = []
    for step in (3, 4):  # after the first evaluation
        with before_step(step):
            assert main(arguments) == 143
        thresholds.append(read_json(tmp_path / "run" / f"checkpoint-{step + 1}" / "config.json")["bertkit"]["thresholds"])
    assert thresholds[0] == thresholds[1] != dict.fromkeys(("no", "yes"), 0.5)


@pytest.mark.parametrize(
    ("recipe", "more"),
    [("helpdesk_pages", ()), ("helpdesk_replies", ()), ("helpdesk_mentions", ()), ("helpdesk_mentions", ("--head", "bilstm"))],
)
def test_every_family_resumes_where_it_was(recipe: str, more: tuple[str, ...], make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertModel", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, seed=5)
    options = "--batch-size 8 --max-length 64 --max-train-samples 40 --max-steps 4 --eval-steps 2 --no-baselines"
    options += " --validation 5% --precision fp32 --device cpu"
    arguments = ["finetune", recipe, "--model", str(model), *options.split(), *more, "--output-dir"]
    runs = whole, again = tmp_path / "whole", tmp_path / "again"
    assert main([*arguments, str(whole)]) == 0
    with before_step(2):
        assert main([*arguments, str(again)]) == 143
    assert (again / "checkpoint-3").is_dir()
    assert main([*arguments, str(again)]) == 0
    for file in ("model.safetensors", "config.json", "checkpoint-4/model.safetensors", "checkpoint-4/config.json"):
        assert (again / file).read_bytes() == (whole / file).read_bytes(), file
    found, expected = ([read_json(run / "run.json")[key] for key in ("best", "last", "recipe")] for run in runs)
    assert found == expected


# --- what may not change between, and what is kept ---------------------------------------------------------------------


def test_a_model_whose_config_has_changed_is_refused(command, data: Path, refused, tmp_path: Path) -> None:
    arguments = command(tmp_path / "run")
    model = shutil.copytree(arguments[arguments.index("--model") + 1], tmp_path / "model")
    arguments[arguments.index("--model") + 1] = str(model)
    with before_step(STEP, MICRO_STEP, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(arguments) == 130
    config = read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}), encoding="utf-8")
    refused(arguments, "config.hidden_act was 'gelu', now 'relu'")
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(arguments) == 0


RECIPE = """
from bertkit.tasks import TextClassification


def share(values):
    return values.mean()


def hits(predictions, references):
    return share(predictions == references)


recipe = TextClassification(text="text", label="label", metrics=(hits,))
"""


def test_a_metric_whose_code_has_changed_is_refused(command, refused, tmp_path: Path) -> None:
    """Also where a function beside it has changed; anything else in the file may."""
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE, encoding="utf-8")
    arguments = command(tmp_path / "run")
    arguments[1] = str(recipe)
    with before_step(STEP, MICRO_STEP, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(arguments) == 130
    recipe.write_text(RECIPE.replace("values.mean()", "1 - values.mean()"), encoding="utf-8")
    refused(arguments, "the code of the metric hits")
    recipe.write_text("# a comment\n" + RECIPE, encoding="utf-8")
    assert main(arguments) == 0


def test_a_finished_fine_tuning_keeps_no_training_state_unless_asked(command, whole: Path, refused, tmp_path: Path) -> None:
    last = f"checkpoint-{STEPS_PER_EPOCH * EPOCHS}"
    assert not (whole / last / "training").exists()
    checkpoint.verify_checkpoint(whole / last)
    kept = tmp_path / "kept"
    assert main(command(kept, "--keep-training-state")) == 0
    assert (kept / last / "training" / "optimizer.safetensors").is_file()
    assert_same_run(kept, whole)
    refused(command(whole, "--num-epochs", "6"), whole)
    refused(command(tmp_path / "more", "--resume", str(whole / last)), "--keep-training-state", whole / last)


def test_checkpoints_apart_from_evaluations_and_how_many_are_kept(command, whole: Path, tmp_path: Path) -> None:
    run, how = tmp_path / "run", ("--save-steps", "4", "--keep-checkpoints", "2")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130
    names = lambda: sorted(path.name for path in run.glob("checkpoint-*"))  # noqa: E731
    assert names() == ["checkpoint-12", "checkpoint-14"]
    shutil.rmtree(run / "checkpoint-14")  # as after a kill: on from before the last evaluation but one
    assert main(command(run, "--save-steps", "5", "--keep-checkpoints", "all")) == 0
    assert names() == ["checkpoint-12", "checkpoint-15"]
    assert_same_run(run, whole)


def test_later_checkpoints_are_gone_once_a_run_goes_on_from_an_earlier_one(command, whole: Path, tmp_path: Path) -> None:
    """Else a kill before the next checkpoint would leave the model of one state and the checkpoint of another."""
    run, how = tmp_path / "run", ("--keep-checkpoints", "all")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130
    names = lambda: sorted(path.name for path in run.glob("checkpoint-*"))  # noqa: E731
    assert names() == ["checkpoint-10", "checkpoint-14", "checkpoint-5"]

    def crash() -> None:
        raise RuntimeError("died")

    with before_step(6, act=crash):
        assert main(command(run, *how, "--resume", str(run / "checkpoint-5"))) == 1
    assert names() == ["checkpoint-5"]
    assert hash_of(run) == hash_of(run / "checkpoint-5")
    assert main(command(run, *how)) == 0
    assert_same_run(run, whole)
    assert log_of(run) == log_of(whole)


@pytest.mark.parametrize("is_at_the_root", [True, False])
def test_a_best_model_without_its_checkpoint(is_at_the_root: bool, command, whole: Path, tmp_path: Path, capsys) -> None:
    """It stays the best if it is at the root; if that has a later checkpoint's, the best is gone, also after a kill."""
    run, how = tmp_path / "run", ("--keep-checkpoints", "all")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130
    shutil.rmtree(run / "checkpoint-5")
    if not is_at_the_root:
        progress = run / "checkpoint-14" / "training" / "progress.json"
        progress.write_text(json.dumps(read_json(progress) | {"best_step": 14}), encoding="utf-8")

    def crash() -> None:
        raise RuntimeError("died")

    for more in (("--resume", str(run / "checkpoint-10")), ()):
        capsys.readouterr()
        with before_step(11, act=crash):
            assert main(command(run, *how, *more)) == 1
        assert ("the best model so far, of step 5, is missing" in capsys.readouterr().err) is not is_at_the_root
        assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-10"]
    assert main(command(run, *how)) == 0
    if is_at_the_root:
        assert_same_run(run, whole)
    else:
        assert read_json(run / "run.json")["best"]["step"] == 15
        assert hash_of(run) == hash_of(run / "checkpoint-15")


def test_a_kill_while_later_checkpoints_are_deleted(command, whole: Path, tmp_path: Path, monkeypatch) -> None:
    """The newest that is left still has its best model."""
    run, how = tmp_path / "run", ("--keep-checkpoints", "all")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130

    def die(folder: Path) -> None:
        assert folder.name == "checkpoint-14"
        raise RuntimeError("died")

    (run / "model.safetensors").unlink()
    shutil.copyfile(run / "checkpoint-14" / "model.safetensors", run / "model.safetensors")  # as if 14 were the best
    before = hash_of(run)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "remove_folder", die)
        assert main(command(run, *how, "--resume", str(run / "checkpoint-5"))) == 1
    assert hash_of(run) == before != hash_of(run / "checkpoint-5"), "the model at the root has not changed yet"
    assert main(command(run, *how)) == 0
    last = f"checkpoint-{STEPS_PER_EPOCH * EPOCHS}"
    assert (hash_of(run), hash_of(run / last)) == (hash_of(whole), hash_of(whole / last))


@pytest.mark.parametrize("damaged", ["training/optimizer.safetensors", "manifest.json", "model.safetensors"])
def test_of_the_best_checkpoint_only_the_model_is_needed(damaged: str, command, whole: Path, tmp_path: Path, refused) -> None:
    run, how = tmp_path / "run", ("--keep-checkpoints", "all")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130
    (run / "checkpoint-5" / damaged).unlink()
    if damaged.startswith("training"):
        assert main(command(run, *how)) == 0
        assert_same_run(run, whole)
    else:
        refused(command(run, *how), "checkpoint", damaged, code=4)


def test_a_best_model_that_a_checkpoint_has_is_put_back(command, whole: Path, tmp_path: Path) -> None:
    run, how = tmp_path / "run", ("--keep-checkpoints", "all")
    with before_step(13, act=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(command(run, *how)) == 130
    (run / "model.safetensors").unlink()
    (run / "model.safetensors").write_bytes(b"damaged")
    (run / "latest").symlink_to(run / "checkpoint-14")
    assert main(command(run, *how, "--resume", str(run / "latest"))) == 0
    assert_same_run(run, whole)


@pytest.mark.parametrize(("value", "said"), [("0", "'0'"), ("few", "'few'"), ("-1", "'-1'")])
def test_a_number_of_checkpoints_that_is_none(value: str, said: str, command, refused, tmp_path: Path) -> None:
    refused(command(tmp_path / "run", f"--keep-checkpoints={value}"), "--keep-checkpoints", said)


def test_a_damaged_log_does_not_stop_a_resume_and_is_said(unfinished: Path, whole: Path, command, capsys) -> None:
    log = unfinished / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b"\xff\x00\xfe\n" + b'{"step": 8, "lo')
    capsys.readouterr()
    assert main(command(unfinished)) == 0
    assert "2 of" in capsys.readouterr().err
    assert_same_run(unfinished, whole)
    assert log_of(unfinished) == log_of(whole)


def test_a_damaged_best_model_that_no_later_step_need_replace_is_not_resumed(unfinished: Path, command, refused) -> None:
    state = read_json(unfinished / CHECKPOINT / "training" / "progress.json")
    assert state["best_step"] < state["step"]
    weights = bytearray((unfinished / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (unfinished / "model.safetensors").write_bytes(weights)
    refused(command(unfinished), "model.safetensors", "best model", code=4)


@pytest.mark.parametrize(("name", "said"), [("num_processes", "processes"), ("num_threads", "threads")])
def test_resuming_with_other_processes_or_threads_says_what_stays_exact(
    name: str, said: str, run_bertkit, make_model_dir, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_text(
        "text,label\n" + "".join(f"movie {row},{row % 2}\n" for row in range(16)), encoding="utf-8"
    )
    command = f"finetune text-classification --train train.csv --validation 25% --model {make_model_dir()} --device cpu "
    command += "--max-steps 2 --batch-size 4 --precision fp32 --no-baselines --keep-training-state --output-dir run"
    assert run_bertkit(*command.split()).code == 0
    path = tmp_path / "run" / "run.json"
    before = json.loads(path.read_text(encoding="utf-8"))
    assert before[name] == {"num_processes": 1, "num_threads": torch.get_num_threads()}[name]
    path.write_text(json.dumps(before | {"status": "running", name: 64}), encoding="utf-8")
    ran = run_bertkit(*command.split())
    assert ran.code == 0
    what = f"the run started with 64 {said}: data, order and masks stay exactly the same; the rounding of sums"
    assert what in " ".join(ran.err.split())
