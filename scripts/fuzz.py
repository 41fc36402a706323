"""Runs the commands, in this process, on malformed inputs: there must be no traceback and no hang. Run it with `make fuzz`.

An input depends only on the seed and its number, so `--only 1234` repeats one. It is a valid file of some format that is cut,
flipped, spliced or given odd values, or an option with an odd value. A command may succeed, or fail with a one-line error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from scripts.fuzzed_files import FORMATS, ODD, VALUES, changed, good

SEED = 20_000
COUNT = 20_000
SECONDS = 30  # after which a command hangs

# --- commands ----------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A command, and the files that it needs in its folder; paths that begin with MODELS are below the folder of models."""

    argv: list[str]
    files: dict[str, bytes]


FAMILIES = ("text-classification", "token-classification", "question-answering", "multiple-choice")


def make_case(number: int, models: Path, seed: int = SEED) -> Case:
    """The input of a number."""
    chance = random.Random(f"{seed} {number}")
    return chance.choice(_MAKERS)(chance, models)


def _data(chance: random.Random) -> tuple[str, bytes]:
    name = chance.choice(tuple(FORMATS))
    return f"data.{name.rpartition('squad.')[2]}", changed(good(name, chance.randrange(50)), chance)


def _policy(chance: random.Random) -> list[str]:
    return ["--on-error", "skip"] if chance.random() < 0.3 else []


def _check(chance: random.Random, models: Path) -> Case:
    name, data = _data(chance)
    recipe = ["--recipe", chance.choice(FAMILIES)] if chance.random() < 0.5 else []
    return Case(["check", name, *recipe, *_policy(chance)], {name: data})


def _predict(chance: random.Random, models: Path) -> Case:
    name, data = _data(chance)
    return Case(["predict", str(models / chance.choice(RUNS)), name, *_policy(chance)], {name: data})


def _finetune(chance: random.Random, models: Path) -> Case:
    name, data = _data(chance)
    how = ["--train", name, "--validation", chance.choice(("10%", "50%", name)), "--model", str(models / "model")]
    return Case(
        ["finetune", chance.choice(FAMILIES), *how, *_policy(chance), "--output-dir", "out", "--device", "cpu"], {name: data}
    )


def _build(chance: random.Random, models: Path) -> Case:
    name, data = _data(chance)
    how = ["--tokenizer", str(models / "model"), "--output-dir", "out", "--num-processes", "1"]
    return Case(["corpus", "build", name, *how, "--on-error", chance.choice(("fail", "skip", "replace"))], {name: data})


def _tokenizer(chance: random.Random, models: Path) -> Case:
    name, data = _data(chance)
    size = chance.choice(("300", "300", "0", "-1", "5"))
    return Case(["tokenizer", "train", name, "--vocab-size", size, "--output-dir", "out"], {name: data})


def _model(chance: random.Random, models: Path) -> Case:
    """A run with one file that is damaged."""
    run = models / chance.choice(RUNS)
    files = {f"run/{path.name}": path.read_bytes() for path in run.iterdir() if path.is_file()}
    damaged = chance.choice(sorted(files))
    files[damaged] = changed(files[damaged], chance)
    files["data.csv"] = good("csv", 1)
    return Case(chance.choice((["predict", "run", "data.csv"], ["eval", "run", "--validation", "data.csv"])), files)


def _config(chance: random.Random, models: Path) -> Case:
    """A file of options that is damaged, or an option with an odd value."""
    from bertkit.config import options_of
    from bertkit.tasks import FAMILIES as classes
    from bertkit.tasks.recipe import TrainConfig

    family = chance.choice(FAMILIES)
    names = chance.sample(sorted({**options_of(classes[family]), **options_of(TrainConfig)}), 3)
    common = ["--train", "data.csv", "--model", str(models / "model"), "--output-dir", "out"]
    files = {"data.csv": good("csv", 1)}
    if chance.random() < 0.5:
        values = {name: chance.choice((*VALUES, *ODD)) for name in names}
        files["options.json"] = json.dumps(values).encode()
        files["options.yaml"] = changed(
            "".join(f"{name}: {value}\n" for name, value in values.items()).encode("utf-8", "ignore"), chance
        )
        return Case(["finetune", family, *common, "--config", chance.choice(("options.json", "options.yaml"))], files)
    odd = [f"--{name.replace('_', '-')}={chance.choice(ODD)}".replace("\0", "").replace("\ud800", "\udc80") for name in names]
    return Case(["finetune", family, *common, *odd], files)


_MAKERS = (_check, _check, _check, _predict, _predict, _finetune, _build, _tokenizer, _model, _config, _config)
RUNS = ("classes", "tags", "answers")


# --- running -----------------------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A command runs for longer than SECONDS."""


class Training(Exception):
    """The data is read and the model is built: what follows is no question of input."""


def fault_of(case: Case, folder: Path) -> str | None:
    """Run a case in an empty folder; what is wrong with how it ends, or None."""
    from bertkit.cli import main

    for name, data in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    def hang(*_: object) -> None:
        raise Hang

    def begin(*_: object, **__: object) -> None:
        raise Training

    before, where = signal.signal(signal.SIGALRM, hang), Path.cwd()
    os.chdir(folder)
    signal.alarm(SECONDS)
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True) for _ in range(2)
    )
    quiet = mock.patch("os.fsync", return_value=None), mock.patch("bertkit.runs.finetuning.finetune.RunFolder.open", begin)
    try:
        with quiet[0], quiet[1], contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(case.argv)
    except Hang:
        return "hang"
    except BaseException as error:
        return f"traceback: {error!r:.300}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.chdir(where)
    stderr = err.buffer.getvalue().decode("utf-8", "replace")
    if code == 1 and "error: Training: " in stderr:
        return None
    if code == 1 or "Traceback" in stderr:
        return f"traceback: {next((line for line in stderr.splitlines() if line.startswith('error: ')), stderr)[:300]}"
    return None if code == 0 or (code in (2, 3, 4, 5) and "error: " in stderr) else f"exit code {code}: {stderr[-200:]}"


def make_models(folder: Path) -> None:
    """A tiny model and a run of each kind that the cases use."""
    from bertkit.cli import main

    files = {"text.txt": good("txt", 0) * 20, "classes.csv": good("csv", 1), "tags.conll": good("conll", 1)}
    files["answers.json"] = good("squad.json", 1)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    text, model, corpus = (str(folder / name) for name in ("text.txt", "tokenizer", "corpus"))
    commands = [
        ["tokenizer", "train", text, "--vocab-size", "300", "--output-dir", model],
        ["corpus", "build", text, "--tokenizer", model, "--output-dir", corpus, "--num-processes", "1"],
        [
            "pretrain",
            corpus,
            "--model-size",
            "tiny",
            "--max-steps",
            "1",
            "--batch-size",
            "2",
            "--output-dir",
            str(folder / "model"),
        ],
    ]
    for run, family in zip(RUNS, FAMILIES, strict=False):
        file = str(next(folder.glob(f"{run}.*")))
        how = ["--train", file, "--validation", file, "--max-steps", "1", "--max-length", "32", "--no-baselines"]
        commands.append(["finetune", family, *how, "--model", str(folder / "model"), "--output-dir", str(folder / run)])
    for argv in commands:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = main([*argv, *(["--device", "cpu"] if argv[0] in ("pretrain", "finetune") else [])])
        if code != 0:
            sys.exit(f"error: {' '.join(argv)}: {stderr.getvalue()}")


def faults(numbers: Sequence[int], models: Path, seed: int = SEED) -> list[tuple[int, str]]:
    """The faults of cases, each with its number."""
    found = []
    for number in numbers:
        folder = Path(tempfile.mkdtemp(dir=models.parent))
        try:
            if fault := fault_of(make_case(number, models, seed), folder):
                found.append((number, fault))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", type=int, help="show the input of this number, and run it")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        models = Path(place) / "models"
        models.mkdir()
        make_models(models)
        if options.only is not None:
            case = make_case(options.only, models, options.seed)
            print(case.argv, {name: data[:2000] for name, data in case.files.items() if len(case.files) < 3})
            found = faults([options.only], models, options.seed)
        else:
            parts = [range(first, min(first + 100, options.count)) for first in range(0, options.count, 100)]
            found = []
            with ProcessPoolExecutor(options.processes, get_context("spawn")) as executor:
                for number, some in enumerate(executor.map(partial(faults, models=models, seed=options.seed), parts)):
                    found += some
                    for case_number, fault in some:
                        print(f"{case_number}: {fault}", flush=True)
                    if number % 20 == 19:
                        print(
                            f"{parts[number][-1] + 1} inputs in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True
                        )
    hangs = sum(fault == "hang" for _, fault in found)
    count = options.count if options.only is None else 1
    print(f"{count} inputs: {len(found) - hangs} tracebacks, {hangs} hangs")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
