"""The table of objectives: consistent with the option, and names from older runs still work."""

from __future__ import annotations

from bertkit import config
from bertkit.config import PretrainConfig
from bertkit.corpus.objectives import OBJECTIVES


def test_the_option_names_the_table() -> None:
    assert list(config.OBJECTIVE_HELP) == list(OBJECTIVES)
    assert all(name == objective.name for name, objective in OBJECTIVES.items())
    assert set(config.RENAMED_OBJECTIVES.values()) <= set(OBJECTIVES)
    assert not set(config.RENAMED_OBJECTIVES) & set(OBJECTIVES)
    assert PretrainConfig(objective="ltr") == PretrainConfig(objective="clm")
    assert all(bool(objective.pair_term) == (len(objective.pair_labels) == 2) for objective in OBJECTIVES.values())
