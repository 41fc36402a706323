"""What families share whose head reads a sequence as a whole: how its tokens are pooled to one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertkit.config import DATA, option
from bertkit.errors import UsageError
from bertkit.model.config import CLS_LAYERS, POOLINGS, BertConfig
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class PoolingRecipe(Recipe):
    """A recipe of such a family."""

    pooling: str = option(
        "pooled",
        "what is classified: pooled, [CLS] through the pooler; cls, [CLS] itself; mean or max of all tokens; cls-last4, [CLS] "
        "of the last four layers side by side; or cls-mix, a learned mix of it over all layers, for --freeze encoder; only "
        "pooled opens as a classifier in transformers",
        choices=POOLINGS,
        used=DATA,
    )
    metric: tuple[str, ...] | None = option(
        None,
        "scores by name; the first one decides which step is best; also evaluate:NAME of the evaluate library",
        used=DATA,
    )

    @property
    def truncates(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class PoolingTask(Task):
    """A task of such a family. transformers opens its model as a classifier if [CLS] is pooled, else as an encoder."""

    recipe: PoolingRecipe

    @classmethod
    def fits(cls, block: Mapping[str, Any], recipe: Any) -> bool:
        return super().fits(block, recipe) and recipe.pooling in (None, block.get("pooling", "pooled"))

    def architecture(self, config: BertConfig) -> str:
        return self.hf_class if self.recipe.pooling == "pooled" and not config.is_decoder else "BertModel"

    def configure(self, config: BertConfig) -> BertConfig:
        if self.recipe.pooling == "cls-last4" and config.num_hidden_layers < CLS_LAYERS:
            what = f"--pooling cls-last4 reads {CLS_LAYERS} layers; the model has {config.num_hidden_layers}"
            raise UsageError(what, hint="choose another pooling: --pooling cls")
        return super().configure(config)
