"""bertkit finetune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import read_options, with_options
from bertkit.errors import UsageError


@with_options()
def finetune(
    recipe: Annotated[
        str, typer.Argument(help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, or a task family.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Model folder, hub id, or minilm.", metavar="MODEL")],
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Run folder to write.", metavar="DIR")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML or JSON file with options; those typed come first.", metavar="FILE")
    ] = None,
    resume: Annotated[str, typer.Option(help="auto, never, or a checkpoint's folder.", metavar="auto|never|PATH")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Move what is in the output folder aside.")] = False,
    fresh_head: Annotated[bool, typer.Option("--fresh-head", help="Put a new head on a model that has one.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with each of the seeds 1 to N, and show what they come to.", metavar="N"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the data, build all, make and measure 3 steps; write nothing.")
    ] = False,
    typed: dict[str, Any] | None = None,
) -> None:
    """Fine-tune a model: a recipe and a model become a run folder that transformers opens.

    The same command goes on where it was stopped. Several processes: [bold]accelerate launch -m bertkit finetune ...[/]

    [bold]bertkit finetune mrpc --model bert-base-uncased --output-dir runs/mrpc[/]

    [bold]bertkit finetune mrpc --data glue/MRPC --model ./bert --output-dir runs/mrpc --learning-rate 3e-5[/]

    [bold]bertkit finetune rte --model bert-base-uncased --output-dir runs/rte --seeds 5[/]

    [bold]bertkit finetune text-classification --train my.csv --validation 10% --text question --label kind
    --model bert-base-uncased --output-dir runs/mine[/]
    """
    from bertkit.recipe import load_recipe, override

    if output_dir is None and not dry_run:
        raise UsageError("--output-dir is missing", hint="name the folder to write, as in --output-dir runs/mine")
    chosen = load_recipe(recipe)
    try:
        chosen = override(chosen, read_options(config))
    except UsageError as error:
        raise UsageError(error.what, where=error.where or str(config), hint=error.hint) from None
    chosen = override(chosen, typed or {})

    if seeds is not None:
        given = {"--seed": "seed" in (typed or {}), f"--resume {resume}": resume != "auto", "--dry-run": dry_run}
        for flag, is_given in given.items():
            if is_given:
                raise UsageError(f"--seeds trains several runs, and {flag} is for one", hint="leave out one of the two")
    name = str(Path(recipe).resolve()) if recipe.endswith(".py") else recipe

    how: dict[str, Any] = {
        "name": name,
        "model": model,
        "output_dir": output_dir or Path(),
        "overwrite": overwrite,
        "fresh_head": fresh_head,
    }
    if seeds is not None:
        from bertkit.seeds import finetune_seeds

        finetune_seeds(chosen, seeds=seeds, **how)
        return
    from bertkit import finetuning

    finetuning.finetune(chosen, resume=resume, dry_run=dry_run, **how)
