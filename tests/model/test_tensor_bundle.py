"""Google's checkpoints: weights and logits against transformers, which is given the numbers that TensorFlow was given.

BERTKIT_TENSORFLOW_CHECKPOINT: the folder of one that was written just now, in the place of the one beside the tests.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import google_checkpoint as google
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertkit.errors import ModelError
from bertkit.model import tensor_bundle
from bertkit.model.config import BertConfig
from bertkit.model.directory import load_weights, read_state_dict, weights_hash
from bertkit.model.language_model import BertForPreTraining
from bertkit.model.tensor_bundle import _masked_crc32c, crc32c

KEPT = Path(__file__).parent.parent / "data" / "google-bert"
FOLDER = Path(os.environ.get("BERTKIT_TENSORFLOW_CHECKPOINT", KEPT))
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"
LINEAR = {"weight": "kernel", "bias": "bias"}
NORM = {"weight": "gamma", "bias": "beta"}


def theirs() -> transformers.BertForPreTraining:
    """Each parameter by hand; a Linear of torch has its outputs first."""
    module = transformers.BertForPreTraining(transformers.BertConfig(**google.CONFIG, attn_implementation="eager")).eval()
    bert, cls = module.bert, module.cls
    embeddings = bert.embeddings
    given = {
        "bert/embeddings/word_embeddings": embeddings.word_embeddings.weight,
        "bert/embeddings/position_embeddings": embeddings.position_embeddings.weight,
        "bert/embeddings/token_type_embeddings": embeddings.token_type_embeddings.weight,
        "cls/predictions/output_bias": cls.predictions.bias,
        "cls/seq_relationship/output_weights": cls.seq_relationship.weight,
        "cls/seq_relationship/output_bias": cls.seq_relationship.bias,
    }
    parts = {
        "bert/embeddings/LayerNorm": embeddings.LayerNorm,
        "bert/pooler/dense": bert.pooler.dense,
        "cls/predictions/transform/dense": cls.predictions.transform.dense,
        "cls/predictions/transform/LayerNorm": cls.predictions.transform.LayerNorm,
    }
    for number, layer in enumerate(bert.encoder.layer):
        own = {
            "attention/self/query": layer.attention.self.query,
            "attention/self/key": layer.attention.self.key,
            "attention/self/value": layer.attention.self.value,
            "attention/output/dense": layer.attention.output.dense,
            "attention/output/LayerNorm": layer.attention.output.LayerNorm,
            "intermediate/dense": layer.intermediate.dense,
            "output/dense": layer.output.dense,
            "output/LayerNorm": layer.output.LayerNorm,
        }
        parts |= {f"bert/encoder/layer_{number}/{name}": part for name, part in own.items()}
    for name, part in parts.items():
        names = NORM if name.endswith("LayerNorm") else LINEAR
        given |= {f"{name}/{names[end]}": parameter for end, parameter in part.named_parameters()}
    shapes = google.shapes()
    assert set(given) == set(shapes)
    with torch.no_grad():
        for name, parameter in given.items():
            value = torch.from_numpy(google.value(name, shapes[name]))
            parameter.copy_(value.T if name.endswith("kernel") else value)
    return module


def test_weights_and_logits_are_those_that_tensorflow_was_given() -> None:
    wanted = theirs()
    ours = BertForPreTraining(BertConfig.from_dict(google.CONFIG)).eval()
    assert load_weights(ours, FOLDER) == []
    for name, parameter in wanted.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter), name
    ids = torch.tensor([[2, 10, 11, 4, 3, 30, 31, 3], [2, 20, 3, 4, 41, 3, 0, 0]])
    types, mask = torch.tensor([[0] * 5 + [1] * 3, [0, 0, 0, 1, 1, 1, 0, 0]]), (ids > 0).long()
    with torch.no_grad():
        found = ours(ids, mask, types).logits
        expected = wanted(ids, mask, types)
    attended = mask.bool()
    torch.testing.assert_close(found["mlm"][attended], expected.prediction_logits[attended], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["nsp"], expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_the_optimizers_slots_are_left_out() -> None:
    index = (FOLDER / INDEX).read_bytes()
    assert b"adam_v" in index
    assert b"global_step" in index
    assert len(read_state_dict(FOLDER)) == len(google.shapes())


def test_it_is_fine_tuned_as_any_model(run_bertkit, tmp_path: Path) -> None:
    lines = "".join(f"{text},{label}\n" for text, label in (("the abc", "x"), ("def", "y")) * 8)
    (tmp_path / "rows.csv").write_text(f"text,label\n{lines}", encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--freeze", "encoder", "--max-steps", 1, "--max-length", 8)
    how = ("--model", FOLDER, "-o", "run", "--precision", "fp32", "--no-baselines")
    ran = run_bertkit("finetune", "text-classification", *data, *how)
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["model"]["sha256"] == weights_hash(FOLDER)
    state = load_file(tmp_path / "run" / "model.safetensors")
    kernel = google.value("bert/encoder/layer_1/output/dense/kernel", (google.INNER, google.HIDDEN))
    assert np.array_equal(state["bert.encoder.layer.1.output.dense.weight"].numpy().T, kernel)


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def first_block(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A change of an index's first block and of the byte behind it, which says if the block is packed; the checksum fits."""

    def checksum(block: bytes) -> bytes:
        return _masked_crc32c(np.frombuffer(block, np.uint8)).to_bytes(4, "little")

    def changed(content: bytes) -> bytes:
        for end in range(1, len(content) - 48):
            block = content[:end]
            if checksum(block) == content[end : end + 4]:
                return change(block) + checksum(change(block)) + content[end + 4 :]
        raise AssertionError("no block")

    return changed


SHAPED, SLICED = b"\x08\x01\x12", b"\x08\x01\x3a"  # of an entry: float32, then its shape or its slices


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        (DATA, flipped(1000), r"the weight file is damaged: bert/\S+ does not match its checksum"),
        (DATA, lambda content: content[:5000], "does not match its checksum"),
        (DATA, lambda content: content[:4], "does not match its checksum"),
        (DATA, lambda content: b"", "empty"),
        (DATA, None, "the weights lack bert_model.ckpt.data-00000-of-00001"),
        (INDEX, flipped(700), "damaged: the index does not match its checksum"),
        (INDEX, lambda content: content[:-1], "truncated or not a TensorFlow checkpoint"),
        (INDEX, lambda content: content[-48:], "truncated or not"),
        (INDEX, lambda content: b"", "empty"),
        (INDEX, lambda content: b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (INDEX, first_block(lambda block: block[:-1] + b"\x01"), "compressed"),
        (
            INDEX,
            first_block(lambda block: block.replace(SHAPED, SLICED, 1)),
            "has partitioned variables, such as bert/embeddings/",
        ),
        (INDEX, None, "no weights: expected model.safetensors or pytorch_model.bin or bert_model.ckpt.index"),
    ],
)
def test_damage(tmp_path: Path, name: str, change: Callable[[bytes], bytes] | None, what: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(FOLDER, folder)
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ModelError, match=what):
        read_state_dict(folder)


def test_the_slices_of_partitioned_variables_have_keys_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """\\0, the name, and ordered numbers, which are not UTF-8."""
    table = tensor_bundle._table
    monkeypatch.setattr(tensor_bundle, "_table", lambda file: [(b"\0bert/pooler/dense/kernel\0\1\x80", b""), *table(file)])
    assert read_state_dict(FOLDER)


def test_checksums() -> None:
    """Those of RFC 3720, appendix B.4, and of a loop over bits."""
    for data, expected in (
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ):
        assert crc32c(np.frombuffer(data, np.uint8)) == expected
    for length in (4, 255, 256, 257, 511, 513, 3000):
        data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
        crc = 0xFFFFFFFF
        for byte in data.tolist():
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        assert crc32c(data) == crc ^ 0xFFFFFFFF
