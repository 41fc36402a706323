"""Sentence splitting by rule, for English and Chinese."""

from __future__ import annotations

import re

_WIDE = "[\u3002\uff01\uff1f]|\u2026{2}"  # Chinese and Japanese full stop, exclamation and question mark, and a double ellipsis
_CLOSING, _OPENING = "\u201d\u2019\u300d\u300f\uff09\u300b\u3011", "\u201c\u2018"  # quotes and brackets beyond ASCII
# Wide marks always end a sentence; . ! ? do before white space and a character that can begin a sentence.
_END = re.compile(
    rf"""(?P<wide>(?:{_WIDE})++[{_CLOSING}]*+)
    | (?P<latin>[.!?]++["')\]{_CLOSING}]*+) (?= \s+ ["'(\[{_OPENING}]* [^\W_a-z] )""",
    re.VERBOSE,
)
_MARK = re.compile("[.!?\u3002\uff01\uff1f\u2026]")  # how an end begins: searching for this alone is five times as fast
_LATIN = frozenset(".!?")
_BETWEEN_WORDS = re.compile(rf"""[\s(\["'{_OPENING}]""")
# After these a full stop rarely ends the sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt maj cmdr adm sen rep gov pres messrs mme mlle mt ft "
    "vs etc e.g i.e cf viz al fig figs no nos vol vols pp ed eds ch sec art approx dept est inc ltd co corp bros "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m u.s u.k".split()
)
_LONGEST = 24  # characters of a sentence's end that are looked at: "Mr. Mr. Mr. ..." is one sentence of any length
_MAY_END = frozenset("etc al inc ltd co corp bros a.m p.m u.s u.k jr sr".split())


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, stripped of white space; text without an end of sentence is one sentence.

    A full stop does not end a sentence after an initial (J.), an abbreviation (Dr., e.g.) or a list number (1.), or if a
    lower-case letter or no white space follows (3.14, example.com).
    """
    sentences = []
    begin = position = 0
    while (mark := _MARK.search(text, position)) is not None:
        end = _END.match(text, mark.start())
        position = (end or mark).end()
        while end is None and mark[0] in _LATIN and text[position : position + 1] in _LATIN:
            position += 1  # if the first of a run ends no sentence, no later one does
        if end is None or ((end["latin"] or "").startswith(".") and _is_part_of_word(text, begin, mark.start())):
            continue
        sentences.append(text[begin:position].strip())
        begin = position
    sentences.append(text[begin:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_part_of_word(text: str, begin: int, end: int) -> bool:
    """Whether a full stop at `end` of a sentence that begins at `begin` belongs to its last word."""
    word = _BETWEEN_WORDS.split(text[max(begin, end - _LONGEST) : end])[-1]
    lower = word.lower()
    if lower in _ABBREVIATIONS:
        return lower not in _MAY_END
    if lower.isdigit():
        return not text[begin : end - len(word)].strip()  # "1." at the start numbers a list item
    return len(lower) == 1 and word.isupper() and lower != "i"
