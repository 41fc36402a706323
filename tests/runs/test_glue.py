"""GLUE as a whole: the average of the nine columns of the paper, finished tasks, and the files of the leaderboard."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trained import predictions_of, read_json, windows_of

from bertkit.cli.presets import PRESETS
from bertkit.errors import DataError, UsageError, UserError
from bertkit.model.devices import OneProcess
from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.glue import benchmark as glue
from bertkit.runs.glue import submission
from bertkit.runs.glue.benchmark import finetune_glue
from bertkit.runs.glue.submission import write_submission
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.request import Request
from bertkit.runs.series import SEEDS
from bertkit.runs.target import open_target
from bertkit.tasks import Prediction
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import input_paths, read_splits

pytestmark = pytest.mark.e2e
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
FILES = ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "WNLI", "AX"]
TEST_ROWS = dict(zip(FILES, (3, 4, 5, 2, 6, 7, 8, 9, 10, 11, 12), strict=True))
COLUMN_KINDS = {
    "label": "label,Quality,score,is_duplicate,gold_label",
    "id": "index,id,#1 ID,#2 ID",
    "text": "sentence,sentence1,sentence2,question,question1,question2,#1 String,#2 String",
}
KINDS = {name: kind for kind, names in COLUMN_KINDS.items() for name in names.split(",")}
SENTENCES = ["the good movie", "a bad book", "we like the river", "no one read it", "an early order", "you know the city"]


def sentence(row: int) -> str:
    return f"{SENTENCES[row % 6]} {row}"


def write_glue(root: Path) -> None:
    """GLUE's download in small: its folders, files and columns."""

    def write(file: str, rows: int, columns: str, labels: Sequence[str] = (), *, header: bool = True, texts: int = 1) -> None:
        lines = [columns.split(",")] if header else []
        for row in range(rows):
            pair = iter((sentence(row), sentence(row + 3))[::texts])
            cell = {"label": lambda: labels[row % len(labels)], "text": lambda: next(pair), "id": lambda: str(row)}  # noqa: B023
            lines.append([cell[KINDS[name]]() if name in KINDS else name for name in columns.split(",")])
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")

    pair, halves = "index,sentence1,sentence2", "0011"
    for split in ("train", "dev"):
        write(f"CoLA/{split}.tsv", 8, "gj04,label,*,sentence", halves, header=False)
        write(f"SST-2/{split}.tsv", 8, "sentence,label", halves)
        write(f"MRPC/{split}.tsv", 8, "Quality,#1 ID,#2 ID,#1 String,#2 String", halves)
        write(f"STS-B/{split}.tsv", 8, f"{pair},score", [f"{row * 0.7:.3f}" for row in range(8)])
        write(f"RTE/{split}.tsv", 8, f"{pair},label", ENTAILED)
        write(f"QNLI/{split}.tsv", 8, "index,question,sentence,label", ENTAILED)
        write(f"QQP/{split}.tsv", 8, "id,question1,question2,is_duplicate", "110")
        write(f"WNLI/{split}.tsv", 8, f"{pair},label", "01")
    for split in ("train", "dev_matched"):
        write(f"MNLI/{split}.tsv", 6, f"{pair},gold_label", THREE)
    write("MNLI/dev_mismatched.tsv", 9, f"{pair},gold_label", (THREE[2], *THREE[::-1]), texts=-1)
    write("CoLA/test.tsv", TEST_ROWS["CoLA"], "index,sentence")
    write("SST-2/test.tsv", TEST_ROWS["SST-2"], "index,sentence")
    write("MRPC/test.tsv", TEST_ROWS["MRPC"], "index,#1 ID,#2 ID,#1 String,#2 String")
    for folder in ("STS-B", "RTE", "WNLI"):
        write(f"{folder}/test.tsv", TEST_ROWS[folder], pair)
    write("QNLI/test.tsv", TEST_ROWS["QNLI"], "index,question,sentence")
    write("QQP/test.tsv", TEST_ROWS["QQP"], "id,question1,question2")
    write("MNLI/test_matched.tsv", TEST_ROWS["MNLI-m"], pair)
    write("MNLI/test_mismatched.tsv", TEST_ROWS["MNLI-mm"], pair, texts=-1)
    write("diagnostic/diagnostic.tsv", TEST_ROWS["AX"], pair)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "glue"
    write_glue(folder)
    return folder


@pytest.fixture(scope="module")
def options(root: Path) -> dict[str, Any]:
    return {"data": str(root), "max_steps": 1, "max_length": 16, "device": "cpu"}


@pytest.fixture(scope="module")
def model(make_model_dir) -> str:
    return str(make_model_dir("BertModel", seed=21, initializer_range=0.5))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, options, model: str) -> tuple[Path, dict[str, float | None]]:
    """A folder of runs of all nine tasks, and the columns of the table. Copy it before changing it."""
    runs = tmp_path_factory.mktemp("runs") / "glue"
    return runs, finetune_glue((), options, finetune, runs, model=model)


class Run:
    """In place of `finetune` or `finetune_series`: notes the tasks that it is called for, and returns a result."""

    def __init__(self, result: dict[str, Any] | None = None) -> None:
        self.tasks: list[str] = []
        self.result = result or {"best": {"scores": {}}}

    def __call__(self, request: Request, output_dir: Path, **arguments: Any) -> dict[str, Any]:
        self.tasks.append(request.name)
        self.arguments = arguments
        return self.result


def change(path: Path, **parts: dict[str, Any] | str) -> None:
    """Change keys of a run.json, or of parts of it."""
    values = read_json(path)
    for name, part in parts.items():
        values[name] = {**values[name], **part} if isinstance(part, dict) else part
    path.write_text(json.dumps(values), encoding="utf-8")


# --- fine-tuning -----------------------------------------------------------------------------------------------------------


def test_the_average_is_of_the_nine_columns_of_the_paper(trained) -> None:
    runs, found = trained
    assert sorted(path.name for path in runs.iterdir()) == sorted(ALL)
    scores = {name: read_json(runs / task / "run.json")["best"]["scores"][score] for name, (task, score) in COLUMNS.items()}
    assert list(found) == [*COLUMNS, "average"]
    assert found == {**scores, "average": pytest.approx(sum(scores.values()) / 9)}
    # What tells a wrong column or score from the right one:
    assert len({scores["MNLI-m"], scores["MNLI-mm"], scores["QQP"], scores["MRPC"], scores["STS-B"]}) == 5
    for task in ("qqp", "mrpc"):
        assert read_json(runs / task / "run.json")["best"]["scores"]["validation/accuracy"] != scores[task.upper()]


def test_finished_tasks_are_kept(trained, options, model: str, tmp_path: Path) -> None:
    runs, before = trained
    shutil.copytree(runs, tmp_path / "runs", ignore=lambda folder, names: {"mrpc"} & set(names))
    run = Run(read_json(runs / "mrpc" / "run.json"))
    assert finetune_glue((), options, run, tmp_path / "runs", model=model) == before
    assert run.tasks == ["mrpc"]
    finetune_glue(["rte"], options, run, tmp_path / "runs", model=model, overwrite=True)
    assert (run.tasks[1:], run.arguments["overwrite"]) == (["rte"], True)


def test_scores_of_seeds_are_means_and_a_missing_one_is_empty(options, model: str, tmp_path: Path) -> None:
    run = Run({"seeds": [1, 2], "scores": {"validation/f1": {"mean": 0.5}}})
    found = finetune_glue(["mrpc", "stsb"], options, run, tmp_path, several=True, model=model)
    assert found == {"MRPC": 0.5, "STS-B": None, "average": None}


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"learning_rate": 1e-3}, "learning_rate was 2e-05, now 0.001"),
        ({"max_train_samples": 4}, "max_train_samples was None, now 4"),
        ({"data": "elsewhere"}, "data was "),
        ({"model": "other"}, "name was "),
        ({"fresh_head": True}, "fresh_head was False, now True"),
    ],
)
def test_a_finished_task_with_other_settings_is_refused(
    trained, root: Path, options, model: str, tmp_path: Path, changed: dict[str, Any], value: str
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(trained[0] / "rte", runs / "rte")
    change(runs / "rte" / "run.json", model={"fresh_head": "fresh_head" not in changed})
    if "data" in changed:
        shutil.copytree(root, tmp_path / "elsewhere")
        changed = {"data": str(tmp_path / "elsewhere")}
    given = {"model": model, **{name: value for name, value in changed.items() if name in ("model", "fresh_head")}}
    with pytest.raises(UsageError) as error:
        finetune_glue(["rte"], options | changed if not given.keys() & changed else options, Run(), runs, **given)
    assert (error.value.where, value in error.value.what) == (str(runs / "rte"), True)


@pytest.mark.parametrize(
    ("tasks", "changes", "error_class", "values"),
    [
        (
            "mrpc,wnli,rte",
            "RTE/train.tsv RTE/dev.tsv",
            DataError,
            ["rte: ", "train and validation", "/RTE)", "--tasks mrpc,wnli"],
        ),
        ("mrpc,wnli,rte", "RTE/dev.tsv", DataError, ["rte: ", "validation", "/RTE)", "--tasks mrpc,wnli"]),
        ("mrpc,wnli,rte", "RTE/train.tsv MRPC/dev.tsv", DataError, ["mrpc: ", "/MRPC); rte: ", "/RTE)", "--tasks wnli"]),
        ("mnli", "MNLI/dev_mismatched.tsv", DataError, ["validation_mismatched", "/MNLI)"]),
        ("rte,stsb", {"label_smoothing": 0.1}, UsageError, ["stsb: --label-smoothing"]),
        ("rte,stsb", {"class_weights": "balanced"}, UsageError, ["stsb: --class-weights"]),
        ("rte,stsb", {"metric": "accuracy"}, UsageError, ["stsb: the metric accuracy"]),
        ("rte", {"train": "my.tsv"}, UsageError, ["--train"]),
        ("rte,mrcp", {}, UsageError, ["'mrcp'", "mrpc?"]),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    root: Path, options, model: str, tmp_path: Path, tasks: str, changes: Any, error_class: type[UserError], values: list[str]
) -> None:
    """changes: options, or files that are missing."""
    if isinstance(changes, str):
        shutil.copytree(root, tmp_path / "part")
        for name in changes.split():
            (tmp_path / "part" / name).unlink()
        changes = {"data": str(tmp_path / "part")}
    run = Run()
    with pytest.raises(error_class) as error:
        finetune_glue(tasks.split(","), options | changes, run, tmp_path / "runs", model=model)
    assert [value for value in values if value not in f"{error.value.what} {error.value.hint}"] == []
    assert run.tasks == []


def test_the_command_names_tasks_and_options(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("bertkit.runs.glue.benchmark.finetune_glue", lambda *values, **named: given.extend([*values, named]))
    how = ("-m", "model", "-o", "runs", "--preset", "stable", "--learning-rate", "1e-3")
    assert run_bertkit("finetune", "glue", "--tasks", "rte, wnli", "--seeds", 2, *how).code == 0
    tasks, options, run, folder, named = given
    assert (tasks, options["learning_rate"], options["num_epochs"]) == (["rte", "wnli"], 1e-3, PRESETS["stable"]["num_epochs"])
    assert (run.args, run.keywords, named["several"], named["model"], folder) == (
        (SEEDS,),
        {"count": 2},
        True,
        "model",
        Path("runs"),
    )


def test_only_a_recipe_in_a_file_is_an_input() -> None:
    recipe = load_recipe("mrpc").overridden({"data": "glue/MRPC"})
    assert [path for path in input_paths(recipe, "mrpc") if path] == [Path("glue/MRPC")]  # a folder mrpc may be the run's
    assert [path for path in input_paths(recipe, "/my/mrpc.py") if path] == [Path("glue/MRPC"), Path("/my/mrpc.py")]


# --- predictions for the test sets -----------------------------------------------------------------------------------------


def predicted(run: Path, split: str, **options: str) -> tuple[list[Any], list[Any]]:
    """The first texts and the values of the predictions of a split."""
    target = open_target(str(run), None, options)
    recipe = target.task.recipe.resolved()
    predictor = TaskPredictor(target.with_recipe(recipe), OneProcess.on("cpu"))
    examples = predictor.standard(read_splits(recipe, [split]).rows[split])
    return examples.columns["text"], [found.value for found in predictor.predict_examples(examples)]


def test_a_split_is_predicted_like_a_file(trained, root: Path, tmp_path: Path) -> None:
    run = trained[0] / "cola"
    texts, values = predicted(run, "test")
    assert texts == [sentence(row) for row in range(7)]
    (window,) = windows_of(open_target(str(run), None, {}), str(root / "CoLA" / "test.tsv"))
    assert (window.examples.columns["text"], [found.value for found in window.predictions]) == (texts, values)
    assert predicted(run, "validation")[0] == [sentence(row) for row in range(8)]
    assert predicted(trained[0] / "mnli", "test_mismatched")[0] == [sentence(row + 3) for row in range(4)]
    (tmp_path / "test.tsv").write_text("sentence\nno one read it\n", encoding="utf-8")
    assert predicted(run, "test", data=str(tmp_path))[0] == ["no one read it"]
    with pytest.raises(DataError) as error:
        predicted(run, "tset")
    assert "tset" in error.value.what


# --- submission --------------------------------------------------------------------------------------------------------

# The rows that the leaderboard expects, as its page has them.
REAL_ROWS = dict(zip(FILES, (9796, 9847, 390965, 5463, 1821, 1063, 1379, 1725, 3000, 146, 1104), strict=True))
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
    monkeypatch.setattr("bertkit.runs.glue.submission.AX", small(glue.AX))


def column(path: Path) -> list[str]:
    """The predictions of a file, whose header and index must be right."""
    content = path.read_text(encoding="utf-8")
    header, *lines = content.splitlines()
    assert (header, content[-1]) == ("index\tprediction", "\n")
    assert [line.split("\t")[0] for line in lines] == [str(row) for row in range(len(lines))]
    return [line.split("\t")[1] for line in lines]


def test_the_leaderboard_expects_its_own_rows() -> None:
    tasks = [*glue.TASKS.values(), glue.AX]
    assert {file: count for task in tasks for file, (_, count) in task.files.items()} == REAL_ROWS


def test_the_files_of_the_leaderboard(trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    out, runs = tmp_path / "out", trained[0]
    sources = write_submission([str(runs)], out)
    names = {f"{file}.tsv" for file in TEST_ROWS}
    assert {path.name for path in out.iterdir()} == names | {"submission.zip"}
    found = {file: column(out / f"{file}.tsv") for file in TEST_ROWS}
    for file, (task, split, spelt) in ANSWERED.items():
        values = predicted(runs / task, split)[1]
        assert found[file] == [spelt[value] if spelt else f"{min(max(value, 0), 5):.3f}" for value in values], file
        assert (len(values), sources[file]) == (TEST_ROWS[file], str(runs / task))
    mnli = open_target(str(runs / "mnli"), None, {"text": "sentence1", "text_pair": "sentence2"})
    diagnostic = predictions_of(mnli, str(root / "diagnostic" / "diagnostic.tsv"), ["text", "text_pair"])
    assert found["AX"] == [each.value for each in diagnostic]
    assert all(len(set(found[file])) > 1 for file in ("AX", "STS-B", "CoLA")), "a constant would do for the others"
    with zipfile.ZipFile(out / "submission.zip") as packed:
        assert sorted(packed.namelist()) == sorted(names)
        for entry in packed.infolist():
            assert packed.read(entry) == (out / entry.filename).read_bytes()
            assert entry.compress_type == zipfile.ZIP_DEFLATED
            assert entry.external_attr >> 16 == 0o644, "unzip would make a file that nobody may read"


def test_scores_of_similarity_are_within_their_range() -> None:
    """The leaderboard refuses others."""
    values = [Prediction(value) for value in (-0.2, 0.0, 3.14159, 5.0, 5.08)]
    assert submission._format_predictions("stsb", glue.TASKS["stsb"], values) == ["0.000", "0.000", "3.142", "5.000", "5.000"]


def test_missing_tasks_are_filled_with_constants(trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    expect_rows(monkeypatch, TEST_ROWS)
    out = tmp_path / "out"
    out.mkdir()
    (out / "RTE.tsv").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError) as error:
        write_submission([str(trained[0] / "rte")], out)
    assert (error.value.where, (out / "RTE.tsv").read_text(encoding="utf-8")) == (str(out), "mine")
    write_submission([str(trained[0] / "rte")], out, overwrite=True)
    assert [path.name for path in (tmp_path / "out.old-1").iterdir()] == ["RTE.tsv"]
    others = [file for file in TEST_ROWS if file != "RTE"]
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"no run for {', '.join(others)}: every row gets the same label")
    constants = {"STS-B": "0.000", "QNLI": "entailment", "MNLI-m": "entailment", "MNLI-mm": "entailment", "AX": "entailment"}
    for file in others:
        assert column(out / f"{file}.tsv") == [constants.get(file, "0")] * TEST_ROWS[file]
    assert column(out / "RTE.tsv") == predicted(trained[0] / "rte", "test")[1]


@pytest.mark.parametrize(("right", "wrong"), [("", "WNLI"), ("mrpc", "MRPC"), ("mnli", "AX")])
def test_rows_are_counted_before_anything_is_predicted(
    trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, right: str, wrong: str
) -> None:
    expect_rows(monkeypatch, {file: count for file, count in TEST_ROWS.items() if file != wrong})
    monkeypatch.setattr("bertkit.runs.glue.submission.predict_with_progress", lambda *_: pytest.fail("predicted"))
    with pytest.raises(DataError) as error:
        write_submission([str(trained[0] / right)], tmp_path / "out")
    file = {"AX": "diagnostic/diagnostic.tsv"}.get(wrong, f"{wrong}/test.tsv")
    assert error.value.where == str(root / file)
    assert (f"{TEST_ROWS[wrong]} rows" in error.value.what, str(REAL_ROWS[wrong]) in error.value.what) == (True, True)
    assert not (tmp_path / "out").exists()


def test_test_sets_of_another_folder(trained, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = tmp_path / "others"
    for folder in ("CoLA", "MNLI", "diagnostic"):
        shutil.copytree(root / folder, others / folder)
    (others / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tno one read it\n1\ta bad book\n", encoding="utf-8")
    pair = "index\tsentence1\tsentence2\n"
    (others / "diagnostic" / "diagnostic.tsv").write_text(f"{pair}0\ta bad book\tno one\n", encoding="utf-8")
    expected = TEST_ROWS | {"CoLA": 2, "AX": 1}
    expect_rows(monkeypatch, expected)
    write_submission([str(trained[0] / "cola"), str(trained[0] / "mnli")], tmp_path / "out", data=str(others))
    assert {file: len(column(tmp_path / "out" / f"{file}.tsv")) for file in expected} == expected


@pytest.mark.parametrize(
    ("task", "metric", "scores", "best"),
    [
        ("stsb", "spearmanr", (0.25, 0.5), 2),
        ("stsb", "mean_squared_error", (0.25, 0.5), 1),
        ("cola", "matthews_correlation", (None, -0.5), 2),
        ("cola", "matthews_correlation", (0.0, -0.5), 1),
    ],
)
def test_of_several_seeds_the_best_on_the_dev_set_is_used(
    trained, tmp_path: Path, task: str, metric: str, scores: tuple[Any, Any], best: int
) -> None:
    folder = tmp_path / "runs" / task
    for seed, score in enumerate(scores, 1):
        (folder / f"seed-{seed}").mkdir(parents=True)
        shutil.copy(trained[0] / task / "run.json", folder / f"seed-{seed}")
        found = {"scores": {f"validation/{metric}": score}}
        change(folder / f"seed-{seed}" / "run.json", best=found, recipe={"metrics": [metric], "metric": None})
    (folder / "seeds.json").write_text('{"seeds": [1, 2]}', encoding="utf-8")
    shutil.copytree(folder / "seed-1", tmp_path / "runs" / f"{task}.old-1")  # moved aside, and no second run
    for runs in (tmp_path / "runs", folder):
        assert submission._by_task([str(runs)]) == {task: folder / f"seed-{best}"}
    shutil.rmtree(folder / "seed-1")
    with pytest.raises(UsageError) as error:
        submission._by_task([str(folder)])
    assert error.value.where == str(folder / "seed-1")


def test_runs_that_cannot_be_submitted(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("other", "foreign", "unfinished", "empty", "some/rte"):
        Path(name).mkdir(parents=True)
        if name in ("other", "foreign", "unfinished"):
            shutil.copy(trained[0] / "rte" / "run.json", name)
    change(Path("foreign/run.json"), recipe={"name": "imdb"})
    change(Path("unfinished/run.json"), status="running")
    Path("some/rte/seeds.json").write_text('{"plan": {}}', encoding="utf-8")
    for name, where in {
        "unfinished": "unfinished",
        "some": "some/rte",
        "foreign": "foreign",
        "empty": "empty",
        "no": "no",
    }.items():
        with pytest.raises(UsageError) as error:
            write_submission([name], tmp_path / "out")
        assert error.value.where == where
    with pytest.raises(UsageError) as error:
        write_submission([str(trained[0]), "other"], tmp_path / "out")
    assert f"{trained[0]}/rte and other" in error.value.what
    assert not (tmp_path / "out").exists()
