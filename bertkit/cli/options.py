"""Options of the command line, made from the one declaration that each has in a dataclass."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from bertkit.config import Option, TrainConfig, bare_type, options_of
from bertkit.errors import UsageError
from bertkit.runs.directory import is_run
from bertkit.tasks import FAMILIES
from bertkit.tasks.task import Task

# options of recipes that say how to train, and nothing of what is predicted
TRAINED_BY = {"class_weights", "label_smoothing"}


def recipe_options() -> dict[str, tuple[str, Option]]:
    """Every option of every family by name, with the panel that --help shows it in."""
    families: dict[str, list[str]] = {}
    declared: dict[str, Option] = {}
    for family, cls in FAMILIES.items():
        for name, option in options_of(cls).items():
            families.setdefault(name, []).append(family)
            declared.setdefault(name, option)
    data = options_of(Task)
    named = {
        name: ("Data" if name in data else f"Task ({', '.join(families[name])})", option) for name, option in declared.items()
    }
    return named | {name: ("Training", option) for name, option in options_of(TrainConfig).items()}


def with_options(names: Iterable[str] | None = None, *, known: dict[str, tuple[str, Option]] | None = None) -> Callable:
    """Give a command the options of recipes and training (`names`: only those), or others; what was typed arrives as `typed`.

    known: options with the panel that --help shows them in.
    """
    known = known or recipe_options()
    chosen = {name: known[name] for name in (names if names is not None else known)}

    def decorate(command: Callable) -> Callable:
        @wraps(command)
        def wrapped(**arguments: Any) -> Any:
            typed = {name: arguments.pop(name) for name in chosen}
            return command(**arguments, typed={name: value for name, value in typed.items() if value is not None})

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "typed"]
        added = [_parameter(panel, option) for panel, option in chosen.values()]
        wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate


def _parameter(panel: str, option: Option) -> inspect.Parameter:
    kind = bare_type(option.type)
    parsed = {bool: bool, int: float, float: float}.get(kind, str)
    details = [f"one of {', '.join(option.choices)}"] if option.choices else []
    if not isinstance(option.default, (type(None), bool)) and option.default != ():
        details.append(f"default {option.default}")
    help = option.help.replace("[", "\\[") + (f" \\[{'; '.join(details)}]" if details else "")
    flags = (option.flag, f"--no-{option.flag[2:]}") if kind is bool else (option.flag,)
    flag = "/".join(flags) if kind is bool else flags[0]
    metavar = None if kind is bool else (option.unit or _METAVARS.get(typing.get_origin(kind) or kind, "TEXT")).upper()
    declared = typer.Option(flag, help=help, metavar=metavar, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[parsed | None, declared]
    )


_METAVARS = {int: "NUMBER", float: "NUMBER", tuple: "A,B,..."}


# Where one is typed, what a file says of the others is left out: it would exclude what is typed, or come before it.
_RIVALS = {
    "num_epochs": ("max_steps", "hours", "phases"),
    "max_steps": ("hours",),
    "hours": ("max_steps",),
    "max_length": ("phases",),
    "data": ("train", "validation", "test"),
    "train": ("data",),
}


class FileOptions(NamedTuple):
    """options: values by name. run: run.json itself, where that is the file."""

    options: dict[str, Any]
    run: dict[str, Any] | None


def read_options(path: Path | None, command: Callable, typed: Mapping[str, Any]) -> FileOptions:
    """The options in a YAML or JSON file (--config): names and values, or a run.json, which has all of its run's; but for
    those that say otherwise what one that was typed says.

    Raises UsageError, also for a parameter of the command's own, which is no option of recipe or training.
    """
    if path is None:
        return FileOptions({}, None)
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"the options cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("the options are not UTF-8 text", where=str(path)) from None
    except (ValueError, yaml.YAMLError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = f"{path}:{line + 1}" if line is not None else str(path)
        raise UsageError(f"the options cannot be parsed: {getattr(error, 'problem', error)}", where=place) from None
    if not isinstance(values, dict):
        raise UsageError("the file holds no options; expected lines like learning_rate: 3e-5", where=str(path))
    if is_run(values):
        return FileOptions(_without_rivals(_options_of_run(values), typed), values)
    options = {str(name).replace("-", "_"): value for name, value in values.items()}
    if own := next((name for name in options if name in inspect.signature(inspect.unwrap(command)).parameters), None):
        what = f"{own} is said on the command line, and not in a file of options"
        raise UsageError(what, where=str(path), hint="a file holds options of the task and of training")
    return FileOptions(_without_rivals(options, typed), None)


def _without_rivals(options: dict[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    gone = {other for name in typed for other in _RIVALS.get(name, ())}
    return {name: value for name, value in options.items() if name not in gone}


def _options_of_run(values: dict[str, Any]) -> dict[str, Any]:
    """What run.json says of every option of its recipe and training; None, which is no value, is left out."""
    recipe, training = values["recipe"], values["training"]
    found = FAMILIES[recipe["family"]].asked_for(recipe) if recipe.get("family") in FAMILIES else {}
    found |= training
    return {name: value for name, value in found.items() if value is not None}


def recipe_names(begin: str) -> list[str]:
    """What a shell completes a recipe's name to."""
    from bertkit.tasks.recipe import list_recipes

    return [name for name in (*(recipe.name for recipe in list_recipes()), *FAMILIES) if name.startswith(begin)]
