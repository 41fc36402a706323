"""Tag schemes against seqeval and against all that is legal by construction; best paths against all paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from file_contents import read_conll
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Tokens

from bertkit.errors import DataError, UsageError
from bertkit.readers.formats import TAGGED, read_file
from bertkit.tasks.token_classification.tags import (
    SCHEMES,
    Span,
    convert,
    count_illegal,
    detect_scheme,
    spans_of,
    tags_of,
    transitions,
    viterbi,
)

KINDS = ("PER", "LOC.NAM", "time-relative")
LABELS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in KINDS[:2])]
STRICT = {"iob1": IOB1, "iob2": IOB2, "iobes": IOBES}


def entities(tags: list[str]) -> list[Span]:
    """seqeval's reading; it calls the type of a bare prefix "_"."""
    return [(start, end + 1, "" if kind == "_" else kind) for kind, start, end in get_entities(tags)]


def segmentations(length: int, kinds: tuple[str, ...]) -> Iterator[list[Span]]:
    """All sets of chunks that a sentence can have."""

    def go(at: int) -> Iterator[list[Span]]:
        if at == length:
            yield []
            return
        for rest in go(at + 1):
            yield rest
        for end in range(at + 1, length + 1):
            for kind, rest in product(kinds, go(end)):
                yield [(at, end, kind), *rest]

    return go(0)


def legal_tags(spans: list[Span], length: int, scheme: str) -> tuple[str, ...]:
    """The tags of these chunks, by each scheme's definition, token by token."""
    tags = []
    for i in range(length):
        chunk = next((span for span in spans if span[0] <= i < span[1]), None)
        if chunk is None:
            tags.append("O")
            continue
        start, end, kind = chunk
        follows_alike = any(span[1] == start and span[2] == kind for span in spans)
        prefix = {
            "iob2": "B" if i == start else "I",
            "iob1": "B" if i == start and follows_alike else "I",
            "iobes": "S" if end - start == 1 else "B" if i == start else "E" if i == end - 1 else "I",
        }[scheme]
        tags.append(f"{prefix}-{kind}")
    return tuple(tags)


@st.composite
def chunks(draw) -> tuple[list[Span], int]:
    """Chunks of a sentence and its length."""
    spans, at = [], 0
    for gap, size, kind in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["", *KINDS])))):
        spans.append((at + gap, at + gap + size, kind))
        at += gap + size
    return spans, at + draw(st.integers(0, 2))


# --- spans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("I-PER I-PER B-PER O I-LOC", [(0, 2, "PER"), (2, 3, "PER"), (4, 5, "LOC")]),
        ("I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),
        ("B-PER M-PER E-PER S-LOC O", [(0, 3, "PER"), (3, 4, "LOC")]),
        ("B-PER L-PER U-LOC U-LOC", [(0, 2, "PER"), (2, 3, "LOC"), (3, 4, "LOC")]),
        ("E-PER E-PER I-PER S-PER I-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER"), (3, 4, "PER"), (4, 5, "PER")]),
        ("B-time-relative I-time-relative", [(0, 2, "time-relative")]),
        ("B-time-relative I-time", [(0, 1, "time-relative"), (1, 2, "time")]),
        ("B I O I", [(0, 2, ""), (3, 4, "")]),
    ],
)
def test_spans_by_hand(tags, spans):
    assert spans_of(tags.split()) == spans


TAG = st.sampled_from(["O", "B", "I", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in KINDS)])


@given(tags=st.lists(TAG, max_size=12))
def test_any_tags_read_as_seqeval_reads_them(tags):
    assert spans_of(tags) == entities(tags)


@given(tags=st.lists(TAG, max_size=12))
def test_other_spellings_mean_the_same(tags):
    respelt = [tag.replace("I-", "M-").replace("E-", "L-").replace("S-", "U-") for tag in tags]
    assert spans_of(respelt) == spans_of(tags)
    for scheme in SCHEMES:
        assert count_illegal([respelt], scheme) == count_illegal([tags], scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(drawn=chunks())
def test_tags_of_spans_by_definition_and_back(scheme, drawn):
    spans, length = drawn
    tags = tags_of(spans, length, scheme)
    assert [tag if tag[1:] else f"{tag}-" if tag != "O" else tag for tag in tags] == [*legal_tags(spans, length, scheme)]
    assert spans_of(tags) == spans == entities(tags)
    assert count_illegal([tags], scheme) == 0
    if not any(kind == "" for _, _, kind in spans):
        assert [(entity.start, entity.end, entity.tag) for entity in Tokens(tags, STRICT[scheme]).entities] == spans
        if scheme == "iobes":
            bilou = [{"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
            assert [(entity.start, entity.end, entity.tag) for entity in Tokens(bilou, BILOU).entities] == spans_of(bilou)


@pytest.mark.parametrize("via", SCHEMES)
@pytest.mark.parametrize("scheme", SCHEMES)
@given(drawn=chunks())
def test_there_and_back(scheme, via, drawn):
    tags = tags_of(*drawn, scheme)
    assert convert(convert(tags, via), scheme) == tags


def test_conversion_by_hand():
    tags = "B-PER I-PER B-PER O B-LOC B-PER".split()
    assert convert(tags, "iob1") == "I-PER I-PER B-PER O I-LOC I-PER".split()
    assert convert(tags, "iobes") == "B-PER E-PER S-PER O S-LOC S-PER".split()
    assert convert("B-X M-X E-X S-X".split(), "iob2") == "B-X I-X I-X B-X".split()
    assert convert(["I-PER", "O", "E-LOC"], "iob2") == ["B-PER", "O", "B-LOC"]  # illegal ones are mended on the way


@pytest.mark.parametrize("tag", ["NOUN", "", "-", "-PER", "b-PER", "O-PER", "X-PER", "BPER", "PER-B"])
def test_what_is_no_chunk_tag(tag):
    assert detect_scheme([["O", "B-PER", tag]]) is None
    for read in (lambda: spans_of([tag]), lambda: count_illegal([[tag]], "iob2"), lambda: transitions([tag], "iob2")):
        with pytest.raises(DataError, match="no chunk tag") as caught:
            read()
        assert repr(tag) in caught.value.what


def test_an_unknown_scheme():
    for use in (
        lambda: tags_of([], 1, "iob"),
        lambda: count_illegal([], "iob"),
        lambda: transitions(["O"], "iob"),
        lambda: convert(["O"], "iob"),
    ):
        with pytest.raises(UsageError) as caught:
            use()
        assert "iob1" in caught.value.hint


# --- what is legal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_exactly_what_some_chunks_give_is_legal(scheme):
    start, follow, end = transitions(LABELS, scheme)
    numbers = {label: number for number, label in enumerate(LABELS)}
    assert (start.shape, follow.shape, end.shape) == ((9,), (9, 9), (9,))
    assert start.dtype == follow.dtype == end.dtype == bool
    for length in (1, 2, 3, 4):
        legal = {legal_tags(spans, length, scheme) for spans in segmentations(length, KINDS[:2])}
        assert len(legal) > 2**length
        for tags in product(LABELS, repeat=length):
            ids = [numbers[tag] for tag in tags]
            allowed = start[ids[0]] and all(follow[a, b] for a, b in pairwise(ids)) and end[ids[-1]]
            assert allowed == (tags in legal) == (count_illegal([tags], scheme) == 0), tags


def test_illegal_tags_are_counted():
    assert count_illegal([["I-X", "I-X", "O", "I-X"], ["B-X", "I-Y"], [], ["I-X"]], "iob2") == 4
    assert count_illegal([["B-X", "B-X", "O"], ["I-X", "B-Y", "B-Y"]], "iob1") == 2
    # ends inside; I at the start; E after O; S between B and E (both); B before O; and the sentence's end
    assert count_illegal([["B-X"], ["I-X", "E-X"], ["O", "E-X"], ["B-X", "S-X", "E-X"], ["B-X", "O"]], "iobes") == 6
    # sentences do not run on into each other
    assert count_illegal([["B-X"], ["I-X"]], "iob2") == 1
    assert count_illegal(iter([("B-X", "I-X")]), "iob2") == 0


def test_without_a_scheme_everything_is_legal():
    assert all(array.all() for array in transitions(["NOUN", "VERB"], None))


# --- schemes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("B-X I-X O B-Y", "iob2"),
        ("B-X O B-Y", "iob2"),
        ("O O", "iob2"),
        ("B I O", "iob2"),
        ("I-X I-X O I-Y", "iob1"),
        ("I-X B-X I-X O I-Y", "iob1"),
        ("B-X E-X O S-Y", "iobes"),
        ("S-X O", "iobes"),
        ("B-X M-X E-X", "iobes"),
        ("B-X I-X L-X U-X", "iobes"),
        ("DET NOUN VERB", None),
        ("O B-X NOUN", None),
        ("O B-X X-Y", None),
    ],
)
def test_schemes_by_hand(tags, scheme):
    assert detect_scheme([tags.split()]) == scheme


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_few_slips_do_not_decide(scheme):
    sentence = [(0, 2, "PER"), (2, 3, "PER"), (4, 8, "LOC"), (9, 10, "ORG")]
    sound = [tags_of(sentence, 12, scheme)] * 50
    slips = [["I-PER", "O", "B-LOC", "I-PER"], ["O", "E-PER", "O"], ["S-PER", "O"], ["B-LOC", "B-LOC", "B-PER"]]
    assert count_illegal(slips, scheme) > 2
    assert detect_scheme([*slips, *sound]) == scheme


def real(data_dir: Path) -> dict[str, Callable[[], list[list[str]]]]:
    conll = {
        "CoNLL2003": ("CoNLL2003/train.txt.gz", None),
        "CoNLL2003 chunks": ("CoNLL2003/train.txt.gz", 3),
        "CoNLL2003 parts of speech": ("CoNLL2003/train.txt.gz", 2),
        "ResumeNER": ("ResumeNER/train.char.bmes.gz", None),
        "WeiboNER": ("WeiboNER/weiboNER_2nd_conll.train.gz", None),
        "UD upos": ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "upos"),
        "UD xpos": ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "xpos"),
        "UD deprel": ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "deprel"),
    }
    return {
        **{
            name: lambda path=path, column=column: read_conll(data_dir / path, column=column).columns["tags"]
            for name, (path, column) in conll.items()
        },
        "MSRA-NER": lambda: [tags.split(" ") for tags in read_file(data_dir / "MSRA-NER/test.tsv.gz").columns["label"]],
        "ATIS": lambda: read_file(data_dir / "ATIS/train", TAGGED).columns["tags"],
        "SNIPS": lambda: read_file(data_dir / "SNIPS/train", TAGGED).columns["tags"],
    }


@pytest.mark.parametrize(
    ("name", "scheme", "illegal"),
    [
        ("CoNLL2003", "iob2", 0),
        ("CoNLL2003 chunks", "iob2", 0),
        ("CoNLL2003 parts of speech", None, None),
        ("ResumeNER", "iobes", 4),
        ("WeiboNER", "iob2", 10),
        ("UD upos", None, None),
        ("UD xpos", None, None),
        ("UD deprel", None, None),
        ("MSRA-NER", "iob2", 0),
        ("ATIS", "iob2", 0),
        ("SNIPS", "iob2", 0),
    ],
)
def test_schemes_of_real_files(data_dir, name, scheme, illegal):
    sentences = real(data_dir)[name]()
    assert detect_scheme(sentences) == scheme
    if scheme is None:
        return
    assert count_illegal(sentences, scheme) == illegal
    if scheme != "iobes":  # seqeval knows no M
        assert [spans_of(tags) for tags in sentences] == [entities(tags) for tags in sentences]
    for other in SCHEMES:
        assert detect_scheme(convert(tags, other) for tags in sentences) == other


def test_entities_of_conll2003_are_as_many_as_published(data_dir):
    sentences = real(data_dir)["CoNLL2003"]()
    kinds = [kind for tags in sentences for _, _, kind in spans_of(tags)]
    published = {"LOC": 7140, "PER": 6600, "ORG": 6321, "MISC": 3438}
    assert {kind: kinds.count(kind) for kind in set(kinds)} == published
    assert sum(len(spans_of(convert(tags, "iob1"))) for tags in sentences) == sum(published.values())


# --- paths -------------------------------------------------------------------------------------------------------------


def best_by_trying(scores, start, follow, end) -> tuple[int, ...]:
    """The best of all paths, each added up by itself; booleans forbid."""
    begin, after, final = (np.where(a, 0.0, -1e6) if a.dtype == bool else a for a in (start, follow, end))

    def total(path: tuple[int, ...]) -> float:
        tokens = sum(scores[i, label] for i, label in enumerate(path))
        return begin[path[0]] + tokens + sum(after[a, b] for a, b in pairwise(path)) + final[path[-1]]

    return max(product(range(scores.shape[1]), repeat=len(scores)), key=total)


def one_path(scores, start, follow, end):
    """The best path of one sentence."""
    return viterbi(scores, [0, len(scores)], start, follow, end)


@pytest.mark.parametrize("kind", ["boolean", "real", "real with -inf", "mixed"])
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_paths_are_the_best_of_all(kind, classes, dtype):
    rng = np.random.default_rng([classes, len(kind)])
    for _ in range(40):
        scores = rng.normal(size=(int(rng.integers(1, 6)), classes)).astype(dtype)
        shapes = [(classes,), (classes, classes), (classes,)]
        rules = [rng.normal(size=shape) for shape in shapes]
        if kind in ("boolean", "mixed"):
            masks = [rng.random(shape) < 0.6 for shape in shapes]
            rules = masks if kind == "boolean" else [rules[0], masks[1], rules[2]]
        if kind == "real with -inf":
            rules[1][rng.random(shapes[1]) < 0.2] = -1e6  # the oracle adds; -inf itself is below
        assert tuple(one_path(scores, *rules)) == best_by_trying(scores.astype(np.float64), *rules)
        if kind == "real with -inf":
            minus = [np.where(rule == -1e6, -np.inf, rule) for rule in rules]
            if np.isfinite(minus[1]).all(1).any():
                assert tuple(one_path(scores, *minus)) == best_by_trying(scores.astype(np.float64), *rules)


def test_start_follow_and_end_each_count_and_follow_is_from_to():
    flat, free = np.zeros((2, 2)), np.zeros((2, 2))
    none = np.zeros(2)
    assert [*one_path(flat, np.array([0.0, 1.0]), free, none)] == [1, 0]
    assert [*one_path(flat, none, free, np.array([0.0, 1.0]))] == [0, 1]
    assert [*one_path(flat, none, np.array([[0.0, 0.0], [1.0, 0.0]]), none)] == [1, 0]
    assert [*one_path(np.zeros((1, 2)), np.array([0.0, 1.0]), free, np.array([2.0, 0.0]))] == [0]


def test_the_best_legal_path_is_not_the_most_likely_tags():
    labels = ["O", "B-X", "I-X"]
    scores = np.log([[0.45, 0.3, 0.25], [0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])
    assert [*scores.argmax(1)] == [0, 2, 1]
    assert [labels[i] for i in one_path(scores, *transitions(labels, "iob2"))] == ["B-X", "I-X", "B-X"]
    assert [labels[i] for i in one_path(scores, *transitions(labels, "iob1"))] == ["O", "I-X", "B-X"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decoded_sentences_are_legal(scheme):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, size=200)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.normal(size=(offsets[-1], len(LABELS)), scale=5)
    scores[rng.random(scores.shape) < 0.3] = -np.inf  # the logarithm of 0 makes nothing legal
    path = viterbi(scores, offsets, *transitions(LABELS, scheme))
    assert path.dtype == np.int64
    assert count_illegal([[LABELS[i] for i in path[a:b]] for a, b in pairwise(offsets)], scheme) == 0


@pytest.mark.parametrize("block", [1, 300, 2**22])
def test_many_sentences_are_as_each_alone(monkeypatch, block):
    monkeypatch.setattr("bertkit.tasks.token_classification.tags._BLOCK", block)  # one sentence at a time, a few, all
    rng = np.random.default_rng(1)
    lengths = np.concatenate([[0], rng.integers(0, 6, size=60), [1, 0, 30, 0]])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.normal(size=(offsets[-1], 5))
    rules = rng.normal(size=5), rng.normal(size=(5, 5)), rng.random(5) < 0.5
    before = scores.copy()
    path = viterbi(scores, offsets, *rules)
    for a, b in pairwise(offsets):
        assert [*path[a:b]] == [*one_path(scores[a:b], *rules)]
        if 0 < b - a < 5:
            assert tuple(path[a:b]) == best_by_trying(scores[a:b], *rules)
    assert np.array_equal(scores, before)


def test_nothing_to_decode():
    rules = transitions(LABELS, "iob2")
    assert one_path(np.zeros((0, 9)), *rules).shape == (0,)
    assert viterbi(np.zeros((0, 9)), [0], *rules).shape == (0,)
    assert viterbi(np.zeros((0, 9)), [0, 0, 0], *rules).dtype == np.int64


def test_where_nothing_is_legal_the_least_illegal_wins():
    labels = ["I-X", "I-Y"]  # under iob2 neither may begin
    scores = np.array([[0.0, 1.0], [5.0, 0.0], [0.0, 0.5]])
    assert [*one_path(scores, *transitions(labels, "iob2"))] == [0, 0, 0]


def test_a_published_test_split_at_once(data_dir):
    sentences = read_conll(data_dir / "CoNLL2003/test.txt.gz").columns["tags"]
    labels = sorted({tag for tags in sentences for tag in tags})
    numbers = np.array([labels.index(tag) for tags in sentences for tag in tags])
    offsets = np.concatenate([[0], np.cumsum([*map(len, sentences)])])
    scores = np.random.default_rng(2).normal(size=(len(numbers), len(labels)))
    scores[np.arange(len(numbers)), numbers] += 20.0
    assert np.array_equal(viterbi(scores, offsets, *transitions(labels, "iob2")), numbers)
