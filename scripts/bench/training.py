"""Speed and memory of training, compared with the Trainer of transformers.

Writes results/bench.json for text classification, results/bench_families.json for tags and answers, and
results/bench_pretraining.json. Where --precision auto is fp32, the names end in _fp32.

Every side runs in a fresh process; sides take turns, on the same rows, weights, batch size, steps and seeds. The result is the
ratio of the medians over the rounds. Run it with `make bench`, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.corpus import measure_corpus
from scripts.bench.task_rows import read_columns
from scripts.bench.timed_training import CORPUS
from scripts.bench.trainer_peers import SIZES, TRAINERS
from scripts.provenance import named_here, provenance
from scripts.turns import add_data, keep, run_script, take_turns, typed

MODEL = "minilm"
MEASURES = ("examples_per_s", "real_tokens_per_s", "peak_rss_mib")

# What is kept of a run, to how many digits; of ours also how much of a step its batches took, the precision, and the share of
# the rate of plain matrix products.
RECORDED = {**dict.fromkeys(MEASURES, 2), "waiting_share": 4, "precision": None, "matrix_share": 3}

NAMES = {
    "bertkit": "bertkit",
    "bertkit-fp32": "bertkit, fp32",
    "default": f"(a) Trainer: {TRAINERS['default']}",
    "dynamic": f"(b) Trainer: {TRAINERS['dynamic']}",
    "grouped": f"(c) Trainer: {TRAINERS['grouped']}",
    "best": f"(d) Trainer: {TRAINERS['best']}",
    "bf16": f"(e) Trainer: {TRAINERS['bf16']}",
}
HOPELESS = 0.5  # times fp32's rate of products: below it no side is run in bf16
FASTEST = "fastest"  # in place of a side: the fastest of the task's peers on this machine
# One round: ours and theirs in turn.
ORDER = ("default", "bertkit", "best", "bertkit-fp32", "grouped", "dynamic")
SHORT_ORDER = ("dynamic", "bertkit", "best", "bertkit-fp32", "grouped")
PRETRAINING_ORDER = ("default", "bertkit", "bf16", "bertkit-fp32")
GROUPED = ("grouped", "best")


@dataclass(frozen=True)
class Workload:
    """What both sides of a task are given. folder: of its data below --data. result: the file it is written to.

    rows: the first so many of the training data; None = all. steps: optimizer steps of a run, warm-up among them. size: of
    fresh weights. measure: what is asked of the ratio. peers: the settings of the Trainer of which the fastest is the peer.
    """

    family: str
    folder: str
    result: str
    order: tuple[str, ...]
    batch_size: int
    max_length: int
    steps: int
    rows: int | None = None
    size: str | None = None
    measure: str = "examples_per_s"
    peers: tuple[str, ...] = GROUPED


def _pretraining(size: str, batch_size: int, max_length: int) -> Workload:
    """Peers fill sequences up, where ours end with their document or are short on purpose: what counts is tokens.

    Their rows are all of one length, and are not grouped.
    """
    text, order, measure, peers = (
        "text-en/imdb-reviews-unsup.txt.xz",
        PRETRAINING_ORDER,
        "real_tokens_per_s",
        ("default", "bf16"),
    )
    return Workload("pretraining", text, "bench_pretraining", order, batch_size, max_length, 13, 4000, size, measure, peers)


# Batches grouped by length come from long to short, up to 50 a time: of 50 timed steps as many are long as short.
TASKS = {
    "mrpc": Workload("text-classification", "GLUE/MRPC", "bench", ORDER, 32, 128, 53),
    "sst2": Workload("text-classification", "GLUE/SST-2", "bench", ORDER, 32, 128, 53),
    "conll2003": Workload("token-classification", "CoNLL2003", "bench_families", SHORT_ORDER, 32, 128, 103),
    "squad": Workload("question-answering", "SQuAD", "bench_families", SHORT_ORDER, 16, 384, 53, rows=4000),
    "pretrain_128": _pretraining("minilm", 32, 128),
    "pretrain_512": _pretraining("minilm", 8, 512),
    "pretrain_base": _pretraining("base", 8, 128),
}
COMPARED = (
    ("bertkit", "default"),
    ("bertkit", "dynamic"),
    ("bertkit", "best"),
    ("bertkit", "bf16"),
    ("bertkit", FASTEST),
    ("bertkit-fp32", "default"),
    ("bertkit-fp32", "dynamic"),
)
# The least ratio of the task's measure that we ask of ourselves, by our precision where it matters.
BY_PRECISION = {"fp32": 1.3, "bf16": 1.4}
NEEDED: dict[tuple[str, str, str], float | dict[str, float]] = {
    ("mrpc", "bertkit", "default"): 3.0,
    ("mrpc", "bertkit", "best"): 0.9,
    ("sst2", "bertkit", "default"): 8.0,
    ("conll2003", "bertkit", "dynamic"): 2.0,
    ("squad", "bertkit", "dynamic"): 2.0,
    ("pretrain_128", "bertkit", "default"): 4.0,
    ("pretrain_128", "bertkit", "bf16"): 2.5,
    ("pretrain_512", "bertkit", "default"): 4.0,
    ("pretrain_512", "bertkit", "bf16"): 3.0,
    ("pretrain_base", "bertkit", "default"): 2.5,
    ("pretrain_base", "bertkit", "bf16"): 1.6,
    ("mrpc", "bertkit", FASTEST): BY_PRECISION,
    ("sst2", "bertkit", FASTEST): BY_PRECISION,
    ("conll2003", "bertkit", FASTEST): 1.5,
    ("squad", "bertkit", FASTEST): 1.5,
    ("pretrain_128", "bertkit", FASTEST): 2.0,
    ("pretrain_512", "bertkit", FASTEST): 3.0,
}
# Where our precision is one of these; docs/speed.md says why.
NOT_REACHED = {
    ("sst2", "bertkit", FASTEST): ("fp32",),
    ("conll2003", "bertkit", FASTEST): ("bf16", "fp32"),
    ("pretrain_128", "bertkit", "default"): ("fp32",),
    ("pretrain_base", "bertkit", "default"): ("fp32",),
}
# By the size of the model, "base" or MiniLM's, and our precision: the least share of the rate of plain matrix products.
SHARE_NEEDED = {("base", "fp32"): 0.8, ("base", "bf16"): 0.7, ("minilm", "fp32"): 0.72, ("minilm", "bf16"): 0.62}
MOST_MEMORY = {("pretrain_128", "bertkit", "default"): 0.6}
STEPS_OF_ONE_SHAPE = 10  # (a) and (f) pad every batch to the same shape: more timed steps would say no more, and take minutes


def write_rows(task: str, data: str | None, path: Path) -> int:
    """The training rows of a task as JSON lines that both sides read; labels of texts as numbers. Returns how many.

    Of pre-training they are documents, from which a corpus is built too.

    data: the folder that holds the folders of the data sets; without it they come from the hub.
    """
    workload = TASKS[task]
    if workload.family == "pretraining":
        return _write_documents(workload, data, path)
    fitted, columns = read_columns(task, workload.folder, data, rows=workload.rows)
    if workload.family == "text-classification":
        columns["label"] = [fitted.labels.index(label) for label in columns["label"]]
    if workload.family == "question-answering":
        columns["answers"] = [
            {"text": [text for text, _ in its], "answer_start": [start for _, start in its]} for its in columns["answers"]
        ]
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def _write_documents(workload: Workload, data: str | None, path: Path) -> int:
    from bertkit.corpus.build import CorpusConfig, build_corpus
    from bertkit.corpus.sentences import split_sentences
    from bertkit.errors import UsageError
    from bertkit.model.directory import resolve
    from bertkit.readers.documents import Documents
    from bertkit.readers.text_sources import look_for

    if data is None:
        raise UsageError("the text of pre-training is not on the hub", hint=f"--data DIR with {workload.folder}")
    (source,) = look_for([str(Path(data) / workload.folder)]).sources.values()
    documents = [
        [sentence for line in document.lines for sentence in split_sentences(line)]
        for _, document in zip(range(workload.rows or 0), Documents(source), strict=False)
    ]
    path.write_text("".join(json.dumps({"lines": lines}) + "\n" for lines in documents), encoding="utf-8")
    text = path.with_suffix(".txt")
    text.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    build_corpus([str(text)], resolve(MODEL), Path(str(path) + CORPUS), CorpusConfig(sentences="lines"))
    return len(documents)


def run_side(
    side: str, task: str, *, model: Path, data: Path, steps: int, warmup: int, seed: int, off: str | None = None
) -> dict[str, Any]:
    """One timed training in a fresh process. off: levers of bertkit's side that are switched off."""
    workload = TASKS[task]
    named = {"family": workload.family, "model": model, "data": data, "steps": steps, "warmup": warmup, "seed": seed}
    named |= {"batch-size": workload.batch_size, "max-length": workload.max_length, "size": workload.size, "off": off}
    return run_script("scripts.bench.timed_training", [side, *typed(named)])


def sides_left_out(rates: Mapping[str, float]) -> list[str]:
    """Where products in bf16 are slower by far than in fp32: theirs in bf16, which would take hours, and ours in fp32, which is
    what auto is there. rates: GFLOP/s by precision.
    """
    if rates["bf16"] >= HOPELESS * rates["fp32"]:
        return []
    return ["bertkit-fp32", *(side for side in NAMES if side in TRAINERS and TRAINERS[side].bf16)]


def compare(task: str, sides: Mapping[str, Mapping[str, list[Any]]], left_out: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Ratios of medians, ours to theirs, for every pair of COMPARED that was run; and what was asked of it.

    Of the fastest peer, where all that are asked for it were run or left out, the row says which side it is, and among which.
    """
    workload = TASKS[task]
    of = {theirs: theirs for theirs in sides}
    peers = [peer for peer in workload.peers if peer not in left_out]
    if set(peers) <= set(sides):
        of[FASTEST] = max(peers, key=lambda side: statistics.median(sides[side][workload.measure]))
    rows = []
    for ours, theirs in COMPARED:
        if ours not in sides or theirs not in of:
            continue
        other = sides[of[theirs]]
        ratios = {m: round(statistics.median(sides[ours][m]) / statistics.median(other[m]), 3) for m in MEASURES}
        needed = NEEDED.get((task, ours, theirs))
        if isinstance(needed, Mapping):
            needed = needed[statistics.mode(sides[ours]["precision"])]
        row = {"ours": ours, "theirs": theirs, **ratios, "needed": needed}
        if theirs == FASTEST:
            row["side"] = of[theirs]
            if left_out:
                row["among"] = peers
        if most := MOST_MEMORY.get((task, ours, theirs)):
            row["most_memory"] = most
        rows.append(row)
    return rows


def side_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, side, and the median of every measure: a row each for a table."""
    return [
        [task, NAMES[side], *(statistics.median(measured[measure]) for measure in MEASURES)]
        for task, found in values["tasks"].items()
        for side, measured in found["sides"].items()
    ]


def ratio_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, sides, ratio of every measure, and the least ratio of its measure that was asked for: a row each for a table."""

    def mark(side: str) -> str:
        return NAMES[side].partition(" ")[0]

    def pair(task: str, row: Mapping[str, Any]) -> str:
        theirs = mark(row.get("side", row["theirs"]))
        if row["theirs"] == FASTEST:
            theirs = f"{theirs}, the fastest of {' and '.join(map(mark, row.get('among', TASKS[task].peers)))}"
        return f"{NAMES[row['ours']]} to {theirs}"

    return [
        [task, pair(task, row), *(row[measure] for measure in MEASURES), row["needed"]]
        for task, found in values["tasks"].items()
        for row in found["ratios"]
    ]


def shares(values: Mapping[str, Any]) -> dict[str, float]:
    """Of each task the share of the rate of plain matrix products that our side reaches."""
    ours = {task: found["sides"]["bertkit"] for task, found in values["tasks"].items()}
    return {task: statistics.median(side["matrix_share"]) for task, side in ours.items() if "matrix_share" in side}


def share_needed(values: Mapping[str, Any], task: str) -> float:
    """The share that was asked for."""
    return SHARE_NEEDED[TASKS[task].size or MODEL, statistics.mode(values["tasks"][task]["sides"]["bertkit"]["precision"])]


def show(values: dict[str, Any]) -> None:
    from bertkit import progress

    units = ("examples/s", "real tokens/s", "peak MiB")
    rows = [[*row[:2], round(row[2], 1), round(row[3]), round(row[4])] for row in side_rows(values)]
    progress.table("medians", ["task", "side", *units], rows)
    progress.table("ratios of medians", ["task", "ratio", *units, "needed"], ratio_rows(values))
    for task, share in shares(values).items():
        progress.note(f"{task}: {share:.0%} of the rate of plain matrix products (needed {share_needed(values, task):.0%})")
    if "corpus" in values:
        corpus = values["corpus"]["medians"]
        progress.table("corpus build and reading, one core", list(corpus[0]), [list(row.values()) for row in corpus])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folders = ", ".join(dict.fromkeys(workload.folder for workload in TASKS.values()))
    add_data(parser, folders)
    parser.add_argument(
        "--tasks",
        default=",".join(TASKS),
        help="comma-separated; a file of results is written where all of its tasks are run [%(default)s]",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; round N has seed N [%(default)s]")
    parser.add_argument("--steps", type=int, help="optimizer steps of a run, where not the task's own")
    parser.add_argument("--warmup", type=int, default=3, help="of these, steps that do not count [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of 4 steps: does it work at all? Nothing is written")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    if unknown := sorted(set(tasks) - set(TASKS)):
        parser.error(f"unknown tasks {', '.join(unknown)}; known: {', '.join(TASKS)}")
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 4, 1
    if min(options.steps or TASKS[task].steps for task in tasks) <= options.warmup or options.rounds < 1:
        parser.error("expected more steps than warm-up, and at least one round")

    for result in dict.fromkeys(TASKS[task].result for task in tasks):
        whole = [task for task, workload in TASKS.items() if workload.result == result]
        chosen = [task for task in whole if task in tasks]
        values = measure(result, chosen, options)
        show(values)
        is_whole = options.rounds >= 3 and not options.steps and chosen == whole
        keep(values, unless="" if is_whole else f"three rounds of {', '.join(whole)}, without --steps")


def measure(result: str, tasks: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """The tasks of one file of results, as it keeps them."""
    from bertkit import progress
    from bertkit.errors import UserError
    from bertkit.model.directory import MINILM_SHA256, resolve
    from bertkit.model.precision import measure_rates

    rates = measure_rates(*(SIZES[MODEL][name] for name in ("hidden_size", "intermediate_size")), training=True)[0]
    left_out = sides_left_out(rates)
    steps = {task: options.steps or TASKS[task].steps for task in tasks}
    flags = {"tasks": ",".join(tasks), "rounds": options.rounds, "steps": options.steps, "warmup": options.warmup}
    values: dict[str, Any] = {
        "name": named_here(result, rates),
        "command": [" ".join(["python -m scripts.bench.training", *typed(flags)])],
        **provenance(),
        "seeds": list(range(1, options.rounds + 1)),
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "rates": rates,
        "left_out": left_out,
        "tasks": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for task, total in steps.items():
            workload, data = TASKS[task], Path(folder) / f"{task}.jsonl"
            order = [side for side in workload.order if side not in left_out]
            try:
                model = resolve(MODEL)
                count = write_rows(task, options.data, data)
            except UserError as error:
                raise SystemExit(f"error: {error}\nhint: {error.hint or 'name a folder with --data'}") from None
            progress.note(f"{task}: {count} rows; {options.rounds} round(s) of {len(order)} sides, {total} steps each")

            def run(
                side: str, seed: int, task: str = task, data: Path = data, model: Path = model, total: int = total
            ) -> dict[str, float]:
                timed = min(total - options.warmup, STEPS_OF_ONE_SHAPE if side in ("default", "bf16") else total)
                number = options.warmup + timed
                return run_side(side, task, model=model, data=data, steps=number, warmup=options.warmup, seed=seed)

            def show_round(number: int, side: str, found: Mapping[str, Any]) -> None:
                rate = f"{found['examples_per_s']:7.1f} examples/s"
                progress.note(f"round {number}/{options.rounds}  {rate}  {NAMES[side]}")

            found = take_turns(run, order, options.rounds, RECORDED, show_round)
            sides = {side: found[side] for side in NAMES if side in found}
            timed = total - options.warmup
            values["tasks"][task] = {
                "rows": count,
                "batch_size": workload.batch_size,
                "max_length": workload.max_length,
                "timed_steps": timed,
                "timed_steps_of_a": min(timed, STEPS_OF_ONE_SHAPE) if "default" in sides else None,
                "sides": sides,
                "ratios": compare(task, sides, left_out),
            }
    if result == "bench_pretraining":
        values["corpus"] = measure_corpus(options.data, options.rounds)
    return values


if __name__ == "__main__":
    main()
