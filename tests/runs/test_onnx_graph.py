"""Heads as ONNX graphs: the same logits in every shape, in the place of the head, quantized too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx as library
import pytest
import torch
from onnx.numpy_helper import to_array
from test_padded import HEADS, TWO_LAYERS, config, inputs
from traced import write_graph

from bertkit.errors import ModelError
from bertkit.model.batch import pack
from bertkit.model.bert import initialize
from bertkit.model.heads import BertForMultipleChoice, BertForSequenceClassification, BertForTokenClassification, Head
from bertkit.runs.export.graph import SHAPES, TOLERANCE, Graph, largest_difference, quantize
from bertkit.runs.export.padded import INPUTS

INT8, UINT8 = library.TensorProto.INT8, library.TensorProto.UINT8


def graph_of(head: Head, path: Path) -> Graph:
    initialize(head, head.config, seed=1)
    write_graph(head.eval(), path)
    return Graph(path, head)


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("classes-cls-last4", "classes-max")]


@pytest.mark.parametrize("name", ["classes-pooled", "decoder", "masks-pairs", *OTHERS])
def test_the_logits_are_those_of_the_head(name: str, tmp_path: Path) -> None:
    assert largest_difference(graph_of(HEADS[name](), tmp_path / "model.onnx")) <= TOLERANCE


def test_the_shapes_that_are_compared() -> None:
    assert len(set(SHAPES)) >= 20
    assert TOLERANCE == 1e-4
    assert {1} < {count for count, _ in SHAPES}
    assert {length % 2 for count, length in SHAPES if count == 1} == {0, 1}
    assert (1, 0) in SHAPES  # the longest


def test_a_difference_is_found_wherever_it_is(tmp_path: Path) -> None:
    """As if the positions of long texts were lost in tracing."""
    graph = graph_of(BertForSequenceClassification(config(**TWO_LAYERS)), tmp_path / "model.onnx")
    with torch.no_grad():
        graph.head.bert.embeddings.position_embeddings.weight[39, 0] += 5
    with pytest.raises(ModelError, match="for 1 sequences of 40 tokens"):
        largest_difference(graph)


def test_choices_are_an_axis(tmp_path: Path) -> None:
    head = BertForMultipleChoice(config(**TWO_LAYERS))
    graph = graph_of(head, tmp_path / "model.onnx")
    for questions, choices, length in [(1, 4, 9), (3, 2, 40), (2, 1, 5)]:
        given = [each.view(questions, choices, length) for each in inputs(questions * choices, length)]
        (found,) = graph.session.run(None, {name: each.numpy() for name, each in zip(INPUTS, given, strict=True)})
        np.testing.assert_allclose(found, head(*given).logits["logits"].detach(), atol=1e-5)
    assert largest_difference(graph) < 1e-5


def test_a_crf_and_intents_in_the_place_of_the_head(tmp_path: Path) -> None:
    head = BertForTokenClassification(config(**TWO_LAYERS), head="crf", num_intents=4)
    graph = graph_of(head, tmp_path / "model.onnx")
    batch, _ = pack(*inputs(5, 17))
    with torch.inference_mode():
        expected, found = head(batch).logits, graph(batch).logits
    assert found.keys() == expected.keys() == {"logits", "intent", "path"}
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5)


def test_weights_and_embeddings_are_of_8_bits_by_channel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = BertForSequenceClassification(config(**TWO_LAYERS))
    graph = graph_of(head, tmp_path / "model.onnx")
    quantize(tmp_path / "model.onnx", tmp_path / "small.onnx")
    model = library.load(tmp_path / "small.onnx")
    tensors = {each.name: each for each in model.graph.initializer}
    sizes = {kind: {tuple(each.dims) for each in tensors.values() if each.data_type == kind} for kind in (INT8, UINT8)}
    assert sizes[INT8] >= {(16, 16), (16, 32), (32, 16)}
    assert (97, 16) in sizes[UINT8]
    weights = np.concatenate([to_array(each).ravel() for each in tensors.values() if each.data_type == INT8 and each.dims])
    assert (np.abs(weights.astype(np.int64)).max(), len({*weights.tolist()}) > 100) == (64, True), "7 bits, all of them used"
    assert any(tuple(each.dims) == (32,) for name, each in tensors.items() if name.endswith("_scale")), "one scale a channel"
    batch, _ = pack(*inputs(3, 9))
    found, expected = (each.raw(batch)["logits"] for each in (Graph(tmp_path / "small.onnx", head), graph))
    assert 0 < (found - expected).abs().max() < 1.0, "the logits are between -2 and 2, of random weights"
