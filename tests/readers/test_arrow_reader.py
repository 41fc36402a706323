"""Parquet and Arrow files: every value as it stands, the names of their classes, and what is wrong with one in a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from bertkit.errors import DataError
from bertkit.readers.formats import find_split_file, read_file
from bertkit.tasks.recipe import load_recipe, override

TEXTS = ["NA", "null", "", ' "quoted", it\'s ', "a\tb\nc", "N/A", "影片好", "007"]


def write_parquet(table: pa.Table, path: Path) -> None:
    pyarrow.parquet.write_table(table, path)


def write_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS = [
    (write_parquet, "rows.parquet"),
    (write_file, "rows.arrow"),
    (write_file, "rows.feather"),
    (write_stream, "rows.arrow"),
]
IDS = ["parquet", "file", "feather", "stream"]


def classes(**columns: tuple[list[Any], Any]) -> pa.Table:
    """A table as datasets saves it; columns: values, and their feature."""
    from datasets import Dataset, Features

    features = Features({name: feature for name, (_, feature) in columns.items()})
    return Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features=features).data.table


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=IDS)
def test_every_value_as_it_stands(tmp_path: Path, write: Callable[[pa.Table, Path], None], name: str) -> None:
    columns = {
        "text": TEXTS,
        "number": list(range(8)),
        "score": [0.5, None, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "maybe": [None, "None", "nan", *"abcde"],
        "list": [["a", "NA"], [], ["b"], *[["c"]] * 5],
        "yes": [True, False, None, *[True] * 5],
    }
    path = tmp_path / name
    write(pa.table(columns), path)
    examples = read_file(path)
    assert examples.columns == columns
    assert (examples.source, list(examples.lines), examples.label_names) == (str(path), list(range(8)), {})
    assert examples.where(3) == f"{path}:3"
    assert [type(value) for value in examples.columns["score"][:2]] == [float, type(None)]
    assert read_file(path) == examples


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=IDS)
def test_the_names_of_classes_are_kept(tmp_path: Path, write: Callable[[pa.Table, Path], None], name: str) -> None:
    from datasets import ClassLabel, Sequence, Value

    table = classes(
        text=(["a", "b", "c"], Value("string")),
        label=([1, 0, -1], ClassLabel(names=["no", "yes"])),
        tags=([[0, 1], [2], []], Sequence(ClassLabel(names=["O", "B-X", "I-X"]))),
    )
    write(table, tmp_path / name)
    examples = read_file(tmp_path / name)
    assert examples.label_names == {"label": ("no", "yes"), "tags": ("O", "B-X", "I-X")}
    assert examples.columns["label"] == [1, 0, -1]
    assert examples.columns["tags"] == [[0, 1], [2], []]


def test_the_names_of_classes_follow_their_column_to_another_name(tmp_path: Path) -> None:
    from datasets import ClassLabel, Value

    table = classes(
        premise=(["a", "b", "c"], Value("string")),
        hypothesis=(["d", "e", "f"], Value("string")),
        gold_label=([0, 1, 2], ClassLabel(names=["neutral", "entailment", "contradiction"])),
    )
    write_parquet(table, tmp_path / "train.parquet")
    rows = override(load_recipe("mnli"), {"data": str(tmp_path)}).load("train")
    assert rows.columns["label"] == ["neutral", "entailment", "contradiction"]


def test_a_categorical_column_is_its_values(tmp_path: Path) -> None:
    labels = pa.array(["pos", "neg", "pos"]).dictionary_encode()
    write_parquet(pa.table({"text": ["a", "b", "c"], "label": labels}), tmp_path / "rows.parquet")
    assert read_file(tmp_path / "rows.parquet").columns["label"] == ["pos", "neg", "pos"]


@pytest.mark.parametrize("name", ["A.PARQUET", "rows", "rows.data"])
def test_parquet_by_any_name(tmp_path: Path, name: str) -> None:
    write_parquet(pa.table({"text": TEXTS}), tmp_path / name)
    assert read_file(tmp_path / name).columns == {"text": TEXTS}


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"text,label\na,b\n" * 20, b"ARROW1\0\0"], ids=["empty", "short", "csv", "magic"]
)
def test_what_is_no_such_file_is_one_line(run_bertkit, tiny_model_dir: Path, tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_file(path)
    assert refused.value.what.startswith("the file cannot be read: ")
    assert "\n" not in refused.value.what
    assert refused.value.where == str(path)
    assert_one_line(run_bertkit, tiny_model_dir, name, f"error: the file cannot be read: {refused.value.what[25:]} ({path})")


def assert_one_line(run_bertkit, model: Path, name: str, line: str) -> None:
    """That training on a file ends with this line, and writes nothing."""
    data = ("--train", name, "--validation", name, "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", model, "-o", "run")
    assert (ran.code, ran.out) == (3, "")
    assert [said for said in ran.err.splitlines() if said.startswith("error:")] == [line]
    assert "Traceback" not in ran.err
    assert not Path("run").exists()


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=IDS)
def test_a_file_cut_short(tmp_path: Path, write: Callable[[pa.Table, Path], None], name: str) -> None:
    path = tmp_path / name
    write(pa.table({"text": ["a" * 100] * 50}), path)
    assert len(read_file(path)) == 50
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="the file cannot be read: "):
        read_file(path)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_missing_files_and_folders(run_bertkit, tiny_model_dir: Path, tmp_path: Path, name: str) -> None:
    write_parquet(pa.table({"text": ["a"]}), tmp_path / f"my-{name}")
    assert_one_line(run_bertkit, tiny_model_dir, name, f"error: no such file ({tmp_path / name})")
    with pytest.raises(DataError) as refused:
        read_file(tmp_path / name)
    assert f"my-{name}" in (refused.value.hint or "")
    (tmp_path / name).mkdir()
    assert_one_line(run_bertkit, tiny_model_dir, name, f"error: this is a folder; expected a file ({tmp_path / name})")


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=IDS)
def test_no_rows(tmp_path: Path, write: Callable[[pa.Table, Path], None], name: str) -> None:
    write(pa.table({"text": pa.array([], pa.string())}), tmp_path / name)
    with pytest.raises(DataError, match="holds no rows"):
        read_file(tmp_path / name)


def test_the_file_of_a_split(tmp_path: Path) -> None:
    for name in ("train.parquet", "dev.arrow", "other.parquet"):
        write_parquet(pa.table({"text": ["a"]}), tmp_path / name)
    assert find_split_file(tmp_path, "train") == tmp_path / "train.parquet"
    assert find_split_file(tmp_path, "validation") == tmp_path / "dev.arrow"
    assert find_split_file(tmp_path, "test") is None
    write_parquet(pa.table({"text": ["a"]}), tmp_path / "val.parquet")
    with pytest.raises(DataError, match=r"the split validation could be dev\.arrow or val\.parquet"):
        find_split_file(tmp_path, "validation")


# --- training on them ------------------------------------------------------------------------------------------------------


def trained(run_bertkit, model: Path, recipe: str, *options: Any) -> dict[str, Any]:
    settings = ("--max-steps", 1, "--max-length", 16, "--device", "cpu", "--precision", "fp32")
    ran = run_bertkit("finetune", recipe, *options, "-m", model, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    return json.loads(Path("run/run.json").read_text(encoding="utf-8"))


def reviews() -> dict[str, pa.Table]:
    """Five rows to train on and three to evaluate on, their classes declared, and not by the alphabet."""
    from datasets import ClassLabel, Value

    kind = ClassLabel(names=["praise", "blame"])
    train = (["good movie", "bad movie", "NA", "null", "great film"], [0, 1, 1, 0, 0])
    validation = (["good", "bad", "NA"], [0, 1, 1])
    return {
        split: classes(text=(texts, Value("string")), kind=(labels, kind))
        for split, (texts, labels) in {"train": train, "validation": validation}.items()
    }


def as_predicted(run_bertkit) -> list[dict[str, Any]]:
    """What eval writes of each row of the evaluation data."""
    ran = run_bertkit("eval", "run", "--output", "out")
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in Path("out/predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_text_classification_from_parquet_and_arrow(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    tables = reviews()
    write_parquet(tables["train"], tmp_path / "x.parquet")
    write_stream(tables["validation"], tmp_path / "y.arrow")
    files = ("--train", "x.parquet", "--validation", "y.arrow", "--label", "kind")
    run = trained(run_bertkit, tiny_model_dir, "text-classification", *files)
    assert {split: (data["rows"], data["source"]) for split, data in run["data"].items()} == {
        "train": (5, str(tmp_path / "x.parquet")),
        "validation": (3, str(tmp_path / "y.arrow")),
    }
    assert run["recipe"]["labels"] == ["praise", "blame"], "not in the order that the file declares"
    rows = as_predicted(run_bertkit)
    assert [(row["text"], row["gold"]) for row in rows] == [("good", "praise"), ("bad", "blame"), ("NA", "blame")]
    right = sum(row["label"] == row["gold"] for row in rows)
    assert run["best"]["scores"]["validation/accuracy"] == pytest.approx(right / 3)
    ran = run_bertkit("predict", "run", "x.parquet")
    assert ran.code == 0, ran.err
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == tables["train"]["text"].to_pylist()


def test_it_is_the_run_on_the_same_rows_as_text(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    tables = reviews()
    names = ["praise", "blame"]
    for split, table in tables.items():
        write_parquet(table, tmp_path / f"{split}.parquet")
        rows = [{"text": row["text"], "kind": names[row["kind"]]} for row in table.to_pylist()]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = []
    for ending in ("parquet", "jsonl"):
        files = ("--train", f"train.{ending}", "--validation", f"validation.{ending}", "--label", "kind")
        run = trained(run_bertkit, tiny_model_dir, "text-classification", *files, "--labels", "praise,blame", "--overwrite")
        found.append(({split: data["sha256"] for split, data in run["data"].items()}, run["best"]["scores"]))
    assert found[0] == found[1]


def test_a_folder_of_parquet_files(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split, table in reviews().items():
        write_parquet(table, tmp_path / "data" / f"{split}.parquet")
    run = trained(run_bertkit, tiny_model_dir, "text-classification", "--data", "data", "--label", "kind")
    assert {split: (data["rows"], data["source"]) for split, data in run["data"].items()} == {
        "train": (5, str(tmp_path / "data" / "train.parquet")),
        "validation": (3, str(tmp_path / "data" / "validation.parquet")),
    }
    assert [row["gold"] for row in as_predicted(run_bertkit)] == ["praise", "blame", "blame"]


def test_a_label_that_is_none_is_named_by_its_row(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Value

    labels = ([0, -1, 1], ClassLabel(names=["no", "yes"]))
    write_parquet(classes(text=(["a", "b", "c"], Value("string")), label=labels), tmp_path / "x.parquet")
    line = f"error: 1 of 3 rows have no label in column 'label'; the first is here ({tmp_path}/x.parquet:1)"
    assert_one_line(run_bertkit, tiny_model_dir, "x.parquet", line)


def test_a_class_that_the_file_does_not_declare(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Sequence, Value

    names = ClassLabel(names=["no", "yes"])
    table = classes(text=(["a", "b", "c"], Value("string")), label=([0, 1, 1], names))
    worse = table.set_column(1, table.schema.field("label"), pa.array([0, 7, 1], table.schema.field("label").type))
    write_parquet(worse, tmp_path / "x.parquet")
    line = f"error: class 7 is out of range; the data declares 2: no, yes ({tmp_path}/x.parquet:1)"
    assert_one_line(run_bertkit, tiny_model_dir, "x.parquet", line)
    several = classes(text=(["a", "b"], Value("string")), label=([[0, 1], [1]], Sequence(names)))
    write_parquet(several, tmp_path / "y.parquet")
    line = f"error: the label in column 'label' is [0, 1]; expected one label ({tmp_path}/y.parquet:0)"
    assert_one_line(run_bertkit, tiny_model_dir, "y.parquet", line)


def test_multiple_choice_with_a_list_of_choices(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = {
        "context": ["the movie was", "a book", "one story", "the plot"],
        "choices": [["good", "bad"], ["NA", "null", "new"], ["old", "close"], ["a", "the", "an", "open"]],
        "answer": [1, 2, 0, 3],
    }
    write_parquet(pa.table(rows), tmp_path / "x.parquet")
    write_file(pa.table(rows).slice(1, 2), tmp_path / "y.arrow")
    run = trained(run_bertkit, tiny_model_dir, "multiple-choice", "--train", "x.parquet", "--validation", "y.arrow")
    assert {split: data["rows"] for split, data in run["data"].items()} == {"train": 4, "validation": 2}
    assert (run["recipe"]["text"], run["recipe"]["choices"], run["recipe"]["label"]) == ("context", ["choices"], "answer")
    ran = run_bertkit("predict", "run", "x.parquet")
    assert ran.code == 0, ran.err
    said = [json.loads(line) for line in ran.out.splitlines()]
    assert [row["text"] for row in said] == rows["context"]
    assert [len(row["probabilities"]) for row in said] == [2, 3, 2, 4]
    right = [row["choice"] == answer for row, answer in zip(said[1:3], rows["answer"][1:3], strict=True)]
    assert run["best"]["scores"]["validation/accuracy"] == sum(right) / 2
