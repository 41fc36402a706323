"""Layer by layer: what is frozen, reinitialized, or learns more slowly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertkit.config import TrainConfig, filled
from bertkit.errors import UsageError
from bertkit.features import Features, Ragged
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
from bertkit.model.layerwise import depth_of, freeze, learning_rate_scales, num_layers, reinitialize
from bertkit.training.vocabulary import UsedVocabulary

LAYERS = 3
CONFIG = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=24)
SETTINGS = filled(TrainConfig())
WORDS = "bert.embeddings.word_embeddings.weight"


def new_module() -> BertForSequenceClassification:
    module = BertForSequenceClassification(CONFIG)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, mean=0.5)
    return module


def test_depths() -> None:
    names = list(new_module().state_dict())
    assert num_layers(names) == LAYERS
    depths = {name: depth_of(name, LAYERS) for name in names}
    assert depths[WORDS] == depths["bert.embeddings.LayerNorm.bias"] == 0
    assert [depths[f"bert.encoder.layer.{at}.output.dense.weight"] for at in range(LAYERS)] == [1, 2, 3]
    assert depths["bert.pooler.dense.weight"] == depths["classifier.bias"] == LAYERS + 1
    assert num_layers(["classifier.weight"]) == 0
    assert depth_of("encoder.layer.11.output.dense.bias", 12) == 12  # an encoder alone has no prefix


@pytest.mark.parametrize(("option", "deepest"), [(None, -1), ("embeddings", 0), ("1", 1), ("2", 2), ("encoder", LAYERS)])
def test_freeze_reaches_this_deep(option: str | None, deepest: int) -> None:
    module = new_module()
    freeze(module, replace(SETTINGS, freeze=option))
    for name, parameter in module.named_parameters():
        assert parameter.requires_grad == (depth_of(name, LAYERS) > deepest), name


def test_lower_layers_learn_more_slowly() -> None:
    names = list(new_module().state_dict())
    scales = learning_rate_scales(names, replace(SETTINGS, layerwise_lr_decay=0.1))
    assert scales == pytest.approx({name: 0.1 ** (LAYERS + 1 - depth_of(name, LAYERS)) for name in names})


@pytest.mark.parametrize("frozen", [None, "embeddings"])
def test_unused_rows_decay_at_the_rate_of_the_embeddings(frozen: str | None) -> None:
    settings = replace(SETTINGS, learning_rate=1e-2, schedule="constant", warmup_ratio=0.0, weight_decay=0.5)
    module, settings = new_module(), replace(settings, layerwise_lr_decay=0.5, freeze=frozen)
    before = module.state_dict()[WORDS].clone()
    ids = Ragged.of([[2, 7, 9]])
    vocabulary = UsedVocabulary([Features(ids, ids, np.arange(1))], module, settings)
    freeze(module, settings)
    after = vocabulary.widen(module.state_dict(), step=2, total_steps=2)[WORDS]
    left = 1 if frozen else (1 - 0.5 * 1e-2 * 0.5 ** (LAYERS + 1)) ** 2
    used = torch.isin(torch.arange(40), torch.tensor([2, 7, 9]))
    assert torch.equal(after[used], before[used])
    torch.testing.assert_close(after[~used], before[~used] * left, rtol=1e-7, atol=0)
    assert frozen or not torch.equal(after[~used], before[~used])


def test_top_layers_begin_anew() -> None:
    module = new_module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    reinitialize(module, CONFIG, replace(SETTINGS, reinit_layers=2))
    after = module.state_dict()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == (depth_of(name, LAYERS) < 2 or "classifier" in name), name
    for name in ("bert.encoder.layer.2.intermediate.dense.weight", "bert.pooler.dense.weight"):
        assert after[name].std().item() == pytest.approx(0.02, rel=0.2)
    assert torch.equal(after["bert.encoder.layer.1.output.LayerNorm.weight"], torch.ones(16))


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"freeze": "all"}, "'all'"),
        ({"freeze": "4"}, "'4'"),
        ({"reinit_layers": 4}, "3 layers"),
        ({"freeze": "2", "reinit_layers": 2}, "--freeze 2"),
    ],
)
def test_what_is_refused(options: dict, value: str) -> None:
    settings = replace(SETTINGS, **options)
    call = partial(freeze, new_module()) if "freeze" in options else partial(reinitialize, new_module(), CONFIG)
    with pytest.raises(UsageError) as caught:
        call(settings)
    assert value in str(caught.value)


def test_finetune_keeps_frozen_weights_to_the_bit(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """The rows of tokens that the data lacks too, which otherwise decay; and nothing is written where an option is refused."""
    model = make_model_dir("BertForSequenceClassification", seed=5, num_hidden_layers=LAYERS)
    (tmp_path / "rows.csv").write_text("label,text\ngood,the movie was fine\nbad,the movie was not\n", encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--device", "cpu", "--max-steps", 2)
    command = ("finetune", "text-classification", "-m", model, "-o", "run", *data, "--weight-decay", 0.5, "--warmup-ratio", 0)
    assert run_bertkit(*command, "--freeze", 4).code == 2
    assert not (tmp_path / "run").exists()
    ran = run_bertkit(*command, "--freeze", 1, "--learning-rate", 1e-2, "--precision", "bf16")
    assert ran.code == 0, ran.err
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run"))
    assert set(before) == set(after)
    moved = {depth_of(name, LAYERS) for name, tensor in before.items() if not torch.equal(after[name], tensor)}
    assert moved == {2, 3, 4}
