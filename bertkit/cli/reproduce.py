"""bertkit reproduce"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.reproduce.table import TABLES


def reproduce(
    ctx: typer.Context,
    table: Annotated[
        str,
        typer.Argument(help=f"{', '.join(TABLES[:-1])} or {TABLES[-1]}.", metavar="TABLE"),
    ],
    output_dir: Annotated[
        Path,
        typer.Option("--output-dir", "-o", help="Folder for the tables; several tables may share it.", metavar="DIR"),
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: a minute, to check that everything runs; laptop: hours on two cores, without the hub; paper: the "
            "paper's sizes and data, for eight GPUs.",
            metavar="smoke|laptop|paper",
        ),
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Fine-tune with the seeds 1 to N. Default: set by --scale.", metavar="N")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the data sets, for --scale laptop.", metavar="DIR", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, and the hours and disk to expect; run nothing.")
    ] = False,
) -> None:
    """Reproduce a table of a paper: pre-train, fine-tune, evaluate, and show the results next to the published ones.

    To resume, repeat the command. To divide the runs among several processes, start it several times; tables in one folder
    share their runs.

    [bold]bertkit reproduce ablation --output-dir runs/tables[/]

    [bold]bertkit reproduce ablation --scale laptop --data data --dry-run --output-dir runs/tables[/]
    """
    from bertkit.reproduce.reproduction import reproduce as run

    run(table, output_dir=output_dir, main=ctx.obj, scale=scale, seeds=seeds, data=data_dir, dry_run=dry_run)
