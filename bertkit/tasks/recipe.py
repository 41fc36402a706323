"""Recipes: find them, load them, override their options, and keep them in run.json."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from bertkit.config import TrainConfig, convert, options_of
from bertkit.errors import UsageError, UserError, did_you_mean
from bertkit.metrics.classification import EVALUATE, METRICS, Metric, find_metric
from bertkit.tasks import FAMILIES
from bertkit.tasks.sources import Embedded, Folder, Hub, recipe_folder
from bertkit.tasks.task import Task

ENTRY_POINTS = "bertkit.recipes"  # the group under which other packages name theirs

Recipe = Task  # a recipe file holds an instance of a family, as `recipe`


@dataclass(frozen=True)
class Listed:
    """A recipe file as `bertkit recipes` shows it."""

    name: str
    description: str
    family: str
    path: Path | None  # None: of another package


def list_recipes() -> list[Listed]:
    """The built-in recipes in order of name, read from their text; none is executed."""
    listed = []
    for path in sorted(recipe_folder().glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        family = next((name for name, cls in FAMILIES.items() if cls.__name__ in called), "")
        description = (ast.get_docstring(tree) or "").partition("\n")[0]
        listed.append(Listed(path.stem, description, family, path))
    own = {each.name for each in listed} | set(FAMILIES)
    for point in _entry_points():
        package = point.dist.name if point.dist else "another package"
        if point.name in own:
            what = f"the package {package} calls a recipe {point.name!r}, as bertkit does one of its own"
            raise UsageError(what, hint=f"rename its entry point of the group {ENTRY_POINTS}, or uninstall it")
        listed.append(Listed(point.name, f"of the package {package}", "", None))
    return listed


def _entry_points() -> list[EntryPoint]:
    """Recipes that other packages bring, each the name of an object in one of their modules."""
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def load_recipe(name: str) -> Recipe:
    """A recipe by its name, by the path of its file, or a bare task family by its name. Raises UsageError."""
    if name in FAMILIES:
        return FAMILIES[name]()
    if name.endswith(".py"):
        return _execute(Path(name))
    known = {listed.name: listed.path for listed in list_recipes()}
    if name not in known:
        hint = f"{did_you_mean(name, [*known, *FAMILIES])}; a file of your own is ./{Path(name).name}.py"
        if Path(name).suffix:
            hint = f"a data file goes with the family of its task: bertkit finetune text-classification --train {name}"
        raise UsageError(f"no recipe {name!r}", hint=hint)
    path = known[name]
    return _execute(path) if path is not None else _load(next(point for point in _entry_points() if point.name == name))


def _load(point: EntryPoint) -> Recipe:
    where = f"{point.group}: {point.name} = {point.value}"
    try:
        recipe = point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"the recipe fails: {type(error).__name__}: {error}", where=where) from error
    if not isinstance(recipe, Task):
        raise UsageError(f"the entry point is {type(recipe).__name__}; expected a recipe", where=where)
    return recipe


def _execute(path: Path) -> Recipe:
    if not path.is_file():
        raise UsageError(
            "the recipe file does not exist", where=str(path), hint="`bertkit recipes --copy DIR` gives you one to begin with"
        )
    # A name that no import can take: a recipe is a file, and dataclasses in it look their module up in sys.modules.
    name = f"bertkit recipe {path.resolve()}"
    # Not by importlib: its cache would lie beside the file, and miss an edit within the same second.
    module = ModuleType(name, None)
    module.__file__ = os.path.abspath(path)
    sys.modules[name] = module
    try:
        exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), module.__dict__)
    except UserError as error:
        error.where = error.where or str(path)
        raise
    except (Exception, SystemExit) as error:
        line = next((f":{frame[1]}" for frame in _frames(error) if frame[0] == module.__file__), "")
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"the recipe fails: {type(error).__name__}: {reason}", where=f"{path}{line}") from error
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Task):
        families = ", ".join(cls.__name__ for cls in FAMILIES.values())
        raise UsageError(
            f"the file defines no `recipe`; expected one of {families}", where=str(path), hint="see recipes/_template.py"
        )
    return recipe


def _frames(error: BaseException) -> list[tuple[str, int]]:
    frames, traceback = [], error.__traceback__
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    while traceback:
        frames.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames[::-1]


# --- options -------------------------------------------------------------------------------------------------------


def override(recipe: Recipe, typed: Mapping[str, Any]) -> Recipe:
    """The recipe with the options that a user typed, in its own fields or in its training settings.

    Raises UsageError for a name that is no option, or that only another family has.
    """
    own, training = options_of(recipe), options_of(recipe.training)
    changes: dict[str, Any] = {}
    training_changes: dict[str, Any] = {}
    for name, value in typed.items():
        name = name.replace("-", "_")
        if name in own:
            changes[name] = convert(own[name], value)
        elif name in training:
            training_changes[name] = convert(training[name], value)
        else:
            flag = "--" + name.replace("_", "-")
            having = [family for family, cls in FAMILIES.items() if name in options_of(cls)]
            if having:
                raise UsageError(f"{flag} is an option of {', '.join(having)}; this recipe is {recipe.family}")
            raise UsageError(
                f"no option {flag}", hint=did_you_mean(flag, ["--" + n.replace("_", "-") for n in [*own, *training]])
            )
    if training_changes:
        changes["training"] = dataclasses.replace(recipe.training, **training_changes)
    return dataclasses.replace(recipe, **changes)


def published_scores(recipe: Recipe, model: str) -> dict[str, float]:
    """The recipe's reference scores for this model (a hub id or folder) as shares of 1, by "split/metric"."""
    published = recipe.reference.get(model.rstrip("/").rpartition("/")[2], {})
    return {name: percent / 100 for name, percent in published.items()}


# --- run.json ------------------------------------------------------------------------------------------------------


def to_json(recipe: Recipe, *, name: str) -> dict[str, Any]:
    """The recipe as run.json keeps it; a function in it (a metric, a source of data) is kept by name."""
    values = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.name != "training"}
    source = values.pop("dataset")
    if isinstance(source, (Hub, Embedded)):
        values["dataset"] = {type(source).__name__.lower(): dataclasses.asdict(source)}
    elif source is not None:
        values["dataset"] = {"recipe": {}}
    values["folder"] = dataclasses.asdict(recipe.folder)
    values["metrics"] = [metric.__name__ for metric in recipe.metrics]
    return {"name": name, "family": recipe.family, **values}


def from_json(values: Mapping[str, Any], training: Mapping[str, Any], *, where: str) -> Recipe:
    """The recipe that run.json keeps. Functions of its own are taken from its file, once they are called."""
    values = dict(values)
    name, family = values.pop("name"), FAMILIES[values.pop("family")]
    source = values.pop("dataset", None)
    if source:
        (kind, fields) = next(iter(source.items()))
        values["dataset"] = {"hub": Hub, "embedded": Embedded}[kind](**fields) if kind != "recipe" else _own_dataset(name)
    headers = {split: tuple(names) for split, names in values["folder"]["headers"].items()}
    values["folder"] = Folder(**values["folder"] | {"headers": headers})
    values["metrics"] = tuple(_metric(metric, name, where) for metric in values["metrics"])
    hints = typing.get_type_hints(family)
    values = {key: v for key, v in values.items() if key in hints}  # a run may be of an older or a newer bertkit
    values = {key: tuple(v) if isinstance(v, list) and "tuple" in str(hints[key]) else v for key, v in values.items()}
    return family(training=TrainConfig(**training), **values)


def _own_dataset(recipe_name: str) -> Callable[[str], Iterable[Mapping[str, Any]]]:
    def rows(split: str) -> Iterable[Mapping[str, Any]]:
        source = load_recipe(recipe_name).dataset
        if not callable(source):
            raise UsageError("the recipe no longer has a function that gives its data", where=recipe_name)
        return source(split)

    return rows


def _metric(metric: str, recipe_name: str, where: str) -> Metric:
    if metric in METRICS or metric.startswith(EVALUATE):
        return find_metric(metric)

    def score(predictions: Any, references: Any) -> float | None:
        for own in load_recipe(recipe_name).metrics:
            if own.__name__ == metric:
                return own(predictions, references)
        raise UsageError(f"the metric {metric} is no longer in the recipe {recipe_name}", where=where)

    score.__name__ = metric
    return score
