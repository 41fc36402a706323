"""prepare=: what a recipe does to its own data before its rows are like any other's; and how often files are parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recipe_rows import load

from bertkit.config import options_of
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.tasks import FAMILIES, Folder, TextClassification, hub
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import from_json, to_json
from bertkit.tasks.sources import Hub
from bertkit.tasks.splits import read_splits

ROWS = "".join(f"text {at},{'ab'[at % 2]}\n" for at in range(40))


def drop_b(rows: Examples, split: str) -> Examples:
    """The rows of all labels but b, in the train split alone."""
    return rows.select([row for row, label in enumerate(rows.columns["label"]) if label != "b" or split != "train"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + ROWS, encoding="utf-8")
    return tmp_path


def test_the_recipes_own_data_is_prepared_split_by_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": str(at), "label": "ab"[at % 2]} for at in range(40)]
    columns = {"text": ["x"] * 40, "label": ["a", "b"] * 20}
    monkeypatch.setattr(Hub, "read", lambda hub, split: Examples(columns, "hub", range(40)))
    for source in ({"data": str(folder)}, {"dataset": lambda split: rows}, {"dataset": hub("x/y")}):
        recipe = TextClassification(prepare=drop_b, **source)
        assert [len(load(recipe, split)) for split in ("train", "validation")] == [20, 40]
        assert load(recipe).remarks.notes == ("the recipe drops 20 of 40 rows",)
        assert not load(recipe, "validation").remarks.notes


def test_a_file_of_ones_own_is_not_prepared(folder: Path) -> None:
    recipe = TextClassification(dataset=hub("x/y"), prepare=drop_b, train=str(folder / "train.csv"))
    assert recipe.resolved().prepare is None
    assert {*load(recipe).columns["label"]} == {"a", "b"}


def test_what_is_held_out_is_of_prepared_rows(folder: Path) -> None:
    recipe = TextClassification(data=str(folder), held_out="25%", label="label", prepare=drop_b, max_train_samples=7)
    rows, training = read_splits(recipe.resolved())
    assert training is not None
    assert len(rows["train"]) == 7 < len(training) == 20 - len(rows["validation"])
    assert {label for each in rows.values() for label in each.columns["label"]} == {"a"}


def test_broken_rows_are_given_as_none_to_prepare_alone(folder: Path) -> None:
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
    {body}
recipe = TextClassification(prepare=prepare)
"""


@pytest.mark.parametrize(
    ("body", "said", "place"),
    [
        ("return 1 / 0", "ZeroDivisionError", "mine.py:3"),
        ("return list(rows.columns)", "list", "train.csv"),
        ("raise DataError('not this', where='x:1')", "not this", "x:1"),
        ("return rows.select([])", "no rows", "train.csv"),
    ],
)
def test_a_prepare_that_fails_is_one_line(run_bertkit, tiny_model_dir, folder: Path, body: str, said: str, place: str) -> None:
    (folder / "mine.py").write_text(MINE.format(body=body), encoding="utf-8")
    ran = run_bertkit("finetune", "./mine.py", "--data", folder, "-m", tiny_model_dir, "-o", "run")
    (error,) = ran.err.splitlines()
    assert (ran.code, error.startswith("error: "), said in error, error.endswith(f"{place})")) == (3, True, True, True), error
    assert not (folder / "run").exists()


@pytest.mark.parametrize("field", ["ragged", "empty_texts", "no_label", "eval_those_there", "strip"])
def test_a_removed_fields_error_names_prepare(run_bertkit, tmp_path: Path, field: str) -> None:
    (tmp_path / "mine.py").write_text(
        f"from bertkit.tasks import *\nrecipe = TextClassification(\n    {field}=1,\n)\n", encoding="utf-8"
    )
    ran = run_bertkit("finetune", "./mine.py", "-m", "x", "-o", "run")
    error, hint = ran.err.splitlines()
    assert (ran.code, error.endswith("mine.py:2)")) == (2, True), error
    assert f"{field}=" in hint
    assert "prepare=" in hint


def test_prepare_of_a_run_is_that_of_bertkits_own_recipe_or_refused(folder: Path) -> None:
    def kept(recipe: Recipe, name: str) -> Recipe:
        return from_json(*json.loads(json.dumps([to_json(recipe, name=name), {}])), where="run.json")

    recipe = TextClassification(data=str(folder), prepare=drop_b)
    with pytest.raises(UsageError) as error:
        load(kept(recipe, "./mine.py"))
    assert "--recipe" in str(error.value.hint)
    assert len(load(kept(recipe, "ocnli"))) == 40, "ocnli's own leaves out what is labelled '-'"
    assert kept(TextClassification(data=str(folder)), "./mine.py").prepare is None


# --- each file once ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "files"),
    [
        ({"train": "train.csv", "validation": "10%", "max_train_samples": 20}, ["train.csv"]),
        ({"train": "train.csv", "validation": "train.csv"}, ["train.csv"]),
        ({"train": "train.csv", "validation": "1/4", "test": "test.csv"}, ["train.csv"]),
        ({"data": "."}, ["train.csv", "dev.csv"]),
        ({"data": ".", "held_out": "10%", "eval_splits": ("validation", "test")}, ["train.csv", "test.csv"]),
    ],
)
def test_each_file_is_parsed_once(folder: Path, monkeypatch, typed: dict[str, Any], files: list[str]) -> None:
    parsed = []
    read = TextClassification.read_file

    def counted(recipe: TextClassification, path: str | Path, **options: Any) -> Examples:
        parsed.append(Path(path).name)
        return read(recipe, path, **options)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(TextClassification, "read_file", counted)
    recipe = TextClassification(folder=Folder(files={"validation": "dev.csv"}), **typed).resolved()
    rows, _ = read_splits(recipe)
    assert parsed == files
    assert set(rows) == {"train", *recipe.eval_splits}
    assert len(rows["train"]) == typed.get("max_train_samples", len(rows["train"]))


def test_a_whole_run_parses_its_file_once(run_bertkit, tiny_model_dir: Path, folder: Path, monkeypatch) -> None:
    from bertkit.readers import formats

    parsed, choose = [], formats._choose

    def counted(content: Any, *more: Any) -> Any:
        parsed.append(Path(content.source).name)
        return choose(content, *more)

    monkeypatch.setattr(formats, "_choose", counted)
    data = ("--train", "train.csv", "--validation", "10%", "--max-train-samples", 20)
    how = ("-m", tiny_model_dir, "-o", "run", "--max-steps", 1, "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, *how)
    assert ran.code == 0, ran.err
    assert parsed == ["train.csv"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_option_of_a_recipe_is_none_until_it_is_resolved(family: type[Recipe]) -> None:
    assert {getattr(family(), name) for name in options_of(family)} == {None}
    resolved = family(train="a.csv").resolved()
    assert all(getattr(resolved, name) is not None for name, each in options_of(family).items() if each.default is not None)
    assert resolved.split_seed == 0
