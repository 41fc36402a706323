"""bertkit predict as a stream: early lines, bounded memory, what a row of the output has, and continuing after a kill."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from remote_files import put

from bertkit.errors import UsageError
from bertkit.files.output_folder import lock
from bertkit.model import precision
from bertkit.readers import Examples
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.prediction import outputs, predict, prediction_folder
from bertkit.runs.prediction.arguments import destination_of
from bertkit.runs.prediction.destination import Destination
from bertkit.runs.prediction.outputs import OutputState

pytestmark = pytest.mark.e2e
FP32 = ("--precision", "fp32", "--device", "cpu")
WORDS = "the good bad movie was a great story you like".split()
COUNT = 50  # rows: with ROWS of 3 they are 17 windows


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    labels = ("blame", "none", "praise")
    return make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=labels)


@pytest.fixture(scope="module")
def tagger(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForTokenClassification", seed=3, initializer_range=0.5, labels=("O", "B-PER", "I-PER"))


@pytest.fixture
def rows_at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr("bertkit.readers.ROWS", count)


@pytest.fixture(autouse=True)
def small_windows(rows_at_once: Callable[[int], None]) -> None:
    rows_at_once(3)


def text_of(row: int) -> str:
    return " ".join(WORDS[(row * 7 + place) % 10] for place in range(2 + row % 5)) + f" {row}"


def rows(count: int = COUNT) -> list[dict[str, Any]]:
    return [{"id": f"r{row}", "text": text_of(row), "label": "gold", "more": row} for row in range(count)]


def write_rows(path: Path, content: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path, row_group_size=8)
    elif path.suffix == ".txt":
        path.write_text("".join(f"{row['text']}\n" for row in content), encoding="utf-8")
    elif path.suffix == ".conll":
        sentences = ["".join(f"{word} O\n" for word in row["text"].split()) for row in content]
        path.write_text("\n".join(sentences), encoding="utf-8")
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, [*content[0]], delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)
        path.write_text(text.getvalue(), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    if kind == "jsonl":
        return [json.loads(line) for line in data.decode().splitlines()]
    return [*csv.DictReader(io.StringIO(data.decode()), delimiter="\t" if kind == "tsv" else ",")]


# --- streams ---------------------------------------------------------------------------------------------------------------


def test_lines_come_before_all_rows_are_read(model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    """Each window is written before the rows of the next but one are read."""
    write_rows(tmp_path / "new.jsonl", rows())
    read_at_write: list[int] = []
    read = 0

    def noted(self: TaskPredictor, file: str) -> Iterator[Examples]:
        nonlocal read
        for number, row in enumerate(rows()):
            read += 1
            yield Examples({"text": [row["text"]]}, file, [number])

    def write(self: Any, data: bytes, *counts: Any, **numbers: int) -> None:
        read_at_write.append(read)
        real(self, data, *counts, **numbers)

    real = outputs.Output.write
    monkeypatch.setattr(TaskPredictor, "read_blocks", noted)
    monkeypatch.setattr(outputs.Output, "write", write)
    ran = run_bertkit("predict", model, "new.jsonl", *FP32)
    assert (ran.code, len(ran.out.splitlines())) == (0, COUNT)
    assert read_at_write == [min(COUNT, 3 * window) for window in range(1, 18)]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".txt", ".parquet", ".conll"])
def test_memory_does_not_grow_with_the_rows(
    ending: str, model: Path, tagger: Path, run_bertkit, rows_at_once, tmp_path: Path, monkeypatch
) -> None:
    rows_at_once(32)
    monkeypatch.setattr("bertkit.readers.parsers.arrow.ROWS", 32)
    monkeypatch.setattr("bertkit.readers.content.BLOCK", 2**12)
    target, repeats, most = (tagger, 10, 1500) if ending == ".conll" else (model, 400, 600)

    def peak(count: int) -> int:
        content = [{"id": row, "text": f"{row} " + "good movie " * repeats} for row in range(count)]
        write_rows(tmp_path / f"new{ending}", content)
        del content
        tracemalloc.start()
        ran = run_bertkit("predict", target, f"new{ending}", "--output", "out.jsonl", "--overwrite", "--max-length", 24, *FP32)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (ran.code, len(read_rows(tmp_path / "out.jsonl"))) == (0, count), ran.err
        return found

    peak(32)  # imports
    few, many = peak(100), peak(most)
    assert many - few < 700_000, "less than a third of the additional rows' own size"


def test_a_closed_pipe_ends_the_command_well(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl", rows(20_000))
    command = [sys.executable, "-m", "bertkit", "predict", str(model), str(tmp_path / "new.jsonl"), *FP32]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert json.loads(started.stdout.readline())["text"] == text_of(0)
        started.stdout.close()
        err = started.stderr.read().decode()
        assert (started.wait(timeout=120), "error" in err, "Traceback" in err) == (0, False, False)


def test_counts_are_summed_and_told_once(model: Path, run_bertkit, tmp_path: Path) -> None:
    content = [
        row | {"text": "" if number % 10 == 3 else "good movie " * (1 + number % 5)} for number, row in enumerate(rows())
    ]
    write_rows(tmp_path / "new.csv", content)
    ran = run_bertkit("predict", model, "new.csv", "--max-length", 8, *FP32)
    longer = sum(len(row["text"].split()) > 6 for row in content)
    assert ran.err.splitlines() == [
        "2 columns not in the output: label, more",
        f"{COUNT} rows, {longer} longer than 8 truncated, 5 without text",
    ]


# --- what a row has --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz", "tsv.gz"])
def test_every_format_has_the_same_rows(ending: str, model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.csv", rows())
    expected = [json.loads(line) for line in run_bertkit("predict", model, "new.csv", *FP32).out.splitlines()]
    assert [[*row] for row in expected] == [["id", "text", "label", "probability"]] * COUNT
    ran = run_bertkit("predict", model, "new.csv", "--output", f"out.{ending}", *FP32)
    assert ran.err.splitlines()[-1] == f"wrote {COUNT} predictions to out.{ending}"
    found = read_rows(tmp_path / f"out.{ending}")
    assert [[*row] for row in found] == [[*row] for row in expected]
    assert [{name: str(value) for name, value in row.items()} for row in found] == [
        {name: str(value) for name, value in row.items()} for row in expected
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", f"out.{ending}"]


@pytest.mark.parametrize(
    ("options", "columns", "ids"),
    [
        (["--id", "more"], "id text label probability", ["0", "1"]),
        (["--id", "row"], "id text label probability", [0, 1]),
        ([], "id text label probability", ["r0", "r1"]),
        (["--keep", "more"], "id text label probability more", ["r0", "r1"]),
        (["--keep", "all"], "id text label probability input_label more", ["r0", "r1"]),
        (["--keep", "all", "--id", "more"], "id text label probability input_id input_label", ["0", "1"]),
        (["--top-k", "2", "--probabilities", "--id", "id"], "id text label probability top probabilities", ["r0", "r1"]),
    ],
)
def test_ids_kept_columns_and_detail(
    options: list[str], columns: str, ids: list, model: Path, run_bertkit, tmp_path: Path
) -> None:
    write_rows(tmp_path / "new.csv", rows())
    ran = run_bertkit("predict", model, "new.csv", *options, *FP32)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [[*row] for row in found] == [columns.split()] * COUNT
    assert [row["id"] for row in found[:2]] == ids
    assert len({row["id"] for row in found}) == COUNT
    if "more" in columns:
        assert [row["more"] for row in found] == [*map(str, range(COUNT))]
    if "input_label" in columns:
        assert {row["input_label"] for row in found} == {"gold"}
    if "--top-k" in options:
        for row in found:
            assert [each["label"] for each in row["top"]] == sorted(
                row["probabilities"], key=lambda k: -row["probabilities"][k]
            )[:2]
            assert row["top"][0] == {"label": row["label"], "probability": row["probability"]}
            assert sum(row["probabilities"].values()) == pytest.approx(1)


def test_a_kept_column_takes_the_name_of_no_other(model: Path, run_bertkit, tmp_path: Path) -> None:
    content = [{"input_label": f"i{row}", "label": f"g{row}", "text": text_of(row)} for row in range(4)]
    write_rows(tmp_path / "new.csv", content)
    ran = run_bertkit("predict", model, "new.csv", "--keep", "all", *FP32)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["input_label"], row["input_input_label"]) for row in found] == [(f"i{row}", f"g{row}") for row in range(4)]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([1, 2, 3, 2.5], [1.0, 2.0, 3.0, 2.5]),
        ([2**60, 1, 2, 2.5], [str(2**60), "1", "2", "2.5"]),
        ([2**70, 1, 2, 3], [str(2**70), "1", "2", "3"]),
        ([{}, {}, {}, {}], ["{}"] * 4),
    ],
)
def test_parquet_takes_any_value_that_json_has(
    values: list[Any], read: list[Any], model: Path, run_bertkit, tmp_path: Path
) -> None:
    """The last one stands in a window of its own."""
    write_rows(tmp_path / "new.jsonl", [{"text": text_of(row), "value": value} for row, value in enumerate(values)])
    ran = run_bertkit("predict", model, "new.jsonl", "--keep", "value", "--output", "out.parquet", *FP32)
    assert ran.code == 0, ran.err
    assert [row["value"] for row in read_rows(tmp_path / "out.parquet")] == read


@pytest.mark.parametrize("ending", [".txt", ".csv", ".parquet", "stdin"])
def test_rows_without_an_id_are_numbered_from_0_over_all_windows(ending: str, model: Path, run_bertkit, tmp_path: Path) -> None:
    """By default, and by the row of the file: the header of a table is none, whatever its line."""
    content = [{"text": row["text"], "label": row["label"]} for row in rows()]
    file = write_rows(tmp_path / f"new{'.txt' if ending == 'stdin' else ending}", content)
    given = {"stdin": file.read_bytes()} if ending == "stdin" else {}
    ran = run_bertkit("predict", model, "-" if given else file, *FP32, **given)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [[*row] for row in found] == [["id", "text", "label", "probability"]] * COUNT
    assert [row["id"] for row in found] == [*range(COUNT)]
    assert [row["text"] for row in found] == [text_of(row) for row in range(COUNT)]


def test_people_and_files_of_tags_see_no_numbers(model: Path, tagger: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.txt", rows(4))
    shown = run_bertkit("predict", model, "new.txt", "--format", "text", *FP32).out.splitlines()[1]
    assert re.fullmatch(rf"(blame|none|praise) \d+%  {text_of(1)}", shown)
    assert run_bertkit("predict", tagger, "new.txt", "--output", "out.conll", *FP32).code == 0
    assert (tmp_path / "out.conll").read_text(encoding="utf-8").splitlines()[0].split()[0] == text_of(0).split()[0]


def test_answers_have_ids_and_as_many_candidates_as_asked_for(make_model_dir, run_bertkit, tmp_path: Path) -> None:
    model = make_model_dir("BertForQuestionAnswering", seed=3, initializer_range=0.5)
    questions = [{"question": "what is it", "context": f"the good movie is {row} and bad"} for row in range(10)]
    write_rows(tmp_path / "new.jsonl", questions)
    given = ("--max-length", 32, "--doc-stride", 8, *FP32)
    whole = [json.loads(line) for line in run_bertkit("predict", model, "new.jsonl", *given).out.splitlines()]
    assert [row["id"] for row in whole] == [*range(10)]
    best = [json.loads(line) for line in run_bertkit("predict", model, "new.jsonl", *given, "--n-best", 3).out.splitlines()]
    assert len(best[0]["nbest"]) == 3
    assert whole == [row | {"nbest": row["nbest"][:1]} for row in best]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--id", "nothing"], "no column 'nothing' for --id (new.csv)"),
        (["--keep", "more,les"], "no column 'les' for --keep (new.csv)"),
        (["--n-best", "2"], "--n-best does not apply to text-classification"),
        (["--keep", "all", "--format", "text"], "--keep adds a column, and the format text has no columns"),
        (["--id", "row", "--format", "text"], "--id adds a column, and the format text has no columns"),
        (["--output", "out.parquet.gz"], "--output out.parquet.gz has the extension .parquet"),
        (["--format", "parquet"], "--format is 'parquet'"),
        (["new.csv"], "2 files to predict"),
        (["--output", "out.csv", "--output-dir", "out"], "--output-dir"),
        (["--output-dir", "new.csv"], "--output-dir names a file; expected a folder (new.csv)"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(
    options, told, model: Path, run_bertkit, tmp_path: Path, monkeypatch
) -> None:
    write_rows(tmp_path / "new.csv", rows(3))
    monkeypatch.setattr("bertkit.runs.inference.predictor.load_weights", None)  # nothing comes so far
    ran = run_bertkit("predict", model, "new.csv", *options, *FP32)
    assert (ran.code, told in ran.err.splitlines()[0], ran.out) == (2, True, ""), ran.err


# --- a kill ----------------------------------------------------------------------------------------------------------------


def killing(monkeypatch: pytest.MonkeyPatch, window: int, where: str) -> list[int]:
    """Kill the next command in this window, from 1: while it computes, or between the file and what says how far it is.

    Returns the first rows of the windows that are computed, as they are.
    """
    computed: list[int] = []
    real_predict, real_write = predict.predict_window, outputs.write_json

    def predict_window(predictor: Any, rows: Examples, rate: Any = None) -> Any:
        computed.append(rows.first)
        if where == "computing" and len(computed) == window:
            raise Killed
        return real_predict(predictor, rows, rate)

    def write_json(path: Path, value: Any) -> None:
        if where == "writing" and len(computed) == window:
            raise Killed
        real_write(path, value)

    monkeypatch.setattr(predict, "predict_window", predict_window)
    monkeypatch.setattr(outputs, "write_json", write_json)
    return computed


@pytest.mark.parametrize("where", ["computing", "writing"])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "jsonl.gz", "parquet", "conll", "split"])
def test_a_killed_command_goes_on_and_gives_the_same_bytes(
    ending: str, where: str, model: Path, tagger: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a split are read at once: their texts are compact columns."""
    monkeypatch.setattr("bertkit.readers.compact.MANY", 4)
    monkeypatch.setattr("bertkit.readers.content.BLOCK", 2**8)
    (tmp_path / "data").mkdir()
    for name in ("new.csv", "data/train.csv", "data/test.csv"):
        write_rows(tmp_path / name, rows())
    target = tagger if ending == "conll" else model
    source = ["--split", "test", "--data", "data", "--recipe", "text-classification"] if ending == "split" else ["new.csv"]
    ending = ending.replace("split", "csv")
    whole = ("predict", target, *source, *([] if ending == "conll" else ["--keep", "all"]), *FP32)
    expected_err = run_bertkit(*whole, "--output", f"whole.{ending}").err
    windows: list[int] = []
    for at in (6, 4, 99):
        with pytest.MonkeyPatch.context() as patch:
            computed = killing(patch, at, where)
            try:
                ran = run_bertkit(*whole, "--output", f"out.{ending}")
            except Killed:
                assert not (tmp_path / f"out.{ending}").exists()
            windows += computed
    assert ran.code == 0
    assert (tmp_path / f"out.{ending}").read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert sorted(windows) == sorted([*range(0, COUNT, 3), 15, 24]), "each window once, but for the two in which it was killed"
    assert not [*tmp_path.glob("*.partial"), *tmp_path.glob("*.json")]
    first, *told = ran.err.splitlines()
    assert "continuing after 24 rows" in first
    assert "\n".join(told).replace("out.", "whole.") == expected_err.strip(), "counts of all rows, in all commands"


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl.gz", "new.parquet"])
def test_a_killed_command_goes_on_with_a_url_unless_its_file_has_changed(
    name: str, model: Path, run_bertkit, tmp_path: Path
) -> None:
    def upload(content: list[dict[str, Any]]) -> None:
        path = write_rows(tmp_path / name.removesuffix(".gz"), content)
        if name.endswith(".gz"):
            path.with_name(name).write_bytes(gzip.compress(path.read_bytes()))
        put(tmp_path / name)

    upload(rows())
    command = ("predict", model, f"memory://store/{name}", "--keep", "all", "--output", "out.jsonl", *FP32)
    assert run_bertkit(*command, "--output", "whole.jsonl").code == 0
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 6, "computing")
        with pytest.raises(Killed):
            run_bertkit(*command)
    partial = (tmp_path / "out.jsonl.partial").read_bytes()
    upload([{**row, "more": -1} if number == 4 else row for number, row in enumerate(rows())])
    changed = run_bertkit(*command)
    assert (changed.code, f"have changed since 15 rows of them were predicted ({tmp_path}" in changed.err) == (2, True)
    assert (f"memory://store/{name}" in changed.err, (tmp_path / "out.jsonl.partial").read_bytes()) == (True, partial)
    upload(rows())
    again = run_bertkit(*command)
    assert (again.code, "continuing after 15 rows" in again.err) == (0, True)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_left_out_are_counted_once_over_kills(ending: str, model: Path, run_bertkit, tmp_path: Path) -> None:
    content = [row | ({"text": None} if number % 5 == 2 or 20 <= number < 26 else {}) for number, row in enumerate(rows())]
    write_rows(tmp_path / "new.jsonl", content)
    lines = (tmp_path / "new.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "new.jsonl").write_text("".join("{\n" if row in (8, 40) else line for row, line in enumerate(lines)))
    whole = ("predict", model, "new.jsonl", "--on-error", "skip", "--id", "more", "--keep", "id", *FP32)
    undisturbed = run_bertkit(*whole, "--output", f"whole.{ending}").err
    for at in (5, 3, 99):
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, at, "computing")
            try:
                ran = run_bertkit(*whole, "--output", f"out.{ending}")
            except Killed:
                assert at < 99
    assert (tmp_path / f"out.{ending}").read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    kept = [number for number, row in enumerate(content) if row["text"] and number not in (8, 40)]
    assert [row["id"] for row in read_rows(tmp_path / f"out.{ending}")] == kept
    assert f"warning: skipped {COUNT - len(kept)} rows: " in undisturbed
    assert f"wrote {len(kept)} predictions" in undisturbed
    assert ran.err.replace("out.", "whole.").splitlines()[1:] == undisturbed.splitlines()


def test_a_stopped_command_says_how_to_go_on(model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    write_rows(tmp_path / "new.csv", rows())
    real, left = predict.predict_window, []

    def predict_window(*arguments: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*arguments)

    monkeypatch.setattr(predict, "predict_window", predict_window)
    for windows, said in ((0, "stopped\n"), (3, "stopped; the same command, without --overwrite, continues from there\n")):
        left[:] = [None] * windows
        ran = run_bertkit("predict", model, "new.csv", "--output", "out.jsonl", "--overwrite", *FP32)
        assert (ran.code, ran.err.endswith(said)) == (130, True), ran.err
    for name in "ab":
        write_rows(tmp_path / f"{name}.csv", rows(3))
    left[:] = [None]  # the first file has one window, and is finished
    ran = run_bertkit("predict", model, "a.csv", "b.csv", "--output-dir", "out", "--overwrite", *FP32)
    assert (ran.code, ran.err.endswith(said)) == (130, True), ran.err
    assert (tmp_path / "out" / "a.jsonl").is_file()


@pytest.fixture
def interrupted(model: Path, run_bertkit, tmp_path: Path) -> Callable[..., Any]:
    """A command that was killed after two windows; a function that repeats it with other options."""
    shutil.copytree(model, tmp_path / "model")
    write_rows(tmp_path / "new.csv", rows())
    command = ("predict", "model", "new.csv", "--output", "out.jsonl", "--device", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 3, "computing")
        with pytest.raises(Killed):
            run_bertkit(*command)
    assert json.loads((tmp_path / "out.jsonl.progress.json").read_text())["rows"] == 6
    return lambda *more, stdin=b"": run_bertkit(
        *(["predict", "model", "-", *command[3:]] if stdin else command), *more, stdin=stdin
    )


def test_a_finished_output_is_replaced_only_with_overwrite(model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    command = ("predict", model, "new.csv", "--output", "out.csv", *FP32)
    write_rows(tmp_path / "new.csv", rows(4))
    assert run_bertkit(*command).code == 0
    before = (tmp_path / "out.csv").read_bytes()
    write_rows(tmp_path / "new.csv", rows(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertkit.runs.inference.predictor.load_weights", None)  # nothing comes so far
        refused = run_bertkit(*command)
    assert (refused.code, refused.err.splitlines()) == (
        2,
        ["error: --output already exists (out.csv)", "hint: choose another name, or add --overwrite"],
    )
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 2, "computing")
        with pytest.raises(Killed):
            run_bertkit(*command, "--overwrite")
    assert (tmp_path / "out.csv").read_bytes() == before, "until the new one is whole"
    ran = run_bertkit(*command)
    assert (ran.code, "continuing after 3 rows" in ran.err, len(read_rows(tmp_path / "out.csv"))) == (0, True, 8), ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]


@pytest.mark.parametrize("changed", ["model", "options", "layout", "rows", "fewer rows", "stdin"])
def test_what_would_not_go_on_as_it_began_is_refused(changed: str, interrupted, run_bertkit, tmp_path: Path) -> None:
    options: list[str] = {"options": ["--max-length", "16"], "layout": ["--keep", "more"]}.get(changed, [])
    if changed == "model":
        weights = tmp_path / "model" / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-8] ^= 1
        weights.write_bytes(bytes(data))
    content = rows(2) if changed == "fewer rows" else rows()
    if changed == "rows":
        content[3]["text"] = "another"
    write_rows(tmp_path / "new.csv", content)
    stdin = (tmp_path / "new.csv").read_bytes() if changed == "stdin" else b""
    before = (tmp_path / "out.jsonl.partial").read_bytes()
    ran = interrupted(*options, stdin=stdin)
    line = ran.err.splitlines()[-2]
    assert (ran.code, line.startswith("error: "), "--overwrite" in ran.err) == (2, True, True)
    named = {
        "model": "the unfinished predictions were made with different settings: another model",
        "options": "settings: max_length was 64, now 16 ",
        "layout": "settings: keep was not set, now 'more'",
    }
    assert {**named, "stdin": "standard input"}.get(changed, "the rows have changed") in line
    assert (tmp_path / "out.jsonl.partial").read_bytes() == before, "nothing is lost"
    ran = interrupted("--overwrite", *options, stdin=stdin)
    assert (ran.code, len(read_rows(tmp_path / "out.jsonl"))) == (0, len(content))


@pytest.mark.parametrize("requested", [None, "auto", "int8"])
def test_it_goes_on_with_the_recorded_precision_threads_and_batches(
    requested: str | None, interrupted, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(precision, "_rates", lambda *_, **__: pytest.fail("it was measured again"))
    place = tmp_path / "out.jsonl.progress.json"
    state = OutputState.read(place)
    assert state is not None
    other = "int8" if requested == "int8" else {"fp32": "bf16", "bf16": "fp32"}[state.how["precision"]]
    how = {**state.how, "precision": other, "threads": 2, "micro_batch_tokens": 77}
    how["attention"] = "bf16" if other == "int8" else other
    options = state.settings["options"] | ({"precision": requested} if requested else {})
    place.write_text(json.dumps(state._replace(how=how, settings={**state.settings, "options": options}).content()))
    used: list[tuple] = []
    real = TaskPredictor.decode

    def decode(self: TaskPredictor, *given: Any) -> Any:
        used.append((self.precision.name, self.precision.attention, torch.get_num_threads(), self.micro_batch_tokens))
        return real(self, *given)

    monkeypatch.setattr(TaskPredictor, "decode", decode)
    threads = torch.get_num_threads()
    try:
        assert interrupted(*(["--precision", requested] if requested else [])).code == 0
    finally:
        torch.set_num_threads(threads)
    attention = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}[other]
    assert set(used) == {(other, attention, 2, 77)}


# --- several files ---------------------------------------------------------------------------------------------------------


def test_several_files_to_a_folder(model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("a.parquet", "b.parquet")):
        write_rows(tmp_path / "in" / name, rows(10 + number))
    write_rows(tmp_path / "more.csv", rows(7))
    command = ("predict", model, "in/*.parquet", "more.csv", "--output-dir", "out", *FP32)
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 6, "computing")  # in b
        with pytest.raises(Killed):
            run_bertkit(*command)
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "_settings.json",
        "a.jsonl",
        "b.jsonl.partial",
        "b.jsonl.progress.json",
    ]
    ran = run_bertkit(*command)
    assert (ran.code, ran.err.splitlines()[0]) == (0, "out/a.jsonl already exists")
    assert sorted(path.name for path in out.iterdir()) == ["_SUCCESS", "_settings.json", "a.jsonl", "b.jsonl", "more.jsonl"]
    for name, count in (("a", 10), ("b", 11), ("more", 7)):
        assert [row["text"] for row in read_rows(out / f"{name}.jsonl")] == [text_of(row) for row in range(count)]
    other = run_bertkit(*command, "--keep", "all")
    assert (other.code, "settings: keep was not set, now 'all' (out)" in other.err) == (2, True), other.err
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "mine.txt").touch()
    assert run_bertkit(*command, "--keep", "all", "--overwrite", "--format", "csv.gz").code == 0
    assert len(read_rows(out / "b.csv.gz")) == 11
    assert {path.name: path.read_bytes() for path in (out / ".old-1").iterdir()} == before
    assert sorted(path.name for path in out.iterdir()) == [
        *(".old-1", "_SUCCESS", "_settings.json", "a.csv.gz", "b.csv.gz", "mine.txt", "more.csv.gz")
    ]


@pytest.mark.parametrize(("window", "folder"), [(None, "out"), (None, "."), (2, "out"), (2, "link")])
def test_what_overwrite_moved_comes_back_if_nothing_is_written(
    window: int | None, folder: str, model: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """window: at which it is killed, after which it goes on. folder: one that cannot be moved itself, too."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    out, command = tmp_path / "out", ("predict", model, tmp_path / "a.csv", tmp_path / "b.csv", "--output-dir", folder, *FP32)
    monkeypatch.chdir(out if folder == "." else tmp_path)
    for name in "ab":
        write_rows(tmp_path / f"{name}.csv", rows(4))
    assert run_bertkit(*command).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    if window is None:
        (tmp_path / "a.csv").write_text("text\n", encoding="utf-8")  # no rows
        ran = run_bertkit(*command[:3], *command[4:], "--overwrite")
        assert (ran.code, "nothing was written: moved " in ran.err) == (3, True), ran.err
        assert not (out / ".old-1").exists()
    else:
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, window, "computing")
            with pytest.raises(Killed):
                run_bertkit(*command, "--overwrite", "--keep", "all")
        assert "a.jsonl.partial" in {path.name for path in out.iterdir()}
        out /= ".old-1"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("there", [False, True])
def test_a_command_that_writes_nothing_changes_no_folder(there: bool, model: Path, run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("said,by\nfine,her\n", encoding="utf-8")
    out, command = tmp_path / "out", ("predict", model, "a.csv", "--output-dir", "out", *FP32)
    if there:
        out.mkdir()
    assert (ran := run_bertkit(*command)).code == 3, ran.err
    assert (out.exists(), list(out.glob("*"))) == (there, [])
    assert run_bertkit(*command, "--text", "said").code == 0
    assert len(read_rows(out / "a.jsonl")) == 1
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {*before} == {"_SUCCESS", "_settings.json", "a.jsonl"}
    assert run_bertkit(*command, "--text", "by").code == 2
    (tmp_path / "b.csv").write_text("said,by\n", encoding="utf-8")  # no rows
    assert run_bertkit("predict", model, "b.csv", "--output-dir", "out", "--text", "said", *FP32).code == 3
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(("content", "told"), [("said,by\nfine,her\n", "b.csv"), ("text\n", "header but no rows (b.csv)")])
def test_the_first_rows_of_every_file_are_read_before_any_is_predicted(
    content: str, told: str, model: Path, run_bertkit, tmp_path: Path
) -> None:
    write_rows(tmp_path / "a.csv", rows(4))
    (tmp_path / "b.csv").write_text(content, encoding="utf-8")
    ran = run_bertkit("predict", model, "a.csv", "b.csv", "--output-dir", "out", *FP32)
    assert (ran.code, told in ran.err, (tmp_path / "out").exists()) == (3, True, False), ran.err


def test_what_a_folder_has_counts_only_for_the_files_it_is_of(model: Path, run_bertkit, tmp_path: Path) -> None:
    for name, count in (("in1/a.csv", 3), ("in2/a.csv", 4), ("b.csv", 5)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_rows(tmp_path / name, rows(count))
    options, out = ("--output-dir", "out", *FP32), tmp_path / "out"
    assert run_bertkit("predict", model, "in1/a.csv", "b.csv", *options).code == 0
    other = run_bertkit("predict", model, "in2/a.csv", *options)
    assert (other.code, "out/a.jsonl already exists, from " in other.err, len(read_rows(out / "a.jsonl"))) == (2, True, 3)
    assert run_bertkit("predict", model, "in2/a.csv", "--overwrite", *options).code == 0
    assert sorted(path.name for path in out.iterdir()) == [".old-1", "_SUCCESS", "_settings.json", "a.jsonl"]
    (out / "a.jsonl").unlink()
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 1, "computing")
        with pytest.raises(Killed):
            run_bertkit("predict", model, "in2/a.csv", *options)
    assert not (out / "_SUCCESS").exists()


def test_a_folder_is_whole_once_the_files_of_all_commands_are(model: Path, run_bertkit, tmp_path: Path) -> None:
    options, out = ("--output-dir", "out", *FP32), tmp_path / "out"
    for name in "ab":
        write_rows(tmp_path / f"{name}.csv", rows(6))
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 1, "computing")
        with pytest.raises(Killed):
            run_bertkit("predict", model, "a.csv", *options)
    second = run_bertkit("predict", model, "b.csv", *options)
    told = "out is not complete (no _SUCCESS): a.jsonl, begun by another command, is missing"
    assert (second.code, told in second.err) == (0, True), second.err
    assert not (out / "_SUCCESS").exists()
    for missing in (False, True):
        assert run_bertkit("predict", model, "a.csv", *options).code == 0
        assert (out / "_SUCCESS").exists()
        if not missing:
            (out / "a.jsonl").unlink()
            assert run_bertkit("predict", model, "b.csv", *options).code == 0  # which is there
            assert not (out / "_SUCCESS").exists()
    assert sorted(path.name for path in out.iterdir()) == ["_SUCCESS", "_settings.json", "a.jsonl", "b.jsonl"]


def checked(**values: Any) -> str:
    return json.dumps(values | {"checksum": outputs._checksum(values)})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (checked(settings={}, how={}), "were made with different settings"),
        (checked(settings={}, how={"threads": 1}).replace("1", "0", 1), "damaged"),
        (checked(settings={}, how={}, more=1), "another version"),
        ('{"settings": {}, "how": {}}', "another version"),
        *((content, "damaged") for content in ("[" * 100_000, "[]", "3", "{}", "{", "")),
    ],
)
def test_damaged_progress_is_refused(content: str, said: str, model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.csv", rows())
    (tmp_path / "out.jsonl.partial").write_text("", encoding="utf-8")
    (tmp_path / "out.jsonl.progress.json").write_text(content, encoding="utf-8")
    ran = run_bertkit("predict", model, "new.csv", "--output", "out.jsonl", *FP32)
    assert (ran.code, said in ran.err, "--overwrite" in ran.err) == (2, True, True), ran.err
    assert run_bertkit("predict", model, "new.csv", "--output", "out.jsonl", "--overwrite", *FP32).code == 0


def test_a_command_that_another_has_overtaken_changes_nothing(tmp_path: Path) -> None:
    def at(source: str) -> Destination:
        return destination_of([source], None, tmp_path / "out", None, [".jsonl"], overwrite=False)

    mine, theirs = OutputState({"model": 1, "id": "n"}, {}), OutputState({"model": 2, "id": None}, {})
    for progress in (mine, theirs):
        at("a.csv").refuse_other_content(progress)  # the folder is empty
    with at("a.csv").claimed(theirs, ["a.csv"]):
        pass
    before = (tmp_path / "out" / "_settings.json").read_bytes()
    with (
        pytest.raises(UsageError, match="settings: model was 2, now 1; id was not set, now 'n'"),
        at("b.csv").claimed(mine, ["b.csv"]),
    ):
        pass
    assert (tmp_path / "out" / "_settings.json").read_bytes() == before


def test_the_output_of_a_command_that_runs_is_not_taken_from_it(model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv", rows())
    options, out = ("predict", model, "a.csv", "--output-dir", "out", *FP32), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, 6, "computing")
        with pytest.raises(Killed):
            run_bertkit(*options)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_rows(tmp_path / "a.csv", rows(5))
    with lock(out / "a.jsonl.partial"):  # as the first command holds it
        for more in ((), ("--overwrite",)):
            ran = run_bertkit(*options, *more)
            assert (ran.code, "another process is currently writing" in ran.err) == (2, True), ran.err
            assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert run_bertkit(*options, "--overwrite").code == 0
    assert len(read_rows(out / "a.jsonl")) == 5


def test_an_output_that_another_command_claims_is_not_begun_meanwhile(tmp_path: Path) -> None:
    """Between the entry in _settings.json and the output's first byte, a command for another file of that name waits."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / "a.csv", rows())
    output, state = tmp_path / "out" / "a.jsonl.partial", OutputState({}, {})

    def claimed(name: str) -> AbstractContextManager[None]:
        source = str(tmp_path / name / "a.csv")
        return destination_of([source], None, tmp_path / "out", None, [".jsonl"], overwrite=False).claimed(state, [source])

    def claim_the_second() -> None:
        with claimed("two"):
            pass

    with ThreadPoolExecutor(1) as threads:
        with claimed("one"):
            other = threads.submit(claim_the_second)
            with pytest.raises(TimeoutError):
                other.result(0.2)
            running = output.open("x")
            fcntl.flock(running, fcntl.LOCK_EX)
        with running, pytest.raises(UsageError, match="another process is currently writing"):
            other.result(60)
        assert "one" in (tmp_path / "out" / "_settings.json").read_text(encoding="utf-8")


def test_the_output_of_another_file_that_a_command_finished_meanwhile_is_not_taken_as_ones_own(
    model: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_rows(tmp_path / f"{name}.csv", rows())
    out, real = tmp_path / "out", outputs.OutputFile.finish

    def finish(self: outputs.OutputFile, writer: Any) -> None:
        """The first output is finished; meanwhile a command has predicted another b.csv."""
        real(self, writer)
        recorded = OutputState.read(out / "_settings.json")
        assert recorded is not None
        sources = {**recorded.sources, "b.jsonl": ["/elsewhere/b.csv", 1, 1]}
        (out / "_settings.json").write_text(json.dumps(recorded._replace(sources=sources).content()), encoding="utf-8")
        (out / "b.jsonl").write_text("", encoding="utf-8")

    monkeypatch.setattr(outputs.OutputFile, "finish", finish)
    ran = run_bertkit("predict", model, "a.csv", "b.csv", "--output-dir", "out", *FP32)
    assert (ran.code, "b.jsonl already exists, from /elsewhere/b.csv" in ran.err) == (2, True), ran.err
    assert sorted(path.name for path in out.iterdir()) == ["_settings.json", "a.jsonl", "b.jsonl"]


def test_an_unfinished_output_is_locked_while_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So no other command goes on writing into a file that has lost its name."""
    partial, removed = tmp_path / "out.jsonl.partial", []
    partial.touch()
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self == partial:
            removed.append(self)
            with pytest.raises(UsageError, match="another process is currently writing"), lock(partial):
                pass
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with destination_of(["a.csv"], tmp_path / "out.jsonl", None, None, [".jsonl"], overwrite=True).replaced():
        assert removed == [partial]
        assert not partial.exists()


def test_two_commands_that_start_over_at_once_move_the_old_output_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    to = destination_of(["a.csv"], None, out, None, [".jsonl"], overwrite=True)
    with to.claimed(OutputState({}, {}), ["a.csv"]):
        (out / "a.jsonl").touch()
    real = prediction_folder._move

    def start_over() -> list[str]:
        with to.replaced():
            (out / "a.jsonl.partial").touch()
            return sorted(os.listdir(out))

    with ThreadPoolExecutor(1) as threads:
        others: list[Future[list[str]]] = []

        def move(*arguments: Any) -> None:
            others.append(threads.submit(start_over))
            with pytest.raises(TimeoutError):
                others[0].result(0.2)
            real(*arguments)

        monkeypatch.setattr(prediction_folder, "_move", move)
        with to.replaced():
            assert others[0].result(60) == [".old-1", "a.jsonl.partial"]
    assert sorted(os.listdir(out / ".old-1")) == ["_settings.json", "a.jsonl"]


def test_standard_input_may_be_one_of_several(model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "b.csv", rows(4))
    ran = run_bertkit("predict", model, "-", "b.csv", "--output-dir", "out", *FP32, stdin=b"text\ngood movie\n")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_SUCCESS",
        "_settings.json",
        "b.jsonl",
        "stdin.jsonl",
    ]


def test_overwrite_means_nothing_on_standard_output(model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv", rows(3))
    ran = run_bertkit("predict", model, "a.csv", "--overwrite", *FP32)
    assert (ran.code, ran.out.count("\n")) == (0, 3), ran.err


def test_old_output_is_not_moved_back_over_that_of_a_later_command(tmp_path: Path) -> None:
    """The first command has finished its output; a second one moves it aside before the first has ended."""
    first, second = (destination_of(["a.csv"], None, tmp_path / "out", None, [".jsonl"], overwrite=True) for _ in "12")
    out = tmp_path / "out"
    with first.claimed(OutputState({}, {}), ["a.csv"]):
        (out / "a.jsonl").write_text("oldest", encoding="utf-8")
    begun, begun_later = first.replaced(), second.replaced()
    begun.__enter__()
    (out / "a.jsonl").write_text("of the first", encoding="utf-8")
    begun_later.__enter__()
    begun.__exit__(None, None, None)
    assert sorted(path.name for path in out.iterdir()) == [".old-1", ".old-2"]
    begun_later.__exit__(None, None, None)  # it has written nothing
    assert (out / "a.jsonl").read_text(encoding="utf-8") == "of the first"
    assert (out / ".old-1" / "a.jsonl").read_text(encoding="utf-8") == "oldest"


def test_what_a_kill_leaves_of_a_move_is_not_called_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, to = tmp_path / "out", destination_of(["a.csv"], None, tmp_path / "out", None, [".jsonl"], overwrite=True)
    with to.claimed(OutputState({}, {}), ["a.csv"]):
        (out / "a.jsonl").touch()
    (out / "_SUCCESS").touch()
    real, moved = os.rename, []
    monkeypatch.setattr(os, "rename", lambda old, new: moved.append(old.name) or real(old, new))
    with to.replaced():
        assert moved == ["_SUCCESS", "a.jsonl", "_settings.json"]
        moved.clear()
    assert moved == ["_settings.json", "a.jsonl", "_SUCCESS"]


def test_a_source_is_the_file_that_was_there_when_the_command_began(
    model: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced between its first rows and the entry in _settings.json: the output is that of the old one."""
    write_rows(tmp_path / "a.csv", rows(2))
    real = predict._Command.opened

    def opened(self: Any, source: str) -> Any:
        found = real(self, source)
        write_rows(tmp_path / "new.csv", rows(9))
        os.replace(tmp_path / "new.csv", tmp_path / "a.csv")
        return found

    command = ("predict", model, "a.csv", "--output-dir", "out", *FP32)
    with monkeypatch.context() as patch:
        patch.setattr(predict._Command, "opened", opened)
        assert run_bertkit(*command).code == 0
    ran = run_bertkit(*command)
    assert (ran.code, "a.jsonl already exists, from an earlier a.csv" in ran.err) == (2, True), ran.err


def test_an_output_that_vanishes_is_made_again(
    model: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_rows(tmp_path / f"{name}.csv", rows(3))
    options = ("--output-dir", "out", *FP32)
    assert run_bertkit("predict", model, "b.csv", *options).code == 0
    real = outputs.OutputFile.finish

    def finish(self: outputs.OutputFile, writer: Any) -> None:
        """Someone deletes the other output after the first one is finished."""
        real(self, writer)
        if self.path is not None and self.path.name == "a.jsonl":
            (tmp_path / "out" / "b.jsonl").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(outputs.OutputFile, "finish", finish)
        assert run_bertkit("predict", model, "a.csv", "b.csv", *options).code == 0
    assert [len(read_rows(tmp_path / "out" / f"{name}.jsonl")) for name in "ab"] == [3, 3]


def test_a_finished_output_leaves_the_files_that_a_later_command_has_begun(
    model: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "a.csv", rows(3))
    real, begun = os.replace, [tmp_path / f"out.jsonl.{name}" for name in ("partial", "progress.json")]

    def replace(old: Path, new: Path) -> None:
        real(old, new)
        if Path(new) == tmp_path / "out.jsonl":
            for path in begun:
                path.write_text("theirs", encoding="utf-8")

    monkeypatch.setattr(os, "replace", replace)
    assert run_bertkit("predict", model, "a.csv", "--output", "out.jsonl", *FP32).code == 0
    assert [path.read_text(encoding="utf-8") for path in begun] == ["theirs", "theirs"]


def test_a_pipe_among_several_files_is_read_once(model: Path, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv", rows(4))
    os.mkfifo(tmp_path / "b.csv")
    write_rows(tmp_path / "b", rows(5))
    threading.Thread(target=lambda: (tmp_path / "b.csv").write_bytes((tmp_path / "b").read_bytes()), daemon=True).start()
    assert run_bertkit("predict", model, "a.csv", "b.csv", "--output-dir", "out", *FP32).code == 0
    assert [len(read_rows(tmp_path / "out" / f"{name}.jsonl")) for name in "ab"] == [4, 5]


def test_commands_that_begin_at_once_are_all_recorded(tmp_path: Path) -> None:
    def record(name: str) -> None:
        to = destination_of([name], None, tmp_path / "out", None, [".jsonl"], overwrite=False)
        with to.claimed(OutputState({}, {}), [name]):
            pass

    names = [f"{number}.csv" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(record, names)] == [None] * 40
    recorded = json.loads((tmp_path / "out" / "_settings.json").read_text(encoding="utf-8"))["sources"]
    assert sorted(recorded) == sorted(f"{number}.jsonl" for number in range(40))


@pytest.mark.parametrize("is_half_there", [True, False])
def test_a_second_command_does_not_go_on_with_what_the_first_has_finished(
    is_half_there: bool, model: Path, run_bertkit, tmp_path: Path, monkeypatch
) -> None:
    """The first one ends while the second one, which has seen its half or nothing, loads its model."""
    write_rows(tmp_path / "new.csv", rows())
    command = ("predict", model, "new.csv", "--output", "out.jsonl", *FP32)
    if is_half_there:
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, 3, "computing")
            with pytest.raises(Killed):
                run_bertkit(*command)
    opened = outputs.OutputFile.open

    def late(output: outputs.OutputFile) -> Any:
        monkeypatch.setattr(outputs.OutputFile, "open", opened)
        assert run_bertkit(*command).code == 0
        return opened(output)

    monkeypatch.setattr(outputs.OutputFile, "open", late)
    second = run_bertkit(*command)
    assert (second.code, "another process has just begun or finished" in second.err) == (2, True), second.err
    assert len(read_rows(tmp_path / "out.jsonl")) == COUNT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.jsonl"], "no half that unlocks it"


def test_the_first_command_ends_just_before_the_second_one_locks_its_half(
    model: Path, run_bertkit, tmp_path: Path, monkeypatch
) -> None:
    write_rows(tmp_path / "new.csv", rows())
    real = outputs.lock

    def late(partial: Path) -> Any:
        partial.rename(tmp_path / "out.jsonl")
        return real(partial)

    monkeypatch.setattr(outputs, "lock", late)
    second = run_bertkit("predict", model, "new.csv", "--output", "out.jsonl", *FP32)
    assert (second.code, "another process has just finished" in second.err) == (2, True), second.err


def test_outputs_of_one_name_and_patterns_of_nothing_are_refused(model: Path, run_bertkit, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_rows(tmp_path / folder / "x.csv", rows(3))
    ran = run_bertkit("predict", model, "a/x.csv", "b/x.csv", "--output-dir", "out")
    assert (ran.code, "out/x.jsonl" in ran.err, (tmp_path / "out").exists()) == (2, True, False)
    ran = run_bertkit("predict", model, "*.csv", "--output-dir", "out")
    assert (ran.code, "no file matches (*.csv)" in ran.err) == (3, True)
    ran = run_bertkit("predict", model, "a/x.csv", "c.csv", "--output-dir", "out")
    assert (ran.code, "no such file (c.csv)" in ran.err, "echo" in ran.err) == (3, True, False)
    for text in ("where is it?", "It works. Mostly"):
        ran = run_bertkit("predict", model, text)
        assert (ran.code, 'for a single text: echo "TEXT" | bertkit predict' in ran.err) == (3, True)


class Of3:
    """One of three processes."""

    device, num_processes, process_index, is_main_process = torch.device("cpu"), 3, 0, True

    def wait_for_everyone(self) -> None:
        pass


@pytest.mark.parametrize("how", ["predict", "pipe", "eval"])
def test_several_processes_do_not_share_a_pipe(how: str, model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    """Each would get a part of it."""
    os.mkfifo(tmp_path / "pipe")
    of_eval = ("eval", model, "--recipe", "text-classification", "--test", "-", "--split", "test")
    command = {"predict": ("predict", model), "pipe": ("predict", model, "pipe"), "eval": of_eval}[how]
    for name in ("inference.task_predictor.start_processes", "evaluation.evaluate.start_accelerator"):
        monkeypatch.setattr(f"bertkit.runs.{name}", lambda device: Of3())
    ran = run_bertkit(*command, *FP32, stdin=b"the good movie\n")
    named = "pipe" if how == "pipe" else "standard input"
    assert (ran.code, f"only one process can read {named}; 3 were launched" in ran.err) == (2, True), ran.err


def test_a_process_tells_of_the_files_that_only_it_reads(model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    write_rows(tmp_path / "a.jsonl", rows(6))
    write_rows(tmp_path / "b.jsonl", [*rows(3), {"text": None}])
    monkeypatch.setenv("RANK", "1")
    for name, value in (("process_index", 1), ("is_main_process", False)):
        monkeypatch.setattr(Of3, name, value)
    monkeypatch.setattr("bertkit.runs.inference.task_predictor.start_processes", lambda device: Of3())
    ran = run_bertkit("predict", model, "a.jsonl", "b.jsonl", "--on-error", "skip", "--output-dir", "out", *FP32)
    assert (ran.code, "skipped 1 row" in ran.err, "b.jsonl:4" in ran.err, "a.jsonl" in ran.err) == (0, True, True, False), (
        ran.err
    )
    assert "wrote 3 predictions to" in ran.err


@pytest.mark.parametrize("first_fails", [False, True])
def test_processes_share_the_files(first_fails: bool, model: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    """Each as another process would: the last one of them leaves _SUCCESS; a file that fails is predicted when it is mended."""
    for name in "abc":
        write_rows(tmp_path / f"{name}.csv", rows(6))
    folder, written = tmp_path / "out", set()
    command = ("predict", model, "a.csv", "b.csv", "c.csv", "--output-dir", "out", *FP32)
    if first_fails:
        (tmp_path / "a.csv").write_text("text\n", encoding="utf-8")  # no rows
    with monkeypatch.context() as patch:
        for rank in (0, 1, 2):
            patch.setattr(Of3, "process_index", rank)
            patch.setattr(Of3, "is_main_process", rank == 0)
            patch.setattr("bertkit.runs.inference.task_predictor.start_processes", lambda device: Of3())
            assert run_bertkit(*command).code == (3 if first_fails and rank == 0 else 0)
            assert sorted(path.stem for path in folder.glob("*.jsonl")) == [*"abc"][first_fails : rank + 1]
            assert (folder / "_SUCCESS").exists() == (rank == 2 and not first_fails)
            written |= {path.read_bytes() for path in folder.glob("_settings.json")}
    assert len(written) == 1, "all write the same"
    if first_fails:
        write_rows(tmp_path / "a.csv", rows(6))
        assert run_bertkit(*command).code == 0
        assert (folder / "_SUCCESS").exists()
        assert len(read_rows(folder / "a.jsonl")) == 6
