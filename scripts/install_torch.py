"""Install the version of torch that constraints.txt pins, in the build that fits this machine.

On Linux, the default index may answer `torch` with gigabytes of CUDA packages. A machine without an NVIDIA GPU gets a CPU build
if one is available, and otherwise the default build, which works too but is larger.

Uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own

# pip's arguments -> (exit code, standard output); `show` lets the user see the downloads
Pip = Callable[..., tuple[int, str]]


def pinned(constraints: str) -> str:
    """The version of torch that the text of a constraints file pins."""
    match = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    if match is None:
        raise SystemExit("error: constraints.txt does not pin torch")
    return match[1]


def needs_cuda(report: dict[str, Any]) -> bool:
    """Whether a report of `pip install --dry-run --report` would bring CUDA packages."""
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return any(name.startswith(("nvidia", "cuda", "triton", "pytorch-triton")) for name in names)


def choose(*, platform: str, has_gpu: bool, report: dict[str, Any] | None) -> str:
    """The build to try first: "default" (what the configured index has) or "cpu" (from PyTorch's CPU index).

    platform: as sys.platform. report: what the configured index would install, or None where it gave no answer.
    """
    if not platform.startswith("linux") or has_gpu:
        return "default"
    return "cpu" if report is None or needs_cuda(report) else "default"


def install(version: str, *, platform: str, has_gpu: bool, pip: Pip) -> int:
    """Install torch of this version by way of `pip`; returns pip's exit code."""
    constrained = ["--constraint", str(CONSTRAINTS)]
    report = None
    if platform.startswith("linux") and not has_gpu:
        code, output = pip("install", "--dry-run", "--quiet", "--report", "-", *constrained, f"torch=={version}", show=False)
        report = json.loads(output) if code == 0 else None
    if choose(platform=platform, has_gpu=has_gpu, report=report) == "cpu":
        print(f"no NVIDIA GPU here: asking {CPU_INDEX} for the CPU build of torch {version}", flush=True)
        # Without dependencies: that index has its own, older, versions of them. +cpu lets no other index answer.
        place = ["--index-url", CPU_INDEX, "--timeout", "15", "--retries", "1", "--no-deps"]
        code, _ = pip("install", *place, f"torch=={version}+cpu", show=False)
        if code == 0:
            return 0
        print("the CPU-only build is not available; installing the default build, which is larger", flush=True)
    return pip("install", *constrained, f"torch=={version}", show=True)[0]


def run_pip(*arguments: str, show: bool) -> tuple[int, str]:
    """pip of this interpreter; its output goes to the terminal if `show`, else its standard output is returned."""
    pipe = None if show else subprocess.PIPE
    errors = None if show else subprocess.DEVNULL
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, stdout=pipe, stderr=errors, text=True, check=False)
    return done.returncode, done.stdout or ""


def installed() -> str | None:
    """The installed version of torch without its local part (2.13.0+cpu is 2.13.0), or None."""
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu_present() -> bool:
    """Whether the NVIDIA driver lists a GPU."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def main() -> int:
    version = pinned(CONSTRAINTS.read_text(encoding="utf-8"))
    if installed() == version:
        return 0
    return install(version, platform=sys.platform, has_gpu=gpu_present(), pip=run_pip)


if __name__ == "__main__":
    sys.exit(main())
