"""`predict --uncertain`: which rows are chosen, and in which order; and the loop of predicting, correcting and training."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotators import TOOLS

from bertkit.runs.prediction import outputs, uncertain
from bertkit.runs.prediction.uncertain import KEPT, least_certain, spread
from bertkit.tasks.family import guess_family

FP32 = ("--precision", "fp32", "--device", "cpu")
WORDS = "the good bad movie was a great story you like".split()
COUNT = 40


def plain_spread(vectors: np.ndarray, certainty: np.ndarray, count: int) -> list[int]:
    """The same choice, written row by row."""
    chosen = [min(range(len(vectors)), key=lambda row: (certainty[row], row))]

    def worth(row: int) -> float:
        cosines = [
            vectors[row] @ vectors[other] / np.linalg.norm(vectors[row]) / np.linalg.norm(vectors[other]) for other in chosen
        ]
        return (1 - certainty[row]) * np.sqrt(max(0.0, 2 - 2 * max(cosines)))

    while len(chosen) < min(count, len(vectors)):
        chosen.append(max((row for row in range(len(vectors)) if row not in chosen), key=worth))
    return chosen


def test_the_choice_is_the_greedy_one() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 7, 30, 50):
        vectors, certainty = rng.normal(size=(30, 5)).astype(np.float32), rng.random(30)
        found = spread(vectors, certainty.tolist(), count)
        assert found == plain_spread(vectors.astype(np.float64), certainty, count)
        assert sorted(found) == sorted({*found})


def test_rows_that_are_alike_or_certain_come_last() -> None:
    groups = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    certainty = np.repeat([0.1, 0.2, 0.3, 1.0], 5) + np.tile([0.03, 0.02, 0.01, 0.04, 0.0], 4)
    found = spread(groups, np.minimum(certainty, 1).tolist(), 4)
    assert found[:3] == [4, 9, 14], "one of each group, its least certain; by certainty alone all were of the first"
    assert found[3] < 15, "a row without doubt is not worth a label, however far it is"


def test_few_rows_and_no_rows() -> None:
    assert spread(np.zeros((0, 3), dtype=np.float32), [], 5) == []
    assert sorted(spread(np.zeros((3, 3), dtype=np.float32), [0.5, 0.2, 0.5], 5)) == [0, 1, 2]
    assert least_certain([0.5, 0.1, 0.5, 0.0] * KEPT, 1) == [3 + 4 * n for n in range(KEPT)]


# --- the command -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.readers.ROWS", 3)


@pytest.fixture(scope="module")
def models(make_model_dir: Callable[..., Path]) -> dict[str, Path]:
    labels = ("blame", "none", "praise")
    several = make_model_dir(
        "BertForSequenceClassification", initializer_range=0.5, labels=labels, problem_type="multi_label_classification"
    )
    return {
        "classes": make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=labels),
        "labels": several,
        "tags": make_model_dir("BertForTokenClassification", seed=3, initializer_range=0.5, labels=("O", "B-PER", "I-PER")),
    }


def write_rows(path: Path) -> list[str]:
    texts = [
        " ".join(WORDS[(row * 7 + at + at * (row // 10)) % 10] for at in range(2 + row % 5)) + " 👍" * (row % 2)
        for row in range(COUNT)
    ]
    path.write_text("".join(json.dumps({"text": text, "lang": f"l{row}"}) + "\n" for row, text in enumerate(texts)), "utf-8")
    return texts


def certainties(kind: str, rows: list[dict[str, Any]]) -> np.ndarray:
    if kind == "tags":
        return np.array([min(row["probabilities"]) for row in rows])
    probabilities = np.array([[*row["probabilities"].values()] for row in rows])
    return np.abs(probabilities - 0.5).min(1) if kind == "labels" else np.diff(np.sort(probabilities))[:, -1]


@pytest.mark.parametrize("kind", ["classes", "labels", "tags"])
def test_the_rows_are_those_of_all_that_are_worth_most(kind: str, models, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    import bertkit

    monkeypatch.setattr(uncertain, "KEPT", 3)
    texts = write_rows(tmp_path / "new.jsonl")
    detail = () if kind == "tags" else ("--probabilities",)
    every = run_bertkit("predict", models[kind], "new.jsonl", "--keep", "lang", *detail, *FP32)
    rows = [json.loads(line) for line in every.out.splitlines()]
    certain = certainties(kind, rows)
    kept = np.argsort(certain, kind="stable")[:12]
    vectors = bertkit.load(models[kind], device="cpu", precision="fp32").embed([texts[row] for row in kept])
    expected = kept[plain_spread(np.asarray(vectors, dtype=np.float64), certain[kept], 4)]
    chosen = run_bertkit("predict", models[kind], "new.jsonl", "--keep", "lang", "--uncertain", 4, *detail, *FP32)
    found = [json.loads(line) for line in chosen.out.splitlines()]
    assert [row["id"] for row in found] == expected.tolist()
    for row in found:
        assert row.pop("certainty") == pytest.approx(certain[row["id"]])
        assert row == rows[row["id"]]


def test_every_format_takes_the_choice(models, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl")
    command = ("predict", models["tags"], "new.jsonl", "--uncertain", 5, *FP32)
    ids = [json.loads(line)["id"] for line in run_bertkit(*command).out.splitlines()]
    assert len(ids) == 5
    ran = run_bertkit(*command, "--output", "out.csv")
    assert ran.err.splitlines()[-1] == "wrote 5 predictions to out.csv"
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == ids
    assert len(run_bertkit(*command, "--format", "text").out.splitlines()) == 5
    assert run_bertkit(*command, "--output", "tasks.json.gz", "--format", "label-studio").code == 0
    tasks = json.loads(gzip.decompress((tmp_path / "tasks.json.gz").read_bytes()))
    assert [task["data"]["id"] for task in tasks] == ids


@pytest.mark.parametrize("bad", ["first", "last", "all"])
def test_windows_whose_rows_are_all_skipped_change_nothing(bad: str, models, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    """Not even where the file has another column with the name of a task's own."""
    monkeypatch.setattr("bertkit.readers.ROWS", 3)
    good = [{"sentence": f"good movie {number}", "text_pair": "no pair"} for number in range(6)]
    skipped = [{"sentence": None, "text_pair": "no pair"}] * 3
    rows = {"first": skipped + good, "last": good + skipped, "all": skipped}[bad]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    how = ("--text", "sentence", "--uncertain", 2, "--on-error", "skip", "--keep", "sentence", *FP32)
    ran = run_bertkit("predict", models["classes"], "new.jsonl", *how)
    assert ran.code == 0, ran.err
    assert len({json.loads(line)["sentence"] for line in ran.out.splitlines()}) == (0 if bad == "all" else 2)
    assert "3 rows" in ran.err, "those skipped"


@pytest.mark.parametrize("kind", ["classes", "tags"])
def test_rows_without_text_are_not_chosen(kind: str, models, run_bertkit, tmp_path: Path) -> None:
    lines = ["the good movie", "", "", "", "  ", "a bad story", ""]  # a window of three has no text at all
    (tmp_path / "new.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    ran = run_bertkit("predict", models[kind], "new.txt", "--uncertain", 5, *FP32)
    assert sorted(json.loads(line)["text"] for line in ran.out.splitlines()) == ["a bad story", "the good movie"], ran.err
    assert "skipped 5 rows without text" in ran.err
    assert "only 2 rows to choose from; --uncertain asks for 5" in ran.err
    (tmp_path / "new.txt").write_text("\n \n", encoding="utf-8")
    ran = run_bertkit("predict", models[kind], "new.txt", "--uncertain", 5, *FP32)
    assert (ran.out, "skipped 2 rows without text" in ran.err) == ("", True), ran.err
    assert ran.code == 0


def test_a_choice_that_was_killed_starts_over(models, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    write_rows(tmp_path / "new.jsonl")
    command = ("predict", models["classes"], "new.jsonl", "--uncertain", 5, "--output", "out.jsonl", *FP32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertkit.runs.prediction.uncertain.spread", None)
        assert run_bertkit(*command).code == 1
    assert not (tmp_path / "out.jsonl").exists()
    assert run_bertkit(*command).code == 0
    again = run_bertkit(*(part for part in command if part not in ("--output", "out.jsonl")))
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == again.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["new.jsonl", "--uncertain", "3", "--output-dir", "out"], "--uncertain chooses among the rows of one file"),
        (["--output", "x.json"], "--output x.json has the extension .json; expected .jsonl[.gz]"),
        (["--output", "x.csv", "--format", "doccano"], "x.csv has the extension .csv; expected .jsonl for --format doccano"),
        (
            ["--output", "x.json", "--format", "labelstudio"],
            "--format is 'labelstudio'; expected label-studio or doccano or prodigy with --output",
        ),
        (["--output", "x.jsonl", "--format", "csv"], "--output cannot be combined with --format"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], told: str, models, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl")
    ran = run_bertkit("predict", models["classes"], "new.jsonl", *options, *FP32)
    assert (ran.code, told in ran.err.splitlines()[0], ran.out) == (2, True, ""), ran.err


def test_numbers_and_answers_are_not_chosen_or_annotated(make_model_dir, run_bertkit, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl")
    model = make_model_dir("BertForSequenceClassification", num_labels=1)
    for options, told in (
        (["--uncertain", "3"], "--uncertain does not apply"),
        (["--format", "prodigy"], "prediction; Prodigy"),
    ):
        ran = run_bertkit("predict", model, "new.jsonl", *options, *FP32)
        assert (ran.code, told in ran.err.splitlines()[0]) == (2, True), ran.err


# --- the loop --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("kind", ["classes", "labels", "tags"])
def test_what_a_tool_sends_back_is_what_was_predicted(name: str, kind: str, models, run_bertkit, tmp_path: Path) -> None:
    """By the command: of several windows, to a file, to a folder and to the standard output."""
    write_rows(tmp_path / "new.jsonl")
    suffix, tool = TOOLS[name]
    command = ("predict", models[kind], "new.jsonl", "--keep", "lang", *FP32)
    rows = [json.loads(line) for line in run_bertkit(*command).out.splitlines()]
    assert run_bertkit(*command, "--format", name, "--output", f"out{suffix}").code == 0
    content = (tmp_path / f"out{suffix}").read_text(encoding="utf-8")
    assert run_bertkit(*command, "--format", name).out == content
    assert run_bertkit(*command, "--format", name, "--output-dir", "out").code == 0
    assert (tmp_path / f"out/new{suffix}").read_text(encoding="utf-8") == content
    exported, seen = tool(content)
    if kind == "tags":
        assert seen == [[(each["text"], each["label"]) for each in row["entities"]] for row in rows]
        assert any(seen)
    else:
        assert seen == [row["labels"] if kind == "labels" else [row["label"]] for row in rows]
    (tmp_path / f"back{suffix}").write_text(exported, encoding="utf-8")
    family = "token-classification" if kind == "tags" else "text-classification"
    options = ("--multi-label",) if kind == "labels" else ()
    checked = run_bertkit("check", f"back{suffix}", "--json", *options)
    assert json.loads(checked.out)["labels"]["train"], checked.err
    given = {"multi_label": True} if kind == "labels" else {}
    assert guess_family(tmp_path / f"back{suffix}", given).family == family


def test_a_list_that_was_killed_goes_on_with_the_same_bytes(models, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    write_rows(tmp_path / "new.jsonl")
    command = ("predict", models["tags"], "new.jsonl", "--format", "label-studio", *FP32)
    expected = run_bertkit(*command).out
    real = outputs.write_json
    for kill in range(1, 14, 4):
        written = 0

        def write_json(path: Path, value: Any, kill: int = kill) -> None:
            nonlocal written
            written += 1
            if written == kill:
                raise KeyboardInterrupt
            real(path, value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outputs, "write_json", write_json)
            run_bertkit(*command, "--output", "out.json")
        ran = run_bertkit(*command, "--output", "out.json")
        assert ran.code == 0, ran.err
        assert (tmp_path / "out.json").read_text(encoding="utf-8") == expected
        (tmp_path / "out.json").unlink()
