"""What stays, begins anew or learns slowly, layer by layer: what a run makes of the weights that it started from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bertkit.model.layerwise import depth_of, num_layers

LAYERS = 3


@pytest.fixture
def model(make_model_dir) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=5, num_hidden_layers=LAYERS)


@pytest.fixture
def finetuned(run_bertkit, model: Path, tmp_path: Path):
    """A function from options to the weights before and after, by name, and by depth how far they moved at most."""
    lines = "".join(f"{'good bad'.split()[at % 2]},the movie {'was fine' if at % 2 else 'was not'} {at}\n" for at in range(24))
    (tmp_path / "rows.csv").write_text("label,text\n" + lines, encoding="utf-8")

    def finetuned(*options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
        data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--device", "cpu", "--weight-decay", 0.5)
        data += ("--eval-steps", 9, "--warmup-ratio", 0)
        ran = run_bertkit("finetune", "text-classification", "-m", model, "-o", "run", *data, "--overwrite", *options)
        assert ran.code == 0, ran.err
        before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run"))
        assert set(before) == set(after)
        moved = [0.0] * (LAYERS + 2)
        for name, tensor in before.items():
            depth = depth_of(name, LAYERS)
            moved[depth] = max(moved[depth], (after[name] - tensor).abs().max().item())
        return before, after, moved

    return finetuned


def test_depths(model: Path) -> None:
    names = list(load_file(model / "model.safetensors"))
    assert num_layers(names) == LAYERS
    depths = {name: depth_of(name, LAYERS) for name in names}
    assert depths["bert.embeddings.word_embeddings.weight"] == depths["bert.embeddings.LayerNorm.bias"] == 0
    assert [depths[f"bert.encoder.layer.{at}.output.dense.weight"] for at in range(LAYERS)] == [1, 2, 3]
    assert depths["bert.pooler.dense.weight"] == depths["classifier.bias"] == LAYERS + 1
    assert num_layers(["classifier.weight"]) == 0


@pytest.mark.parametrize(("freeze", "deepest"), [("embeddings", 0), ("1", 1), ("2", 2), ("encoder", LAYERS)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_frozen_keeps_its_weights_to_the_bit(finetuned, freeze: str, deepest: int, precision: str) -> None:
    """The rows of tokens that the data lacks too, which otherwise decay."""
    _, _, moved = finetuned("--freeze", freeze, "--max-steps", 3, "--precision", precision, "--learning-rate", 1e-2)
    assert [movement > 0 for movement in moved] == [depth > deepest for depth in range(LAYERS + 2)]


def test_nothing_is_frozen_unless_asked(finetuned) -> None:
    before, after, moved = finetuned("--max-steps", 3, "--precision", "fp32", "--learning-rate", 1e-2)
    assert min(moved) > 0
    words = "bert.embeddings.word_embeddings.weight"
    assert ((after[words] - before[words]).abs().amax(dim=1) > 0).float().mean() > 0.9


def test_lower_layers_learn_more_slowly(finetuned) -> None:
    options = ("--max-steps", 1, "--weight-decay", 0, "--precision", "fp32", "--learning-rate", 1e-2)
    _, _, moved = finetuned(*options, "--layerwise-lr-decay", 0.1)
    # AdamW's first step is the learning rate, whatever the gradient
    assert moved == pytest.approx([1e-2 * 0.1 ** (LAYERS + 1 - depth) for depth in range(LAYERS + 2)], rel=0.02)


def test_unused_rows_decay_at_the_rate_of_the_embeddings(finetuned) -> None:
    options = ("--max-steps", 2, "--schedule", "constant", "--precision", "fp32", "--learning-rate", 1e-2)
    before, after, _ = finetuned(*options, "--layerwise-lr-decay", 0.5)
    words = "bert.embeddings.word_embeddings.weight"
    row = 110  # of a token that the data lacks
    left = (1 - 0.5 * 1e-2 * 0.5 ** (LAYERS + 1)) ** 2
    torch.testing.assert_close(after[words][row], before[words][row] * left, rtol=1e-6, atol=0)
    assert not torch.equal(after[words][row], before[words][row])


def test_top_layers_begin_anew(finetuned) -> None:
    before, after, moved = finetuned("--reinit-layers", 2, "--max-steps", 1, "--learning-rate", 0, "--precision", "fp32")
    assert [movement > 0 for movement in moved] == [False, False, True, True, True]
    assert torch.equal(before["classifier.weight"], after["classifier.weight"])
    for name in ("bert.encoder.layer.2.intermediate.dense.weight", "bert.pooler.dense.weight"):
        assert after[name].std().item() == pytest.approx(0.02, rel=0.1)
        assert not torch.allclose(after[name], before[name], atol=0.01)
    assert torch.equal(after["bert.encoder.layer.1.output.LayerNorm.weight"], torch.ones(len(after["bert.pooler.dense.bias"])))


def test_what_is_refused(run_bertkit, finetuned, model: Path, tmp_path: Path) -> None:
    for options, what in (
        (("--freeze", "all"), "--freeze is 'all'; expected embeddings, encoder, or a number of layers from 1 to 3"),
        (("--freeze", "4"), "--freeze is '4'; expected embeddings, encoder, or a number of layers from 1 to 3"),
        (("--reinit-layers", 4), "--reinit-layers is 4; the model has 3 layers"),
        (("--reinit-layers", 2, "--freeze", 2), "--freeze 2 and --reinit-layers 2 have layers in common"),
        (("--schedule", "cosin"), "--schedule is 'cosin'; expected linear or cosine or constant"),
    ):
        data = ("--train", "rows.csv", "--validation", "rows.csv", "-m", model, "-o", "run", "--max-length", 16)
        ran = run_bertkit("finetune", "text-classification", *data, *options)
        assert (ran.code, f"error: {what}" in ran.err) == (2, True), ran.err
        assert not (tmp_path / "run").exists()
