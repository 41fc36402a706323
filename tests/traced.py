"""ONNX graphs of the tests' heads, each traced once in a process: tracing even a tiny model takes seconds."""

from __future__ import annotations

from pathlib import Path

from bertkit.model.heads import Head
from bertkit.runs.export import graph

_GRAPHS: dict[tuple[str, ...], bytes] = {}  # by the head: its modules, attributes and weights


def write_graph(head: Head, path: Path) -> None:
    """As `graph.write_graph`."""
    attributes = {name: value for name, value in vars(head).items() if not name.startswith("_")}
    weights = [f"{name} {tensor.numpy().tobytes()!r}" for name, tensor in head.state_dict().items()]
    key = (repr(head), repr(attributes), *weights)
    if key not in _GRAPHS:
        graph.write_graph(head, path)
        _GRAPHS[key] = path.read_bytes()
    path.write_bytes(_GRAPHS[key])
