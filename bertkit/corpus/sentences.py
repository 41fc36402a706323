"""Sentences by rule, for English and Chinese: where a text is cut, and after which words with a full stop it is not."""

from __future__ import annotations

import re

_WIDE = "[\u3002\uff01\uff1f]|\u2026{2}"  # Chinese and Japanese full stop, exclamation and question mark, and a double ellipsis
_CLOSING, _OPENING = "\u201d\u2019\u300d\u300f\uff09\u300b\u3011", "\u201c\u2018"  # quotes and brackets beyond ASCII
# The wide marks end a sentence wherever they stand; . ! ? where white space and then what can begin a sentence follow.
_END = re.compile(
    rf"""(?P<wide>(?:{_WIDE})++[{_CLOSING}]*+)
    | (?P<latin>[.!?]++["')\]{_CLOSING}]*+) (?= \s+ ["'(\[{_OPENING}]* [^\W_a-z] )""",
    re.VERBOSE,
)
_MARK = re.compile("[.!?\u3002\uff01\uff1f\u2026]")  # what an end begins with: to look for it alone is five times as fast
_LATIN = frozenset(".!?")
_BETWEEN_WORDS = re.compile(rf"""[\s(\["'{_OPENING}]""")
# After these a full stop ends the word, seldom the sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt maj cmdr adm sen rep gov pres messrs mme mlle mt ft "
    "vs etc e.g i.e cf viz al fig figs no nos vol vols pp ed eds ch sec art approx dept est inc ltd co corp bros "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m u.s u.k".split()
)
_MAY_END = frozenset("etc al inc ltd co corp bros a.m p.m u.s u.k jr sr".split())


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without the white space around them; what holds none is one sentence.

    A full stop ends none after an initial (J.), an abbreviation (Dr., e.g.) or a number in a list (1.), and none without white
    space and a capital, digit or other script behind it (3.14, example.com).
    """
    sentences = []
    begin = at = 0
    while (mark := _MARK.search(text, at)) is not None:
        end = _END.match(text, mark.start())
        at = (end or mark).end()
        while end is None and mark[0] in _LATIN and text[at : at + 1] in _LATIN:
            at += 1  # a run of them that ends no sentence does not at a later one either
        if end is None or ((end["latin"] or "").startswith(".") and _goes_on(text[begin : mark.start()])):
            continue
        sentences.append(text[begin:at].strip())
        begin = at
    sentences.append(text[begin:].strip())
    return [sentence for sentence in sentences if sentence]


def _goes_on(sentence: str) -> bool:
    """Whether a full stop behind these words belongs to the last of them."""
    word = _BETWEEN_WORDS.split(sentence[-24:])[-1]
    found = word.lower()
    if found in _ABBREVIATIONS:
        return found not in _MAY_END
    if found.isdigit():
        return word == sentence.strip()  # "1." at the beginning counts a list
    return len(found) == 1 and word.isupper() and found != "i"
