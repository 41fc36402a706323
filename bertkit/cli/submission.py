"""bertkit submission"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import with_options


@with_options(["data"])
def submission(
    runs: Annotated[
        list[str], typer.Argument(help="Runs of GLUE's tasks, or a folder of them: bertkit finetune glue makes one.")
    ],
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write.", metavar="DIR")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Move what is in the output folder aside.")] = False,
    typed: dict[str, Any] | None = None,
) -> None:
    """Predict GLUE's test sets and write the files of its leaderboard, and submission.zip.

    The data is each run's own, or with --data lies in GLUE's download. A run of mnli answers the diagnostic set (AX) too.
    Of a folder of seeds the best on the dev set is taken. A task without a run is filled with a constant, which is said.

    [bold]bertkit submission runs/glue --output-dir submission[/]

    [bold]bertkit submission runs/mrpc runs/rte --data glue --output-dir submission[/]
    """
    from bertkit.runs.submission import write_submission

    write_submission(runs, output_dir, data=(typed or {}).get("data"), overwrite=overwrite)
