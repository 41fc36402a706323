"""bertkit report: its numbers are those of eval, compare and check, and of scikit-learn; what is shown of rows, by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Ran, run_command
from html_pages import HOSTILE, Parsed, assert_accessible, assert_inert
from shell import ROOT
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix
from trained import train

import bertkit
from bertkit.config import PretrainConfig
from bertkit.corpus.build import CorpusConfig, build_corpus
from bertkit.corpus.corpora import open_corpora
from bertkit.html.page import shown
from bertkit.model.config import BertConfig
from bertkit.progress import format_cell
from bertkit.runs.pretraining.pretrain import pretrain
from bertkit.runs.reporting.report import _relative_paths
from bertkit.runs.reporting.reported_run import ReportedRun
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.sources import recipe_folder

pytestmark = pytest.mark.e2e
CPU = ("--device", "cpu", "--precision", "fp32")
FAMILIES = {
    "helpdesk": "text-classification",
    "helpdesk_mentions": "token-classification",
    "helpdesk_pages": "question-answering",
    "helpdesk_replies": "multiple-choice",
}


def relative(path: Path) -> str:
    """As a report shows it."""
    return os.path.relpath(path)


def report(*argv: object, code: int = 0) -> Ran:
    ran = run_command(["report", *argv])
    assert ran.code == code, ran.err
    return ran


def written(run: Path, *argv: object) -> Parsed:
    """The page of a run, beside which it is written."""
    file = run.with_suffix(".html")
    report(run, *argv, "--output", file, "--overwrite")
    text = file.read_text(encoding="utf-8")
    for machine in (run.parent, ROOT):
        assert not re.search(rf"(?<![./\w]){re.escape(str(machine))}", text), "paths are relative"
    return assert_inert(text)


def rows_of(run: Path, split: str = "validation") -> list[dict]:
    """What eval writes of each row."""
    folder = run.with_suffix(".rows")
    ran = run_command(["eval", run, "--split", split, "--output", folder])
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def runs(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each family, named after its recipe."""
    folder = tmp_path_factory.mktemp("runs")
    model = make_model_dir("BertModel", seed=7, initializer_range=0.5, max_position_embeddings=512)
    for recipe in FAMILIES:
        options = ["--max-steps", 12, "--batch-size", 16, "--eval-steps", 6, "--logging-steps", 3, "--max-length", 96]
        options += ["--doc-stride", 64, "--null-threshold", 1000] if recipe == "helpdesk_pages" else []
        how = ["--learning-rate", "1e-3", *CPU, "--output-dir", folder / recipe]
        ran = run_command(["finetune", recipe, "--model", model, *options, *how])
        assert ran.code == 0, ran.err
    return folder


# --- every family --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", FAMILIES)
def test_a_report_of_each_family_has_the_numbers_of_eval_and_check(runs: Path, recipe: str) -> None:
    run = runs / recipe
    page = written(run, "--errors", 5)
    assert_accessible(page)
    evaluated = json.loads(run_command(["eval", run, "--intervals", "--json"]).out)
    bounds = evaluated.pop("intervals")
    shown_scores = {row[0]: row[1:] for row in page.tables[relative(run)][1:]}
    assert shown_scores == {
        name: [format_cell(value), " to ".join(f"{bound:.4f}" for bound in bounds[name]) if bounds.get(name) else "-"]
        for name, value in evaluated.items()
    }
    first = next(iter(evaluated))
    beside = page.tables[f"{first} compared"]
    assert beside[1] == [relative(run), *shown_scores[first]]
    baselines = json.loads((run / "run.json").read_text())["baselines"]
    assert {row[0]: row[1] for row in beside[2:]} == {name: format_cell(value) for name, value in baselines.items()}
    found = json.loads(run_command(["check", run, "--json"]).out)["findings"]
    assert found
    assert all(finding["what"] in page.text for finding in found)
    settings = {row[0]: row[1] for row in page.tables["run.json"][1:]}
    assert settings["training.learning_rate"] == "0.001"
    assert settings["recipe.family"] == FAMILIES[recipe]
    assert len(settings) > 60
    titles = ["Scores", "Curves", "validation: slices", "validation: worst errors", "Data", "Settings"]
    assert [title for title in page.headings if title in titles] == titles
    alts = [value for tag, name, value in page.values if name == "alt"]
    for start in (
        "loss by step. training: first",
        "learning rate by step. learning rate: first",
        f"{first} by step. {first}: first",
    ):
        assert any(alt.startswith(start) for alt in alts), start


def test_the_same_run_gives_the_same_bytes_and_an_existing_file_is_kept(runs: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    for file in (first, second):
        assert f"wrote {file}" in report(runs / "helpdesk", "--output", file).err
    assert first.read_bytes() == second.read_bytes()
    first.write_text("mine")
    partial = tmp_path / "first.html.partial"  # of `predict`, which would go on with it
    partial.touch()
    ran = report(runs / "helpdesk", "--output", first, code=2)
    partial.unlink()
    assert "error: --output already exists" in ran.err
    assert first.read_text() == "mine"
    report(runs / "helpdesk", "--output", first, "--overwrite")
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.html", "second.html"]


def test_published_scores_stand_beside_those_of_the_run(tiny_model_dir: Path, tmp_path: Path) -> None:
    rng, words = np.random.default_rng(0), "the good bad movie book was one two".split()
    for split in ("train", "dev"):
        lines = [
            f"{rng.integers(2)}\t1\t2\t{' '.join(rng.choice(words, 4))}\t{' '.join(rng.choice(words, 4))}" for _ in range(30)
        ]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines]) + "\n")
    (tmp_path / "bert-base-uncased").symlink_to(tiny_model_dir)
    how = ["--data", tmp_path, "--max-steps", 2, "--max-length", 32, *CPU, "--output-dir", tmp_path / "run"]
    ran = run_command(["finetune", "mrpc", "--model", tmp_path / "bert-base-uncased", *how])
    assert ran.code == 0, ran.err
    page = written(tmp_path / "run")
    published = load_recipe("mrpc").reference["bert-base-uncased"]
    first = next(iter(published))
    name = f"published, {relative(tmp_path)}/bert-base-uncased"
    assert page.tables[f"{first} compared"][-1] == [shown(name), format_cell(published[first] / 100), "-"]
    column = page.tables[relative(tmp_path / "run")][0].index(shown(name))
    scores = {row[0]: row[column] for row in page.tables[relative(tmp_path / "run")][1:]}
    assert {scores[score] for score in published} == {format_cell(value / 100) for value in published.values()}


# --- classes, probabilities, slices --------------------------------------------------------------------------------------


def test_confusions_and_reliability_are_scikit_learns(runs: Path) -> None:
    run = runs / "helpdesk"
    page, rows = written(run), rows_of(run)
    gold, taken = ([row[name] for row in rows] for name in ("gold", "label"))
    matrix = next(rows for caption, rows in page.tables.items() if caption.startswith("validation: confusion matrix"))
    labels = matrix[0][1:]
    assert [row[0] for row in matrix[1:]] == labels
    assert [[int(cell) for cell in row[1:]] for row in matrix[1:]] == confusion_matrix(gold, taken, labels=labels).tolist()
    probability = [row["probability"] for row in rows]
    right = [row["gold"] == row["label"] for row in rows]
    accuracy, confidence = calibration_curve(right, probability, n_bins=15)
    table = next(rows for caption, rows in page.tables.items() if caption.startswith("reliability"))
    assert [float(row[3]) for row in table[1:]] == pytest.approx(accuracy, abs=5.1e-5)
    assert [float(row[2]) for row in table[1:]] == pytest.approx(confidence, abs=5.1e-5)


@pytest.mark.all_draws
def test_slices_by_hand(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = make_model_dir("BertModel", seed=7, initializer_range=0.5)
    rng = np.random.default_rng(0)
    words = [*"the good bad movie book was one two".split(), "\u4e2d"]  # the last one is unknown
    texts = [" ".join(rng.choice(words, rng.integers(3, 14))) for _ in range(120)]
    labels, sources = rng.choice(["a", "b", "c"], 120), rng.choice(["mail", "phone"], 120)
    lines = [",".join(row) for row in zip(texts, labels, sources, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,source", *lines]) + "\n", encoding="utf-8")
    run = train(tmp_path / "run", model, tmp_path / "rows.csv", max_length=32, num_epochs=3, learning_rate=1e-3)
    page, rows = written(run), rows_of(run)
    right = np.array([row["gold"] == row["label"] for row in rows])
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = [tokenizer(text)["input_ids"] for text in texts]
    lengths = np.array([len(row) for row in ids])
    unknown = np.array([row.count(tokenizer.unk_token_id) / len(row) for row in ids])
    found = {(row[0], row[1]): row[2:] for row in page.tables["slices"][1:]}
    expected = {("class", name): labels == name for name in "abc"} | {
        ("source", name): sources == name for name in ("mail", "phone")
    }
    expected |= {("[UNK]", "none"): unknown == 0, ("[UNK]", "more than 5%"): unknown > 0.05}
    expected[("[UNK]", "up to 5%")] = (unknown > 0) & (unknown <= 0.05)
    edges = [key[1].split(" to ") for key in found if key[0] == "tokens"]
    assert len(edges) == 4
    expected |= {("tokens", f"{low} to {high}"): (lengths >= int(low)) & (lengths <= int(high)) for low, high in edges}
    assert sum(expected["tokens", f"{low} to {high}"].sum() for low, high in edges) == 120
    expected = {key: marks for key, marks in expected.items() if marks.any()}
    assert {*found} == {*expected}
    draws = np.random.default_rng(1)
    for key, marks in expected.items():
        count, score, interval = found[key]
        assert int(count) == marks.sum(), key
        assert score == f"{right[marks].mean():.4f}"
        by_hand = right[marks][draws.integers(0, marks.sum(), (4000, marks.sum()))].mean(axis=1)
        if by_hand.min() == by_hand.max():
            assert interval == "-", "of rows that are all right, or all wrong"
            continue
        bounds = [float(bound) for bound in interval.split(" to ")]
        assert bounds == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.06)


def test_eval_prints_the_table_by_type(runs: Path) -> None:
    run = runs / "helpdesk_mentions"
    printed = run_command(["eval", run]).err
    table = written(run).tables["validation: by type"]
    assert table[0][4:] == ["chunks", "predicted", "wrong type", "wrong bounds", "both wrong", "missed", "spurious"]
    said = [re.findall(r"[^\s\u2502]+", line) for line in printed.splitlines() if line.startswith("\u2502")]
    assert all(row in said for row in table[1:])
    by_type = {row[0]: row[3] for row in table[1:]}
    scores = json.loads(run_command(["eval", run, "--json"]).out)
    assert {f"validation/f1_{kind}": f1 for kind, f1 in by_type.items()} == {
        name: format_cell(value) for name, value in scores.items() if "/f1_" in name
    }


# --- rows ----------------------------------------------------------------------------------------------------------------


def test_the_worst_errors_show_the_words_that_pushed_them(runs: Path) -> None:
    run = runs / "helpdesk"
    page, rows = written(run, "--errors", 7), rows_of(run)
    wrong = [row for row in rows if row["gold"] != row["label"]]
    worst = sorted(wrong, key=lambda row: row["probabilities"][row["gold"]])[:7]
    entries = [own for title, own in page.entries.items() if re.search(r":\d+$", title)]
    assert len(entries) == 7
    explained = bertkit.load(run, device="cpu", precision="fp32").explain([row["text"] for row in worst])
    for own, row, explanation in zip(entries, worst, explained, strict=True):
        assert own["text"] == shown(row["text"], 600)
        assert (own["expected"], own["predicted"]) == (row["gold"], f"{row['label']} {row['probability']:.0%}")
        assert explanation.label == row["label"]
        heaviest = sorted(explanation.words, key=lambda word: -abs(word[1]))[:5]
        assert own[f"words for {row['label']}"] == ", ".join(f"{word} {weight:+.3f}" for word, weight in heaviest)
    assert f"the worst 7 of {len(wrong)} errors" in page.text
    assert ("span", "class", "for") in page.values
    assert ("span", "class", "against") in page.values


def test_entities_are_marked_in_their_text(runs: Path) -> None:
    run = runs / "helpdesk_mentions"
    page, rows = written(run), rows_of(run)
    by_text = {row["text"]: row for row in rows}
    entries = [own for title, own in page.entries.items() if re.search(r":\d+$", title)]
    assert len(entries) == 20
    marks = iter(page.marked)
    for own in entries:
        text = next(text for text in by_text if _without_marks(own["expected"], by_text[text], "gold") == text)
        for side in ("gold", "tags"):
            for kind, words in _chunks(by_text[text], side):
                assert next(marks) == f"{words} {kind}"
    assert next(marks, None) is None


def _chunks(row: dict, side: str) -> list[tuple[str, str]]:
    """The type and the text of each chunk of IOB2 tags."""
    found: list[list] = []
    for tag, (start, end) in zip(row[side], row["offsets"], strict=True):
        if tag.startswith("B") or (tag.startswith("I") and (not found or found[-1][0] != tag[2:] or found[-1][3])):
            found.append([tag[2:], start, end, False])
        elif tag.startswith("I"):
            found[-1][2] = end
        elif found:
            found[-1][3] = True
    return [(kind, row["text"][start:end]) for kind, start, end, _ in found]


def _without_marks(text: str, row: dict, side: str) -> str:
    for kind, words in _chunks(row, side):
        text = text.replace(f"{words} {kind}", words, 1)
    return text


def test_answers_are_marked_in_their_context(runs: Path) -> None:
    run = runs / "helpdesk_pages"
    page = written(run)
    ran = run_command(["eval", run, "--output", runs / "answers"])
    assert ran.code == 0, ran.err
    predicted = json.loads((runs / "answers" / "predictions.json").read_text(encoding="utf-8"))
    data = json.loads((recipe_folder() / "data/helpdesk/pages/validation.json").read_text(encoding="utf-8"))
    asked = [qa for article in data["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    entries = [own for own in page.entries.values() if "question" in own]
    assert len(entries) == 20
    marks = iter(page.marked)
    without = 0
    for own in entries:
        rows = [qa for qa in asked if qa["question"] == own["question"]]
        pairs = [tuple(answer["text"] for answer in qa["answers"][:1]) + (predicted[str(qa["id"])],) for qa in rows]
        if own["expected"] == "no answer":
            without += 1
            assert (next(marks).removesuffix(" answer"),) in pairs
        else:
            assert (next(marks).removesuffix(" answer"), next(marks).removesuffix(" answer")) in pairs
            assert len(own["expected"]) > 100, "the context is there"
        assert re.search(r" \(\d+%\)$", own["predicted"])
    assert next(marks, None) is None
    assert 0 < without < 20


def test_pairs_numbers_and_several_labels(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    model, rng = make_model_dir("BertModel", seed=7, initializer_range=0.5), np.random.default_rng(0)
    words = "the good bad movie book was one two".split()
    texts = [" ".join(rng.choice(words, rng.integers(3, 9))) for _ in range(80)]
    kinds = [" ".join(sorted({*rng.choice(["x", "y", "z"], rng.integers(1, 3))})) for _ in range(40)]
    lines = [
        f"{first},{second},{rng.integers(9)},{kind}" for first, second, kind in zip(texts[:40], texts[40:], kinds, strict=True)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["one,other,score,kinds", *lines]) + "\n", encoding="utf-8")
    file, how = tmp_path / "rows.csv", {"text": "one", "max_length": 32}
    numbers = written(train(tmp_path / "numbers", model, file, **how, text_pair="other", label="score", regression=True))
    assert_accessible(numbers)
    assert not any("classes" in heading for heading in numbers.headings)
    assert {row[0] for row in numbers.tables["slices"][1:]} == {"tokens"}
    entry = next(own for own in numbers.entries.values() if "text_pair" in own)
    assert list(entry) == ["text", "text_pair", "expected", "predicted", "words for the number"]
    assert (entry["text"], entry["text_pair"]) in [*zip(texts[:40], texts[40:], strict=True)]
    several = written(train(tmp_path / "several", model, file, **how, label="kinds", label_separator=" ", multi_label=True))
    assert_accessible(several)
    reliability = next(rows for caption, rows in several.tables.items() if caption.startswith("reliability"))
    assert sum(int(row[1]) for row in reliability[1:]) == 40 * 3, "a decision of each label"
    shares = sum(int(row[1]) * float(row[3]) for row in reliability[1:])
    assert shares == pytest.approx(sum(len(kind.split()) for kind in kinds), abs=0.01)
    assert {row[1] for row in several.tables["slices"][1:] if row[0] == "class"} == {"x", "y", "z"}


# --- several runs --------------------------------------------------------------------------------------------------------


@pytest.mark.all_draws
def test_two_runs_show_who_mended_and_who_broke_which_rows(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    model, rng = make_model_dir("BertModel", seed=21, initializer_range=0.5), np.random.default_rng(0)
    words = "the movie book was good bad fine plays read one two".split()
    lines = [f"{label},{' '.join(rng.choice(words, 5))}" for label in rng.choice(["a", "b"], 60)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,text", *lines]) + "\n", encoding="utf-8")
    (tmp_path / "fewer.csv").write_text("\n".join(["label,text", *lines[:50]]) + "\n", encoding="utf-8")
    how = {"batch_size": 8, "num_epochs": 2}
    one = train(tmp_path / "one", model, tmp_path / "rows.csv", **how, learning_rate=1e-5)
    two = train(tmp_path / "two", model, tmp_path / "rows.csv", **how, learning_rate=3e-3)
    file = tmp_path / "both.html"
    report(one, two, "--output", file, "--errors", 3)
    page = assert_inert(file.read_text(encoding="utf-8"))
    assert_accessible(page)
    wrong = [np.array([row["gold"] != row["label"] for row in rows_of(run)]) for run in (one, two)]
    mended, broken = np.flatnonzero(wrong[0] & ~wrong[1]), np.flatnonzero(wrong[1] & ~wrong[0])
    assert len(mended) > 0 < len(broken)
    first, second, rows = map(relative, (one, two, tmp_path / "rows.csv"))
    counts = page.tables[f"rows fixed and broken, compared with {first}"][1]
    assert counts == [second, str(len(mended)), str(len(broken)), str((wrong[0] & wrong[1]).sum())]
    titles = [f"{rows}:{row + 2}: fixed by {second}" for row in mended[:3]]
    titles += [f"{rows}:{row + 2}: broken by {second}" for row in broken[:3]]
    assert [title for title in page.headings if " by " in title and "rows.csv" in title] == titles
    entry = page.entries[titles[0]]
    assert list(entry) == ["text", "expected", f"predicted by {first}", f"predicted by {second}"]
    label, text = lines[mended[0]].split(",")
    assert entry["text"] == text
    assert entry["expected"] == label == entry[f"predicted by {second}"].split()[0] != entry[f"predicted by {first}"].split()[0]
    compared = json.loads(run_command(["compare", one, two, "--json"]).out)
    (difference,) = compared["differences"]
    table = page.tables["paired bootstrap over rows"][1]
    assert table[2:4] == [
        format_cell(difference["difference"]),
        " to ".join(f"{bound:+.4f}" for bound in difference["interval"]),
    ]
    assert ["training.learning_rate", "1e-05", "0.003"] in page.tables["settings that differ"]
    assert [row for row in page.tables["run.json"] if row[0] == "training.learning_rate"] == [
        ["training.learning_rate", "1e-05", "0.003"]
    ]
    assert page.headings.count("Data") == 1
    assert sum(caption.endswith("labels") for caption in page.tables) == 1, "the data is the same"
    fewer = train(tmp_path / "fewer", model, tmp_path / "fewer.csv")
    ran = report(one, fewer, "--output", tmp_path / "no.html", code=2)
    assert "error: the validation rows differ from those of" in ran.err
    assert not (tmp_path / "no.html").exists()


# --- hostile and large data ----------------------------------------------------------------------------------------------


def test_hostile_labels_and_texts_are_inert(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    hostile = [text.replace("\ud800", "") for text in HOSTILE if text]
    model = make_model_dir("BertModel", seed=7, initializer_range=0.5)
    rows = [
        {"text": f"{text} {number}", "label": hostile[(at + number) % 5]}
        for number in range(3)
        for at, text in enumerate(hostile)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = train(tmp_path / "run $\\frac$ <b>", model, tmp_path / "rows.jsonl", max_length=32)
    page = written(run)
    assert_accessible(page)
    for label in hostile[:5]:
        assert shown(label) in page.tables["slices"][5][1] or any(row[1] == shown(label) for row in page.tables["slices"])
    texts = [own["text"] for own in page.entries.values() if "text" in own]
    assert texts
    assert len({*texts} & {shown(row["text"], 600) for row in rows}) >= len({*texts}) - 3, "but for long words that are marked"


def test_a_report_of_5000_rows_is_small(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    model, rng = make_model_dir("BertModel", seed=7, initializer_range=0.5), np.random.default_rng(0)
    words = "the good bad movie book was one two".split()
    lines = [f"{' '.join(rng.choice(words, 200))},class {rng.integers(60)}" for _ in range(5000)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    run = train(tmp_path / "run", model, tmp_path / "rows.csv")
    page = written(run)
    assert run.with_suffix(".html").stat().st_size < 300_000
    assert len([title for title in page.headings if re.search(r":\d+$", title)]) == 20
    assert len([row for row in page.tables["slices"] if row[0] == "class"]) == 12


# --- pre-training --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two phases on a corpus of two sources, one of single documents."""
    folder, rng = tmp_path_factory.mktemp("pretrained"), np.random.default_rng(0)
    words = {"films": "the good bad movie story actor".split(), "desk": "my screen phone printer page order [MASK]".split()}
    for name, own in words.items():
        documents = ["\n".join(" ".join(rng.choice(own, 8)) for _ in range(5)) for _ in range(120)]
        (folder / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    names = [str(folder / f"{name}.txt") for name in words]
    build_corpus(names, tiny_tokenizer_dir, folder / "corpus", CorpusConfig(held_out=0.2))
    config = PretrainConfig.of(
        {
            "phases": "32:75%,48:25%",
            "max_steps": 40,
            "batch_size": 8,
            "logging_steps": 5,
            "eval_steps": 20,
            "device": "cpu",
            "precision": "fp32",
        }
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    vocab_size = json.loads((folder / "corpus/meta.json").read_text())["tokenizer"]["vocab_size"]
    pretrain(
        open_corpora([folder / "corpus"]),
        config,
        output_dir=folder / "run",
        architecture=BertConfig(vocab_size=vocab_size, **sizes),
    )
    return folder / "run"


def test_a_pretraining_run(pretrained: Path) -> None:
    page = written(pretrained, "--errors", 4)
    assert_accessible(page)
    scores = json.loads(run_command(["eval", pretrained, "--json"]).out)
    assert {row[0]: row[1] for row in page.tables[relative(pretrained)][1:]} == {
        name: format_cell(value) for name, value in scores.items()
    }
    unigram = json.loads((pretrained / "run.json").read_text())["baselines"]
    beside = page.tables["validation/mlm_loss compared"]
    assert {row[0]: row[1] for row in beside[2:]} == {name: format_cell(value) for name, value in unigram.items()}
    log = [json.loads(line) for line in (pretrained / "metrics.jsonl").read_text().splitlines()]
    by_phase = page.tables["training loss by phase"]
    for phase, steps in ((1, range(1, 31)), (2, range(31, 41))):
        for term in ("loss", "mlm_loss", "nsp_loss"):
            losses = [event[term] for event in log if "learning_rate" in event and event["step"] in steps]
            row = next(row for row in by_phase if row[0] == str(phase) and row[3] == term)
            assert row[4:] == [format_cell(value) for value in (losses[0], losses[-1], min(losses))]
            assert row[1] == str({1: 32, 2: 48}[phase])
    assert len(by_phase) == 7


def test_perplexity_by_source_and_filled_masks(pretrained: Path) -> None:
    page = written(pretrained, "--errors", 4)
    sources = page.tables["held-out sequences by source"][1:]
    assert {Path(row[0]).name for row in sources} == {"films.txt", "desk.txt"}
    count, perplexity = (np.array([float(row[at]) for row in sources]) for at in (1, 2))
    loss = json.loads(run_command(["eval", pretrained, "--json"]).out)["validation/mlm_loss"]
    low, high = np.log(perplexity).min(), np.log(perplexity).max()
    assert low <= loss <= high
    assert abs(np.average(np.log(perplexity), weights=count) - loss) < 0.2 * (high - low) + 0.02
    entries = [own["text"] for title, own in page.entries.items() if title.startswith("held-out sequence")]
    assert len(entries) == 4
    assert len(page.marked) > 4
    words = {"films.txt": "the good bad movie story actor".split(), "desk.txt": "my screen phone printer page order".split()}
    known = {word for own in words.values() for word in own}
    assert any(mark.startswith("[MASK] ") for mark in page.marked), "a [MASK] of the text itself"
    for mark in page.marked:
        right, *likeliest = re.split(r" (?=\S+ 0\.\d\d)|, ", mark)
        assert right in known | {"m", "##y", "[MASK]"}, mark
        shares = [float(each.split()[-1]) for each in likeliest if each]
        assert len(shares) == 3
        assert shares == sorted(shares, reverse=True)


def test_paths_of_mixed_and_continued_corpora_are_relative() -> None:
    data = {"own-text": {"source": "/machine/own-text", "share": 0.5}, "a/own": {"source": "/machine/a/own", "share": 0.5}}
    continued = [{"step": 3, "data": {"corpus": {"source": "/machine/later"}}}]
    run = ReportedRun(
        "run", Path("run"), {"data": data, "continued": continued, "training": {"entities": "/machine/names.txt"}}
    )
    paths = [f"/machine/{name}" for name in ("own-text", "a/own", "names.txt", "later")]
    assert _relative_paths([], [run]) == {path: os.path.relpath(path) for path in paths}


def test_a_pretraining_run_whose_corpus_is_gone_has_its_curves(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the page names paths from here, and cuts a long finding in its middle
    run = Path(shutil.copytree(pretrained, tmp_path / "run"))
    values = (run / "run.json").read_text().replace(str(pretrained.parent / "corpus"), str(tmp_path / "gone"))
    (run / "run.json").write_text(values)
    (run / "manifest.json").unlink()
    page = written(run)
    assert "run is not scored: the folder is not a corpus: there is no meta.json (gone)" in page.text
    assert {"Curves", "Loss by phase", "Settings"} <= {*page.headings}


# --- bad input -----------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(runs: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    cases = [
        ([tmp_path / "folder"], 2, "this is not a bertkit run: there is no run.json"),
        ([tmp_path / "none"], 2, "this is not a bertkit run: there is no such folder"),
        ([runs / "helpdesk", tmp_path / "none"], 2, "this is not a bertkit run: there is no such folder"),
        ([runs / "helpdesk", runs / "helpdesk_pages"], 2, "the runs are of different tasks: "),
        ([runs / "helpdesk", pretrained], 2, "the runs are of different tasks: "),
        ([runs / "helpdesk", "--output", tmp_path / "folder"], 2, "--output is a folder; expected a file"),
        ([runs / "helpdesk", "--output", tmp_path / "none" / "r.html"], 2, "the folder of --output does not exist"),
        ([runs / "helpdesk", "--output", tmp_path / "r.txt"], 2, "r.txt; a report is HTML"),
        ([], 2, "Missing argument 'RUN...'"),
    ]
    for argv, code, words in cases:
        ran = report(*argv, code=code)
        (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        assert words in line, line
    monkeypatch.setattr("bertkit.runs.evaluation.compare.evaluate_target", lambda *_, **__: pytest.fail("it predicts"))
    ran = run_command(["compare", runs / "helpdesk", runs / "helpdesk_pages"])
    assert (ran.code, "error: the runs are of different tasks: " in ran.err) == (2, True), ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_without_the_extra_nothing_is_begun(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    ran = report(runs / "helpdesk", "--output", tmp_path / "r.html", code=5)
    assert ran.err.splitlines() == ["error: report needs the package jinja2", 'hint: python -m pip install "bertkit[report]"']


def test_numbers_have_no_rows_that_are_right(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    lines = [f"{'the good movie ' * (1 + row % 4)},{row % 7 / 2}" for row in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    one, two = (
        train(tmp_path / name, model, tmp_path / "rows.csv", regression=True, num_epochs=2, batch_size=8, learning_rate=rate)
        for name, rate in (("one", 1e-5), ("two", 3e-3))
    )
    file = tmp_path / "both.html"
    report(one, two, "--output", file)
    tables = assert_inert(file.read_text(encoding="utf-8")).tables
    assert tables["slices"][0] == ["by", "slice", "rows", "pearson", "95% interval"]
    assert len(tables["slices"]) > 2
    assert "paired bootstrap over rows" in tables
    assert not any("fixed and broken" in caption for caption in tables)
