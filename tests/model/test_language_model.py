"""The pre-training heads against transformers and torch: logits, losses, gradients, folders both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import NO_DROPOUT, assert_packed, copied, gradients, padded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.corpus.build import CorpusConfig, make_part
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.corpus.sampling import CorpusSampler
from bertkit.features import Features
from bertkit.model import language_model as module
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.directory import load_weights, save_model
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate

WORDS = "the good bad movie city river bank early late printing unable plays one two three".split()


each_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def features(tokenizer: Tokenizer) -> Callable[[Objective], Features]:
    rng = np.random.default_rng(0)
    documents = [[" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(6)] for _ in range(40)]
    shard = make_part(documents, tokenizer, CorpusConfig(sentences="lines"))
    return lambda objective: CorpusSampler([shard], tokenizer, 12, 40, 3, objective).features_at(0)


def loaded(objective: Objective, folder: Path) -> torch.nn.Module:
    module = objective.head(BertConfig.read(folder / "config.json"))
    assert load_weights(module, folder) == []
    return module


def targets(features: Features, objective: Objective, shape: torch.Size) -> Tensor:
    """Labels (B, T) of tokens, -100 at what is no target.

    A label "lm" stands at the token before, whose next one it is; transformers looks for it at the next one.
    """
    labels = torch.full(shape, -100)
    for at in range(len(features)):
        rows = torch.from_numpy(features.rows[at][1 if objective.pair_term else 0 :]) + objective.causal
        labels[at, rows] = torch.from_numpy(features.labels[objective.token_term][at])
    return labels


@each_objective
def test_logits_losses_and_gradients_are_those_of_transformers(
    objective: Objective, make_model_dir, features: Callable[[Objective], Features], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, term, pair_term = objective.head.__name__, objective.token_term, objective.pair_term
    folder = make_model_dir(name, seed=3, is_decoder=objective.causal, initializer_range=0.2, **NO_DROPOUT)
    ours = loaded(objective, folder).double().train()
    theirs = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").double().train()
    drawn = features(objective)
    inputs = padded([(drawn.input_ids[at].tolist(), drawn.token_type_ids[at].tolist()) for at in range(len(drawn))])
    attended = inputs["attention_mask"].bool()
    labels = targets(drawn, objective, attended.shape)
    extra = {"next_sentence_label": torch.from_numpy(drawn.labels[pair_term].values)} if pair_term else {}
    expected = theirs(**inputs, labels=labels, **extra)
    scores, loss = expected.prediction_logits if pair_term else expected.logits, expected.loss
    if objective.causal:  # transformers computes this loss in float32
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        assert float(loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-6)
    monkeypatch.setattr(module, "CHUNK", 7 * ours.config.vocab_size)  # several chunks
    batch = collate(drawn, np.arange(len(drawn)))
    assert_packed(ours, batch, {}, loss, copied(gradients(theirs, loss)), 1e-10)

    trained = ours(batch).loss_sums[term].item()
    logits = ours.eval()(**inputs).logits
    assert torch.allclose(logits[term][attended], scores[attended], atol=1e-9)
    assert not logits[term][~attended].any()
    if pair_term:
        assert torch.allclose(logits["nsp"], expected.seq_relationship_logits, atol=1e-9)
    # Of masked rows in evaluation: how likely the right token was, and whether it was the likeliest.
    scored = ours(batch)
    if objective.causal:
        scores, labels = scores[:, :-1], labels[:, 1:]
    right = F.log_softmax(scores.float(), dim=-1)[labels >= 0].gather(1, labels[labels >= 0][:, None])[:, 0]
    assert torch.allclose(scored.logits[term][:, 0], right, atol=1e-5)
    hits = scores[labels >= 0].argmax(-1) == labels[labels >= 0]
    assert torch.equal(scored.logits[term][:, 1].bool(), hits)
    assert scored.loss_sums.keys() == set(objective.terms)
    assert scored.loss_sums[term].item() == pytest.approx(trained, rel=1e-5)


@pytest.mark.parametrize(("chunk", "block"), [(1, 1000), (4, 1000), (100, 1000), (3, 4), (2, 1)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_the_cross_entropy_is_torchs(
    dtype: torch.dtype, tolerance: float, chunk: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 17 targets in 20 rows, of which the last are padding; chunk and block in rows."""
    monkeypatch.setattr(module, "CHUNK", 50 * chunk)
    monkeypatch.setattr(module, "BLOCK", 50 * block)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(17, 8), torch.randn(50, 8), torch.randn(50)
    targets = torch.randint(0, 50, (17,))
    inputs = [value.to(dtype).requires_grad_() for value in (hidden, weight, bias)]
    padded = F.pad(inputs[0], (0, 0, 0, 3))
    (module._LinearCrossEntropy.apply(padded, *inputs[1:], targets) * 0.3).backward()
    exact = [value.detach().double().requires_grad_() for value in inputs]
    (F.cross_entropy(F.linear(*exact), targets, reduction="sum") * 0.3).backward()
    for found, wanted in zip(inputs, exact, strict=True):
        assert found.grad.dtype == dtype
        assert float((found.grad.double() - wanted.grad).norm() / wanted.grad.norm()) < tolerance


@pytest.mark.parametrize(("device", "products"), [("cpu", 90), ("meta", 1)])
def test_other_devices_than_a_cpu_score_thousands_of_rows_at_once(device: str, products: int) -> None:
    counted: list[str] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted.extend(["addmm"] * (operator.overloadpacket.__name__ == "addmm"))
            return operator(*args, **(kwargs or {}))

    shapes = ((3000, 2), (30522, 2), (30522,))
    hidden, weight, bias = (torch.zeros(*shape, device=device, requires_grad=True) for shape in shapes)
    with Products():
        module._LinearCrossEntropy.apply(hidden, weight, bias, torch.zeros(3000, dtype=torch.long, device=device))
    assert len(counted) == products


def test_in_fp16_few_gradients_of_scores_are_rounded_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is sure of its tokens, so that most probabilities are small."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 32), torch.randn(4000, 32)
    targets = torch.randint(0, 4000, (4,))

    def zeros(enlarged: float) -> float:
        monkeypatch.setattr(module, "ENLARGED", enlarged)
        inputs = [value.half().requires_grad_() for value in (hidden, weight, torch.zeros(4000))]
        (module._LinearCrossEntropy.apply(*inputs, targets) * 100.0).backward()
        assert inputs[1].grad.isfinite().all()
        return (inputs[1].grad == 0).double().mean().item()

    before = zeros(1.0)
    monkeypatch.undo()
    assert before > 0.1
    assert zeros(module.ENLARGED) < 0.7 * before


def test_no_row_is_masked() -> None:
    hidden, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((0, 8), (50, 8), (50,)))
    loss = module._LinearCrossEntropy.apply(hidden, weight, bias, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not weight.grad.any()


def test_of_equally_likely_tokens_only_the_first_is_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = module.BertForMaskedLM(BertConfig.of_size("tiny", vocab_size=20)).eval()
    with torch.no_grad():
        model.cls.predictions.decoder.weight.zero_()
        model.cls.predictions.decoder.bias.zero_()[[5, 9]] = 1
        for chunk in (1, 100):
            monkeypatch.setattr(module, "CHUNK", 20 * chunk)
            scored = model._scored(torch.randn(4, 128), torch.tensor([9, 5, 0, 5]))
            assert scored[:, 1].tolist() == [0, 1, 0, 1]
            assert scored[0, 0] == scored[1, 0] > scored[2, 0]


@each_objective
def test_a_fresh_model_saved_opens_in_transformers(objective: Objective, tokenizer: Tokenizer, tmp_path: Path) -> None:
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 32, "intermediate_size": 64}
    config = BertConfig.of_size("tiny", is_decoder=objective.causal, **sizes)
    ours, name = objective.head(config), objective.head.__name__
    initialize(ours, config, seed=1)
    weight = ours.bert.embeddings.word_embeddings.weight
    assert ours.cls.predictions.decoder.weight is weight  # and drawn once
    assert not weight[0].any(), "the padding row"
    assert float(weight[1:].detach().std()) == pytest.approx(0.02, rel=0.05)
    save_model(tmp_path, state_dict=ours.state_dict(), config=config, tokenizer=tokenizer, architecture=name)
    theirs, loading = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"] | loading["unexpected_keys"]
    state = theirs.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in ours.state_dict().items())
    if not objective.causal:
        assert len(transformers.pipeline("fill-mask", model=str(tmp_path))("the [MASK] bank")) == 5
