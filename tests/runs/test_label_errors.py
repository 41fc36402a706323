"""bertkit check --label-errors and --learning-curve: who judges which row, what is written, what resumes, what is refused."""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cleanlab.filter
import numpy as np
import pytest
import trained
from html_pages import assert_inert

import bertkit
from bertkit.metrics.learning_curve import describe_curve
from bertkit.runs.checks import learning_curve
from bertkit.runs.checks.label_errors import report_label_errors
from bertkit.runs.evaluation.evaluate import evaluate_target
from bertkit.runs.finetuning import series
from bertkit.runs.target import open_target

pytestmark = pytest.mark.e2e

COLUMNS = ["given", "suggested", "score", "given_probability", "suggested_probability", "likely_errors"]
SMALL = ("--max-steps", 3, "--max-length", 16, "--device", "cpu", "--precision", "fp32")


def read_ranked(folder: Path) -> list[dict[str, str]]:
    with (folder / "label_errors.csv").open(encoding="utf-8-sig", newline="") as file:
        return [*csv.DictReader(file)]


def read_found(folder: Path, name: str = "label_errors") -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


@pytest.fixture
def check(run_bertkit, model: Path, tmp_path: Path) -> Callable[..., Any]:
    """A function that searches with two folds into the folder out."""

    def check(*target: object, folds: int = 2, code: int = 0, more: tuple = ()) -> Any:
        where = ("--label-errors", "--folds", folds, "--model", model, "--output-dir", "out")
        ran = run_bertkit("check", *target, *where, *SMALL, *more)
        assert ran.code == code, ran.err
        return ran

    return check


def test_each_row_is_judged_by_the_fold_that_did_not_train_on_it(check, tmp_path: Path) -> None:
    rows = trained.write_rows(tmp_path / "rows.csv", 6)
    ran = check(rows, "--text", "text", folds=3)
    ranked, lines = read_ranked(tmp_path / "out"), rows.read_text(encoding="utf-8").splitlines()
    assert [*ranked[0]] == ["file", "row", "text", *COLUMNS]
    assert {row["file"] for row in ranked} == {"rows.csv"}, "though the path was given in full"
    assert sorted(int(row["row"]) for row in ranked) == [*range(2, 34)]
    assert all(lines[int(row["row"]) - 1] == f"{row['given']},{row['text']}" for row in ranked)
    of_given = {int(row["row"]): float(row["given_probability"]) for row in ranked}
    matrix, given = np.zeros((34, 2)), np.zeros(34, dtype=int)
    for number in (1, 2, 3):
        assert "intervals" not in read_found(tmp_path / f"out/folds/fold-{number}", "run"), "nobody reads a fold's card"
        run = open_target(str(tmp_path / f"out/folds/fold-{number}"), None, {})
        _, predictions, truths, examples = evaluate_target(run).of("validation")
        labels = run.task.labels
        for row, (prediction, truth) in enumerate(zip(predictions, truths)):
            line = examples.lines[row]
            matrix[line], given[line] = prediction.probabilities, labels.index(truth)
            assert of_given[line] == pytest.approx(prediction.probabilities[labels.index(truth)], abs=2e-6)
    likely = cleanlab.filter.find_label_issues(
        given[2:], matrix[2:], filter_by="confident_learning", return_indices_ranked_by="normalized_margin", n_jobs=1
    )
    assert [int(row["row"]) for row in ranked if int(row["likely_errors"])] == [line + 2 for line in likely]
    scores = [float(row["score"]) for row in ranked]
    assert scores[: len(likely)] == sorted(scores[: len(likely)])
    assert scores[len(likely) :] == sorted(scores[len(likely) :])

    found = read_found(tmp_path / "out")
    assert (found["rows"], found["labels"], found["folds"]) == (32, 32, 3)
    assert found["accuracy"] == pytest.approx(np.mean(matrix[2:].argmax(axis=1) == given[2:]), abs=1e-4)
    assert found["accuracy_of_most_frequent_label"] == 0.5
    assert found["rows_with_likely_errors"] == found["likely_errors"] == len(likely)
    pairs = Counter((row["given"], row["suggested"]) for row in ranked if int(row["likely_errors"]))
    assert {(pair["given"], pair["suggested"]): pair["count"] for pair in found["pairs"]} == pairs
    assert [row["row"] for row in found["worst"]] == [int(row["row"]) for row in ranked]
    shown = report_label_errors(found, tmp_path / "out", 4)
    assert [row[0] for row in shown.parts[-4].rows] == [row["row"] for row in found["worst"][:4]]
    assert f"{len(likely)} of 32 labels are likely errors" in ran.err


@pytest.mark.parametrize(("accuracy", "doubted"), [(0.5, True), (0.55, True), (0.7, False), (None, False)])
def test_a_list_of_models_that_have_hardly_learned_is_doubted(accuracy: float | None, doubted: bool, tmp_path: Path) -> None:
    """Two standard errors of 100 labels, half of them the most frequent one, are 0.1. None: a file of 0.1.0."""
    found = {"labels": 100, "rows": 100, "likely_errors": 0, "rows_with_likely_errors": 0, "expected_errors": 0, "pairs": []}
    found["worst"] = [{"row": 2, "given": "a", "suggested": "", "score": 1.0, "likely_errors": 0}]
    if accuracy is not None:
        found |= {"accuracy": accuracy, "accuracy_of_most_frequent_label": 0.5}
    warned = [part for part in report_label_errors(found, tmp_path, 5).parts if getattr(part, "severity", "") == "warning"]
    assert len(warned) == doubted


def test_a_killed_search_goes_on_and_a_repeated_one_trains_nothing(check, tmp_path: Path, monkeypatch) -> None:
    rows = trained.write_rows(tmp_path / "rows.csv", 6)
    began, finetune = [], series.finetune

    def stopping(request: Any, folder: Path, **more: Any) -> Any:
        began.append(folder.name)
        if began.count("fold-2") == 1:
            raise KeyboardInterrupt
        return finetune(request, folder, **more)

    monkeypatch.setattr(series, "finetune", stopping)
    check(rows, code=130)
    assert not (tmp_path / "out/label_errors.csv").exists()
    check(rows)
    assert began == ["fold-1", "fold-2", "fold-2"]
    whole = (tmp_path / "out/label_errors.csv").read_bytes()
    check(rows)
    assert began == ["fold-1", "fold-2", "fold-2"]
    of_older = b"what an older bertkit, or another processor, has ranked"
    (tmp_path / "out/label_errors.csv").write_bytes(of_older)
    found = read_found(tmp_path / "out") | {"ranked_sha256": hashlib.sha256(of_older).hexdigest()}
    (tmp_path / "out/label_errors.json").write_text(json.dumps(found), encoding="utf-8")
    assert "has been changed since" not in check(rows).err
    assert (tmp_path / "out/label_errors.csv").read_bytes() == whole
    edited = whole.replace(b"file,", b"done,file,", 1)
    (tmp_path / "out/label_errors.csv").write_bytes(edited)
    assert "has been changed since" in check(rows).err
    assert (tmp_path / "out/label_errors.csv").read_bytes() == edited
    assert "different settings" in check(rows, folds=3, code=2).err
    check(rows, more=("--overwrite",))
    assert (tmp_path / "out/label_errors.csv").read_bytes() == whole
    assert (tmp_path / "out.old-1/label_errors.csv").read_bytes() == edited


def test_several_labels_are_judged_one_by_one(check, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"text": f"{' '.join(rng.choice(trained.WORDS, 6))} {row}", "label": [[], ["a"], ["b"], ["a", "b"]][row % 4]}
        for row in range(24)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check("text-classification", "--train", file, "--multi-label")
    ranked = read_ranked(tmp_path / "out")
    assert [*ranked[0]] == ["file", "row", "text", "labels", *COLUMNS]
    assert sorted(int(row["row"]) for row in ranked) == [*range(1, 25)]
    assert read_found(tmp_path / "out")["labels"] == 48
    how = {"device": "cpu", "precision": "fp32"}  # as trained; else the faster one of the moment
    by_fold = [bertkit.load(str(tmp_path / f"out/folds/fold-{number}"), **how) for number in (1, 2)]
    for row in ranked:
        own = rows[int(row["row"]) - 1]
        assert row["text"] == own["text"]
        assert row["labels"] == (", ".join(own["label"]) or "none")
        label = row["given"].removeprefix("not ")
        assert (row["given"] == label) == (label in own["label"])
        assert row["suggested"] in ("", label, f"not {label}")
        said = [each.predict([own["text"]])[0].probabilities[each.task.labels.index(label)] for each in by_fold]
        of_given = [one if row["given"] == label else 1 - one for one in said]
        assert any(float(row["given_probability"]) == pytest.approx(one, abs=1e-5) for one in of_given)
        assert float(row["score"]) == pytest.approx(float(row["given_probability"]), abs=2e-6)


def test_tags_are_judged_word_by_word_as_transformers_does(check, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    rng = np.random.default_rng(0)
    sentences = [
        [(word, "B-PER" if word == "book" else "O") for word in rng.choice(trained.WORDS, rng.integers(3, 9))]
        for _ in range(30)
    ]
    sentences[4] = [("book", "B-RARE"), *sentences[4]]  # a tag that the fold that judges it does not know
    text = "".join("".join(f"{word} {tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)
    (tmp_path / "rows.conll").write_text(text)
    check(tmp_path / "rows.conll")
    ranked, lines = read_ranked(tmp_path / "out"), text.splitlines()
    assert [*ranked[0]] == ["file", "row", "text", "labels", "word", "place", *COLUMNS]
    assert len(ranked) == 30
    models = []
    for number in (1, 2):
        folder = tmp_path / f"out/folds/fold-{number}"
        models.append((AutoTokenizer.from_pretrained(folder), AutoModelForTokenClassification.from_pretrained(folder).eval()))
    for row in ranked:
        at = int(row["row"]) - 1
        words = row["text"].split()
        assert [line.split()[0] for line in lines[at : at + len(words)]] == words
        place = int(row["place"]) - 1
        assert lines[at + place] == f"{row['word']} {row['given']}"
        said = []
        for tokenizer, tagger in models:
            encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                probabilities = tagger(**encoded).logits[0].softmax(-1)
            number = tagger.config.label2id.get(row["given"])
            said.append(0.0 if number is None else float(probabilities[encoded.word_ids().index(place), number]))
        assert any(float(row["given_probability"]) == pytest.approx(one, abs=1e-5) for one in said)
    rare = next(row for row in ranked if row["given"] == "B-RARE")
    assert (float(rare["given_probability"]), int(rare["likely_errors"]) > 0) == (0.0, True)


def test_pairs_and_what_a_spreadsheet_would_run(check, tmp_path: Path) -> None:
    rows = [(f"=SUM({row})", f"@cmd it is, {row}", ("same", "other")[row % 2]) for row in range(12)]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("first", "second", "kind"), *rows])
    check("rows.csv", "--text", "first", "--text-pair", "second", "--label", "kind")
    ranked = read_ranked(tmp_path / "out")
    assert {(row["text"], row["text_pair"], row["given"]) for row in ranked} == {
        (f"'{a}", f"'{b}", kind) for a, b, kind in rows
    }


def test_a_report_shows_the_folder_of_a_check(check, run_bertkit, tmp_path: Path) -> None:
    trained.write_rows(tmp_path / "rows.csv", 6)
    check("rows.csv")
    ran = run_bertkit("report", "out", "--errors", 4)
    assert ran.code == 0, ran.err
    page = assert_inert((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.headings[1:] == ["out: Wrong labels"]
    *_, shown = page.tables.values()
    worst = read_found(tmp_path / "out")["worst"][:4]
    assert [row[:2] for row in shown[1:]] == [[str(each["row"]), each["text"]] for each in worst]
    assert [row[-1] for row in shown] == ["likely error", *("yes" if each["likely_errors"] else "" for each in worst)]
    assert f"of {read_found(tmp_path / 'out')['rows']} rows" in page.text
    (tmp_path / "out" / "label_errors.json").write_text('{"pairs": 1}')
    ran = run_bertkit("report", "out", "--overwrite")
    assert (ran.code, "label_errors.json is damaged" in ran.err) == (4, True), ran.err


def test_of_a_run_its_base_model_judges(check, run_bertkit, model: Path, tmp_path: Path) -> None:
    rows = trained.write_rows(tmp_path / "rows.csv", 6)
    run = trained.train(tmp_path / "run", model, rows)
    where = ("--label-errors", "--folds", 2, "--output-dir", "out")
    assert run_bertkit("check", run, *where).code == 0
    assert read_found(tmp_path / "out/folds", "folds")["plan"]["model"]["name"] == str(model)
    refused = run_bertkit("check", rows, "--model", run, "--label-errors", "--output-dir", "other")
    assert refused.code == 2
    assert f"--model {model}" in refused.err
    assert not (tmp_path / "other").exists()
    (tmp_path / "copy.csv").write_bytes(rows.read_bytes())  # the same rows by another name
    refused = run_bertkit("check", "copy.csv", "--model", run, *where, "--overwrite")
    assert (refused.code, f"--model {model}" in refused.err) == (2, True)
    assert not (tmp_path / "out.old-1").exists()
    (tmp_path / "copy.csv").write_text(rows.read_text() + "good,a good one\n")
    warned = run_bertkit("check", "copy.csv", "--model", run, "--label-errors", "--folds", 2, "--output-dir", "other", *SMALL)
    assert (warned.code, "have memorized their labels" in warned.err) == (0, True), warned.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--label-errors", "--regression", "--label", "number"), "leave out --label-errors"),
        (("--label-errors", "--learning-curve", "25,x"), "two or more percentages"),
        (("--label-errors", "--learning-curve", "25,100"), "a learning curve needs rows to evaluate on"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read_or_moved(
    run_bertkit, tmp_path: Path, options: tuple, told: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text("label,text,number\n")  # which itself is refused once it is read
    (tmp_path / "out").mkdir()
    (tmp_path / "out/label_errors.csv").write_text("mine")
    where = ("--model", "none", "--output-dir", "out", "--overwrite")
    ran = run_bertkit("check", "data", "--recipe", "text-classification", *where, *options)
    assert (ran.code, told in ran.err, ran.err.count("\n")) == (2, True, 2), ran.err
    assert (tmp_path / "out/label_errors.csv").read_text() == "mine"


CURVE = ("--learning-curve", "50,100", "--validation", "rows.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--label-errors", "--max-length", 4096), "--max-length"),
        (("--label-errors", "--reinit-layers", 99), "layers"),
        (("--label-errors", "--folds", 40), "use fewer folds"),
        ((*CURVE, "--max-length", 4096), "--max-length"),
        ((*CURVE, "--reinit-layers", 99), "layers"),
    ],
)
def test_what_an_earlier_check_left_stays_where_training_is_refused(
    run_bertkit, model: Path, tmp_path: Path, options: tuple, told: str
) -> None:
    trained.write_rows(tmp_path / "rows.csv", 6)
    files = {"label_errors.csv": "mine", "folds/fold-1/model.safetensors": "weights", "shares/50/seeds.json": "{}"}
    for name, text in files.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    ran = run_bertkit("check", "rows.csv", "--model", model, "--output-dir", "out", "--overwrite", *SMALL, *options)
    assert (ran.code > 0, told in ran.err, "Traceback" in ran.err) == (True, True, False), ran.err
    left = {
        str(path.relative_to(tmp_path / "out")): path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert left == files
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "out"}


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--label-errors",), 2, "--output-dir is missing"),
        (("--folds", 3), 2, "--folds has no effect without --label-errors"),
        (("--seeds", 3), 2, "--seeds has no effect without --learning-curve"),
        (("--output-dir", "out"), 2, "--output-dir has no effect without"),
        (("--label-errors", "--output-dir", "out", "--folds", 40), 3, "expected at least 40"),
        (("--label-errors", "--output-dir", "mine"), 2, "not empty"),
        (("--label-errors", "--output-dir", "out", "--regression", "--label", "number"), 2, "only in classes"),
        (("--learning-curve", "some", "--output-dir", "out"), 2, "two or more percentages"),
        (("--learning-curve", "50,150", "--output-dir", "out"), 2, "two or more percentages"),
        (("--learning-curve", "50,nan,100", "--output-dir", "out"), 2, "two or more percentages"),
    ],
)
def test_what_cannot_be_is_one_line(run_bertkit, model: Path, tmp_path: Path, options: tuple, code: int, told: str) -> None:
    lines = trained.write_rows(tmp_path / "rows.csv", 6).read_text().splitlines()
    numbered = [f"{line},{number / 7}" for number, line in enumerate(lines[1:])]
    (tmp_path / "rows.csv").write_text("\n".join([f"{lines[0]},number", *numbered, ""]))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    ran = run_bertkit("check", "rows.csv", "--model", model, *options)
    assert (ran.code, "Traceback" in ran.err) == (code, False), ran.err
    assert told in ran.err.splitlines()[-2] + ran.err.splitlines()[-1]
    assert not (tmp_path / "out/label_errors.csv").exists()


def test_without_a_model_nothing_is_trained(run_bertkit, tmp_path: Path) -> None:
    trained.write_rows(tmp_path / "rows.csv", 6)
    ran = run_bertkit("check", "rows.csv", "--label-errors", "--output-dir", "out")
    assert ran.code == 2
    assert "--model is missing" in ran.err


def test_nothing_is_trained_on_data_with_errors_and_check_says_so(run_bertkit, model: Path, tmp_path: Path) -> None:
    with trained.write_rows(tmp_path / "rows.csv", 6).open("a") as file:
        file.write(",no\n")
    command = ("check", "rows.csv", "--model", model, "--label-errors", "--output-dir", "out", *SMALL)
    ran = run_bertkit(*command)
    assert (ran.code, "nothing was trained, because the data has errors" in ran.err) == (3, True), ran.err
    assert not (tmp_path / "out").exists()


def test_the_shares_of_a_learning_curve_are_of_the_rows_that_can_be_used(run_bertkit, model: Path, tmp_path: Path) -> None:
    rows = trained.write_rows(tmp_path / "rows.csv", 6)
    copied = rows.read_text().splitlines()[1]
    rows.write_text(rows.read_text() + ",no\n" * 20)
    with trained.write_rows(tmp_path / "dev.csv", 5).open("a") as file:
        file.write(f"{copied}\n")
    command = ("check", "rows.csv", "--validation", "dev.csv", "--model", model, "--learning-curve", "50,100", "--seeds", 1)
    ran = run_bertkit(*command, "--on-error", "skip", "--output-dir", "out", *SMALL)
    assert ran.code == 0, ran.err
    sizes = [read_found(tmp_path / f"out/shares/{share}/seed-1", "run")["data"]["train"]["rows"] for share in (50, 100)]
    assert sizes == [point["rows"] for point in read_found(tmp_path / "out", "learning_curve")["points"]] == [16, 32]
    assert ran.err.count("also in") == 1, "check has said it, the runs need not"


def test_a_learning_curve_trains_on_each_share_with_each_seed(run_bertkit, model: Path, tmp_path: Path, monkeypatch) -> None:
    trained.write_rows(tmp_path / "rows.csv", 6)
    trained.write_rows(tmp_path / "dev.csv", 5)
    command = ("check", "rows.csv", "--validation", "dev.csv", "--model", model, "--learning-curve", "100,25%,50")
    command += ("--seeds", 2, "--output-dir", "out", "--json", *SMALL)
    ran = run_bertkit(*command)
    assert ran.code == 0, ran.err
    found = read_found(tmp_path / "out", "learning_curve")
    assert json.loads(ran.out)["learning_curve"] == found
    assert (found["metric"], found["split"], found["rows"], found["seeds"]) == ("accuracy", "validation", 32, 2)
    assert [point["rows"] for point in found["points"]] == [8, 16, 32]
    texts = []
    for share, point in zip(("25", "50", "100"), found["points"]):
        runs = [read_found(tmp_path / f"out/shares/{share}/seed-{seed}", "run") for seed in (1, 2)]
        assert [run["data"]["train"]["rows"] for run in runs] == [point["rows"]] * 2
        assert not any("intervals" in run for run in runs)
        assert runs[0]["data"]["train"]["rows_sha256"] == runs[1]["data"]["train"]["rows_sha256"]
        assert point["score"] == pytest.approx(np.mean([run["best"]["scores"]["validation/accuracy"] for run in runs]))
        texts.append(runs[0]["data"]["train"]["rows_sha256"])
    assert len(set(texts)) == 3
    assert ("twice" in found) != ("not_shown" in found)
    monkeypatch.setattr(series, "finetune", None)  # nothing is trained again
    assert run_bertkit(*command).code == 0
    assert read_found(tmp_path / "out", "learning_curve") == found
    assert run_bertkit("report", "out").code == 0
    page = assert_inert((tmp_path / "report.html").read_text(encoding="utf-8"))
    (points,) = page.tables.values()
    assert [row[:2] for row in points[1:4]] == [[str(each["rows"]), f"{each['score']:.4f}"] for each in found["points"]]


@pytest.mark.parametrize(("metric", "greater_is_better"), [("pearson", True), ("mean_squared_error", False)])
def test_a_learning_curve_falls_where_lower_is_better(
    run_bertkit, model: Path, tmp_path: Path, monkeypatch, metric: str, greater_is_better: bool
) -> None:
    told: list[bool] = []

    def spied(*values: Any, **named: Any) -> dict[str, Any]:
        told.append(inspect.signature(describe_curve).bind(*values, **named).arguments["greater_is_better"])
        return describe_curve(*values, **named)

    monkeypatch.setattr(learning_curve, "describe_curve", spied)
    lines = trained.write_rows(tmp_path / "rows.csv", 6).read_text().splitlines()
    numbered = [f"{line},{number / 7}" for number, line in enumerate(lines[1:])]
    (tmp_path / "rows.csv").write_text("\n".join([f"{lines[0]},number", *numbered, ""]))
    command = ("check", "rows.csv", "--validation", "25%", "--model", model, "--learning-curve", "50,100", "--seeds", 1)
    command += ("--regression", "--label", "number", "--metric", metric, "--output-dir", "out", *SMALL)
    ran = run_bertkit(*command)
    assert (ran.code, read_found(tmp_path / "out", "learning_curve")["metric"]) == (0, metric), ran.err
    assert told == [greater_is_better]
