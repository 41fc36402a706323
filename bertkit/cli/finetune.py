"""bertkit finetune"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import read_options, recipe_names, with_options
from bertkit.config import PRESETS
from bertkit.errors import UsageError, did_you_mean
from bertkit.tasks import FAMILIES


@with_options()
def finetune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, a task family, or glue: all of it.",
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
            help="YAML or JSON file with options, or the run.json of a run, which names recipe and model too; what is typed "
            "comes first.",
            metavar="FILE",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings for few rows: stable (more epochs, warm-up, bias correction) or few-sample (a fresh top layer, "
            "slower lower ones); what --config or you say comes first.",
            metavar="|".join(PRESETS),
        ),
    ] = None,
    resume: Annotated[str, typer.Option(help="auto, never, or a checkpoint's folder.", metavar="auto|never|PATH")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Move what is in the output folder aside.")] = False,
    fresh_head: Annotated[bool, typer.Option("--fresh-head", help="Put a new head on a model that has one.")] = False,
    ignore_mismatched_sizes: Annotated[bool, typer.Option("--ignore-mismatched-sizes", hidden=True)] = False,
    tasks: Annotated[
        str | None, typer.Option(help="With the recipe glue: these of its tasks alone, as in mrpc,rte.", metavar="A,B,...")
    ] = None,
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

    [bold]bertkit finetune rte --model bert-base-uncased --output-dir runs/rte --seeds 5 --preset stable[/]

    [bold]bertkit finetune glue --data glue --model bert-base-uncased --output-dir runs/glue[/]

    [bold]bertkit finetune text-classification --train my.csv --validation 10% --text question --label kind
    --model bert-base-uncased --output-dir runs/mine[/]

    [bold]bertkit finetune --config runs/mine/run.json --output-dir runs/again[/]
    """
    from bertkit.runs import glue
    from bertkit.tasks.recipe import load_recipe, override

    saved = read_options(config, finetune, typed or {})
    if saved.run is not None:
        if saved.run["recipe"].get("family") not in FAMILIES:
            raise UsageError("this is no run of a task, as finetune makes one", where=str(config))
        begun_from = saved.run["model"]
        if model in (None, begun_from["name"]):  # another model's head is its own
            fresh_head = fresh_head or begun_from.get("fresh_head", False)
        recipe, model = recipe or saved.run["recipe"]["name"], model or begun_from["name"]
    if recipe is None:
        raise UsageError("no recipe is named", hint="as in bertkit finetune mrpc ...; `bertkit recipes` lists them")
    if model is None:
        raise UsageError("--model is missing", hint="name a folder, a hub id, or minilm, as in --model bert-base-uncased")
    if output_dir is None and not dry_run:
        raise UsageError("--output-dir is missing", hint="name the folder to write, as in --output-dir runs/mine")
    if preset is not None and preset not in PRESETS:
        what = f"--preset is {preset!r}; expected {' or '.join(PRESETS)}"
        raise UsageError(what, hint=did_you_mean(preset, PRESETS))
    if preset is not None and saved.run is not None:
        what = f"--preset {preset} changes nothing: a run's file settles every option"
        raise UsageError(what, where=str(config), hint="leave out one of the two, or type the preset's options")
    if tasks is not None and recipe != glue.NAME:
        raise UsageError(f"--tasks is for the recipe {glue.NAME}; this is {recipe}")
    if several := "--seeds" if seeds is not None else glue.NAME if recipe == glue.NAME else None:
        given = {f"--resume {resume}": resume != "auto", "--dry-run": dry_run}
        given |= {"--seed": "seed" in (typed or {})} if seeds is not None else {}
        for flag, is_given in given.items():
            if is_given:
                raise UsageError(f"{several} trains several runs, and {flag} is for one", hint="leave out one of the two")
    how: dict[str, Any] = {
        "model": model,
        "output_dir": output_dir or Path(),
        "overwrite": overwrite,
        "fresh_head": fresh_head or (None if ignore_mismatched_sizes else False),
    }
    own = PRESETS[preset] if preset else {}
    if recipe == glue.NAME:
        options = own | saved.options | (typed or {})
        chosen_tasks = [task.strip() for task in tasks.split(",")] if tasks else []
        glue.finetune_glue(chosen_tasks, options, _run(seeds), several=seeds is not None, **how)
        return
    chosen = override(load_recipe(recipe), own)
    try:
        chosen = override(chosen, saved.options)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or str(config), hint=error.hint) from None
    chosen = override(chosen, typed or {})
    how["name"] = str(Path(recipe).resolve()) if recipe.endswith(".py") else recipe
    once = {} if seeds is not None else {"resume": resume, "dry_run": dry_run}
    _run(seeds)(chosen, **how, **once)


def _run(seeds: int | None) -> Callable[..., dict[str, Any]]:
    """What trains a recipe: once, or with several seeds."""
    if seeds is None:
        from bertkit.runs.finetune import finetune

        return finetune
    from bertkit.runs.seeds import finetune_seeds

    return partial(finetune_seeds, seeds=seeds)
