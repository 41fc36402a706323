"""bertkit on a GPU: the tests marked gpu, and speed and memory of training and prediction, compared with transformers.

Writes results/bench_gpu.json. Weights are random, of BERT-base's and BERT-large's size, and texts consist of made-up words, so
no network is needed. Each row runs in its own process; if stopped, the same command continues with the missing rows. Run it
with `make bench-gpu`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.files import read_json
from scripts import markdown
from scripts.bench.timed_training import BERTKIT, CORPUS
from scripts.bench.trainer_peers import SIZES, TRAINERS
from scripts.provenance import RESULTS, ROOT, provenance, write_result
from scripts.turns import run_script, typed

NAME = "bench_gpu"
WORK = ROOT / "build" / "bench_gpu"  # what is made once: models, texts, corpora
VOCAB_SIZE = 30522
STEPS, WARMUP = 40, 10
SEEDS = [1]
SECONDS = 300  # after which a row is given up, compiling and loading among them
CLASSES, TEXTS = 2, 4096

# The sides of each kind of work. The Trainer's are its fastest settings; all its rows of pre-training have one length.
SIDES = {
    "finetune": ("bertkit", "bertkit-compiled", "best", "grouped-compiled"),
    "pretrain": ("bertkit", "bertkit-compiled", "bf16", "compiled"),
    "predict": ("bertkit", "transformers"),
}
RECORDED = (
    "examples_per_s",
    "real_tokens_per_s",
    "tflops",
    "matrix_share",
    "waiting_share",
    "peak_gpu_mib",
    "precision",
    "gpu",
)
COLUMNS = {  # of what is recorded, those in the table: name and form
    "examples_per_s": ("examples/s", ".0f"),
    "real_tokens_per_s": ("real tokens/s", ".0f"),
    "tflops": ("TFLOP/s", ".0f"),
    "matrix_share": ("share of products' rate", ".0%"),
    "peak_gpu_mib": ("peak MiB", ".0f"),
}


@dataclass(frozen=True)
class Work:
    """kind: of SIDES. batch_size: of an optimizer step, which the device takes at once."""

    kind: str
    size: str
    max_length: int
    batch_size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}-{self.max_length}"


WORKS = [
    Work(kind, size, length, tokens // length)
    for kind, lengths in (("finetune", (128, 384)), ("pretrain", (128, 512)), ("predict", (128,)))
    for size, tokens in (("base", 32768), ("large", 16384))
    for length in lengths
]


def rows() -> list[tuple[Work, str]]:
    """Every work and side; what is compiled comes last, because it takes longest."""
    return sorted(((work, side) for work in WORKS for side in SIDES[work.kind]), key=lambda row: "compiled" in row[1])


# --- what the sides are given ------------------------------------------------------------------------------------------------


def make_model(size: str, folder: Path) -> Path:
    """A model of this size with random weights, and a vocabulary of made-up words."""
    from bertkit.model.bert import BertModel, initialize
    from bertkit.model.config import BertConfig
    from bertkit.model.directory import save_model
    from bertkit.text.tokenizer import Tokenizer

    path = folder / size
    if not (path / "config.json").is_file():
        path.mkdir(parents=True, exist_ok=True)
        (path / "vocab.txt").write_text("\n".join(_vocabulary()) + "\n", encoding="utf-8")
        config = BertConfig(vocab_size=VOCAB_SIZE, **SIZES[size])
        model = BertModel(config)
        initialize(model, config, seed=0)
        save_model(path, state_dict=model.state_dict(), config=config, tokenizer=Tokenizer.load(path), architecture="BertModel")
    return path


def _vocabulary() -> list[str]:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    return [*specials, *(f"w{number}" for number in range(VOCAB_SIZE - len(specials)))]


def make_texts(work: Work, model: Path, folder: Path) -> Path:
    """Labelled texts of a quarter of max_length up to all of it; of pre-training documents, and a corpus of them."""
    from bertkit.corpus.build import CorpusConfig, build_corpus

    path = folder / f"{work.kind}-{work.max_length}.jsonl"
    if path.is_file():
        return path
    rng = np.random.default_rng(0)
    words = _vocabulary()[6:]

    def text(count: int) -> str:
        return " ".join(words[at % len(words)] for at in rng.zipf(1.3, count).tolist())

    if work.kind == "pretrain":
        documents = [[f"{text(int(rng.integers(10, 40)))} ." for _ in range(40)] for _ in range(2000)]
        lines = path.with_suffix(".txt")
        lines.write_text("\n\n".join("\n".join(document) for document in documents), encoding="utf-8")
        build_corpus([str(lines)], model, Path(str(path) + CORPUS), CorpusConfig(sentences="lines"))
        made: list[dict[str, Any]] = [{"lines": document} for document in documents]
    else:
        lengths = rng.integers(work.max_length // 4, work.max_length - 2, TEXTS).tolist()
        made = [{"text": text(length), "label": number % CLASSES} for number, length in enumerate(lengths)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


def run_row(work: Work, side: str, *, steps: int, warmup: int, folder: Path) -> dict[str, Any]:
    """One row in a process of its own."""
    model = make_model(work.size, folder)
    data = make_texts(work, model, folder)
    named: dict[str, Any] = {"model": model, "data": data, "batch-size": work.batch_size, "max-length": work.max_length}
    if work.kind == "predict":
        return run_script("scripts.bench.timed_gpu_prediction", [side, *typed(named)], seconds=SECONDS)
    family = "pretraining" if work.kind == "pretrain" else "text-classification"
    named |= {"family": family, "size": work.size, "steps": steps, "warmup": warmup, "seed": SEEDS[0]}
    named["micro-batch-tokens"] = work.batch_size * work.max_length
    return run_script("scripts.bench.timed_training", [side, *typed(named)], seconds=SECONDS)


# --- the table ---------------------------------------------------------------------------------------------------------------


def label(side: str) -> str:
    names = {
        "bertkit": "bertkit",
        "bertkit-compiled": "bertkit, --compile",
        "transformers": "transformers, sdpa, sorted by length",
    }
    return names.get(side) or f"Trainer: {TRAINERS[side]}"


def render(values: Mapping[str, Any]) -> str:
    """A row each side of each work, and what bertkit's fastest is to the fastest peer; the card's name beside each."""
    table, ratios = [], []
    shown = {name: column for name, column in COLUMNS.items() if any(name in each for each in values["rows"].values())}
    for work in WORKS:
        found = {side: values["rows"].get(f"{work.name}/{side}") for side in SIDES[work.kind]}
        there = {side: each for side, each in found.items() if each}
        for side, each in there.items():
            cells = [format(each[name], form) if name in each else "-" for name, (_, form) in shown.items()]
            table.append([work.name, label(side), *cells, each.get("gpu", "no GPU")])
        cards = {each.get("gpu") for each in there.values()}
        rates = {side: each["real_tokens_per_s"] for side, each in there.items()}
        ours, theirs = ({side: rate for side, rate in rates.items() if (side in BERTKIT) == own} for own in (True, False))
        if ours and theirs and len(cards) == 1:  # a run may have been resumed on another GPU
            first, second = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
            ratio = f"**{ours[first] / theirs[second]:.2f}**"
            ratios.append([work.name, f"{label(first)} to {label(second)}", ratio])
    columns = ["work", "side", *(name for name, _ in shown.values()), "GPU"]
    note = f"{len(table)} of {len(rows())} rows are measured. The tests marked gpu: {values['tests']}."
    return markdown.block(
        [{**values, "seeds": SEEDS, "model": {"name": "random weights"}}],
        markdown.table(columns, table, numbers_from=2),
        markdown.table(["work", "real tokens/s", "ratio"], ratios, numbers_from=2),
        [note],
    )


# --- the command -------------------------------------------------------------------------------------------------------------


def run_tests() -> str:
    """The tests marked gpu; returns pytest's last line. Files without such tests are not imported."""
    marked = [
        str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-n", "auto", "--maxprocesses", "8", "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *marked], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return last.strip("= ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated beginnings of rows' names, such as finetune-base,predict")
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests marked gpu")
    options = parser.parse_args()
    import torch

    from bertkit import progress

    if not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU here\nhint: `make bench` measures on a CPU")
    command = ["python -m scripts.bench.gpu"]
    values: dict[str, Any] = {"name": NAME, "command": command, "seeds": SEEDS, **provenance(), "tests": "not run", "rows": {}}
    before = read_json(RESULTS / f"{NAME}.json")
    if before.get("commit") == values["commit"] and not options.again:
        values |= {"tests": before["tests"], "rows": before["rows"]}
    if not options.no_tests and not re.match(r"\d+ passed", values["tests"]):
        values["tests"] = run_tests()
        progress.note(f"tests marked gpu: {values['tests']}")
        write_result(NAME, values)
    beginnings = tuple(filter(None, options.only.split(","))) or ""
    for work, side in rows():
        key = f"{work.name}/{side}"
        if key in values["rows"] or not key.startswith(beginnings):
            continue
        try:
            found = run_row(work, side, steps=STEPS, warmup=WARMUP, folder=WORK)
        except SystemExit as error:  # one side that fails, for lack of memory say, does not cost the others
            progress.warn(f"{key}: {str(error).splitlines()[-1]}")
            continue
        values["rows"][key] = {name: found[name] for name in RECORDED if name in found}
        write_result(NAME, values)
        progress.note(f"{key}: {found['real_tokens_per_s']:.0f} real tokens/s")
    print(render(values))


if __name__ == "__main__":
    main()
