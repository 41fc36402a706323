"""Checkpoints written in the background: of the step at which they were begun, one at a time, whole, and weights once."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from shapes import CONFIG, SHAPES, TRAINING, Classifier, PreTrainer, Trained, logged_losses, training_run
from test_reads import CASES
from torch import Tensor, nn

from bertkit.cli.failures import explain
from bertkit.errors import MachineError, Stopped, UsageError
from bertkit.manifest import MANIFEST, Manifest
from bertkit.model.bert import initialize
from bertkit.model.directory import read_state_dict, save_model
from bertkit.runs.finetuning import training
from bertkit.training.checkpoint import verify_checkpoint
from bertkit.training.loop import Interrupted
from bertkit.training.optimizer import Optimizer
from bertkit.training.state import TrainState
from bertkit.training.vocabulary import UsedVocabulary
from bertkit.training.writer import CheckpointWriter, HostCopies

SENTENCE = SHAPES["sentence"]
# The learning rate does not depend on how many steps there will be; a micro-batch a step.
STEADY = dataclasses.replace(TRAINING, schedule="constant", warmup_ratio=0.0, keep_checkpoints="all", micro_batch_tokens=10_000)
PATIENCE = 30  # seconds after which a test fails that would hang
WEIGHTS = "model.safetensors"


class SlowDisk:
    """A `save_model` for training_run: the models of the chosen steps are written once `go_on` is set. written: the steps."""

    def __init__(self, *slow: int, error: BaseException | None = None) -> None:
        self.slow, self.error = slow, error
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.written: list[int] = []
        self.writing = self.most = 0

    def __call__(self, step: int) -> Callable[[Path, dict[str, Tensor]], None]:
        def write(folder: Path, weights: dict[str, Tensor]) -> None:
            self.writing += 1
            self.most = max(self.most, self.writing)
            if step in self.slow:
                self.begun.set()
                assert self.go_on.wait(PATIENCE), "training waited for the checkpoint"
            if self.error is not None:
                raise self.error
            once = {id(tensor): name for name, tensor in weights.items()}
            save_file({name: weights[name] for name in once.values()}, folder / WEIGHTS)
            self.written.append(step)
            self.writing -= 1

        return write


def at_step(step: int, call: Callable[[], object], module: nn.Module | None = None) -> nn.Module:
    """A module, a fresh one by default, that calls something in its forward pass of a step, counted from 1."""
    module, seen = module or Classifier(), []

    def count(*_: Any) -> None:
        seen.append(1)
        if len(seen) == step:
            call()

    module.register_forward_pre_hook(count)
    return module


def press(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def bytes_of(checkpoint: Path) -> dict[str, bytes]:
    verify_checkpoint(checkpoint)
    return {name: (checkpoint / name).read_bytes() for name in (WEIGHTS, "training/optimizer.safetensors")}


def assert_whole(run_dir: Path, *steps: int) -> None:
    """These checkpoints are there and nothing half done."""
    assert {path.name for path in run_dir.glob("*checkpoint-*")} == {f"checkpoint-{step}" for step in steps}
    for step in steps:
        verify_checkpoint(run_dir / f"checkpoint-{step}")
    assert not list(run_dir.glob(".unfinished-*"))


# --- of which step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_has_nothing_of_the_steps_that_go_on_while_it_is_written(precision: str, tmp_path: Path) -> None:
    """It has the bytes of the last checkpoint of a run that ends there."""
    config = dataclasses.replace(STEADY, precision=precision)
    training_run(SENTENCE, config, 2, tmp_path / "short", eval_every=2)
    whole = training_run(SENTENCE, config, 8, tmp_path / "whole", eval_every=8)
    disk, run = SlowDisk(2), tmp_path / "slow"
    module = at_step(6, disk.go_on.set)  # three steps later it is still to be written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointWriter, "save", only_at(2, CheckpointWriter.save))
        training_run(SENTENCE, dataclasses.replace(config, save_steps=2), 8, run, module=module, eval_every=8, save_model=disk)
    assert disk.written == [2]
    assert bytes_of(run / "checkpoint-2") == bytes_of(tmp_path / "short" / "checkpoint-2")
    assert logged_losses(run) == whole.losses
    again = training_run(SENTENCE, config, 8, run, eval_every=8, resume_from=run / "checkpoint-2")
    assert again.losses == whole.losses
    assert bytes_of(run / "checkpoint-8") == bytes_of(tmp_path / "whole" / "checkpoint-8")


def only_at(step: int, save: Callable[..., None]) -> Callable[..., None]:
    """Saves this step alone: the next one would wait."""
    return lambda self, progress, **more: save(self, progress, **more) if progress["step"] == step else None


def test_one_is_written_at_a_time_and_the_next_waits_with_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers of the one that is written are taken again only afterwards."""
    disk = SlowDisk(2)
    save, asked, kept = CheckpointWriter.save, threading.Event(), {}

    def asking(self: CheckpointWriter, progress: dict[str, Any], **more: bool) -> None:
        if progress["step"] == 4:
            assert disk.begun.wait(PATIENCE)
            kept.update({name: tensor.clone() for name, tensor in self._weights._buffers.items()})
            threading.Timer(0.2, look, [self]).start()
            asked.set()
        save(self, progress, **more)

    def look(writer: CheckpointWriter) -> None:
        kept["same"] = torch.tensor(all(kept[name].equal(tensor) for name, tensor in writer._weights._buffers.items()))
        disk.go_on.set()

    monkeypatch.setattr(CheckpointWriter, "save", asking)
    training_run(SENTENCE, STEADY, 6, tmp_path, eval_every=2, save_model=disk)
    assert asked.is_set()
    assert kept["same"]
    assert (disk.written, disk.most) == ([2, 4, 6], 1)
    assert_whole(tmp_path, 2, 4, 6)


def test_copies_take_the_same_memory_again_and_a_tied_tensor_once() -> None:
    copies, weight = HostCopies(), torch.rand(3, 4).T
    first = copies.take({"a": weight, "b": weight, "c": torch.ones(2)})
    assert torch.equal(first["a"], weight)
    assert first["a"].is_contiguous()
    assert first["a"] is first["b"]
    second = copies.take({"a": weight + 1, "c": torch.zeros(2)})
    assert second["c"].data_ptr() == first["c"].data_ptr()
    assert torch.equal(second["a"], weight + 1)


TUNED = "--multi-label --max-steps 2 --eval-steps 1 --learning-rate 3e-2 --keep-checkpoints all --device cpu --precision fp32"


def test_a_checkpoint_has_the_thresholds_of_its_own_evaluation(
    make_model_dir, run_bertkit, tmp_path: Path, monkeypatch
) -> None:
    """Also where the next evaluation has tuned others before it is written."""
    rows = [f"good movie {row} {'late' if row % 3 else 'early'},{'no' if row % 3 else 'yes'}\n" for row in range(40)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    command = f"finetune text-classification --train rows.csv --validation rows.csv --model {make_model_dir()} {TUNED}"
    assert run_bertkit(*command.split(), "--no-baselines", "--output-dir", "plain").code == 0
    score, widen, tuned = training.score_splits, UsedVocabulary.widen, []
    second = threading.Event()

    def scored(*arguments: Any, **more: Any) -> Any:
        found = score(*arguments, **more)
        tuned.append(found)
        if len(tuned) == 2:
            threading.Timer(0.2, second.set).start()  # once `evaluate` has it
        return found

    monkeypatch.setattr(training, "score_splits", scored)
    monkeypatch.setattr(UsedVocabulary, "widen", lambda *args, **more: (second.wait(PATIENCE), widen(*args, **more))[1])
    assert run_bertkit(*command.split(), "--no-baselines", "--output-dir", "slow").code == 0
    configs = {
        (run, step): json.loads((tmp_path / run / f"checkpoint-{step}" / "config.json").read_text(encoding="utf-8"))["bertkit"]
        for run in ("plain", "slow")
        for step in (1, 2)
    }
    assert configs["slow", 1]["thresholds"] == configs["plain", 1]["thresholds"] != configs["plain", 2]["thresholds"]
    assert configs["slow", 2] == configs["plain", 2]


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Sudden(BaseException):
    """Not to be caught as an error, as the Killed of tests/faults.py."""


@pytest.mark.parametrize(("error", "raised"), [(no_space(), MachineError), (Sudden(), Sudden), (KeyError("x"), KeyError)])
def test_an_error_of_the_writer_is_raised_at_the_next_step(error: BaseException, raised: type, tmp_path: Path) -> None:
    disk, steps = SlowDisk(2, error=error), []

    def fail_now() -> None:
        disk.go_on.set()
        while any(thread.name == "checkpoints" for thread in threading.enumerate()):
            time.sleep(0.001)

    module = at_step(4, fail_now)
    module.register_forward_hook(lambda *_: steps.append(1))
    with pytest.raises(raised) as caught:
        training_run(SENTENCE, STEADY, 50, tmp_path, module=module, eval_every=2, save_model=disk)
    assert len(steps) == 4, "it went on while it was written, and not after"
    assert not list(tmp_path.glob("checkpoint-*"))
    if raised is MachineError:
        assert ("No space left" in caught.value.what, caught.value.where) == (True, str(tmp_path / "checkpoint-2"))


def test_an_error_of_the_last_write_is_raised_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        training_run(SENTENCE, STEADY, 2, tmp_path, eval_every=2, save_model=SlowDisk(error=no_space()))


def test_a_full_disk_is_one_line_of_the_command(tiny_model_dir: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "good movie,yes\nbad film,no\n" * 8, encoding="utf-8")
    command = f"finetune text-classification --train rows.csv --validation rows.csv --model {tiny_model_dir} --device cpu "
    command += "--max-steps 4 --eval-steps 2 --precision fp32 --no-baselines --output-dir run"

    def fail(*_: Any, **__: Any) -> None:
        raise no_space()

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_model", fail)
        ran = run_bertkit(*command.split())
    (error,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert ran.code == 5
    assert "No space left on device" in error
    assert "Traceback" not in ran.err
    assert run_bertkit(*command.split()).code == 0


def test_an_error_in_training_waits_for_what_is_being_written(tmp_path: Path) -> None:
    disk = SlowDisk(2)

    def fail() -> None:
        threading.Timer(0.2, disk.go_on.set).start()
        raise UsageError("the loss is not finite")

    with pytest.raises(UsageError):
        training_run(SENTENCE, STEADY, 8, tmp_path, module=at_step(4, fail), eval_every=2, save_model=disk)
    assert_whole(tmp_path, 2)
    assert (tmp_path / WEIGHTS).samefile(tmp_path / "checkpoint-2" / WEIGHTS)


# --- Ctrl-C, kills -----------------------------------------------------------------------------------------------------


def test_ctrl_c_while_a_checkpoint_is_written_saves_both(tmp_path: Path) -> None:
    disk = SlowDisk(2)

    def stop() -> None:
        threading.Timer(0.2, disk.go_on.set).start()
        press()

    with pytest.raises(Interrupted) as stopped:
        training_run(SENTENCE, STEADY, 8, tmp_path, module=at_step(3, stop), eval_every=2, save_model=disk)
    (step,) = map(int, re.findall(r"after step (\d+)", str(stopped.value)))
    assert disk.written == [2, step]
    assert_whole(tmp_path, 2, step)
    training_run(SENTENCE, STEADY, 8, tmp_path / "whole", eval_every=2)
    training_run(SENTENCE, STEADY, 8, tmp_path, eval_every=2, resume_from=tmp_path / f"checkpoint-{step}")
    assert bytes_of(tmp_path / "checkpoint-8") == bytes_of(tmp_path / "whole" / "checkpoint-8")
    assert logged_losses(tmp_path) == logged_losses(tmp_path / "whole")


def test_a_second_ctrl_c_while_the_last_checkpoint_is_written_leaves_it_whole(tmp_path: Path) -> None:
    disk = SlowDisk(*range(9))

    def again() -> None:
        assert disk.begun.wait(PATIENCE)
        press()
        threading.Timer(0.2, disk.go_on.set).start()

    threading.Thread(target=again).start()
    with pytest.raises(Stopped) as stopped:
        training_run(SENTENCE, STEADY, 8, tmp_path, module=at_step(3, press), eval_every=8, save_model=disk)
    assert not isinstance(stopped.value, Interrupted)
    assert_whole(tmp_path, *disk.written)
    assert len(disk.written) == 1


def test_however_many_signals_come_the_writer_ends_before_its_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of the folder ends after it: no other process may find a thread at work there."""
    disk = SlowDisk(1)
    writer = CheckpointWriter(tmp_path, Optimizer(Classifier(), TRAINING), disk, keep="1")
    waits = 0

    def interrupted(begun: Future[None], timeout: float | None = None) -> BaseException | None:
        nonlocal waits
        waits += 1
        if not begun.done():
            if waits == 3:
                disk.go_on.set()
            raise Stopped(number=signal.SIGINT)
        return None

    def train() -> None:
        with writer:
            writer.wait()
            writer.save(dataclasses.asdict(TrainState(step=1)), best=False)
            assert disk.begun.wait(PATIENCE)
            monkeypatch.setattr(Future, "exception", interrupted)
            raise UsageError("of training")

    with pytest.raises(UsageError):
        train()
    assert (waits >= 3, disk.written) == (True, [1])


def test_a_thread_that_cannot_be_started_is_an_error_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = CheckpointWriter(tmp_path, Optimizer(Classifier(), TRAINING), SlowDisk(), keep="1")

    def train() -> None:
        with writer:
            writer.wait()
            monkeypatch.setattr(threading.Thread, "start", start)
            writer.save(dataclasses.asdict(TrainState(step=1)), best=False)

    with pytest.raises(RuntimeError, match="new thread"):
        train()
    explained = explain(RuntimeError("can't start new thread"))
    assert isinstance(explained, MachineError)


def test_ctrl_c_says_that_nothing_was_saved_where_the_disk_is_full(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        training_run(SENTENCE, STEADY, 8, tmp_path, module=at_step(3, press), save_model=SlowDisk(error=no_space()))
    assert not list(tmp_path.glob("checkpoint-*"))


KILLED = """
import os, signal, sys
from bertkit.cli import main
from bertkit.training import writer
save, calls = writer.copy_to_root, []
def killing(checkpoint, run_dir):
    calls.append(1)
    if len(calls) == 2:  # the checkpoint is there, and the root has an earlier model
        os.kill(os.getpid(), signal.SIGKILL)
    save(checkpoint, run_dir)
writer.copy_to_root = killing
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.e2e
def test_killed_between_the_checkpoint_and_the_root_the_same_command_ends_with_the_same_bytes(
    tiny_model_dir: Path, run_bertkit, tmp_path: Path
) -> None:
    rows = [f"{'good' if row % 2 else 'bad'} movie {row},{row % 2}\n" for row in range(16)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    command = (
        f"pretrain corpus --model {tiny_model_dir} --max-steps 4 --eval-steps 1 --device cpu --precision bf16 --max-length 16"
    )
    (tmp_path / "text.txt").write_text("good movie. bad film.\n\nthe book is old.\n\n" * 20, encoding="utf-8")
    assert run_bertkit(*f"corpus build text.txt --tokenizer {tiny_model_dir} --output-dir corpus".split()).code == 0
    assert run_bertkit(*command.split(), "--output-dir", "whole").code == 0
    program = [sys.executable, "-c", KILLED, *command.split(), "--output-dir", "killed"]
    killed = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = tmp_path / "killed"
    assert (run / "checkpoint-2").is_dir()
    assert not (run / WEIGHTS).samefile(run / "checkpoint-2" / WEIGHTS)
    assert run_bertkit(*command.split(), "--output-dir", "killed").code == 0
    assert bytes_of(run / "checkpoint-4") == bytes_of(tmp_path / "whole" / "checkpoint-4")
    assert (run / WEIGHTS).samefile(run / "checkpoint-4" / WEIGHTS)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == [json.loads(line)["step"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]


# --- weights once ------------------------------------------------------------------------------------------------------


def scored_run(folder: Path, *objectives: float, **more: Any) -> Trained:
    """A run whose evaluations, after every second step, give these numbers in turn."""
    left = iter(objectives)
    evaluate = lambda _: ({"dev/accuracy": (objective := next(left))}, objective)  # noqa: E731
    config = more.pop("config", STEADY)
    return training_run(SENTENCE, config, 2 * len(objectives), folder, evaluate=evaluate, eval_every=2, **more)


def test_the_best_model_is_the_file_of_its_checkpoint_as_long_as_that_is_kept(tmp_path: Path) -> None:
    scored_run(tmp_path / "all", 0.2, 0.7, 0.5)
    assert (tmp_path / "all" / WEIGHTS).samefile(tmp_path / "all" / "checkpoint-4" / WEIGHTS)
    scored_run(tmp_path / "one", 0.2, 0.7, 0.5, config=dataclasses.replace(STEADY, keep_checkpoints="1"))
    assert (tmp_path / "one" / WEIGHTS).read_bytes() == (tmp_path / "all" / WEIGHTS).read_bytes()
    assert (tmp_path / "one" / WEIGHTS).stat().st_nlink == 1
    for run in ("all", "one"):
        manifest = Manifest.read(tmp_path / run)
        assert manifest is not None
        assert manifest.files == Manifest.of(tmp_path / run, {WEIGHTS}).files


def test_the_best_model_is_a_copy_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    scored_run(tmp_path, 0.2, 0.7, 0.5)
    root, of_checkpoint = tmp_path / WEIGHTS, tmp_path / "checkpoint-4" / WEIGHTS
    assert not root.samefile(of_checkpoint)
    assert root.read_bytes() == of_checkpoint.read_bytes()


def test_each_new_best_model_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    """Else a run resumed from an older one would take weights for those of its best step that came after it."""
    found = scored_run(tmp_path, 0.7, 0.5, 0.9, 0.8, config=dataclasses.replace(STEADY, save_steps=5))
    steps = [2, 5, 6, 8]  # better, due, better, the last
    assert [saved for saved in found.saves if "checkpoint" in saved] == [f".unfinished-checkpoint-{n} at {n}" for n in steps]
    assert (tmp_path / WEIGHTS).samefile(tmp_path / "checkpoint-6" / WEIGHTS)


@pytest.mark.parametrize(("best_kept", "folder"), [(True, "run"), (True, "other"), (False, "run")])
def test_an_earlier_checkpoint_is_resumed_with_the_best_model_of_its_time(
    best_kept: bool, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here step 6 was the best, its file is damaged, and made again it scores less."""
    run = tmp_path / "run"
    scored_run(run, 0.7, 0.5, 0.9)
    with (run / "checkpoint-6" / WEIGHTS).open("r+b") as file:  # the root's too
        file.seek(-9, os.SEEK_END)
        file.write(b"damaged!!")
    if not best_kept:
        shutil.rmtree(run / "checkpoint-2")
    more = {"evaluate": lambda _: ({"dev/accuracy": 0.6}, 0.6), "eval_every": 2, "resume_from": run / "checkpoint-4"}
    found = training_run(SENTENCE, STEADY, 6, tmp_path / folder, **more)
    best = run / "checkpoint-2" if best_kept else run / "checkpoint-6"
    assert found.state.best_step == (2 if best_kept else 6)
    assert (tmp_path / folder / WEIGHTS).read_bytes() == (best / WEIGHTS).read_bytes()
    assert ("of step 2, is missing" in capsys.readouterr().err) != best_kept


def test_a_run_in_another_folder_shares_no_file_with_the_one_it_goes_on_from(tmp_path: Path) -> None:
    training_run(SENTENCE, STEADY, 2, tmp_path / "first", eval_every=2)
    checkpoint = tmp_path / "first" / "checkpoint-2"
    with pytest.raises(Interrupted):
        training_run(SENTENCE, STEADY, 4, tmp_path / "second", module=at_step(1, press), resume_from=checkpoint)
    assert (tmp_path / "second" / WEIGHTS).read_bytes() == (checkpoint / WEIGHTS).read_bytes()
    assert not (tmp_path / "second" / WEIGHTS).samefile(checkpoint / WEIGHTS)


@pytest.mark.parametrize("name", SHAPES)
def test_the_optimizers_file_has_no_weights(name: str, tmp_path: Path) -> None:
    module = SHAPES[name].build()
    module.bert.embeddings.position_embeddings.requires_grad_(False)
    found = training_run(SHAPES[name], dataclasses.replace(STEADY, precision="bf16"), 2, tmp_path, module=module)
    state = load_file(tmp_path / "checkpoint-2" / "training" / "optimizer.safetensors")
    trained = [key for key, parameter in module.named_parameters() if parameter.requires_grad]
    assert state.keys() == {f"{part}.{key}" for part in ("exp_avg", "exp_avg_sq", "step") for key in trained}
    weights = load_file(tmp_path / "checkpoint-2" / WEIGHTS)
    assert len(weights) == len(found.parameters) - isinstance(module, PreTrainer)
    assert not any(tensor.equal(weight) for tensor in state.values() for weight in weights.values() if tensor.numel() > 99)


@pytest.mark.parametrize("case", CASES)
def test_the_weights_of_every_head_are_restored_from_a_saved_model(case: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    """To the last bit, frozen and tied ones among them, with masters that bf16 cannot hold."""
    from bertkit.text.tokenizer import Tokenizer

    head, other = CASES[case][0](), CASES[case][0]()
    initialize(head, CONFIG, seed=1)
    initialize(other, CONFIG, seed=2)
    for module in (head, other):
        module.bert.embeddings.requires_grad_(False)
    optimizers = [Optimizer(module, TRAINING, dtype=torch.bfloat16) for module in (head, other)]
    tokenizer = Tokenizer.load(tiny_model_dir)
    weights = {name: tensor.detach() for name, tensor in optimizers[0].weights().items()}
    save_model(tmp_path, state_dict=weights, config=head.config, tokenizer=tokenizer, architecture=type(head).__name__)
    assert any(not torch.equal(*(o.masters[name] for o in optimizers)) for name in optimizers[0].masters)
    optimizers[1].restore(read_state_dict(tmp_path), optimizers[0].state())
    for name, master in optimizers[0].masters.items():
        assert torch.equal(optimizers[1].masters[name], master), name
        assert torch.equal(optimizers[1].parameters[name], master.bfloat16()), name


@pytest.mark.parametrize("name", ["sentence", "pretraining"])
def test_a_checkpoint_of_an_older_version_has_masters_and_resumes(name: str, tmp_path: Path) -> None:
    """It has them under the names of the parameters, and its model is not read."""
    config = dataclasses.replace(STEADY, precision="bf16")
    whole = training_run(SHAPES[name], config, 6, tmp_path / "whole", eval_every=2)
    older = tmp_path / "whole" / "checkpoint-4"
    weights, path = load_file(older / WEIGHTS), older / "training" / "optimizer.safetensors"
    masters = {f"master.{key}": weights.get(key, weights.get("decoder.weight")) for key, _ in whole.module.named_parameters()}
    save_file({**load_file(path), **masters}, path)
    save_file({key: torch.zeros_like(tensor) for key, tensor in weights.items()}, older / WEIGHTS)
    (older / MANIFEST).write_text(Manifest.of(older).text, encoding="utf-8")
    again = training_run(SHAPES[name], config, 6, tmp_path / "again", eval_every=2, resume_from=older)
    assert bytes_of(again.run_dir / "checkpoint-6") == bytes_of(whole.run_dir / "checkpoint-6")
