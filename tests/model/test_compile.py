"""--compile changes how layers are computed, but not the results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from bertkit.errors import MachineError
from bertkit.model.batch import Batch, pack
from bertkit.model.bert import BertModel, compile_layers, initialize, refuse_without_compiler
from bertkit.model.config import BertConfig
from bertkit.model.dropout import seed_dropout, set_dropout

# of torch's own code, which is turned into an error within its compiler
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
CONFIG = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, initializer_range=0.2
)


def batch_of(lengths: list[int]) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return pack(torch.full(mask.shape, 7), mask.long(), None)[0]


def run(model: BertModel, batch: Batch) -> list[Tensor]:
    seed_dropout(model, 1)
    states = model.encode(batch)
    return [states, *torch.autograd.grad(states.square().sum(), [*model.encoder.parameters()])]


def make_model() -> BertModel:
    model = BertModel(CONFIG, add_pooling_layer=False).train()
    initialize(model, CONFIG, seed=0)
    return model


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_states_and_gradients_are_those_of_before(backend: str) -> None:
    exact, compiled = make_model(), make_model()
    names = [*compiled.state_dict()]
    compile_layers(compiled, backend)
    assert [*compiled.state_dict()] == names
    for p in (0.0, 0.3):
        for model in (exact, compiled):
            set_dropout(model, p)
        for one, other in zip(run(compiled, batch_of([9, 4])), run(exact, batch_of([9, 4])), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_any_number_of_rows_is_compiled_once() -> None:
    """Of three layers and twelve shapes: an activation, and a LayerNorm behind each of two products; to evaluate once more."""
    model, counter = make_model(), CompileCounterWithBackend("eager")
    set_dropout(model, 0.1)
    compile_layers(model, counter)
    counts = []
    for evaluates in (False, True):
        for count in range(2, 14):
            run(model.train(), batch_of([count] * 3))
            if evaluates:
                with torch.inference_mode():
                    model.eval().encode(batch_of([count] * 3))
        counts.append(counter.frame_count)
    assert 1 <= counts[0] <= 4
    assert counts[0] < counts[1] <= 2 * counts[0] + 1


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no g++ was found\nsecond line")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(MachineError, match=r"torch cannot compile here \(no g\+\+ was found\)") as raised:
        refuse_without_compiler(torch.device("cpu"))
    assert "g++" in str(raised.value.hint)
