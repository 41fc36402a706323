"""A task restored from a trained model: where each option comes from, and which parts of a config.json count."""

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
from bertkit.tasks.block import read_block
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


def test_a_file_to_predict_keeps_no_option_of_training_files() -> None:
    recipe = TokenClassification(train="f", column="4", separator="|").resolved()
    changed = {"train": None, "validation": None, "test": "new.txt", "column": None, "separator": None}
    assert recipe.with_file("new.txt", ()) == replace(recipe, **changed)
    assert recipe.with_file("new.txt", {"column"}).column == "4"


def test_metrics_and_overrides_that_do_not_fit() -> None:
    task = Task.restore(config_of(labels=("a", "b", "c")), TextClassification(train="f").overridden({"metric": ["f1"]}))
    with pytest.raises(UsageError):
        replace(task, recipe=task.recipe.resolved())
    with pytest.raises(UsageError):
        Task.restore(config_of(), None, {"max_lenght": 5})


def test_labels_are_the_models_or_matched_to_those_that_a_recipe_names() -> None:
    config = config_of(labels=("no", "yes"))
    task = Task.restore(config)
    assert (task.labels, task.numbers, task.positive) == (("no", "yes"), ("no", "yes"), "yes")
    task = Task.restore(config, TextClassification(labels=("Yes", "No")))
    assert (task.labels, task.numbers, task.positive) == (("No", "Yes"), ("Yes", "No"), "No")
    for labels in (("a", "b"), ("no", "yes", "maybe")):
        recipe = TextClassification(labels=labels, train="f")
        rows = Examples({"text": [*labels], "label": [*labels]}, "f", range(len(labels)))
        for task_of in (
            lambda recipe=recipe: Task.restore(config, recipe, where="m"),
            lambda recipe=recipe, rows=rows: Task.fit(recipe.resolved(), rows, config, where="m"),
        ):
            with pytest.raises(ModelError) as error:
                task_of()
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
def test_plain_models_and_those_of_0_1(config: BertConfig, family: str, options: dict[str, Any]) -> None:
    task = Task.restore(config)
    assert task.family == family
    assert {name: getattr(task.recipe, name) for name in options} == options


def test_thresholds_of_0_1_stay_with_their_labels() -> None:
    config = config_of(problem_type="multi_label_classification", label_thresholds={"yes": 0.2})
    assert Task.restore(config).thresholds == {"no": 0.5, "yes": 0.2}


def test_a_block_that_class_or_labels_contradict_is_ignored() -> None:
    def found(config: BertConfig) -> tuple[str, tuple[str, ...], bool, bool]:
        task = Task.restore(config, where="m")
        is_stale = any(warning.startswith("m: ") for warning in task.remarks.warnings)
        return task.family, task.labels, task.recipe.training.max_length == 77, is_stale

    def changed(**values: Any) -> BertConfig:
        return replace(config, extra=config.extra | {"bertkit": config.extra["bertkit"] | values})

    config = trained(replace(ASKED, labels=("no", "yes"), class_weights=("1", "2")))
    text, token = "text-classification", "token-classification"
    assert found(config) == (text, ("no", "yes"), True, False)
    assert found(replace(config, id2label={0: "neg", 1: "pos"})) == (text, ("neg", "pos"), False, True)
    other = replace(config, extra=config.extra | {"architectures": ["BertForTokenClassification"]})
    assert found(other) == (token, ("no", "yes"), False, True)
    for values in ({"numbers": ["no"]}, {"class_weights": {"no": 1}}, {"positive_label": "maybe"}, {"pooling": "mean"}):
        assert found(changed(**values)) == (text, ("no", "yes"), False, True), values
    with pytest.raises(ModelError):  # an encoder without a head
        Task.restore(replace(config, extra=config.extra | {"architectures": [OWN]}))


MALFORMED: dict[str, dict[str, tuple[Any, ...]]] = {
    "text-classification": {
        "format": (2, None),
        "family": ("no-such-family", ["text-classification"], None),
        "pooling": ("avg", 5, ["mean"]),
        "max_length": ("long",),
        "numbers": (5, "no,yes", [0, 1], {"no": 0}),
        "positive_label": (["no"],),
        "class_weights": (5, ["no"], {"no": "much", "yes": 1}),
        "thresholds": (5, ["no"], {"no": "much", "yes": 1}),
    },
    "multiple-choice": {"labels_are": (5, "places")},
    "token-classification": {"intents": (5, "one", [1]), "scheme": (5, ["iob2"]), "constrained": ("yes",), "head": (5,)},
    "question-answering": {
        **dict.fromkeys(("unanswerable", "matching", "null_threshold"), ("some", ["some"])),
        "question_column": (5, ["question"]),
    },
}


@pytest.mark.parametrize("family", MALFORMED)
def test_malformed_blocks(family: str) -> None:
    blocks = [{"format": 1, "family": family, name: value} for name, values in MALFORMED[family].items() for value in values]
    for block in (5, [], *blocks):
        has_own_head = isinstance(block, dict) and bool({"pooling", "head"} & set(block))
        with pytest.raises(ModelError) as error:
            Task.restore(config_of(OWN if has_own_head else Task.families[family].hf_class, bertkit=block), where="m")
        assert error.value.where in ("m", "m/config.json"), block
    for keys in ({"task_family": "none"}, {"label_thresholds": 5}, {"intents": 5}, {"tagging_head": 5}):  # of bertkit 0.1
        with pytest.raises(ModelError):
            Task.restore(config_of(**keys))


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


def test_a_block_has_no_data_metrics_or_settings_of_training() -> None:
    config = trained(replace(ASKED, metric=("macro_f1",), label_smoothing=0.1))
    block = read_block(config, "m")
    assert block is not None
    assert not {"train", "data", "metric", "labels", "label_smoothing", "learning_rate"} & set(block)
    assert (block["format"], block["family"], block["text"], block["max_length"]) == (1, "text-classification", "body", 77)
