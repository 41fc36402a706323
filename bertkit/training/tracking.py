"""Dashboards that a run reports to (TensorBoard, Weights & Biases, trackio, MLflow), through Accelerate."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import MachineError, not_a_choice

if TYPE_CHECKING:
    from accelerate import Accelerator

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def refuse_unusable_trackers(names: Sequence[str] | None) -> None:
    """Raise UsageError for a tracker that is none of TRACKERS, MachineError for one whose package is missing."""
    for name in names or ():
        if name not in TRACKERS:
            raise not_a_choice("--track", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise MachineError(f"--track {name} needs the package {name}, which is missing", hint=f"pip install {name}")


@contextmanager
def tracked(accelerator: Accelerator, names: Sequence[str] | None, folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Send what `accelerator.log` logs to these trackers until the block ends. settings: shown beside the curves.

    Raises MachineError for a tracker that does not start.
    """
    if not names:
        yield
        return
    from accelerate.utils import LoggerType, ProjectConfiguration

    accelerator.project_configuration = ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder))
    accelerator.log_with = [LoggerType(name) for name in names]
    plain = {name: value for name, value in settings.items() if isinstance(value, (int, float, str, bool))}
    try:
        accelerator.init_trackers("bertkit", config=plain, init_kwargs={"wandb": {"name": folder.name, "dir": str(folder)}})
    except Exception as error:  # of their own kinds: no login, no server
        what = f"--track {','.join(names)} cannot start: {' '.join(str(error).split()) or type(error).__name__}"
        raise MachineError(what, hint="log in or start its server, or leave out --track") from error
    try:
        yield
    finally:
        for tracker in accelerator.trackers:  # end_training would also end the process group, which is still needed
            tracker.finish()
