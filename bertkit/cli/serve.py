"""bertkit serve"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bertkit.cli.options import with_options
from bertkit.config import TrainConfig, filled, options_of
from bertkit.serve.settings import ServeConfig

_SERVER = {name: ("Server", option) for name, option in options_of(ServeConfig).items()}
_COMPUTING = {name: ("Computing", options_of(TrainConfig)[name]) for name in ("device", "precision")}


@with_options(_SERVER | _COMPUTING)
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders (for --seeds or --folds, the median run), or Hugging Face BERT models with a head.",
            metavar="RUN",
            show_default=False,
        ),
    ],
    *,
    overrides: dict[str, Any],
) -> None:
    """Serve models over HTTP, in the request formats of Hugging Face's clients and of text-embeddings-inference.

    Concurrent requests are batched. Texts are logged only with --log-texts. Ctrl-C stops the server after it has answered all
    accepted requests.

    [bold]bertkit serve runs/mine[/]

    [bold]bertkit serve runs/tickets runs/ner --port 9000 --precision int8[/]

    [bold]BERTKIT_TOKEN=secret bertkit serve runs/mine --host 0.0.0.0[/]
    """
    from bertkit.serve.server import serve

    settings = filled(ServeConfig(**{name: value for name, value in overrides.items() if name in _SERVER}))
    serve(runs, settings, {name: value for name, value in overrides.items() if name in _COMPUTING})
