"""The figures in docs/scale.md: each part of timed_scale.py is run separately and gives table rows next to its command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts import markdown
from scripts.provenance import provenance
from scripts.turns import run_script

NAME = "scale"
PACKAGES = ("bertkit", "torch")
HEADER = ("what", "figure", "command")
PARTS = {  # the options of each part's run
    "share": ["--only", "share"],
    "resume": ["--only", "resume"],
    "save": ["--only", "save"],
    "duplicates": ["--only", "duplicates", "--documents", "10000000"],
    "splits": ["--only", "splits", "--shards", "200"],
}


def commands() -> list[str]:
    return [_command(part) for part in PARTS]


def _command(part: str) -> str:
    return " ".join(["python -m scripts.results.timed_scale", *PARTS[part]])


def measure(*, force: bool) -> dict[str, Any]:
    """Run all parts, one after the other; nothing is kept of a stopped run, whatever `force` says."""
    found: dict[str, Any] = {}
    for options in PARTS.values():
        found |= run_script("scripts.results.timed_scale", options, quiet=False)
    return {"name": NAME, "command": commands(), **found, **provenance()}


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each figure."""
    rows: list[tuple[str, str, str]] = []
    for share in values["share"]:
        words = ", whole words masked" if share.get("masking") == "whole-word" else ""
        step = f"{share['batch_size']} sequences of {share['max_length']} tokens per step{words}"
        run = "process 17 of 64, each training at 300,000 tokens/s"
        what = f"CPU cores that one process needs to build its batches ({run}; {step})"
        rows.append((what, f"{share['share_of_a_core']:.2f}", "share"))
    resume, save, duplicates, splits = (values[part] for part in ("resume", "save", "duplicates", "splits"))
    assert resume["same"], "the resumed run saw other sequences"
    assert splits["same"], "two processes wrote other shards"
    seconds = f"{resume['resumed_s']:.1f} s (drawing from the beginning: {resume['from_zero_s']:.0f} s)"
    rows.append(
        (f"from the command to the first batch, resumed at step {resume['step']:,} over 10,000 shards", seconds, "resume")
    )
    first, second = save["waited_s"]
    rows += [
        ("training waits for the first checkpoint of BERT-large, on a CPU", f"{first:.1f} s", "save"),
        ("training waits for the second checkpoint", f"{second:.1f} s", "save"),
        (
            "training waits for a checkpoint that is not written in the background",
            f"{save['waited_to_the_end_s']:.1f} s",
            "save",
        ),
        ("on disk, weights and moments", f"{save['bytes'] / 1e9:.1f} GB", "save"),
    ]
    what = f"finding the duplicates among {duplicates['documents'] / 1e6:.0f} million documents"
    rows.append((what, f"{duplicates['seconds']:.0f} s, {duplicates['peak_mb']} MB", "duplicates"))
    one, two = splits["seconds_by_processes"]["1"], splits["seconds_by_processes"]["2"]
    what = f"writing the shards of {splits['mb'] / 1000:.1f} GB, by one process and by two"
    rows.append((what, f"{one:.0f} s, {two:.0f} s", "splits"))
    return [[what, figure, f"`{_command(part)}`"] for what, figure, part in rows]


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/scale.md."""
    return "\n".join(
        [*markdown.table(HEADER, rows(values), numbers_from=3), "", f"{markdown.measured_with(values, PACKAGES)}.", ""]
    )
