"""Shared by families whose head can read more than the encoder's last layer: tags, and whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertkit.config import DATA, option
from bertkit.errors import UsageError
from bertkit.model.config import LAYERS, BertConfig
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class LayersRecipe(Recipe):
    """A recipe of such a family."""

    layers: str = option(
        "last",
        "what the head reads for each token: last, the last layer; last4, the last four concatenated; "
        "last4-sum or last4-mix, their sum or mix; sum, the sum of all; or mix, a mix of all and the embeddings. A mix has "
        "learned weights (ELMo). Meant for --freeze encoder; transformers opens the head only with last",
        choices=tuple(LAYERS),
        commands=DATA,
    )


@dataclass(frozen=True, kw_only=True)
class LayersTask(Task):
    """A task of such a family."""

    recipe: Any

    @property
    def layers_read(self) -> str:
        """What the head reads for each token: one of LAYERS."""
        return self.recipe.layers

    def configure(self, config: BertConfig) -> BertConfig:
        layers = self.layers_read or "last"
        needed = abs(LAYERS[layers][0].start)
        if layers != "last" and config.num_hidden_layers < needed:
            what = f"{layers} reads {needed} layers; the model has {config.num_hidden_layers}"
            raise UsageError(what, hint="read fewer: --layers mix, or --layers last")
        return super().configure(config)
