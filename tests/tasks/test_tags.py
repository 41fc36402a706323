"""Tag schemes against seqeval and against all that is legal by construction; best paths against all paths."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

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
    as_chunk_tags,
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
        ("B-PER I-PER O B-LOC B-LOC", [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),
        ("I-PER I-PER B-PER I-LOC", [(0, 2, "PER"), (2, 3, "PER"), (3, 4, "LOC")]),
        ("B-PER M-PER E-PER S-LOC O", [(0, 3, "PER"), (3, 4, "LOC")]),
        ("B-PER L-PER U-LOC U-LOC", [(0, 2, "PER"), (2, 3, "LOC"), (3, 4, "LOC")]),
        ("E-PER E-PER I-PER S-PER I-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER"), (3, 4, "PER"), (4, 5, "PER")]),
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


@pytest.mark.parametrize(
    ("tags", "types", "expected"),
    [
        ("O PER PER LOC", (), "O I-PER I-PER I-LOC"),
        ("O B_PER I_PER", (), "O B-PER I-PER"),
        ("O B_PER I-PER", (), "O B-PER I-PER"),
        ("O PER-B PER-I LOC_S", (), "O B-PER I-PER S-LOC"),
        ("O time_of_day", (), "O I-time_of_day"),
        ("PER PER", ("PER", "LOC"), "I-PER I-PER"),  # a split without O
        ("O B-PER PER", (), None),  # a stray
        ("O B-PER I-PER_B", (), None),
        ("O B I", (), None),
        ("NOUN VERB", (), None),
        ("NOUN VERB", ("PER",), None),
        ("O", (), None),
        ("", (), None),
    ],
)
def test_other_forms_of_chunk_tags(tags, types, expected):
    found, note = as_chunk_tags([tags.split(), ["O"] if "O" in tags.split() else []], types)
    assert found[0] == (tags if expected is None else expected).split()
    assert (note is None) == (expected is None)


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
        with pytest.raises(DataError) as caught:
            read()
        assert repr(tag) in caught.value.what


@pytest.mark.parametrize(("use", "data"), [(count_illegal, []), (transitions, ["O"]), (convert, ["O"])])
def test_an_unknown_scheme(use, data):
    with pytest.raises(UsageError):
        use(data, "iob")


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


@pytest.mark.parametrize(
    ("file", "column", "scheme", "illegal"),
    [
        ("CoNLL2003/valid.txt.gz", None, "iob2", 0),
        ("CoNLL2003/valid.txt.gz", 3, "iob2", 0),
        ("CoNLL2003/valid.txt.gz", 2, None, None),
        ("ResumeNER/dev.char.bmes", None, "iobes", 0),
        ("WeiboNER/weiboNER_2nd_conll.train.gz", None, "iob2", 10),
        ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "upos", None, None),
        ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "xpos", None, None),
        ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", "deprel", None, None),
        ("MSRA-NER/dev.tsv.gz", None, "iob2", 0),
        ("ATIS/train", None, "iob2", 0),
        ("SNIPS/valid", None, "iob2", 0),
    ],
)
def test_schemes_of_real_files(data_dir, file, column, scheme, illegal):
    if file.startswith("MSRA"):
        sentences = [tags.split(" ") for tags in read_file(data_dir / file).columns["label"]]
    elif (data_dir / file).is_dir():
        sentences = read_file(data_dir / file, TAGGED).columns["tags"]
    else:
        sentences = read_conll(data_dir / file, column=column).columns["tags"]
    assert detect_scheme(sentences) == scheme
    if scheme is None:
        return
    assert count_illegal(sentences, scheme) == illegal
    some = sentences[:1000]
    if scheme != "iobes":  # seqeval knows no M
        assert [spans_of(tags) for tags in some] == [entities(tags) for tags in some]
    for other in SCHEMES:
        assert detect_scheme(convert(tags, other) for tags in some) == other


# --- paths -------------------------------------------------------------------------------------------------------------


def best_by_trying(scores, start, follow, end) -> tuple[int, ...]:
    """The best of all paths, each added up by itself."""

    def total(path: tuple[int, ...]) -> float:
        steps = [start[path[0]], *(follow[a, b] for a, b in pairwise(path)), end[path[-1]]]
        return sum(scores[i, label] for i, label in enumerate(path)) - 1e6 * steps.count(False)

    return max(product(range(scores.shape[1]), repeat=len(scores)), key=total)


def one_path(scores, start, follow, end) -> list[int]:
    """The best path of one sentence."""
    return viterbi(scores, np.array([0, len(scores)]), start, follow, end).tolist()


@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_paths_are_the_best_of_all(classes, dtype):
    rng = np.random.default_rng(classes)
    for _ in range(40):
        scores = rng.normal(size=(int(rng.integers(1, 6)), classes)).astype(dtype)
        legal = [rng.random(shape) < 0.6 for shape in (classes, (classes, classes), classes)]
        assert tuple(one_path(scores, *legal)) == best_by_trying(scores.astype(np.float64), *legal)


def test_start_follow_and_end_each_count_and_follow_is_from_to():
    flat, free, both = np.zeros((2, 2)), np.ones((2, 2), bool), np.ones(2, bool)
    second = np.array([False, True])
    assert one_path(flat, second, free, both) == [1, 0]
    assert one_path(flat, both, free, second) == [0, 1]
    assert one_path(flat, both, np.array([[False, False], [True, False]]), both) == [1, 0]


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
    legal = rng.random(5) < 0.7, rng.random((5, 5)) < 0.7, rng.random(5) < 0.5
    before = scores.copy()
    path = viterbi(scores, offsets, *legal)
    for a, b in pairwise(offsets):
        assert [*path[a:b]] == one_path(scores[a:b], *legal)
    assert np.array_equal(scores, before)


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_nothing_to_decode(offsets):
    path = viterbi(np.zeros((0, 9)), np.array(offsets), *transitions(LABELS, "iob2"))
    assert (path.shape, path.dtype) == ((0,), np.int64)


def test_where_nothing_is_legal_the_least_illegal_wins():
    labels = ["I-X", "I-Y"]  # under iob2 neither may begin
    scores = np.array([[0.0, 1.0], [5.0, 0.0], [0.0, 0.5]])
    assert one_path(scores, *transitions(labels, "iob2")) == [0, 0, 0]
