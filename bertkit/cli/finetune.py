"""bertkit finetune"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bertkit.cli.options import (
    FreshHead,
    Model,
    NewRun,
    OptionsFile,
    Overwrite,
    Preset,
    RecipeName,
    Resume,
    preset_options,
    read_options,
    recipe_options,
    require_output_dir,
    with_options,
)
from bertkit.cli.presets import PRESETS
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES

if TYPE_CHECKING:
    from bertkit.runs.request import Request


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

    `bertkit finetune mrpc --help` shows only the options for tasks like mrpc, and `bertkit recipes` lists the tasks.

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
    asked = ask(recipe, model, config, preset, overrides, command=finetune, fresh_head=fresh)
    recipe = asked.recipe
    folder = output_dir if dry_run else require_output_dir(output_dir, "runs/mine")
    if tasks is not None and recipe != glue.NAME:
        raise UsageError(f"--tasks is for the recipe {glue.NAME}, not for {recipe}")
    series = "--seeds" if seeds is not None else "--folds" if folds is not None else None
    if several := series or (glue.NAME if recipe == glue.NAME else None):
        single = {f"--resume {resume}": resume != "auto", "--dry-run": dry_run}
        single |= {"--seed": "seed" in overrides} if seeds is not None else {}
        if folds is not None:
            others = {"--seeds": seeds is not None, "--validation": "validation" in overrides, glue.NAME: recipe == glue.NAME}
            if other := next((other for other, is_given in others.items() if is_given), None):
                what = f"--folds holds out parts of one recipe's training rows; it cannot be combined with {other}"
                raise UsageError(what, hint="leave out one of the two")
        if flag := next((flag for flag, is_given in single.items() if is_given), None):
            raise UsageError(f"{several} trains several runs, but {flag} is for a single run", hint="leave out one of the two")
    if dry_run:
        from bertkit.runs.finetuning.finetune import try_finetuning

        try_finetuning(asked.load(), baselines=not no_baselines)
        return
    assert folder is not None
    run = _run(seeds, folds, resume)
    if recipe != glue.NAME:
        run(asked.load(), folder, overwrite=overwrite, baselines=not no_baselines)
        return
    glue.finetune_glue(
        [task.strip() for task in tasks.split(",")] if tasks else [],
        asked.options,
        run,
        folder,
        several=seeds is not None,
        model=asked.model,
        fresh_head=asked.fresh_head,
        overwrite=overwrite,
        baselines=not no_baselines,
    )


class Asked(NamedTuple):
    """What to train, from the command line and its files. sources: options of the preset, the file and the command line."""

    recipe: str
    model: str
    fresh_head: bool | None
    config: Path | None
    sources: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]

    @property
    def options(self) -> dict[str, Any]:
        """All options by name; those of the command line take precedence."""
        preset, saved, overrides = self.sources
        return {**preset, **saved, **overrides}

    def load(self) -> Request:
        """The recipe with the options applied, and the model. Raises UsageError for unknown options."""
        from bertkit.runs.request import Request, recorded_name
        from bertkit.tasks.catalog import load_recipe

        preset, saved, overrides = self.sources
        chosen = load_recipe(self.recipe).overridden(preset)
        try:
            chosen = chosen.overridden(saved)
        except UsageError as error:
            raise UsageError(error.what, where=error.where or str(self.config), hint=error.hint) from None
        return Request(chosen.overridden(overrides), recorded_name(self.recipe), self.model, self.fresh_head)


def ask(
    recipe: str | None,
    model: str | None,
    config: Path | None,
    preset: str | None,
    overrides: Mapping[str, Any],
    *,
    command: Callable,
    fresh_head: bool | None,
) -> Asked:
    """What a training command should train. command: its function. Raises UsageError for missing or contradictory options."""
    from bertkit.tasks.catalog import load_builtin

    saved = read_options(config, command, overrides)
    if saved.run is not None:
        if saved.run["recipe"].get("family") not in FAMILIES:
            hint = f"repeat it with bertkit pretrain CORPUS --config {config}, and --model or --config-name to start from"
            raise UsageError("this is a pre-training run, not a fine-tuning run", where=str(config), hint=hint)
        base = saved.run["model"]
        for part in ("recipe", "model"):
            if not isinstance(saved.run[part].get("name"), str):
                raise UsageError(f"the run.json lacks {part}.name", where=str(config), hint="restore the file")
        if model in (None, base["name"]):  # another model keeps its own head
            fresh_head = base.get("fresh_head") or fresh_head
        model = model or base["name"]
        if recipe is None and load_builtin(recipe := saved.run["recipe"]["name"]) is None:
            what = f"the run's recipe {recipe} is Python code; bertkit does not run code just because a file names it"
            hint = f"give the recipe too: bertkit {command.__name__} {recipe} --config {config}"
            raise UsageError(what, where=str(config), hint=hint)
    if recipe is None:
        recipe = _family_of({**saved.options, **overrides}, command.__name__)
    if recipe is None:
        own = "for your own data, add --train FILE"
        hint = f"for example: bertkit {command.__name__} mrpc ...; `bertkit recipes` lists them; {own}"
        raise UsageError("no recipe is given", hint=hint)
    if model is None:
        raise UsageError("--model is missing", hint="give a folder, a hub id, or minilm, such as --model bert-base-uncased")
    together = preset_options(preset, PRESETS, saved, config)
    return Asked(recipe, model, fresh_head, config, (together, saved.options, overrides))


def _family_of(options: Mapping[str, Any], command: str) -> str | None:
    """The task family that the data is for, reported in a note; None without data. Raises UsageError if in doubt."""
    from bertkit import progress
    from bertkit.tasks.family import guess_family

    flag, data = next(((f"--{name}", options[name]) for name in ("train", "data") if options.get(name)), ("", None))
    if data is None:
        return None
    guess = guess_family(data, options)
    if guess.family is None:
        hint = f"name it: bertkit {command} FAMILY {flag} {data}, where FAMILY is {', '.join(FAMILIES)}"
        raise UsageError(f"it is not clear which task this data is for: {guess.why}", where=str(data), hint=hint)
    progress.note(f"treating the data as {guess.family}, judging by {guess.why}")
    return guess.family


def _run(seeds: int | None, folds: int | None, resume: str) -> Callable[..., dict[str, Any]]:
    """The function that trains a recipe: once, or with several seeds or folds, which always resume."""
    count = seeds or folds
    if count is None:
        from bertkit.runs.finetuning.finetune import finetune

        return partial(finetune, resume=resume)
    from bertkit.runs.finetuning.series import finetune_series
    from bertkit.runs.series import FOLDS, SEEDS

    return partial(finetune_series, FOLDS if folds else SEEDS, count=count)
