"""Models behind HTTP, for tests: an app with its batcher, and a real server of it in a thread."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import uvicorn
from fastapi import FastAPI

from bertkit.config import filled
from bertkit.serve.app import make_app
from bertkit.serve.batcher import Batcher
from bertkit.serve.huggingface import Served
from bertkit.serve.metrics import Metrics
from bertkit.serve.server import open_model
from bertkit.serve.settings import ServeConfig

CPU = {"device": "cpu", "precision": "fp32"}


class Serving(NamedTuple):
    app: FastAPI
    models: dict[str, Served]
    batcher: Batcher


@contextmanager
def serving(models: Mapping[str, Path], *, threads: int = 1, **options: Any) -> Iterator[Serving]:
    """An app that serves model folders by name, until its batcher is closed. threads: torch's, and so many batches at once.
    options: of ServeConfig.
    """
    settings, metrics = filled(ServeConfig(**options)), Metrics()
    served = {name: Served(name, open_model(str(folder), CPU)) for name, folder in models.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with ThreadPoolExecutor(1) as first_thread:
        batcher = Batcher(settings, metrics, first_thread, torch.device("cpu"))
        try:
            yield Serving(make_app(served, batcher, settings, metrics), served, batcher)
        finally:
            batcher.close()
            torch.set_num_threads(before)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The URL of a real server of the app, in a thread."""
    how = {"lifespan": "off", "log_config": None, "log_level": "critical", "timeout_graceful_shutdown": 5}
    server = uvicorn.Server(uvicorn.Config(app, **how))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def with_mask(token: str, model: Path, folder: Path) -> Path:
    """A copy of a model folder whose tokenizer has another mask token."""
    shutil.copytree(model, folder)
    for file in (folder / name for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        file.write_text(file.read_text(encoding="utf-8").replace("[MASK]", token), encoding="utf-8")
    return folder


class Gate:
    """Stands before a model: nothing is computed until it is opened. sizes: the rows of each batch that was."""

    def __init__(self, served: Served, monkeypatch: Any, *, is_open: bool = False) -> None:
        self.sizes: list[int] = []
        self.reached, self.opened = threading.Event(), threading.Event()
        compute = served.predictor.decode

        def decode(split: Any, *arguments: Any, **more: Any) -> Any:
            self.sizes.append(len(split.examples))
            self.reached.set()
            assert self.opened.wait(60)
            return compute(split, *arguments, **more)

        monkeypatch.setattr(served.predictor, "decode", decode)
        if is_open:
            self.opened.set()


def flat(answer: Any) -> dict[str, Any]:
    """The values of nested lists and objects by their paths, which pytest compares with a tolerance."""
    if not isinstance(answer, dict | list):
        return {"": answer}
    parts = answer.items() if isinstance(answer, dict) else enumerate(answer)
    return {f"{name}/{path}": value for name, part in parts for path, value in flat(part).items()}
