"""prepare=, which cleans a recipe's own data; and how often files are parsed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from recipe_rows import load

from bertkit.config import options_of
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.tasks import FAMILIES, Folder, TextClassification, hub
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import from_json, to_json
from bertkit.tasks.sources import Hub
from bertkit.tasks.splits import read_splits

ROWS = "".join(f"text {row},{'ab'[row % 2]}\n" for row in range(40))


def drop_b(rows: Examples, split: str) -> Examples:
    """The rows of all labels but b, in the train split alone."""
    return rows.select([row for row, label in enumerate(rows.columns["label"]) if label != "b" or split != "train"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + ROWS, encoding="utf-8")
    return tmp_path


def test_a_recipes_own_data_is_prepared_split_by_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": str(row), "label": "ab"[row % 2]} for row in range(40)]
    columns = {"text": ["x"] * 40, "label": ["a", "b"] * 20}
    monkeypatch.setattr(Hub, "read", lambda hub, split: Examples(columns, "hub", range(40)))
    for source in ({"data": str(folder)}, {"dataset": lambda split: rows}, {"dataset": hub("x/y")}):
        recipe = TextClassification(prepare=drop_b, **source)
        train, validation = (load(recipe, split) for split in ("train", "validation"))
        assert (len(train), len(train.remarks.notes), len(validation), validation.remarks.notes) == (20, 1, 40, ())


def test_a_users_file_is_not_prepared(folder: Path) -> None:
    recipe = TextClassification(dataset=hub("x/y"), prepare=drop_b, train=str(folder / "train.csv"))
    assert {*load(recipe).columns["label"]} == {"a", "b"}
    with (folder / "train.csv").open("a", encoding="utf-8") as file:
        file.write(",b\n")
    with pytest.raises(DataError) as error:  # nor may its texts be empty
        load(recipe)
    assert error.value.where == f"{folder}/train.csv:42"


def test_rows_are_held_out_after_they_are_prepared(folder: Path) -> None:
    recipe = TextClassification(data=str(folder), held_out="25%", label="label", prepare=drop_b, max_train_samples=7)
    rows, training = read_splits(recipe.resolved())
    assert training is not None
    assert len(rows["train"]) == 7 < len(training) == 20 - len(rows["validation"])
    assert {label for each in rows.values() for label in each.columns["label"]} == {"a"}


def test_broken_rows_reach_only_prepare_as_none(folder: Path) -> None:
    with (folder / "train.csv").open("a", encoding="utf-8") as file:
        file.write("a,b,c\n")
    with pytest.raises(DataError) as error:
        load(TextClassification(data=str(folder)))
    assert error.value.where == f"{folder / 'train.csv'}:42"

    def whole(rows: Examples, split: str) -> Examples:
        assert rows.columns["text"][40:] == rows.columns["label"][40:] == [None]
        return rows.select(range(40))

    assert len(load(TextClassification(data=str(folder), prepare=whole))) == 40


MINE = """from bertkit.tasks import DataError, TextClassification
def prepare(rows, split):
    {}
recipe = TextClassification(
    prepare=prepare,{}
)
"""


@pytest.mark.parametrize(
    ("body", "part", "place"),
    [
        ("return 1 / 0", "ZeroDivisionError", "{}/mine.py:3"),
        ("return list(rows.columns)", "list", "{}/train.csv"),
        ("raise DataError('not this', where='x:1')", "not this", "x:1"),
        ("return rows.select([])", "", "{}/train.csv"),
    ],
)
def test_a_prepare_that_fails(folder: Path, body: str, part: str, place: str) -> None:
    (folder / "mine.py").write_text(MINE.format(body, ""), encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_splits(load_recipe(str(folder / "mine.py")).overridden({"data": str(folder)}).resolved())
    assert (part in error.value.what, error.value.where) == (True, place.format(folder))


@pytest.mark.parametrize("field", ["ragged", "empty_texts", "no_label", "eval_those_there", "strip"])
def test_the_error_of_a_removed_field_names_prepare(folder: Path, field: str) -> None:
    (folder / "mine.py").write_text(MINE.format("pass", f"\n    {field}=1,"), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        load_recipe(str(folder / "mine.py"))
    assert (f"{field}=" in str(error.value.hint), "prepare=" in str(error.value.hint)) == (True, True)
    assert error.value.where == f"{folder}/mine.py:4"


def kept(recipe: Recipe, name: str) -> Recipe:
    """The recipe of a run, as another command reads it from run.json."""
    return from_json(*json.loads(json.dumps([to_json(recipe, name=name), asdict(recipe.training)])), where="run.json")


@pytest.mark.parametrize("trained_on", ["data", "train"])
def test_prepare_of_a_run_is_that_of_bertkits_own_recipe_or_refused(folder: Path, trained_on: str) -> None:
    data = {"data": str(folder), "train": str(folder / "train.csv")}
    recipe = TextClassification(prepare=drop_b, **{trained_on: data[trained_on]}).resolved()
    other = {"data": data["data"]}
    assert len(load(kept(recipe, "ocnli").overridden(other).with_other_data(other))) == 40, "ocnli's own drops labels '-'"
    with pytest.raises(UsageError) as error:
        load(kept(recipe, "./mine.py").overridden(other).with_other_data(other))
    assert "--recipe" in str(error.value.hint)
    other = {"train": data["train"]}
    assert {*load(kept(recipe, "./mine.py").overridden(other).with_other_data(other)).columns["label"]} == {"a", "b"}
    assert kept(TextClassification(data=str(folder)), "./mine.py").prepare is None


# --- each file once --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are parsed from now on."""
    from bertkit.readers import formats

    names: list[str] = []
    choose: Callable[..., Any] = formats._choose

    def counted(content: Any, *more: Any) -> Any:
        names.append(Path(content.source).name)
        return choose(content, *more)

    monkeypatch.setattr(formats, "_choose", counted)
    return names


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"train": "train.csv", "validation": "10%", "max_train_samples": 20}, ["train.csv"]),
        ({"train": "train.csv", "validation": "train.csv"}, ["train.csv"]),
        ({"train": "train.csv", "validation": "1/4", "test": "test.csv"}, ["train.csv"]),
        ({"data": "."}, ["train.csv", "dev.csv"]),
        ({"data": ".", "held_out": "10%", "eval_splits": ("validation", "test")}, ["train.csv", "test.csv"]),
    ],
)
def test_each_file_is_parsed_once(folder: Path, monkeypatch, parsed: list[str], options: dict[str, Any], files) -> None:
    monkeypatch.chdir(folder)
    recipe = TextClassification(folder=Folder(files={"validation": "dev.csv"}), **options).resolved()
    rows, _ = read_splits(recipe)
    assert parsed == files
    assert set(rows) == {"train", *recipe.eval_splits}
    assert len(rows["train"]) == options.get("max_train_samples", len(rows["train"]))


def test_a_run_parses_its_file_once(run_bertkit, tiny_model_dir: Path, folder: Path, parsed: list[str]) -> None:
    data = ("--train", "train.csv", "--validation", "10%", "--max-train-samples", 20)
    how = ("-m", tiny_model_dir, "-o", "run", "--max-steps", 1, "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, *how)
    assert (ran.code, parsed) == (0, ["train.csv"]), ran.err


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_options_are_none_until_a_recipe_is_resolved(family: type[Recipe]) -> None:
    assert {getattr(family(), name) for name in options_of(family)} == {None}
    resolved = family(train="a.csv").resolved()
    assert all(getattr(resolved, name) is not None for name, each in options_of(family).items() if each.default is not None)
    assert resolved.split_seed == 0
