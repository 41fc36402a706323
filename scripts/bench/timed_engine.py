"""One timed prediction of Parquet files by one side, in its own process; prints one line of JSON.

Rows/s in steady state, without starting workers and opening the model. `engines.py` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ONE, RAY, SPARK = "predict", "ray", "spark"
PARTS = 16  # of the rows for each worker, so that none waits long for the last one


class Timed(NamedTuple):
    """predict: reads a folder of files and predicts all rows. warm: whether workers stay from one call to the next."""

    predict: Callable[[Path], Any]
    warm: bool


def one_process(run: Path, threads: int) -> Timed:
    import pyarrow.dataset as parquet
    import torch

    from bertkit import load

    torch.set_num_threads(threads)
    predictor = load(run, "cpu")

    def predict(folder: Path) -> None:
        batches = parquet.dataset(folder).to_batches()
        for _ in predictor.predict(row for batch in batches for row in batch.to_pylist()):
            pass

    return Timed(predict, warm=True)


def in_ray(run: Path, threads: int) -> Timed:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    import ray

    from bertkit.integrations.ray import predict_dataset

    ray.init(num_cpus=threads + 1, include_dashboard=False, log_to_driver=False)  # one to read the files

    def predict(folder: Path) -> None:
        ds = ray.data.read_parquet(str(folder)).repartition(PARTS * threads)
        predict_dataset(run, ds, num_actors=threads).materialize()

    return Timed(predict, warm=False)


def in_spark(run: Path, threads: int) -> Timed:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from bertkit.integrations.spark import predict_dataset

    settings = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    spark = SparkSession.builder.master(f"local[{threads}]").config(map=settings).getOrCreate()

    def predict(folder: Path) -> None:
        df = spark.read.parquet(str(folder)).repartition(PARTS * threads)
        predict_dataset(run, df).write.format("noop").mode("overwrite").save()

    return Timed(predict, warm=True)


SIDES = {ONE: one_process, RAY: in_ray, SPARK: in_spark}


def rate(
    timed: Timed, warm_up: tuple[Path, int], files: tuple[Path, int], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Rows/s of the files, after a call that does not count. Folders are given with their number of rows; what each call needs
    beside predicting goes away in the difference of two.
    """

    def seconds(folder: Path) -> float:
        start = clock()
        timed.predict(folder)
        return clock() - start

    seconds(warm_up[0])
    if timed.warm:
        return files[1] / seconds(files[0])
    return (files[1] - warm_up[1]) / (seconds(files[0]) - seconds(warm_up[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of all workers together, each of which has one")
    for name in ("warm-up", "files"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="folder of Parquet files")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"

    import pyarrow.dataset as parquet

    from bertkit import load

    counted = [(folder, parquet.dataset(folder).count_rows()) for folder in (options.warm_up, options.files)]
    found = rate(SIDES[options.side](options.run, options.threads), counted[0], counted[1])
    print(json.dumps({"per_s": found, "precision": load(options.run, "cpu").precision.name}))


if __name__ == "__main__":
    main()
