"""bertkit submission"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bertkit.cli.options import OutputDir, Overwrite, recipe_options, with_options


@with_options({"data": recipe_options("eval")["data"]})
def submission(
    runs: Annotated[
        list[str], typer.Argument(help="Runs of GLUE tasks, or a folder of them as written by bertkit finetune glue.")
    ],
    output_dir: OutputDir,
    overwrite: Overwrite = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Predict GLUE's test sets, and write the files for the leaderboard and submission.zip.

    bertkit looks for the test sets next to each run's own data, or in the GLUE download in --data. An mnli run also predicts
    the diagnostic set (AX). With several seeds, the one with the best validation score is used. A task without a run gets a
    constant prediction and a warning.

    [bold]bertkit submission runs/glue --output-dir submission[/]

    [bold]bertkit submission runs/mrpc runs/rte --data glue --output-dir submission[/]
    """
    from bertkit.runs.glue.submission import write_submission

    write_submission(runs, output_dir, data=overrides.get("data"), overwrite=overwrite)
