"""bertkit compare"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, RecipeOfRuns, print_json, recipe_options, with_options
from bertkit.errors import UsageError, flag_of

_OF_FILES = ("test", "columns", "separator", "encoding", "rows", "on_error", "choices", "label_separator")
_OPTIONS = recipe_options("eval")


@with_options({name: found for name, found in _OPTIONS.items() if name in _OF_FILES or found[1].unit == "column"})
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, or folders of --seeds or --folds; the others are compared to the first.")
    ],
    split: Annotated[
        str | None, typer.Option(help="Split to compare on. Default: the first evaluation split of the first run.")
    ] = None,
    recipe: RecipeOfRuns = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=100)] = 1000,
    as_json: AsJson = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Compare runs on the same rows: scores, settings that differ, and whether the difference is significant.

    [bold]bertkit compare runs/mrpc runs/mrpc-3e-5[/]

    [bold]bertkit compare runs/rte-5-seeds runs/rte-5-seeds-stable --json[/]

    [bold]bertkit compare runs/mine runs/mine-large --test new.csv[/]
    """
    from bertkit.readers.content import STDIN
    from bertkit.report import show
    from bertkit.runs.evaluation.compare import compare, report_comparison

    if len(runs) < 2:
        raise UsageError("only one run is given; expected two or more", hint="bertkit compare RUN RUN...")
    if overrides and "test" not in overrides:
        raise UsageError(f"{flag_of(next(iter(overrides)))} is for reading other rows", hint="name their file: --test FILE")
    if overrides and split not in (None, "test"):
        raise UsageError(f"--split is {split}, and --test names the rows to compare on", hint="leave out one of the two")
    if overrides.get("test") == STDIN:
        raise UsageError("each run reads the rows, which standard input gives only once", hint="save them to a file first")
    comparison = compare(runs, split=split, recipe_name=recipe, resamples=resamples, overrides=overrides)
    show(report_comparison(comparison))
    print_json(comparison, wanted=as_json)
