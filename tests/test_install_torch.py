"""scripts/install_torch.py: which build of torch is asked for, and what happens where it cannot be had."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "install_torch.py"), run_name="install_torch")
choose, install, needs_cuda, pinned = (SCRIPT[name] for name in ("choose", "install", "needs_cuda", "pinned"))


def report(*names: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"name": name, "version": "1"}} for name in names]}


CPU = report("torch", "filelock", "sympy")
CUDA = report("torch", "filelock", "nvidia-cublas", "triton")


@pytest.mark.parametrize(
    ("platform", "has_gpu", "answer", "expected"),
    [
        ("linux", False, CPU, "default"),
        ("linux", False, CUDA, "cpu"),
        ("linux", False, None, "cpu"),
        ("linux", True, CUDA, "default"),
        ("linux", True, None, "default"),
        ("darwin", False, None, "default"),
        ("win32", False, None, "default"),
    ],
)
def test_choice(platform: str, has_gpu: bool, answer: dict[str, Any] | None, expected: str) -> None:
    assert choose(platform=platform, has_gpu=has_gpu, report=answer) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("nvidia-cudnn-cu13", "NVIDIA-NCCL-cu12", "triton", "pytorch-triton", "cuda-toolkit")),
        *((name, False) for name in ("numpy", "networkx", "setuptools")),
    ],
)
def test_needs_cuda(name: str, expected: bool) -> None:
    assert needs_cuda(report("torch", name)) == expected


class Pip:
    """Answers a dry run with `report`, an install from an index of its own with `cpu_code`, any other with 0."""

    def __init__(self, report: dict[str, Any] | None, cpu_code: int = 0) -> None:
        self.report, self.cpu_code = report, cpu_code
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, show: bool) -> tuple[int, str]:
        self.calls.append(arguments)
        if "--dry-run" in arguments:
            return (1, "") if self.report is None else (0, json.dumps(self.report))
        return (self.cpu_code if "--index-url" in arguments else 0), ""

    def installs(self) -> list[str]:
        return [f"{'cpu ' if '--index-url' in call else ''}{call[-1]}" for call in self.calls if "--dry-run" not in call]


@pytest.mark.parametrize(
    ("pip", "has_gpu", "expected"),
    [
        (Pip(CPU), False, ["torch==9.9"]),
        (Pip(CUDA), False, ["cpu torch==9.9+cpu"]),
        (Pip(CUDA, cpu_code=1), False, ["cpu torch==9.9+cpu", "torch==9.9"]),
        (Pip(None, cpu_code=1), False, ["cpu torch==9.9+cpu", "torch==9.9"]),
        (Pip(CUDA), True, ["torch==9.9"]),
    ],
    ids=["cpu by default", "cpu index", "cpu index unreachable", "nothing reachable", "gpu"],
)
def test_installs(pip: Pip, has_gpu: bool, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert install("9.9", platform="linux", has_gpu=has_gpu, pip=pip) == 0
    assert pip.installs() == expected
    said = capsys.readouterr().out
    assert ("no NVIDIA GPU here" in said) == (expected[0].startswith("cpu"))
    assert ("is not available" in said) == (len(expected) == 2)


def test_pin_is_that_of_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+", pinned(text))
    with pytest.raises(SystemExit):
        pinned("torchvision==1\n")
