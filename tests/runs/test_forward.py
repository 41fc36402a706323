"""outputs_of: each feature once, in order, with the logits that the feature alone would have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from shapes import SHAPES, Classifier, prediction_run, sentences

from bertkit.model.devices import OneProcess
from bertkit.model.dropout import set_dropout
from bertkit.runs import forward
from bertkit.training.batching import collate


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("micro_batch_tokens", [1, 50])
def test_outputs_are_in_order_and_those_of_the_feature_alone(name: str, micro_batch_tokens: int) -> None:
    shape = SHAPES[name]
    module = shape.build()
    found, seen = prediction_run(shape, module, micro_batch_tokens)
    features = shape.features
    assert sorted(seen) == list(range(len(features))), "each feature once"
    losses: dict[str, list[float]] = {}
    with torch.no_grad():
        for index in range(len(features)):
            batch = collate(features, np.array([index]))
            alone = module(batch)
            assert found.outputs.keys() == alone.logits.keys()
            for key, rows in alone.logits.items():
                np.testing.assert_allclose(found.outputs[key][index], rows.numpy(), rtol=1e-4, atol=1e-5)
            for term, loss in alone.loss_sums.items():
                sums = losses.setdefault(term, [0.0, 0.0])
                sums[0] += float(loss)
                sums[1] += batch.weights[term]
    assert all(len(rows) == len(features) for rows in found.outputs.values())
    assert found.losses == pytest.approx({term: total / count for term, (total, count) in losses.items()}, rel=1e-5)


def test_choices_come_back_ragged() -> None:
    shape = SHAPES["choices"]
    found, _ = prediction_run(shape, shape.build(), 100)
    assert [len(rows) for rows in found.outputs["logits"]] == np.diff(shape.features.sequences).tolist()
    assert len({len(rows) for rows in found.outputs["logits"]}) > 1


def test_processes_with_other_numbers_of_threads_split_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_gathered", lambda outputs, *_: outputs.get("logits", {}))
    shape, threads = SHAPES["sentence"], torch.get_num_threads()
    seen: list[int] = []
    try:
        for rank, own in enumerate((4, 1)):
            torch.set_num_threads(own)
            processes = OneProcess(torch.device("cpu"), rank, num_processes=2)
            seen += forward.outputs_of(shape.build(), shape.features, 1000, processes)
    finally:
        torch.set_num_threads(threads)
    assert sorted(seen) == list(range(len(shape.features))), "each feature once"


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_is_put_back(training: bool) -> None:
    shape = SHAPES["sentence"]
    module = shape.build()
    expected, _ = prediction_run(shape, module, 100)
    set_dropout(module, 0.5)
    module.train(training)
    found, _ = prediction_run(shape, module, 100)
    assert module.training == training
    np.testing.assert_array_equal(np.stack(found.outputs["logits"]), np.stack(expected.outputs["logits"]))


def test_without_labels_there_are_logits_and_no_loss() -> None:
    class Unlabelled(Classifier):
        def forward(self, batch):
            assert batch.labels == {}
            return (
                super()
                .forward(dataclasses.replace(batch, labels={"labels": torch.zeros(len(batch.features), dtype=torch.long)}))
                ._replace(loss_sums={})
            )

    features = dataclasses.replace(sentences(), labels={})
    found, _ = prediction_run(dataclasses.replace(SHAPES["sentence"], features=features), Unlabelled(), 60)
    assert found.losses == {}
    assert len(found.outputs["logits"]) == 25
