"""Command-line options, generated from their declarations in dataclasses."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from bertkit.cli.presets import PRESETS
from bertkit.config import Option, PretrainConfig, TrainConfig, bare_type, options_for, options_of
from bertkit.errors import UsageError, not_a_choice
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import options_of_run


def recipe_names(prefix: str) -> list[str]:
    """Shell completion of a recipe's name."""
    from bertkit.tasks.catalog import list_recipes

    return [name for name in (*(recipe.name for recipe in list_recipes()), *FAMILIES) if name.startswith(prefix)]


# Arguments and options of several commands.
RecipeName = Annotated[
    str | None,
    typer.Argument(
        help="A recipe (`bertkit recipes` lists them), a file ./my_task.py, a task family, or glue (all its tasks). Default: "
        "the family that fits --train or --data.",
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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Move the old content of the output folder aside.")]
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


class FileOptions(NamedTuple):
    """options: values by name. run: the content of the file if it is a run.json."""

    options: dict[str, Any]
    run: dict[str, Any] | None


def read_options(path: Path | None, command: Callable, overrides: Mapping[str, Any]) -> FileOptions:
    """The options in a YAML or JSON file (--config), or in a run.json, without those that `overrides` exclude.

    Raises UsageError, also for the command's own parameters, which are not options of the recipe or training.
    """
    if path is None:
        return FileOptions({}, None)
    import yaml

    from bertkit.readers.content import nearest_files
    from bertkit.runs.run_file import is_run

    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else yaml.load(text, _strict_yaml())
        is_of_run = isinstance(values, dict) and is_run(values)
        if isinstance(values, dict) and not is_of_run:
            values = _once(values.items(), underscored=True)
        json.dumps(values, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except OSError as error:
        of_run = "for the options of a run, give its run.json" if isinstance(error, IsADirectoryError) else None
        hint = nearest_files(path) if isinstance(error, FileNotFoundError) else of_run
        raise UsageError(f"the options cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except UnicodeDecodeError:
        raise UsageError("the options are not UTF-8 text", where=str(path)) from None
    except UnicodeEncodeError:  # JSON and YAML can escape it, and no path or text can hold it
        raise UsageError("half of a surrogate pair in the options; expected whole characters", where=str(path)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = f"{path}:{line + 1}" if line is not None else str(path)
        raise UsageError(f"the options cannot be parsed: {getattr(error, 'problem', error)}", where=place) from None
    if not isinstance(values, dict):
        raise UsageError("the file has no options; expected lines like learning_rate: 3e-5", where=str(path))
    if is_of_run:
        return FileOptions(without_replaced(options_of_run(values, overrides), overrides), values)
    if own := next((name for name in values if name in inspect.signature(inspect.unwrap(command)).parameters), None):
        what = f"{own} cannot be set in an options file, only on the command line"
        raise UsageError(what, where=str(path), hint="an options file may set only task and training options")
    return FileOptions(without_replaced(values, overrides), None)


_YAML_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "timestamp": "a date"}


@cache
def _strict_yaml() -> type:
    """PyYAML's safe loader, but it raises YAMLError for a name that occurs twice, and for aliases (*name): a few lines of them
    can stand for gigabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise yaml.MarkedYAMLError(problem=f"the alias *{event.anchor} is not allowed", problem_mark=event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} occurs twice", problem_mark=key.start_mark)
                seen.add(str(key.value))
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    way = f": write {key.value!r} in quotes" if isinstance(key, yaml.ScalarNode) else ", not a list or mapping"
                    raise yaml.MarkedYAMLError(problem=f"option names must be text{way}", problem_mark=key.start_mark)
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, LookupError, AttributeError, ArithmeticError):  # of a value unlike its tag
                kind = node.tag.rpartition(":")[2]
                what = f"{node.value!r:.60} is not {_YAML_KINDS.get(kind, f'of the type {kind}')}"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from None

    return Loader


def _once(pairs: Iterable[tuple[str, Any]], *, underscored: bool = False) -> dict[str, Any]:
    """A JSON object, or options under their names with underscores. Raises ValueError for a name that occurs twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        own = name.replace("-", "_") if underscored else name
        if own in found:
            raise ValueError(f"{own} occurs twice" + (f", also as {own.replace('_', '-')}" if underscored else ""))
        found[own] = value
    return found


def preset_options(
    name: str | None, presets: Mapping[str, Mapping[str, Any]], saved: FileOptions, path: Path | None
) -> Mapping[str, Any]:
    """The options of a preset; none without a name. Raises UsageError for an unknown one, and for one beside a run.json."""
    if name is None:
        return {}
    if name not in presets:
        raise not_a_choice("--preset", name, [*presets])
    if saved.run is not None:
        what = f"--preset {name} has no effect: the run.json sets every option"
        raise UsageError(what, where=str(path), hint="leave out one of the two, or give the preset's options one by one")
    return presets[name]


def require_output_dir(folder: Path | None, example: str) -> Path:
    """The value of --output-dir. Raises UsageError without one. example: of a folder."""
    if folder is None:
        raise UsageError("--output-dir is missing", hint=f"give the folder to write, such as --output-dir {example}")
    return folder


def print_json(value: Any, *, wanted: bool) -> None:
    """If wanted, print a value as JSON on the standard output of the main process."""
    from bertkit import progress

    if wanted and not progress.console.quiet:
        typer.echo(json.dumps(value, ensure_ascii=False))


def without_replaced(options: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file or preset without those that an override replaces: they would conflict with it, or win over it."""
    owners = (TrainConfig, PretrainConfig, *FAMILIES.values())
    declared = [each for owner in owners for name, each in options_of(owner).items() if name in overrides]
    replaced = {other for each in declared for other in each.replaces}
    return {name: value for name, value in options.items() if name not in replaced}
