"""Recipes of texts and pairs beyond GLUE on their real files: every row as a plain reading has it, and short runs."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_rows import fit, load

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.tasks import TextClassification
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.counts import lines_of
from bertkit.tasks.sources import Hub
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

FOLDERS = {
    "sms_spam": "SMSSpam",
    "imdb": "IMDb-slice",
    "chnsenticorp": "ChnSentiCorp",
    "thucnews": "THUCNews-titles",
    "lcqmc": "LCQMC",
    "ocnli": "OCNLI",
    "xnli": "XNLI",
}

SECTIONS = ["finance", "realty", "stocks", "education", "science", "society", "politics", "sports", "game", "entertainment"]
THIRDS = ("entailment", "neutral", "contradiction")

# By recipe and split: the file, where its texts and label stand, the lines of its header, and the rows of each label.
FILES: dict[tuple[str, str], tuple[str, tuple[int, ...], int, int, dict[str, int]]] = {
    ("imdb", "train"): ("train.tsv.gz", (1,), 0, 1, {"1": 1000, "0": 1000}),
    ("imdb", "test"): ("test.tsv.gz", (1,), 0, 1, {"1": 500, "0": 500}),
    ("chnsenticorp", "train"): ("train.tsv.gz", (1,), 0, 1, {"0": 4801, "1": 4799}),
    ("chnsenticorp", "validation"): ("dev.tsv.gz", (1,), 0, 1, {"0": 607, "1": 593}),
    ("chnsenticorp", "test"): ("test.tsv.gz", (1,), 0, 1, {"0": 592, "1": 608}),
    ("thucnews", "validation"): ("dev.txt.gz", (0,), 1, 0, {str(number): 1000 for number in range(10)}),
    ("thucnews", "test"): ("test.txt.gz", (0,), 1, 0, {str(number): 1000 for number in range(10)}),
    ("lcqmc", "test"): ("test.txt.gz", (0, 1), 2, 0, {"0": 6250, "1": 6250}),
    ("xnli", "validation_en"): ("dev-en.tsv.gz", (0, 1), 2, 0, dict.fromkeys(THIRDS, 830)),
    ("xnli", "validation_zh"): ("dev-zh.tsv.gz", (0, 1), 2, 0, dict.fromkeys(THIRDS, 830)),
    ("xnli", "test_en"): ("test-en.tsv.gz", (0, 1), 2, 0, dict.fromkeys(THIRDS, 1670)),
    ("xnli", "test_zh"): ("test-zh.tsv.gz", (0, 1), 2, 0, dict.fromkeys(THIRDS, 1670)),
}


def recipe_of(name: str, data_dir: Path, **typed: Any) -> TextClassification:
    recipe = load_recipe(name).overridden({"data": str(data_dir / FOLDERS[name]), **typed}).resolved()
    assert isinstance(recipe, TextClassification)
    return recipe


def read_lines(path: Path) -> list[str]:
    """The lines of a packed file, read without any of ours."""
    return gzip.decompress(path.read_bytes()).decode("utf-8").replace("\r\n", "\n").rstrip("\n").split("\n")


def rows_of(recipe: TextClassification, split: str) -> list[tuple[str, ...]]:
    """The rows that a recipe loads: one or two texts, and the label."""
    examples = load(recipe, split)
    names = ("text", "text_pair", "label") if recipe.text_pair else ("text", "label")
    assert set(examples.columns) == set(names)
    return list(zip(*(examples.columns[name] for name in names), strict=True))


@pytest.mark.parametrize(("name", "split"), FILES)
def test_rows_are_those_of_the_file(data_dir: Path, name: str, split: str) -> None:
    file, texts, label, header, counts = FILES[name, split]
    table = [line.split("\t") for line in read_lines(data_dir / FOLDERS[name] / file)[header:]]
    assert {len(row) for row in table} == {len(texts) + 1}
    recipe = recipe_of(name, data_dir)
    whole = replace(recipe, held_out=None)  # of imdb some rows are held out
    rows = rows_of(whole, split)
    assert rows == [(*(row[column] for column in texts), row[label]) for row in table]
    if recipe.held_out and split == "train":
        kept, taken = rows_of(recipe, "train"), rows_of(recipe, "validation")
        assert sorted(kept + taken) == sorted(rows)
        assert len(taken) == pytest.approx(len(rows) / 20, rel=0.1)
        assert not {text for text, _ in kept} & {text for text, _ in taken}
    assert len(rows) == sum(counts.values())
    assert Counter(row[-1] for row in rows) == counts


def gold_of(name: str, data_dir: Path, split: str, at: int) -> str:
    """What the recipe calls a row's label."""
    recipe = recipe_of(name, data_dir)
    rows = read_splits(recipe, [split]).rows[split]
    task = fit(recipe, split)
    return task.truth(task.examples(rows.select([at]), labelled=True))[0]


def test_numbers_of_labels_mean_what_the_authors_say(data_dir: Path) -> None:
    sections = (data_dir / "THUCNews-titles" / "class.txt").read_text(encoding="utf-8").split()
    assert list(recipe_of("thucnews", data_dir).labels or ()) == sections == SECTIONS
    assert gold_of("thucnews", data_dir, "validation", 0) == "game"  # of an online game
    assert gold_of("thucnews", data_dir, "test", 0) == "education"  # of an examination
    assert gold_of("imdb", data_dir, "test", 0) == "pos"
    assert gold_of("chnsenticorp", data_dir, "train", 0) == "positive"
    assert gold_of("lcqmc", data_dir, "test", 0) == "different"
    assert gold_of("lcqmc", data_dir, "test", 1) == "same"
    assert gold_of("xnli", data_dir, "validation_en", 1) == "contradiction"


def test_sms_spam_holds_out_the_same_tenth_each_time(data_dir: Path) -> None:
    table = [tuple(reversed(line.split("\t"))) for line in read_lines(data_dir / "SMSSpam" / "SMSSpamCollection.gz")]
    assert Counter(label for _, label in table) == {"ham": 4827, "spam": 747}
    recipe = recipe_of("sms_spam", data_dir)
    train, held_out = (rows_of(recipe, split) for split in ("train", "validation"))
    assert Counter(train) + Counter(held_out) == Counter(table)
    assert 0.095 < len(held_out) / len(table) < 0.105
    for label, count in (("ham", 4827), ("spam", 747)):
        assert 0.09 < Counter(row[1] for row in held_out)[label] / count < 0.11
    sides = [{" ".join(text.casefold().split()) for text, _ in rows} for rows in (train, held_out)]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) < 5574, "some texts stand there twice, so the split could have parted them"
    assert (
        held_out
        == rows_of(replace(recipe, max_train_samples=9), "validation")
        != rows_of(replace(recipe, split_seed=1), "validation")
    )


@pytest.mark.parametrize(
    ("split", "file", "left_out", "counts"),
    [
        ("train", "train.10k.json.gz", 15, {"neutral": 3434, "entailment": 3309, "contradiction": 3242}),
        ("validation", "dev.json.gz", 50, {"neutral": 1103, "entailment": 947, "contradiction": 900}),
    ],
)
def test_ocnli_leaves_out_what_the_annotators_left_open(
    data_dir: Path, split: str, file: str, left_out: int, counts: dict[str, int]
) -> None:
    table = [json.loads(line) for line in read_lines(data_dir / "OCNLI" / file)]
    labelled = [(row["sentence1"], row["sentence2"], row["label"]) for row in table if row["label"] != "-"]
    recipe = recipe_of("ocnli", data_dir)
    rows = rows_of(recipe, split)
    assert rows == labelled
    assert Counter(row[-1] for row in rows) == counts
    assert len(rows) == len(table) - left_out
    assert load(recipe, split).remarks.notes == (f"the recipe drops {left_out} of {len(table)} rows",)
    own = recipe.with_file(str(data_dir / "OCNLI" / file), ())
    assert len(load(own, "test", labelled=False)) == len(table), "of a file to predict every row stays"


# --- XNLI ------------------------------------------------------------------------------------------------------------------


def test_xnli_evaluates_the_languages_that_are_there(
    run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path
) -> None:
    """Trained on rows in English that stand in for MNLI's, evaluated in both languages in one table."""
    (tmp_path / "xnli").mkdir()
    for name, source, rows in (("dev-en", "dev-en", 60), ("dev-zh", "dev-zh", 60), ("train-en", "test-en", 40)):
        lines = read_lines(data_dir / "XNLI" / f"{source}.tsv.gz")[:rows]
        (tmp_path / "xnli" / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = "--max-steps 1 --batch-size 8 --max-length 48 --device cpu --precision fp32 --no-baselines".split()
    ran = run_bertkit("finetune", "xnli", "--data", "xnli", "-m", tiny_chinese_dir, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert {split: data["rows"] for split, data in run["data"].items()} == {
        "train": 40,
        "validation_en": 60,
        "validation_zh": 60,
    }
    scores = run["best"]["scores"]
    assert {name.partition("/")[0] for name in scores if name.endswith("/accuracy")} == {"validation_en", "validation_zh"}
    ran = run_bertkit("eval", "run", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-4)
    for language in ("en", "zh"):
        path = tmp_path / "xnli" / f"dev-{language}.tsv"
        said = run_bertkit("predict", "run", path, "--columns", "premise,hypothesis,label")
        assert said.code == 0, said.err
        gold = [line.split("\t")[2] for line in path.read_text(encoding="utf-8").splitlines()]
        right = [json.loads(line)["label"] == label for line, label in zip(said.out.splitlines(), gold, strict=True)]
        assert scores[f"validation_{language}/accuracy"] == pytest.approx(sum(right) / 60)


def test_xnli_knows_fifteen_languages(data_dir: Path, tmp_path: Path) -> None:
    recipe = load_recipe("xnli")
    languages = {"en", "ar", "bg", "de", "el", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"}
    assert set(recipe.eval_splits) == {f"validation_{language}" for language in languages}
    assert recipe_of("xnli", data_dir).eval_splits == ("validation_en", "validation_zh")
    (tmp_path / "dev-sw.tsv").write_text("a\tb\tneutral\n", encoding="utf-8")
    assert recipe.overridden({"data": str(tmp_path)}).resolved().eval_splits == ("validation_sw",)
    (tmp_path / "dev-sw.tsv").unlink()
    none = recipe.overridden({"data": str(tmp_path)}).resolved()
    with pytest.raises(DataError) as error:
        load(none, "validation_en")
    assert (error.value.where, "dev-en.tsv" in error.value.what) == (str(tmp_path.resolve()), True)


def test_xnli_asks_the_hub_for_a_language(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def read(hub: Hub, split: str) -> Examples:
        asked.append((hub.path, hub.name, split))
        columns = {"hypothesis": ["b", "d"], "label": [2, 0], "premise": ["a", "c"]}
        return Examples(columns, "hub", range(2), {"label": THIRDS})

    monkeypatch.setattr(Hub, "read", read)
    recipe = load_recipe("xnli").resolved()
    assert isinstance(recipe, TextClassification)
    examples = fit(recipe).examples(read_splits(recipe, ["validation_zh"]).rows["validation_zh"], labelled=True)
    assert examples.columns == {"text": ["a", "c"], "text_pair": ["b", "d"], "label": ["contradiction", "entailment"]}
    assert asked == [("facebook/xnli", "en", "train"), ("facebook/xnli", "zh", "validation")]


# --- others ----------------------------------------------------------------------------------------------------------------


def test_imdb_reads_the_begin_and_the_end(data_dir: Path, tiny_tokenizer_dir: Path) -> None:
    recipe = recipe_of("imdb", data_dir)
    assert recipe.eval_splits == ("validation", "test"), "the test set does not choose the step"
    begin, middle, end = ["good"] * 8, ["poor"] * 40, ["book"] * 24
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    rows = Examples({"text": [" ".join(begin + middle + end), " ".join(begin + end)]}, "f", range(2))
    features, remarks = Task.unfitted(recipe).encode(rows, tokenizer, max_length=34, labelled=False)
    assert features.input_ids[0].tolist() == features.input_ids[1].tolist()
    assert lines_of(remarks) == ["1 longer than 34 truncated"]


@pytest.mark.parametrize(("name", "file"), [("thucnews", "dev.txt.gz"), ("lcqmc", "test.txt.gz")])
def test_a_set_without_a_train_file(data_dir: Path, name: str, file: str) -> None:
    with pytest.raises(DataError) as error:
        load(recipe_of(name, data_dir))
    assert (error.value.where, "train.txt" in error.value.what) == (str((data_dir / FOLDERS[name]).resolve()), True)
    columns = ",".join(load_recipe(name).folder.headers["train"])
    files = {"train": str(data_dir / FOLDERS[name] / file), "columns": columns, "validation": "10%"}
    recipe = load_recipe(name).overridden(files).resolved()
    rows = len(read_lines(data_dir / FOLDERS[name] / file))
    parts = [len(load(recipe, split)) for split in ("train", "validation")]
    assert sum(parts) == rows
    assert parts[1] == pytest.approx(rows / 10, rel=0.02)
