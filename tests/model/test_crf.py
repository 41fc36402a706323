"""The linear-chain CRF against all paths, one by one; and the heads that transformers lacks, packed against row by row."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertkit.features import Features, Ragged
from bertkit.model.batch import Batch
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.crf import Chain, LinearChain
from bertkit.model.heads import BertForTokenClassification
from bertkit.model.layout import Layout
from bertkit.tasks.token_classification.tags import count_illegal, transitions
from bertkit.training.batching import collate

CLASSES = 3
LENGTHS = [[4, 1, 3], [0, 3, 0, 2], [2], [1, 1], [5, 0]]
LABELS = ("O", "B-A", "I-A")


def field(seed: int, *, legal: bool = False) -> LinearChain:
    masks = tuple(map(torch.from_numpy, transitions(LABELS, "iob2"))) if legal else None
    chain = LinearChain(CLASSES, masks).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 2)
    return chain


def rows_of(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 100)
    logits = torch.randn(sum(lengths), CLASSES, generator=generator, dtype=torch.float64) * 2
    return logits, torch.tensor([0, *np.cumsum(lengths)])


def paths_of(chain: LinearChain, logits: Tensor, *, legal: bool) -> dict[tuple[int, ...], float]:
    """The score of every path over one sequence's rows; with `legal`, of those that the scheme allows."""
    start, follow, end = (parameter.tolist() for parameter in (chain.start, chain.follow, chain.end))
    scores = {}
    for path in product(range(CLASSES), repeat=len(logits)):
        if legal and count_illegal([[LABELS[at] for at in path]], "iob2"):
            continue
        score = start[path[0]] + end[path[-1]] + sum(follow[a][b] for a, b in pairwise(path))
        scores[path] = score + sum(row[at] for row, at in zip(logits.tolist(), path, strict=True))
    return scores


def log_sum(scores: list[float]) -> float:
    top = max(scores)
    return top + math.log(sum(math.exp(score - top) for score in scores))


@torch.no_grad()
@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_loss_marginals_and_best_path_over_all_paths(lengths: list[int], legal: bool) -> None:
    for seed in range(4):
        chain = field(seed, legal=legal)
        logits, cu_rows = rows_of(lengths, seed)
        rng = np.random.default_rng(seed)
        found = chain.over(logits, cu_rows, max(lengths))
        log_marginals, path = found.log_marginals(), found.best_path()
        assert (log_marginals.shape, path.shape) == (logits.shape, logits.shape[:1])
        labels, loss = [], 0.0
        for start, end in pairwise(cu_rows.tolist()):
            if start == end:
                continue
            scores = paths_of(chain, logits[start:end], legal=legal)
            total = log_sum(list(scores.values()))
            assert tuple(path[start:end].tolist()) == max(scores, key=scores.__getitem__)
            for row, at in product(range(end - start), range(CLASSES)):
                through = [score for one, score in scores.items() if one[row] == at]
                if through:
                    assert log_marginals[start + row, at] == pytest.approx(log_sum(through) - total, abs=1e-9)
                else:
                    assert log_marginals[start + row, at] < -1000
            right = list(scores)[rng.integers(len(scores))]
            known = [at if rng.random() < 0.6 else -100 for at in right]  # what is not known is summed over
            fitting = [score for one, score in scores.items() if all(k in (-100, at) for k, at in zip(known, one, strict=True))]
            loss += total - log_sum(fitting)
            labels += known
        assert found.loss(torch.tensor(labels)).item() == pytest.approx(loss, abs=1e-8)
        assert found.loss(torch.full((len(logits),), -100)).item() == pytest.approx(0, abs=1e-9)


def test_gradients() -> None:
    chain = field(1)
    logits, cu_rows = rows_of([3, 0, 4, 1], 1)
    labels = torch.tensor([0, 1, 2, -100, 0, -100, 0, 1])
    layout = Layout.of(cu_rows, 4, len(logits), logits.dtype)
    inputs = [value.detach().clone().requires_grad_() for value in (logits, chain.start, chain.follow, chain.end)]
    assert torch.autograd.gradcheck(lambda *values: Chain(*values, layout, cu_rows.diff()).loss(labels), inputs)


@torch.no_grad()
def test_float32_is_near_float64_where_much_is_forbidden() -> None:
    """400 rows: the scores of what may not be neither overflow nor drown what may."""
    chain = field(2, legal=True)
    logits = torch.randn(400, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    labels = torch.tensor([0, 1, 2, 2] * 100)
    cu_rows = torch.tensor([0, 400])
    exact = chain.over(logits, cu_rows, 400)
    near = chain.over(logits.float(), cu_rows, 400)
    assert near.loss(labels).item() == pytest.approx(exact.loss(labels).item(), rel=1e-4)
    assert near.best_path().tolist() == exact.best_path().tolist()
    possible = exact.log_marginals() > -50
    assert torch.allclose(near.log_marginals().double()[possible], exact.log_marginals()[possible], atol=1e-2)
    assert count_illegal([[LABELS[at] for at in near.best_path().tolist()]], "iob2") == 0


# --- heads -----------------------------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIG = BertConfig(**SIZES, id2label=dict(enumerate(LABELS)), initializer_range=0.3)


def batch_of(*chosen: int, intent: bool) -> Batch:
    """These of seven sequences, or all of them, with some rows read, of which some have no label."""
    rng, count = np.random.default_rng(0), 7
    lengths = rng.integers(4, 20, count)
    rows = [[0] * intent + sorted(rng.choice(np.arange(1, n), rng.integers(1, n), replace=False).tolist()) for n in lengths]
    labels = [[-100] * intent + [int(rng.choice([-100, 0, 1, 2])) for _ in row[intent:]] for row in rows]
    targets = {"labels": Ragged.of(labels, dtype=np.int64)}
    if intent:
        targets["intent"] = Ragged.column(rng.integers(0, 2, count))
    ids = Ragged.of([[2, *rng.integers(5, 40, n - 1)] for n in lengths])
    types = Ragged(np.zeros_like(ids.values), ids.offsets)
    features = Features(ids, types, np.arange(count), rows=Ragged.of(rows, np.int64), labels=targets)
    return collate(features, np.array(chosen or range(count)))


def head(name: str, *, intent: bool = False, seed: int = 0) -> BertForTokenClassification:
    module = BertForTokenClassification(CONFIG, head=name, num_intents=2 * intent)
    initialize(module, CONFIG, seed=seed)
    if name == "crf":
        with torch.no_grad():
            for parameter in module.head["crf"].parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return module


@pytest.mark.parametrize("intent", [False, True])
@pytest.mark.parametrize("name", ["linear", "bilstm", "crf"])
@torch.no_grad()
def test_packed_equals_row_by_row(name: str, intent: bool) -> None:
    module = head(name, intent=intent).double().eval()
    together = module(batch_of(intent=intent))
    alone = [module(batch_of(at, intent=intent)) for at in range(7)]
    for key, rows in together.logits.items():
        assert torch.allclose(rows.double(), torch.cat([one.logits[key] for one in alone]).double(), atol=1e-10), key
    for term, loss in together.loss_sums.items():
        assert loss.item() == pytest.approx(sum(one.loss_sums[term].item() for one in alone), abs=1e-9), term
    assert together.loss_sums.keys() == ({"labels", "intent"} if intent else {"labels"})
    assert len({round(value, 6) for value in together.logits["logits"].flatten().tolist()}) > 20


def test_a_bilstm_reads_its_own_sequence_both_ways() -> None:
    module, batch = head("bilstm").double().eval(), batch_of(intent=False)
    hidden = torch.randn(len(batch.rows), 16, dtype=torch.float64, requires_grad=True)
    longest = int(batch.cu_rows.diff().argmax())
    start, end = batch.cu_rows[longest : longest + 2].tolist()
    module._recur(hidden, batch)[(start + end) // 2].sum().backward()
    assert hidden.grad.abs().sum(1).nonzero().flatten().tolist() == list(range(start, end))


def test_a_crf_beside_an_intent_is_over_the_words_alone() -> None:
    """[CLS], which the intent reads, is no step of the chain: loss, marginals and path are those without it."""
    module, batch = head("crf", intent=True).double().eval(), batch_of(intent=True)
    outputs = module(batch)
    logits = module.head["classifier"](module.bert.encode(batch))
    words = torch.ones(len(logits), dtype=torch.bool)
    words[batch.cu_rows[:-1]] = False
    counts = batch.cu_rows.diff() - 1
    chain = module.head["crf"].over(logits[words], nn.functional.pad(counts.cumsum(0), (1, 0)), int(counts.max()))
    assert outputs.loss_sums["labels"].item() == pytest.approx(chain.loss(batch.labels["labels"][words]).item(), abs=1e-9)
    assert torch.allclose(outputs.logits["logits"][words], chain.log_marginals(), atol=1e-9)
    assert torch.equal(outputs.logits["path"][words], chain.best_path())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bilstm", "crf"])
def test_every_parameter_has_a_finite_gradient(name: str, dtype: torch.dtype) -> None:
    module = BertForTokenClassification(CONFIG, head=name, num_intents=2)
    initialize(module, CONFIG, seed=1)
    losses = module.to(dtype).train()(batch_of(intent=True)).loss_sums
    assert all(loss.dtype == torch.float32 for loss in losses.values())
    sum(losses.values()).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any() or not key.startswith("head."), key


def test_a_fresh_lstm_depends_on_the_seed_alone() -> None:
    one, same, other = (head("bilstm", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.lstm.weight_hh_l0"], other["head.lstm.weight_hh_l0"])
