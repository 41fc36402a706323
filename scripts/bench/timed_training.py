"""One timed training run in its own process, by bertkit or by the Trainer of transformers; prints one line of JSON.

Both sides get the same rows, weights, batch size, number of steps and seed, and neither evaluates nor saves. A step's time runs
from the end of the previous step to its own end, so it includes making the batch; the first `--warmup` steps do not count.
`training.py` runs it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.levers import LEVERS
from scripts.bench.trainer_peers import PEERS, SIZES, TRAINERS

# side -> its options
BERTKIT: dict[str, dict[str, Any]] = {
    "bertkit": {},
    "bertkit-fp32": {"precision": "fp32"},
    "bertkit-compiled": {"compile": True},
}
CORPUS = ".corpus"  # what the name of the data's corpus ends in


class Step(NamedTuple):
    """What one optimizer step worked on; no padding is counted."""

    examples: int
    tokens: int


class Timed(NamedTuple):
    """Per optimizer step its seconds and its work, and the seconds that its batches took; the warm-up left out.

    Of our side alone: precision, what `--precision` came to; flops, the operations that each step needs; rate, the GFLOP/s of
    plain matrix products of the model's shapes, forward and backward, measured in the same process.
    """

    seconds: list[float]
    steps: list[Step]
    waited: list[float]
    precision: str | None = None
    flops: Sequence[float] = ()
    rate: float = 1.0


def time_bertkit(options: argparse.Namespace) -> Timed:
    """What `bertkit finetune FAMILY` or `bertkit pretrain` does up to the first step, then its loop, with batches that take
    the time."""
    import torch

    from bertkit.config import PretrainConfig
    from bertkit.corpus.corpora import open_corpora
    from bertkit.model.config import BertConfig
    from bertkit.model.directory import read_config
    from bertkit.model.flops import flop_counter
    from bertkit.model.precision import measure_rates
    from bertkit.runs.finetuning import finetune
    from bertkit.runs.finetuning import training as finetuning
    from bertkit.runs.pretraining import pretrain
    from bertkit.runs.pretraining import training as pretraining
    from bertkit.runs.request import Request
    from bertkit.tasks.catalog import load_recipe
    from bertkit.training import loop

    for name in options.off.split(",") if options.off else ():
        LEVERS[name].off()
    train, with_totals = loop.train, loop.with_totals
    stamps: list[float] = []
    timed_steps: list[Step] = []
    waited: list[float] = []
    flops: list[float] = []
    precision = ""
    count: Callable[[Any], float]

    def stamped(*arguments: Any) -> Iterator[Any]:
        steps = with_totals(*arguments)  # which takes the batches of a step before the step before it begins
        while True:
            if len(stamps) == options.warmup and torch.cuda.is_available():
                torch.cuda.synchronize()  # what was queued before does not count
            stamps.append(time.perf_counter())
            step = next(steps)
            waited.append(time.perf_counter() - stamps[-1])
            examples = sum(len(batch.features) for batch in step.micro_batches)
            timed_steps.append(Step(examples, sum(len(batch.input_ids) for batch in step.micro_batches)))
            flops.append(sum(map(count, step.micro_batches)))
            yield step

    def timed(model: Any, batches: Callable, config: Any, *rest: Any, total_steps: int, run_dir: Path, **more: Any) -> Any:
        nonlocal precision, count
        precision, count = config.precision, flop_counter(model)
        state = train(model, batches, config, *rest, total_steps=total_steps, run_dir=run_dir)
        stamps.append(time.perf_counter())
        more["save_model"](total_steps)(run_dir, model.state_dict())  # as a run has one, and out of the time
        return state

    def measured(config: BertConfig) -> Timed:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        rates, _ = measure_rates(config.hidden_size, config.intermediate_size, [precision], training=True, device=device)
        found = since_warmup(stamps, timed_steps, options.warmup, waited)
        return found._replace(precision=precision, flops=flops[options.warmup :], rate=rates[precision])

    loop.with_totals, finetuning.train, pretraining.train = stamped, timed, timed  # type: ignore[assignment]
    typed = {
        "max_steps": options.steps,
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "micro_batch_tokens": options.micro_batch_tokens,
        **BERTKIT[options.side],
    }
    typed = {name: value for name, value in typed.items() if value is not None}
    if options.family == "pretraining":
        corpora = open_corpora([options.data + CORPUS])
        architecture = BertConfig(vocab_size=corpora[0].meta["tokenizer"]["vocab_size"], **SIZES[options.size])
        with tempfile.TemporaryDirectory() as folder:
            pretrain.pretrain(corpora, PretrainConfig.of(typed), output_dir=Path(folder) / "run", architecture=architecture)
        return measured(architecture)
    typed |= {"train": options.data, "validation": options.data}  # read, and never evaluated
    if options.family == "question-answering":
        typed["doc_stride"] = options.doc_stride
    recipe = load_recipe(options.family).overridden(typed)
    with tempfile.TemporaryDirectory() as folder:
        finetune.finetune(Request(recipe, options.family, options.model), Path(folder) / "run")
    return measured(read_config(Path(options.model)))


def time_trainer(options: argparse.Namespace) -> Timed:
    """The Trainer as run_glue.py, run_ner.py or run_qa.py uses it, in one of the settings of TRAINERS."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments, set_seed

    disable_progress_bars()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    setting = TRAINERS[options.side]
    with open(options.data, encoding="utf-8") as file:
        raw = Dataset.from_list([json.loads(line) for line in file])
    model, rows, collator = PEERS[options.family](raw, tokenizer, options)
    stamps: list[float] = []
    steps: list[Step] = []

    def counted(features: list[Any]) -> Any:  # on the host, and maybe a batch ahead
        batch = collator(features)
        steps.append(Step(len(batch["input_ids"]), int(batch["attention_mask"].sum())))
        return batch

    class Stamp(TrainerCallback):
        def on_train_begin(self, *rest: Any, **named: Any) -> None:
            stamps.append(time.perf_counter())

        def on_step_end(self, *rest: Any, **named: Any) -> None:
            if torch.cuda.is_available() and len(stamps) in (options.warmup, options.steps):
                torch.cuda.synchronize()  # as on bertkit's side
            stamps.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            max_steps=options.steps,
            seed=options.seed,
            bf16=setting.bf16,
            torch_compile=setting.compiled,
            use_cpu=not torch.cuda.is_available(),
            train_sampling_strategy="group_by_length" if setting.grouped else "random",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(
            model=model,
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer,
            data_collator=counted,
            callbacks=[Stamp()],
        ).train()
    return since_warmup(stamps, steps[: options.steps], options.warmup)


# --- the clock ---------------------------------------------------------------------------------------------------------------


def since_warmup(stamps: list[float], steps: list[Step], warmup: int, waited: Sequence[float] = ()) -> Timed:
    """stamps: the begin of the first step and the end of every step."""
    if len(stamps) != len(steps) + 1 or len(steps) <= warmup:
        raise SystemExit(f"error: {len(stamps)} stamps for {len(steps)} steps, {warmup} of them warm-up; expected more steps")
    seconds = [end - start for start, end in itertools.pairwise(stamps)]
    return Timed(seconds[warmup:], steps[warmup:], list(waited)[warmup:])


def peak_rss_mib() -> float:
    """The most resident memory that this process has had."""
    with suppress(OSError):  # where there is no /proc, getrusage tells it
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def summary(timed: Timed) -> dict[str, Any]:
    """Rates over the timed steps together, and the median step."""
    total = sum(timed.seconds)
    return {
        **({"waiting_share": sum(timed.waited) / total} if timed.waited else {}),
        **({"precision": timed.precision} if timed.precision else {}),
        **({"matrix_share": sum(timed.flops) / total / (1e9 * timed.rate)} if timed.flops else {}),
        **({"tflops": sum(timed.flops) / total / 1e12} if timed.flops else {}),
        "timed_steps": len(timed.steps),
        "examples_per_s": sum(step.examples for step in timed.steps) / total,
        "real_tokens_per_s": sum(step.tokens for step in timed.steps) / total,
        "step_s": statistics.median(timed.seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=[*BERTKIT, *TRAINERS])
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--family", choices=PEERS, default="text-classification")
    parser.add_argument(
        "--data",
        required=True,
        help="JSON lines with text, maybe text_pair, and label (a number); tokens, tags; id, question, context, answers; lines "
        f"and, in a folder of that name with {CORPUS} behind it, a corpus of the same text",
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True, help="steps that do not count")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--size", choices=SIZES, default="minilm", help="of pre-training, which begins with fresh weights")
    parser.add_argument("--micro-batch-tokens", type=int, help="of bertkit: what it computes at once")
    parser.add_argument("--doc-stride", type=int, default=128, help="of question answering")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--off", help=f"comma-separated, what bertkit is to do without: {', '.join(LEVERS)}")
    options = parser.parse_args()
    timed = time_bertkit(options) if options.side in BERTKIT else time_trainer(options)

    import torch

    found = {**summary(timed), "peak_rss_mib": peak_rss_mib(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
