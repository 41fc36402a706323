"""docs/examples/pretrain.sbatch under a stand-in for Slurm: whom the signal reaches, how jobs end, and which are requeued."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import BUILD, inside, world

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "docs" / "examples" / "pretrain.sbatch"
TASKS = 2
STEPS = 400
LOG = "metrics.jsonl"
REQUEUED = 128 + signal.SIGUSR1
SECONDS = 240  # after which a job counts as hanging
COMMAND = (
    f"corpus --model model --max-steps {STEPS} --eval-steps 150 --logging-steps 1 --batch-size 8 --max-length 16 --device cpu "
    "--precision fp32 --output-dir"
)

# Slurm signals every process of a task, and not the batch shell; srun ends with the highest exit code, or 128 + signal.
SRUN = """#!{python}
import os, pathlib, signal, subprocess, sys

command = sys.argv[1:]
while command[0].startswith("-"):
    command.pop(0)
numbers = [{{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}} for rank in range(int(os.environ["SLURM_NTASKS"]))]
tasks = [subprocess.Popen(command, env=os.environ | each, start_new_session=True) for each in numbers]
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [os.killpg(task.pid, number) for task in tasks if task.poll() is None])
pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
codes = [task.wait() for task in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
SCONTROL = """#!/bin/sh
case "$1" in
    show) echo 127.0.0.1; echo elsewhere ;;
    *) echo "$*" >> "$REQUEUED" ;;
esac
"""


class Job:
    """The template as Slurm runs it."""

    def __init__(self, place: Path, *arguments: str, restarts: int = 0) -> None:
        self.requeued, self.started = place / "requeued", place / "started"
        for file in (self.requeued, self.started):
            file.unlink(missing_ok=True)
        allocation = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_NTASKS": str(TASKS),
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        paths = {"PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        recorded = {"STARTED": str(self.started), "REQUEUED": str(self.requeued)}
        self.log = place / "job.log"
        command = ["bash", str(TEMPLATE), *arguments]
        with self.log.open("w") as log:
            self.batch = subprocess.Popen(
                command, cwd=place, env=os.environ | allocation | paths | recorded, stdout=log, stderr=log
            )

    def signal(self, number: int, *, once: Callable[[], bool]) -> None:
        """Send a signal to what srun has started, once something is so."""
        until = time.monotonic() + SECONDS
        while not (self.started.exists() and self.started.read_text() and once()):
            assert self.batch.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.01)
        os.kill(int(self.started.read_text()), number)

    def end(self) -> tuple[int, list[str]]:
        """The exit code, and what was requeued."""
        code = self.batch.wait(SECONDS)
        return code, self.requeued.read_text().splitlines() if self.requeued.exists() else []

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a corpus and the stand-ins."""
    from conftest import run_command, write_tiny_model

    folder = tmp_path_factory.mktemp("slurm")
    write_tiny_model(folder / "tiny")
    world(folder, folder / "tiny")
    with inside(folder):
        assert run_command(f"{BUILD} --output-dir corpus".split()).code == 0
    (folder / "bin").mkdir()
    for name, script in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    return folder


def steps_done(run: Path) -> list[int]:
    log = run / LOG
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [event["step"] for event in events if "loss" in event]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_job_that_is_signalled_is_requeued_and_ends_as_one_that_is_not(place: Path) -> None:
    requeue = [f"requeue {os.getpid()}"]
    whole = Job(place, *COMMAND.split(), "whole")
    assert whole.end() == (0, []), whole.said()

    early = Job(place, *COMMAND.split(), "run")  # its processes are still importing
    early.signal(signal.SIGUSR1, once=lambda: True)
    assert early.end() == (REQUEUED, requeue), early.said()

    stopped = Job(place, *COMMAND.split(), "run", restarts=1)
    stopped.signal(signal.SIGUSR1, once=lambda: len(steps_done(place / "run")) > 20)
    assert stopped.end() == (REQUEUED, requeue), stopped.said()
    (last,) = re.findall(r"stopped after step (\d+); the same command", stopped.said())
    assert 20 < int(last) < STEPS
    assert [path.name for path in (place / "run").glob("checkpoint-*")] == [f"checkpoint-{last}"]

    again = Job(place, *COMMAND.split(), "run", restarts=2)
    assert again.end() == (0, []), again.said()
    assert f"resuming from run/checkpoint-{last}" in again.said()
    assert steps_done(place / "run") == steps_done(place / "whole") == [*range(1, STEPS + 1)]
    weights, log = ([(place / run / name).read_bytes() for run in ("run", "whole")] for name in ("model.safetensors", LOG))
    assert len({hashlib.sha256(each).hexdigest() for each in weights}) == 1
    losses = [[json.loads(line).get("loss") for line in each.splitlines()] for each in log]
    assert losses[0] == losses[1]
    values = json.loads((place / "run" / "run.json").read_text())
    assert (values["status"], values["num_processes"]) == ("finished", TASKS)


@pytest.mark.e2e
def test_neither_an_error_nor_scancel_is_requeued(place: Path) -> None:
    failing = Job(place, *COMMAND.split(), "bad", "--learning-rate", "no")
    code, requeued = failing.end()
    assert (code, requeued) == (2, []), failing.said()
    cancelled = Job(place, *COMMAND.split(), "cancelled")
    cancelled.signal(signal.SIGTERM, once=lambda: len(steps_done(place / "cancelled")) > 5)
    assert cancelled.end() == (128 + signal.SIGTERM, []), cancelled.said()
    assert list((place / "cancelled").glob("checkpoint-*"))


def test_there_is_an_end_to_requeuing(place: Path) -> None:
    """A job whose time is over before it saves anything would come back forever."""
    (most,) = re.findall(r"^MOST_REQUEUES=(\d+)", TEMPLATE.read_text(), re.MULTILINE)
    codes = place / "codes"
    shutil.copytree(place / "bin", codes / "bin")
    (codes / "bin" / "srun").write_text(f"#!/bin/sh\nexit {REQUEUED}\n")
    assert Job(codes, restarts=int(most) - 1).end() == (REQUEUED, [f"requeue {os.getpid()}"])
    assert Job(codes, restarts=int(most)).end() == (REQUEUED, [])


def test_what_the_template_asks_of_slurm() -> None:
    """The stand-in signals what srun has started: so does Slurm without "B:"."""
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", TEMPLATE.read_text(), re.MULTILINE))
    assert re.fullmatch(r"USR1@\d+", asked["signal"])
    assert {"requeue", "time"} < set(asked)
    assert asked["open-mode"] == "append", "a log of before the requeue stays"
    assert asked["ntasks-per-node"] == asked["gpus-per-node"], "a process each"
