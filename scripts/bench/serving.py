"""`bertkit serve`, compared with `bertkit predict` on the same rows, and with FastAPI and transformers' pipeline behind a lock.

Writes results/bench_serve.json. Servers take turns, each in a fresh process; the clients run on the same machine, and their CPU
time is reported separately. Run it with `make bench-serve`, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.bench.prediction_models import DEV, MODEL, RUN, SEED, TASKS, WORK
from scripts.bench.prediction_sides import threads
from scripts.provenance import PACKAGES, provenance
from scripts.turns import add_data, bertkit_command, keep, run_script, take_turns, typed

NAME, TASK = "bench_serve", "mrpc"
PIPELINE_SERVER = Path(__file__).with_name("pipeline_server.py")
OFFLINE, SERVED, PIPELINE = "predict", "serve", "pipeline"
CLIENTS = 64
MEASURES = {
    "per_s": 1,
    "p50_ms": 2,
    "p99_ms": 2,
    "one_p50_ms": 2,
    "client_cpu": 3,
    "server_cpu": 3,
    "unexpected": None,
}
LABELS = {OFFLINE: "bertkit predict, no server", SERVED: "bertkit serve", PIPELINE: "FastAPI + pipeline, threads: "}
# What is asked: at least so much of predict's rate and so many times the pipeline's; at most so many ms above a lone predict.
NEEDED = {"share": 0.75, "times": 2.0, "above_ms": 2.0}
WARM_UP, GROWTH = 10_000, 1.05  # requests after which memory is flat, and by how much it may grow then


@contextmanager
def running(command: Sequence[str], url: str) -> Iterator[int]:
    """The process of a server, once it answers."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(1200):
                if process.poll() is not None:
                    assert process.stderr is not None
                    raise SystemExit(f"{process.stderr.read()[-3000:]}\nerror: {' '.join(command[:3])} has ended")
                try:
                    urllib.request.urlopen(f"{url}/openapi.json", timeout=60).close()
                    break
                except urllib.error.URLError:
                    time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()


def command_of(side: str, run: Path, port: int) -> list[str]:
    """The words that start a server."""
    if side == SERVED:
        return [*bertkit_command(), "serve", str(run), "--port", str(port), "--device", "cpu"]
    return [sys.executable, str(PIPELINE_SERVER), str(run), str(port), side.removeprefix(PIPELINE)]


def ask(url: str, rows: Path, pid: int, clients: int, requests: int, malformed: float = 0.0) -> dict[str, Any]:
    named = {"clients": clients, "requests": requests, "pid": pid, "malformed": malformed}
    return run_script("scripts.bench.serve_load", [url, str(rows), *typed(named)])


def free_url() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    return f"http://127.0.0.1:{port}", port


def time_server(side: str, folder: Path, requests: int) -> dict[str, Any]:
    """At many clients, and at one."""
    url, port = free_url()
    with running(command_of(side, folder / RUN, port), url) as pid:
        ask(url, folder / DEV, pid, CLIENTS, requests // 10)
        many = ask(url, folder / DEV, pid, CLIENTS, requests)
        one = ask(url, folder / DEV, pid, 1, max(1, requests // 10))
    own = {name: many[name] for name in ("p50_ms", "p99_ms", "client_cpu", "server_cpu")}
    more = {"per_s": many["requests_per_s"], "one_p50_ms": one["p50_ms"]}
    return {**own, **more, "unexpected": many["unexpected"] + one["unexpected"]}


def time_offline(folder: Path, rows: int | None, precision: str) -> dict[str, Any]:
    words = typed({"family": TASKS[TASK].family, "folder": folder, "rows": rows})
    found = run_script("scripts.bench.timed_prediction", [f"bertkit-{precision}", *words])
    return {"per_s": found["texts_per_s"], "one_p50_ms": found["p50_ms"]}


def served_precision(run: Path) -> str:
    """In which precision the server computes where nobody says."""
    url, port = free_url()
    with running(command_of(SERVED, run, port), url), urllib.request.urlopen(f"{url}/info") as answer:
        return json.load(answer)["models"][0]["precision"]


def endure(folder: Path, requests: int) -> dict[str, Any]:
    """Many requests, one of a hundred malformed: what was answered otherwise than it should be, and the memory meanwhile."""
    url, port = free_url()
    with running(command_of(SERVED, folder / RUN, port), url) as pid:
        found = ask(url, folder / DEV, pid, CLIENTS, requests, malformed=0.01)
    memory = {int(number): mib for number, mib in found["rss_mib"].items()}
    warm = [mib for number, mib in memory.items() if number >= min(WARM_UP, max(memory, default=0))]
    growth = round(max(warm) / warm[0], 3) if warm else None
    kept = {name: found[name] for name in ("statuses", "unexpected")}
    return {"requests": requests, **kept, "rss_mib": memory, "growth": growth}


def compare(sides: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    """What NEEDED is about, from medians."""
    medians = {side: {name: statistics.median(each) for name, each in found.items()} for side, found in sides.items()}
    peer = max(found["per_s"] for side, found in medians.items() if side.startswith(PIPELINE))
    ours, offline = medians[SERVED], medians[OFFLINE]
    return {
        "share": round(ours["per_s"] / offline["per_s"], 3),
        "times": round(ours["per_s"] / peer, 3),
        "above_ms": round(ours["one_p50_ms"] - offline["one_p50_ms"], 2),
    }


# --- for docs/serve.md -----------------------------------------------------------------------------------------------------


HEADER = ["setting, medians", "rows/s", "p50, ms", "p99, ms", "one client: p50, ms", "server's cores", "clients' cores"]


def label_of(side: str) -> str:
    return LABELS[side] if side in LABELS else LABELS[PIPELINE] + side.removeprefix(PIPELINE)


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each side; what it does not have is a dash."""
    found = []
    for side, measured in values["sides"].items():
        digits = {"per_s": 1, "p50_ms": 1, "p99_ms": 1, "one_p50_ms": 1, "server_cpu": 2, "client_cpu": 2}
        cells = [f"{statistics.median(measured[name]):.{n}f}" if name in measured else "-" for name, n in digits.items()]
        found.append([label_of(side), *cells])
    return found


def note(values: Mapping[str, Any]) -> str:
    """The ratios, and the memory."""
    found, soak = values["ratios"], values["soak"]
    packages = ", ".join(f"{name} {values['versions'][name]}" for name in ("fastapi", "uvicorn") if name in values["versions"])
    return (
        f"MRPC, {values['clients']} clients, bertkit in {values['precision']}; {packages}. bertkit serve reaches "
        f"**{found['share']:.2f}** of predict's rate, and **{found['times']:.2f}** times that of the faster pipeline server. "
        f"For one client it takes **{found['above_ms']:.1f} ms** more than the model alone. Of {soak['requests']:,} requests, "
        f"one in a hundred malformed, {soak['unexpected']} got a wrong answer; memory grew to {soak['growth']:.3f} times "
        f"what it was after the first {WARM_UP:,}."
    )


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/serve.md."""
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=1), [note(values)])


# --- the command -----------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from bertkit import progress
    from bertkit.model.directory import MINILM_SHA256

    run_script("scripts.bench.prediction_models", [TASK, *typed({"work": options.work, "data": options.data, "graphs": ""})])
    folder = options.work / TASK
    precision = served_precision(folder / RUN)
    sides = [OFFLINE, SERVED, *(f"{PIPELINE}{count}" for count in range(1, threads() + 1))]

    def run(side: str, number: int) -> dict[str, Any]:
        if side == OFFLINE:
            return time_offline(folder, options.rows, precision)
        return time_server(side, folder, options.requests)

    def show_round(number: int, side: str, found: Mapping[str, Any]) -> None:
        figures = f"{found['per_s']:7.1f} rows/s  {found['one_p50_ms']:6.1f} ms alone"
        progress.note(f"round {number}/{options.rounds}  {figures}  {label_of(side)}")

    found = take_turns(run, sides, options.rounds, MEASURES, show_round)
    return {
        "name": NAME,
        "command": [" ".join(["python -m scripts.bench.serving", *typed({"rounds": options.rounds})])],
        **provenance((*PACKAGES, "fastapi", "starlette", "uvicorn")),
        "seeds": [SEED],
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "precision": precision,
        "clients": CLIENTS,
        "sides": found,
        "ratios": compare(found),
        "soak": endure(folder, options.soak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, TASKS[TASK].folder)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is made once [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of few requests: does it work at all? Nothing is written")
    options = parser.parse_args()
    options.rows, options.requests, options.soak = (64, 200, 5_000) if options.quick else (None, 2_000, 100_000)
    options.rounds = 1 if options.quick else options.rounds

    from bertkit import progress

    values = measure(options)
    progress.table("medians", HEADER, rows(values))
    progress.note(note(values))
    keep(values, unless="three rounds" if options.rounds < 3 else "")


if __name__ == "__main__":
    main()
