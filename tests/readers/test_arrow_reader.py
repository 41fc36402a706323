"""Parquet and Arrow files: unchanged values, class names, and the errors for bad files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from file_contents import refused

from bertkit.readers.formats import read_file
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits

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
    assert (list(examples.lines), examples.where(3), examples.label_names) == (list(range(8)), f"{path}:3", {})
    assert type(examples.columns["score"][2]) is float


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
    recipe = load_recipe("mnli").overridden({"data": str(tmp_path)}).resolved()
    rows = recipe.standardize(read_splits(recipe, ["train"]).rows["train"], labelled=True)
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
@pytest.mark.parametrize("content", [b"", b"PAR1", b"text,label\na,b\n" * 20, b"ARROW1\0\0"])
def test_other_content_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert refused(read_file, tmp_path / name).where == str(tmp_path / name)


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=IDS)
def test_a_file_cut_short_and_one_without_rows(tmp_path: Path, write: Callable[[pa.Table, Path], None], name: str) -> None:
    path = tmp_path / name
    write(pa.table({"text": ["a" * 100] * 50}), path)
    path.write_bytes(path.read_bytes()[:-200])
    assert refused(read_file, path).where == str(path)
    write(pa.table({"text": pa.array([], pa.string())}), path)
    assert refused(read_file, path).where == str(path)


# --- training on them ------------------------------------------------------------------------------------------------------


def test_classes_of_parquet_train_as_names_in_text(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Value

    names = ["praise", "blame"]
    rows = {
        "train": (["good movie", "bad movie", "NA", "null", "great film"], [0, 1, 1, 0, 0]),
        "validation": (["good", "bad", "NA"], [0, 1, 1]),
    }
    for ending in ("parquet", "jsonl"):
        (tmp_path / ending).mkdir()
    for split, (texts, labels) in rows.items():
        table = classes(text=(texts, Value("string")), kind=(labels, ClassLabel(names=names)))
        write_parquet(table, tmp_path / "parquet" / f"{split}.parquet")
        lines = [json.dumps({"text": text, "kind": names[label]}) + "\n" for text, label in zip(texts, labels, strict=True)]
        (tmp_path / "jsonl" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    found = []
    for folder, more in (("parquet", ()), ("jsonl", ("--labels", "praise,blame"))):
        settings = ("--max-steps", 1, "--max-length", 16, "--device", "cpu", "--precision", "fp32", "--overwrite")
        data = ("--data", folder, "--label", "kind", *more)
        ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run", *settings)
        assert ran.code == 0, ran.err
        run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
        assert run["task"]["labels"] == names
        found.append(({split: data["sha256"] for split, data in run["data"].items()}, run["best"]["scores"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(("labels", "line"), [([0, -1, 1], 1), ([0, 7, 1], 1), ([[0, 1], [1]], 0)])
def test_a_class_that_is_none_is_named_by_its_row(run_bertkit, tiny_model_dir: Path, labels: list[Any], line: int) -> None:
    from datasets import ClassLabel, Sequence, Value

    kind = ClassLabel(names=["no", "yes"])
    declared = Sequence(kind) if isinstance(labels[0], list) else kind
    table = classes(text=(["a", "b", "c"][: len(labels)], Value("string")), label=([labels[0]] * len(labels), declared))
    field = table.schema.field("label")
    write_parquet(table.set_column(1, field, pa.array(labels, field.type)), Path("x.parquet"))
    data = ("--train", "x.parquet", "--validation", "x.parquet", "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run")
    errors = [said for said in ran.err.splitlines() if said.startswith("error:")]
    assert (ran.code, ran.out, len(errors)) == (3, "", 1)
    assert errors[0].endswith(f"x.parquet:{line})")
    assert not Path("run").exists()
