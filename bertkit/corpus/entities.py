"""Entities of a list, found among tokens, for --masking entities (Sun et al., 2019, ERNIE, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.corpus.words import in_vocabulary
from bertkit.errors import DataError, listed, plural
from bertkit.features import Ragged
from bertkit.readers.content import open_content, read_text
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Entities:
    """A trie of token ids: edge k, from node edges[k] // V by token edges[k] % V, leads to node k + 1; node 0 is the root.

    ends: (nodes,) whether an entity ends there. continues: (V,) tokens that continue a word.
    """

    edges: NDArray[np.int64]
    ends: NDArray[np.bool_]
    continues: NDArray[np.bool_]

    @classmethod
    def of(cls, entities: Ragged, continues: NDArray[np.bool_]) -> Entities:
        """The trie of entities as token ids; none is empty."""
        nodes = np.zeros(len(entities.lengths), dtype=np.int64)  # the node that each entity has reached
        levels, count = [], 1
        for depth in range(entities.lengths.max(initial=0)):
            longer = np.flatnonzero(entities.lengths > depth)
            tokens = entities.values[entities.offsets[longer] + depth]
            edges, places = np.unique(nodes[longer] * len(continues) + tokens, return_inverse=True)
            nodes[longer] = count + places
            levels.append(edges)  # nodes of a deeper level have higher numbers, so that all edges are sorted
            count += len(edges)
        ends = np.zeros(count, dtype=bool)
        ends[nodes] = True
        return cls(np.concatenate(levels), ends, continues)

    def join(self, input_ids: NDArray[np.integer], begins_word: NDArray[np.bool_]) -> None:
        """Make each entity one word in begins_word, which is (N,) like input_ids: from left to right, the longest one first.

        An entity begins and ends where words of BERT's basic tokenizer do; the last token, a [SEP], is not in any.
        """
        continues = self.continues[input_ids]
        last = np.append(~continues[1:], True)
        at = np.flatnonzero(~continues)
        node, lengths, depth = np.zeros_like(at), np.zeros_like(input_ids), 0
        while len(at):
            edges = node * len(self.continues) + input_ids[at + depth]
            places = np.minimum(np.searchsorted(self.edges, edges), len(self.edges) - 1)
            found = self.edges[places] == edges
            at, node = at[found], places[found] + 1
            lengths[at[self.ends[node] & last[at + depth]]] = depth + 1
            depth += 1
            inside = at + depth < len(input_ids)
            at, node = at[inside], node[inside]
        end = 0
        for start in np.flatnonzero(lengths).tolist():
            if start >= end:
                end = start + int(lengths[start])
                begins_word[start:end] = False
                begins_word[[start, end]] = True


def hash_of_entities(path: str) -> str:
    """The sha256 of a list of entities. Raises DataError."""
    return sha256(read_text(path).encode()).hexdigest()


@lru_cache(maxsize=1)
def read_entities(path: str, tokenizer: Tokenizer) -> Entities:
    """The entities of a text file, one per line. Those with [UNK], which would match any word, are left out, with a note.

    Raises DataError for a file that cannot be read, or has no entity.
    """
    with open_content(path) as content:
        lines = {number: line for first, lines in content.lines() for number, line in enumerate(lines, first) if line.strip()}
    pieces = tokenizer.pieces([*lines.values()])
    owners = np.repeat(np.arange(len(lines)), pieces.lengths)
    left_out = pieces.lengths == 0
    left_out[owners[~np.isin(pieces.values, tokenizer.ordinary_ids)]] = True
    if left_out.all():
        raise DataError("the vocabulary covers no entity of the file", where=path, hint="expected one entity per line")
    if left_out.any():
        names = [f"line {number}, {line}" for (number, line), out in zip(lines.items(), left_out.tolist(), strict=True) if out]
        what = f"ignored {plural(len(names), 'entity', 'entities')} that the tokenizer's vocabulary does not cover"
        progress.note(f"{path}: {what} ({listed(names, 3, separator='; ')})")
    return Entities.of(pieces.take(np.flatnonzero(~left_out)), in_vocabulary(tokenizer, lambda token: token.startswith("##")))
