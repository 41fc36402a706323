"""The tables in docs/speed.md, from the results of training.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts import markdown
from scripts.bench import training


def render(*results: Mapping[str, Any]) -> str:
    units = ["examples/s", "real tokens/s", "peak MiB"]
    sides = [
        [task, side, f"{ex:.1f}", f"{tok:.0f}", f"{mem:.0f}"]
        for values in results
        for task, side, ex, tok, mem in training.side_rows(values)
    ]
    ratios = [
        [task, pair, *_ratios(task, measured)] for values in results for task, pair, *measured, _ in training.ratio_rows(values)
    ]
    return markdown.block(
        results,
        markdown.table(["task", "setting, medians", *units], sides, numbers_from=2),
        markdown.table(["task", "ratio of medians", *units], ratios, numbers_from=2),
        *([_note(values)] for values in results),
    )


def _ratios(task: str, measured: Sequence[float]) -> list[str]:
    """The ratio of every measure; in bold the one that the task is judged by."""
    judged_by = training.TASKS[task].measure
    pairs = zip(training.MEASURES, measured, strict=True)
    return [f"**{ratio:.2f}**" if measure == judged_by else f"{ratio:.2f}" for measure, ratio in pairs]


def _note(values: Mapping[str, Any]) -> str:
    """The settings of each task, once where they are alike."""
    settings: dict[str, list[str]] = {}
    for task, found in values["tasks"].items():
        own = {**values, **found}
        line = f"batch {own['batch_size']}, max_length {own['max_length']}, {own['timed_steps']} timed steps a run"
        if own["timed_steps_of_a"] is not None:
            line += f" ({own['timed_steps_of_a']} of (a), whose steps are all alike)"
        settings.setdefault(line, []).append(task)
    if len(settings) == 1:
        (line,) = settings
        note = f"{line[0].upper()}{line[1:]}."
    else:
        note = " ".join(f"{', '.join(tasks)}: {line}." for line, tasks in settings.items())
    waited = [share for found in values["tasks"].values() for share in found["sides"]["bertkit"].get("waiting_share", ())]
    if waited:
        note += f" Waiting for its batches took at most {100 * max(waited):.1f}% of bertkit's time."
    if shares := training.shares(values):
        of_tasks = ", ".join(f"{task} {share:.0%}" for task, share in shares.items())
        note += f" Speed of bertkit, as a share of what it would be if a step did nothing but its matrix products: {of_tasks}."
    if left := values.get("left_out"):
        rates = values["rates"]
        names = ", ".join(
            training.NAMES[side] for side in left if any(side in training.TASKS[task].order for task in values["tasks"])
        )
        note += (
            f" Products in bf16 run at {rates['bf16']:.0f} GFLOP/s here, in fp32 at {rates['fp32']:.0f}: left out were {names}."
        )
    for row in values.get("corpus", {}).get("medians", ()):
        note += (
            f" Building a corpus and reading {row['epochs']} epochs of it, one core: {row['tokens_per_s'] / 1e6:.2f} million "
            f"tokens/s, {row['ratio']:.1f} times what google-research's script gave on another machine."
        )
    return note
