"""Writes a tiny checkpoint like Google's for BERT, with Adam's moments, using TensorFlow: google_checkpoint.py FOLDER

tests/data/google-bert was made this way; `make test-tensorflow` makes another one, and runs the same tests on it.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CONFIG = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_act": "gelu",
    "vocab_size": 60,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "##ing", "\u94f6"]
HIDDEN, INNER = CONFIG["hidden_size"], CONFIG["intermediate_size"]


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each weight by its name in google-research/bert."""

    def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}/LayerNorm/gamma": (HIDDEN,), f"{name}/LayerNorm/beta": (HIDDEN,)}

    found: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], HIDDEN),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], HIDDEN),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], HIDDEN),
        **norm("bert/embeddings"),
        **dense("bert/pooler/dense", HIDDEN, HIDDEN),
        **dense("cls/predictions/transform/dense", HIDDEN, HIDDEN),
        **norm("cls/predictions/transform"),
        "cls/predictions/output_bias": (CONFIG["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    for number in range(CONFIG["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            found |= dense(f"{layer}/attention/{part}", HIDDEN, HIDDEN)
        found |= dense(f"{layer}/intermediate/dense", HIDDEN, INNER) | dense(f"{layer}/output/dense", INNER, HIDDEN)
        found |= norm(f"{layer}/attention/output") | norm(f"{layer}/output")
    return found


def value(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers from -1 to 1 that depend on the name, alike on each machine; of a LayerNorm's gamma from 0 to 2."""
    numbers = (np.arange(np.prod(shape)) * 7919 + zlib.crc32(name.encode())) % 2003
    return ((numbers / 1001).astype(np.float32) - (0 if name.endswith("gamma") else 1)).reshape(shape)


def write(folder: Path) -> None:
    import tensorflow.compat.v1 as tf

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY), encoding="utf-8")
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape in shapes().items():
            for slot in ("", "/adam_m", "/adam_v"):
                tf.get_variable(name + slot, initializer=value(name + slot, shape), use_resource=False)
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False, write_state=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
