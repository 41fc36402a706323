"""The structure of the package: imports only go down, few layers and dependencies, no cycles, short and well-named files.

All of it is read from the source by ast, so imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A room is a folder or a module at the root; the package's own file, which imports the others lazily, stands in none.
MOST_FLOORS = 9
MOST_ARROWS = 101  # between rooms
MOST_AT_ROOT = 8  # modules beside the rooms
MOST_LINES = 420
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "factory", "base"}

Tree = dict[str, str]  # "bertkit/readers/csv.py" -> source


def read_tree(*folders: str) -> Tree:
    """The sources of all Python files in folders of the repository."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def module_name(path: str) -> str:
    """bertkit/readers/csv.py -> bertkit.readers.csv; a package's __init__.py is the package."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imports(path: str, source: str, modules: set[str]) -> Iterator[str]:
    """The dotted names that a file imports anywhere; `from package import module` gives the module where it is one."""
    package = module_name(path) if path.endswith("/__init__.py") else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(part for part in (above, node.module) if part)
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                yield name if name in modules else origin
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                target = node.args[0] if node.args else None
                begin = target.values[0] if isinstance(target, ast.JoinedStr) else None
                if isinstance(begin, ast.Constant) and begin.value.endswith("."):  # any module of a package, but itself
                    yield from (name for name in modules - {module_name(path)} if name.startswith(begin.value))
                else:
                    yield target.value if isinstance(target, ast.Constant) else "?"


def graph(tree: Tree) -> dict[str, set[str]]:
    """Which names each module of bertkit imports; its lazy exports are the one place where a computed import is right."""
    modules = {module_name(path) for path in tree}
    edges = {module_name(path): set(imports(path, source, modules)) for path, source in tree.items()}
    if "bertkit" in edges:
        edges["bertkit"].discard("?")
    return edges


def room(module: str) -> str:
    """bertkit.readers.csv -> readers"""
    return module.split(".")[1] if "." in module else "__init__"


def folder_in_runs(module: str) -> str:
    """bertkit.runs.tuning.study -> tuning; bertkit.runs.target, and the package itself, lie under all folders."""
    parts = module.split(".")
    return parts[2] if len(parts) > 3 else "runs"


def arrows(edges: dict[str, set[str]], room: Callable[[str], str] = room) -> dict[str, set[str]]:
    """Which rooms each room imports."""
    rooms: dict[str, set[str]] = {room(module): set() for module in edges}
    for module, imported in edges.items():
        rooms[room(module)] |= {room(name) for name in imported if name.split(".")[0] == "bertkit"} - {room(module)}
    return rooms


def floor_of(rooms: dict[str, set[str]]) -> dict[str, int]:
    """The floor on which each room stands, from 1: above all that it imports. The rooms must form no circle."""
    floors: dict[str, int] = {}

    def visit(name: str) -> int:
        if name not in floors:
            floors[name] = 1 + max(map(visit, rooms.get(name, ())), default=0)
        return floors[name]

    return {name: visit(name) for name in rooms}


def faults(tree: Tree) -> list[str]:
    """What in a tree of bertkit sources offends against the house's structure."""
    found = []
    edges = graph(tree)
    for module, imported in edges.items():
        for name in sorted(imported):
            if name.split(".")[0] == "transformers":
                found.append(f"{module} imports transformers: the model is our own")
            elif name == "?":
                found.append(f"{module} imports a module whose name it computes")
            elif name.split(".")[0] == "bertkit" and name not in edges:
                found.append(f"{module} imports {name}, which does not exist")
    rooms = arrows(edges)
    if cycle := find_cycle(edges):
        found.append(f"a circle of modules: {' -> '.join(cycle)}")
    if cycle := find_cycle(rooms):
        found.append(f"a circle of rooms: {' -> '.join(cycle)}")
    elif (floors := max(floor_of(rooms).values())) > MOST_FLOORS:
        found.append(f"{floors} floors; at most {MOST_FLOORS}")
    if (count := sum(map(len, rooms.values()))) > MOST_ARROWS:
        found.append(f"{count} arrows between rooms; at most {MOST_ARROWS}")
    at_root = sorted(path for path in tree if path.count("/") == 1 and not path.endswith(("__init__.py", "__main__.py")))
    if len(at_root) > MOST_AT_ROOT:
        found.append(f"{len(at_root)} modules at the root; at most {MOST_AT_ROOT}: {', '.join(at_root)}")
    return found


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring, or nothing."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done or module not in edges:
            return []
        for name in sorted(edges[module]):
            if ring := visit(name, [*path, module]):
                return ring
        done.add(module)
        return []

    return next((ring for module in sorted(edges) if (ring := visit(module, []))), [])


# --- the house as it stands --------------------------------------------------------------------------------------------


def test_imports_only_go_down() -> None:
    tree = read_tree("bertkit")
    assert len(tree) > 10
    assert {"bertkit/__init__.py", "bertkit/__main__.py", "bertkit/errors.py"} <= set(tree)
    assert faults(tree) == []


def test_folders_of_runs_form_no_circle() -> None:
    edges = {
        module: {name for name in imported if name.startswith("bertkit.runs.")}
        for module, imported in graph(read_tree("bertkit")).items()
        if module.startswith("bertkit.runs.")
    }
    folders = arrows(edges, folder_in_runs)
    assert len(folders) > 7
    assert folders["runs"] == set(), "what lies under all folders imports none of them"
    assert find_cycle(folders) == []


def test_recipes_import_tasks_only() -> None:
    tree = {path: source for path, source in read_tree("recipes").items() if path.count("/") == 1}  # data/ holds no recipe
    assert len(tree) >= 8, "the recipes were not found"
    assert "recipes/__init__.py" not in tree, "a recipe is a file, not an import"
    imported = {(path, name) for path, source in tree.items() for name in imports(path, source, {"bertkit.tasks"})}
    outside = {(path, name) for path, name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for _, name in outside} == {"bertkit.tasks"}, outside


def test_scripts_import_one_another_in_no_circle_and_only_down() -> None:
    floors = ("scripts", "scripts.bench", "scripts.results")

    def floor(module: str) -> int:
        return floors.index(module if module in floors else module.rpartition(".")[0])

    edges = {
        module: {name for name in imported if name.startswith("scripts.")}
        for module, imported in graph(read_tree("scripts")).items()
    }
    assert len(edges) > 40
    assert [name for imported in edges.values() for name in imported if name not in edges] == []
    assert find_cycle(edges) == []
    assert max(map(floor, edges)) == 2
    assert [(module, name) for module, imported in edges.items() for name in imported if floor(name) > floor(module)] == []


def test_files_are_short_and_named_after_what_they_hold() -> None:
    tree = read_tree("bertkit", "recipes", "scripts", "tests")
    assert len(tree) > 20
    # A test file mirrors its module and is as long as that needs.
    assert [path for path, source in tree.items() if source.count("\n") > MOST_LINES and path[:6] != "tests/"] == []
    assert [path for path in tree if FORBIDDEN_NAMES & set(re.split(r"[/_.]", path))] == []


# --- the test itself: what it must catch ---------------------------------------------------------------------------------


SOUND = {
    "bertkit/__init__.py": "import importlib\nimportlib.import_module(name)",
    "bertkit/errors.py": "import os",
    "bertkit/features.py": "from bertkit.errors import DataError",
    "bertkit/readers/__init__.py": "from bertkit import features\nfrom bertkit import __version__",
    "bertkit/readers/csv.py": "from bertkit.readers import Examples",
    "bertkit/training/loop.py": "import torch, bertkit.readers",
}


IMPORTLIB = "from importlib import import_module\nimport_module"


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("errors", "from bertkit import features", "a circle of rooms"),
        ("errors", "from . import features", "a circle of rooms"),
        ("errors", "def f():\n    import bertkit.training.loop", "a circle of rooms"),
        ("errors", "if TYPE_CHECKING:\n    from bertkit.training.loop import train", "a circle of rooms"),
        ("readers/csv", "from ..training.loop import train", "readers -> training -> readers"),
        ("readers/__init__", "from ..training.loop import train", "readers -> training -> readers"),
        ("readers/__init__", "from bertkit.readers import csv", "a circle of modules: bertkit.readers ->"),
        ("features", "from bertkit.features import x", "a circle of modules: bertkit.features -> bertkit.features"),
        ("features", f"{IMPORTLIB}('bertkit.training.loop')", "a circle of rooms"),
        ("features", f"{IMPORTLIB}(name)", "whose name it computes"),
        ("features", f"{IMPORTLIB}(f'{{name}}.loop')", "whose name it computes"),
        ("features", f"{IMPORTLIB}(f'bertkit.training.{{name}}')", "a circle of rooms"),
        ("features", "class A:\n    def f(self):\n        from transformers import BertModel", "imports transformers"),
        ("features", "import transformers.models.bert", "imports transformers"),
        ("features", "from bertkit.nowhere import x", "imports bertkit.nowhere, which does not exist"),
    ],
)
def test_a_fault_is_found(path: str, source: str, fault: str) -> None:
    assert faults(SOUND) == []
    found = faults({**SOUND, f"bertkit/{path}.py": source})
    assert any(fault in line for line in found), found


def test_floors_arrows_and_the_root_are_counted() -> None:
    tower = {f"bertkit/room{n}/a.py": f"import bertkit.room{n + 1}.a" for n in range(MOST_FLOORS)}
    assert faults({**tower, f"bertkit/room{MOST_FLOORS}/a.py": ""}) == [f"{MOST_FLOORS + 1} floors; at most {MOST_FLOORS}"]
    assert len(faults({f"bertkit/room{n}.py": "" for n in range(MOST_AT_ROOT + 1)})) == 1
    everything = "import " + ", ".join(f"bertkit.below{n}.a" for n in range(11))
    web = {f"bertkit/{level}{n}/a.py": source for n in range(11) for level, source in (("below", ""), ("above", everything))}
    assert faults(web) == [f"121 arrows between rooms; at most {MOST_ARROWS}"]
