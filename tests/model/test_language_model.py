"""The pre-training heads against transformers and torch: logits, losses, gradients, folders both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from bertkit.corpus.build import CorpusConfig, make_part
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.corpus.sampling import CorpusSampler
from bertkit.features import Features
from bertkit.model import language_model as module
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.directory import load_weights, save_model
from bertkit.model.language_model import BertForPreTraining
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate

WORDS = "the good bad movie city river bank early late printing unable plays one two three".split()


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


def padded(features: Features, objective: Objective) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """input_ids, attention_mask, token_type_ids, and labels with -100 at what is no target.

    A label "lm" stands at the token before, whose next one it is; transformers looks for it at the next one.
    """
    longest = int(features.input_ids.lengths.max())
    ids, mask, segments, labels = (torch.full((len(features), longest), value) for value in (0, 0, 0, -100))
    for at in range(len(features)):
        count = int(features.input_ids.lengths[at])
        ids[at, :count] = torch.from_numpy(features.input_ids[at].astype(np.int64))
        mask[at, :count] = 1
        segments[at, :count] = torch.from_numpy(features.token_type_ids[at].astype(np.int64))
        rows = torch.from_numpy(features.rows[at][1 if objective.pair_term else 0 :]) + objective.causal
        labels[at, rows] = torch.from_numpy(features.labels[objective.token_term][at])
    return ids, mask, segments, labels


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=lambda objective: objective.name)
def test_logits_losses_and_gradients_are_those_of_transformers(
    objective: Objective, make_model_dir, features: Callable[[Objective], Features], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    name = objective.head.__name__
    folder = make_model_dir(name, seed=3, is_decoder=objective.causal, **sizes)
    ours = loaded(objective, folder).double().train()
    theirs = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").double().train()
    drawn = features(objective)
    ids, mask, segments, labels = padded(drawn, objective)
    pair_term = objective.pair_term
    extra = {"next_sentence_label": torch.from_numpy(drawn.labels[pair_term].values)} if pair_term else {}
    expected = theirs(ids, mask, segments, labels=labels, **extra)
    loss_there = expected.loss
    if objective.causal:  # transformers computes this loss in float32
        loss_there = F.cross_entropy(expected.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        assert float(loss_there.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-6)
    loss_there.backward()

    monkeypatch.setattr(module, "CHUNK", 7 * ours.config.vocab_size)  # several chunks
    batch = collate(drawn, np.arange(len(drawn)))
    outputs = ours(batch)
    loss = torch.stack([total / batch.weights[term] for term, total in outputs.loss_sums.items()]).sum()
    assert set(outputs.loss_sums) == set(objective.terms)
    assert float(loss.detach()) == pytest.approx(float(loss_there.detach()), rel=1e-12)
    loss.backward()
    gradients = dict(ours.named_parameters())
    named = dict(theirs.named_parameters())
    assert len(named) == len(gradients)
    total = torch.stack([p.grad.norm() for p in named.values()]).norm()
    for key, parameter in named.items():
        found = gradients[key].grad
        scale = total if key.endswith("key.bias") else parameter.grad.norm()
        assert float((found - parameter.grad).norm() / scale) < 1e-10, key

    ours.eval()
    logits = ours(ids, mask, segments).logits
    attended = mask.bool()
    scores = expected.prediction_logits if extra else expected.logits
    assert torch.allclose(logits[ours.term][attended], scores[attended], atol=1e-9)
    if extra:
        assert torch.allclose(logits["nsp"], expected.seq_relationship_logits, atol=1e-9)
    # Of masked rows in evaluation: how likely the right token was, and whether it was the likeliest.
    scored = ours(batch)
    if ours.term == "lm":
        scores, labels = scores[:, :-1], labels[:, 1:]
    right = F.log_softmax(scores.float(), dim=-1)[labels >= 0].gather(1, labels[labels >= 0][:, None])[:, 0]
    assert torch.allclose(scored.logits[ours.term][:, 0], right, atol=1e-5)
    hits = scores[labels >= 0].argmax(-1) == labels[labels >= 0]
    assert torch.equal(scored.logits[ours.term][:, 1].bool(), hits)
    total = float(outputs.loss_sums[ours.term].detach())
    assert float(scored.loss_sums[ours.term].detach()) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("chunk", "block"), [(1, 1000), (4, 1000), (100, 1000), (3, 4), (2, 1)])
def test_the_cross_entropy_is_torchs(dtype: torch.dtype, chunk: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 17 targets in 20 rows, of which the last are filler; chunk and block in rows."""
    monkeypatch.setattr(module, "CHUNK", 50 * chunk)
    monkeypatch.setattr(module, "BLOCK", 50 * block)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(17, 8), torch.randn(50, 8), torch.randn(50)
    targets = torch.randint(0, 50, (17,))
    inputs = [value.to(dtype).requires_grad_() for value in (hidden, weight, bias)]
    filled = F.pad(inputs[0], (0, 0, 0, 3))
    (module._LinearCrossEntropy.apply(filled, *inputs[1:], targets) * 0.3).backward()
    exact = [value.detach().double().requires_grad_() for value in inputs]
    (F.cross_entropy(F.linear(*exact), targets, reduction="sum") * 0.3).backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for found, wanted in zip(inputs, exact, strict=True):
        assert found.grad.dtype == dtype
        assert float((found.grad.double() - wanted.grad).norm() / wanted.grad.norm()) < tolerance


def test_no_row_is_masked() -> None:
    hidden, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((0, 8), (50, 8), (50,)))
    loss = module._LinearCrossEntropy.apply(hidden, weight, bias, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not weight.grad.any()


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=lambda objective: objective.name)
def test_a_folder_opens_in_transformers_with_equal_logits(objective: Objective, tokenizer: Tokenizer, tmp_path: Path) -> None:
    name = objective.head.__name__
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 32, "intermediate_size": 64}
    config = BertConfig.of_size("tiny", is_decoder=objective.causal, **sizes)
    ours = objective.head(config)
    initialize(ours, config, seed=1)
    save_model(tmp_path, state_dict=ours.state_dict(), config=config, tokenizer=tokenizer, architecture=name)
    theirs, loading = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    ids = torch.randint(5, tokenizer.vocab_size, (3, 20))
    with torch.no_grad():
        expected, found = theirs.eval()(ids), ours.eval()(ids).logits
    scores = expected.prediction_logits if objective.pair_term else expected.logits
    assert torch.allclose(found[ours.term], scores, atol=1e-5)
    assert torch.equal(
        loaded(objective, tmp_path).state_dict()["cls.predictions.bias"], ours.state_dict()["cls.predictions.bias"]
    )
    if objective.causal:
        return
    filled = transformers.pipeline("fill-mask", model=str(tmp_path))("the [MASK] bank")
    assert len(filled) == 5


def test_fresh_weights_are_drawn_once_though_tied() -> None:
    config = BertConfig.of_size("tiny", vocab_size=3000)
    ours = BertForPreTraining(config)
    initialize(ours, config, seed=5)
    weight = ours.bert.embeddings.word_embeddings.weight
    assert ours.cls.predictions.decoder.weight is weight
    assert not weight[0].any(), "the padding row"
    assert float(weight[1:].detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not ours.cls.predictions.bias.any()


def test_sentence_order_is_that_of_alberts_head(features: Callable[[Objective], Features], make_model_dir) -> None:
    """The same weights in transformers' head for sentence order give the same loss of the pairs."""
    from transformers.models.albert.modeling_albert import AlbertConfig, AlbertSOPHead

    objective = OBJECTIVES["mlm+sop"]
    ours = loaded(objective, make_model_dir("BertForPreTraining", seed=3, initializer_range=0.2)).eval()
    theirs = AlbertSOPHead(AlbertConfig(hidden_size=ours.config.hidden_size, num_labels=2)).eval()
    theirs.classifier.load_state_dict(ours.cls.seq_relationship.state_dict())
    drawn = features(objective)
    outputs = ours(collate(drawn, np.arange(len(drawn))))
    ids, mask, segments, _ = padded(drawn, objective)
    bert = transformers.BertModel.from_pretrained(make_model_dir("BertForPreTraining", seed=3, initializer_range=0.2)).eval()
    with torch.no_grad():
        scores = theirs(bert(ids, mask, segments).pooler_output)
    loss = F.cross_entropy(scores, torch.from_numpy(drawn.labels["sop"].values), reduction="sum")
    assert float(outputs.loss_sums["sop"].detach()) == pytest.approx(float(loss), rel=1e-5)
