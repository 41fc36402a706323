"""What a trained model is used for: where each option comes from, first to last, and what of a config.json is believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertkit.config import filled
from bertkit.errors import ModelError, UsageError
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.tasks import FAMILIES, MultipleChoice, QuestionAnswering, Task, TextClassification, TokenClassification
from bertkit.tasks.block import block_is_stale, read_block
from bertkit.text.tokenizer import Tokenizer

SEQUENCE, OWN = "BertForSequenceClassification", "BertModel"


def config_of(architecture: str = SEQUENCE, labels: tuple[str, ...] = ("no", "yes"), **keys: Any) -> BertConfig:
    extra = {name: value for name, value in keys.items() if name != "problem_type"}
    return BertConfig(
        num_hidden_layers=1,
        id2label=dict(enumerate(labels)),
        problem_type=keys.get("problem_type"),
        extra={"architectures": [architecture], **extra},
    )


def trained(recipe: TextClassification, labels: tuple[str, ...] = ("no", "yes")) -> BertConfig:
    """The config.json of a model that was trained by a recipe."""
    rows = Examples({"body": ["a", "b"], "kind": [*labels]}, "f", range(2))
    task = Task.fit(replace(recipe, train="f", text="body", label="kind").resolved(), rows)
    config = task.configure(BertConfig(num_hidden_layers=1))
    return replace(config, extra=config.extra | {"architectures": [task.architecture(config)]})


ASKED = TextClassification(truncate="tail").overridden({"max_length": 77, "precision": "fp32"})


def test_options_come_from_overrides_recipe_block_and_defaults_in_this_order() -> None:
    config = trained(ASKED)

    def found(recipe: TextClassification | None = None, **overrides: Any) -> tuple[Any, ...]:
        task = Task.restore(config, recipe, overrides)
        own = task.recipe
        assert isinstance(own, TextClassification)
        return own.text, own.label, own.truncate, own.training.max_length, own.training.batch_size

    assert found() == ("body", "kind", "tail", 77, 32), "the block, and a default that no block keeps"
    typed = TextClassification(text="words").overridden({"max_length": 55, "batch_size": 8})
    assert found(typed) == ("words", "kind", "tail", 55, 8)
    assert found(typed, text="sentence", truncate="head") == ("sentence", "kind", "head", 55, 8)
    assert found(text="sentence", max_length=9) == ("sentence", "kind", "tail", 9, 32)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_has_every_option_filled_in(tiny_tokenizer_dir: Path, family: str) -> None:
    rows = {
        "text-classification": {"text": ["a", "b"], "label": ["x", "y"]},
        "token-classification": {"tokens": [["a"], ["b"]], "tags": [["O"], ["B-X"]]},
        "question-answering": {"question": ["a"] * 2, "context": ["b"] * 2, "answers": [["b"]] * 2},
        "multiple-choice": {"text": ["a", "b"], "choices": [["x", "y"]] * 2, "label": [0, 1]},
    }[family]
    data = Examples(rows, "f", range(2))
    recipe = replace(FAMILIES[family](), train="f").resolved()
    for task in (Task.fit(recipe, data), Task.unfitted(recipe)):
        assert task.recipe.training == filled(recipe.training)
        examples = recipe.standardize(data, labelled=False)
        assert len(task.encode(examples, Tokenizer.load(tiny_tokenizer_dir), labelled=False).features) == 2


def test_a_file_to_predict_has_no_column_of_training_files() -> None:
    recipe = TokenClassification(train="f", column="4", separator="|").resolved()
    changed = {"train": None, "validation": None, "test": "new.txt", "column": None, "separator": None}
    assert recipe.with_file("new.txt", ()) == replace(recipe, **changed)
    assert recipe.with_file("new.txt", {"column"}).column == "4"


def test_f1_needs_two_classes_whenever_it_is_named() -> None:
    task = Task.restore(config_of(labels=("a", "b", "c")), TextClassification(train="f").overridden({"metric": ["f1"]}))
    with pytest.raises(UsageError):
        replace(task, recipe=task.recipe.resolved())


def test_labels_are_the_models_or_matched_to_those_that_a_recipe_names() -> None:
    config = config_of(labels=("no", "yes"))
    task = Task.restore(config)
    assert (task.labels, task.numbers, task.positive) == (("no", "yes"), ("no", "yes"), "yes")
    task = Task.restore(config, TextClassification(labels=("Yes", "No")))
    assert (task.labels, task.numbers, task.positive) == (("No", "Yes"), ("Yes", "No"), "No")
    for labels in (("a", "b"), ("no", "yes", "maybe")):
        with pytest.raises(ModelError) as error:
            Task.restore(config, TextClassification(labels=labels), where="m")
        assert error.value.where == "m"
    unnamed = Task.restore(config_of(labels=("LABEL_0", "LABEL_1")), TextClassification(labels=("b", "a")))
    assert (unnamed.labels, len(unnamed.remarks.warnings)) == (("b", "a"), 1)


@pytest.mark.parametrize("recipe", [{}, {"labels": ("yes", "no")}], ids=["names", "numbers"])
def test_a_model_alone_reads_labels_as_its_run_did(recipe: dict[str, Any]) -> None:
    asked = replace(ASKED, **recipe, class_weights=("1", "5"), pooling="mean")
    rows = Examples({"body": ["a", "b"], "kind": ["yes", "no"]}, "f", range(2))
    asked = replace(asked, train="f", training=filled(asked.training)).resolved()
    fitted = Task.fit(asked, rows)
    config = fitted.configure(BertConfig(num_hidden_layers=1))
    restored = Task.restore(replace(config, extra=config.extra | {"architectures": [OWN]}))
    for name in ("labels", "numbers", "positive", "weights"):
        assert getattr(restored, name) == getattr(fitted, name), name
    assert restored.recipe.pooling == "mean"
    assert restored.examples(rows, labelled=True).columns == fitted.examples(rows, labelled=True).columns
    assert restored.configure(BertConfig(num_hidden_layers=1)) == config


@pytest.mark.parametrize(
    ("config", "family", "options"),
    [
        (config_of(problem_type="regression", labels=("LABEL_0",)), "text-classification", {"regression": True}),
        (config_of(labels=("LABEL_0",)), "text-classification", {"regression": True}),
        (config_of(problem_type="multi_label_classification"), "text-classification", {"multi_label": True}),
        (config_of(), "text-classification", {"multi_label": False, "regression": False, "pooling": "pooled"}),
        (config_of("BertForMultipleChoice", ("LABEL_0",)), "multiple-choice", {"pooling": "pooled"}),
        (config_of("BertForTokenClassification", ("O", "B-A")), "token-classification", {"head": "linear"}),
        (config_of("BertForQuestionAnswering"), "question-answering", {}),
        # the flat keys of bertkit 0.1
        (config_of(OWN, classifier_pooling="max", task_family="multiple-choice"), "multiple-choice", {"pooling": "max"}),
        (config_of(OWN, ("O", "B-A"), tagging_head="crf"), "token-classification", {"head": "crf"}),
    ],
)
def test_what_plain_models_and_those_of_0_1_say(config: BertConfig, family: str, options: dict[str, Any]) -> None:
    task = Task.restore(config)
    assert task.family == family
    assert {name: getattr(task.recipe, name) for name in options} == options


def test_thresholds_of_0_1_stay_with_their_labels() -> None:
    config = config_of(problem_type="multi_label_classification", label_thresholds={"yes": 0.2})
    assert Task.restore(config).thresholds == {"no": 0.5, "yes": 0.2}


def test_a_block_that_class_or_labels_contradict_is_ignored() -> None:
    config = trained(replace(ASKED, labels=("no", "yes")))
    assert (block_is_stale(config), Task.restore(config).recipe.training.max_length) == (False, 77)
    renamed = replace(config, id2label={0: "neg", 1: "pos"})
    assert (block_is_stale(renamed), Task.restore(renamed).labels) == (True, ("neg", "pos"))
    for architecture, family in ((SEQUENCE, None), ("BertForTokenClassification", "token-classification"), (OWN, "none")):
        other = replace(config, extra=config.extra | {"architectures": [architecture]})
        assert block_is_stale(other) == (family is not None), architecture
        if family == "none":  # an encoder without a head
            with pytest.raises(ModelError):
                Task.restore(other)
        else:
            task = Task.restore(other)
            assert task.family == (family or "text-classification")
            assert (task.recipe.training.max_length == 77) == (family is None)


@pytest.mark.parametrize(
    "block",
    [
        {"format": 2, "family": "text-classification"},
        {"format": 1},
        {"format": 1, "family": "no-such-family"},
        {"format": 1, "family": ["text-classification"]},
        {"format": 1, "family": "text-classification", "pooling": "avg"},
        {"format": 1, "family": "text-classification", "max_length": "long"},
    ],
)
def test_a_block_that_is_none_is_the_models_fault(block: dict[str, Any]) -> None:
    architecture = OWN if block.get("pooling") else SEQUENCE
    with pytest.raises(ModelError):
        Task.restore(config_of(architecture, bertkit=block))


@pytest.mark.parametrize(
    ("config", "recipe"),
    [
        (config_of(), TokenClassification()),
        (config_of(), QuestionAnswering()),
        (config_of(), MultipleChoice()),
        (config_of(), TextClassification(pooling="mean")),
        (config_of(), TextClassification(regression=True)),
        (config_of("BertForPreTraining"), None),
        (config_of("BertModel"), TextClassification()),
        (config_of("BertForTokenClassification"), TokenClassification(head="crf")),
    ],
)
def test_a_head_of_another_kind_is_refused(config: BertConfig, recipe: Any) -> None:
    with pytest.raises(ModelError) as error:
        Task.restore(config, recipe, where="m")
    assert error.value.where == "m"


def test_an_override_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        Task.restore(config_of(), None, {"max_lenght": 5})


def test_what_a_block_leaves_to_its_model_alone() -> None:
    """Neither data, nor metrics, nor what only training needs."""
    config = trained(replace(ASKED, metric=("macro_f1",), label_smoothing=0.1))
    block = read_block(config)
    assert block is not None
    assert not {"train", "data", "metric", "labels", "label_smoothing", "learning_rate"} & set(block)
    assert (block["format"], block["family"], block["text"], block["max_length"]) == (1, "text-classification", "body", 77)
