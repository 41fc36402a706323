"""Every kind of bad input from a real shell: those that are one command, and those that need a kill, a damage or a limit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from conftest import Ran
from safetensors.torch import load_file, save_file
from shell import run_in_shell
from test_bad_inputs import GOOD, TOLD, Row, rows

KINDS = range(1, 44)  # of bad input, by how often people bring them

BERTKIT = f"{sys.executable} -m bertkit"
TRAIN = (
    f"{BERTKIT} finetune text-classification --train good.csv --validation good.csv --model MODEL --device cpu --precision fp32"
    " --max-length 16 --batch-size 2 --no-baselines --max-steps 400 --eval-steps 20 --keep-checkpoints all --output-dir"
)
# An epoch has 2 steps, in another order each: a run that repeats or leaves out one ends with other weights.
STOPPED = f"{TRAIN} run & until [ -e run/checkpoint-40/manifest.json ]; do sleep .02; done; kill -KILL $!; wait $!; "
ENDS_ALIKE = f"{TRAIN} run {{}} && {TRAIN} whole && cmp run/model.safetensors whole/model.safetensors"
DAMAGED = "truncate -s 99 run/checkpoint-40/model.safetensors; "
FLIPPED = "printf x | dd of=run/model.safetensors bs=1 seek=9999 conv=notrunc; "
LARGE = TRAIN.replace("good.csv --val", "many.csv --val").replace(
    "16 --batch-size 2 ", "64 --batch-size 20000 --micro-batch-tokens 2000000 "
)


class Scene(NamedTuple):
    """A kind of bad input by its number, as a line of bash: the code with which it ends, and what it has said."""

    number: int
    line: str
    code: int
    words: tuple[str, ...]


SCENES = [
    Scene(4, f"{BERTKIT} eval no --recipe mnli --validation pairs.tsv --max-length 16 --json | grep 'accuracy.: 1.0'", 0, ()),
    Scene(8, f"{STOPPED}{DAMAGED}{TRAIN} run", 4, ("checkpoint-40)", "damaged", "--resume run/checkpoint-20")),
    Scene(8, f"{STOPPED}{DAMAGED}{ENDS_ALIKE.format('--resume run/checkpoint-20')}", 0, ("resuming from run/checkpoint-20",)),
    Scene(9, STOPPED + ENDS_ALIKE.format(""), 0, ("resuming from run/checkpoint-40",)),
    Scene(10, f"{TRAIN} run 2>&-; {BERTKIT} predict run good.csv > /dev/full", 5, ("error: ", "No space left")),
    Scene(15, f"{TRAIN} run --learning-rate 1e38 --warmup-ratio 0", 2, ("error: the loss is nan", "--learning-rate")),
    Scene(16, f"ulimit -v 3500000; {LARGE} run", 5, ("error: out of memory", "halve --micro-batch-tokens")),
    Scene(19, STOPPED.replace("KILL", "TERM"), 143, ("the same command", "resumes")),
    Scene(
        24, f"{TRAIN} run; {FLIPPED}{BERTKIT} predict run good.csv", 4, ("error: model.safetensors of the model is damaged",)
    ),
    Scene(36, f"timeout --preserve-status -s INT 9 {TRAIN.replace('400', '1000000')} run", 130, ("stopp",)),
]


@pytest.fixture
def bash(make_model_dir: Callable[..., Path], tiny_model_dir: Path, tmp_path: Path) -> Callable[[str], Ran]:
    """A function that runs a line of bash beside the files that rows and scenes name."""
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    many = "".join(f"{'good bad movie film ' * 14}{row},{'pos' if row % 2 else 'neg'}\n" for row in range(20000))
    (tmp_path / "many.csv").write_text("text,label\n" + many, encoding="utf-8")
    pairs = "premise\thypothesis\tlabel\ngood\tbad\tcontradiction\na movie\ta book\tcontradiction\n"
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    names = ("contradiction", "entailment", "neutral")  # the recipe's order: entailment, neutral, contradiction
    shutil.copytree(make_model_dir("BertForSequenceClassification", labels=names), tmp_path / "no")
    weights = load_file(tmp_path / "no" / "model.safetensors")
    save_file(weights | {"classifier.bias": torch.tensor([9.0, 0, 0])}, tmp_path / "no" / "model.safetensors")
    return lambda line: run_in_shell(line.replace("MODEL", str(tiny_model_dir)), tmp_path)


def test_every_kind_has_a_command() -> None:
    assert {*KINDS} == {row.number for row in rows()} | {number for number, *_ in TOLD} | {scene.number for scene in SCENES}


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("scene", [pytest.param(scene, id=f"{scene.number}-{at}") for at, scene in enumerate(SCENES)])
def test_what_a_shell_sees(bash, scene: Scene) -> None:
    ran = bash(scene.line)
    assert ran.code == scene.code, ran.err[-2000:]
    assert [word for word in scene.words if word not in ran.err] == []
    assert "Traceback" not in ran.err
    assert ran.err.count("error: ") == (scene.code in range(1, 9))


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.number}-{at}") for at, row in enumerate(rows())])
def test_a_shell_sees_the_same_line(bash, tiny_model_dir: Path, tmp_path: Path, row: Row) -> None:
    for name, content in row.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if row.change:
        shutil.copytree(tiny_model_dir, tmp_path / "model")
        row.change(tmp_path / "model")
    variables = "".join(f"{name}={value} " for name, value in row.environment.items())
    ran = bash(f"{variables}{BERTKIT} {row.command}")
    assert (ran.code, ran.out) == (row.code, ""), ran.err
    assert [word for word in row.words if word not in ran.err] == []
    assert ran.err.count("error: ") == 1
    assert "Traceback" not in ran.err
