"""scripts/bench/levers.py and scripts/bench/lever_gains.py: what is switched off, that it computes the same, and the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained import train

from bertkit.model import bert, dropout, grouping, layout, precision
from bertkit.training import adamw, loop, optimizer
from scripts.bench import lever_gains, training
from scripts.bench.levers import LEVERS

pytestmark = pytest.mark.e2e

# lever -> what it replaces
PLACES: dict[str, list[tuple[Any, str]]] = {
    "no-padding": [(bert, "Packing")],
    "groups": [(layout, "share_lines")],
    "shared-lines": [(grouping, "fill_lines")],
    "bf16": [(precision, "FASTER")],
    "rounded-shapes": [(layout, "roundings")],
    "dropout": [(dropout.DropoutStream, "keep_mask")],
    "last-layer": [(bert, "Packing")],
    "vocabulary": [(adamw.AdamW, "elementwise")],
    "fused-adamw": [(adamw, "adamw")],
    "sparse-gradients": [(adamw.AdamW, "takes_sparse")],
    "prefetching": [(loop, "prefetched")],
}


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What levers replace stands again after the test."""
    for places in PLACES.values():
        for owner, name in places:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setitem(optimizer.RULES, "adamw", optimizer.RULES["adamw"])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each layer computes, in turn."""
    found: list[int] = []
    forward = bert.BertIntermediate.forward

    def counted(self: Any, hidden: Any) -> Any:
        found.append(len(hidden))
        return forward(self, hidden)

    monkeypatch.setattr(bert.BertIntermediate, "forward", counted)
    return found


def losses(folder: Path, model: Path, **options: Any) -> list[float]:
    file = folder / "rows.jsonl"
    rows = [{"text": " ".join(["good" if at % 2 else "bad"] * (1 + 3 * (at % 4))), "label": "ab"[at % 2]} for at in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    how = {"max_steps": 12, "batch_size": 8, "learning_rate": 1e-2, "logging_steps": 1, "eval_steps": 12, "dropout": 0.0}
    train(folder / "run", model, file, overwrite=True, **how | options)
    log = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["loss"] for event in map(json.loads, log) if "loss" in event]


def test_every_lever_has_its_place() -> None:
    assert [*PLACES] == [*LEVERS]


@pytest.mark.parametrize("name", LEVERS)
def test_without_a_lever_training_is_the_same(
    name: str, undone: None, make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model_dir()
    expected = losses(tmp_path, model)
    assert len(expected) == 12
    assert expected[0] != pytest.approx(expected[-1], abs=0.1), "nothing was learnt that could differ"
    before = [getattr(owner, place) for owner, place in PLACES[name]]
    LEVERS[name].off()
    assert all(getattr(owner, place) is not old for (owner, place), old in zip(PLACES[name], before, strict=True))
    assert losses(tmp_path, model) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_all_levers_off_at_once_are_the_same(undone: None, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    expected = losses(tmp_path, make_model_dir())
    for lever in LEVERS.values():
        lever.off()
    assert losses(tmp_path, make_model_dir()) == pytest.approx(expected, rel=1e-3, abs=1e-3)


TOKENS, GRID, TEXTS = 8 * 2 + 2 * (1 + 4 + 7 + 10), 8 * 12, 8


@pytest.mark.parametrize(
    ("off", "layers"),
    [
        ((), [TOKENS, TEXTS]),
        (("no-padding",), [GRID, TEXTS]),
        (("last-layer",), [TOKENS, TOKENS]),
        (("no-padding", "last-layer"), [GRID, GRID]),
    ],
)
def test_padding_and_unread_rows_are_computed(
    off: tuple[str, ...],
    layers: list[int],
    undone: None,
    computed: list[int],
    make_model_dir: Callable[..., Path],
    tmp_path: Path,
) -> None:
    for name in off:
        LEVERS[name].off()
    losses(tmp_path, make_model_dir(), max_steps=1)
    assert computed[:2] == layers


def test_without_dropout_of_its_own_torch_draws(undone: None, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    drawn = losses(tmp_path, make_model_dir(), dropout=0.5)
    LEVERS["dropout"].off()
    again = losses(tmp_path, make_model_dir(), dropout=0.5)
    assert all(one != other for one, other in zip(drawn, again, strict=True))


@pytest.mark.slow
def test_a_side_does_without_levers(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    """In a process of its own; padding that is computed does not count as tokens."""
    data = tmp_path / "rows.jsonl"
    rows = [{"text": "ticket" if at % 2 else " ".join(["good"] * 9), "label": at % 2} for at in range(32)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = make_model_dir(max_position_embeddings=128)
    found = training.run_side("bertkit", "mrpc", model=model, data=data, steps=3, warmup=1, seed=1, off=",".join(LEVERS))
    assert found["precision"] == "fp32"
    assert found["real_tokens_per_s"] / found["examples_per_s"] == pytest.approx(7.0)


def test_levers_go_on_one_after_the_other() -> None:
    assert lever_gains.off_at(lever_gains.NONE) == [*LEVERS]
    assert lever_gains.off_at("no-padding") == [*LEVERS][1:]
    assert lever_gains.off_at([*LEVERS][-1]) == []


def test_gains_by_hand() -> None:
    rates = {stage: [100.0 * 2**at, 1.0, 4.0**at] for at, stage in enumerate(lever_gains.STAGES)}
    stages = {stage: {"real_tokens_per_s": each, "precision": ["fp32"] * 3} for stage, each in rates.items()}
    values = {"name": "bench_levers", "tasks": {"mrpc": {"stages": stages}}}
    rows = lever_gains.rows(values)
    assert rows[0][1:] == ["1", "-", "-", "-"]
    gains = [["4", "**2.00**", "1.00 to 4.00", "2.00"], ["16", "**2.00**", "1.00 to 4.00", "4.00"]]
    assert [row[1:] for row in rows[1:3]] == gains
    assert len(rows) == 1 + len(LEVERS)
    made_by = {
        "command": ["python -m scripts.bench.lever_gains"],
        "commit": "0" * 40,
        "date": "2026-01-02",
        "machine": "abacus",
    }
    made_by |= {"seeds": [1], "model": {"name": "minilm"}, "versions": dict.fromkeys(("bertkit", "torch", "transformers"), "1")}
    rendered = lever_gains.render({**values, **made_by})
    assert rendered.count("\n| ") == 1 + len(rows)
    assert "python -m scripts.bench.lever_gains" in rendered
