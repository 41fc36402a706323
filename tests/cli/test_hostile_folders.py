"""A folder that was downloaded executes nothing: not the recipe, the data or the metrics that its run.json names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained import train

from bertkit.errors import UsageError
from bertkit.tasks import catalog
from bertkit.tasks.saved import options_of_run

ROWS = [("good movie", "yes"), ("poor movie", "no"), ("great story", "yes"), ("bad plot", "no")] * 4


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run beside its data."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "a.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS), encoding="utf-8")
    return train(folder / "run", tiny_model_dir, folder / "a.csv")


@pytest.fixture
def trap(tmp_path: Path, run: Path) -> Path:
    """The file that hostile code writes, however it is executed: beside a run there is a recipe, and a metric of evaluate."""
    shutil.copytree(run, tmp_path / "run")
    shutil.copy(run.parent / "a.csv", tmp_path)
    code = f"open({str(tmp_path / 'executed')!r}, 'w').close()\n"
    recipe = "from bertkit.tasks import TextClassification\nrecipe = TextClassification()\n"
    (tmp_path / "run" / "evil.py").write_text(code + recipe, encoding="utf-8")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(code + "import evaluate\n", encoding="utf-8")
    return tmp_path / "executed"


def attack(trap: Path, name: str) -> None:
    """Change the recipe in run.json; FOLDER: where commands run."""
    file = trap.parent / "run" / "run.json"
    run = json.loads(file.read_text(encoding="utf-8"))
    run["recipe"] |= json.loads(json.dumps(ATTACKS[name]).replace("FOLDER", str(trap.parent)))
    file.write_text(json.dumps(run), encoding="utf-8")


def metrics(name: str) -> dict[str, Any]:
    return {"metrics": [name], "metric": [name]}


EVIL: dict[str, Any] = {"name": "FOLDER/run/evil.py"}
ATTACKS: dict[str, dict[str, Any]] = {
    "recipe of a file": EVIL,
    "recipe of an entry point": {"name": "evil"},
    "data of the recipe": {**EVIL, "dataset": {"recipe": {}}, "train": None, "validation": None},
    "metric of a folder": metrics("evaluate:evil"),
    "metric of a script": metrics("evaluate:FOLDER/evil/evil.py"),
    "metric of the recipe": {**EVIL, "metrics": ["evil"]},
}
COMMANDS = (
    "predict run a.csv",
    "predict run --split validation",
    "eval run",
    "compare run run --resamples 100",
    "check run",
    "submission run --output-dir out",
    "finetune --config run/run.json --output-dir again --max-steps 1",
)


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_that_a_run_names_is_executed(trap: Path, run_bertkit, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value, group, dist = "evil", "evil:recipe", catalog.ENTRY_POINTS, None

        def load(self) -> object:
            trap.touch()
            raise AssertionError("loaded")

    monkeypatch.setattr(catalog, "_entry_points", lambda: [Point()])
    predicted = run_bertkit("predict", "run", "a.csv").out
    attack(trap, name)
    for command in COMMANDS:
        ran = run_bertkit(*command.split())
        assert not trap.exists(), (command, ran.err)
        assert ran.code in (0, 2, 3), (command, ran.err)  # it does its work without the code, or refuses in one line
        assert "Traceback" not in ran.err
        assert ran.code == 0 or "error: " in ran.err
        assert command != COMMANDS[0] or ran[:2] == (0, predicted), "prediction needs the model's folder alone"


def test_code_is_executed_where_the_user_names_it(trap: Path, run_bertkit) -> None:
    attack(trap, "data of the recipe")
    ran = run_bertkit("eval", "run")
    assert (ran.code, "--recipe" in ran.err) == (2, True)
    ran = run_bertkit("eval", "run", "--recipe", "run/evil.py", "--validation", "a.csv")
    assert (ran.code, trap.exists()) == (0, True), ran.err


def test_a_metric_of_the_command_line_replaces_that_of_a_run(trap: Path, run_bertkit) -> None:
    attack(trap, "metric of a folder")
    for command, metric in (("eval run", "macro_f1"), ("finetune --config run/run.json --output-dir again", "accuracy")):
        ran = run_bertkit(*command.split())
        assert (ran.code, "--metric" in ran.err) == (2, True)
        assert run_bertkit(*command.split(), "--metric", metric).code == 0
    # evaluate.load takes a folder or script of that name from where the command runs
    ran = run_bertkit("eval", "run", "--metric", "evaluate:evil")
    assert (ran.code, trap.exists()) == (2, False), ran.err


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({}, "run.json lacks recipe.family"),
        ({"family": "x"}, "run.json has an unknown family: x"),
        ({"family": "text-classification"}, "run.json is damaged: "),
        ({"family": "text-classification", "name": "x", "metrics": 5, "folder": {"headers": {}}}, "run.json is damaged: "),
    ],
)
def test_a_run_json_of_another_program(trap: Path, run_bertkit, recipe: dict[str, str], says: str) -> None:
    file = trap.parent / "run" / "run.json"
    file.write_text(json.dumps({"status": "finished", "recipe": recipe, "training": {}, "model": {}, "data": {}}))
    (trap.parent / "run" / "manifest.json").unlink()
    for command in ("eval run", "check run", "report run"):
        ran = run_bertkit(*command.split())
        assert (ran.code, says in ran.err) == (4, True), ran.err


def test_options_of_a_run_hold_no_code() -> None:
    run = {"recipe": {"family": "text-classification", "metric": ["accuracy", "evaluate:x"]}, "training": {"seed": 3}}
    assert options_of_run(run, ["metric"])["seed"] == 3
    with pytest.raises(UsageError) as error:
        options_of_run(run)
    assert "evaluate:x" in error.value.what
