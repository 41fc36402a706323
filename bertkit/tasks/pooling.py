"""Shared by families whose head can read more than the last layer: tags, and whole sequences, whose tokens are pooled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from bertkit.config import DATA, option
from bertkit.errors import UsageError
from bertkit.metrics.classification import find_metric, metric_path
from bertkit.model.config import CLS_LAYERS, LAYERS, POOLINGS, BertConfig
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class LayersRecipe(Recipe):
    """A recipe of a family whose head can read more than the last layer."""

    layers: str = option(
        "last",
        "what the head reads for each token: last, the last layer; last4, the last four concatenated; "
        "last4-sum or last4-mix, their sum or mix; sum, the sum of all; or mix, a mix of all and the embeddings. A mix has "
        "learned weights (ELMo). Meant for --freeze encoder; transformers loads the head only with last",
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


@dataclass(frozen=True, kw_only=True)
class PoolingRecipe(LayersRecipe):
    """A recipe of a family that reads whole sequences: the tokens are pooled into one vector."""

    pooling: str = option(
        "pooled",
        "input of the head: pooled, [CLS] through the pooler; cls, [CLS] itself; mean or max, over all tokens; "
        "cls-last4 and cls-mix, cls with --layers last4 or mix. transformers loads only pooled as a classifier",
        choices=POOLINGS,
        commands=DATA,
    )
    metric: tuple[str, ...] | None = option(
        None,
        "metrics by name, or evaluate:NAME of the evaluate library; the first one selects the best checkpoint",
        commands=DATA,
    )

    @property
    def truncates(self) -> bool:
        return True

    def resolved(self) -> Self:
        recipe = super().resolved()
        if recipe.metric:
            names = tuple(map(metric_path, recipe.metric))
            recipe = replace(recipe, metric=names, metrics=tuple(map(find_metric, names)))
        if recipe.layers != "last" and recipe.pooling in ("pooled", *CLS_LAYERS):
            raise UsageError(
                f"--pooling {recipe.pooling} and --layers {recipe.layers} cannot be combined", hint="--pooling cls"
            )
        return recipe


@dataclass(frozen=True, kw_only=True)
class PoolingTask(LayersTask):
    """A task of such a family. transformers opens its model as a classifier if [CLS] is pooled, else as an encoder."""

    recipe: PoolingRecipe

    @property
    def layers_read(self) -> str:
        return CLS_LAYERS.get(self.recipe.pooling, self.recipe.layers)

    def architecture(self, config: BertConfig) -> str:
        return "BertModel" if config.is_decoder else super().architecture(config)
