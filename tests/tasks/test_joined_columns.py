"""--text A,B: columns whose texts are joined, in training and in prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from file_contents import refused, write

from bertkit.errors import DataError
from bertkit.readers.columns import columns_named
from bertkit.readers.formats import read_file
from bertkit.tasks import TextClassification
from bertkit.tasks.recipe import unread_columns
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task

TABLE = '"title","body","a, b",said,kind\n' + "".join(f"t{n},good film {n},c{n},s{n},{n % 2}\n" for n in range(10))


def load(path: Path, **options: str) -> dict[str, list]:
    recipe = (
        TextClassification().overridden({"train": str(path), "validation": str(path), "label": "kind", **options}).resolved()
    )
    rows = read_splits(recipe).rows["train"]
    return Task.fit(recipe, rows).examples(rows, labelled=True).columns


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("title,body", "t0 good film 0"),
        ("body , title", "good film 0 t0"),
        ("a, b", "c0"),  # the name of one column
        ("title,a, b", "t0 c0"),
        ("a, b,title,body", "c0 t0 good film 0"),
        ("body", "good film 0"),
    ],
)
def test_columns_are_joined(tmp_path: Path, text: str, first: str) -> None:
    path = write(tmp_path / "a.csv", TABLE)
    assert load(path, text=text)["text"][0] == first
    assert load(path, text="said", text_pair=text)["text_pair"][0] == first


@pytest.mark.parametrize("texts", [{"text": "title,kind"}, {"text": "title", "text_pair": "body,kind"}])
def test_the_label_is_no_part_of_a_text(tmp_path: Path, texts: dict[str, str]) -> None:
    with pytest.raises(DataError, match="column 'kind' is named as a text and as the label"):
        load(write(tmp_path / "a.csv", TABLE), **texts)


def test_names_with_commas_come_first() -> None:
    assert columns_named("a,b", ["a", "b", "a,b"]) == ("a,b",)
    assert columns_named("a,b,c", ["a,b", "c"]) == ("a,b", "c")
    assert columns_named("a,b,c", ["a", "b"]) == columns_named("", []) == ()


def test_empty_parts_are_left_out(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": None, "kind": "p"}, {"a": " ", "b": "y", "kind": "q"}, {"b": 7, "kind": "p"}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert load(path, text="a,b")["text"] == ["x", "y", "7"]
    rows.append({"kind": "q"})
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert refused(load, path, text="a,b").where == f"{path}:4"


@pytest.mark.parametrize(("text", "word"), [("title,bodi", "did you mean body"), ("x,y", "--columns")])
def test_a_part_that_is_missing_is_named(tmp_path: Path, text: str, word: str) -> None:
    assert word in (refused(load, write(tmp_path / "a.csv", TABLE), text=text).hint or "")


def test_the_model_remembers_the_columns(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", TABLE)
    options = "--text title,body --label kind --validation 20% --max-steps 1 --device cpu --no-baselines".split()
    ran = run_bertkit("finetune", "text-classification", "--train", "a.csv", *options, "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["bertkit"]["text"] == "title,body"
    write(tmp_path / "new.csv", "body,title\na bad film,news\n")
    ran = run_bertkit("predict", "run", "new.csv")
    assert (ran.code, json.loads(ran.out)["text"]) == (0, "news a bad film"), ran.err
    ran = run_bertkit("eval", "run", "--device", "cpu")
    assert ran.code == 0, ran.err
    ran = run_bertkit("predict", "run", stdin=b"a good film\n")
    assert (ran.code, json.loads(ran.out)["text"]) == (0, "a good film"), ran.err


def test_columns_that_are_joined_are_read(tmp_path: Path) -> None:
    rows = read_file(write(tmp_path / "a.csv", TABLE))
    recipe = TextClassification(train="a.csv", text="title,body", label="kind")
    assert unread_columns(recipe, rows, labelled=False) == ["a, b", "said", "kind"]
    assert unread_columns(recipe, rows, labelled=True) == ["a, b", "said"]
