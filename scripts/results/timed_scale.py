"""One process's part of a large pre-training run: the cost of its share of the steps, the time to resume, and the time that
training waits for a checkpoint; and the last pass over a large corpus: finding duplicates, and writing shards.

The corpus is synthetic: 10,000 shards of 4 million tokens, which are links to a few. Process 17 of 64 makes its share of steps
that take in 300,000 tokens/s for each process. The run is resumed at a step that the sampler has already reached once from the
beginning; it must get the same sequences there. Checkpoints are those of BERT-large with random weights, whose steps consist
only of the update. Prints one line of JSON.

Duplicates: --documents of one token each, one in ten of which repeats an earlier one, are merged until the first shard is
written; peak_mb is the process's peak memory. Splits: --shards of --tokens, with 1% of documents held out, are merged by 1 and
by 2 processes. Duplicates also runs with an older bertkit in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

DISTINCT = 8  # shards; the others are links to them
RATE = 300_000  # tokens/s of a process
RANK, WORLD_SIZE = 17, 64
SHAPES = ((4096, 128), (4096 * 64, 128), (4096, 512))  # sequences of a step, and tokens of each
WINDOWS = 3  # over which a share is timed
VOCAB_SIZE = 30_522
TINY_PER_SHARD = 2**16  # documents
TYPED = "--objective mlm+nsp --max-length 128 --batch-size 256 --seed 1 --device cpu --precision fp32"
SIZE = "--hidden-size 64 --num-hidden-layers 1"
STOPPED = """
import os, signal, sys
from bertkit.cli import main
from bertkit.training import loop
loop.seed_dropout = lambda module, seed, step, micro_step, rank: micro_step or os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(sys.argv[1:]))
"""
# The command itself; it ends once its first batches are there.
COMMAND = """
import hashlib, os, sys, time
from bertkit.cli import main
from bertkit.training import loop
made = loop.prefetched
def first(*arguments):
    for batches in made(*arguments):
        tokens = b"".join(batch.input_ids.numpy().tobytes() for batch in batches)
        print("FIRST", time.time(), hashlib.sha256(tokens).hexdigest(), flush=True)
        os._exit(0)
loop.prefetched = first
main(sys.argv[1:])
"""


# A merge up to its first shard.
MERGE = """
import json, os, re, sys, time
from pathlib import Path
from bertkit.corpus.build import merge_corpora
from bertkit.corpus.shard import Shard
def peak_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
def stop(*_):
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb(), "imports_mb": imported}), flush=True)
    os._exit(0)
Shard.take = stop
imported, start = peak_mb(), time.perf_counter()
merge_corpora([Path(sys.argv[1])], Path(sys.argv[2]))
"""


def synthetic_shard(seed: int, tokens: int) -> Any:
    """Sentences of about 25 tokens in documents of about 1,000, both with a long tail, as an encyclopaedia has them."""
    from bertkit.corpus.shard import Shard
    from bertkit.features import offsets_of

    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.1, 0.5, tokens // 10), 3, 200).astype(np.int64)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), tokens)]
    documents = offsets_of(np.clip(rng.lognormal(3.4, 1.0, len(lengths)), 1, 3000).astype(np.int64))
    documents = np.append(documents[documents < len(lengths)], len(lengths))
    input_ids = (5 + (VOCAB_SIZE - 5) * rng.random(lengths.sum()) ** 3).astype(np.uint16)
    word_starts = np.packbits(rng.random(len(input_ids)) < 0.8)
    return Shard(
        input_ids, word_starts, offsets_of(lengths), documents, rng.integers(0, 2**63, len(documents) - 1).astype(np.uint64)
    )


def write_vocabulary(folder: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"t{n}" for n in range(5, VOCAB_SIZE))]) + "\n", encoding="utf-8")


def write_corpus(folder: Path, shards: int, tokens: int) -> None:
    """A corpus as `bertkit corpus build` leaves it, with one shard of a hundred held out."""
    from bertkit.manifest import write_folder

    made = [synthetic_shard(number, tokens) for number in range(DISTINCT)]
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "validation": []}
    for number in range(shards + shards // 100):
        split = "train" if number < shards else "validation"
        name = f"{split}-{len(splits[split]):05d}"
        if number < DISTINCT:
            write_folder(folder / name, made[number].save)
        else:
            (folder / name).mkdir()
            for file in (folder / f"train-{number % DISTINCT:05d}").iterdir():
                os.link(file, folder / name / file.name)
        splits[split].append({"name": name, **made[number % DISTINCT].counts()})
    describe(folder, splits)


def describe(folder: Path, splits: dict[str, list[dict[str, Any]]], **config: Any) -> None:
    """The tokenizer and meta.json of a corpus with these shards."""
    from bertkit.corpus.build import CorpusConfig
    from bertkit.corpus.directory import FORMAT, META
    from bertkit.files import json_text, write_files
    from bertkit.text.tokenizer import Tokenizer

    model = folder / "model"
    model.mkdir(parents=True)
    write_vocabulary(model)
    tokenizer = Tokenizer.load(model)
    names = ("documents", "sentences", "tokens")
    totals = {split: {name: sum(shard[name] for shard in found) for name in names} for split, found in splits.items()}
    values = {name: getattr(tokenizer, name) for name in ("fingerprint", "vocab_hash", "vocab_size")}
    documents = {"read": sum(each["documents"] for each in totals.values()), "short": 0, "duplicates": 0}
    meta = {
        "format": FORMAT,
        "tokenizer": values,
        **asdict(CorpusConfig(**config)),
        "sources": [{"name": "made up", "bytes": 0}],
    }
    meta |= {"documents": documents, "hashes": "0" * 16}
    meta |= {name: {**totals[name], "shards": [{"source": 0, **shard} for shard in found]} for name, found in splits.items()}
    write_files(folder, {**tokenizer.files(), META: json_text(meta)})


def write_train(folder: Path, shards: Iterable[Any], **config: Any) -> None:
    """A corpus with these shards, all of the train split."""
    from bertkit.manifest import write_folder

    found = []
    for number, shard in enumerate(shards):
        write_folder(folder / f"train-{number:05d}", shard.save)
        found.append({"name": f"train-{number:05d}", **shard.counts()})
    describe(folder, {"train": found, "validation": []}, **config)


def tiny_documents(count: int) -> Iterator[Any]:
    """Shards of documents of one token; the hash of each tenth one is that of an earlier one, all others differ."""
    from bertkit.corpus.shard import Shard

    for begin in range(0, count, TINY_PER_SHARD):
        numbers = np.arange(begin, min(begin + TINY_PER_SHARD, count), dtype=np.uint64)
        offsets = np.arange(len(numbers) + 1)
        while (repeats := numbers % 10 == 9).any():
            numbers[repeats] //= 2
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # splitmix64, one to one
            numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
        ids = np.full(len(offsets) - 1, 5, dtype=np.uint16)
        yield Shard(ids, np.packbits(ids > 0), offsets, offsets, numbers)


def time_duplicates(folder: Path, documents: int) -> dict[str, Any]:
    """Seconds and memory of a process that finds the duplicates, up to the first shard written; and how many it has found."""
    write_train(folder / "corpus", tiny_documents(documents))
    command = [sys.executable, "-c", MERGE, str(folder / "corpus"), str(folder / "merged")]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    decided = folder / "merged" / "building" / "decided" / "parts.json"
    found = json.loads(decided.read_text(encoding="utf-8"))["documents"]["duplicates"] if decided.is_file() else None
    return {"documents": documents, **json.loads(out), "duplicates": found}


def time_splits(folder: Path, shards: int, tokens: int) -> dict[str, Any]:
    """Seconds to merge a corpus, by the number of processes; the files must be the same."""
    from bertkit.corpus.build import merge_corpora
    from bertkit.files import files_in, sha256_of

    write_train(folder / "corpus", (synthetic_shard(number, tokens) for number in range(shards)), held_out=0.01)
    seconds, sums = {}, set()
    for processes in (1, 2):
        how: dict[str, Any] = {"num_processes": processes} if processes > 1 else {}
        begun = time.perf_counter()
        merge_corpora([folder / "corpus"], folder / "merged", **how)
        seconds[str(processes)] = round(time.perf_counter() - begun, 1)
        sums.add(tuple(sha256_of(path) for path in files_in(folder / "merged")))
        shutil.rmtree(folder / "merged")
    megabytes = sum(path.stat().st_size for path in files_in(folder / "corpus")) // 10**6
    return {"shards": shards, "tokens": tokens, "mb": megabytes, "seconds_by_processes": seconds, "same": len(sums) == 1}


def open_sampler(corpus: Path, batch_size: int, max_length: int, **more: Any) -> Any:
    from bertkit.config import PretrainConfig
    from bertkit.corpus.corpora import open_corpora
    from bertkit.runs.pretraining.sequences import sampler_of
    from bertkit.text.tokenizer import Tokenizer

    config = PretrainConfig.of({"batch_size": batch_size, "max_length": max_length, "seed": 1, **more})
    return sampler_of(open_corpora([corpus])[0], "train", Tokenizer.load(corpus), config, max_length)


def time_share(corpus: Path, batch_size: int, max_length: int, **more: Any) -> dict[str, Any]:
    """Of one process, at the rate of a large run: what share of a core it needs, by the time of all its threads; and what of
    that time is its own sequences'."""
    from bertkit.runs.pretraining.sequences import micro_batches

    sampler = open_sampler(corpus, batch_size, max_length, **more)
    make = partial(micro_batches, sampler, limit=16_384, rank=RANK, world_size=WORLD_SIZE)
    made, own, step = 0, 0.0, 0
    start, begun = time.process_time(), time.perf_counter()
    while sampler.mark_at(step * batch_size).window < WINDOWS:
        thread = time.thread_time()
        tokens = sum(len(batch.input_ids) for batch in make(sampler.numbers_at(step)))
        own += time.thread_time() - thread
        made += tokens
        step += 1
    seconds, wall = time.process_time() - start, time.perf_counter() - begun
    return {
        "batch_size": batch_size,
        "max_length": max_length,
        **more,
        "share_of_a_core": round(seconds / (made / RATE), 3),
        "of_it_own_sequences": round(own / (made / RATE), 3),
        "own_tokens_per_core_second": round(made / seconds),
        "global_tokens_per_s": round(made * WORLD_SIZE / wall),
    }


def time_resume(corpus: Path, folder: Path, step: int) -> dict[str, Any]:
    """Seconds from the start of the command to the batches of its first step."""
    from hashlib import sha256

    from bertkit.manifest import Manifest
    from bertkit.runs.pretraining.sequences import micro_batches
    from bertkit.training.state import read_progress

    run = folder / "run"
    command = ["pretrain", str(corpus), *TYPED.split(), *SIZE.split(), "--max-steps", str(step + 10), "-o", str(run)]
    subprocess.run([sys.executable, "-c", STOPPED, *command], check=False)
    begun = time.perf_counter()
    sampler = open_sampler(corpus, 256, 128)
    batches = micro_batches(sampler, sampler.numbers_at(step), limit=16_384, rank=0, world_size=1)
    tokens = b"".join(batch.input_ids.numpy().tobytes() for batch in batches)
    drawing = time.perf_counter() - begun
    checkpoint = (run / "checkpoint-1").rename(run / f"checkpoint-{step}")
    progress = checkpoint / "training" / "progress.json"
    values = json.loads(progress.read_text(encoding="utf-8"))
    values |= {"step": step, "position": [0, *sampler.mark_at(256 * step)]}
    progress.write_text(json.dumps(values), encoding="utf-8")
    (checkpoint / "manifest.json").write_text(Manifest.of(checkpoint).text, encoding="utf-8")
    assert read_progress(checkpoint).step == step
    start = time.time()
    out = subprocess.run([sys.executable, "-c", COMMAND, *command], capture_output=True, text=True, check=False)
    line = next((line.split() for line in out.stdout.splitlines() if line.startswith("FIRST")), None)
    if line is None:
        raise SystemExit(f"error: the resumed run did not begin: {out.stderr[-2000:]}")
    same = line[2] == sha256(tokens).hexdigest()
    return {
        "step": step,
        "window": values["position"][1],
        "resumed_s": round(float(line[1]) - start, 2),
        "same": same,
        "from_zero_s": round(drawing, 1),
    }


def time_saves(folder: Path, size: str) -> dict[str, Any]:
    """Seconds that training waits for a checkpoint, the first and the second, and for one that it waits for to the end; seconds
    that the writer takes to get its memory, and to write, and those of a step meanwhile; and of copies to memory that was not
    there before, and to the same again."""
    import torch

    from bertkit.config import TrainConfig, filled
    from bertkit.model.config import BertConfig
    from bertkit.model.directory import save_model
    from bertkit.model.language_model import BertForPreTraining
    from bertkit.text.tokenizer import Tokenizer
    from bertkit.training.checkpoint import verify_checkpoint
    from bertkit.training.optimizer import Optimizer
    from bertkit.training.state import TrainState
    from bertkit.training.writer import CheckpointWriter, HostCopies

    config = BertConfig.of_size(size, vocab_size=VOCAB_SIZE)
    write_vocabulary(folder)
    tokenizer = Tokenizer.load(folder)
    module = BertForPreTraining(config)
    optimizer = Optimizer(module, filled(TrainConfig(precision="fp32", learning_rate=1e-4)))
    gradients = {name: torch.rand_like(parameter) for name, parameter in optimizer.parameters.items()}
    reserved: list[float] = []
    written: list[float] = []

    def step() -> float:
        begun = time.perf_counter()
        for name, parameter in optimizer.parameters.items():
            parameter.grad = gradients[name]
        optimizer.step(1e-4)
        return time.perf_counter() - begun

    def write_model(folder: Path, state_dict: Any) -> None:
        save_model(folder, state_dict=state_dict, config=config, tokenizer=tokenizer, architecture="BertForPreTraining")

    class Timed(CheckpointWriter):
        def _reserve(self) -> None:
            begun = time.perf_counter()
            super()._reserve()
            reserved.append(time.perf_counter() - begun)

        def _write(self, *arguments: Any, **more: Any) -> None:
            begun = time.perf_counter()
            super()._write(*arguments, **more)
            written.append(time.perf_counter() - begun)

    step()
    alone = min(step() for _ in range(3))
    copied: list[float] = []
    copies = HostCopies()
    for _ in range(2):
        begun = time.perf_counter()
        copies.take({**optimizer.weights(), **optimizer.state()})
        copied.append(time.perf_counter() - begun)
    del copies
    waited: list[float] = []
    meanwhile: list[float] = []
    run = folder / "run"
    run.mkdir()
    with Timed(run, optimizer, lambda _: write_model, keep="1") as writer:
        while not reserved:
            step()
        for number in (1, 2):
            begun = time.perf_counter()
            writer.save(asdict(TrainState(step=number)), best=True)
            waited.append(time.perf_counter() - begun)
            while len(written) < number:
                meanwhile.append(step())
        begun = time.perf_counter()
        writer.save(asdict(TrainState(step=3)), best=True)
        writer.wait()
        at_once = time.perf_counter() - begun
    verify_checkpoint(run / "checkpoint-3")
    on_disk = {path.stat().st_ino: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    return {
        "parameters": sum(parameter.numel() for parameter in optimizer.parameters.values()),
        "waited_s": [round(seconds, 2) for seconds in waited],
        "waited_to_the_end_s": round(at_once, 1),
        "memory_s": round(reserved[0], 2),
        "writer_s": [round(seconds, 1) for seconds in written],
        "bytes": sum(on_disk.values()),
        "step_s": round(alone, 2),
        "steps_meanwhile": len(meanwhile),
        "step_meanwhile_s": [round(each, 2) for each in (statistics.median(meanwhile), max(meanwhile))],
        "copied_to_new_memory_s": round(copied[0], 2),
        "copied_again_s": round(copied[1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of a shard")
    parser.add_argument("--step", type=int, default=1_000_000, help="at which the run is resumed")
    parser.add_argument("--documents", type=int, default=10_000_000, help="with --only duplicates")
    parser.add_argument("--model-size", default="large", help="of the model that is saved")
    parser.add_argument("--only", choices=["share", "resume", "save", "duplicates", "splits"])
    options = parser.parse_args()
    wanted = [options.only] if options.only else ["share", "resume", "save"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "save" in wanted:
            found["save"] = time_saves(Path(folder), options.model_size)
        if "duplicates" in wanted:
            found["duplicates"] = time_duplicates(Path(folder), options.documents)
        if "splits" in wanted:
            found["splits"] = time_splits(Path(folder), options.shards, options.tokens)
        corpus = Path(folder) / "corpus"
        if {"share", "resume"} & {*wanted}:
            write_corpus(corpus, options.shards, options.tokens)
        if "share" in wanted:
            found["share"] = [time_share(corpus, *shape) for shape in SHAPES]
            found["share"].append(time_share(corpus, *SHAPES[0], masking="whole-word"))
        if "resume" in wanted:
            found["resume"] = time_resume(corpus, Path(folder), options.step)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
