"""What the families share whose head reads a sequence as a whole: how its tokens become one vector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from bertkit.config import option
from bertkit.errors import ModelError, UsageError
from bertkit.metrics.classification import find_metric, settled_name
from bertkit.model.config import CLS_LAYERS, FAMILY_KEY, POOLING_KEY, POOLINGS, BertConfig
from bertkit.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class PoolingTask(Task):
    """A recipe of such a family. transformers opens it as a classifier where [CLS] is pooled, and else as an encoder."""

    pooling: str = option(
        "pooled",
        "what is classified: pooled, [CLS] through the pooler; cls, [CLS] itself; mean or max of all tokens; cls-last4, [CLS] "
        "of the last four layers side by side; or cls-mix, a learned mix of it over all layers, for --freeze encoder; only "
        "pooled opens as a classifier in transformers",
        choices=POOLINGS,
    )

    metric: tuple[str, ...] | None = option(
        None, "scores by name, the first of which decides which step is best; also evaluate:NAME of the evaluate library"
    )

    def settled(self) -> Self:
        recipe = super().settled()
        if recipe.metric is None:
            return recipe
        names = tuple(map(settled_name, recipe.metric))
        return replace(recipe, metric=names, metrics=tuple(map(find_metric, names)))

    def architecture(self, config: BertConfig) -> str:
        return self.hf_class if self.pooling == "pooled" and not config.is_decoder else "BertModel"

    def has_head(self, config: BertConfig) -> bool:
        if self.architecture(config) == self.hf_class:
            return super().has_head(config) and POOLING_KEY not in config.extra
        return config.extra.get(POOLING_KEY) == self.pooling and config.extra.get(FAMILY_KEY) == self.family

    @property
    def needed_head(self) -> str:
        return self.hf_class if self.pooling == "pooled" else f"one trained with --pooling {self.pooling}"

    def describe_head(self, config: BertConfig) -> str:
        own = f" trained with --pooling {config.extra[POOLING_KEY]}" if POOLING_KEY in config.extra else ""
        own += f" for {config.extra[FAMILY_KEY]}" if config.extra.get(FAMILY_KEY, self.family) != self.family else ""
        return super().describe_head(config) + own

    def model_config(self, config: BertConfig) -> BertConfig:
        config = super().model_config(config)
        if self.pooling == "cls-last4" and config.num_hidden_layers < CLS_LAYERS:
            what = f"--pooling cls-last4 reads {CLS_LAYERS} layers; the model has {config.num_hidden_layers}"
            raise UsageError(what, hint="choose another pooling: --pooling cls")
        own = {} if self.architecture(config) == self.hf_class else {POOLING_KEY: self.pooling, FAMILY_KEY: self.family}
        return replace(config, extra=config.extra | own)

    def as_trained(self, config: BertConfig) -> Self:
        pooling = config.extra.get(POOLING_KEY, "pooled")
        if pooling not in POOLINGS:
            raise ModelError(f"{POOLING_KEY} is {pooling!r}; expected {' or '.join(POOLINGS)}", where="config.json")
        return replace(self, pooling=pooling)
