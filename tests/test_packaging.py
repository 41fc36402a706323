"""What is shipped: the wheel, the sdist, the editable install, and the public names."""

from __future__ import annotations

import email
import json
import os
import pkgutil
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import bertkit

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

RunPython = Callable[[str, str], list[str]]


def build(kind: str, source: Path, folder: Path) -> Path:
    """What pip builds of a source tree, by the same hook of the backend and without a network: wheel, sdist or editable."""
    hook = f"import sys, hatchling.build as b; print(b.build_{kind}(sys.argv[1]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", hook, str(folder)], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stderr.split()[-1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def site_of(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Per way of having bertkit, the folder that makes it importable: a wheel's and an editable install's site-packages, or
    the checkout itself."""
    editable = build("editable", ROOT, tmp_path_factory.mktemp("editable"))
    sites = {"checkout": ROOT}
    for name, archive in (("wheel", wheel), ("editable", editable)):
        sites[name] = tmp_path_factory.mktemp(f"site-{name}")
        zipfile.ZipFile(archive).extractall(sites[name])
    return sites


@pytest.fixture
def run_python(site_of: dict[str, Path], tmp_path: Path) -> RunPython:
    """A function that runs Python code in the folder "work", with bertkit had in this way: run_python("wheel", "...").

    However the tests' own environment has bertkit, this one comes first.
    """
    work, start = tmp_path / "work", tmp_path / "start"
    work.mkdir()
    start.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(start), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(way: str, code: str) -> list[str]:
        # A folder on PYTHONPATH has its .pth files unread, and an editable install consists of one.
        (start / "sitecustomize.py").write_text(
            f"import site, sys\nbefore = list(sys.path)\nsite.addsitedir({str(site_of[way])!r})\n"
            "sys.path[:] = [p for p in sys.path if p not in before] + before\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


# --- what is in the archives -----------------------------------------------------------------------------------------------


def files_under(folder: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_the_package_and_the_recipes_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    recipes = {f"bertkit/{name}" for name in files_under("recipes")}
    assert "bertkit/recipes/_template.py" in recipes
    assert any(name.startswith("bertkit/recipes/data/") for name in recipes)
    assert {name for name in names if ".dist-info/" not in name} == files_under("bertkit") | recipes


def test_wheel_describes_itself(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"bertkit-{bertkit.__version__}.dist-info"
    metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == bertkit.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert b"Apache License" in archive.read(f"{info}/licenses/LICENSE")
    assert "bertkit = bertkit.cli:run" in archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", ROOT, tmp_path)
    with tarfile.open(sdist) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        archive.extractall(tmp_path / "source", **safe)
    (source,) = (tmp_path / "source").iterdir()
    again = build("wheel", source, tmp_path / "again")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())
    names = ("Makefile", "constraints.txt", "LICENSE", "CHANGELOG.md", "docs/examples/pretrain.sbatch")
    for name in (*names, "scripts/install_torch.py", "tests/conftest.py"):
        assert (source / name).is_file(), name
    assert {path.name for path in (source / "docs").iterdir()} >= {path.name for path in (ROOT / "docs").glob("*.*")}


# --- requirements ----------------------------------------------------------------------------------------------------------


def test_every_requirement_is_pinned_within_its_range() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}
    assert not [version for version in pins.values() if "+" in version], "a local version exists for one build only"
    project = PYPROJECT["project"]
    asked = [*project["dependencies"], *(name for names in project["optional-dependencies"].values() for name in names)]
    requirements = [requirement for text in asked if (requirement := Requirement(text)).name != "bertkit"]
    assert len(requirements) > 15
    for requirement in requirements:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not pinned in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow the pin {pin}"


# --- the public names ------------------------------------------------------------------------------------------------------


def test_public_names_are_those_exported() -> None:
    assert len(bertkit.__all__) == len(set(bertkit.__all__))
    starred: dict[str, object] = {}
    exec("from bertkit import *", starred)
    assert set(starred) - {"__builtins__"} == set(bertkit.__all__)
    assert dir(bertkit) == sorted(bertkit.__all__)
    for name in bertkit.__all__:
        value = getattr(bertkit, name)
        if name != "__version__":
            assert value.__name__ == name
            assert value.__module__ == bertkit._MODULE_OF[name], f"{name} is exported from a module that does not define it"


def test_no_public_name_is_a_submodule() -> None:
    submodules = {module.name for module in pkgutil.iter_modules(bertkit.__path__)}
    assert {"errors", "config"} <= submodules
    assert submodules & set(bertkit.__all__) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        bertkit.nothing  # noqa: B018


def test_importing_bertkit_imports_no_library() -> None:
    code = "import sys, bertkit; bertkit.TrainConfig; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "datasets", "accelerate", "numpy", "sklearn", "typer", "rich", "tokenizers"}
    assert heavy & set(done.stdout.split()) == set()


# --- a recipe is a file, not an import -----------------------------------------------------------------------------------

# The dataclass is there for its own sake: it crashes in a module that is executed without being in sys.modules.
MY_TASK = '''
"""Mine: is it good?"""
from __future__ import annotations
from dataclasses import asdict, dataclass
from bertkit.tasks import TextClassification, TrainConfig, accuracy

@dataclass
class Review:
    text: str
    kind: str

def reviews(split):
    return [asdict(Review("good movie", "praise")), asdict(Review("bad story", "blame"))] * (8 if split == "train" else 2)

recipe = TextClassification(
    dataset=reviews, text="text", label="kind", labels=("blame", "praise"), metrics=(accuracy,),
    training=TrainConfig(max_steps=2, batch_size=4, max_length=16),
)
'''


FOUND = """
import bertkit
from bertkit.tasks.catalog import list_recipes, load_recipe
from bertkit.tasks.splits import read_splits
print(bertkit.__file__)
print(*(recipe.name for recipe in list_recipes()))
print(*(len(read_splits(load_recipe(name).resolved()).rows["train"]) for name in ("helpdesk", "./my_task.py")))
"""


@pytest.mark.parametrize("way", ["wheel", "editable", "checkout"])
def test_recipes_and_their_data_are_found(way: str, run_python: RunPython, site_of: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "work" / "my_task.py").write_text(MY_TASK, encoding="utf-8")
    place, listed, rows = run_python(way, FOUND)
    home = site_of["wheel"] if way == "wheel" else ROOT
    assert Path(place) == home / "bertkit" / "__init__.py"
    assert not (site_of["editable"] / "bertkit").exists(), "an editable install must hold no copies"
    assert (home / "bertkit" / "recipes").is_dir() == (way == "wheel") != (home / "recipes").is_dir()
    names = {Path(name).stem for name in files_under("recipes") if name.count("/") == 1} - {"_template"}
    assert len(names) >= 7
    assert set(listed.split()) == names
    helpdesk, own = map(int, rows.split())
    assert helpdesk > 100
    assert own == 16


def test_a_users_own_recipe_file_goes_from_training_to_predictions(
    run_python: RunPython, tiny_model_dir: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "my_task.py").write_text(MY_TASK, encoding="utf-8")
    (work / "new.txt").write_text("great film\npoor plot\nbad actor\n", encoding="utf-8")
    finetune = ["finetune", "./my_task.py", "--model", str(tiny_model_dir), "--output-dir", "run", "--device", "cpu"]
    predict = ["predict", "run", "new.txt", "--output", "new.jsonl"]  # which needs the recipe's file no more
    code = f"import os; from bertkit.cli import main; assert main({finetune}) == 0; os.remove('my_task.py'); main({predict})"
    run_python("wheel", code)
    rows = [json.loads(line) for line in (work / "new.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3
    assert {row["label"] for row in rows} <= {"blame", "praise"}


def test_what_is_cited_is_this_version() -> None:
    cited = dict(re.findall(r"^(\w+): (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    assert (cited["version"], cited["license"]) == (bertkit.__version__, PYPROJECT["project"]["license"])
