"""bertkit compare"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bertkit.errors import UsageError


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, or folders of --seeds; the first is what the others are compared to.")
    ],
    split: Annotated[
        str | None, typer.Option(help="Split to compare on. Default: the first that the first is scored on.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Draws of the bootstrap.", min=100)] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Write what was found to stdout as JSON.")] = False,
) -> None:
    """Compare runs on the same rows: scores, settings that differ, and whether the difference is more than chance.

    [bold]bertkit compare runs/mrpc runs/mrpc-3e-5[/]

    [bold]bertkit compare runs/rte-5-seeds runs/rte-5-seeds-stable --json[/]
    """
    from bertkit import progress
    from bertkit.runs.compare import compare, show_comparison

    if len(runs) < 2:
        raise UsageError("one run is named; expected two or more", hint="bertkit compare RUN RUN...")
    found = compare(runs, split=split, resamples=resamples)
    show_comparison(found)
    if as_json and not progress.console.quiet:
        typer.echo(json.dumps(found))
