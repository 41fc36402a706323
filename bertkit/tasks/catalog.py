"""All recipes: those that ship with bertkit, those of other packages, and files; listed, and loaded by executing them."""

from __future__ import annotations

import ast
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from bertkit.errors import UsageError, UserError, did_you_mean
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.sources import recipe_folder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "bertkit.recipes"  # the group of entry points for recipes of other packages
REMOVED = ("ragged", "empty_texts", "no_label", "eval_those_there", "strip")  # fields of older recipes; prepare= replaces them


class Listed(NamedTuple):
    """A recipe as `bertkit recipes` lists it: one of bertkit with its file, or one of another package."""

    name: str
    description: str = ""
    family: str = ""
    path: Path | None = None
    package: str = ""


def list_recipes() -> list[Listed]:
    """The recipes of bertkit by name, parsed but not executed; then those of other packages."""
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
            what = f"the package {package} has a recipe {point.name!r}, a name that bertkit uses itself"
            raise UsageError(what, hint=f"rename its entry point of the group {ENTRY_POINTS}, or uninstall it")
        listed.append(Listed(point.name, package=package))
    return listed


def _entry_points() -> list[EntryPoint]:
    """The recipes of other packages, each the name of an object in a module."""
    import importlib.metadata  # takes 20 ms, and --help does not need it

    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def load_recipe(name: str) -> Recipe:
    """A recipe by its name or the path of its file, or an empty one by its task family. Raises UsageError."""
    if (builtin := load_builtin(name)) is not None:
        return builtin
    if name.endswith(".py"):
        return _execute(Path(name))
    known = [listed.name for listed in list_recipes()]
    if name not in known:
        path = Path(name)
        if path.name != name and not path.exists():
            raise UsageError("no such file, folder or recipe", where=name, hint="`bertkit recipes` lists the recipes")
        hint = f"{did_you_mean(name, [*known, *FAMILIES])} (your own file is ./{path.name}.py)"
        if path.suffix or path.exists():
            option = "--data" if path.is_dir() else "--train"
            hint = f"to train on your own data, name its task family: bertkit finetune text-classification {option} {name}"
        raise UsageError(f"no recipe {name!r}", hint=hint)
    return _load(next(point for point in _entry_points() if point.name == name))


def load_builtin(name: str) -> Recipe | None:
    """A recipe that ships with bertkit, or a task family, by its name; None for any other name, whose code is not executed."""
    if name in FAMILIES:
        return FAMILIES[name]()
    path = recipe_folder() / f"{name}.py"
    return _execute(path) if re.fullmatch(r"[a-z][a-z0-9_]*", name) and path.is_file() else None


def _load(point: EntryPoint) -> Recipe:
    where = f"{point.group}: {point.name} = {point.value}"
    try:
        recipe = point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot load the recipe: {type(error).__name__}: {error}", where=where) from error
    if not isinstance(recipe, Recipe):
        raise UsageError(f"the entry point is {type(recipe).__name__}; expected a recipe", where=where)
    return recipe


def _execute(path: Path) -> Recipe:
    if not path.is_file():
        raise UsageError(
            "the recipe file does not exist", where=str(path), hint="`bertkit recipes --copy DIR` gives you one to start from"
        )
    # Not with importlib, whose cache would appear beside the file and miss an edit within the same second. Dataclasses in the
    # file look their module up in sys.modules, so it is put there under a name that no import can use.
    module = ModuleType(f"bertkit recipe {path.resolve()}")
    file = module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), file, "exec", dont_inherit=True), module.__dict__)
    except UserError as error:
        error.where = error.where or str(path)
        raise
    except (Exception, SystemExit) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        line = next((frame.lineno for frame in traceback.extract_tb(error.__traceback__)[::-1] if frame.filename == file), line)
        reason = error.msg if isinstance(error, SyntaxError) else error
        removed = next((name for name in REMOVED if f"unexpected keyword argument '{name}'" in str(error)), None)
        hint = f"{removed}= was removed: do the same in a function and pass it as prepare=" if removed else None
        raise UsageError(
            f"cannot load the recipe: {type(error).__name__}: {reason}",
            where=f"{path}:{line}" if line else str(path),
            hint=hint,
        ) from error
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        families = ", ".join(cls.__name__ for cls in FAMILIES.values())
        raise UsageError(
            f"the file defines no `recipe`; expected one of {families}",
            where=str(path),
            hint="`bertkit recipes --copy DIR` copies a template",
        )
    return recipe
