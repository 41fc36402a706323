"""Settings by layer: which parts of a model are frozen, reinitialized, or learn more slowly than those above them.

Depth 0 is the embeddings, 1 to num_hidden_layers the encoder's layers from the bottom, and one more the pooler and the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from bertkit.config import TrainConfig
from bertkit.errors import UsageError
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig

_LAYER = re.compile(r"(?:bert\.)?encoder\.layer\.(\d+)\.")


def num_layers(names: Iterable[str]) -> int:
    """The number of encoder layers among parameter names."""
    return max((int(match[1]) + 1 for name in names if (match := _LAYER.match(name))), default=0)


def depth_of(name: str, num_hidden_layers: int) -> int:
    """The depth of a parameter."""
    if match := _LAYER.match(name):
        return int(match[1]) + 1
    return 0 if name.removeprefix("bert.").startswith("embeddings.") else num_hidden_layers + 1


def learning_rate_scales(names: Iterable[str], config: TrainConfig) -> dict[str, float]:
    """The factor of each parameter's learning rate: layerwise_lr_decay to the power of its distance below the head.

    (Howard and Ruder, 2018, section 3.2; Clark et al., 2020, appendix A.)
    """
    names = list(names)
    layers = num_layers(names)
    return {name: config.layerwise_lr_decay ** (layers + 1 - depth_of(name, layers)) for name in names}


def freeze(module: nn.Module, config: TrainConfig) -> None:
    """Freeze what config.freeze names: embeddings, encoder (including embeddings), or embeddings and that many lowest layers.

    Raises UsageError for any other name, or for more layers than the model has.
    """
    if config.freeze is None:
        return
    parameters = dict(module.named_parameters())
    layers = num_layers(parameters)
    named = {"embeddings": 0, "encoder": layers}
    deepest = named.get(config.freeze, int(config.freeze) if config.freeze.isdecimal() else -1)
    if not 0 <= deepest <= layers:
        what = f"--freeze is {config.freeze!r}; expected embeddings, encoder, or a number of layers from 1 to {layers}"
        raise UsageError(what)
    if deepest > layers - config.reinit_layers:
        what = f"--freeze {config.freeze} and --reinit-layers {config.reinit_layers} have layers in common"
        raise UsageError(what, hint="newly initialized layers must be trained: lower one of the two")
    for name, parameter in parameters.items():
        if depth_of(name, layers) <= deepest:
            parameter.requires_grad_(False)


def reinitialize(module: nn.Module, architecture: BertConfig, config: TrainConfig) -> None:
    """Fresh weights for the pooler and the config.reinit_layers topmost layers (Zhang et al., 2021, section 4).

    Raises UsageError for more layers than the model has.
    """
    if not config.reinit_layers:
        return
    encoder = module.get_submodule("bert")
    layers = list(encoder.get_submodule("encoder").get_submodule("layer").children())
    if config.reinit_layers > len(layers):
        raise UsageError(f"--reinit-layers is {config.reinit_layers}; the model has {len(layers)} layers")
    pooler = getattr(encoder, "pooler", None)
    fresh = nn.ModuleList([*layers[-config.reinit_layers :], *([pooler] if pooler is not None else [])])
    initialize(fresh, architecture, seed=config.seed)
