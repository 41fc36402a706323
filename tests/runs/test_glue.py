"""GLUE as a whole: the average of the paper's nine columns, what is kept, and the files of the leaderboard."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertkit.runs import glue, submission

QUICK = ("--max-steps", 1, "--max-length", 16, "--device", "cpu")
ENTAILED, THREE = ("entailment", "not_entailment"), ("entailment", "neutral", "contradiction")
ALL = ["mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "wnli"]
# What each column of the paper's table is, by the score of the task's run.json.
COLUMNS = {
    "MNLI-m": ("mnli", "validation_matched/accuracy"),
    "MNLI-mm": ("mnli", "validation_mismatched/accuracy"),
    "QQP": ("qqp", "validation/f1"),
    "QNLI": ("qnli", "validation/accuracy"),
    "SST-2": ("sst2", "validation/accuracy"),
    "CoLA": ("cola", "validation/matthews_correlation"),
    "STS-B": ("stsb", "validation/spearmanr"),
    "MRPC": ("mrpc", "validation/f1"),
    "RTE": ("rte", "validation/accuracy"),
}
# Rows of the made-up test sets, no two of a kind alike.
TEST_ROWS = {
    "MNLI-m": 3,
    "MNLI-mm": 4,
    "QQP": 5,
    "QNLI": 2,
    "SST-2": 6,
    "CoLA": 7,
    "STS-B": 8,
    "MRPC": 9,
    "RTE": 10,
    "WNLI": 11,
    "AX": 12,
}
SENTENCES = ["the good movie", "a bad book", "we like the river", "no one read it", "an early order", "you know the city"]


def sentence(row: int) -> str:
    return f"{SENTENCES[row % 6]} {row}"


def table(header: tuple[str, ...], rows: int, *values: Callable[[int], Any]) -> str:
    lines = [[str(value(row)) for value in values] for row in range(rows)]
    return "".join("\t".join(line) + "\n" for line in ([list(header)] if header else []) + lines)


def write_glue(root: Path) -> None:
    """GLUE's download in small: its folders, files and columns."""

    def write(folder: str, split: str, header: tuple[str, ...], rows: int, *values: Callable[[int], Any]) -> None:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{split}.tsv").write_text(table(header, rows, *values), encoding="utf-8")

    def number(row: int) -> int:
        return row // 2 % 2

    def other(row: int) -> str:
        return sentence(row + 3)

    def of(*labels: str) -> Callable[[int], str]:
        return lambda row: labels[row % len(labels)]

    pair = ("sentence1", "sentence2")
    quality = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    for split in ("train", "dev"):
        write("CoLA", split, (), 8, of("gj04"), number, of("*"), sentence)
        write("SST-2", split, ("sentence", "label"), 8, sentence, number)
        write("MRPC", split, quality, 8, number, str, str, sentence, other)
        write("STS-B", split, ("index", *pair, "score"), 8, str, sentence, other, lambda row: f"{row * 0.7:.3f}")
        write("RTE", split, ("index", *pair, "label"), 8, str, sentence, other, of(*ENTAILED))
        write("QNLI", split, ("index", "question", "sentence", "label"), 8, str, sentence, other, of(*ENTAILED))
        write("QQP", split, ("id", "question1", "question2", "is_duplicate"), 8, str, sentence, other, of("1", "1", "0"))
        write("WNLI", split, ("index", *pair, "label"), 8, str, sentence, other, of("0", "1"))
    mnli = ("index", *pair, "gold_label")
    for split in ("train", "dev_matched"):
        write("MNLI", split, mnli, 6, str, sentence, other, of(*THREE))
    write("MNLI", "dev_mismatched", mnli, 9, str, other, sentence, of(THREE[2], THREE[2], THREE[1], THREE[0]))
    write("CoLA", "test", ("index", "sentence"), TEST_ROWS["CoLA"], str, sentence)
    write("SST-2", "test", ("index", "sentence"), TEST_ROWS["SST-2"], str, sentence)
    write("MRPC", "test", ("index", *quality[1:]), TEST_ROWS["MRPC"], str, str, str, sentence, other)
    for folder in ("STS-B", "RTE", "WNLI"):
        write(folder, "test", ("index", *pair), TEST_ROWS[folder], str, sentence, other)
    write("QNLI", "test", ("index", "question", "sentence"), TEST_ROWS["QNLI"], str, sentence, other)
    write("QQP", "test", ("id", "question1", "question2"), TEST_ROWS["QQP"], str, sentence, other)
    write("MNLI", "test_matched", ("index", *pair), TEST_ROWS["MNLI-m"], str, sentence, other)
    write("MNLI", "test_mismatched", ("index", *pair), TEST_ROWS["MNLI-mm"], str, other, sentence)
    write("diagnostic", "diagnostic", ("index", *pair), TEST_ROWS["AX"], str, sentence, other)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "glue"
    write_glue(folder)
    return folder


@pytest.fixture(scope="module")
def model(make_model_dir) -> Path:
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, root: Path, model: Path) -> tuple[Path, str]:
    """A folder of runs of all nine tasks, and what the command said. Copy it before changing it."""
    from bertkit.cli import main

    runs = tmp_path_factory.mktemp("runs") / "glue"
    err = io.StringIO()
    argv = ["finetune", "glue", "--data", root, "-m", model, "-o", runs, *QUICK]
    with contextlib.redirect_stderr(err):
        code = main([str(word) for word in argv])
    assert code == 0, err.getvalue()
    return runs, err.getvalue()


@pytest.fixture
def finetune(run_bertkit, root: Path, model: Path):
    def finetune(output: object, *options: object, data: Path = root) -> Any:
        return run_bertkit("finetune", "glue", "--data", data, "-m", model, "-o", output, *QUICK, *options)

    return finetune


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def shown(err: str) -> dict[str, str]:
    """The table of the dev sets: its columns and values as they stand there."""
    lines = err.splitlines()
    at = next(at for at, line in enumerate(lines) if line.strip().endswith(": dev sets"))
    header, row = ([cell.strip() for cell in lines[at + n].strip("┃│").replace("┃", "│").split("│")] for n in (2, 4))
    return dict(zip(header, row, strict=True))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- fine-tuning -------------------------------------------------------------------------------------------------------


def test_the_average_is_of_the_papers_nine_columns(trained) -> None:
    runs, err = trained
    assert sorted(path.name for path in runs.iterdir()) == sorted(ALL)
    scores = {name: read(runs / task / "run.json")["best"]["scores"][score] for name, (task, score) in COLUMNS.items()}
    found = shown(err)
    assert list(found) == [*COLUMNS, "average"], "WNLI is not among them"
    assert {name: value for name, value in found.items() if name != "average"} == {n: f"{v:.4f}" for n, v in scores.items()}
    assert found["average"] == f"{sum(scores.values()) / 9:.4f}"
    # What tells a wrong column or score from the right one:
    assert len({scores["MNLI-m"], scores["MNLI-mm"], scores["QQP"], scores["MRPC"], scores["STS-B"]}) == 5
    for task in ("qqp", "mrpc"):
        assert read(runs / task / "run.json")["best"]["scores"]["validation/accuracy"] != scores[task.upper()]
    assert "no average" not in err
    assert "wnli: 9 of 9" in err


def test_missing_tasks_are_named_and_there_is_no_average(finetune, tmp_path: Path) -> None:
    ran = finetune("runs", "--tasks", "rte, wnli")
    assert ran.code == 0, ran.err
    rte = read(tmp_path / "runs" / "rte" / "run.json")["best"]["scores"]["validation/accuracy"]
    assert shown(ran.err) == {"RTE": f"{rte:.4f}", "average": "-"}
    assert any(line.endswith(": MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC") for line in ran.err.splitlines())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["rte", "wnli"]


def test_what_is_finished_is_kept(finetune, trained, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(trained[0], runs)
    shutil.rmtree(runs / "mrpc")
    before = files_of(runs)
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("model.safetensors")}
    ran = finetune("runs")
    assert ran.code == 0, ran.err
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert {name: content for name, content in files_of(runs).items() if not name.startswith("mrpc/")} == before
    assert [task for task in ALL if f"{task}: finished in runs/{task}" in ran.err] == [task for task in ALL if task != "mrpc"]
    assert "mrpc: 7 of 9" in ran.err
    assert shown(ran.err) == shown(trained[1])


def test_other_settings_are_refused(finetune, make_model_dir, model: Path, trained, root: Path, tmp_path: Path) -> None:
    runs, other_model = tmp_path / "runs", make_model_dir("BertModel", seed=22)
    shutil.copytree(trained[0], runs)
    other_root = tmp_path / "others"
    shutil.copytree(root, other_root)
    before = files_of(runs)
    for options, data, changed in (
        (("--learning-rate", 1e-3), root, "learning_rate was 2e-05, is 0.001 (runs/rte)"),
        (("--max-train-samples", 4), root, "max_train_samples was None, is 4 (runs/rte)"),
        ((), other_root, f"data was '{root}/RTE', is '{other_root}/RTE' (runs/rte)"),
        (("-m", other_model), root, f"name was '{model}', is '{other_model}' (runs/rte)"),
    ):
        ran = finetune("runs", "--tasks", "rte", *options, data=data)
        assert ran.code == 2, ran.err
        assert "error: the folder holds a run with different settings: " in ran.err
        assert changed in ran.err
        assert files_of(runs) == before
    ran = finetune("runs", "--tasks", "rte", "--learning-rate", 1e-3, "--overwrite")
    assert ran.code == 0, ran.err
    assert read(runs / "rte" / "run.json")["training"]["learning_rate"] == 1e-3
    assert files_of(runs / "rte.old-1") == files_of(trained[0] / "rte")


@pytest.mark.parametrize(
    ("removed", "said", "hint"),
    [
        (("RTE",), "rte: no file for train and validation ({0}/RTE)", "--tasks mrpc,wnli"),
        (("RTE/dev.tsv",), "rte: no file for validation ({0}/RTE)", "--tasks mrpc,wnli"),
        (
            ("RTE/train.tsv", "MRPC/dev.tsv"),
            "mrpc: no file for validation ({0}/MRPC); rte: no file for train ({0}/RTE)",
            "--tasks wnli",
        ),
    ],
)
def test_missing_data_is_named_before_anything_is_trained(
    finetune, root: Path, tmp_path: Path, removed: tuple[str, ...], said: str, hint: str
) -> None:
    part = tmp_path / "part"
    shutil.copytree(root, part)
    for name in removed:
        shutil.rmtree(part / name) if (part / name).is_dir() else (part / name).unlink()
    ran = finetune("runs", "--tasks", "mrpc,wnli,rte", data=part)
    assert ran.code == 3
    error, last = ran.err.splitlines()
    assert (error, last.startswith("hint: "), last.endswith(hint)) == (f"error: {said.format(part)}", True, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "what"),
    [
        (("--label-smoothing", 0.1), "--label-smoothing is for one class a text, which --regression does not predict"),
        (("--class-weights", "balanced"), "--class-weights is for one class a text, which --regression does not predict"),
        (("--metric", "accuracy"), "the metric accuracy does not score numbers (--regression)"),
    ],
)
def test_an_option_that_does_not_fit_a_task_is_found_before_anything_is_trained(
    finetune, tmp_path: Path, option: tuple[object, ...], what: str
) -> None:
    ran = finetune("runs", "--tasks", "rte,stsb", *option)
    error, hint = ran.err.splitlines()
    assert (ran.code, error, "--tasks" in hint) == (2, f"error: stsb: {what}", True)
    assert not (tmp_path / "runs").exists()


def test_a_folder_may_have_the_name_of_its_recipe(run_bertkit, root: Path, model: Path, tmp_path: Path) -> None:
    task = ("finetune", "mrpc", "--data", root / "MRPC", "-m", model, "-o", "mrpc", *QUICK)
    for _ in range(2):
        ran = run_bertkit(*task, "--overwrite")
        assert ran.code == 0, ran.err
    assert (tmp_path / "mrpc.old-1" / "run.json").is_file()


def test_a_column_whose_score_was_not_asked_for_is_empty(finetune, tmp_path: Path) -> None:
    ran = finetune("runs", "--tasks", "stsb", "--metric", "mean_squared_error", "--seeds", 2)
    assert ran.code == 0, ran.err
    assert "no average" in ran.err
    each = {seed: read(tmp_path / "runs" / "stsb" / f"seed-{seed}" / "run.json") for seed in (1, 2)}
    errors = {seed: run["best"]["scores"]["validation/mean_squared_error"] for seed, run in each.items()}
    assert submission._run_of(tmp_path / "runs" / "stsb") == [
        tmp_path / "runs" / "stsb" / f"seed-{min(errors, key=errors.get)}"
    ]


def test_both_dev_sets_of_mnli_must_be_there(finetune, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "part")
    (tmp_path / "part" / "MNLI" / "dev_mismatched.tsv").unlink()
    ran = finetune("runs", "--tasks", "mnli", data=tmp_path / "part")
    assert ran.code == 3
    assert ran.err.splitlines() == [f"error: mnli: no file for validation_mismatched ({tmp_path}/part/MNLI)"]


def test_seeds_give_means(finetune, tmp_path: Path) -> None:
    ran = finetune("runs", "--tasks", "stsb,mrpc", "--seeds", 2)
    assert ran.code == 0, ran.err
    each = {
        name: [
            read(tmp_path / "runs" / COLUMNS[name][0] / f"seed-{seed}" / "run.json")["best"]["scores"][COLUMNS[name][1]]
            for seed in (1, 2)
        ]
        for name in ("STS-B", "MRPC")
    }
    assert each["STS-B"][0] != each["STS-B"][1]
    means = {name: f"{(one + two) / 2:.4f}" for name, (one, two) in each.items()}
    assert shown(ran.err) == {**means, "average": "-"}
    again = finetune("runs", "--tasks", "stsb,mrpc", "--seeds", 2)
    assert again.code == 0, again.err
    assert again.err.count("finished in runs/") == 4
    assert shown(again.err) == {**means, "average": "-"}


def test_seeds_are_no_single_runs(finetune, trained, tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "rte", tmp_path / "runs" / "rte")
    ran = finetune("runs", "--tasks", "rte", "--seeds", 2)
    assert (ran.code, ran.err.splitlines()[-2].endswith("(runs/rte)")) == (2, True), ran.err


def test_a_run_without_the_fresh_head_that_is_asked_for(finetune, trained, tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "rte", tmp_path / "runs" / "rte")
    values = read(tmp_path / "runs" / "rte" / "run.json")
    values["model"]["fresh_head"] = False
    (tmp_path / "runs" / "rte" / "run.json").write_text(json.dumps(values), encoding="utf-8")
    ran = finetune("runs", "--tasks", "rte", "--fresh-head")
    assert (ran.code, "fresh_head was False, is True (runs/rte)" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--train", "my.tsv"), "--train"),
        (("--tasks", "mrcp"), "'mrcp'"),
        (("--dry-run",), "--dry-run"),
        (("--seeds", 2, "--seed", 3), "--seed is"),
    ],
)
def test_what_is_refused(finetune, tmp_path: Path, options: tuple[Any, ...], what: str) -> None:
    ran = finetune("runs", *options)
    assert (ran.code, what in ran.err) == (2, True), ran.err
    assert not (tmp_path / "runs").exists()


def test_tasks_are_of_glue_alone(run_bertkit, model: Path, tmp_path: Path) -> None:
    ran = run_bertkit("finetune", "rte", "--tasks", "rte", "-m", model, "-o", "run")
    assert (ran.code, "--tasks" in ran.err) == (2, True)
    assert not (tmp_path / "run").exists()


# --- predictions for the test sets -------------------------------------------------------------------------------------


def predicted(run_bertkit, *argv: object) -> list[dict[str, Any]]:
    ran = run_bertkit("predict", *argv)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_predict_a_split(run_bertkit, trained, root: Path, tmp_path: Path) -> None:
    run = trained[0] / "cola"
    rows = predicted(run_bertkit, run, "--split", "test")
    assert [row["text"] for row in rows] == [sentence(row) for row in range(7)]
    assert {row["label"] for row in rows} <= {"unacceptable", "acceptable"}
    assert rows == predicted(run_bertkit, run, root / "CoLA" / "test.tsv"), "the same rows as a file"
    assert [row["text"] for row in predicted(run_bertkit, run, "--split", "validation")] == [sentence(row) for row in range(8)]
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "test.tsv").write_text("sentence\nno one read it\n", encoding="utf-8")
    assert [row["text"] for row in predicted(run_bertkit, run, "--split", "test", "--data", "others")] == ["no one read it"]
    rows = predicted(run_bertkit, trained[0] / "mnli", "--split", "test_mismatched")
    assert [row["text"] for row in rows] == [sentence(row + 3) for row in range(4)]
    ran = run_bertkit("predict", run, "--split", "test", "--output", "test.csv")
    assert ran.code == 0
    assert len((tmp_path / "test.csv").read_text(encoding="utf-8").splitlines()) == 8


def test_a_split_that_cannot_be_predicted(run_bertkit, trained, root: Path) -> None:
    run = trained[0] / "cola"
    for options, code, what in (
        ((root / "CoLA" / "test.tsv", "--split", "test"), 2, "--split"),
        (("--data", root / "CoLA"), 2, "--data"),
        (("--split", "tset"), 3, "no file for the split tset"),
    ):
        ran = run_bertkit("predict", run, *options)
        assert (ran.code, what in ran.err, ran.out) == (code, True, ""), ran.err


# --- submission --------------------------------------------------------------------------------------------------------

# The rows that the leaderboard expects, as its page has them.
REAL_ROWS = {
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "QQP": 390965,
    "QNLI": 5463,
    "SST-2": 1821,
    "CoLA": 1063,
    "STS-B": 1379,
    "MRPC": 1725,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}
# Which task and split answers a file, and what its labels are called there; None: a number with three digits.
ANSWERED = {
    "MNLI-m": ("mnli", "test_matched", {name: name for name in THREE}),
    "MNLI-mm": ("mnli", "test_mismatched", {name: name for name in THREE}),
    "QQP": ("qqp", "test", {"not_duplicate": "0", "duplicate": "1"}),
    "QNLI": ("qnli", "test", {name: name for name in ENTAILED}),
    "SST-2": ("sst2", "test", {"negative": "0", "positive": "1"}),
    "CoLA": ("cola", "test", {"unacceptable": "0", "acceptable": "1"}),
    "STS-B": ("stsb", "test", None),
    "MRPC": ("mrpc", "test", {"not_equivalent": "0", "equivalent": "1"}),
    "RTE": ("rte", "test", {name: name for name in ENTAILED}),
    "WNLI": ("wnli", "test", {"not_entailment": "0", "entailment": "1"}),
}


def expect_rows(monkeypatch: pytest.MonkeyPatch, rows: dict[str, int]) -> None:
    """Let the leaderboard expect so many rows in these files."""

    def small(task: glue.GlueTask) -> glue.GlueTask:
        return replace(task, files={file: (split, rows.get(file, count)) for file, (split, count) in task.files.items()})

    for name, task in list(glue.TASKS.items()):
        monkeypatch.setitem(glue.TASKS, name, small(task))
    monkeypatch.setattr("bertkit.runs.submission.AX", small(glue.AX))


def column(content: str) -> list[str]:
    """The predictions of a file, whose header and index must be right."""
    header, *lines = content.splitlines()
    assert header == "index\tprediction"
    assert content.endswith("\n")
    assert [line.split("\t")[0] for line in lines] == [str(row) for row in range(len(lines))]
    return [line.split("\t")[1] for line in lines]


def test_the_files_of_the_leaderboard(
    run_bertkit, trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    ran = run_bertkit("submission", trained[0], "-o", "out")
    assert ran.code == 0, ran.err
    assert "constant" not in ran.err
    names = {f"{file}.tsv" for file in TEST_ROWS}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"submission.zip"}
    found = {file: (tmp_path / "out" / f"{file}.tsv").read_text(encoding="utf-8") for file in TEST_ROWS}
    for file, (task, split, spelt) in ANSWERED.items():
        rows = predicted(run_bertkit, trained[0] / task, "--split", split)
        expected = [spelt[row["label"]] if spelt else f"{row['prediction']:.3f}" for row in rows]
        assert column(found[file]) == expected, file
        assert len(expected) == TEST_ROWS[file]
    asked = predicted(
        run_bertkit,
        trained[0] / "mnli",
        root / "diagnostic" / "diagnostic.tsv",
        "--text",
        "sentence1",
        "--text-pair",
        "sentence2",
    )
    assert column(found["AX"]) == [row["label"] for row in asked]
    several = [file for file in found if len(set(column(found[file]))) > 1]
    assert {"AX", "STS-B", "CoLA"} <= set(several), "a constant would do for the others"
    with zipfile.ZipFile(tmp_path / "out" / "submission.zip") as packed:
        assert set(packed.namelist()) == names
        assert len(packed.namelist()) == len(names)
        assert {name: packed.read(name).decode() for name in names} == {f"{file}.tsv": text for file, text in found.items()}
        for entry in packed.infolist():
            assert entry.compress_type == zipfile.ZIP_DEFLATED
            assert entry.external_attr >> 16 == 0o644, "unzip would make a file that nobody may read"


def test_missing_tasks_are_filled_and_named(run_bertkit, trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expect_rows(monkeypatch, {"RTE": TEST_ROWS["RTE"]})
    ran = run_bertkit("submission", trained[0] / "rte", "-o", "out")
    assert ran.code == 0, ran.err
    others = [file for file in REAL_ROWS if file != "RTE"]
    assert any(line.startswith("warning: ") and line.endswith(f": {', '.join(others)}") for line in ran.err.splitlines())
    constants = {"STS-B": "0.000", "QNLI": "entailment", "MNLI-m": "entailment", "MNLI-mm": "entailment", "AX": "entailment"}
    for file in others:
        found = column((tmp_path / "out" / f"{file}.tsv").read_text(encoding="utf-8"))
        assert len(found) == REAL_ROWS[file]
        assert set(found) == {constants.get(file, "0")}
    said = [row["label"] for row in predicted(run_bertkit, trained[0] / "rte", "--split", "test")]
    assert column((tmp_path / "out" / "RTE.tsv").read_text(encoding="utf-8")) == said


def test_of_several_seeds_the_best_on_the_dev_set_is_sent(
    run_bertkit, finetune, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    assert finetune("runs", "--tasks", "stsb,cola", "--seeds", 2).code == 0
    ran = run_bertkit("submission", "runs", "-o", "out")
    assert ran.code == 0, ran.err
    assert run_bertkit("submission", "runs/stsb", "runs/cola", "-o", "again").code == 0
    for file, task in (("STS-B", "stsb"), ("CoLA", "cola")):
        runs = [Path("runs", task, f"seed-{seed}") for seed in (1, 2)]
        scores = [read(run / "run.json")["best"]["scores"][COLUMNS[file][1]] or 0.0 for run in runs]
        said = [predicted(run_bertkit, run, "--split", "test") for run in runs]
        assert said[0] != said[1]
        best = said[scores.index(max(scores))]
        spelt = ANSWERED[file][2]
        expected = [spelt[row["label"]] if spelt else f"{row['prediction']:.3f}" for row in best]
        for out in ("out", "again"):
            assert column((tmp_path / out / f"{file}.tsv").read_text(encoding="utf-8")) == expected
    shutil.rmtree(tmp_path / "runs" / "cola" / "seed-1")
    ran = run_bertkit("submission", "runs/cola", "-o", "third")
    assert (ran.code, "there is no run.json (runs/cola/seed-1)" in ran.err) == (2, True), ran.err


def test_rows_are_counted_before_anything_is_predicted(run_bertkit, trained, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_rows(monkeypatch, {file: count for file, count in TEST_ROWS.items() if file != "WNLI"})
    predictions = []
    monkeypatch.setattr("bertkit.runs.submission.predict_examples", lambda *asked: predictions.append(asked))
    ran = run_bertkit("submission", trained[0], "-o", "out")
    assert (ran.code, "error: the test set of wnli has 11 rows; the leaderboard expects 146" in ran.err) == (3, True), ran.err
    assert predictions == []


def test_too_few_rows_are_refused(run_bertkit, trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = run_bertkit("submission", trained[0] / "mrpc", "-o", "out")
    assert ran.code == 3
    assert f"error: the test set of mrpc has 9 rows; the leaderboard expects 1725 ({root}/MRPC/test.tsv)" in ran.err
    assert not (tmp_path / "out").exists()
    expect_rows(monkeypatch, {file: count for file, count in TEST_ROWS.items() if file != "AX"})
    ran = run_bertkit("submission", trained[0] / "mnli", "-o", "out")
    assert ran.code == 3
    assert "error: the test set of ax has 12 rows; the leaderboard expects 1104" in ran.err
    assert not (tmp_path / "out").exists()


def test_data_of_another_folder(run_bertkit, trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = tmp_path / "others"
    for folder in ("CoLA", "MNLI", "diagnostic"):
        shutil.copytree(root / folder, others / folder)
    (others / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tno one read it\n1\ta bad book\n", encoding="utf-8")
    pair = "index\tsentence1\tsentence2\n"
    (others / "diagnostic" / "diagnostic.tsv").write_text(f"{pair}0\ta bad book\tno one\n", encoding="utf-8")
    expect_rows(monkeypatch, TEST_ROWS | {"CoLA": 2, "AX": 1})
    ran = run_bertkit("submission", trained[0] / "cola", trained[0] / "mnli", "--data", others, "-o", "out")
    assert ran.code == 0, ran.err
    lengths = {file: len(column((tmp_path / "out" / f"{file}.tsv").read_text(encoding="utf-8"))) for file in TEST_ROWS}
    assert lengths == TEST_ROWS | {"CoLA": 2, "AX": 1}


def test_what_overwrite_moved_aside_is_no_second_run(
    run_bertkit, trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    for name in ("rte", "rte.old-1"):
        shutil.copytree(trained[0] / "rte", tmp_path / "runs" / name)
    ran = run_bertkit("submission", "runs", "-o", "out")
    assert ran.code == 0, ran.err
    assert "rte.old-1" not in ran.err


def test_runs_that_are_refused(run_bertkit, trained, tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "rte", tmp_path / "other")
    values = read(tmp_path / "other" / "run.json")
    shutil.copytree(tmp_path / "other", tmp_path / "foreign")
    values["recipe"]["name"] = "imdb"
    (tmp_path / "foreign" / "run.json").write_text(json.dumps(values), encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "some" / "rte").mkdir(parents=True)
    (tmp_path / "some" / "rte" / "seeds.json").write_text('{"plan": {}}', encoding="utf-8")
    shutil.copytree(trained[0] / "cola", tmp_path / "unfinished")
    values = read(tmp_path / "unfinished" / "run.json") | {"status": "running"}
    (tmp_path / "unfinished" / "run.json").write_text(json.dumps(values), encoding="utf-8")
    for runs, what in (
        (("unfinished",), "(unfinished)"),
        (("some",), "(some/rte)"),
        ((trained[0], "other"), f"{trained[0]}/rte and other"),
        (("foreign",), "(foreign)"),
        (("empty",), "(empty)"),
        (("nowhere",), "(nowhere)"),
    ):
        ran = run_bertkit("submission", *runs, "-o", "out")
        assert (ran.code, ran.err.splitlines()[0].endswith(what)) == (2, True), ran.err
        assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    ran = run_bertkit("submission", trained[0], "-o", "file")
    assert (ran.code, ran.err.splitlines()[0].endswith("(file)")) == (2, True)


def test_what_is_there_is_not_written_into(run_bertkit, trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "RTE.tsv").write_text("mine", encoding="utf-8")
    ran = run_bertkit("submission", trained[0] / "rte", "-o", "out")
    assert (ran.code, ran.err.splitlines()[0].endswith(" (out)")) == (2, True), ran.err
    ran = run_bertkit("submission", trained[0] / "rte", "-o", "out", "--overwrite")
    assert ran.code == 0, ran.err
    assert [path.name for path in (tmp_path / "out.old-1").iterdir()] == ["RTE.tsv"]
    assert (tmp_path / "out" / "RTE.tsv").read_text(encoding="utf-8") != "mine"
