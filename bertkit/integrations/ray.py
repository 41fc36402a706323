"""Predictions of a Ray Data dataset: a pool of actors, each with the model in memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import packages_of
from bertkit.integrations.tables import TablePredictor, open_here

if TYPE_CHECKING:
    from ray.data import Dataset

BATCH_SIZE = 1024


def predict_dataset(
    model: str | Path,
    ds: Dataset,
    *,
    num_actors: int = 1,
    num_cpus: int = 1,
    num_gpus: float = 0,
    batch_size: int = BATCH_SIZE,
    precision: str = "auto",
) -> Dataset:
    """A lazy dataset with the columns of `ds` and those of the predictions.

    model: a run folder or any Hugging Face BERT, by a path that all nodes see, or a hub id. num_actors: how many copies of the
    model. num_cpus: CPUs reserved for each, and the threads that it computes with. num_gpus: GPUs reserved for each; 0 computes
    on CPUs. batch_size: rows to predict at once. precision: as in bertkit.load; auto is resolved here, once for all actors.

    A column with the same name as a predicted one is renamed input_NAME. Raises ModelError, MachineError, UsageError; DataError
    for a column that the model needs and `ds` is known to lack. An actor's DataError names a row by its `id`.
    """
    with packages_of("ray"):
        import ray
        from ray.data import ActorPoolStrategy

    if ray.is_initialized() and (reserved := num_actors * num_cpus) >= (there := ray.cluster_resources().get("CPU", 0)):
        what = f"the actors reserve {reserved} CPUs of the {there:g} that Ray has, and none is left to read the data"
        warnings.warn(f"{what}: unless the cluster grows, Ray waits forever; ask for fewer actors or CPUs", stacklevel=2)
    predictor, opening = open_here(model, "cuda" if num_gpus else "cpu", precision)
    if (schema := ds.schema(fetch_if_missing=False)) is not None:
        predictor.output_columns(schema.names)
    return ds.map_batches(
        TablePredictor,
        fn_constructor_kwargs={**opening, "num_threads": num_cpus},
        compute=ActorPoolStrategy(size=num_actors),
        batch_size=batch_size,
        batch_format="pyarrow",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
