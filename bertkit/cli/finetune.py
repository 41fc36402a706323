"""bertkit finetune"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import Overwrite, Resume, read_options, recipe_names, recipe_options, with_options
from bertkit.config import PRESETS
from bertkit.errors import UsageError, did_you_mean
from bertkit.tasks import FAMILIES


@with_options(recipe_options("finetune"))
def finetune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, a task family, or glue: all its tasks.",
            autocompletion=recipe_names,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model folder, hub id, or minilm.", metavar="MODEL")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Run folder to write.", metavar="DIR")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML or JSON file with options, or the run.json of a run, which also sets recipe and model; the command line "
            "wins.",
            metavar="FILE",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings for small data: stable (more epochs, warm-up, bias correction) or few-sample (a re-initialized top "
            "layer, lower rates below); --config and other options win.",
            metavar="|".join(PRESETS),
        ),
    ] = None,
    resume: Resume = "auto",
    overwrite: Overwrite = False,
    fresh_head: Annotated[bool, typer.Option("--fresh-head", help="Replace the model's head by a new one.")] = False,
    ignore_mismatched_sizes: Annotated[bool, typer.Option("--ignore-mismatched-sizes", hidden=True)] = False,
    tasks: Annotated[
        str | None, typer.Option(help="With the recipe glue: only these tasks, such as mrpc,rte.", metavar="A,B,...")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with each of the seeds 1 to N, and summarize the scores.", metavar="N"),
    ] = None,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Do not compare with what a model must beat, such as a linear probe.")
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Train N times, each with another of N parts of the rows held out, and summarize the scores.",
            metavar="N",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the data, build the model, time 3 steps; write nothing.")
    ] = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Fine-tune a model on a recipe; transformers opens the run folder.

    The same command resumes a stopped run. Several processes: [bold]accelerate launch -m bertkit finetune ...[/]

    [bold]bertkit finetune mrpc --model bert-base-uncased --output-dir runs/mrpc[/]

    [bold]bertkit finetune mrpc --data glue/MRPC --model ./bert --output-dir runs/mrpc --learning-rate 3e-5[/]

    [bold]bertkit finetune rte --model bert-base-uncased --output-dir runs/rte --seeds 5 --preset stable[/]

    [bold]bertkit finetune glue --data glue --model bert-base-uncased --output-dir runs/glue[/]

    [bold]bertkit finetune text-classification --train my.csv --validation 10% --text question --label kind
    --model bert-base-uncased --output-dir runs/mine[/]

    [bold]bertkit finetune --config runs/mine/run.json --output-dir runs/again[/]
    """
    from bertkit.runs import glue
    from bertkit.tasks.catalog import load_builtin, load_recipe

    saved = read_options(config, finetune, overrides)
    if saved.run is not None:
        if saved.run["recipe"].get("family") not in FAMILIES:
            raise UsageError("this is not a fine-tuning run", where=str(config))
        base = saved.run["model"]
        if model in (None, base["name"]):  # another model keeps its own head
            fresh_head = fresh_head or base.get("fresh_head", False)
        model = model or base["name"]
        if recipe is None and load_builtin(recipe := saved.run["recipe"]["name"]) is None:
            what = f"the run's recipe {recipe} is code, which a file cannot make bertkit execute"
            raise UsageError(what, where=str(config), hint=f"give the recipe too: bertkit finetune {recipe} --config {config}")
    if recipe is None:
        recipe = _family_of(saved.options | overrides)
    if recipe is None:
        raise UsageError("no recipe is given", hint="for example: bertkit finetune mrpc ...; `bertkit recipes` lists them")
    if model is None:
        raise UsageError("--model is missing", hint="give a folder, a hub id, or minilm, such as --model bert-base-uncased")
    if output_dir is None and not dry_run:
        raise UsageError("--output-dir is missing", hint="give the folder to write, such as --output-dir runs/mine")
    if preset is not None and preset not in PRESETS:
        what = f"--preset is {preset!r}; expected {' or '.join(PRESETS)}"
        raise UsageError(what, hint=did_you_mean(preset, PRESETS))
    if preset is not None and saved.run is not None:
        what = f"--preset {preset} has no effect: the run.json sets every option"
        raise UsageError(what, where=str(config), hint="leave out one of the two, or give the preset's options one by one")
    if tasks is not None and recipe != glue.NAME:
        raise UsageError(f"--tasks is for the recipe {glue.NAME}, not for {recipe}")
    series = "--seeds" if seeds is not None else "--folds" if folds is not None else None
    if several := series or (glue.NAME if recipe == glue.NAME else None):
        single = {f"--resume {resume}": resume != "auto", "--dry-run": dry_run}
        single |= {"--seed": "seed" in overrides} if seeds is not None else {}
        if folds is not None:
            others = {"--seeds": seeds is not None, "--validation": "validation" in overrides, glue.NAME: recipe == glue.NAME}
            if other := next((other for other, is_given in others.items() if is_given), None):
                what = f"--folds holds out parts of one recipe's training rows, which {other} does not"
                raise UsageError(what, hint="leave out one of the two")
        if flag := next((flag for flag, is_given in single.items() if is_given), None):
            raise UsageError(f"{several} trains several runs, and {flag} is for one", hint="leave out one of the two")
    arguments: dict[str, Any] = {
        "model": model,
        "output_dir": output_dir or Path(),
        "overwrite": overwrite,
        "fresh_head": fresh_head or (None if ignore_mismatched_sizes else False),
        "baselines": not no_baselines,
    }
    preset_options = PRESETS[preset] if preset else {}
    if recipe == glue.NAME:
        options = preset_options | saved.options | overrides
        chosen_tasks = [task.strip() for task in tasks.split(",")] if tasks else []
        glue.finetune_glue(chosen_tasks, options, _run(seeds, folds), several=seeds is not None, **arguments)
        return
    chosen = load_recipe(recipe).overridden(preset_options)
    try:
        chosen = chosen.overridden(saved.options)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or str(config), hint=error.hint) from None
    chosen = chosen.overridden(overrides)
    arguments["name"] = str(Path(recipe).resolve()) if recipe.endswith(".py") else recipe
    single_run = {} if series else {"resume": resume, "dry_run": dry_run}
    _run(seeds, folds)(chosen, **arguments, **single_run)


def _family_of(options: dict[str, Any]) -> str | None:
    """The task family that the data is for, which is said; None without data. Raises UsageError where there is doubt."""
    from bertkit import progress
    from bertkit.tasks.family import guess_family

    flag, data = next(((f"--{name}", options[name]) for name in ("train", "data") if options.get(name)), ("", None))
    if data is None:
        return None
    guess = guess_family(Path(data), options)
    if guess.family is None:
        hint = f"say it: bertkit finetune FAMILY {flag} {data}, where FAMILY is {', '.join(FAMILIES)}"
        raise UsageError(f"it is not clear which task this data is for: {guess.why}", where=str(data), hint=hint)
    progress.note(f"the data is taken for {guess.family}, by {guess.why}")
    return guess.family


def _run(seeds: int | None, folds: int | None) -> Callable[..., dict[str, Any]]:
    """The function that trains a recipe: once, or with several seeds or folds."""
    count = seeds or folds
    if count is None:
        from bertkit.runs.finetune import finetune

        return finetune
    from bertkit.runs.series import FOLDS, SEEDS, finetune_series

    return partial(finetune_series, FOLDS if folds else SEEDS, count=count)
