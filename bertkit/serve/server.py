"""`bertkit serve`: models opened, a port bound, and requests answered until a signal comes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bertkit import manifest, progress
from bertkit.errors import ModelError, UsageError, packages_of
from bertkit.model.bert import warm_up
from bertkit.model.streams import num_streams
from bertkit.runs.forward import batch_tokens
from bertkit.runs.inference.language_model import LanguageModelPredictor, open_to_fill
from bertkit.runs.inference.loading import kind_of
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.series import runs_to_use
from bertkit.runs.target import open_target
from bertkit.serve.batcher import Batcher
from bertkit.serve.huggingface import MOST_FILLS, Served
from bertkit.serve.metrics import Metrics
from bertkit.serve.settings import ServeConfig, is_local
from bertkit.tasks.task import FINETUNE


def serve(runs: Sequence[str], settings: ServeConfig, overrides: Mapping[str, Any]) -> None:
    """Serve runs, or other models, under the names of their folders until SIGINT or SIGTERM; accepted requests are finished.

    overrides: device and precision. Raises UserError, always before the first request.
    """
    with packages_of("serve"):
        import fastapi  # noqa: F401
        import uvicorn
    from bertkit.serve.app import make_app

    named: dict[str, str] = {}
    for run in runs:
        if (name := os.path.basename(os.path.abspath(run))) in named:
            what = f"two runs are named {name!r}: {named[name]} and {run}"
            is_here = any(map(os.path.isdir, (named[name], run)))
            hint = "with ln -s" if is_here else "with hf download ID --local-dir FOLDER"
            raise UsageError(what, hint=f"give one another name, for example {hint}")
        named[name] = run
    settings = replace(settings, token=settings.token or os.environ.get("BERTKIT_TOKEN"))
    is_open = not settings.token and not is_local(settings.host)
    if is_open and settings.auth:
        what = f"--host {settings.host} lets other machines in, but there is no --token"
        raise UsageError(what, hint="give one: --token SECRET; or let anyone in: --no-auth")
    with _bind(settings.host, settings.port) as listening, ThreadPoolExecutor(1, "model") as first_thread:
        options = {**overrides, "micro_batch_tokens": settings.max_batch_tokens}
        models = first_thread.submit(_open_models, named, options).result()
        metrics = Metrics()
        device = next(iter(models.values())).predictor.processes.device
        with closing(Batcher(settings, metrics, first_thread, device)) as batcher:
            config = uvicorn.Config(
                make_app(models, batcher, settings, metrics),
                lifespan="off",
                log_config=None,
                log_level="critical",  # its errors may quote requests
                access_log=False,
                server_header=False,
                limit_concurrency=4 * settings.max_queue,  # bounds the memory of requests that are still to come
                timeout_graceful_shutdown=int(settings.timeout) + 1,
            )
            host, port = listening.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if is_open:
                progress.warn(f"--no-auth: anyone who can reach {url} can use it")
            progress.note(f"{url} serves {', '.join(models)}: open it in a browser; API: {url}/docs; Ctrl-C stops it")
            uvicorn.Server(config).run(sockets=[listening])


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect before the models are loaded wait. Raises UsageError."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # which create_server adds
        raise UsageError(f"cannot listen on {host} port {port}: {reason}", hint="choose another --port, or --host") from None
    # An answer is two writes, head and body. Connections inherit this; without it the body waits for the client's delayed ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _open_models(named: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Served]:
    """Models by name, with their weights read and verified. Raises UserError."""
    models = {name: Served(name, open_model(run, options)) for name, run in named.items()}
    for served in models.values():
        _warm_up(served.predictor.model, served.predictor.processes.device, options["micro_batch_tokens"])  # reads it
    manifest.raise_if_damaged()
    return models


def _warm_up(model: nn.Module, device: torch.device, max_batch_tokens: int) -> None:
    """Compile the kernels that batches of several requests need on a CPU, with the number of threads that such a batch has."""
    if device.type == "cpu":
        threads = torch.get_num_threads()
        torch.set_num_threads(threads // num_streams(device))
        warm_up(model, batch_tokens(max_batch_tokens, device))
        torch.set_num_threads(threads)


def open_model(name: str, options: Mapping[str, Any]) -> Predictor:
    """Open a model, without reading its weights yet. Raises UsageError, ModelError."""
    (run,) = runs_to_use(name)
    kind = kind_of(run)
    if kind is LanguageModelPredictor:
        return open_to_fill(run, options, top_k=MOST_FILLS)
    if kind is Predictor:
        raise ModelError("the model has no trained head: there is nothing to serve", where=run, hint=FINETUNE)
    return TaskPredictor(open_target(run, None, options, to_predict=True))
