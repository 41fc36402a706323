"""BertConfig against transformers' BertConfig and published config.json files; the option mechanism's own promises."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers

from bertkit.config import PretrainConfig, TrainConfig, convert, filled, options_of
from bertkit.errors import ModelError, UsageError
from bertkit.model.bert import ACTIVATIONS
from bertkit.model.config import ACTIVATION_NAMES, MODEL_SIZES, BertConfig

TINY = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
OWN = [f.name for f in dataclasses.fields(BertConfig) if f.name not in ("extra", "id2label")]

# --- config.json ---------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    ours, theirs = BertConfig(), transformers.BertConfig()
    assert {name: getattr(ours, name) for name in OWN} == {name: getattr(theirs, name) for name in OWN}
    assert ours.num_labels == theirs.num_labels
    theirs.save_pretrained(tmp_path)
    read = BertConfig.read(tmp_path / "config.json")
    assert {name: getattr(read, name) for name in OWN} == {name: getattr(ours, name) for name in OWN}


def test_reads_what_transformers_writes_and_the_other_way_round(tmp_path: Path) -> None:
    changes = {"hidden_act": "relu", "layer_norm_eps": 1e-5, "classifier_dropout": 0.3, "type_vocab_size": 3, "pad_token_id": 4}
    changes |= {"problem_type": "regression", "hidden_dropout_prob": 0.0, "max_position_embeddings": 40}
    names = {0: "no", 1: "yes", 2: "maybe"}
    theirs = transformers.BertConfig(**TINY, **changes, id2label=names, label2id={name: i for i, name in names.items()})
    theirs.save_pretrained(tmp_path)
    ours = BertConfig.read(tmp_path / "config.json")
    assert {name: getattr(ours, name) for name in OWN} == {name: getattr(theirs, name) for name in OWN}
    assert ours.label_names == ("no", "yes", "maybe")
    (tmp_path / "config.json").write_text(json.dumps(ours.to_dict()), encoding="utf-8")
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again.to_dict() == theirs.to_dict() | {"_name_or_path": str(tmp_path)}
    assert BertConfig.read(tmp_path / "config.json") == ours


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "bert-base-chinese", "bert-base-multilingual-cased"])
def test_published_configurations_keep_every_key(data_dir: Path, name: str) -> None:
    folder = data_dir.parent / "vocab" / name
    (path,) = [path for path in (folder / "config.json", folder / "bert_config.json") if path.exists()]
    values = json.loads(path.read_text(encoding="utf-8"))
    config = BertConfig.read(path)
    assert (config.num_hidden_layers, config.num_labels, config.layer_norm_eps) == (12, 2, 1e-12)
    assert config.to_dict().items() >= {key: value for key, value in values.items() if value is not None}.items()


def test_unknown_keys_are_kept() -> None:
    values = {**TINY, "our_own_key": {"a": [1, None]}, "use_cache": True}
    written = BertConfig.from_dict(values).to_dict()
    assert values.items() <= written.items()
    assert written["model_type"] == "bert"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # what bertkit does not compute
        ("position_embedding_type", "relative_key"),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("problem_type", "ranking"),
        ("model_type", "roberta"),
        ("hidden_act", "gelu_nwe"),
        # what is impossible
        ("num_attention_heads", 5),
        ("vocab_size", 0),
        ("hidden_size", "768"),
        ("num_hidden_layers", 2.0),
        ("num_hidden_layers", -1),
        ("num_attention_heads", True),
        ("max_position_embeddings", -1),
        ("type_vocab_size", 0),
        ("pad_token_id", -1),
        ("pad_token_id", 50),
        ("hidden_dropout_prob", 1.5),
        ("attention_probs_dropout_prob", "0.1"),
        ("classifier_dropout", -0.1),
        ("layer_norm_eps", "1e-12"),
        ("layer_norm_eps", float("nan")),
        # labels that contradict themselves
        ("id2label", {"0": "a", "2": "b"}),
        ("id2label", {"0": "a", "1": "a"}),
        ("id2label", {"a": 0}),
        ("id2label", ["a", "b"]),
        # numbers of labels that would take all memory, or are none
        ("num_labels", 10**10),
        ("num_labels", True),
        ("num_labels", "3"),
        ("num_labels", -1),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ModelError) as error:
        BertConfig.from_dict({**TINY, key: value}, where="m/config.json")
    assert key in error.value.what
    assert (error.value.where, error.value.exit_code) == ("m/config.json", 4)


@pytest.mark.parametrize(("name", "value"), [("initializer_range", "Infinity"), ("unread", "NaN")])
def test_values_that_json_does_not_have_are_refused(name: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"hidden_size": 32, "{name}": {value}}}', encoding="utf-8")
    with pytest.raises(ModelError) as error:
        BertConfig.read(path)
    assert (value in error.value.what, error.value.where) == (True, str(path))


def test_numbers_of_labels_that_differ_are_refused() -> None:
    with pytest.raises(ModelError) as error:
        BertConfig.from_dict({**TINY, "id2label": {"0": "a", "1": "b"}, "num_labels": 3})
    assert "num_labels" in error.value.what


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_activations_are_those_of_transformers(name: str) -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert torch.allclose(ACTIVATIONS[name](x), transformers.activations.ACT2FN[name](x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "text", ["", '{"hidden_size": 3', "[]", '{"pooling_mode_mean_tokens": true}', '{"model_type": "bert"}', None]
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config.json"
    path.mkdir() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        BertConfig.read(path)
    assert error.value.where == str(path)


# --- labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [{"num_labels": 3}, {"_num_labels": 3}, {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}]
)
def test_labels_without_names(values: dict) -> None:
    config = BertConfig.from_dict({**TINY, **values})
    assert config.num_labels == 3
    assert config.label_names is None


def test_labels_in_the_order_of_their_numbers() -> None:
    config = BertConfig.from_dict(
        {**TINY, "id2label": {"2": "c", "10": "k", "0": "a"} | {str(i): f"x{i}" for i in (1, *range(3, 10))}}
    )
    assert config.label_names == ("a", "x1", "c", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "k")
    assert config.to_dict()["label2id"]["k"] == 10


# --- sizes ---------------------------------------------------------------------------------------------------------

# Parameters in millions, encoder with embeddings and pooler: Turc et al. (2019), table 1, and Devlin et al. (2019), section 3.
PAPER = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110, "large": 340}


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_sizes_are_the_papers(size: str) -> None:
    config = BertConfig.of_size(size)
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(**{name: getattr(config, name) for name in OWN}))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert millions == pytest.approx(PAPER[size], rel=0.02)


def test_sizes_take_changes_and_know_their_names() -> None:
    assert BertConfig.of_size("tiny", vocab_size=99).vocab_size == 99
    with pytest.raises(UsageError) as error:
        BertConfig.of_size("bsae")
    assert "bsae" in error.value.what
    assert "base" in error.value.hint


# --- options -------------------------------------------------------------------------------------------------------


def test_every_training_setting_is_an_option_with_help() -> None:
    options = options_of(TrainConfig)
    assert list(options) == [f.name for f in dataclasses.fields(TrainConfig)]
    assert all(option.help and getattr(TrainConfig(), name) is None for name, option in options.items())


def test_what_nobody_has_set_is_none_until_it_is_filled() -> None:
    asked = TrainConfig(seed=7)
    assert (asked.seed, asked.batch_size, filled(asked)) == (7, None, filled(asked, {}, {}))
    found = filled(asked, {"seed": 1, "batch_size": 8, "track": ("wandb",)}, {"batch_size": 9, "max_length": 33})
    assert (found.seed, found.batch_size, found.max_length, found.track) == (7, 8, 33, ("wandb",)), "the first that has one"
    assert found.learning_rate == options_of(TrainConfig)["learning_rate"].default
    assert found.max_steps is None, "an option may have no default"
    assert filled(TrainConfig(seed=0, adam_bias_correction=False)).adam_bias_correction is False
    assert PretrainConfig.of({"batch_size": 3, "unknown": 1}) == filled(PretrainConfig(batch_size=3))
    assert PretrainConfig.of({}).learning_rate == 1e-4, "its own default"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", "1e-5", 1e-5),  # as YAML reads it
        ("learning_rate", 1, 1.0),
        ("batch_size", "32", 32),
        ("batch_size", 32.0, 32),
        ("max_steps", None, None),
        ("max_steps", "7", 7),
        ("precision", "bf16", "bf16"),
        ("adam_bias_correction", False, False),
        ("track", "wandb, trackio", ("wandb", "trackio")),
        ("track", 'no, "yes, but not ""now""", 5",', ("no", 'yes, but not "now"', '5"', "")),
        ("track", '"a, b" ,c,"d"  ', ("a, b", "c", "d")),
        ("track", "no,\nyes\n", ("no", "yes")),  # of a block of YAML
        ("track", "", ("",)),
        ("track", ["wandb"], ("wandb",)),
    ],
)
def test_convert(name: str, value: object, expected: object) -> None:
    found = convert(options_of(TrainConfig)[name], value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", "fast"),
        ("learning_rate", 10**400),
        ("learning_rate", False),  # YAML's no
        ("learning_rate", float("nan")),
        ("learning_rate", None),
        ("learning_rate", -1),
        ("batch_size", 2.5),
        ("batch_size", 0),
        ("warmup_ratio", 2),
        ("dropout", 1.5),
        ("seed", 2**32),
        ("adam_beta1", 1),
        ("adam_bias_correction", "yes"),
        ("precision", "fp61"),
        ("precision", ["fp32"]),
        ("track", 3),
        ("track", '"no,yes'),
        ("track", 'no,"yes"=2'),
        ("track", [["wandb"]]),
        ("track", [True]),
    ],
)
def test_convert_refuses(name: str, value: object) -> None:
    declared = options_of(TrainConfig)[name]
    with pytest.raises(UsageError) as error:
        convert(declared, value)
    assert declared.flag in error.value.what
    assert error.value.exit_code == 2


def test_settings_of_a_recipe_are_checked_too() -> None:
    assert TrainConfig(learning_rate="1e-5").learning_rate == 1e-5
    with pytest.raises(UsageError):
        TrainConfig(schedule="cosin")
    for schedule in ("linear", "constant"):
        with pytest.raises(UsageError, match=f"--decay-ratio has no effect with --schedule {schedule}"):
            TrainConfig(schedule=schedule, decay_ratio=0.5)
    assert filled(TrainConfig(schedule="warmup_stable_decay", decay_ratio=0.5)).decay_ratio == 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {"hours": 1, "max_steps": 9},
        {"phases": "128:90%,512:10%"},
        {"phases": "128:90%,512:20%", "max_steps": 9},
        {"phases": "7:100%", "max_steps": 9},
        {"phases": "128", "max_steps": 9},
    ],
)
def test_lengths_of_pre_training_that_make_no_sense(settings: dict) -> None:
    with pytest.raises(UsageError):
        filled(PretrainConfig(**settings)).lengths()


def test_phases_are_lengths_with_shares() -> None:
    assert filled(PretrainConfig(phases="128:90%,512:10%", hours=1)).lengths() == [(128, 0.9), (512, 0.1)]
    assert filled(PretrainConfig(max_length=64)).lengths() == [(64, 1.0)]
    assert PretrainConfig(objective="ltr").objective == "clm"
    with pytest.raises(UsageError):
        PretrainConfig(objective=["mlm"])
