"""bertkit push"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    run: Annotated[Path, typer.Argument(help="A finished run folder.", metavar="RUN", show_default=False)],
    repo: Annotated[str, typer.Argument(help="Repository on the hub, as owner/name.", metavar="REPO", show_default=False)],
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public. Without it, an existing public repository is refused.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Commit message; default: the name of the run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the files and their sizes without contacting the hub.")
    ] = False,
) -> None:
    """Upload a run to the Hugging Face hub: the best model, its tokenizer, its card, and its settings without paths.

    [bold]bertkit push runs/mine me/mine --dry-run[/]

    [bold]bertkit push runs/mine me/mine[/]
    """
    from bertkit.runs.publishing import push as pushing

    pushing.push(run, repo, public=public, message=message, dry_run=dry_run)
