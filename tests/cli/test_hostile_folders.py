"""A folder that was downloaded executes nothing: not the recipe, the data or the metrics that its run.json names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertkit.tasks import catalog
from bertkit.tasks.saved import options_of_run

ROWS = [("good movie", "yes"), ("poor movie", "no"), ("great story", "yes"), ("bad plot", "no")] * 4
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """The file that hostile code writes, in whichever way it is executed."""
    return tmp_path / "executed"


@pytest.fixture
def hostile(tmp_path: Path, trap: Path, run_bertkit, tiny_model_dir: Path) -> Path:
    """A finished run, and code beside it that says so when it is executed: as a recipe and as a metric of evaluate's form."""
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS), encoding="utf-8")
    settings = ("--train", "a.csv", "--validation", "a.csv", "--max-steps", 1, "--max-length", 16, "--precision", "fp32")
    ran = run_bertkit("finetune", "text-classification", *settings, "--model", tiny_model_dir, "--output-dir", "run")
    assert ran.code == 0, ran.err
    code = f"open({str(trap)!r}, 'w').close()\n"
    recipe = "from bertkit.tasks import TextClassification\nrecipe = TextClassification()\n"
    (tmp_path / "run" / "evil.py").write_text(code + recipe, encoding="utf-8")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(code + "import evaluate\n", encoding="utf-8")
    return tmp_path / "run"


def change(folder: Path, *changes: Change) -> None:
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for each in changes:
        each(run["recipe"])
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")


def recipe_of_a_file(recipe: dict[str, Any]) -> None:
    recipe["name"] = str(Path("run/evil.py").resolve())


def recipe_of_an_entry_point(recipe: dict[str, Any]) -> None:
    recipe["name"] = "evil"


def data_of_the_recipe(recipe: dict[str, Any]) -> None:
    recipe_of_a_file(recipe)
    recipe |= {"dataset": {"recipe": {}}, "train": None, "validation": None}


def metrics_of_a_folder(recipe: dict[str, Any]) -> None:
    recipe |= {"metrics": ["evaluate:evil"], "metric": ["evaluate:evil"]}


def metrics_of_a_script(recipe: dict[str, Any]) -> None:
    script = str(Path("evil/evil.py").resolve())
    recipe |= {"metrics": [f"evaluate:{script}"], "metric": [f"evaluate:{script}"]}


def metrics_of_the_recipe(recipe: dict[str, Any]) -> None:
    recipe_of_a_file(recipe)
    recipe |= {"metrics": ["evil"]}


ATTACKS = [
    recipe_of_a_file,
    recipe_of_an_entry_point,
    data_of_the_recipe,
    metrics_of_a_folder,
    metrics_of_a_script,
    metrics_of_the_recipe,
]
COMMANDS = {
    "predict": ("predict", "run", "a.csv"),
    "predict a split": ("predict", "run", "--split", "validation"),
    "eval": ("eval", "run"),
    "compare": ("compare", "run", "run"),
    "check": ("check", "run"),
    "submission": ("submission", "run", "--output-dir", "out"),
    "finetune": ("finetune", "--config", "run/run.json", "--output-dir", "again", "--max-steps", 1),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_that_a_run_names_is_executed(
    hostile: Path, trap: Path, run_bertkit, attack: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Point:
        name, value, group, dist = "evil", "evil:recipe", catalog.ENTRY_POINTS, None

        def load(self) -> object:
            trap.touch()
            raise AssertionError("loaded")

    monkeypatch.setattr(catalog, "_entry_points", lambda: [Point()])
    change(hostile, attack)
    for name, command in COMMANDS.items():
        ran = run_bertkit(*command)
        assert not trap.exists(), (name, ran.err)
        assert ran.code in (0, 2, 3), (name, ran.err)  # it does its work without the code, or refuses in one line
        assert "Traceback" not in ran.err
        assert ran.code == 0 or "error: " in ran.err
        shutil.rmtree("again", ignore_errors=True)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_prediction_needs_the_models_folder_alone(hostile: Path, run_bertkit, attack: Change) -> None:
    before = run_bertkit("predict", "run", "a.csv")
    assert before.code == 0
    change(hostile, attack)
    assert run_bertkit("predict", "run", "a.csv")[:2] == before[:2]


def test_code_is_executed_where_it_is_typed(hostile: Path, trap: Path, run_bertkit) -> None:
    change(hostile, data_of_the_recipe)
    ran = run_bertkit("eval", "run")
    assert (ran.code, "--recipe" in ran.err) == (2, True)
    ran = run_bertkit("eval", "run", "--recipe", "run/evil.py", "--validation", "a.csv")
    assert (ran.code, trap.exists()) == (0, True), ran.err


def test_a_metric_of_a_run_gives_way_to_a_typed_one(hostile: Path, trap: Path, run_bertkit) -> None:
    change(hostile, metrics_of_a_folder)
    refused = run_bertkit("eval", "run")
    assert (refused.code, "--metric" in refused.err) == (2, True)
    assert run_bertkit("eval", "run", "--metric", "macro_f1").code == 0
    again = ("finetune", "--config", "run/run.json", "--output-dir", "again")
    assert run_bertkit(*again).code == 2
    assert run_bertkit(*again, "--metric", "accuracy").code == 0
    assert not trap.exists()


def test_a_folder_does_not_shadow_a_metric_of_the_library(hostile: Path, trap: Path, run_bertkit) -> None:
    """evaluate.load takes a folder or script of that name from where the command runs."""
    ran = run_bertkit("eval", "run", "--metric", "evaluate:evil")
    assert (ran.code, trap.exists()) == (2, False), ran.err


def test_options_of_a_run_hold_no_code() -> None:
    run = {"recipe": {"family": "text-classification", "metric": ["accuracy", "evaluate:x"]}, "training": {"seed": 3}}
    assert options_of_run(run, ["metric"])["seed"] == 3
    with pytest.raises(Exception, match="is code"):
        options_of_run(run)
