"""The origin of a figure: the commit, versions and machine that it was measured with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.files import write_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# What figures depend on. Results and the pages that show them change while figures are made.
SOURCES = ("bertkit", "recipes", "scripts", "pyproject.toml", "constraints.txt")
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "scikit-learn")
FP32 = "_fp32"  # ends the names of results from machines where --precision auto is fp32: they are shown apart
PEERS = ("onnxruntime", "openvino", "nncf")  # of prediction: the extra bench


def commit() -> str:
    """The commit of the checkout, with -dirty where its sources differ from it; "uncommitted" where there is none."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return "uncommitted"
    return f"{head}-dirty" if _git("status", "--porcelain", "--", *SOURCES) else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """bertkit, Python and the packages that decide figures."""
    from bertkit import __version__

    found = {"bertkit": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Processor and usable cores, such as "AMD EPYC 9R14, 2 cores"."""
    from bertkit.model.precision import processor

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} {'core' if cores == 1 else 'cores'}"


def provenance(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """commit, date (UTC), versions and machine of what is measured now."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return {"commit": commit(), "date": date, "versions": versions(packages), "machine": machine()}


def named_here(name: str, rates: Mapping[str, float]) -> str:
    """The name of results on this machine. rates: its GFLOP/s by precision."""
    from bertkit.model.precision import faster_float

    return name + FP32 if faster_float(rates) == "fp32" else name


def write_result(name: str, values: dict[str, Any]) -> Path:
    """Write results/NAME.json, whole or not at all."""
    path = RESULTS / f"{name}.json"
    write_json(path, values)
    return path
