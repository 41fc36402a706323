"""Command-line options, generated from their declarations in dataclasses."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.presets import PRESETS
from bertkit.config import Option, TrainConfig, bare_type, options_for, options_of
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe


def recipe_names(prefix: str) -> list[str]:
    """Shell completion of a recipe's name."""
    from bertkit.tasks.catalog import list_recipes

    return [name for name in (*(recipe.name for recipe in list_recipes()), *FAMILIES) if name.startswith(prefix)]


# Arguments and options of several commands.
RecipeName = Annotated[
    str | None,
    typer.Argument(
        help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, a task family, or glue (all nine GLUE tasks). "
        "Default: the family that fits --train or --data.",
        autocompletion=recipe_names,
        show_default=False,
    ),
]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Model folder, hub id, or minilm.", metavar="MODEL")]
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        help="YAML or JSON file with options, or a run's run.json, which also sets recipe and model; the command line "
        "overrides it.",
        metavar="FILE",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings for small data: stable (ten epochs, warm-up, bias correction) or few-sample (a re-initialized "
        "top layer, lower rates below it); --config and other options override them.",
        metavar="|".join(PRESETS),
    ),
]
FreshHead = Annotated[bool, typer.Option("--fresh-head", help="Replace the model's head with a new one.")]
RunOrModel = Annotated[
    str,
    typer.Argument(
        help="A run folder (for --seeds or --folds, the median run is used), or any Hugging Face BERT model with a head.",
        metavar="RUN|MODEL",
    ),
]
RecipeOfModel = Annotated[
    str | None, typer.Option(help="Recipe of a model that is not a bertkit run, or the run's own recipe file.")
]
Ensemble = Annotated[
    bool, typer.Option("--ensemble", help="Average the probabilities of all runs in a folder of --seeds or --folds.")
]
RecipeOfRuns = Annotated[str | None, typer.Option(help="The runs' own recipe file, if they need its code.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write the result to stdout as JSON.")]
NewRun = Annotated[Path | None, typer.Option("--output-dir", "-o", help="Run folder to write.", metavar="DIR")]
OutputDir = Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write.", metavar="DIR")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over; the old folder is kept as FOLDER.old-N.")]
Resume = Annotated[
    str,
    typer.Option(
        help="Whether to resume: auto, never, or the folder of a checkpoint to start from.", metavar="auto|never|PATH"
    ),
]

# Options of every command that reads plain text.
TextColumn = Annotated[str, typer.Option(help="Column with the text, in JSONL, tables, Parquet and hub data sets.")]
Include = Annotated[
    list[str] | None,
    typer.Option(help="Also read these files in folders, as plain text: a file ending or a pattern.", metavar="PATTERN"),
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of text files, such as latin-1, utf-16, gb18030; default: UTF-8.", metavar="NAME")
]
MaxFileSize = Annotated[float, typer.Option(help="Refuse compressed files that unpack to more than this.", min=0, metavar="GB")]
OnError = Annotated[
    str,
    typer.Option(
        help="What to do with lines and rows that cannot be read: fail, skip them, or replace broken characters.",
        metavar="fail|skip|replace",
    ),
]


def recipe_options(command: str) -> dict[str, tuple[str, Option]]:
    """The family and training options of a command by name, each with its panel in --help."""
    families: dict[str, list[str]] = {}
    declared: dict[str, Option] = {}
    for family, cls in FAMILIES.items():
        for name, option in options_for(command, cls).items():
            families.setdefault(name, []).append(family)
            declared.setdefault(name, option)
    data = options_of(Recipe)
    panels = {name: "Data" if name in data else f"{_TASK}({', '.join(families[name])})" for name in declared}
    panel = "Training" if command in ("finetune", "check") else "Computing"
    training = {name: (panel, option) for name, option in options_for(command, TrainConfig).items()}
    found = {name: (panels[name], option) for name, option in declared.items()} | training
    return {name: (each, _of_run(option) if command in _OF_RUNS else option) for name, (each, option) in found.items()}


def _of_run(option: Option) -> Option:
    """The option as the help of _OF_RUNS shows it."""
    return option if option.default in (None, ()) else replace(option, default=None, help=f"{option.help}; default: the run's")


def with_options(options: Mapping[str, tuple[str, Option]]) -> Callable:
    """Add options to a command, each with its panel in --help; those that were given are passed as `overrides`."""

    def decorate(command: Callable) -> Callable:
        @wraps(command)
        def wrapped(**arguments: Any) -> Any:
            values = {name: arguments.pop(name) for name in options}
            return command(**arguments, overrides={name: value for name, value in values.items() if value is not None})

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "overrides"]
        added = [_parameter(panel, option) for panel, option in options.values()]
        wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate


def _help_of(option: Option) -> str:
    details = [f"one of {', '.join(option.choices)}"] if option.choices else []
    if bare_type(option.type) is bool:
        off = f"off with {_negative(option.flag)}"
        details.append({True: f"default on; {off}", False: "default off", None: off}[option.default])
    elif option.default is not None and option.default != ():
        details.append(f"default {CHOSEN if option.chosen else option.default}")
    return option.help.replace("[", "\\[") + (f" \\[{'; '.join(details)}]" if details else "")


def _negative(flag: str) -> str:
    return f"--no-{flag[2:]}"


def _parameter(panel: str, option: Option) -> inspect.Parameter:
    kind = bare_type(option.type)
    parsed = {bool: bool, int: float, float: float}.get(kind, str)
    flag = f"{option.flag}/{_negative(option.flag)}" if kind is bool else option.flag
    metavar = None if kind is bool else (option.unit or _METAVARS.get(typing.get_origin(kind) or kind, "TEXT")).upper()
    declared = typer.Option(flag, help=_help_of(option), metavar=metavar, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[parsed | None, declared]
    )


def show_family(params: Sequence[Any], words: Sequence[str]) -> None:
    """In --help after the name of a recipe or a task family, show its options and not those of others. params: of click."""
    from bertkit.tasks.catalog import load_builtin

    recipe = load_builtin(words[0]) if words else None
    if recipe is None:
        return
    own = options_of(FAMILIES[recipe.family])
    for param in params:
        if (getattr(param, "rich_help_panel", None) or "").startswith(_TASK):
            param.hidden = param.name not in own
            param.rich_help_panel = f"{_TASK}({recipe.family})"
            param.help = _help_of(own[param.name]) if param.name in own else None


def without_negatives(params: Iterable[Any]) -> None:
    """In --help, leave out the column of `--no-...`, which takes the room of the names; each option's help says it instead."""
    for param in params:
        param.secondary_opts = []


_OF_RUNS = ("eval", "predict")  # commands that take from the run what is left out
_TASK = "Task "  # what the panel of a family's options begins with
CHOSEN = "chosen from the model and the data"
_METAVARS = {int: "NUMBER", float: "NUMBER", tuple: "A,B,..."}


def require_output_dir(folder: Path | None, example: str) -> Path:
    """The value of --output-dir. Raises UsageError without one. example: of a folder."""
    if folder is None:
        raise UsageError("--output-dir is missing", hint=f"give the folder to write, such as --output-dir {example}")
    return folder


def print_json(value: Any, *, wanted: bool) -> None:
    """If wanted, print a value as JSON on standard output of the main process."""
    from bertkit import progress

    if wanted and progress.is_main_process():
        typer.echo(json.dumps(value, ensure_ascii=False))
