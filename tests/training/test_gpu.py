"""Training on a GPU equals training on a CPU in float32, up to rounding. These tests wait for a GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from shapes import SHAPES, TRAINING, Trained, training_run

from bertkit.config import PretrainConfig, TrainConfig
from bertkit.training.loss_scale import LossScale

pytestmark = pytest.mark.gpu
CONFIG = dataclasses.replace(TRAINING, warmup_ratio=0.0, schedule="constant", learning_rate=1e-3, dropout=0.0)
WAYS: dict[str, dict[str, object]] = {
    "fp32": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "several micro-batches": {"precision": "bf16", "micro_batch_tokens": 25},
    "checkpointing": {"precision": "bf16", "activation_checkpointing": True},
    "muon": {"precision": "bf16", "optimizer": "muon"},
    "compiled": {"precision": "bf16", "compile": True},
}
COMPILED = pytest.mark.filterwarnings("ignore")  # the compiler's own warnings differ between versions of torch


@pytest.fixture(autouse=True)
def _any_device() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)  # other tests of this process chose the CPU
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trained(name: str, config: TrainConfig, folder: Path, device: str, steps: int = 12) -> Trained:
    AcceleratorState._reset_state(reset_partial_state=True)
    return training_run(SHAPES[name], dataclasses.replace(config, device=device), steps, folder)


def config_of(**changes: object) -> TrainConfig:
    kind = PretrainConfig if changes.get("optimizer") == "muon" else TrainConfig  # only pre-training has all optimizers
    return kind(**{field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(TrainConfig)} | changes)


def norms(run: Trained) -> list[float]:
    """The gradients' norm in each step."""
    return [event["grad_norm"] for event in events(run) if "grad_norm" in event]


def events(run: Trained) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def before_a_skipped_update(run: Trained) -> int:
    """The number of steps whose losses do not depend on an update that overflowing gradients prevented."""
    scales = [event["loss_scale"] for event in events(run) if "loss_scale" in event]
    steps = next((number for number, scale in enumerate(scales, 1) if scale < LossScale().scale), len(scales))
    assert steps >= 4
    return steps


@pytest.mark.parametrize("way", [pytest.param(way, marks=COMPILED if way == "compiled" else ()) for way in WAYS])
@pytest.mark.parametrize("name", SHAPES)
def test_the_curve_is_that_of_a_cpu(name: str, way: str, tmp_path: Path) -> None:
    config = config_of(**WAYS[way])
    exact = config_of(optimizer=config.optimizer)
    on_cpu = trained(name, exact, tmp_path / "cpu", "cpu")
    wanted, norms_wanted = on_cpu.losses, norms(on_cpu)
    found = trained(name, config, tmp_path / "gpu", "cuda")
    steps = before_a_skipped_update(found) if config.precision == "fp16" else len(wanted)
    rtol = 1e-4 if config.precision == "fp32" else 3e-2
    np.testing.assert_allclose(found.losses[:steps], wanted[:steps], rtol=rtol)
    assert norms(found)[0] == pytest.approx(norms_wanted[0], rel=rtol)
    assert {tensor.dtype for tensor in found.parameters.values()} == {torch.float32}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_draws_the_same_again(checkpointing: bool, tmp_path: Path) -> None:
    """In another run, and where layers are computed twice: losses are equal but for the order of sums."""
    config = dataclasses.replace(CONFIG, precision="bf16", dropout=0.3, activation_checkpointing=checkpointing)
    first = trained("sentence", dataclasses.replace(config, activation_checkpointing=False), tmp_path / "first", "cuda")
    again = trained("sentence", config, tmp_path / "again", "cuda")
    other = trained("sentence", dataclasses.replace(config, seed=CONFIG.seed + 1), tmp_path / "other", "cuda")
    np.testing.assert_allclose(again.losses, first.losses, rtol=1e-2)
    np.testing.assert_allclose(norms(again)[0], norms(first)[0], rtol=1e-2)
    assert not np.allclose(other.losses, first.losses, rtol=1e-2)


def test_a_checkpoint_resumes(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, precision="fp16", save_steps=5, keep_checkpoints="all", device="cuda")
    whole = training_run(SHAPES["sentence"], config, 10, tmp_path / "whole")
    losses = whole.losses
    again = training_run(SHAPES["sentence"], config, 10, tmp_path / "whole", resume_from=tmp_path / "whole" / "checkpoint-5")
    np.testing.assert_allclose(again.losses[5:], losses[5:], rtol=1e-2)
