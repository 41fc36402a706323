"""Commands treat input given by URL like local files, except for the names; outputs and folders must be local."""

from __future__ import annotations

import gzip
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import typer
from fsspec.registry import known_implementations
from remote_files import Store, put, web

from bertkit.cli.commands import app

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("empty_stores")]
CPU = ("--device", "cpu", "--precision", "fp32")
ROWS = [(f"the {kind} movie {row}", label) for row in range(20) for kind, label in (("good", "praise"), ("bad", "blame"))]
TEXT = "".join(f"The good movie plays {row}.\nIt was late.\n\nA bad bank {row}.\n\n" for row in range(200))


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=("blame", "praise"))


def write_rows(path: Path, rows: list[tuple[str, str]] = ROWS) -> Path:
    data = ("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- predict ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["new.csv", "new.csv.gz"])
def test_predictions_are_those_of_the_local_file(name: str, model: Path, run_bertkit, tmp_path: Path) -> None:
    path = write_rows(tmp_path / name)
    local = run_bertkit("predict", model, name, "--keep", "all", "--output", "local.jsonl", *CPU)
    assert (local.code, len((tmp_path / "local.jsonl").read_text().splitlines())) == (0, len(ROWS))
    for number, url in enumerate((put(path), f"file://{path}")):
        ran = run_bertkit("predict", model, url, "--keep", "all", "--output", f"{number}.jsonl", *CPU)
        assert (ran.code, ran.err.replace(f"{number}.jsonl", "local.jsonl")) == (0, local.err)
        assert (tmp_path / f"{number}.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert run_bertkit("predict", model, url, "--format", "csv", *CPU).out.count("\n") == 1 + len(ROWS)


def test_a_pattern_of_urls_to_a_folder_and_a_file_that_changes(model: Path, run_bertkit, tmp_path: Path) -> None:
    for name, rows in (("a.csv", ROWS), ("b.csv", ROWS[:7])):
        put(write_rows(tmp_path / "in" / name, rows), "in")
    assert run_bertkit("predict", model, "in/*.csv", "--output-dir", "local", *CPU).code == 0
    command = ("predict", model, "memory://in/*.csv", "--output-dir", "out", *CPU)
    assert run_bertkit(*command).code == 0
    out, local = files_of(tmp_path / "out"), files_of(tmp_path / "local")
    assert sorted(out) == ["_SUCCESS", "_settings.json", "a.jsonl", "b.jsonl"]
    assert [out[name] for name in ("a.jsonl", "b.jsonl")] == [local[name] for name in ("a.jsonl", "b.jsonl")]
    again = run_bertkit(*command)
    assert (again.code, again.err.splitlines()) == (0, ["out/a.jsonl already exists", "out/b.jsonl already exists"])
    put(write_rows(tmp_path / "in" / "b.csv", ROWS[:7]), "in")  # as large as before
    again = run_bertkit(*command)
    assert (again.code, "out/b.jsonl already exists, from an earlier memory://in/b.csv" in again.err) == (2, True)
    assert files_of(tmp_path / "out") == out


def test_a_bad_row_is_named_by_url_and_row(model: Path, run_bertkit, tmp_path: Path) -> None:
    url = put(write_rows(tmp_path / "new.csv", [*ROWS, ("a text, with a comma", "praise")]))
    ran = run_bertkit("predict", model, url, "--output", "out.csv", *CPU)
    assert (ran.code, f"({url}:{len(ROWS) + 2})" in ran.err) == (3, True), ran.err
    skipped = run_bertkit("predict", model, url, "--output", "out.csv", "--on-error", "skip", "--overwrite", *CPU)
    assert (skipped.code, f"{url}:{len(ROWS) + 2}" in skipped.err) == (0, True)


def test_an_output_is_no_input(model: Path, run_bertkit, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "new.csv")
    before = path.read_bytes()
    for output in (("--output", "new.csv"), ("--output-dir", ".", "--format", "csv")):
        ran = run_bertkit("predict", model, f"file://{path}", *output, "--overwrite", *CPU)
        assert (ran.code, "is the input file" in ran.err) == (2, True)
    assert path.read_bytes() == before


# --- check and finetune ----------------------------------------------------------------------------------------------------


def test_check_says_what_it_says_of_the_local_file(run_bertkit, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mine.csv", [*ROWS, ROWS[0], ("the good movie 3", "blame")])
    expected = run_bertkit("check", path, "--json")
    assert f"{path}:42" in expected.out, "a duplicate is named by its row"
    for url in (put(path), f"file://{path}"):
        ran = run_bertkit("check", url, "--json")
        assert (ran.code, json.loads(ran.out)) == (0, json.loads(expected.out.replace(str(path), url)))
        told = [[line for line in each.err.splitlines() if "\u2502" in line or "warning" in line] for each in (ran, expected)]
        assert [line.replace(url, str(path)) for line in told[0]] == told[1]


def test_fine_tuning_is_that_on_the_local_files(model: Path, run_bertkit, tmp_path: Path) -> None:
    train, test = write_rows(tmp_path / "train.csv"), write_rows(tmp_path / "dev.csv", ROWS[::3])
    how = ("--model", model, "--max-steps", 2, "--max-length", 16, *CPU)
    for files, name in (((train, test), "local"), ((put(train), put(test)), "remote")):
        ran = run_bertkit("finetune", "--train", files[0], "--validation", files[1], "--output-dir", name, *how)
        assert ran.code == 0, ran.err
    local, remote = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("local", "remote"))
    assert remote["data"]["train"] == {**local["data"]["train"], "source": "memory://store/train.csv"}
    assert (remote["recipe"]["train"], remote["best"]) == ("memory://store/train.csv", local["best"])
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("local", "remote")]
    assert weights[0] == weights[1]
    evaluated = run_bertkit("eval", "remote", *CPU)
    assert (evaluated.code, evaluated.out) == (0, run_bertkit("eval", "local", *CPU).out.replace("local", "remote"))


# --- corpora ---------------------------------------------------------------------------------------------------------------


def test_corpora_and_tokenizers_are_those_of_local_files(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "more").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text(TEXT)
    (tmp_path / "in" / "more" / "b.txt.gz").write_bytes(gzip.compress(TEXT.replace("late", "early").encode()))
    memory = fsspec.filesystem("memory")
    for path in ("a.txt", "more/b.txt.gz"):
        memory.pipe_file(f"/in/{path}", (tmp_path / "in" / path).read_bytes())
    build = ("corpus", "build", "--tokenizer", tiny_tokenizer_dir, "--validation", "10%", "--num-processes", 1)
    for place, name in (("in", "local"), ("memory://in", "m"), (f"file://{tmp_path}/in", "f"), ("memory://in/**/*.txt*", "g")):
        ran = run_bertkit(*build, place, "--output-dir", name)
        assert ran.code == 0, ran.err
        ran = run_bertkit("tokenizer", "train", place, "--vocab-size", 150, "--output-dir", f"t-{name}")
        assert ran.code == 0, ran.err
        assert files_of(tmp_path / f"t-{name}") == files_of(tmp_path / "t-local")
    expected = files_of(tmp_path / "local")
    for name, begin in (("m", "memory://in"), ("f", f"file://{tmp_path}/in"), ("g", "memory://in")):
        found = files_of(tmp_path / name)
        assert found["meta.json"].replace(begin.encode(), b"in") == expected["meta.json"]
        differ = {path for path in expected if found[path] != expected[path]}
        assert (differ, set(found)) == ({"meta.json", "manifest.json"}, set(expected)), "which lists the former's hash"


# --- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("store://denied.csv", 3, "error: access to the file is denied (store://denied.csv)"),
        ("store://cut.csv", 5, "error: cannot read the file: reset by peer (store://cut.csv)"),
        ("store://none.csv", 3, "error: no such file (store://none.csv)"),
        ("far://bucket/a.csv", 5, "error: far:// needs the package far_fs, which is not installed (far://bucket/a.csv)"),
        ("stor://a.csv", 2, "error: the protocol stor:// is not known (stor://a.csv)"),
    ],
)
def test_each_failure_is_one_line(
    url: str, code: int, words: str, model: Path, run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setitem(known_implementations, "far", {"class": "far_fs.FileSystem", "err": "Install it"})
    data = write_rows(tmp_path / "a.csv", ROWS * 500).read_bytes()
    Store.files.update({"denied.csv": data, "cut.csv": data})
    Store.errors.update({("info", "denied.csv"): PermissionError(), ("read", "cut.csv"): ConnectionError("reset\nby peer")})
    Store.errors["open", "denied.csv"] = PermissionError()
    for command in (
        ("predict", model, url, "--output", "out.csv", *CPU),
        ("corpus", "build", url, "-t", tiny_tokenizer_dir, "-o", "corpus", "--num-processes", 1),
        ("tokenizer", "train", url, "--vocab-size", 150, "-o", "tokenizer"),
        ("finetune", "text-classification", "--train", url, "--model", model, "-o", "run", *CPU),
        ("check", url),
    ):
        ran = run_bertkit(*command)
        lines = [line for line in ran.err.splitlines() if line.startswith(("error: ", "hint: "))]
        if command[0] == "check" and code == 3:  # it reports all that is wrong with the data
            assert (ran.code, words.removeprefix("error: ") in ran.err, "Traceback" in ran.err) == (3, True, False), ran.err
        else:
            assert (ran.code, lines[:1], len(lines)) == (code, [words], 2), ran.err
        assert not (tmp_path / "out.csv").exists()


def test_an_error_of_the_web_is_one_line(model: Path, run_bertkit, tmp_path: Path) -> None:
    with web({"/in/a.csv": write_rows(tmp_path / "a.csv").read_bytes(), "/b.csv": 403}, {}) as address:
        ran = run_bertkit("predict", model, f"{address}/in/a.csv", "--output-dir", "out", *CPU)
        assert (ran.code, len((tmp_path / "out/a.jsonl").read_text().splitlines())) == (0, len(ROWS))
        denied = run_bertkit("predict", model, f"{address}/b.csv", *CPU)
        assert (denied.code, f"error: access to the file is denied ({address}/b.csv)" in denied.err) == (3, True)


def path_options() -> list[tuple[tuple[str, ...], str]]:
    """Each command with each of its options that is a path."""
    found = []
    groups: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app()))]
    while groups:
        names, command = groups.pop()
        groups += [((*names, name), each) for name, each in getattr(command, "commands", {}).items()]
        annotations = inspect.signature(command.callback, eval_str=True).parameters if command.callback else {}
        for param in command.params:
            kind = str(annotations[param.name].annotation) if param.name in annotations else ""
            if param.param_type_name == "option" and re.search(r"\bPath\b", kind):
                found.append((names, max(param.opts, key=len)))
    return found


def test_folders_are_local(run_bertkit, model: Path, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    options = path_options()
    of = {("predict",), ("finetune",), ("corpus", "build"), ("corpus", "merge"), ("tokenizer", "extend"), ("export",)}
    assert of <= {names for names, _ in options}
    assert {"--output", "--output-dir", "--config"} <= {option for _, option in options}
    needed = {
        ("corpus", "merge"): ["c"],
        ("corpus", "build"): ["x.txt", "--tokenizer", tiny_tokenizer_dir],
        **{names: ["x"] for names, _ in options if names[0] not in ("corpus", "finetune", "recipes")},
        ("tokenizer", "extend"): ["m", "x.txt"],
    }
    for names, option in options:
        for given in ([option, "s3://bucket/out"], [f"{option}=s3://bucket/out"]):
            must_write = option != "--output-dir" and names[0] in ("pretrain", "reproduce", "export", "submission")
            more = ["--output-dir", "o"] if must_write else []
            ran = run_bertkit(*names, *needed.get(names, []), *given, *more)
            words = f"error: {option} is a URL; expected a local file or folder (s3://bucket/out)"
            assert (ran.code, ran.err.splitlines()[:1]) == (2, [words]), (names, ran.err)
    for command, code in (
        (("predict", "s3://bucket/model", put(model / "vocab.txt")), 4),
        (("eval", "s3://bucket/model"), 4),
        (("serve", "s3://bucket/model"), 4),
        (("finetune", "mrpc", "--data", "s3://bucket/in", "--model", model, "-o", "o"), 2),
        (("finetune", "--data", "s3://bucket/in", "--model", model, "-o", "o"), 2),
        (("pretrain", "s3://bucket/corpus", "--model-size", "tiny", "-o", "o"), 2),
        (("corpus", "build", put(model / "vocab.txt"), "-t", "s3://bucket/t", "-o", "o"), 4),
        (("corpus", "merge", "s3://bucket/c", "-o", "o"), 2),
        (("push", "s3://bucket/run", "me/mine"), 2),
        (("--", "recipes", "mrpc", "--copy", "s3://bucket/mine.py"), 2),
    ):
        ran = run_bertkit(*command)
        assert (ran.code, len(ran.err.splitlines()), "local" in ran.err) == (code, 2, True), ran.err
    assert [*tmp_path.iterdir()] == [], "nothing is written"
