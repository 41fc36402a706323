"""scripts/bench/prediction.py and its sides: that all decide alike, what is timed, compared and shown."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.request import Request
from bertkit.tasks.catalog import load_recipe
from scripts import turns
from scripts.bench import prediction, prediction_models, prediction_sides, timed_prediction
from scripts.bench.prediction_inputs import padded_batches, peer_tokenizer
from scripts.bench.prediction_sides import SIDES, tags_of

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]  # of transformers, torch.onnx and onnxruntime

LABELS = {"good": "up", "bad": "down"}
ROWS: dict[str, list[dict[str, Any]]] = {
    "text-classification": [
        {"text": f"the {word} movie", "text_pair": " ".join(["plays"] * (1 + at % 9)), "label": LABELS[word]}
        for at, word in enumerate(["good", "bad"] * 24)
    ],
    # "printable" has several pieces
    "token-classification": [
        {"tokens": ["the", word, *["movie"] * (at % 7), "printable"], "tags": ["O", tag, *["O"] * (at % 7 + 1)]}
        for at, (word, tag) in enumerate([("good", "B-X"), ("bad", "B-Y")] * 24)
    ],
}
PEERS = ("pipeline", "torch", "onnx", "onnx-int8")  # openvino and nncf are of the extra `bench` alone


@pytest.fixture(scope="module")
def make_folder(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives a family's folder as prediction_models.py leaves it, of a tiny run that has learnt its rows."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = made[family] = tmp_path_factory.mktemp(family)
            for name in (prediction_models.TRAIN, prediction_models.DEV):
                text = "".join(json.dumps(row) + "\n" for row in ROWS[family])
                (folder / name).write_text(text, encoding="utf-8")
            data = {name: str(folder / prediction_models.TRAIN) for name in ("train", "validation")}
            how = {"learning_rate": 5e-3, "num_epochs": 12, "batch_size": 16, "max_length": 32, "precision": "fp32"}
            recipe = load_recipe(family).overridden({**data, **how, "device": "cpu", "seed": 1})
            finetune(Request(recipe, family, str(make_model_dir())), folder / prediction_models.RUN)
            graphs = (prediction_models.ONNX, prediction_models.ONNX_INT8)
            assert prediction_models.make(_task_of(family), folder, None, graphs) == list(graphs)
        return made[family]

    return make


def _task_of(family: str) -> str:
    return next(name for name, task in prediction_models.TASKS.items() if task.family == family)


def truth_of(family: str) -> list[Any]:
    return [row["label" if family == "text-classification" else "tags"] for row in ROWS[family]]


@pytest.mark.parametrize("family", ROWS)
def test_all_sides_decide_alike(family: str, make_folder: Callable[[str], Path]) -> None:
    folder, truth = make_folder(family), truth_of(family)
    for name in ("bertkit-fp32", *PEERS):
        decide = SIDES[name].open(folder, family)
        assert decide(ROWS[family]) == truth, name
        assert decide(ROWS[family][:1]) == truth[:1], name


def test_the_graphs_are_fused_and_of_eight_bits(make_folder: Callable[[str], Path]) -> None:
    import onnx

    folder = make_folder("text-classification")
    kinds = [
        {node.op_type for node in onnx.load(folder / name).graph.node}
        for name in (prediction_models.ONNX, prediction_models.ONNX_INT8)
    ]
    assert "Attention" in kinds[0]
    assert not any(kind.startswith("Dynamic") for kind in kinds[0])
    assert {"MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLinear", "QAttention"} & kinds[1]


def test_bertkit_has_the_sides_of_its_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.model import precision

    ours = [side for side in prediction_sides.available() if SIDES[side].ours]
    assert ours == [f"bertkit-{name}" for name in precision.DTYPES if name not in precision.GPU_ONLY]
    monkeypatch.setitem(precision.DTYPES, "int8", None)
    assert "bertkit-int8" in prediction_sides.available()
    assert SIDES["bertkit-int8"].kind == "int8"


def test_batches_are_sorted_padded_and_whole(tiny_tokenizer_dir: Path) -> None:
    rows = ROWS["text-classification"][:10]
    found, batches = padded_batches(peer_tokenizer(tiny_tokenizer_dir), rows, 4)
    seen = []
    for chosen, inputs in batches:
        lengths = [len(found["input_ids"][at]) for at in chosen]
        assert inputs["input_ids"].shape == (len(chosen), max(lengths))
        assert inputs["attention_mask"].sum(1).tolist() == lengths == sorted(lengths)
        for at, ids, length in zip(chosen, inputs["input_ids"], lengths):
            assert ids[:length].tolist() == found["input_ids"][at]
            assert not ids[length:].any()
        seen += chosen
    assert sorted(seen) == list(range(10))
    assert [len(found["input_ids"][at]) for at in seen] == sorted(map(len, found["input_ids"]))


def test_a_word_has_the_tag_of_its_first_piece() -> None:
    logits = np.eye(3)[[0, 1, 2, 2, 0]]  # [CLS], a word of two pieces, another, [SEP]
    assert tags_of(logits, [None, 0, 0, 1, None], {0: "O", 1: "B-X", 2: "B-Y"}, 3) == ["B-X", "B-Y", "O"]


@pytest.mark.parametrize("family", ROWS)
@pytest.mark.parametrize("side", ["bertkit-fp32", "torch"])
def test_a_side_is_timed(
    family: str, side: str, make_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    words = turns.typed({"family": family, "folder": make_folder(family), "rows": 40})
    monkeypatch.setattr("sys.argv", ["timed_prediction.py", side, *words])
    timed_prediction.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["rows"], found["score"]) == (40, 1.0)
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["texts_per_s"] > 0
    assert ("products_per_s" in found, found.get("products_per_s", 1) > 0) == (SIDES[side].ours, True)


def test_only_products_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 3)
    clock = iter([1.0, 1.5, 3.0, 3.25])  # of two products; exp_ is none
    monkeypatch.setattr(timed_prediction.time, "perf_counter", lambda: next(clock))
    assert timed_prediction.time_products(lambda: torch.bmm((x @ x).exp_()[None], x[None])) == 0.75
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="no products"):
        timed_prediction.time_products(x.exp)


def test_the_limit_is_told_of_the_sides_that_have_one() -> None:
    sides = {"bertkit-fp32": {"products_per_s": [100, 300, 200.4]}, "bertkit-bf16": {"products_per_s": [400]}, "torch": {}}
    values = {"tasks": {"mrpc": {"sides": sides}, "sst2": {"sides": {"torch": {}}}}}
    assert prediction.limits(values).endswith(" in texts/s: mrpc fp32 200, bf16 400.")
    assert prediction.limits({"tasks": {"sst2": {"sides": {"torch": {}}}}}) == ""


def test_scores_by_hand() -> None:
    assert timed_prediction.score("text-classification", ["a", "b", "a", "b"], ["a", "b", "b", "b"]) == 0.75
    # one of two entities, and one that is none
    truth, found = [["B-X", "I-X", "O", "B-Y"]], [["B-X", "I-X", "B-Y", "O"]]
    assert timed_prediction.score("token-classification", truth, found) == 0.5


def side(rate: float, p50: float, score: float = 0.9) -> dict[str, list[float]]:
    return {"texts_per_s": [rate, rate, 9e9], "p50_ms": [p50, p50, 9e9], "p99_ms": [p50] * 3, "score": [score] * 3}


MEASURED = {
    "bertkit-fp32": side(100, 9.0),
    "bertkit-bf16": side(150, 6.0),
    "torch": side(50, 12.0),
    "openvino-bf16": side(60, 8.0),
    "onnx-int8": side(120, 3.0),
    "openvino-int8": side(200, 2.0, score=0.5),
}


def test_the_best_of_ours_is_compared_with_the_best_of_theirs() -> None:
    rows = [(row["ours"], row["theirs"], row["ratio"], row["needed"]) for row in prediction.compare(MEASURED)]
    expected = [
        ("bertkit-bf16", "openvino-int8", 0.75, 1.2),
        ("bertkit-bf16", "openvino-bf16", 2.5, 1.2),
        ("bertkit-bf16", "onnx-int8", 2.0, 1.5),
    ]
    assert rows == expected
    with_int8 = {**MEASURED, "bertkit-int8": side(300, 2.0)}
    assert [row["ours"] for row in prediction.compare(with_int8)] == ["bertkit-int8", "bertkit-bf16", "bertkit-int8"]


def test_our_fast_side_that_is_wrong_does_not_count() -> None:
    wrong = {**MEASURED, "bertkit-int8": side(300, 2.0, score=0.88)}
    assert prediction.compare(wrong) == prediction.compare(MEASURED)


def test_only_what_was_run_is_compared() -> None:
    assert prediction.compare({name: MEASURED[name] for name in ("torch", "onnx-int8")}) == []
    (row, same) = prediction.compare({name: MEASURED[name] for name in ("torch", "bertkit-fp32")})
    assert row["theirs"] == same["theirs"] == "torch"


def test_what_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    def write(what: str) -> Callable[..., None]:
        def maker(*arguments: Any) -> None:
            made.append(what)
            path = arguments[-1]
            assert path.parent == tmp_path
            assert path.name.startswith("partial-")
            if what == "fine_tune":
                assert not path.exists(), "a part that a kill has left"
                path.mkdir()
            path.with_suffix(".bin").write_text("weights", encoding="utf-8") if "openvino" in what else None
            (path / "config.json" if path.is_dir() else path).write_text("{}", encoding="utf-8")

        return maker

    names = ("write_rows", "fine_tune", "write_onnx", "quantize_onnx", "write_openvino", "quantize_openvino")
    for name in names:
        monkeypatch.setattr(prediction_models, name, write(name))
    (tmp_path / "partial-run" / "checkpoint-1").mkdir(parents=True)
    first = prediction_models.make("mrpc", tmp_path, "data", [prediction_models.OPENVINO])
    assert made == ["write_rows", "write_rows", "fine_tune", "write_openvino"]
    kept = [*first, "openvino.bin", prediction_models.MADE_BY]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    made.clear()
    assert prediction_models.make("mrpc", tmp_path, "data", [prediction_models.OPENVINO, prediction_models.ONNX]) == [
        "model.onnx"
    ]
    assert made == ["write_onnx"]
    other = dataclasses.replace(prediction_models.TASKS["mrpc"], settings={"num-epochs": 9})
    monkeypatch.setitem(prediction_models.TASKS, "mrpc", other)
    assert prediction_models.make("mrpc", tmp_path, "data", []) == ["train.jsonl", "dev.jsonl", "run"]
    assert not (tmp_path / "model.onnx").exists(), "of other weights"


@pytest.mark.slow
def test_the_script_prints_what_the_pipeline_says(make_folder: Callable[[str], Path], tmp_path: Path) -> None:
    run = make_folder("text-classification") / prediction_models.RUN
    texts = ["the good movie", "the bad movie " * 4, "the bad movie"]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts), encoding="utf-8")
    script = [sys.executable, str(prediction.PIPELINE), str(run)]
    outputs = [
        subprocess.run([*script, str(file)], capture_output=True, text=True, check=True).stdout,
        subprocess.run(script, input="".join(f"{text}\n" for text in texts), capture_output=True, text=True, check=True).stdout,
    ]
    assert outputs[0] == outputs[1]
    found = [json.loads(line) for line in outputs[0].splitlines()]
    assert [row["sentence"] for row in found] == texts
    assert {row["label"] for row in found} <= {*LABELS.values()}


def test_whole_commands_read_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"text": f"number {number}", "label": "positive"} for number in range(30)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / prediction_models.TRAIN).write_text(text, encoding="utf-8")
    seen: list[list[str]] = []
    now = 0.0

    def record(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        nonlocal now
        seen.append(command)
        now += 0.3 if "pipeline_predict.py" in " ".join(command) else 0.1
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(turns.subprocess, "run", record)
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now)
    found = prediction.measure_commands(tmp_path, 2, 20)
    assert len((tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()) == 20
    ours, theirs, *_ = seen
    assert str(tmp_path / "texts.jsonl") in ours
    assert str(tmp_path / "texts.jsonl") in theirs
    shells = [command for command in seen if command[0] == "sh"]
    assert len(shells) == 6
    assert {command[2].partition("|")[0] for command in shells} == {shells[0][2].partition("|")[0]}
    assert (found["file"]["ratio"], found["line"]["ratio"]) == (3.0, 0.333), "times as fast; share of the time"
    for row in found.values():
        assert {who: len(each) for who, each in row["seconds"].items()} == {"bertkit": 2, "pipeline": 2}


def test_missing_packages_are_named_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prediction.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["prediction.py", "--sides", "openvino-int8", "--work", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"openvino, nncf"):
        prediction.main()
    assert not list(tmp_path.iterdir())


def test_the_tables_show_every_side() -> None:
    task = {"rows": 7, "score": "accuracy", "sides": MEASURED, "ratios": prediction.compare(MEASURED)}
    seconds = {"bertkit": 2.0, "pipeline": 8.0}
    command = {"seconds": {}, "median": seconds, "ratio": 0.25, "needed": 0.4}
    values: dict[str, Any] = {"name": "bench_prediction", "tasks": {"mrpc": task}, "commands": {"file": command}}
    values |= {"command": ["python -m scripts.bench.prediction"], "commit": "0" * 40, "date": "2026-01-02", "machine": "abacus"}
    versions = dict.fromkeys(("bertkit", "torch", "transformers", "openvino"), "1.2.3")
    values |= {"seeds": [1], "model": {"name": "minilm"}, "versions": versions}
    rendered = prediction.render(values)
    assert rendered.count("\n| mrpc | ") == len(MEASURED)
    assert "| mrpc | bertkit, bf16 | 150.0 | 6.0 | 6.0 | accuracy 90.0 |" in rendered
    assert rendered.count("**") == 2 * (3 + 1)
    assert "openvino 1.2.3" in rendered
