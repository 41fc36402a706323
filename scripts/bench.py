"""Speed and memory of training beside the Trainer of transformers, and start-up time.

It writes results/bench.json, of text classification, results/bench_families.json, of tags and answers, and
results/bench_pretraining.json.

Every side is a fresh process, one at a time and in turn, on the same rows, weights, batch size, steps and seeds. What counts is
the ratio of the medians over the rounds. Run it by `make bench`; a machine that does other work gives other numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import ROOT, provenance, write_result
from timed_corpus import EPOCHS
from timed_training import CORPUS, TRAINERS

TIMED_TRAINING = ROOT / "scripts" / "timed_training.py"
TIMED_CORPUS = ROOT / "scripts" / "timed_corpus.py"
MODEL = "minilm"
MEASURES = ("examples_per_s", "real_tokens_per_s", "peak_rss_mib")

NAMES = {
    "bertkit": "bertkit",
    "bertkit-fp32": "bertkit, fp32",
    "default": f"(a) Trainer as run_glue sets it: {TRAINERS['default']}",
    "dynamic": f"(b) Trainer: {TRAINERS['dynamic']}",
    "best": f"(e) Trainer: {TRAINERS['best']}",
    "bf16": f"(f) Trainer: {TRAINERS['bf16']}",
}
# One round: ours and theirs in turn.
ORDER = ("default", "bertkit", "best", "bertkit-fp32", "dynamic")
SHORT_ORDER = ("bertkit", "dynamic", "bertkit-fp32")
PRETRAINING_ORDER = ("default", "bertkit", "bf16", "bertkit-fp32")


@dataclass(frozen=True)
class Workload:
    """What both sides of a task are given. folder: of its data below --data. result: the file it is written to.

    rows: the first so many of the training data; None = all. steps: optimizer steps of a run, warm-up among them. size: of
    fresh weights. measure: what is asked of the ratio.
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


def _pretraining(size: str, batch_size: int, max_length: int) -> Workload:
    """Peers fill sequences up, where ours end with their document or are short on purpose: what counts is tokens."""
    text, order = "text-en/imdb-reviews-unsup.txt.xz", PRETRAINING_ORDER
    return Workload(
        "pretraining", text, "bench_pretraining", order, batch_size, max_length, 13, 4000, size, "real_tokens_per_s"
    )


# Batches grouped by length come from long to short, up to 50 a time: of 50 timed steps as many are long as short.
TASKS = {
    "mrpc": Workload("text-classification", "GLUE/MRPC", "bench", ORDER, 32, 128, 53),
    "sst2": Workload("text-classification", "GLUE/SST-2", "bench", ORDER, 32, 128, 53),
    "conll2003": Workload("token-classification", "CoNLL2003", "bench_families", SHORT_ORDER, 32, 128, 103),
    "squad": Workload("question-answering", "SQuAD", "bench_families", SHORT_ORDER, 16, 384, 33, rows=4000),
    "pretrain_128": _pretraining("minilm", 32, 128),
    "pretrain_512": _pretraining("minilm", 8, 512),
    "pretrain_base": _pretraining("base", 8, 128),
}
COMPARED = (
    ("bertkit", "default"),
    ("bertkit", "dynamic"),
    ("bertkit", "best"),
    ("bertkit", "bf16"),
    ("bertkit-fp32", "default"),
    ("bertkit-fp32", "dynamic"),
)
# The least ratio of the task's measure that we ask of ourselves, and the most of memory and start-up time.
NEEDED = {
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
}
MOST_MEMORY = {("pretrain_128", "bertkit", "default"): 0.6}
STARTUP_NEEDED = 0.2
# google-research's create_pretraining_data.py, tokens/s on one core by its dupe_factor: measured once, on an AMD EPYC; and how
# many times as fast we ask ourselves to be.
GOOGLES = {2: 388_000, 5: 741_000}
FASTER_THAN_GOOGLES = 4.0
STEPS_OF_ONE_SHAPE = 10  # (a) and (f) pad every batch to the same shape: more timed steps would say no more, and take minutes


def write_rows(task: str, data: str | None, path: Path) -> int:
    """The training rows of a task as JSON lines that both sides read; labels of texts as numbers. Returns how many.

    Of pre-training they are documents, from which a corpus is built too.

    data: the folder that holds the folders of the data sets; without it they come from the hub.
    """
    from bertkit.tasks import Task
    from bertkit.tasks.catalog import load_recipe
    from bertkit.tasks.splits import read_splits

    if TASKS[task].family == "pretraining":
        return _write_documents(TASKS[task], data, path)
    options = {"data": str(Path(data) / TASKS[task].folder)} if data else {}
    recipe = load_recipe(task).overridden(options).resolved()
    rows = read_splits(recipe, [recipe.train_split]).rows[recipe.train_split]
    fitted = Task.fit(recipe, rows)
    examples = fitted.examples(rows, labelled=True)
    examples = examples.select(range(len(examples))[: TASKS[task].rows])
    names = {"token-classification": ("tokens", "tags"), "question-answering": ("id", "question", "context")}
    chosen = names.get(recipe.family, ("text", "text_pair"))
    columns: dict[str, Sequence] = {name: examples.columns[name] for name in chosen if name in examples.columns}
    if recipe.family == "text-classification":
        columns["label"] = [fitted.labels.index(label) for label in examples.columns["label"]]
    if recipe.family == "question-answering":
        columns["answers"] = [
            {"text": [text for text, _ in its], "answer_start": [start for _, start in its]}
            for its in examples.columns["answers"]
        ]
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*columns.values()):
            file.write(json.dumps(dict(zip(columns, row))) + "\n")
    return len(examples)


def _write_documents(workload: Workload, data: str | None, path: Path) -> int:
    from bertkit.corpus.build import CorpusConfig, build_corpus
    from bertkit.corpus.sentences import split_sentences
    from bertkit.errors import UsageError
    from bertkit.model.directory import resolve
    from bertkit.readers.documents import Documents, look_for

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


def run_side(side: str, task: str, *, model: Path, data: Path, steps: int, warmup: int, seed: int) -> dict[str, float]:
    """One timed training in a fresh process."""
    workload = TASKS[task]
    named = {"family": workload.family, "model": model, "data": data, "steps": steps, "warmup": warmup, "seed": seed}
    named |= {"batch-size": workload.batch_size, "max-length": workload.max_length}
    if workload.size is not None:
        named["size"] = workload.size
    options = [part for name, value in named.items() for part in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, str(TIMED_TRAINING), side, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr[-3000:]}\nerror: the side {side} failed with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_task(
    run: Callable[[str, int], dict[str, float]],
    rounds: int,
    said: Callable[[str], None],
    order: Sequence[str] = ORDER,
) -> dict[str, dict[str, list[float]]]:
    """side -> measure -> one value a round. Sides take turns, in the opposite order every second round. run: (side, seed)."""
    found: dict[str, dict[str, list[float]]] = {side: {measure: [] for measure in MEASURES} for side in NAMES if side in order}
    for number in range(1, rounds + 1):
        for side in order if number % 2 else order[::-1]:
            values = run(side, number)
            for measure in MEASURES:
                found[side][measure].append(round(values[measure], 2))
            if "waiting_share" in values:  # of ours: how much of a step its batches took
                found[side].setdefault("waiting_share", []).append(round(values["waiting_share"], 4))
            said(f"round {number}/{rounds}  {values['examples_per_s']:7.1f} examples/s  {NAMES[side]}")
    return found


def compare(task: str, sides: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Ratios of medians, ours to theirs, for every pair of COMPARED that was run; and what was asked of it."""
    rows = []
    for ours, theirs in COMPARED:
        if not {ours, theirs} <= set(sides):
            continue
        ratios = {m: statistics.median(sides[ours][m]) / statistics.median(sides[theirs][m]) for m in MEASURES}
        needed = NEEDED.get((task, ours, theirs))
        row = {"ours": ours, "theirs": theirs, **{m: round(r, 3) for m, r in ratios.items()}, "needed": needed}
        if most := MOST_MEMORY.get((task, ours, theirs)):
            row["most_memory"] = most
        rows.append(row)
    return rows


def measure_corpus(data: str | None, rounds: int) -> dict[str, Any]:
    """Tokens/s of building a corpus and reading 2 or 5 epochs of it, on one core; medians beside google-research's script."""
    from bertkit.errors import UsageError
    from bertkit.model.directory import resolve
    from bertkit.readers.documents import Documents, look_for

    if data is None:
        raise UsageError("the text of pre-training is not on the hub", hint="--data DIR with text-en")
    one_core = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1") | {"TOKENIZERS_PARALLELISM": "false"}
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"  # unpacked, as the script takes it
        with text.open("w", encoding="utf-8") as file:
            for source in look_for([str(Path(data) / "text-en")]).sources.values():
                file.writelines("\n".join(document.lines) + "\n\n" for document in Documents(source))
        for seed in range(1, rounds + 1):
            options = ("--model", str(resolve(MODEL)), "--data", str(text), "--seed", str(seed))
            command = [sys.executable, str(TIMED_CORPUS), *options]
            done = subprocess.run(command, env={**os.environ, **one_core}, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{done.stderr[-3000:]}\nerror: the corpus failed with exit code {done.returncode}")
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {epochs: statistics.median(run[f"tokens_per_s_{epochs}"] for run in runs) for epochs in EPOCHS}
    rows = [
        {"epochs": epochs, "tokens_per_s": rate, "googles": GOOGLES[epochs], "ratio": round(rate / GOOGLES[epochs], 2)}
        for epochs, rate in medians.items()
    ]
    return {"runs": runs, "medians": rows, "needed": FASTER_THAN_GOOGLES}


def time_startup(commands: dict[str, Sequence[str]], times: int) -> dict[str, list[float]]:
    """Seconds until a command has ended, in turn, after one run each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(times + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            if number:
                seconds[name].append(round(time.perf_counter() - start, 4))
    return seconds


def startup_commands() -> dict[str, Sequence[str]]:
    """`bertkit --help` and `transformers --help`, from this environment."""
    scripts = Path(sys.executable).parent
    own = [str(scripts / "bertkit")] if (scripts / "bertkit").is_file() else [sys.executable, "-m", "bertkit"]
    return {"bertkit": [*own, "--help"], "transformers": [str(scripts / "transformers"), "--help"]}


def side_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, side, and the median of every measure: a row each for a table."""
    return [
        [task, NAMES[side], *(statistics.median(measured[measure]) for measure in MEASURES)]
        for task, found in values["tasks"].items()
        for side, measured in found["sides"].items()
    ]


def ratio_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, sides, ratio of every measure, and the least ratio of its measure that was asked for: a row each for a table."""

    def pair(row: Mapping[str, Any]) -> str:
        return f"{NAMES[row['ours']]} to {NAMES[row['theirs']].partition(' ')[0]}"

    return [
        [task, pair(row), *(row[measure] for measure in MEASURES), row["needed"]]
        for task, found in values["tasks"].items()
        for row in found["ratios"]
    ]


def show(values: dict[str, Any]) -> None:
    from bertkit import progress

    units = ("examples/s", "real tokens/s", "peak MiB")
    rows = [[*row[:2], round(row[2], 1), round(row[3]), round(row[4])] for row in side_rows(values)]
    progress.table("medians", ["task", "side", *units], rows)
    progress.table("ratios of medians", ["task", "ratio", *units, "needed"], ratio_rows(values))
    if "corpus" in values:
        corpus = values["corpus"]["medians"]
        progress.table("corpus build and reading, one core", list(corpus[0]), [list(row.values()) for row in corpus])
    if "startup" in values:
        startup = values["startup"]
        progress.note(
            f"--help: bertkit {startup['median']['bertkit']} s, transformers {startup['median']['transformers']} s, "
            f"ratio {startup['ratio']} (needed: at most {startup['needed']})"
        )


def measure_startup(times: int) -> dict[str, Any]:
    """Seconds, medians and ratio of the two --help."""
    seconds = time_startup(startup_commands(), times)
    median = {name: round(statistics.median(each), 3) for name, each in seconds.items()}
    ratio = round(statistics.median(seconds["bertkit"]) / statistics.median(seconds["transformers"]), 3)
    return {"seconds": seconds, "median": median, "ratio": ratio, "needed": STARTUP_NEEDED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folders = ", ".join(dict.fromkeys(workload.folder for workload in TASKS.values()))
    tests = os.environ.get("BERTKIT_TEST_DATA")
    parser.add_argument("--data", default=tests, help=f"folder that holds {folders} [$BERTKIT_TEST_DATA, else the hub]")
    parser.add_argument(
        "--tasks",
        default=",".join(TASKS),
        help="comma-separated; a file of results is written where all of its tasks are run [%(default)s]",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; round N has seed N [%(default)s]")
    parser.add_argument("--steps", type=int, help="optimizer steps of a run, where not the task's own")
    parser.add_argument("--warmup", type=int, default=3, help="of these, steps that do not count [%(default)s]")
    parser.add_argument("--startups", type=int, default=7, help="runs of each --help [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of 4 steps: does it work at all? Nothing is written")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    if unknown := sorted(set(tasks) - set(TASKS)):
        parser.error(f"unknown tasks {', '.join(unknown)}; known: {', '.join(TASKS)}")
    if options.quick:
        options.rounds, options.steps, options.warmup, options.startups = 1, 4, 1, 1
    if min(options.steps or TASKS[task].steps for task in tasks) <= options.warmup or min(options.rounds, options.startups) < 1:
        parser.error("expected more steps than warm-up, and at least one round and one start-up")

    from bertkit import progress

    for result in dict.fromkeys(TASKS[task].result for task in tasks):
        whole = [task for task, workload in TASKS.items() if workload.result == result]
        chosen = [task for task in whole if task in tasks]
        values = measure(result, chosen, options)
        show(values)
        if options.quick or chosen != whole:
            progress.note(f"results/{result}.json is as it was: it takes a whole run of {', '.join(whole)}")
        else:
            progress.note(f"wrote {write_result(result, values).relative_to(ROOT)}")


def measure(result: str, tasks: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """The tasks of one file of results, as it keeps them."""
    from bertkit import progress
    from bertkit.errors import UserError
    from bertkit.model.directory import MINILM_SHA256, resolve

    steps = {task: options.steps or TASKS[task].steps for task in tasks}
    typed = {"tasks": ",".join(tasks), "rounds": options.rounds, "steps": options.steps, "warmup": options.warmup}
    chosen = " ".join(f"--{name} {value}" for name, value in typed.items() if value is not None)
    values: dict[str, Any] = {
        "name": result,
        "command": [f"python scripts/bench.py {chosen}"],
        **provenance(),
        "seeds": list(range(1, options.rounds + 1)),
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "tasks": {},
    }
    if result == "bench":
        values["startup"] = measure_startup(options.startups)
    with tempfile.TemporaryDirectory() as folder:
        for task, total in steps.items():
            workload, data = TASKS[task], Path(folder) / f"{task}.jsonl"
            try:
                model = resolve(MODEL)
                count = write_rows(task, options.data, data)
            except UserError as error:
                raise SystemExit(f"error: {error}\nhint: {error.hint or 'name a folder with --data'}") from None
            progress.note(f"{task}: {count} rows; {options.rounds} round(s) of {len(workload.order)} sides, {total} steps each")

            def run(
                side: str, seed: int, task: str = task, data: Path = data, model: Path = model, total: int = total
            ) -> dict[str, float]:
                timed = min(total - options.warmup, STEPS_OF_ONE_SHAPE if side in ("default", "bf16") else total)
                number = options.warmup + timed
                return run_side(side, task, model=model, data=data, steps=number, warmup=options.warmup, seed=seed)

            sides = measure_task(run, options.rounds, progress.note, workload.order)
            timed = total - options.warmup
            values["tasks"][task] = {
                "rows": count,
                "batch_size": workload.batch_size,
                "max_length": workload.max_length,
                "timed_steps": timed,
                "timed_steps_of_a": min(timed, STEPS_OF_ONE_SHAPE) if "default" in sides else None,
                "sides": sides,
                "ratios": compare(task, sides),
            }
    if result == "bench_pretraining":
        values["corpus"] = measure_corpus(options.data, options.rounds)
    return values


if __name__ == "__main__":
    main()
