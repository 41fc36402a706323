"""Faults: every file operation of a command fails once, every kind of folder has bytes flipped, every command starts twice.

    python tests/faults.py [--every N] [SCENARIO ...]

An operation is one by which a command changes the file system: a file opened to be written, a write, a flush, a link, a rename,
a deletion. At each in turn, of each thread, the process is killed (from then on nothing it does has an effect), or the disk is
full or read-only. Then the same command is repeated, and has to end with the files of a run without a fault.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

KILL, FULL, READ_ONLY = KINDS = ("kill", "full disk", "read-only disk")
HANG = 120  # seconds after which a command counts as hanging
FLIPS = 200  # of each kind of folder


# --- faults ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: whatever still runs, such as a `finally`, changes no file."""


MAIN = threading.main_thread().name


class Operation(NamedTuple):
    """The so-many-th of a thread: in what order those of several threads come is another matter each time."""

    number: int
    thread: str = MAIN


class Disk:
    """The file system below a folder, with a fault at one operation. counts: the operations so far, by thread."""

    def __init__(self, folder: Path, at: Operation | None = None, kind: str = KILL) -> None:
        self.folder, self.at, self.kind = os.path.realpath(folder), at, kind
        self.counts: Counter[str] = Counter()
        self.broken = False

    @property
    def operations(self) -> list[Operation]:
        return [Operation(number, thread) for thread in sorted(self.counts) for number in range(self.counts[thread])]

    def operate(self, path: Any, what: str, half: Callable[[], object] = lambda: None) -> None:
        """Count an operation, or fail. half: does a part of it."""
        if not os.path.realpath(path).startswith(self.folder + os.sep):
            return
        thread = threading.current_thread().name
        here = Operation(self.counts[thread], thread) == self.at
        self.counts[thread] += 1
        if here and what == "write" and self.kind != READ_ONLY:
            half()
        self.broken = self.broken or here
        if self.broken and self.kind == KILL:
            raise Killed
        if here or (self.broken and (self.kind == READ_ONLY or what in ("write", "create"))):
            number = errno.ENOSPC if self.kind == FULL else errno.EROFS
            raise OSError(number, os.strerror(number), str(path))

    @contextlib.contextmanager
    def watched(self) -> Iterator[Disk]:
        """Every operation of this process is counted."""
        import safetensors.torch

        def path_of(path: Any, dir_fd: int | None) -> Any:
            return path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)

        def counted(function: Callable, what: str) -> Callable:
            def call(path: Any, *more: Any, dir_fd: int | None = None, **options: Any) -> Any:
                self.operate(path_of(path, dir_fd), what)
                return function(path, *more, **options, **({} if dir_fd is None else {"dir_fd": dir_fd}))

            return call

        def linked(source: Any, path: Any, **options: Any) -> None:
            self.operate(path, "create")
            link(source, path, **options)

        def flushed(descriptor: int) -> None:  # nothing is flushed to the disk: no machine crashes here
            self.operate(os.readlink(f"/proc/self/fd/{descriptor}"), "flush")

        def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & os.O_CREAT:
                self.operate(path, "create")
            return os_open(path, flags, *more, **options)

        def file_opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return real_open(file, mode, *more, **options)
            self.operate(file, "create")
            return _Written(real_open(file, mode, *more, **options), os.fspath(file), self)

        def saved(tensors: Any, path: Any, *more: Any, **options: Any) -> None:
            self.operate(path, "write", lambda: Path(path).write_bytes(b"half"))
            save_file(tensors, path, *more, **options)

        os_open, link, real_open, save_file = os.open, os.link, io.open, safetensors.torch.save_file
        patches = [(os, name, counted(getattr(os, name), "rename")) for name in ("replace", "rename")]
        patches += [(os, name, counted(getattr(os, name), "delete")) for name in ("unlink", "remove", "rmdir")]
        patches += [
            (os, "mkdir", counted(os.mkdir, "create")),
            (os, "link", linked),
            (os, "fsync", flushed),
            (os, "open", opened),
        ]
        patches += [(io, "open", file_opened), (builtins, "open", file_opened), (safetensors.torch, "save_file", saved)]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for owner, name, function in patches:
            setattr(owner, name, function)
        try:
            yield self
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)


class _Written:
    """A file that is open for writing."""

    def __init__(self, file: Any, path: str, disk: Disk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.operate(self._path, "write", half)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


# --- commands ----------------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """How a command ended. code: None where it was killed."""

    code: int | None
    out: str = ""
    err: str = ""
    hung: bool = False


def run(argv: Sequence[str], disk: Disk | None = None) -> Ran:
    """Run a command in this process and in the working directory."""
    from bertkit.cli import main

    def hang(*_: object) -> None:
        raise TimeoutError

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANG)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), (disk or Disk(Path("/nowhere"))).watched():
            return Ran(main([*argv]), out.getvalue(), err.getvalue())
    except Killed:
        return Ran(None)
    except TimeoutError:
        return Ran(None, hung=True)
    except BaseException as error:
        return Ran(1, err=repr(error))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def content_of(path: Path) -> dict[str, Any]:
    """What a command has written, but for times and what another run may say otherwise; leftovers too."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    found: dict[str, Any] = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = str(file.relative_to(path))
        if file.name == "run.json":
            values = json.loads(file.read_text(encoding="utf-8"))
            found[name] = {key: values.get(key) for key in ("status", "best", "last")}
        elif file.name == "seeds.json":
            found[name] = json.loads(file.read_text(encoding="utf-8")).get("scores")
        elif file.name in ("progress.json", "metrics.jsonl", "manifest.json", "README.md"):
            found[name] = None  # these hold times
        else:
            found[name] = file.read_bytes()
    return found


TINY = "--device cpu --precision fp32 --max-length 16 --batch-size 8"
FINETUNE = (
    f"finetune text-classification --train rows.csv --validation rows.csv --model model --max-steps 3 --eval-steps 2 {TINY}"
)
PRETRAIN = f"pretrain corpus --model-size tiny --hidden-size 32 --num-attention-heads 2 --max-steps 2 --eval-steps 1 {TINY}"
BUILD = "corpus build text.txt more.txt --tokenizer model --validation 20% --num-processes 1"


@dataclass(frozen=True)
class Scenario:
    """A command in a folder that `world` has filled.

    output: what it writes. before: commands that run first. every: at which operations it fails, with one kind of fault in
    turn; 0 for each with all kinds.
    """

    command: str
    output: str
    before: tuple[str, ...] = ()
    every: int = 1

    @property
    def faults(self) -> Callable[[list[Operation]], list[tuple[Operation, str]]]:
        """All operations -> the faults to try."""
        if self.every == 0:
            return lambda operations: [(at, kind) for at in operations for kind in KINDS]
        return lambda operations: [(at, KINDS[n % len(KINDS)]) for n, at in [*enumerate(operations)][:: self.every]]

    @property
    def argv(self) -> list[str]:
        return self.command.split()


WRITERS = {
    "finetune": Scenario(f"{FINETUNE} --no-baselines --output-dir run", "run", every=0),
    "keep": Scenario(
        f"{FINETUNE} --no-baselines --keep-checkpoints all --keep-training-state --save-steps 1 --output-dir run",
        "run",
        every=5,
    ),
    "seeds": Scenario(f"{FINETUNE} --seeds 2 --output-dir runs", "runs", every=7),
    "pretrain": Scenario(f"{PRETRAIN} --output-dir run", "run", (f"{BUILD} --output-dir corpus",)),
    "corpus": Scenario(f"{BUILD} --output-dir out", "out", every=0),
    "merge": Scenario(
        "corpus merge corpus corpus --num-processes 1 --output-dir out", "out", (f"{BUILD} --output-dir corpus",)
    ),
    "tokenizer": Scenario("tokenizer train text.txt --vocab-size 120 --output-dir out", "out"),
    "predict": Scenario(
        "predict run rows.csv --output out.csv", "out.csv", (f"{FINETUNE} --no-baselines --output-dir run",), 0
    ),
    "eval": Scenario("eval run --output out", "out", (f"{FINETUNE} --no-baselines --output-dir run",)),
    "recipe": Scenario("recipes mrpc --copy out", "out"),
}


def world(folder: Path, model: Path) -> None:
    """Rows, text and a model in a folder."""
    rng = random.Random(0)
    words = "good bad movie book story plot actor team ticket page order phone".split()
    lines = [" ".join(rng.choices(words, k=6)) for _ in range(16)]
    (folder / "rows.csv").write_text(
        "text,label\n" + "".join(f"{line},{'no yes'.split()[n % 2]}\n" for n, line in enumerate(lines))
    )
    text = "\n\n".join(f"{' '.join(rng.choices(words, k=9))}.\n{' '.join(rng.choices(words, k=9))}." for _ in range(20))
    (folder / "text.txt").write_text(text)
    (folder / "more.txt").write_text(f"{text[-400:]}\n\n{text[:600]}\n\n{text[700:900]}")  # a part of its own, with duplicates
    shutil.copytree(model, folder / "model")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# --- what is counted ---------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was tried, and what must be none."""

    operations: int = 0
    flips: int = 0
    starts: int = 0
    tracebacks: int = 0
    hangs: int = 0
    unnoticed: int = 0
    stuck: int = 0
    told: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def ended(self, ran: Ran, what: str) -> bool:
        """Count a command that ended as none should; whether it ended as it may."""
        self.hangs += ran.hung
        self.tracebacks += (bug := ran.code == 1)
        if ran.hung or bug:
            self.told.append(f"{what}: {'hangs' if ran.hung else ran.err.strip()[-300:]}")
        return not (ran.hung or bug)

    def fault(self, name: str, what: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.told.append(f"{name}: {what}")

    @property
    def failed(self) -> bool:
        return bool(self.tracebacks or self.hangs or self.unnoticed or self.stuck)

    def __str__(self) -> str:
        counts = f"{self.operations} operations, {self.flips} flips, {self.starts} double starts"
        found = f"{self.tracebacks} tracebacks, {self.hangs} hangs, {self.unnoticed} unnoticed"
        return f"{counts}: {found}, {self.stuck} folders that cannot go on"


def prepared(name: str, scenario: Scenario, place: Path, model: Path) -> Path:
    """A folder in which the command of a scenario can run."""
    folder = place / name
    folder.mkdir()
    world(folder, model)
    with inside(folder):
        for command in scenario.before:
            ran = run(command.split())
            assert ran.code == 0, (command, ran.err)
    return folder


def fail_everywhere(name: str, place: Path, model: Path, *, every: int = 1, offset: int = 0) -> Tally:
    """A command with a fault at every operation, of each kind; every: only at each so many-th."""
    tally, scenario = Tally(), WRITERS[name]
    before = prepared(name, scenario, place, model)
    whole = shutil.copytree(before, place / "whole")
    disk = Disk(whole)
    with inside(whole):
        ran = run(scenario.argv, disk)
    assert ran.code == 0, ran.err
    expected = content_of(whole / scenario.output)
    for at, kind in scenario.faults(disk.operations)[offset::every]:
        what = f"{name}: {kind} at operation {at.number} of {disk.counts[at.thread]} of {at.thread}"
        folder = shutil.copytree(before, place / "tried")
        with inside(folder):
            tally.operations += 1
            if tally.ended(run(scenario.argv, Disk(folder, at, kind)), what):
                ran = run(scenario.argv)
                if tally.ended(ran, f"{what}, repeated"):
                    found = content_of(folder / scenario.output) if (folder / scenario.output).exists() else {}
                    done = ran.code == 0 or "finished" in ran.err or "already exists" in ran.err
                    if not done:
                        tally.fault("stuck", f"{what}: {ran.err.strip()[-300:]}")
                    elif found != expected:
                        names = [key for key in {**found, **expected} if found.get(key, 0) != expected.get(key, 0)]
                        tally.fault("unnoticed", f"{what}: {', '.join(names)} differ")
        shutil.rmtree(folder)
    return tally


# --- flipped bytes -----------------------------------------------------------------------------------------------------


def _interrupted_run(folder: Path) -> None:
    """A run that was killed after its first checkpoint."""
    disk = Disk(folder)
    with inside(folder):
        run(FLIPPED["checkpoint"].argv, disk)
        shutil.rmtree("run")
        for at in reversed(disk.operations):
            run(FLIPPED["checkpoint"].argv, Disk(folder, at))
            if list(Path("run").glob("checkpoint-2")) and Path("run/model.safetensors").exists():
                return
            shutil.rmtree("run", ignore_errors=True)


# What reads a folder whose bytes are flipped; output: that folder.
FLIPPED = {
    "checkpoint": Scenario(f"{FINETUNE} --no-baselines --output-dir run", "run/checkpoint-2"),
    "run": Scenario("predict run rows.csv --format jsonl", "run", (f"{FINETUNE} --no-baselines --output-dir run",)),
    "corpus": Scenario(f"{PRETRAIN} --output-dir run", "corpus", (f"{BUILD} --output-dir corpus",)),
}


def flip_everywhere(name: str, place: Path, model: Path, *, flips: int = FLIPS, offset: int = 0) -> Tally:
    """A command that reads a folder in which a bit of a byte is flipped, again and again: noticed, or of no effect."""
    tally, scenario = Tally(), FLIPPED[name]
    folder = prepared("tried", scenario, place, model)  # always of this name, which run.json has in it
    if name == "checkpoint":
        _interrupted_run(folder)
        assert (folder / scenario.output).is_dir()
    before = shutil.copytree(folder, place / "before")
    with inside(folder):
        ran = run(scenario.argv)
    assert ran.code == 0, ran.err
    expected, out = content_of(folder / "run"), ran.out
    shutil.rmtree(folder)
    rng = random.Random(f"{name} {offset}")
    names = sorted(str(path.relative_to(before)) for path in (before / scenario.output).rglob("*") if path.is_file())
    names = [each for each in names if name != "run" or "/checkpoint-" not in each]  # which predict does not read
    for _ in range(flips):
        shutil.copytree(before, folder)
        file = folder / rng.choice(names)
        content = bytearray(file.read_bytes())
        at, bit = rng.randrange(len(content)), rng.randrange(8)
        content[at] ^= 1 << bit
        file.write_bytes(content)
        what = f"{name}: bit {bit} of byte {at} of {file.relative_to(folder)}"
        tally.flips += 1
        with inside(folder):
            ran = run(scenario.argv)
            if tally.ended(ran, what) and ran.code == 0 and "has changed" not in ran.err:
                found = content_of(folder / "run")
                if (ran.out != out) if name == "run" else (found != expected):
                    tally.fault("unnoticed", what)
        shutil.rmtree(folder)
    return tally


# --- two starts at once ------------------------------------------------------------------------------------------------


def start_twice(name: str, place: Path, model: Path) -> Tally:
    """Two processes with the same command at once: one does it, and the other says so, or does the same."""
    tally, scenario = Tally(starts=1), WRITERS[name]
    before = prepared(name, scenario, place, model)
    whole = shutil.copytree(before, place / "whole")
    program = [sys.executable, "-m", "bertkit", *scenario.argv]
    with inside(whole):
        assert run(scenario.argv).code == 0
    started = [
        subprocess.Popen(program, cwd=before, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for each in started:
        try:
            err = each.communicate(timeout=HANG)[1]
        except subprocess.TimeoutExpired:
            each.kill()
            tally.fault("hangs", f"{name}: two starts")
            continue
        tally.ended(Ran(each.returncode, err=err), f"{name}: two starts")
        told = any(words in err for words in ("another process", "finished", "already exists"))
        if each.returncode not in (0, 2) or (each.returncode == 2 and not told):
            tally.fault("stuck", f"{name}: two starts: {each.returncode} {err.strip()[-300:]}")
    if 0 not in [each.returncode for each in started]:
        tally.fault("stuck", f"{name}: of two starts none did its work")
    elif content_of(before / scenario.output) != content_of(whole / scenario.output):
        tally.fault("unnoticed", f"{name}: two starts")
    return tally


# --- all of it ---------------------------------------------------------------------------------------------------------


def _job(job: Callable[[Path], Tally]) -> Tally:
    with tempfile.TemporaryDirectory(prefix="bertkit-faults-") as place:
        return job(Path(place))


def _call(function: Callable[..., Tally], name: str, model: Path, options: dict[str, Any], place: Path) -> Tally:
    return function(name, place, model, **options)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(WRITERS)}; default: all, and flips")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th operation")
    arguments = parser.parse_args(argv)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    from conftest import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="bertkit-faults-") as place:
        os.environ["XDG_CACHE_HOME"] = place
        write_tiny_model(model := Path(place) / "model")
        names = arguments.scenarios or list(WRITERS)
        parts = 4  # of the operations of a command, so that the last process to end is not long alone
        jobs = [
            partial(_call, fail_everywhere, name, model, {"every": arguments.every * parts, "offset": arguments.every * part})
            for name in names
            for part in range(parts)
        ]
        if not arguments.scenarios:
            jobs += [
                partial(_call, flip_everywhere, name, model, {"flips": FLIPS // parts, "offset": part})
                for name in FLIPPED
                for part in range(parts)
            ]
            jobs += [partial(_call, start_twice, name, model, {}) for name in WRITERS]
        tally = Tally()
        with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1, maxtasksperchild=1) as pool:
            for found in pool.imap_unordered(_job, jobs):
                tally += found
                for line in found.told:
                    print(line, file=sys.stderr, flush=True)
    print(tally)
    return int(tally.failed)


if __name__ == "__main__":
    sys.exit(main())
