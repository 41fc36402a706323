"""Estimates for GPUs that are not available, against the memory and operations of a CPU for the same model and batch."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shapes import LARGER as CONFIG
from torch import Tensor

from bertkit.config import PretrainConfig
from bertkit.model.batch import Batch, pack
from bertkit.model.bert import set_activation_checkpointing
from bertkit.model.config import BertConfig
from bertkit.model.dropout import Dropout
from bertkit.model.language_model import BertForMaskedLM, BertForPreTraining
from bertkit.model.precision import DTYPES
from bertkit.runs.pretraining.estimate import SCORES, UTILIZATION, Phase, estimate, memory
from bertkit.runs.pretraining.gpus import GPU_TYPES, Gpus
from bertkit.training.optimizer import Optimizer


def settings(**values: Any) -> PretrainConfig:
    return PretrainConfig.of({"precision": "bf16"} | values)


def batch_of(count: int, length: int, predicted: int, vocab_size: int = CONFIG.vocab_size) -> Batch:
    """Pairs of which the head reads the first token and as many others."""
    batch, _ = pack(torch.randint(5, vocab_size, (count, length)), None, None)
    rows = (torch.arange(count)[:, None] * length + torch.arange(1 + predicted)).flatten()
    read = {"rows": rows, "cu_rows": torch.arange(count + 1) * (1 + predicted), "row_counts": np.full(count, 1 + predicted)}
    labels = {"mlm": torch.zeros(count * predicted, dtype=torch.long), "nsp": torch.zeros(count, dtype=torch.long)}
    return dataclasses.replace(batch, **read, labels=labels, weights=dict.fromkeys(labels, 1.0))


def parts_of(
    batch: Batch, config: PretrainConfig, *, processes: int = 1, accumulates: bool = False, averaging: bool = False
) -> dict[str, int]:
    build = partial(BertForPreTraining, CONFIG)
    return memory(build, batch, config, num_processes=processes, accumulates=accumulates, averaging=averaging)


def size(*tensors: Tensor) -> int:
    """The bytes of their memory, counted once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_what_the_optimizer_holds_is_counted_to_the_byte(optimizer: str, precision: str) -> None:
    config = settings(optimizer=optimizer, precision=precision)
    real = Optimizer(BertForPreTraining(CONFIG), config, dtype=DTYPES[precision], num_processes=2)
    assert real.shared is not None
    parts = parts_of(batch_of(8, 32, 5), config, processes=2)
    weights, masters = size(*real.parameters.values()), size(*real.masters.values())
    assert parts[f"weights in {precision}"] == weights
    assert parts["float32 masters"] == (masters if precision == "bf16" else 0)
    assert masters == (2 if precision == "bf16" else 1) * weights
    assert parts["optimizer moments"] == size(*(each for of in real.moments.values() for each in of.values()))
    assert parts["gradients, summed in float32"] == size(*real.shared.sums) == masters


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_averaged_weights_take_memory_and_disk(precision: str) -> None:
    config, batch, build = settings(precision=precision), batch_of(8, 32, 5), partial(BertForPreTraining, CONFIG)
    plain, averaged = (parts_of(batch, config, averaging=each) for each in (False, True))
    real = Optimizer(build(), config, dtype=DTYPES[precision])
    real.average()
    assert averaged == plain | {"averaged weights": size(*real.averages.values())} != plain
    values = estimate(build, [Phase(1, [[batch]])], config, Gpus(1, "h100"), steps=1, averaging=True)
    assert values["on_disk"] == 4 * 4 * values["parameters"], "weights, two moments, and the weights before averaging"


def test_attention_has_its_own_dropout() -> None:
    built: list[BertForPreTraining] = []
    config = settings(dropout=0.25, attention_dropout=0.5)
    build = lambda: built.append(BertForPreTraining(CONFIG)) or built[-1]  # noqa: E731
    memory(build, batch_of(8, 32, 5), config, num_processes=1, accumulates=False, averaging=False)
    found = {name: part.p for name, part in built[0].named_modules() if isinstance(part, Dropout)}
    assert found == {name: 0.5 if name.endswith("attention.self.dropout") else 0.25 for name in found}
    assert {*found.values()} == {0.25, 0.5}


def test_one_process_sums_gradients_only_over_micro_batches_in_16_bits() -> None:
    batch, name = batch_of(8, 32, 5), "gradients, summed in float32"
    assert parts_of(batch, settings())[name] == 0
    assert parts_of(batch, settings(), accumulates=True)[name] == parts_of(batch, settings())["float32 masters"]
    assert parts_of(batch, settings(precision="fp32"), accumulates=True)[name] == 0, "each is added to the first one's"


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_activations_are_what_autograd_saves(precision: str) -> None:
    """Within 5%: what lays out the batch is kept too, and is no activation."""
    batch = batch_of(32, 32, 5)
    parts = parts_of(batch, settings(precision=precision))
    module = BertForPreTraining(CONFIG).to(DTYPES[precision]).train()
    of_model = {each.untyped_storage().data_ptr() for each in module.parameters()}
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        outputs = module(batch)
    own = size(*(each for each in saved if each.untyped_storage().data_ptr() not in of_model))
    assert parts["activations"] + parts[SCORES] == pytest.approx(own, rel=0.05)
    assert parts["activations"] + parts[SCORES] > own
    of_scores = size(*(each for each in saved if each.dim() == 4 and len(each) == 32))  # (B, A, Tq, Tk)
    assert parts[SCORES] == of_scores > 0
    decoder = module.cls.predictions.decoder
    assert parts["vocabulary gradient"] == size(decoder.weight) + size(decoder.bias)
    assert outputs.loss_sums.keys() == {"mlm", "nsp"}


@pytest.mark.parametrize(("precision", "checkpointing"), [("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True)])
def test_the_most_memory_of_a_step_is_what_torchs_profiler_sees(precision: str, checkpointing: bool) -> None:
    """Within 8%: a CPU holds the random bits of dropout beside their mask, and its kernels differ a little."""
    batch, config = batch_of(32, 32, 5), settings(precision=precision, activation_checkpointing=checkpointing)
    names = ("activations", SCORES, "vocabulary gradient", "scores of a chunk, intermediate gradients")
    estimated = sum(size for name, size in parts_of(batch, config).items() if name in names)

    module = BertForPreTraining(CONFIG)
    set_activation_checkpointing(module, checkpointing)
    optimizer = Optimizer(module, config, dtype=DTYPES[precision])
    module.train()(batch)
    with torch.profiler.profile(profile_memory=True) as profiler:
        optimizer.backward(torch.stack([*module(batch).loss_sums.values()]).sum(), last=True)
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = np.cumsum([each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())])
    assert estimated == pytest.approx(held.max(), rel=0.08)


def test_more_tokens_at_once_take_more_activations_and_nothing_else() -> None:
    few, many = (parts_of(batch_of(count, 32, 5), settings(), processes=2) for count in (16, 64))
    assert many["activations"] == pytest.approx(4 * few["activations"], rel=0.05)
    differ = {name for name in few if few[name] != many[name]}
    assert differ == {"activations", SCORES, "scores of a chunk, intermediate gradients"}
    checkpointed = parts_of(batch_of(64, 32, 5), settings(activation_checkpointing=True), processes=2)
    assert checkpointed["activations"] < many["activations"] / 4


def estimated(config: PretrainConfig, gpus: Gpus, steps: int, batch: Batch, model: BertConfig) -> dict[str, Any]:
    """Of steps in which each GPU has the batch twice."""
    labels = {"mlm": batch.labels["mlm"]}
    keep = torch.arange(len(batch.rows)) % int(batch.row_counts[0]) > 0  # type: ignore[arg-type]
    counts = batch.row_counts - 1
    alone = dataclasses.replace(
        batch,
        rows=batch.rows[keep],  # type: ignore[index]
        cu_rows=torch.tensor([0, *np.cumsum(counts)]),
        row_counts=counts,
        labels=labels,
        weights={"mlm": 1.0},
    )
    phases = [Phase(steps / 2, [[alone, alone]] * gpus.number), Phase(steps / 2, [[alone, alone]] * gpus.number)]
    return estimate(partial(BertForMaskedLM, model), phases, config, gpus, steps=steps, averaging=False)


def test_hours_are_six_operations_a_weight_and_token_at_shares_of_the_published_rate() -> None:
    """Kaplan et al. (2020), section 2.1: of the encoder's weights; attention and the 20 tokens that are predicted add some."""
    model = BertConfig(vocab_size=30522)
    batch = batch_of(8, 128, 20, model.vocab_size)
    values = estimated(settings(), Gpus(2, "h100"), 1000, batch, model)
    encoder = 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert values["tokens per step"] == 2 * 2 * 8 * 128
    operations = 6 * encoder * 1000 * values["tokens per step"]
    most, least = values["hours"][1] * UTILIZATION[0], values["hours"][0] * UTILIZATION[1]
    assert most == pytest.approx(least), "hours of one GPU at its whole rate"
    assert 1.0 < 2 * least * 3600 * 989e12 / operations < 1.3
    for number in (1, 8):
        other = estimated(settings(), Gpus(number, "h100"), 1000, batch, model)
        assert other["hours"] == pytest.approx(values["hours"]), "twice the GPUs have twice the tokens here"
    slower = estimated(settings(precision="fp32"), Gpus(2, "h100"), 1000, batch, model)
    assert slower["hours"][0] == pytest.approx(values["hours"][0] * 989 / 67)
    assert values["on_disk"] == 3 * 4 * values["parameters"], "weights and two moments in float32"


@pytest.mark.parametrize("name", GPU_TYPES)
def test_published_figures_are_of_a_kind(name: str) -> None:
    gpu = GPU_TYPES[name]
    assert 16 <= gpu.memory <= 141
    assert 1.9 < gpu.rate16 / gpu.rate32 <= 16
    assert Gpus(1, name).precision("auto") == gpu.dtype16
    assert gpu.rate("bf16") == 2 * gpu.rate("tf32") > gpu.rate("fp32") > 0


# --- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def dry(run_bertkit, make_model_dir, tmp_path: Path):
    """A function that runs a dry run on a corpus: dry("--gpus", 8, ...); nothing may be written."""
    text = "\n\n".join(f"good movie {number}.\nbad book story plot {number}." for number in range(80))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    build = f"corpus build text.txt --tokenizer {make_model_dir()} --validation 10% --num-processes 1 --output-dir corpus"
    assert run_bertkit(*build.split()).code == 0
    before = sorted(tmp_path.rglob("*"))
    options = "pretrain corpus --model-size tiny --max-steps 100 --batch-size 16 --max-length 32 --device cpu"

    def run(*more: Any, code: int = 0) -> str:
        ran = run_bertkit(*options.split(), "--dry-run", *more)
        assert ran.code == code, ran.err
        assert sorted(tmp_path.rglob("*")) == before
        return ran.err

    return run


def test_the_command_says_what_each_part_takes_and_that_nobody_measured_it(dry) -> None:
    said = dry("--gpus", 8, "--gpu-type", "h100")
    words = ("in bf16, not measured:", "989 TFLOP/s", "weights in bf16", "float32 masters", "moments", "activations", "total")
    assert [word for word in (*words, "20% to 50%", "not measured", "checkpoint, GB") if word not in said] == []
    assert "error" not in said
    assert "averaged weights" not in said
    assert "averaged weights" in dry("--gpus", 8, "--gpu-type", "h100", "--average-ratio", 0.2)
    assert "leaves some of 32 GPUs without a sequence" in dry("--gpus", 32, "--gpu-type", "h100")


def test_a_dry_run_without_gpus_times_steps_of_this_machine(dry) -> None:
    said = dry("--precision", "fp32")
    assert "dry run: nothing was written" in said
    assert "tokens per second" in said


def test_what_does_not_fit_says_what_to_do(dry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPU_TYPES, "a10g", GPU_TYPES["a10g"]._replace(memory=0))
    error, hint = dry("--gpus", 8, "--gpu-type", "a10g", code=2).splitlines()[-2:]
    assert error.startswith("error: a step needs 0.0 GB; one a10g has 0 GB")
    assert "lower --micro-batch-tokens, which is 8192" in hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", 8), ("--gpus and --gpu-type must be used together", "--gpus 8 --gpu-type h100")),
        (("--gpu-type", "h100"), ("--gpus and --gpu-type must be used together",)),
        (("--gpus", 8, "--gpu-type", "h10"), ("'h10'", "h100, h200")),
        (("--gpus", 8, "--gpu-type", "tpu"), ("'tpu'", "known: a100-40")),
        (("--gpus", 0, "--gpu-type", "h100"), ("--gpus",)),
        (("--gpus", 8, "--gpu-type", "v100-16", "--precision", "bf16"), ("bf16, which v100-16 lacks", "auto, fp16 or fp32")),
        (("--gpus", 8, "--gpu-type", "v100-32", "--precision", "tf32"), ("tf32, which v100-32 lacks", "fp16")),
    ],
)
def test_what_cannot_be_estimated_is_one_line(options: tuple[Any, ...], words: tuple[str, ...], dry) -> None:
    said = dry(*options, code=2)
    assert [word for word in words if word not in said] == [], said
    assert said.count("error: ") == 1


def test_the_phase_that_takes_most_memory_counts() -> None:
    """That with more tokens at once: attention scores do not count."""
    build, config, gpus = partial(BertForPreTraining, CONFIG), settings(), Gpus(1, "h100")
    short, long = Phase(9, [[batch_of(32, 16, 5)]]), Phase(1, [[batch_of(16, 64, 20)]])
    alone = [estimate(build, [each], config, gpus, steps=10, averaging=False)["memory"] for each in (short, long)]
    both = estimate(build, [short, long], config, gpus, steps=10, averaging=False)["memory"]
    assert alone[0]["activations"] < alone[1]["activations"] == both["activations"]


def test_hours_and_real_training_are_refused(dry, run_bertkit) -> None:
    gpus = ("--gpus", 8, "--gpu-type", "h100")
    timed = run_bertkit("pretrain", "corpus", "--model-size", "tiny", "--hours", 1, "--dry-run", *gpus)
    assert (timed.code, "--hours is planned by timing steps" in timed.err) == (2, True)
    real = run_bertkit("pretrain", "corpus", "--model-size", "tiny", "--output-dir", "run", *gpus)
    assert (real.code, "--gpus is only for estimates" in real.err, "add --dry-run" in real.err) == (2, True, True)
    nowhere = run_bertkit("pretrain", "corpus", "--model-size", "tiny")
    assert (nowhere.code, "--output-dir is missing" in nowhere.err) == (2, True)
