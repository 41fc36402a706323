"""bertkit finetune"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from bertkit.cli.command_arguments import read_arguments
from bertkit.cli.options import (
    FreshHead,
    Model,
    NewRun,
    OptionsFile,
    Overwrite,
    Preset,
    RecipeName,
    Resume,
    recipe_options,
    require_output_dir,
    with_options,
)
from bertkit.errors import UsageError


@with_options(recipe_options("finetune"))
def finetune(
    recipe: RecipeName = None,
    model: Model = None,
    output_dir: NewRun = None,
    config: OptionsFile = None,
    preset: Preset = None,
    resume: Resume = "auto",
    overwrite: Overwrite = False,
    fresh_head: FreshHead = False,
    ignore_mismatched_sizes: Annotated[bool, typer.Option("--ignore-mismatched-sizes", hidden=True)] = False,
    tasks: Annotated[
        str | None, typer.Option(help="With the recipe glue: only these tasks, such as mrpc,rte.", metavar="A,B,...")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train once with each of the seeds 1 to N, and summarize the scores.", metavar="N"),
    ] = None,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Do not compare with baselines such as a linear probe.")
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Split the rows into N parts, train N times with a different part held out, and summarize the scores.",
            metavar="N",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the data, build the model, time 3 steps; write nothing.")
    ] = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Fine-tune a model on a recipe or on your own files. The run folder is a Hugging Face model folder.

    `bertkit finetune mrpc --help` shows only the options for tasks like mrpc, and `bertkit recipes` lists the recipes.

    The same command resumes a stopped run. For several processes: [bold]accelerate launch -m bertkit finetune ...[/]

    [bold]bertkit finetune mrpc --model bert-base-uncased --output-dir runs/mrpc[/]

    [bold]bertkit finetune mrpc --data glue/MRPC --model ./bert --output-dir runs/mrpc --learning-rate 3e-5[/]

    [bold]bertkit finetune rte --model bert-base-uncased --output-dir runs/rte --seeds 5 --preset stable[/]

    [bold]bertkit finetune glue --data glue --model bert-base-uncased --output-dir runs/glue[/]

    [bold]bertkit finetune text-classification --train my.csv --validation 10% --text question --label kind
    --model bert-base-uncased --output-dir runs/mine[/]

    [bold]bertkit finetune --config runs/mine/run.json --output-dir runs/again[/]
    """
    from bertkit.runs.glue import benchmark as glue

    fresh = fresh_head or (None if ignore_mismatched_sizes else False)
    arguments = read_arguments(recipe, model, config, preset, overrides, command=finetune, fresh_head=fresh)
    recipe = arguments.recipe
    folder = output_dir if dry_run else require_output_dir(output_dir, "runs/mine")
    if tasks is not None and recipe != glue.NAME:
        raise UsageError(f"--tasks is for the recipe {glue.NAME}, not for {recipe}")
    saved = {} if arguments.of_run else arguments.sources[1]  # a run.json sets everything
    given = {name for name, value in {**saved, **overrides}.items() if value is not None}
    series = "--seeds" if seeds is not None else "--folds" if folds is not None else None
    if several := series or (glue.NAME if recipe == glue.NAME else None):
        single = {f"--resume {resume}": resume != "auto", "--dry-run": dry_run}
        single |= {"--seed": "seed" in given} if seeds is not None else {}
        if folds is not None:
            others = {"--seeds": seeds is not None, "--validation": "validation" in given, glue.NAME: recipe == glue.NAME}
            if other := next((other for other, is_given in others.items() if is_given), None):
                what = f"--folds holds out parts of one recipe's training rows; it cannot be combined with {other}"
                raise UsageError(what, hint="leave out one of the two")
        if flag := next((flag for flag, is_given in single.items() if is_given), None):
            raise UsageError(f"{several} trains several runs, but {flag} is for a single run", hint="leave out one of the two")
    if dry_run:
        from bertkit.runs.finetuning.finetune import try_finetuning

        try_finetuning(arguments.load(), baselines=not no_baselines)
        return
    assert folder is not None
    run = _run(seeds, folds, resume)
    if recipe != glue.NAME:
        run(arguments.load(), folder, overwrite=overwrite, baselines=not no_baselines)
        return
    glue.finetune_glue(
        [task.strip() for task in tasks.split(",")] if tasks else [],
        arguments.options,
        run,
        folder,
        several=seeds is not None,
        model=arguments.model,
        fresh_head=arguments.fresh_head,
        overwrite=overwrite,
        baselines=not no_baselines,
    )


def _run(seeds: int | None, folds: int | None, resume: str) -> Callable[..., dict[str, Any]]:
    """The function that trains a recipe: once, or with several seeds or folds, which always resume."""
    count = seeds or folds
    if count is None:
        from bertkit.runs.finetuning.finetune import finetune

        return partial(finetune, resume=resume)
    from bertkit.runs.finetuning.series import finetune_series
    from bertkit.runs.series import FOLDS, SEEDS

    return partial(finetune_series, FOLDS if folds else SEEDS, count=count)
