"""One timed prediction of a task's dev rows by one side, in its own process; prints one line of JSON.

All rows at once: texts/s from text to decision, after a warm-up pass; for bertkit, also the rate that its matrix products alone
would allow. One at a time: the median and the 99th percentile in milliseconds. `prediction.py` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

LATENCIES = 200  # texts, one at a time
UNTIMED = 20  # before them
PRODUCTS = ("linear", "addmm", "mm", "bmm", "baddbmm", "_linear_pointwise", "_mkl_linear", "qlinear_pointwise")


def score(family: str, truth: Sequence[Any], decisions: Sequence[Any]) -> float:
    """Accuracy, or F1 of the entities by seqeval."""
    if family == "token-classification":
        from seqeval.metrics import f1_score

        return float(f1_score(list(truth), list(decisions)))
    return sum(one == other for one, other in zip(truth, decisions, strict=True)) / len(truth)


def time_products(work: Callable[[], Any]) -> float:
    """Seconds that torch's matrix products take of `work`, each in its place, with its operands where they are then.

    Of batches that are computed side by side, seconds divided by how many.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    from bertkit.runs import forward

    seconds: list[float] = []
    own, side_by_side = threading.current_thread(), forward.side_by_side

    class Timed(TorchDispatchMode):
        def __init__(self, streams: int = 1) -> None:
            super().__init__()
            self.streams = streams

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operator.overloadpacket.__name__ not in PRODUCTS:
                return operator(*args, **(kwargs or {}))
            start = time.perf_counter()
            found = operator(*args, **(kwargs or {}))
            seconds.append((time.perf_counter() - start) / self.streams)
            return found

    def timed(compute: Callable[[Any], Any], items: Any, streams: int) -> Any:
        def of_thread(item: Any) -> Any:
            with nullcontext() if threading.current_thread() is own else Timed(streams):  # a mode is one thread's
                return compute(item)

        return side_by_side(of_thread, items, streams)

    forward.side_by_side = timed
    try:
        with Timed():
            work()
    finally:
        forward.side_by_side = side_by_side
    if not seconds:
        raise SystemExit(f"error: there were no products; expected some of {', '.join(PRODUCTS)}")
    return sum(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side")
    parser.add_argument("--family", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="what prediction_models.py has made")
    parser.add_argument("--rows", type=int, help="so many of the dev rows, evenly spaced; default: all")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    import numpy as np

    from scripts.bench.prediction_inputs import read_rows
    from scripts.bench.prediction_models import DEV
    from scripts.bench.prediction_sides import SIDES, threads

    rows = read_rows(options.folder / DEV)
    if options.rows is not None:
        rows = [rows[at] for at in np.linspace(0, len(rows) - 1, min(options.rows, len(rows))).astype(int)]
    decide = SIDES[options.side].open(options.folder, options.family)
    decide(rows)
    start = time.perf_counter()
    decisions = decide(rows)
    seconds = time.perf_counter() - start

    found: dict[str, Any] = {"texts_per_s": len(rows) / seconds}
    if SIDES[options.side].ours:
        found["products_per_s"] = len(rows) / time_products(lambda: decide(rows))

    milliseconds = []
    singles = np.linspace(0, len(rows) - 1, UNTIMED + LATENCIES).astype(int)
    for at in np.random.default_rng(0).permutation(singles):
        start = time.perf_counter()
        decide([rows[at]])
        milliseconds.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(milliseconds[UNTIMED:], [50, 99]).tolist()
    truth = [row["tags"] if options.family == "token-classification" else row["label"] for row in rows]
    found |= {"p50_ms": p50, "p99_ms": p99, "rows": len(rows), "threads": threads()}
    print(json.dumps({**found, "score": score(options.family, truth, decisions)}))


if __name__ == "__main__":
    main()
