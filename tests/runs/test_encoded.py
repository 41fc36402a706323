"""Splits as rows and features: cut and joined."""

from __future__ import annotations

import numpy as np

from bertkit.features import Features, Ragged
from bertkit.readers import Examples
from bertkit.runs.encoded import Split


def test_the_parts_of_a_split_join_to_the_split() -> None:
    """The second row has two windows, the third none, as if it were dropped."""
    ids = Ragged.of([[2, 7, 3], [2, 8, 9, 3], [2, 9, 3], [2, 5, 3]])
    features = Features(ids, Ragged.of([[0] * len(ids[number]) for number in range(4)]), np.array([0, 1, 1, 3]))
    split = Split(Examples({"text": [*"abcd"], "id": [1, 2, 3, 4]}, "rows.csv", range(2, 6)), features)
    parts = [split.part(0, 1), split.part(1, 3), split.part(3, 4)]
    assert [part.examples.columns["text"] for part in parts] == [["a"], ["b", "c"], ["d"]]
    assert [part.features.examples.tolist() for part in parts] == [[0], [0, 0], [0]]
    assert [parts[1].features.input_ids[number].tolist() for number in range(2)] == [[2, 8, 9, 3], [2, 9, 3]]
    joined = Split.joined(parts)
    assert joined.examples.columns == split.examples.columns
    assert joined.features.examples.tolist() == features.examples.tolist()
    assert joined.features.fingerprint() == features.fingerprint()
    assert Split.joined(parts[:1]) is parts[0]
