"""The house's structure: imports only go down, no cycles, every module in its place, files short and well named.

All of it is read from the source by ast, so imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A package's modules stand on the package's floor. A new module fails until it has its place here.
FLOORS = {
    5: "__main__ cli",
    4: "finetuning seeds glue submission data_check compare pretraining inference masked_inference",
    3: "training tracking evaluation resampling score_report check_report recipe preview run_directory model_card",
    2: "tasks corpus checkpoint model_directory pretrained vocabulary batching",
    1: "model layerwise heads language_model crf attention dropout devices tokenizer truncation piece_cache optimization store"
    " readers",
    0: "__init__ errors config bert_config metrics answer_metrics progress",
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()}

MOST_LINES = 420
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "factory", "base"}
# What a recipe may import of bertkit; the standard library is free to it.
RECIPES_IMPORT = {"bertkit.tasks"}

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
                yield target.value if isinstance(target, ast.Constant) else "?"


def graph(tree: Tree) -> dict[str, set[str]]:
    """Which names each module of bertkit imports; its lazy exports are the one place where a computed import is right."""
    modules = {module_name(path) for path in tree}
    edges = {module_name(path): set(imports(path, source, modules)) for path, source in tree.items()}
    if "bertkit" in edges:
        edges["bertkit"].discard("?")
    return edges


def room(module: str) -> str:
    """The name in FLOORS under which a module of bertkit stands."""
    return module.split(".")[1] if "." in module else "__init__"


def faults(tree: Tree) -> list[str]:
    """What in a tree of bertkit sources offends against the floors."""
    found = []
    edges = graph(tree)
    for module, imported in edges.items():
        if room(module) not in FLOOR_OF:
            found.append(f"{module} stands on no floor: place it in FLOORS")
            continue
        for name in sorted(imported):
            if name.split(".")[0] == "transformers":
                found.append(f"{module} imports transformers: the model is our own")
            elif name == "?":
                found.append(f"{module} imports a module whose name it computes")
            elif name.split(".")[0] == "bertkit":
                if name not in edges:
                    found.append(f"{module} imports {name}, which does not exist")
                elif FLOOR_OF.get(room(name), -1) > FLOOR_OF[room(module)]:
                    found.append(f"{module} (floor {FLOOR_OF[room(module)]}) imports {name} (floor {FLOOR_OF[room(name)]})")
    cycle = find_cycle(edges)
    if cycle:
        found.append(f"a cycle: {' -> '.join(cycle)}")
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


def test_recipes_import_tasks_only() -> None:
    tree = {path: source for path, source in read_tree("recipes").items() if path.count("/") == 1}  # data/ holds no recipe
    assert len(tree) >= 8, "the recipes were not found"
    assert "recipes/__init__.py" not in tree, "a recipe is a file, not an import"
    allowed = RECIPES_IMPORT | sys.stdlib_module_names
    offending = [
        f"{path} imports {name}"
        for path, source in tree.items()
        for name in imports(path, source, RECIPES_IMPORT)
        if name not in allowed and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert offending == []


def test_files_are_short_and_named_after_what_they_hold() -> None:
    tree = read_tree("bertkit", "recipes", "scripts", "tests")
    assert len(tree) > 20
    # A test file mirrors its module and is as long as that needs.
    long = {path: lines for path, source in tree.items() if (lines := source.count("\n")) > MOST_LINES and path[:6] != "tests/"}
    assert long == {}
    vague = [
        path
        for path in tree
        if FORBIDDEN_NAMES & {part for name in Path(path).with_suffix("").parts for part in name.split("_")}
    ]
    assert vague == []


# --- the test itself: what it must catch ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("bertkit/errors.py", "from bertkit import store", "(floor 0) imports bertkit.store (floor 1)"),
        ("bertkit/errors.py", "from . import store", "(floor 0) imports bertkit.store (floor 1)"),
        ("bertkit/errors.py", "def f():\n    import bertkit.training", "(floor 0) imports bertkit.training (floor 3)"),
        ("bertkit/readers/csv.py", "from ..training import train", "(floor 1) imports bertkit.training (floor 3)"),
        ("bertkit/tasks/__init__.py", "from ..training import train", "(floor 2) imports bertkit.training (floor 3)"),
        (
            "bertkit/store.py",
            "import importlib\nimportlib.import_module('bertkit.training')",
            "(floor 1) imports bertkit.training",
        ),
        ("bertkit/store.py", "from importlib import import_module\nimport_module(name)", "whose name it computes"),
        ("bertkit/store.py", "if TYPE_CHECKING:\n    from bertkit.training import train", "imports bertkit.training (floor 3)"),
        ("bertkit/store.py", "class A:\n    def f(self):\n        from transformers import BertModel", "imports transformers"),
        ("bertkit/store.py", "import transformers.models.bert", "imports transformers"),
        ("bertkit/store.py", "from bertkit.nowhere import x", "imports bertkit.nowhere, which does not exist"),
        ("bertkit/novelty.py", "", "bertkit.novelty stands on no floor"),
        ("bertkit/novelty/deep.py", "", "bertkit.novelty.deep stands on no floor"),
        ("bertkit/store.py", "from bertkit import readers", "a cycle: bertkit.readers -> bertkit.store -> bertkit.readers"),
        ("bertkit/store.py", "from bertkit.store import x", "a cycle: bertkit.store -> bertkit.store"),
    ],
)
def test_a_fault_is_found(path: str, source: str, fault: str) -> None:
    sound = {
        "bertkit/__init__.py": "import importlib\nimportlib.import_module(name)",
        "bertkit/errors.py": "import os",
        "bertkit/store.py": "from bertkit.errors import DataError",
        "bertkit/readers/__init__.py": "from bertkit import store\nfrom bertkit import __version__",
        "bertkit/training.py": "import torch, bertkit.readers",
    }
    assert faults(sound) == []
    found = faults({**sound, path: source})
    assert any(fault in line for line in found), found
