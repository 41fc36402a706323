"""Recipes of texts and pairs beyond GLUE on their real files: every row as a plain reading has it, and short runs."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_rows import fit, load

from bertkit.errors import DataError
from bertkit.tasks import TextClassification
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits

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

# How the first row begins, as it was read off the file.
FIRST = {
    ("imdb", "train"): ("This app is awesome.Easy to use UI", "1"),
    ("imdb", "test"): ("Such a wonderful app that ever", "1"),
    ("chnsenticorp", "train"): ("选择珠江花园的原因就是方便", "1"),
    ("chnsenticorp", "validation"): ("這間酒店環境和服務態度亦算不錯", "1"),
    ("chnsenticorp", "test"): ("这个宾馆比较陈旧了", "1"),
    ("thucnews", "validation"): ("体验2D巅峰 倚天屠龙记十大创新概览", "8"),
    ("thucnews", "test"): ("词汇阅读是关键 08年考研暑期英语复习全指南", "3"),
    ("lcqmc", "test"): ("谁有狂三这张高清的", "这张高清图", "0"),
    ("xnli", "validation_en"): ("And he said, Mama, I'm home.", "He called his mom as soon as the school bus", "neutral"),
    ("xnli", "validation_zh"): ("他说", "校车把他放下后", "neutral"),
    ("xnli", "test_en"): ("Well, I wasn't even thinking a", "I havent spoken to him again.", "contradiction"),
    ("xnli", "test_zh"): ("嗯", "我还没有和他再次谈论。", "contradiction"),
}


def recipe_of(name: str, data_dir: Path, **typed: Any) -> TextClassification:
    recipe = load_recipe(name).overridden({"data": str(data_dir / FOLDERS[name]), **typed}).resolved()
    assert isinstance(recipe, TextClassification)
    return recipe


def lines_of(path: Path) -> list[str]:
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
    table = [line.split("\t") for line in lines_of(data_dir / FOLDERS[name] / file)[header:]]
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
    *begins, first_label = FIRST[name, split]
    assert rows[0][-1] == first_label
    for text, begin in zip(rows[0][:-1], begins, strict=True):
        assert text.startswith(begin)


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


# --- SMS Spam --------------------------------------------------------------------------------------------------------------


def test_sms_spam_holds_out_a_tenth(data_dir: Path) -> None:
    table = [tuple(reversed(line.split("\t"))) for line in lines_of(data_dir / "SMSSpam" / "SMSSpamCollection.gz")]
    assert len(table) == 5574
    assert Counter(label for _, label in table) == {"ham": 4827, "spam": 747}
    assert table[0][0].startswith("Go until jurong point, crazy.. ")
    train, held_out = (rows_of(recipe_of("sms_spam", data_dir), split) for split in ("train", "validation"))
    assert Counter(train) + Counter(held_out) == Counter(table)
    assert train[0] == table[0]
    assert 0.095 < len(held_out) / len(table) < 0.105
    for label, count in (("ham", 4827), ("spam", 747)):
        assert 0.09 < Counter(row[1] for row in held_out)[label] / count < 0.11
    sides = [{" ".join(text.casefold().split()) for text, _ in rows} for rows in (train, held_out)]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) < 5574, "some texts stand there twice, so the split could have parted them"


def test_sms_spam_holds_out_the_same_each_time(data_dir: Path) -> None:
    first, second, other = (rows_of(recipe_of("sms_spam", data_dir, split_seed=seed), "validation") for seed in (0, 0, 1))
    assert first == second != other
    assert first == rows_of(recipe_of("sms_spam", data_dir, max_train_samples=9), "validation")


# --- OCNLI -----------------------------------------------------------------------------------------------------------------


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
    table = [json.loads(line) for line in lines_of(data_dir / "OCNLI" / file)]
    labelled = [(row["sentence1"], row["sentence2"], row["label"]) for row in table if row["label"] != "-"]
    recipe = recipe_of("ocnli", data_dir)
    rows = rows_of(recipe, split)
    assert rows == labelled
    assert Counter(row[-1] for row in rows) == counts
    assert len(rows) == len(table) - left_out
    assert load(recipe, split).remarks.notes == (f"the recipe drops {left_out} of {len(table)} rows",)


# --- XNLI ------------------------------------------------------------------------------------------------------------------


def test_xnli_evaluates_the_languages_that_are_there(
    run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path
) -> None:
    """Trained on rows in English that stand in for MNLI's, evaluated in both languages in one table."""
    folder = tmp_path / "xnli"
    folder.mkdir()
    for name in ("dev-en.tsv", "dev-zh.tsv"):
        (folder / name).write_text("\n".join(lines_of(data_dir / "XNLI" / f"{name}.gz")[:300]) + "\n", encoding="utf-8")
    train = lines_of(data_dir / "XNLI" / "test-en.tsv.gz")[:60]
    (folder / "train-en.tsv").write_text("\n".join(train) + "\n", encoding="utf-8")
    settings = ("--max-steps", 1, "--batch-size", 8, "--max-length", 48, "--device", "cpu", "--precision", "fp32")
    ran = run_bertkit("finetune", "xnli", "--data", "xnli", "-m", tiny_chinese_dir, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert {split: data["rows"] for split, data in run["data"].items()} == {
        "train": 60,
        "validation_en": 300,
        "validation_zh": 300,
    }
    scores = run["best"]["scores"]
    assert {"validation_en/accuracy", "validation_zh/accuracy"} <= set(scores)
    assert not any("_ar" in name or "_fr" in name for name in scores)
    ran = run_bertkit("eval", "run", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-4)
    assert "validation_en" in ran.err
    assert "validation_zh" in ran.err
    for language in ("en", "zh"):
        path = folder / f"dev-{language}.tsv"
        said = run_bertkit("predict", "run", path, "--columns", "premise,hypothesis,label")
        assert said.code == 0, said.err
        gold = [line.split("\t")[2] for line in path.read_text(encoding="utf-8").splitlines()]
        right = [json.loads(line)["label"] == label for line, label in zip(said.out.splitlines(), gold, strict=True)]
        assert scores[f"validation_{language}/accuracy"] == pytest.approx(sum(right) / 300)


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
    assert (error.value.where, "dev-en.tsv" in error.value.what) == (str(tmp_path), True)


def test_xnli_asks_the_hub_for_a_language(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.readers import Examples
    from bertkit.tasks.sources import Hub

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


# --- short runs ------------------------------------------------------------------------------------------------------------


def run_of(run_bertkit, recipe: str, model: Path, *options: Any) -> tuple[dict[str, Any], str]:
    settings = ("--max-steps", 1, "--max-train-samples", 64, "--device", "cpu", "--precision", "fp32")
    ran = run_bertkit("finetune", recipe, "-m", model, "-o", "run", *settings, *options)
    assert ran.code == 0, ran.err
    return json.loads(Path("run/run.json").read_text(encoding="utf-8")), ran.err


def test_imdb_reads_the_begin_and_the_end(
    run_bertkit, data_dir: Path, make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    (tmp_path / "imdb").mkdir()
    for name, rows in (("train.tsv", 2000), ("test.tsv", 40)):
        lines = lines_of(data_dir / "IMDb-slice" / f"{name}.gz")[: rows + 1]
        (tmp_path / "imdb" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    run, said = run_of(run_bertkit, "imdb", model, "--data", "imdb", "--max-length", 34)
    assert {split: data["rows"] for split, data in run["data"].items()} == {"train": 64, "validation": 100, "test": 40}
    assert run["recipe"]["truncate"] == "head+tail"
    assert next(iter(run["best"]["scores"])) == "validation/accuracy", "the test set does not choose the step"
    assert {"test/accuracy", "test/loss"} <= set(run["best"]["scores"])
    assert any(line.startswith("test: 40 rows, ") and line.endswith(" longer than 34 truncated") for line in said.splitlines())
    assert "train: 64 rows" in said

    # Of 32 pieces 8 are the first, 24 the last: what stands between them means nothing, and either end does.
    begin, end = "good movie " * 4, "bad book " * 12
    texts = [begin + "poor plot " * 20 + end, begin + "great story " * 33 + end]
    texts += ["one team " * 4 + "poor plot " * 20 + end, begin + "poor plot " * 20 + "one team " * 12]
    ran = run_bertkit("predict", "run", stdin="".join(f"{text.strip()}\n" for text in texts).encode())
    assert ran.code == 0, ran.err
    same, middle, other_begin, other_end = (json.loads(line)["probability"] for line in ran.out.splitlines())
    assert middle == same
    assert abs(other_begin - same) > 1e-6
    assert abs(other_end - same) > 1e-6


def test_a_chinese_recipe(run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews").mkdir()
    for name, rows in (("train", 9600), ("dev", 50), ("test", 30)):
        lines = lines_of(data_dir / "ChnSentiCorp" / f"{name}.tsv.gz")[: rows + 1]
        (tmp_path / "reviews" / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run, _ = run_of(run_bertkit, "chnsenticorp", tiny_chinese_dir, "--data", "reviews", "--max-length", 64)
    assert {split: data["rows"] for split, data in run["data"].items()} == {"train": 64, "validation": 50, "test": 30}
    scores = run["best"]["scores"]
    assert {"validation/accuracy", "test/accuracy"} <= set(scores)
    ran = run_bertkit("predict", "run", "reviews/dev.tsv", "--text", "text_a")
    assert ran.code == 0, ran.err
    gold = [line.split("\t")[0] for line in (tmp_path / "reviews" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    said = [json.loads(line)["label"] for line in ran.out.splitlines()]
    right = [label == {"0": "negative", "1": "positive"}[number] for label, number in zip(said, gold, strict=True)]
    assert scores["validation/accuracy"] == pytest.approx(sum(right) / 50)


def test_ocnli_without_its_open_rows(run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    dev = lines_of(data_dir / "OCNLI" / "dev.json.gz")[:200]
    (tmp_path / "data" / "train.json").write_text("\n".join(dev) + "\n", encoding="utf-8")
    (tmp_path / "data" / "dev.json").write_text("\n".join(dev) + "\n", encoding="utf-8")
    open_rows = sum(json.loads(line)["label"] == "-" for line in dev)
    assert open_rows > 0
    run, said = run_of(run_bertkit, "ocnli", tiny_chinese_dir, "--data", "data", "--max-length", 64)
    assert run["data"]["validation"]["rows"] == 200 - open_rows
    assert f"validation: the recipe drops {open_rows} of 200 rows" in said.splitlines()
    ran = run_bertkit("predict", "run", "data/dev.json")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 200


@pytest.mark.parametrize(("name", "file"), [("thucnews", "dev.txt.gz"), ("lcqmc", "test.txt.gz")])
def test_a_set_without_a_train_file(data_dir: Path, name: str, file: str) -> None:
    with pytest.raises(DataError) as error:
        load(recipe_of(name, data_dir))
    assert (error.value.where, "train.txt" in error.value.what) == (str(data_dir / FOLDERS[name]), True)
    columns = ",".join(load_recipe(name).folder.headers["train"])
    files = {"train": str(data_dir / FOLDERS[name] / file), "columns": columns, "validation": "10%"}
    recipe = load_recipe(name).overridden(files).resolved()
    rows = len(lines_of(data_dir / FOLDERS[name] / file))
    parts = [len(load(recipe, split)) for split in ("train", "validation")]
    assert sum(parts) == rows
    assert parts[1] == pytest.approx(rows / 10, rel=0.02)
