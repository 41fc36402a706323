"""bertkit tune"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.command_arguments import read_arguments
from bertkit.cli.options import (
    FreshHead,
    Model,
    OptionsFile,
    Overwrite,
    Preset,
    recipe_names,
    recipe_options,
    require_output_dir,
    with_options,
)
from bertkit.errors import UsageError, flag_of

_SEEDS = 3
_REPLACED = ("learning_rate", "warmup_ratio", "max_steps", "num_epochs", "eval_steps", "logging_steps")  # by the range test


@with_options(recipe_options("finetune"))
def tune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, or a task family. Default: the family that "
            "fits --train or --data.",
            autocompletion=recipe_names,
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder for the trials; several processes may share it.", metavar="DIR"),
    ] = None,
    config: OptionsFile = None,
    preset: Preset = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="An option and its values, such as batch-size=16,32 or num-epochs=2..4, or a range to sample from, such as "
            "dropout=0..0.3; add :log for a logarithmic scale. Default: the BERT paper's grid, without options that are set.",
            metavar="NAME=VALUES",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of trials. Default: all points of a grid; 20 with a range of decimals.", metavar="N"
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time limit for the trials, such as 2h or 30m: a trial starts only if it should end in time. Training the "
            "winner again is not included."
        ),
    ] = None,
    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune/--no-prune",
            help="Stop trials whose evaluations are below the median of the others. Default: only with a range of decimals; "
            "--no-prune turns it off.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Rows that no trial sees, to judge the winner: a share of the training rows, or a split. "
            "Default: test with --test, else 10%.",
            metavar="SHARE|SPLIT",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help=f"Train the winner again with the seeds 1 to N. Default: {_SEEDS}.", metavar="N"),
    ] = None,
    keep_trials: Annotated[
        bool, typer.Option("--keep-trials", help="Keep the weights of all trials, not only of the best.")
    ] = False,
    find_learning_rate: Annotated[
        bool, typer.Option("--find-learning-rate", help="Only run a learning-rate range test, and write nothing.")
    ] = False,
    overwrite: Overwrite = False,
    fresh_head: FreshHead = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Search for the best fine-tuning settings, and train with them again, using several seeds.

    To share the trials among several processes, also on machines that share the folder, start the same command in each. If
    stopped, the same command resumes.

    [bold]bertkit tune mrpc --model bert-base-uncased --output-dir runs/tuned[/]

    [bold]bertkit tune text-classification --train my.csv --model bert-base-uncased --output-dir runs/tuned
    --search learning-rate=1e-5..1e-4:log --search batch-size=16,32 --trials 30 --budget 2h[/]
    """
    from bertkit.runs.tuning.search_space import read_space

    of_trials = {
        "--search": search,
        "--trials": trials,
        "--budget": budget,
        "--output-dir": output_dir,
        "--held-out": held_out,
        "--prune/--no-prune": prune,
        "--seeds": seeds,
        "--keep-trials": keep_trials or None,
        "--overwrite": overwrite or None,
        **{flag_of(name): overrides.get(name) for name in _REPLACED},
    }
    if find_learning_rate and (ignored := next((flag for flag, given in of_trials.items() if given is not None), None)):
        what = f"{ignored} has no effect with --find-learning-rate"
        raise UsageError(what, hint=f"leave out {ignored}; pass the range it suggests to --search in a separate command")
    arguments = read_arguments(recipe, model, config, preset, overrides, command=tune, fresh_head=fresh_head)
    request = arguments.load()
    if find_learning_rate:
        from bertkit.runs.tuning.rate_range import find_learning_rate as find

        find(request)
        return
    folder = require_output_dir(output_dir, "runs/tuned")
    space = read_space(search or [], request.recipe, overrides if search else arguments.options)
    seconds = math.inf if budget is None else _seconds(budget)
    from bertkit.runs.tuning.study import Search
    from bertkit.runs.tuning.study import tune as run

    how = Search(
        trials=trials,
        seeds=seeds or _SEEDS,
        held_out=held_out or ("test" if request.recipe.test else "10%"),
        seconds=seconds,
        prunes=prune,
        keep_trials=keep_trials,
    )
    run(request, space, folder, how, overwrite=overwrite)


def _seconds(budget: str) -> float:
    """A time such as 2h, 30m, 90s or 1h30m in seconds. Raises UsageError."""
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", budget.strip())
    try:
        parts = [float(part or 0) for part in match.groups()] if match and budget.strip() else []
    except ValueError:
        parts = []
    if not sum(parts):
        raise UsageError(f"--budget is {budget!r}; expected a time", hint="as in --budget 2h, 30m or 1h30m")
    return sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=True))
