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


class Setting(NamedTuple):
    """How a user of transformers can set the Trainer without code of her own.

    padded: every row to max_length, as run_glue.py does; else to the longest of its batch, as run_ner.py does, and run_qa.py
    with --pad_to_max_length false. grouped: rows of similar length in a batch. compiled: by torch.compile.
    """

    padded: bool = False
    grouped: bool = False
    bf16: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        to = "pad to max_length" if self.padded else "pad to the longest of the batch"
        grouped, compiled = (", grouped by length" if self.grouped else ""), (", compiled" if self.compiled else "")
        return f"{to}{grouped}, {'bf16' if self.bf16 else 'fp32'}{compiled}"


TRAINERS = {
    "default": Setting(padded=True),
    "dynamic": Setting(),
    "grouped": Setting(grouped=True),
    "best": Setting(grouped=True, bf16=True),
    "bf16": Setting(padded=True, bf16=True),
    "compiled": Setting(padded=True, bf16=True, compiled=True),
    "grouped-compiled": Setting(grouped=True, bf16=True, compiled=True),
}
# side -> its options
BERTKIT: dict[str, dict[str, Any]] = {
    "bertkit": {},
    "bertkit-fp32": {"precision": "fp32"},
    "bertkit-compiled": {"compile": True},
}


# Architectures that are pre-trained from fresh weights: MiniLM-L6's, and BERT's two.
SIZES: dict[str, dict[str, Any]] = {
    "minilm": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
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


# --- what the peers train on: model, encoded rows and collator ---------------------------------------------------------------


def peer_classification(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Texts or pairs, as run_glue.py has them."""
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, default_data_collator

    padded = TRAINERS[options.side].padded

    def encode(rows: dict[str, list]) -> Any:
        texts = (rows["text"], rows["text_pair"]) if "text_pair" in rows else (rows["text"],)
        return tokenizer(*texts, padding="max_length" if padded else False, max_length=options.max_length, truncation=True)

    rows = raw.map(encode, batched=True, remove_columns=[name for name in ("text", "text_pair") if name in raw.column_names])
    labels = len(set(rows["label"]))
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=labels, attn_implementation="sdpa")
    return model, rows, default_data_collator if padded else DataCollatorWithPadding(tokenizer)


def peer_tagging(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Words and their tags, as run_ner.py has them: the first piece of a word has its tag, the others none."""
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    number = {tag: at for at, tag in enumerate(sorted({tag for tags in raw["tags"] for tag in tags}))}

    def encode(rows: dict[str, list]) -> Any:
        encoded = tokenizer(rows["tokens"], max_length=options.max_length, truncation=True, is_split_into_words=True)
        encoded["labels"] = []
        for at, tags in enumerate(rows["tags"]):
            words = encoded.word_ids(batch_index=at)
            first = [word is not None and word != before for before, word in itertools.pairwise([None, *words])]
            encoded["labels"].append([number[tags[word]] if begins else -100 for word, begins in zip(words, first)])
        return encoded

    rows = raw.map(encode, batched=True, remove_columns=raw.column_names)
    model = AutoModelForTokenClassification.from_pretrained(options.model, num_labels=len(number), attn_implementation="sdpa")
    return model, rows, DataCollatorForTokenClassification(tokenizer)


def peer_answering(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Windows of questions and contexts with their first answer, as run_qa.py has them.

    Its doc_stride is how far two windows overlap, where Google's and ours is how far one begins behind the other.
    """
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    def encode(rows: dict[str, list]) -> Any:
        windows = tokenizer(
            [question.lstrip() for question in rows["question"]],
            rows["context"],
            truncation="only_second",
            max_length=options.max_length,
            stride=options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        examples, offsets = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
        windows["start_positions"], windows["end_positions"] = [], []
        for at, example in enumerate(examples):
            answers = rows["answers"][example]
            first = last = 0  # [CLS], where the answer is not in the window
            if answers["answer_start"]:
                start = answers["answer_start"][0]
                end = start + len(answers["text"][0])
                inside = [place for place, segment in enumerate(windows.sequence_ids(at)) if segment == 1]
                if inside and offsets[at][inside[0]][0] <= start and offsets[at][inside[-1]][1] >= end:
                    first = max(place for place in inside if offsets[at][place][0] <= start)
                    last = min(place for place in inside if offsets[at][place][1] >= end)
            windows["start_positions"].append(first)
            windows["end_positions"].append(last)
        return windows

    rows = raw.map(encode, batched=True, remove_columns=raw.column_names)
    model = AutoModelForQuestionAnswering.from_pretrained(options.model, attn_implementation="sdpa")
    return model, rows, DataCollatorWithPadding(tokenizer)


def peer_pretraining(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Pairs of segments filled up to max_length, half of them from anywhere; 15% of the tokens masked, all padded.

    raw: documents, as lists of sentences. The collator is that of run_mlm.py, beside which transformers has none that knows
    next sentences.
    """
    import random

    from datasets import Dataset
    from transformers import BertConfig, BertForPreTraining, DataCollatorForLanguageModeling

    rng = random.Random(options.seed)
    encoded = [tokenizer(lines, add_special_tokens=False)["input_ids"] for lines in raw["lines"]]
    rows: list[dict[str, Any]] = []
    while len(rows) < options.batch_size * (options.steps + 1):
        document = rng.choice(encoded)
        tokens = list(itertools.chain.from_iterable(document[rng.randrange(len(document)) :]))
        first = rng.randint(1, options.max_length - 4)
        wanted = options.max_length - 3 - first
        follows = rng.random() < 0.5
        other = tokens[first:] if follows else list(itertools.chain.from_iterable(rng.choice(encoded)))
        if len(tokens) < first or not other:
            continue
        second = other[:wanted]
        ids = [tokenizer.cls_token_id, *tokens[:first], tokenizer.sep_token_id, *second, tokenizer.sep_token_id]
        segments = [0] * (first + 2) + [1] * (len(second) + 1)
        rows.append({"input_ids": ids, "token_type_ids": segments, "next_sentence_label": int(not follows)})
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, pad_to_multiple_of=options.max_length)
    model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), attn_implementation="sdpa", **SIZES[options.size]))
    return model, Dataset.from_list(rows), collator


PEERS: dict[str, Callable[[Any, Any, argparse.Namespace], tuple[Any, Any, Any]]] = {
    "text-classification": peer_classification,
    "token-classification": peer_tagging,
    "question-answering": peer_answering,
    "pretraining": peer_pretraining,
}


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
