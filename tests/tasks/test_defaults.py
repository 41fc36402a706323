"""Settings that are not set: chosen by model size, rows, labels and lengths; given ones take precedence; where they are
recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertkit.config import TrainConfig, filled
from bertkit.model.config import BertConfig
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.finetuning.series import finetune_series
from bertkit.runs.request import Request
from bertkit.runs.series import SEEDS
from bertkit.tasks import MultipleChoice, QuestionAnswering, Recipe, TextClassification, TokenClassification
from bertkit.tasks.defaults import choose_settings
from bertkit.text.tokenizer import Tokenizer

SIZES = {"tiny": (2, 128), "minilm": (6, 384), "base": (12, 768), "large": (24, 1024)}
CHOSEN = ("learning_rate", "batch_size", "num_epochs", "max_length")


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


def config_of(layers: int, hidden: int, positions: int = 512) -> BertConfig:
    heads = max(1, hidden // 64)
    return BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, max_position_embeddings=positions
    )


def rows_of(count: int, labels: int = 2, words: int = 3) -> Examples:
    columns = {"text": ["the film " * (words // 2)] * count, "label": [f"label{row % labels}" for row in range(count)]}
    return Examples(columns, "rows.csv", range(2, count + 2))


def resolved(recipe: Recipe, rows: Examples, tokenizer: Tokenizer, config: BertConfig, **options: Any) -> dict[str, Any]:
    chosen = choose_settings(filled(recipe), rows, Pretrained("m", Path("m"), config, tokenizer), **options)
    training = filled(recipe.training, chosen)
    return {name: getattr(training, name) for name in CHOSEN}


@pytest.mark.parametrize(
    ("size", "rows", "labels", "rate", "batch", "epochs"),
    [
        ("base", 300, 2, 5e-5, 16, 4),
        ("base", 5000, 2, 5e-5, 16, 3),
        ("base", 30_000, 2, 5e-5, 32, 3),
        ("minilm", 300, 2, 1e-4, 16, 7),
        ("minilm", 149, 2, 1e-4, 16, 20),
        ("base", 149, 2, 5e-5, 16, 4),
        ("minilm", 30_000, 2, 1e-4, 32, 3),
        ("tiny", 300, 2, 3e-4, 16, 7),
        ("large", 300, 2, 3.1e-5, 16, 4),
    ],
)
def test_the_choice_by_size_and_rows(
    tokenizer: Tokenizer, size: str, rows: int, labels: int, rate: float, batch: int, epochs: int
) -> None:
    found = resolved(TextClassification(), rows_of(rows, labels), tokenizer, config_of(*SIZES[size]))
    assert found == {"learning_rate": pytest.approx(rate), "batch_size": batch, "num_epochs": epochs, "max_length": 128}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [150, 700, 3000, 9999, 10_000, 40_000])
@pytest.mark.parametrize("labels", [2, 77])
def test_never_more_than_five_times_the_steps_and_at_base_the_papers_grid(
    tokenizer: Tokenizer, size: str, rows: int, labels: int
) -> None:
    found = resolved(TextClassification(), rows_of(rows, labels), tokenizer, config_of(*SIZES[size]))
    batches = -(-rows // found["batch_size"])
    assert found["num_epochs"] * batches <= 5 * 3 * -(-rows // 32)
    if size == "base":  # Devlin et al. (2019), appendix A.3
        grid = found["learning_rate"] in (5e-5, 3e-5, 2e-5), found["batch_size"] in (16, 32), found["num_epochs"] in (2, 3, 4)
        assert grid == (True, True, True)


def test_more_labels_take_more_steps(tokenizer: Tokenizer) -> None:
    epochs = [
        resolved(TextClassification(), rows_of(3000, labels), tokenizer, config_of(6, 384))["num_epochs"] for labels in (2, 77)
    ]
    assert epochs[0] < epochs[1]
    of_many = [
        resolved(TextClassification(), rows_of(9000, labels), tokenizer, config_of(6, 384))["num_epochs"] for labels in (20, 77)
    ]
    assert of_many == [3, 6], "800 steps and 3080, of 563 an epoch"
    numbers = Examples({"text": ["a"] * 3000, "label": [row / 7 for row in range(3000)]}, "rows.csv", range(3000))
    regression = resolved(TextClassification(regression=True), numbers, tokenizer, config_of(6, 384))
    assert (
        regression["num_epochs"] == resolved(TextClassification(), rows_of(3000, 1), tokenizer, config_of(6, 384))["num_epochs"]
    )


@pytest.mark.parametrize(
    ("words", "positions", "truncate", "length"),
    [
        (20, 512, "head", 128),
        (200, 512, "head", 208),
        (900, 512, "tail", 512),
        (900, 300, "head", 300),
        (900, 512, "windows", 128),
    ],
)
def test_the_length_holds_most_texts(tokenizer: Tokenizer, words: int, positions: int, truncate: str, length: int) -> None:
    recipe = TextClassification(truncate=truncate)
    assert resolved(recipe, rows_of(40, words=words), tokenizer, config_of(2, 32, positions))["max_length"] == length
    few_long = replace(rows_of(40), columns={**rows_of(40).columns, "text": ["the film " * words, *["the film"] * 39]})
    assert resolved(recipe, few_long, tokenizer, config_of(2, 32, positions))["max_length"] == 128


def test_the_other_families_lengths(tokenizer: Tokenizer) -> None:
    config = config_of(2, 32)
    answers = {"question": ["who"], "context": ["film " * 600], "answers": [{"text": ["film"], "answer_start": [0]}]}
    assert resolved(QuestionAnswering(), Examples(answers, "r", [1]), tokenizer, config)["max_length"] == 384
    tags = {"tokens": [["film"] * 600], "tags": [["O"] * 600]}
    assert resolved(TokenClassification(), Examples(tags, "r", [1]), tokenizer, config)["max_length"] == 128
    choices = {"context": ["film " * 150], "choices": [["the", "film"]], "label": [0]}
    assert resolved(MultipleChoice(), Examples(choices, "r", [1]), tokenizer, config)["max_length"] == 160


@pytest.mark.parametrize("stated", [{name: value} for name, value in zip(CHOSEN, (1e-3, 5, 2.0, 24), strict=True)])
def test_what_is_stated_wins_and_so_does_an_earlier_run(tokenizer: Tokenizer, stated: dict[str, float]) -> None:
    (name, value) = next(iter(stated.items()))
    recipe, rows, config = TextClassification(training=TrainConfig(**stated)), rows_of(300), config_of(6, 384)
    pretrained = Pretrained("m", Path("m"), config, tokenizer)
    found = choose_settings(filled(recipe), rows, pretrained)
    assert set(found) == {"by", *CHOSEN} - {name}
    assert getattr(filled(recipe.training, found), name) == value
    assert set(choose_settings(filled(TextClassification()), rows, pretrained, earlier=stated)) == {"by", *CHOSEN} - {name}


def test_nothing_is_chosen_where_all_is_stated(tokenizer: Tokenizer) -> None:
    recipe = TextClassification(training=TrainConfig(learning_rate=1e-4, batch_size=8, max_steps=3, max_length=16))
    pretrained = Pretrained("m", Path("m"), config_of(6, 384), tokenizer)
    assert choose_settings(filled(recipe), rows_of(3), pretrained) == {}


def test_run_json_and_folders_of_seeds_record_the_choice(
    make_model_dir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model_dir("BertModel", seed=2)
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "good movie,praise\nbad movie,blame\n" * 10, encoding="utf-8")
    options = {"train": str(path), "validation": str(path), "num_epochs": 1, "max_length": 16, "precision": "fp32"}
    recipe = TextClassification().overridden(options)
    finetune(Request(recipe, "text-classification", str(model)), tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    expected = {"learning_rate": 3e-4, "batch_size": 16}
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    by = f"20 rows, 2 labels, {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}"
    assert run["chosen"] == {"by": by, **expected}
    assert {name: run["training"][name] for name in expected} == expected
    assert f"chosen for {by}: " in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def seeds(make_model_dir, tmp_path: Path) -> Callable[[int], dict[str, Any]]:
    """A function that trains so many seeds in tmp_path and returns their summary; one is there."""
    rows, model = tmp_path / "rows.csv", str(make_model_dir("BertModel", seed=2))
    rows.write_text("text,label\n" + "good movie,praise\nbad movie,blame\n" * 10, encoding="utf-8")
    recipe = TextClassification().overridden({"train": str(rows), "validation": str(rows), "num_epochs": 1, "max_length": 16})

    def train(count: int) -> dict[str, Any]:
        return finetune_series(SEEDS, Request(recipe, "text-classification", model), tmp_path / "seeds", count=count)

    train(1)
    return train


def chosen_otherwise(file: Path) -> None:
    """Change the learning rate in a file of a run, as if the choice had been another one then."""
    file.write_text(file.read_text(encoding="utf-8").replace("0.0003", "0.0007"), encoding="utf-8")


def test_a_folder_of_seeds_keeps_the_settings_of_its_first(seeds, tmp_path: Path) -> None:
    for name in ("seeds.json", "seed-1/run.json"):
        chosen_otherwise(tmp_path / "seeds" / name)
    summary = seeds(2)
    second = json.loads((tmp_path / "seeds" / "seed-2" / "run.json").read_text(encoding="utf-8"))
    assert second["training"]["learning_rate"] == second["chosen"]["learning_rate"] == 7e-4
    assert summary["plan"]["training"]["learning_rate"] == 7e-4


def test_seeds_begun_without_a_summary_keep_the_settings_of_the_run_that_is_there(seeds, tmp_path: Path) -> None:
    (tmp_path / "seeds" / "seeds.json").unlink()
    chosen_otherwise(tmp_path / "seeds" / "seed-1" / "run.json")
    seeds(2)
    second = json.loads((tmp_path / "seeds" / "seed-2" / "run.json").read_text(encoding="utf-8"))
    assert second["training"]["learning_rate"] == 7e-4


def test_the_length_is_measured_on_rows_from_all_over_the_data(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.tasks.defaults.SAMPLE", 10)
    texts = ["the film"] * 20 + ["the film " * 100] * 20
    rows = replace(rows_of(40), columns={**rows_of(40).columns, "text": texts})
    assert resolved(TextClassification(), rows, tokenizer, config_of(2, 32))["max_length"] == 208
