"""bertkit report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import RecipeOfRuns


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders (for --seeds or --folds, the median run); several are compared with the first. Or folders from "
            "check --label-errors, check --learning-curve and tune.",
            metavar="RUN...",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", help="HTML file to write.", metavar="FILE")] = Path("report.html"),
    errors: Annotated[int, typer.Option(help="Number of worst errors to show per split.", min=0)] = 20,
    recipe: RecipeOfRuns = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Write everything known about runs to one HTML file: scores, curves, classes, slices, worst errors, data and settings.

    The file is self-contained, has no scripts, and shows the same numbers as eval, compare and check. For pre-training it
    shows losses by phase, filled masks, and perplexity by source.

    [bold]bertkit report runs/mine[/]

    [bold]bertkit report runs/mine runs/other --output both.html[/]
    """
    from bertkit.runs.reporting.report import write_report

    write_report(runs, output, rows=errors, recipe_name=recipe, overwrite=overwrite)
