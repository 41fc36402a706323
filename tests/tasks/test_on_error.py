"""--on-error skip: rows that cannot be used are left out and named, in all families and formats; else the first is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from recipe_rows import fit, load

from bertkit.errors import DataError
from bertkit.tasks import MultipleChoice, QuestionAnswering, TextClassification, TokenClassification
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits


def as_jsonl(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def asked(answer: Any, context: Any = "Ann ran.", name: str = "1") -> dict[str, Any]:
    return {"id": name, "question": "Who?", "context": context, "answers": answer}


ANN = {"text": ["Ann"], "answer_start": [0]}
MARKED = [{"value": {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}}]
TASKS = json.dumps(
    [{"data": {"text": "Ann ran"}, "annotations": given} for given in ([{"result": MARKED}], [], [{"result": MARKED}])],
    indent=0,
)

# a file; the family that reads it; the lines that are left out, and how many rows are kept
BROKEN = [
    ("a.csv", "text,label\na,p\n,n\nb,n\nc\nd,\n\x07,p\ne,p\n", TextClassification, [3, 5, 6, 7], 3),
    ("a.csv", b"text,label\na,p\nb\xff,n\nc,n\n", TextClassification, [3], 2),
    ("a.csv", b'text,label\na,p\n"b\0\nc",n\nd,n\n', TextClassification, [3], 2),
    ("a.tsv", "text\tlabel\na\tp\nb\tc\tn\nd\tn\n", TextClassification, [3], 2),
    (
        "a.jsonl",
        as_jsonl({"text": "a", "label": 1}, '{"te', [1], {"text": None, "label": 0}, {"text": "b", "label": 0}),
        TextClassification,
        [2, 3, 4],
        2,
    ),
    (
        "a.jsonl",
        as_jsonl(*({"tokens": words, "tags": [tag]} for words, tag in ((["a"], "O"), (["a", "b"], "O"), (["b"], "X")))),
        TokenClassification,
        [2],
        2,
    ),
    ("a.json", TASKS, TokenClassification, [23], 2),
    (
        "a.jsonl",
        as_jsonl(asked(ANN), asked(ANN, "", "2"), asked(5, name="3"), asked(ANN, name="4")),
        QuestionAnswering,
        [2, 3],
        2,
    ),
    (
        "a.jsonl",
        as_jsonl(*({"text": "a", "choices": some, "label": 0} for some in (["x", "y"], ["x"], ["y", "z"]))),
        MultipleChoice,
        [2],
        2,
    ),
    (
        "a.jsonl",
        as_jsonl(
            '{"te', *({"text": "a", "choices": some, "label": "y"} for some in (["x", "y"], "x", None, ["y", True], ["y", "z"]))
        ),
        MultipleChoice,
        [1, 3, 4, 5],
        2,
    ),
    # The label alone is missing, in one row or in all that are looked at together.
    ("a.csv", "text,option1,option2,label\na,x,y,0\nb,x,y,\nc,x,y,1\nd,x,y,0\n", MultipleChoice, [3], 3),
    ("a.csv", "text,option1,option2,label\na,x,y,A\nb,x,y,B\nc,x,y,A\nd,x,y,\n", MultipleChoice, [5], 3),
    ("a.csv", "text,option1,option2,label\na,x,y,\nb,x,y,\nc,x,y,x\nd,x,y,y\n", MultipleChoice, [2, 3], 2),
    # Rows of a single word each, as in a table of words, but not all of them.
    (
        "a.csv",
        "tokens,tags\n" + "a,B-X\n" * 20 + "a b,B-X O\n" * 20 + "a b,O\n",
        TokenClassification,
        [42],
        40,
    ),
]


@pytest.mark.parametrize(("name", "content", "family", "lines", "kept"), BROKEN)
def test_what_cannot_be_used_is_left_out_and_named(
    tmp_path: Path, name: str, content: str | bytes, family: type[Recipe], lines: list[int], kept: int
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        load(family(train=str(path), validation=str(path)))
    assert str(error.value.where) in {f"{path}:{line}" for line in lines}
    found = load(fit(family(train=str(path), validation=str(path), on_error="skip")).recipe)
    assert len(found) == kept
    assert [int(re.findall(r":(\d+)\)$", fault)[0]) for fault in found.remarks.left_out] == lines
    *first, warning = found.remarks.summed().warnings  # of what is no text, what helps
    of_bytes = [line for line in first if not line.startswith("found ")]  # and with rows of other widths
    assert len(of_bytes) == (b"\xff" in path.read_bytes() or b"\0" in path.read_bytes())
    assert warning.startswith(f"skipped {len(lines)} row")
    assert all(f"({path}:{line})" in warning for line in lines)


def test_a_row_with_two_labels_is_left_out_where_one_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    labels = {"a": "p", "b": ["p", "n"], "c": ["n"], "d": {}, "e": "['p', 'n']"}
    path.write_text(as_jsonl(*({"text": text, "label": label} for text, label in labels.items())), encoding="utf-8")
    with pytest.raises(DataError, match="expected one label"):
        fit(TextClassification(train=str(path), validation=str(path)))
    task = fit(TextClassification(train=str(path), validation=str(path), on_error="skip"))
    found = load(task.recipe)
    assert (task.labels, len(found)) == (("n", "p"), 2)
    assert [int(re.findall(r":(\d+)\)$", fault)[0]) for fault in found.remarks.left_out] == [2, 4, 5]


def test_where_nothing_is_left_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in ("text,label\n,p\n,n\n", "text,label\na\nb\n"):
        path.write_text(content)
        with pytest.raises(DataError) as error:
            load(TextClassification(train=str(path), validation=str(path), on_error="skip"))
        assert "no row can be used" in error.value.what
        assert f"({path}:2)" in error.value.what
    (tmp_path / "a.jsonl").write_text('{"te\n')
    with pytest.raises(DataError):
        load(TextClassification(train=str(tmp_path / "a.jsonl"), validation=str(path), on_error="skip"))
    path.write_text("words,label\na,p\n")
    with pytest.raises(DataError, match="text"):  # a column that is missing is no fault of rows
        load(TextClassification(train=str(path), validation=str(path), text="text", on_error="skip"))


def test_rows_are_the_same_as_of_a_file_without_the_faults(tmp_path: Path) -> None:
    rows = [f"text {row},{'ab'[row % 2]}" for row in range(1000)]
    faulty = [f",{'ab'[row % 2]}" if row % 7 == 3 else text for row, text in enumerate(rows)]
    for name, lines in (("whole", [row for row in faulty if not row.startswith(",")]), ("faulty", faulty)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines, ""]))
    whole, mended = (
        load(TextClassification(train=str(tmp_path / f"{name}.csv"), validation=str(tmp_path / "whole.csv"), on_error="skip"))
        for name in ("whole", "faulty")
    )
    assert (mended.columns, len(mended.remarks.left_out)) == (whole.columns, 143)
    assert mended.lines == [row + 2 for row in range(1000) if row % 7 != 3]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 1, 3, 0, 2), (2, 3, 1, 4, 0)])
def test_a_row_is_refused_whatever_stands_beside_it(tmp_path: Path, order: tuple[int, ...]) -> None:
    some: list[dict[str, Any]] = [{"tokens": ["a"] * words, "tags": ["O"] * tags} for words, tags in ((1, 1), (0, 0), (2, 1))]
    some += [{"tokens": ["b", "c"], "tags": ["O", "X"]}, {"tokens": None, "tags": None}]
    path = tmp_path / "a.jsonl"
    path.write_text(as_jsonl(*(some[row] for row in order)))
    found = load(TokenClassification(train=str(path), validation=str(path), on_error="skip"))
    assert found.lines == [line for line, row in enumerate(order, start=1) if row in (0, 1, 3)]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.conll", b"Ann B-PER\nran\xff O\n\nBob B-PER\n", 2),
        ("a.csv", b"sentence,word,tag\n1,Ann,B-PER\n1,ran\xff,O\n2,Bob,B-PER\n2,ran,O\n", 3),
        ("a.csv", b"sentence,word,tag\n1,Ann,B-PER\n1,ran\n2,Bob,B-PER\n2,ran,O\n", 3),
    ],
)
def test_no_word_is_cut_out_of_a_sentence(tmp_path: Path, name: str, content: bytes, line: int) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load(TokenClassification(train=str(path), validation=str(path), on_error="skip"))
    assert error.value.where == f"{path}:{line}"


def test_rows_are_refused_before_some_are_held_out_and_told_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text;label\n" + "".join(f"{'' if row % 2 else f'text {row}'};{'ab'[row % 4 // 2]}\n" for row in range(80)))
    for more, sizes in (({}, (36, 4)), ({"max_train_samples": 30}, (30, 4))):
        recipe = TextClassification(train=str(path), validation="10%", on_error="skip", **more)
        rows = read_splits(recipe.resolved()).rows
        parts = [recipe.standardize(rows[split], labelled=True) for split in ("train", "validation")]
        assert tuple(map(len, parts)) == sizes
        assert [len(part.remarks.left_out) for part in parts] == [40, 0]
        assert ["';' separates the columns" in str(part.remarks.notes) for part in parts] == [True, False]
        assert "';' separates the columns" in str(load(recipe, "validation").remarks.notes), "alone"


def test_a_label_that_is_no_number_is_not_called_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\na\t1.5\nb\t3,5\nc\t\nd\t2.5\n", encoding="utf-8")
    recipe = TextClassification(train=str(path), validation=str(path), on_error="skip", regression=True)
    assert load(recipe).remarks.left_out == (
        f"the label '3,5' is not a finite number ({path}:3)",
        f"there is no label ({path}:4)",
    )


def test_what_is_no_text_is_said_once_with_what_helps(run_bertkit, tmp_path: Path) -> None:
    """A wrong encoding loses most rows of a file."""
    rows = "".join(f"für {row},{'ab'[row % 2]}\n" for row in range(40))
    (tmp_path / "rows.csv").write_bytes(f"text,label\n{rows}good,a\nbad,b\n".encode("windows-1252"))
    ran = run_bertkit("check", "rows.csv", "--text", "text", "--label", "label", "--on-error", "skip")
    told = " ".join(ran.err.split())
    assert ran.code == 0, ran.err
    assert "skipped 40 rows" in told
    assert told.count("rows.csv: 40 of 42 rows are empty or cannot be read; are encoding and separator right?") == 1
    assert told.count("is not UTF-8; the file looks like Windows-1252") == 1
    assert "rows.csv:2); if so, add --encoding windows-1252" in told


def test_lines_of_a_language_model(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertForMaskedLM", seed=4)
    (tmp_path / "lines.txt").write_bytes(b"the [MASK]\na \xff [MASK]\ngood [MASK]\n")
    ran = run_bertkit("predict", model, "lines.txt", "--on-error", "replace")
    assert (ran.code, "expected fail or skip" in ran.err) == (2, True)
    ran = run_bertkit("predict", model, "lines.txt", "--on-error", "skip")
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [0, 2]
    assert "skipped 1 row: the row is empty or cannot be read (lines.txt:2)" in ran.err


def test_finetune_check_and_predict_say_what_they_leave_out(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\ngood movie,p\n,n\nbad movie,n\nbook\n")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--on-error", "skip")
    how = ("--model", tiny_model_dir, "--max-steps", 1, "--max-length", 16, "--device", "cpu", "--no-baselines")
    ran = run_bertkit("finetune", *data, *how, "--output-dir", "run")
    assert ran.code == 0, ran.err
    assert "warning: train: skipped 2 rows: " in ran.err
    assert "(rows.csv:5)" in ran.err.replace(f"{tmp_path}/", "")
    ran = run_bertkit("check", "rows.csv", "--on-error", "skip")
    assert (ran.code, "train: skipped 2 rows" in ran.err, "are left out" in ran.err) == (0, True, False), ran.err
    (tmp_path / "new.jsonl").write_text(as_jsonl(*({"text": None} for _ in range(70)), {"text": "good book"}, '{"x'))
    assert run_bertkit("predict", "run", "new.jsonl").code == 3
    for ending in ("jsonl", "csv", "parquet"):  # the first window has no row to predict
        options = ("--on-error", "skip", "--output", f"out.{ending}", "--id", "row")
        ran = run_bertkit("predict", "run", "new.jsonl", *options)
        assert ran.code == 0, ran.err
        assert "skipped 71 rows" in ran.err
        assert f"wrote 1 prediction to out.{ending}" in ran.err
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (row["id"], row["text"]) == (70, "good book")
