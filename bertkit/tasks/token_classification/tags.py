"""Chunk tags: the scheme they follow, the spans they encode, and the best legal path through a sentence.

A tag is "O", outside all chunks, or a prefix, "-" and the chunk's type: "B-PER". Prefixes are B begin, I inside, E end, S
single; BMES writes M for I, BILOU writes L for E and U for S. A bare prefix has the type "". Schemes: iob2, every chunk begins
with B; iob1, only one right after another of its type does, others with I (Ramshaw and Marcus, 1995); iobes, chunks begin with
B and end with E, those of one token are S.

Dimensions: B sentences, R tokens in all, C labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, UsageError, did_you_mean

SCHEMES = ("iob2", "iob1", "iobes")
Span = tuple[int, int, str]  # first token, the one after the last, type

_TAG = re.compile(r"O|([BIEOSMLU])(?:-(.*))?", re.DOTALL)
# Other forms of chunk tags, for B-PER: B_PER; PER-B; and just PER, where each run of equal tags is a chunk.
_FORMS = (
    (re.compile(r"([BIESMLU])_(.+)", re.DOTALL), r"\1-\2"),
    (re.compile(r"(.+)[-_]([BIESMLU])", re.DOTALL), r"\2-\1"),
    (re.compile(r"(.+)", re.DOTALL), r"I-\1"),
)
PREFIXES = {"M": "I", "L": "E", "U": "S"}  # of BMES and BILOU, to those of IOBES
_FORBIDDEN = -1e9  # outweighs any legal path; finite, so that if no path is legal, the one with the fewest illegal steps wins
_LEAST = -1e4  # lower bound of scores of tokens: log(0) would outweigh a forbidden step
_BLOCK = 2**22  # path scores held at a time, 32 MB


class _Tag(NamedTuple):
    prefix: str  # O, B, I, E or S
    kind: str


_OUTSIDE = _Tag("O", "")


@lru_cache(maxsize=2**16)
def _parse(tag: str) -> _Tag | None:
    """The parts of a tag; None if it is no chunk tag."""
    match = _TAG.fullmatch(tag)
    if match is None or match[1] == "O":  # "O-PER"
        return None
    return _Tag(PREFIXES.get(match[1], match[1]), match[2] or "") if match[1] else _OUTSIDE


def _parts(tag: str) -> _Tag:
    parts = _parse(tag)
    if parts is None:
        hint = "a tag begins with B, I, O, E or S (BMES and BILOU: M, L, U)"
        raise DataError(f"{tag!r} is not a chunk tag; expected O, or a tag such as B-PER", hint=hint)
    return parts


def _may_follow(before: _Tag, after: _Tag, scheme: str) -> bool:
    """Whether one tag may follow another; O stands for the places before and after a sentence."""
    is_open, alike = before.prefix in "BI", before.kind == after.kind
    if scheme == "iobes":
        if is_open != (after.prefix in "IE"):  # an open chunk must go on, and only an open one can
            return False
        return alike or not is_open
    if after.prefix in "ES":
        return False
    return after.prefix != ("I" if scheme == "iob2" else "B") or (is_open and alike)


def _refuse_unknown_scheme(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise UsageError(f"no tag scheme {scheme!r}", hint=did_you_mean(scheme, SCHEMES))


# --- schemes and spans -------------------------------------------------------------------------------------------------


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str | None:
    """The scheme with the fewest illegal tags, on ties the first of SCHEMES; None if any tag is not a chunk tag.

    A few errors in real data therefore do not matter, and data with I but no B is iob1.
    """
    pairs = _pairs(sentences)
    if any(_parse(tag) is None for pair in pairs for tag in pair):
        return None
    return min(SCHEMES, key=lambda scheme: _count(pairs, scheme))


def as_chunk_tags(sentences: Sequence[Sequence[str]], types: Collection[str] = ()) -> tuple[list[list[str]], str | None]:
    """Convert tags in another form to that of B-PER, with a note; tags in no known form, or in mixed forms, are unchanged.

    Tags without O, such as parts of speech, are unchanged too, unless they only have these types.
    """
    kept = [list(tags) for tags in sentences]
    others = {tag for tags in sentences for tag in tags} - {"O"}
    strays = sorted(tag for tag in others if _parse(tag) is None)
    for pattern, form in _FORMS if strays else ():
        if not all(map(pattern.fullmatch, strays)) or (len(strays) < len(others) and pattern is not _FORMS[0][0]):
            continue
        spelled = {tag: pattern.sub(form, tag) for tag in strays}
        if any("O" in tags for tags in kept) or {kind_of(tag) for tag in spelled.values()} <= {*types}:
            tag = strays[0]
            is_bare = pattern is _FORMS[-1][0]
            how = "consecutive words with the same tag form one chunk" if is_bare else f"{tag} is read as {spelled[tag]}"
            note = f"tags such as {tag} do not begin with B- or I-: {how}"
            return [[spelled.get(tag, tag) for tag in tags] for tags in kept], note
    return kept, None


def scheme_of(labels: Collection[str]) -> str | None:
    """The scheme that fits a model's labels, without data; None if any is not a chunk tag, or there are none."""
    if not labels or any(_parse(label) is None for label in labels):
        return None
    prefixes = {label.partition("-")[0] for label in labels}
    if prefixes & {"E", "S", "L", "U"}:
        return "iobes"
    return "iob2" if "B" in prefixes else "iob1"


def count_illegal(sentences: Iterable[Sequence[str]], scheme: str) -> int:
    """The number of tags that may not follow the tag before them, begin a sentence or end it."""
    _refuse_unknown_scheme(scheme)
    return _count(_pairs(sentences), scheme)


def _count(pairs: Counter[tuple[str, str]], scheme: str) -> int:
    return sum(count for (a, b), count in pairs.items() if not _may_follow(_parts(a), _parts(b), scheme))


def _pairs(sentences: Iterable[Sequence[str]]) -> Counter[tuple[str, str]]:
    """The number of each pair of successive tags, with O before and after each sentence."""
    flat = ["O"]
    for tags in sentences:
        flat.extend(tags)
        flat.append("O")
    return Counter(pairwise(flat))


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The chunks of a sentence in any scheme, in order.

    Illegal tags are read as in conlleval and seqeval's default mode: a chunk begins with any tag that does not continue the one
    before it; only I and E continue a chunk, after B or I of the same type.
    """
    spans = []
    begin, before = 0, _OUTSIDE
    for i, tag in enumerate([*tags, "O"]):
        parts = _parts(tag)
        if not (parts.prefix in "IE" and before.prefix in "BI" and parts.kind == before.kind):
            if before.prefix != "O":
                spans.append((begin, i, before.kind))
            begin = i
        before = parts
    return spans


def tags_of(spans: Sequence[Span], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words with these chunks, which must not overlap."""
    _refuse_unknown_scheme(scheme)
    tags = ["O"] * length
    for begin, end, kind in spans:
        assert 0 <= begin < end <= length, (begin, end, length)
        assert tags[begin:end] == ["O"] * (end - begin), f"two spans overlap: {begin}:{end}"
        suffix = f"-{kind}" if kind else ""
        tags[begin:end] = [f"I{suffix}"] * (end - begin)
        if scheme == "iobes":
            tags[begin], tags[end - 1] = f"B{suffix}", f"E{suffix}"
            if end - begin == 1:
                tags[begin] = f"S{suffix}"
        elif scheme == "iob2":
            tags[begin] = f"B{suffix}"
    if scheme == "iob1":
        ends = {(end, kind) for _, end, kind in spans}
        for begin, _, kind in spans:
            if (begin, kind) in ends:
                tags[begin] = f"B{tags[begin][1:]}"
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of the same chunks in another scheme, in the letters B, I, O, E and S."""
    return tags_of(spans_of(tags), len(tags), scheme)


def canonical(tag: str) -> str:
    """A chunk tag in the letters B, I, O, E and S."""
    prefix, kind = _parts(tag)
    return f"{prefix}-{kind}" if kind else prefix


def kind_of(tag: str) -> str:
    """The type of a chunk tag's chunk; "" for O and a bare prefix."""
    return _parts(tag).kind


def respell(sentences: Sequence[Sequence[str]], labels: Sequence[str]) -> list[list[str]]:
    """The tags in the letters of `labels`, which may be those of BMES or BILOU; a tag without a label is unchanged."""
    own = {canonical(label): label for label in labels if _parse(label) is not None}
    known = {tag: tag if tag in labels else own.get(canonical(tag), tag) for tag in {t for tags in sentences for t in tags}}
    return [[known[tag] for tag in tags] for tags in sentences]


# --- paths -------------------------------------------------------------------------------------------------------------


def transitions(labels: Sequence[str], scheme: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Which labels may begin a sentence (C,), follow another [from, to] (C, C), and end one (C,)."""
    _refuse_unknown_scheme(scheme)
    tags = [_OUTSIDE, *map(_parts, labels)]
    legal = np.array([[_may_follow(before, after, scheme) for after in tags] for before in tags])
    return legal[0, 1:], legal[1:, 1:], legal[1:, 0]


def viterbi(
    scores: NDArray[np.float64],
    offsets: NDArray[np.int64],
    start: NDArray[np.bool_],
    follow: NDArray[np.bool_],
    end: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """The labels (R,) of each sentence's best legal path; start, follow, end: what is legal, from `transitions`.

    scores: (R, C) logarithms; sentence i is rows offsets[i] to offsets[i + 1]. If no path is legal, one with the fewest illegal
    steps wins.
    """
    scores = np.maximum(scores, _LEAST)
    begin, into, final = (np.where(legal, 0.0, _FORBIDDEN) for legal in (start, follow.T, end))
    into = np.ascontiguousarray(into)  # [to, from], so that the search for the best runs along memory
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    path = np.empty(len(scores), dtype=np.int64)
    size = max(1, _BLOCK // into.size)
    for first in range(0, len(order), size):
        some = order[first : first + size]
        _find_paths(scores, offsets[some], lengths[some], begin, into, final, path)
    return path


def _find_paths(
    scores: NDArray[np.float64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    start: NDArray[np.float64],
    into: NDArray[np.float64],
    end: NDArray[np.float64],
    path: NDArray[np.int64],
) -> None:
    """Write the best paths of some sentences, the longest first, into `path`, one time step at once for all of them."""
    alive = np.searchsorted(-lengths, -np.arange(lengths[0]))  # how many sentences have a token at each time
    best = start + scores[begins]  # (B, C): of the paths that end in each label
    pointers = []
    for time, count in enumerate(alive[1:], start=1):
        through = best[:count, None, :] + into  # (B alive, C to, C from)
        pointer = through.argmax(-1)
        best[:count] = np.take_along_axis(through, pointer[..., None], -1)[..., 0] + scores[begins[:count] + time]
        pointers.append(pointer)
    label = (best + end).argmax(-1)  # (B,)
    path[begins + lengths - 1] = label
    for time in range(len(pointers), 0, -1):
        count = alive[time]
        label[:count] = pointers[time - 1][np.arange(count), label[:count]]
        path[begins[:count] + time - 1] = label[:count]
