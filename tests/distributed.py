"""Real processes: any number gives the same losses, and after any kill the same command ends with the same bytes.

    python tests/distributed.py [SCENARIO ...]

Processes and launchers are killed at random moments, a process fails, and two agents of torchrun stand for two machines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from faults import BUILD, content_of, inside, run, world

HANG = 120  # seconds after which a command counts as hanging
SECONDS = 30  # most between a failure and the end of the last process
STEPS = 12
TINY = (
    "--device cpu --precision fp32 --max-length 16 --batch-size 8 --dropout 0 --save-steps 2 --logging-steps 1 --output-dir run"
)
COMMANDS = {
    "pretrain": f"pretrain corpus --model model --max-steps {STEPS} --eval-steps 5 {TINY}",
    "finetune": f"finetune text-classification --train rows.csv --validation rows.csv --model model --no-baselines "
    f"--max-steps {STEPS} --eval-steps 5 {TINY}",
}


def work(argv: Sequence[str]) -> None:
    """A bertkit process whose steps take a while, and of which one may fail. FAILING: its rank. PAUSE: seconds a step."""
    from bertkit.cli import run as bertkit
    from bertkit.training import loop

    real = loop.seed_dropout

    def slowly(module: object, seed: int, step: int, *more: int) -> None:
        time.sleep(float(os.environ.get("PAUSE", "0.1")))
        if step == 5 and os.environ["RANK"] == os.environ.get("FAILING"):
            Path("failed").write_text(str(time.time()), encoding="utf-8")
            raise ValueError("of this process")
        real(module, seed, step, *more)

    loop.seed_dropout = slowly
    sys.argv = ["bertkit", *argv]
    bertkit()


class Started:
    """A command that several processes run, each agent of torchrun in a folder."""

    def __init__(
        self, folders: Sequence[Path], processes: int, command: str = "pretrain", *, restarts: int = 0, **environment: str
    ) -> None:
        """processes: of each agent."""
        self.mark = f"BERTKIT_STARTED={random.random()}"
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
        name, _, value = self.mark.partition("=")
        self.environment = os.environ | {"PYTHONPATH": paths, "ACCELERATE_USE_CPU": "true", name: value} | environment
        if restarts:  # else gloo may read addresses of before the restart, of which torchrun keeps the store
            self.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        port = random.randrange(20000, 30000)
        nodes = "--standalone" if len(folders) == 1 else f"--nnodes {len(folders)} --rdzv-backend c10d --rdzv-id {port}"
        nodes += "" if len(folders) == 1 else f" --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1"
        launcher = f"-m torch.distributed.run {nodes} --nproc-per-node {processes} --max-restarts {restarts} {__file__} --work"
        program = [sys.executable, *launcher.split(), *COMMANDS[command].split()]
        self.logs = [tempfile.TemporaryFile("w+") for _ in folders]  # noqa: SIM115
        self.agents = [
            subprocess.Popen(program, cwd=folder, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            for folder, log in zip(folders, self.logs, strict=True)
        ]

    def alive(self) -> dict[int, str]:
        """The processes that it has started and that have not ended: their ranks by number; "" for a launcher's."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                values = (place / "environ").read_bytes().decode(errors="replace").split("\0")
                if self.mark in values and "State:\tZ" not in (place / "status").read_text():
                    found[int(place.name)] = next((value[5:] for value in values if value.startswith("RANK=")), "")
        return found

    def kill(self, whom: str, at: float) -> None:
        """Send SIGKILL, `at` seconds after training has begun, to a process by its rank, or to the launcher: ""."""
        until = time.monotonic() + HANG
        while not list(Path.cwd().glob("run/metrics.jsonl")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(at)
        pids = [self.agents[0].pid] if not whom else [pid for pid, rank in self.alive().items() if rank == whom]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, tally: Tally, what: str, within: float = HANG) -> tuple[list[int | None], str]:
        """The exit codes and all that was said, once each process has ended."""
        until = time.monotonic() + within
        while (left := self.alive()) and time.monotonic() < until:
            for agent in self.agents:
                agent.poll()
            time.sleep(0.1)
        launchers = {agent.pid for agent in self.agents}
        if left:
            hangs = launchers & set(left)
            tally.fault("hangs" if hangs else "left", f"{what}: {len(left)} processes after {within:.0f} seconds")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        codes = [agent.wait() for agent in self.agents]
        said = ""
        for log in self.logs:
            log.seek(0)
            said += log.read()
            log.close()
        return codes, said


@dataclass
class Tally:
    """What was tried, and what must be none."""

    scenarios: int = 0
    kills: int = 0
    restarts: int = 0
    hangs: int = 0
    differences: int = 0
    left: int = 0
    told: list[str] = field(default_factory=list)

    def fault(self, name: str, what: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.told.append(f"{name}: {what}")
        print(self.told[-1], file=sys.stderr, flush=True)

    @property
    def failed(self) -> bool:
        return bool(self.hangs or self.differences or self.left)

    def __str__(self) -> str:
        found = f"{self.hangs} hangs, {self.differences} differences, {self.left} processes left"
        return f"distributed: {self.scenarios} scenarios, {self.kills} kills, {self.restarts} restarts: {found}"

    def finished(self, started: Started, what: str) -> None:
        codes, said = started.end(self, what)
        if any(codes):
            self.fault("differences", f"{what} ends with {codes}: {said[-1500:]}")

    def equal(self, folder: Path, expected: Path, what: str) -> None:
        found, wanted = content_of(folder / "run"), content_of(expected / "run")
        names = [name for name in {**found, **wanted} if found.get(name, 0) != wanted.get(name, 0)]
        if names or losses(folder) != losses(expected):
            self.fault("differences", f"{what}: {', '.join(names) or 'losses'} differ")


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [event["loss"] for event in events if "loss" in event]


class Place:
    """Where scenarios run, each in a folder with what the commands read."""

    def __init__(self, place: Path, tally: Tally, seed: int) -> None:
        from conftest import write_tiny_model

        self.place, self.tally, self.random = place, tally, random.Random(seed)
        write_tiny_model(place / "model")
        self.start = place / "start"
        self.start.mkdir()
        world(self.start, place / "model")
        with inside(self.start):
            assert run(f"{BUILD} --output-dir corpus".split()).code == 0
        self.whole = cache(self._whole)

    def folder(self, name: str) -> Path:
        return shutil.copytree(self.start, self.place / f"{name}-{time.monotonic_ns()}")

    def _whole(self, processes: int) -> Path:
        """The folder of a run that nothing interrupts."""
        folder = self.folder("whole")
        self.tally.finished(Started([folder], processes), f"{processes} processes")
        return folder

    def same_losses(self) -> None:
        found = {processes: losses(self.whole(processes)) for processes in (2, 4, 8)}
        for processes, each in found.items():
            if len(each) != STEPS or not np.allclose(each, found[2], rtol=0, atol=1e-5):
                self.tally.fault("differences", f"{processes} processes have losses {each}, and 2 have {found[2]}")

    def killed(self, processes: int, *, launcher: bool = False, restarts: int = 0) -> None:
        """A process or the launcher is killed; the same command goes on, or the launcher starts it again."""
        folder = self.folder("killed")
        whom = "" if launcher else str(self.random.randrange(processes))
        at = self.random.uniform(0, STEPS * 0.1)
        what = f"{f'rank {whom}' if whom else 'the launcher'} of {processes} killed after {at:.2f} s"
        with inside(folder):
            pause = "2" if launcher else "0.1"  # they would end before they notice that the launcher is gone
            started = Started([folder], processes, restarts=restarts, PAUSE=pause)
            started.kill(whom, at)
        self.tally.kills += 1
        if restarts:
            self.tally.restarts += 1
            self.tally.finished(started, f"{what}, with restarts")
        else:
            started.end(self.tally, what, within=SECONDS)
            if json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["status"] != "finished":
                self.tally.finished(Started([folder], processes), f"{what}, repeated")
        self.tally.equal(folder, self.whole(processes), what)

    def two_agents(self) -> None:
        folder = self.folder("agents")
        self.tally.finished(Started([folder, folder], 2), "two agents")
        self.tally.equal(folder, self.whole(4), "two agents")

    def own_folders(self) -> None:
        """The second machine has not the run that the first one has."""
        folders = [self.folder("first"), self.folder("second")]
        shutil.copytree(self.whole(4) / "run", folders[0] / "run")
        values = json.loads((folders[0] / "run" / "run.json").read_text(encoding="utf-8"))
        (folders[0] / "run" / "run.json").write_text(json.dumps(values | {"status": "running"}), encoding="utf-8")
        codes, said = Started(folders, 2).end(self.tally, "a folder on each machine")
        if not all(codes) or "all machines share" not in said or 'Traceback (most recent call last):\n  File "/bertkit' in said:
            self.tally.fault("differences", f"a folder on each machine: {codes} {said[-1500:]}")

    def failing(self, command: str, agents: int, processes: int) -> None:
        """A process fails: all end soon, and the others say with what."""
        folder, number = self.folder("failing"), agents * processes
        started = Started([folder] * agents, processes, command, FAILING=str(number - 1))
        what = f"process {number - 1} of {number} fails in {command}"
        codes, said = started.end(self.tally, what)
        took = time.time() - float((folder / "failed").read_text(encoding="utf-8")) if (folder / "failed").exists() else -1
        print(f"{what}, {agents} agents: all ended after {took:.1f} s", file=sys.stderr, flush=True)
        told = f"error: process {number - 1} of {number} failed: ValueError: of this process" in said
        if not all(codes) or not told or not 0 <= took <= SECONDS:
            self.tally.fault("differences", f"{what}: {codes}, after {took:.1f} s: {said[-1500:]}")


SCENARIOS: dict[str, Callable[[Place], None]] = {
    "losses": Place.same_losses,
    "rank of 2": lambda place: place.killed(2),
    "rank of 4": lambda place: place.killed(4),
    "rank of 8": lambda place: place.killed(8),
    "launcher": lambda place: place.killed(2, launcher=True),
    "restart of 2": lambda place: place.killed(2, restarts=3),
    "restart of 4": lambda place: place.killed(4, restarts=3),
    "two agents": Place.two_agents,
    "own folders": Place.own_folders,
    "failing": lambda place: place.failing("pretrain", 1, 2),
    "failing finetune": lambda place: place.failing("finetune", 1, 2),
    "failing of 8": lambda place: place.failing("pretrain", 1, 8),
    "failing agents": lambda place: place.failing("pretrain", 2, 2),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the processes killed")
    arguments = parser.parse_args(argv)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="bertkit-distributed-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        place = Place(Path(folder), tally, arguments.seed)
        for name in arguments.scenarios or SCENARIOS:
            tally.scenarios += 1
            begun = time.monotonic()
            SCENARIOS[name](place)
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print(tally)
    return int(tally.failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
    sys.exit(main())
