"""Which dtype "auto" is: the faster one as measured, once for a machine and a shape; a run to resume keeps its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.model import precision as module
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.precision import FASTER, Precision, matrix_rate, measure_rates, multiply_in, resolve_precision
from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.request import Request
from bertkit.runs.target import open_target
from bertkit.tasks import TextClassification

SMALL = BertConfig(hidden_size=32, intermediate_size=64, num_attention_heads=2)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[tuple[int, int, bool]]]:
    """Let a processor that has bf16 compute at these rates; returns what is measured from then on."""

    def set_rates(fp32: float, bf16: float, *, undisturbed: bool = True) -> list[tuple[int, int, bool]]:
        measured: list[tuple[int, int, bool]] = []

        def measure(hidden: int, intermediate: int, names: Sequence[str], *, training: bool) -> tuple[dict[str, float], bool]:
            measured.append((hidden, intermediate, training))
            return {name: {"fp32": fp32, "bf16": bf16}[name] for name in names}, undisturbed

        monkeypatch.setattr(module, "measure_rates", measure)
        monkeypatch.setattr(module, "_disturbed", {})
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return measured

    return set_rates


@pytest.mark.parametrize("in_the_way", ["cache", "cache/bertkit/precision.json/a file"])
def test_rates_that_cannot_be_kept_are_used(rates, tmp_path: Path, in_the_way: str) -> None:
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_text("a file", encoding="utf-8")
    rates(100.0, 200.0)
    assert resolve_precision("auto", SMALL, start_accelerator("cpu"), training=True).name == "bf16"


@pytest.mark.parametrize(("bf16", "name"), [(60.0, "fp32"), (119.9, "fp32"), (120.0, "bf16"), (200.0, "bf16")])
def test_bf16_only_where_it_is_faster_enough(rates, bf16: float, name: str) -> None:
    assert FASTER == 1.2
    rates(100.0, bf16)
    found = resolve_precision("auto", SMALL, start_accelerator("cpu"), training=True)
    assert found == Precision(name, {"fp32": 100.0, "bf16": bf16})
    assert name in str(found)


def test_it_is_measured_once_for_a_shape_and_kept_in_the_cache(rates, tmp_path: Path) -> None:
    measured, accelerator = rates(100.0, 200.0), start_accelerator("cpu")
    for _ in range(2):
        resolve_precision("auto", SMALL, accelerator, training=True)
    resolve_precision("auto", SMALL, accelerator, training=False)
    wide = BertConfig(hidden_size=64, intermediate_size=256, num_attention_heads=2)
    resolve_precision("auto", wide, accelerator, training=True)
    assert measured == [(32, 64, True), (32, 64, False), (64, 256, True)]
    (path,) = (tmp_path / "cache").glob("bertkit/*")
    assert len(json.loads(path.read_text(encoding="utf-8"))) == 3
    for count, damaged in enumerate(("{", "[]", json.dumps(dict.fromkeys(json.loads(path.read_text(encoding="utf-8")), 3)))):
        path.write_text(damaged, encoding="utf-8")
        assert resolve_precision("auto", SMALL, accelerator, training=True).name == "bf16"
        assert len(measured) == 4 + count, "measured anew"


@pytest.mark.parametrize("asked", ["fp32", "bf16"])
def test_what_is_asked_for_or_recorded_is_not_measured(rates, asked: str) -> None:
    measured, accelerator = rates(100.0, 200.0), start_accelerator("cpu")
    assert resolve_precision(asked, SMALL, accelerator, training=True) == Precision(asked)
    recorded = Precision(asked).recorded
    assert resolve_precision("auto", SMALL, accelerator, training=True, recorded=recorded) == Precision(asked)
    assert (measured, str(Precision(asked))) == ([], "")


def test_processors_with_and_without_amx_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for has_amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_amx=has_amx: has_amx)
        names.append(module.processor())
    assert names[0] == f"{names[1]} with AMX"


def test_a_processor_without_bf16_is_not_measured(rates, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = rates(100.0, 200.0)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert resolve_precision("auto", SMALL, start_accelerator("cpu"), training=True) == Precision("fp32")
    assert measured == []


@pytest.mark.parametrize("asked", ["tf32", "fp16"])
@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_what_gpus_alone_have_is_refused_elsewhere(asked: str, device: str) -> None:
    here = SimpleNamespace(device=torch.device(device), is_main_process=True, num_processes=1)
    with pytest.raises(UsageError, match=f"--precision {asked} needs an NVIDIA or AMD GPU; this run is on {device}"):
        resolve_precision(asked, SMALL, here, training=True)


@pytest.mark.parametrize(
    ("capability", "bf16", "name"),
    [((9, 0), True, "bf16"), ((8, 0), True, "bf16"), ((7, 5), False, "fp16"), ((6, 1), False, "fp32")],
)
def test_auto_on_a_gpu(capability: tuple[int, int], bf16: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = SimpleNamespace(device=torch.device("cuda", 0), is_main_process=True, num_processes=1)
    assert resolve_precision("auto", SMALL, gpu, training=True) == Precision(name)
    for asked in ("tf32", "bf16", "fp16", "fp32"):
        if asked in ("tf32", "bf16") and not bf16:
            with pytest.raises(UsageError, match="which this GPU does not support"):
                resolve_precision(asked, SMALL, gpu, training=True)
        else:
            assert resolve_precision(asked, SMALL, gpu, training=True) == Precision(asked)
    assert resolve_precision("auto", SMALL, gpu, training=True, recorded="float16") == Precision("fp16")
    if not bf16:
        with pytest.raises(UsageError, match="the run began in bf16, which this device does not support"):
            resolve_precision("auto", SMALL, gpu, training=True, recorded="bfloat16")
    with pytest.raises(UsageError, match="the run began in fp16"):
        resolve_precision("auto", SMALL, start_accelerator("cpu"), training=True, recorded="float16")


def products() -> tuple[str, bool]:
    """How a GPU would multiply float32 now: by cuBLAS, and by cuDNN, as in a BiLSTM."""
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


EXACT, FAST = ("highest", False), ("high", True)


def test_tf32_is_of_one_model_alone() -> None:
    seen: list[tuple[str, bool]] = []

    class Module(torch.nn.Module):
        def forward(self, fails: bool) -> None:
            seen.append(products())
            if fails:
                raise ValueError

    exact, fast, before = Module(), Module(), products()
    for name, each in (("fp32", exact), ("tf32", fast)):
        multiply_in(each, name, torch.device("cuda"))
        multiply_in(each, "tf32", torch.device("cpu"))  # which changes nothing
    for each in (exact, fast, exact):
        each(False)
    with pytest.raises(ValueError):
        fast(True)
    exact(False)
    assert seen == [EXACT, FAST, EXACT, FAST, EXACT]
    assert products() == before
    assert Precision("tf32").dtype == torch.float32


def test_rates_of_tf32_are_measured_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    before = products()
    monkeypatch.setattr(module, "_pass", lambda *_, **__: seen.append(products()))
    measure_rates(768, 3072, ["fp32", "tf32"], training=False)
    assert (set(seen[::2]), set(seen[1::2]), products()) == ({EXACT}, {FAST}, before)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 1.5), ("max 100000", 8.0), ("6400000 100000", 8.0)])
def test_threads_that_a_container_has_no_cores_for_do_not_count(
    quota: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: quota)
    assert module._usable_threads() == expected


def test_the_main_process_decides(rates, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = rates(100.0, 50.0)

    def broadcast(values: list[object]) -> None:
        values[:] = [{"fp32": 1.0, "bf16": 2.0}]

    monkeypatch.setattr("accelerate.utils.broadcast_object_list", broadcast)
    other = SimpleNamespace(device=torch.device("cpu"), is_main_process=False, num_processes=2)
    assert resolve_precision("auto", SMALL, other, training=True) == Precision("bf16", {"fp32": 1.0, "bf16": 2.0})
    assert measured == []


@pytest.mark.parametrize("training", [True, False])
def test_rates_are_those_of_this_machine(training: bool) -> None:
    found, _ = measure_rates(64, 128, training=training)
    assert list(found) == ["fp32", "bf16"]
    assert all(rate > 0 for rate in found.values())
    assert list(measure_rates(64, 128, ["bf16"], training=training)[0]) == ["bf16"]


def test_what_other_programs_disturb_is_used_and_measured_anew(rates, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = start_accelerator("cpu")
    measured = rates(100.0, 50.0, undisturbed=False)
    for _ in range(2):
        assert resolve_precision("auto", SMALL, accelerator, training=True).name == "fp32"
    assert len(measured) == 1, "once a command"
    measured = rates(100.0, 200.0)  # as the next command
    for _ in range(2):
        assert resolve_precision("auto", SMALL, accelerator, training=True).name == "bf16"
    assert len(measured) == 1


def test_rates_that_are_compared_were_measured_together(rates) -> None:
    """One rate from a quiet minute and the other from a busy one would say nothing about which precision is faster."""
    accelerator = start_accelerator("cpu")
    rates(100.0, 200.0)
    assert matrix_rate(Precision("fp32"), SMALL, accelerator) == 100.0  # kept, alone
    measured = rates(50.0, 100.0, undisturbed=False)
    for _ in range(3):  # seeds
        assert resolve_precision("auto", SMALL, accelerator, training=True).rates == {"fp32": 50.0, "bf16": 100.0}
    assert len(measured) == 1


def test_a_small_model_computes_as_much_in_each_timing_as_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the threads' start outweighs it, and all timings would count as disturbed."""
    timed: list[float] = []

    def compute(inputs: list[torch.Tensor], layers: list[Any], *, training: bool) -> None:
        products = [2 * len(rows) * layer.keywords["weight"].numel() for rows, layer in zip(inputs, layers, strict=True)]
        timed.append(sum(products) * (3 if training else 1))

    monkeypatch.setattr(module, "_pass", compute)
    _all_threads_compute_for(1.0, monkeypatch)
    for hidden_size, training in itertools.product((32, 128, 384, 1024), (False, True)):
        timed.clear()
        found, _ = measure_rates(hidden_size, 4 * hidden_size, ["fp32"], training=training)
        assert sum(timed) == pytest.approx((1 + module.ALTERNATIONS) * module.OPERATIONS, rel=0.25)
        assert found["fp32"] == pytest.approx(module.OPERATIONS / 0.25 / 1e9, rel=0.25), "GFLOP/s; a timing takes 0.25 s"


def _all_threads_compute_for(share: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Of a clock on which each pass takes a quarter of a second, of which all threads compute for some share; its times."""
    wall, computed = itertools.count(0.0, 0.25), itertools.count(0.0, 0.25 * share * torch.get_num_threads())
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(module.time, "process_time", lambda: next(computed))
    return wall


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_passes_are_disturbed_where_threads_do_not_compute(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = _all_threads_compute_for(share, monkeypatch)
    assert module.measure_rates(64, 128, ["fp32"], training=False)[1] == (share == 1.0)
    assert next(wall) > module.PATIENCE


def test_the_rate_of_matrix_products_is_measured_by_the_main_process_alone(rates) -> None:
    measured, accelerator = rates(100.0, 200.0), start_accelerator("cpu")
    assert matrix_rate(Precision("bf16"), SMALL, accelerator) == 200.0
    assert matrix_rate(Precision("fp32"), SMALL, accelerator) == 100.0, "the cache lacks it"
    assert resolve_precision("auto", SMALL, accelerator, training=True).name == "bf16"
    assert matrix_rate(Precision("fp32"), SMALL, accelerator) == 100.0
    assert len(measured) == 3, "both anew for auto, and then both are known"
    other = SimpleNamespace(device=torch.device("cpu"), is_main_process=False, num_processes=2)
    assert matrix_rate(Precision("fp32"), SMALL, other) is None


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_run_records_what_it_chose_and_resumes_in_it(rates, make_model_dir, tmp_path: Path, name: str) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "good movie,praise\nbad movie,blame\n" * 8, encoding="utf-8")
    model = str(make_model_dir("BertModel", seed=2, hidden_size=32, intermediate_size=64))
    options = {"train": str(rows), "validation": str(rows), "batch_size": 4, "max_length": 16, "eval_steps": 2}
    options["keep_training_state"] = True
    rates(100.0, 200.0 if name == "bf16" else 50.0)

    recipe = TextClassification().overridden(options | {"max_steps": 4})
    finetune(Request(recipe, "text-classification", model), tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text(encoding="utf-8"))
    assert (run["training"]["precision"], run["dtype"]) == ("auto", Precision(name).recorded)
    assert set(run["rates"]) == {"fp32", "bf16"}
    path.write_text(json.dumps(run | {"status": "running"}), encoding="utf-8")  # as if it had been killed
    measured = rates(100.0, 50.0 if name == "bf16" else 200.0)  # another machine
    finetune(Request(recipe, "text-classification", model), tmp_path / "run")
    again = json.loads(path.read_text(encoding="utf-8"))
    assert (again["status"], again["dtype"], again["rates"], measured) == ("finished", run["dtype"], run["rates"], [])
    target = open_target(str(tmp_path / "run"), None, {}, to_predict=True)
    dtype = next(TaskPredictor(target, start_accelerator("cpu")).model.parameters()).dtype
    assert (str(dtype), measured) == ("torch.float32" if name == "bf16" else "torch.bfloat16", [(32, 64, False)])


def test_accumulation_and_precision_of_the_environment_are_ignored_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.warn_once.cache_clear()
    start_accelerator("cpu")
    assert "ignored" not in capsys.readouterr().err
    names = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_MIXED_PRECISION": "bf16"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    accelerator = start_accelerator("cpu")
    told = capsys.readouterr().err
    assert [f"{name}={value} is ignored" in " ".join(told.split()) for name, value in names.items()] == [True, True]
    weight = torch.ones(1, requires_grad=True)
    accelerator.backward((2 * weight).sum())
    assert (accelerator.gradient_accumulation_steps, weight.grad.item()) == (1, 2.0)
