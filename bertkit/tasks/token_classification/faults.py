"""Faults in tagged sentences: missing sentence ends, tags that their scheme does not allow, two schemes, strays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertkit.errors import plural
from bertkit.readers import Examples
from bertkit.report import Finding
from bertkit.tasks.token_classification.tags import SCHEMES, as_chunk_tags, count_illegal, detect_scheme

_GIANT = 300  # words; a longer sentence that holds most of the words is likely a file without blank lines
_MIXED = 0.1  # share of the sentences with chunks that follow another scheme than the others


def find_faults(examples: Examples) -> Iterator[Finding]:
    """What `check` reports about the sentences and the scheme of their tags."""
    tags, _ = as_chunk_tags(examples.columns["tags"])
    words = list(map(len, tags))
    yield Finding("note", f"{plural(len(words), 'sentence')}, {plural(sum(words), 'word')}")
    longest = max(range(len(words)), key=words.__getitem__)
    if words[longest] > max(_GIANT, sum(words) / 2):
        what = f"{words[longest]} of {sum(words)} words are in one sentence"
        yield Finding("warning", what, (examples.where(longest),), "in CoNLL columns a blank line ends a sentence")
    scheme = detect_scheme(tags)
    illegal = illegal_rows(tags, scheme) if scheme is not None else []
    if scheme is None or not illegal:
        return
    count = count_illegal(tags, scheme)
    what = f"{plural(count, 'tag')} in places where {scheme} does not allow {'it' if count == 1 else 'them'}"
    legal = {other: sum(not count_illegal([tags[row]], other) for row in illegal) for other in SCHEMES}
    other = max(legal, key=lambda name: legal[name])
    tagged = sum(set(row) != {"O"} for row in tags)
    if legal[other] > _MIXED * tagged:
        share = f"{legal[other]} of {plural(tagged, 'sentence')} with chunks"
        what = f"mixed tag schemes: {share} follow {other}, not {scheme}; {what}"
    yield Finding("warning", what, examples.places(illegal), "correct the tags")


def illegal_rows(tags: Sequence[Sequence[str]], scheme: str) -> list[int]:
    """The sentences with a tag where the scheme does not allow it."""
    return [row for row, sentence in enumerate(tags) if count_illegal([sentence], scheme)]


def stray_tags_warning(examples: Examples) -> str | None:
    """A warning if the tags are numbers, or only some are chunk tags, so that words are scored instead of chunks."""
    seen = dict.fromkeys(tag for tags in examples.columns["tags"] for tag in tags)
    if all(map(str.isdecimal, seen)):
        return "the tags are numbers, so words are scored, not chunks; --labels O,B-PER,... names them in their order"
    strays = [tag for tag in seen if detect_scheme([[tag]]) is None]
    if strays and (seen.keys() & {"O", "o", "_"} or any("-" in tag for tag in seen.keys() - {*strays})):
        row = next(row for row, tags in enumerate(examples.columns["tags"]) if strays[0] in tags)
        what = f"no tag scheme: {strays[0]!r} ({examples.where(row)}) is neither O nor a tag such as B-PER"
        return f"{what}; words are scored, not chunks"
    return None
