"""Shared by families that read whole sequences: how the tokens are pooled into one vector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from bertkit.config import DATA, option
from bertkit.errors import UsageError
from bertkit.metrics.classification import find_metric, metric_path
from bertkit.model.config import CLS_LAYERS, POOLINGS, BertConfig
from bertkit.tasks.layers import LayersRecipe, LayersTask


@dataclass(frozen=True, kw_only=True)
class PoolingRecipe(LayersRecipe):
    """A recipe of such a family."""

    pooling: str = option(
        "pooled",
        "what the head classifies: pooled, [CLS] through the pooler; cls, [CLS] itself; mean or max, over all tokens; "
        "cls-last4 and cls-mix, cls with --layers last4 or mix. Only pooled opens as a classifier in transformers",
        choices=POOLINGS,
        commands=DATA,
    )
    metric: tuple[str, ...] | None = option(
        None,
        "scores by name, or evaluate:NAME of the evaluate library; the first one decides which step is best",
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
                f"--pooling {recipe.pooling} and --layers {recipe.layers} exclude each other", hint="--pooling cls"
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
