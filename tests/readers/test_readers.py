"""Readers of files: every value as it stands, every row by its line, every fault by its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import string
from pathlib import Path

import pytest
from file_contents import parsed
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column, text_of
from bertkit.readers.content import extension, unpacked_name
from bertkit.readers.delimited import parse_delimited
from bertkit.readers.formats import DELIMITED, parse_lines, read_file
from bertkit.readers.jsonl import parse_jsonl

# What other tools take for a missing value, a line end or a quote.
ODD = ["NA", "null", "None", "nan", "", " ", '"', "'", '""', " a ", "1e5", "#"]
ODD += ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\ufeff"]
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n\0"), max_size=12) | st.sampled_from(ODD)
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    [*ODD, "\n", "\r\n", '"\n', ","]
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_delimited(path: str | Path, **options) -> Examples:
    return read_file(path, (DELIMITED,), **options)


def fails(reader, *args, **kwargs) -> DataError:
    """The reader's error, which must be one line."""
    with pytest.raises(DataError) as caught:
        reader(*args, **kwargs)
    assert "\n" not in str(caught.value) + str(caught.value.hint)
    return caught.value


# --- tables --------------------------------------------------------------------------------------------------------


def test_csv_quotes_and_the_line_where_each_row_begins(tmp_path):
    text = 'text,label\n"two\nlines, ""quoted""",1\n\nNA,null\n"",nan\r\n'
    examples = read_delimited(write(tmp_path / "a.csv", text))
    assert examples.columns == {"text": ['two\nlines, "quoted"', "NA", ""], "label": ["1", "null", "nan"]}
    assert list(examples.lines) == [2, 5, 6]
    assert examples.where(1) == f"{tmp_path}/a.csv:5"


def test_tsv_takes_quotes_as_text(tmp_path):
    text = 'sentence\tlabel\n" an open quote\t1\nand "more"\t0\n'
    examples = read_delimited(write(tmp_path / "a.tsv", text))
    assert examples.columns == {"sentence": ['" an open quote', 'and "more"'], "label": ["1", "0"]}
    assert list(examples.lines) == [2, 3]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_byte_order_mark_and_carriage_returns(tmp_path, name):
    text = "\ufefftext,label\r\ncaf\u00e9 ,1\r\n"
    examples = read_delimited(write(tmp_path / name, text.replace(",", "," if name == "a.csv" else "\t")))
    assert examples.columns == {"text": ["caf\u00e9 "], "label": ["1"]}
    assert list(examples.lines) == [2]


def test_columns_name_those_of_a_file_without_a_header(tmp_path):
    path = write(tmp_path / "a.tsv", "ham\thello\n\nspam\tbuy\n")
    examples = read_delimited(path, columns=("label", "text"))
    assert examples.columns == {"label": ["ham", "spam"], "text": ["hello", "buy"]}
    assert list(examples.lines) == [1, 3]
    assert fails(read_delimited, path, columns=("label", "text", "more")).where == f"{path}:1"
    headed = write(tmp_path / "b.tsv", "label\ttext\nham\thello\n")  # a header that says the same is no row
    assert read_delimited(headed, columns=("label", "text")).columns == {"label": ["ham"], "text": ["hello"]}
    with pytest.raises(UsageError):
        read_delimited(path, columns=("text", "text"))


def test_a_separator_of_ones_own(tmp_path):
    path = write(tmp_path / "a.csv", 'text;label\n"a;b";1\n')
    assert read_delimited(path, separator=";").columns == {"text": ["a;b"], "label": ["1"]}
    assert parsed(parse_delimited, "a\tb\n1\t2\n", "x.csv", separator="\\t").columns == {"a": ["1"], "b": ["2"]}
    for wrong in ("", "::", '"', "\n"):
        with pytest.raises(UsageError):
            read_delimited(path, separator=wrong)


def test_long_fields_are_read_and_the_csv_limit_is_left_alone(tmp_path):
    before = csv.field_size_limit()
    document = "word " * 100_000
    assert read_delimited(write(tmp_path / "a.csv", f"text,label\n{document},1\n")).columns["text"] == [document]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "line", "hint"),
    [
        ("a.csv", "", None, None),
        ("a.csv", "\n\n", None, None),
        ("a.csv", "text,label\n", None, "--columns label,text"),
        ("a.csv", "text,label\na,1\nb,2,3\n", 3, "quotes"),
        ("a.csv", 'text,label\n"a\nb",1\nb\n', 4, "missing"),
        ("a.tsv", "text\tlabel\na\t1\nb\tc\t1\n", 3, "\\t"),
        ("a.tsv", "text\tlabel\na\t1\nb;1\n", 3, "--separator ';'"),
        ("a.csv", "text,text\na,1\n", 1, "--columns label,text"),
        ("a.csv", "text,\na,1\n", 1, "--columns label,text"),
        ("a.tsv", "gj04\t1\t\tA sentence.\n", 1, "--columns name1,name2,name3,name4"),
        ("a.csv", "text;label\na;1\n", 1, "--separator ';'"),
        ("a.csv", "text\tlabel\na\t1\n", 1, "--separator '\\t'"),
        ("a.csv", "text|label\na|1\n", 1, "--separator '|'"),
        ("a.tsv", "text,label\na,1\n", 1, "--separator ','"),
        ("a.csv", 'text,label\na,1\nb,"open\nc,1\nd,1\n', 3, '""'),
        ("a.csv", 'text,label\n"fine\nfield","opens\nc,1\n', 3, '""'),
        ("a.csv", 'text,label\n"open,1\nb,1\n"good",1\n', 2, '""'),
        ("a.csv", 'text,label\na,1\n"say "hi" now",1\n', 3, '""'),
        ("a.csv", 'text,label\n"a"" b,1\n', 2, '""'),
        ("a.csv", "text,label\na\rb,1\n", 2, "tr"),
    ],
)
def test_faults_of_tables_by_line(tmp_path, name, content, line, hint):
    path = write(tmp_path / name, content)
    error = fails(read_delimited, path)
    assert error.where == (f"{path}:{line}" if line else str(path))
    assert (hint in error.hint) if hint else error.hint is None


def test_rows_of_other_widths_are_refused_or_kept_as_none(tmp_path):
    whole = [f"{number}\ta text\t1" for number in range(18)]
    broken = ["18\tone line of", "a text\t0"]
    path = write(tmp_path / "a.tsv", "\n".join(["id\ttext\tlabel", *whole[:9], *broken, *whole[9:]]) + "\n")
    examples = read_delimited(path, keep_broken=True)
    assert examples.columns["id"] == [*map(str, range(9)), None, None, *map(str, range(9, 18))]
    assert {examples.columns[name][row] for name in ("text", "label") for row in (9, 10)} == {None}
    assert examples.where(9) == fails(read_delimited, path).where == f"{path}:11"


def test_an_explicit_separator_permits_one_column_of_any_name(tmp_path):
    assert read_delimited(write(tmp_path / "a.csv", "text; or not\na\n"), separator=",").columns == {"text; or not": ["a"]}


def test_the_row_numbers_that_pandas_writes(tmp_path):
    assert list(read_delimited(write(tmp_path / "a.csv", ",text\n0,a\n")).columns) == ["Unnamed: 0", "text"]


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(ANY, ANY, ANY), min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans())
def test_what_the_csv_module_writes_comes_back(rows, end, mark):
    lines, out = [], io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b", "c"])
    for row in rows:
        lines.append(out.getvalue().count("\n") + 1)
        writer.writerow(row)
    examples = parsed(parse_delimited, out.getvalue(), "x.csv")
    assert list(zip(*examples.columns.values(), strict=True)) == rows
    assert list(examples.lines) == lines


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]))
def test_tsv_comes_back(rows, end):
    text = end.join("\t".join(row) for row in [("a", "b"), *rows]) + end
    examples = parsed(parse_delimited, text, "x.tsv")
    assert list(zip(*examples.columns.values(), strict=True)) == rows
    assert list(examples.lines) == list(range(2, len(rows) + 2))


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(PLAIN, min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_lines_come_back(texts, end, last):
    text = end.join(texts) + (end if last or texts[-1] == "" else "")
    examples = parsed(parse_lines, text, "x")
    assert examples.columns == {"text": texts}
    assert list(examples.lines) == list(range(1, len(texts) + 1))


@settings(max_examples=200, deadline=None)
@given(content=st.text(alphabet='ab",;\n\r ', max_size=30))
def test_a_csv_file_is_read_as_the_csv_module_reads_it_or_refused_by_a_line_it_has(content):
    content = "x,y\n" + content
    try:
        examples = parsed(parse_delimited, content, "f.csv")
    except DataError as error:
        line = re.fullmatch(r"f\.csv(?::(\d+))?", error.where)
        assert line
        assert line[1] is None or 1 <= int(line[1]) <= content.count("\n") + 1
    else:
        rows = [row for row in csv.reader(io.StringIO(content, newline="\n"), strict=True) if row]
        assert [list(row) for row in zip(*examples.columns.values(), strict=True)] == rows[1:]


# --- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "line", "what", "hint"),
    [
        ("text,label\nok,1\ncaf\u00e9 noir,1\n".encode("latin-1"), 3, ("0xe9", "byte 4", "Latin-1"), "iconv -f ISO-8859-1"),
        ("text,label\n\u2018hi\u2019,1\n".encode("cp1252"), 2, ("0x91", "byte 1", "WINDOWS-1252"), "iconv -f WINDOWS-1252"),
        ("text,label\n\u8fd9\u4e2a\u5bbe\u9986\u6bd4\u8f83\u9648\u65e7,1\n".encode("gbk"), 2, ("GB18030",), "iconv -f GB18030"),
        ("text,label\nhi,1\n".encode("utf-16"), 1, ("UTF-16", "0xff 0xfe"), "iconv -f UTF-16 "),
        ("text,label\nhi,1\n".encode("utf-16-le"), 1, ("UTF-16LE",), "iconv -f UTF-16LE"),
        ("text,label\nhi,1\n".encode("utf-16-be"), 1, ("UTF-16BE",), "iconv -f UTF-16BE"),
        (b"text,label\nab\0c,1\n", 2, ("NUL", "byte 3"), "tr -d"),
        (b"\xef\xbb\xbfa\xff,1\n", 1, ("0xff", "byte 5"), "iconv"),
        ("text,label\n\u00e9t\u00e9,1\n".encode() + b"bad \xe9,1\n", 3, ("0xe9", "byte 5"), "iconv -c"),
        ("text,label\nhi \u8fd9".encode()[:-1], 2, ("ends inside a character",), "cut off"),
    ],
)
def test_bytes_that_are_not_utf8_text(tmp_path, data, line, what, hint):
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.txt"):
        path = write(tmp_path / name, data)
        error = fails(read_file, path)
        assert all(part in error.what for part in what), error.what
        assert error.where == f"{path}:{line}"
        assert hint in error.hint


def test_extensions_below_the_packing():
    assert {name: extension(name) for name in ("A.CSV.gz", "a.csv.XZ", "a.xz", "a.tsv", "d.gz/a")} == {
        "A.CSV.gz": ".csv",
        "a.csv.XZ": ".csv",
        "a.xz": "",
        "a.tsv": ".tsv",
        "d.gz/a": "",
    }
    assert [unpacked_name(name) for name in ("A.CSV.gz", "seq.in.Xz", "label")] == ["A.CSV", "seq.in", "label"]


# --- JSON ----------------------------------------------------------------------------------------------------------


def test_jsonl_keeps_types_and_misses_nothing_silently(tmp_path):
    rows = [{"text": "NA", "label": 1}, {"text": "", "score": 0.5}, {"label": None, "tags": ["a"], "on": True}]
    text = "\ufeff" + json.dumps(rows[0]) + "\r\n\r\n" + json.dumps(rows[1]) + "\n" + json.dumps(rows[2])
    examples = read_file(write(tmp_path / "a.jsonl", text))
    assert examples.columns == {
        "text": ["NA", "", None],
        "label": [1, None, None],
        "score": [None, 0.5, None],
        "tags": [None, None, ["a"]],
        "on": [None, None, True],
    }
    assert type(examples.columns["on"][2]) is bool
    assert type(examples.columns["label"][0]) is int
    assert list(examples.lines) == [1, 3, 4]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | PLAIN | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=2), JSON, min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    ),
    indent=st.sampled_from([None, 1, 3]),
    ascii=st.booleans(),
)
def test_a_list_of_objects_reads_as_the_same_objects_a_line_each(rows, indent, ascii):
    listed = "[\n" + ",\n".join(json.dumps(row, indent=indent, ensure_ascii=ascii) for row in rows) + "\n]\n"
    by_line = parsed(parse_jsonl, "\n".join(json.dumps(row, ensure_ascii=ascii) for row in rows), "x.jsonl")
    examples = parsed(parse_jsonl, listed, "x.json")
    assert examples.columns == by_line.columns
    assert list(by_line.lines) == list(range(1, len(rows) + 1))
    names = list(examples.columns)
    assert [{n: examples.columns[n][i] for n in names} for i in range(len(rows))] == [
        {n: row.get(n) for n in names} for row in rows
    ]
    begins, line = [], 2
    for row in rows:
        begins.append(line)
        line += json.dumps(row, indent=indent, ensure_ascii=ascii).count("\n") + 1
    assert list(examples.lines) == begins


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", None),
        ("[]", None),
        ('{"a": 1}\n{"a": 2}\n{"a": "tex', 3),
        ('{"a": 1}\n\n{"a": 1,\n{"a": 2}\n', 3),
        ('{"a": 1}\n{"a" 1}\n', 2),
        ('{"a": 1}\n[1]\n', 2),
        ('{"a": 1}\n7\n', 2),
        ('[{"a": 1},\n {"a": 2},\n {"a": }]', 3),
        ('[{"a": 1},\n {"a": 2}\n', 2),
        ('[{"a": 1},\n {"a": 2}\n {"a": 2}]', 3),
        ('[{"a": 1},\n\n ["b"]]', 3),
        ('[{"a": 1}]\nmore', 2),
        ('[{"a": 1},]', 1),
        ('{"a": "\\ud83d"}\n', 1),
        ('{"a": {"\\uD83D": []}}\n', 1),
        ('[{"a": 1},\n{"a": "\\uDE00"}]', 2),
        ("[" * 100_000, 1),
    ],
)
def test_faults_of_json_by_line(tmp_path, content, line):
    path = write(tmp_path / "a.json", content)
    assert fails(read_file, path).where == (f"{path}:{line}" if line else str(path))


def test_whole_surrogate_pairs_are_text():
    assert parsed(parse_jsonl, '{"a": "\\ud83d\\ude00"}', "x").columns == {"a": ["\U0001f600"]}


def test_select_keeps_places_and_label_names():
    examples = Examples(columns={"a": [1, 2, 3]}, source="f", lines=[2, 4, 7], label_names={"a": ("x", "y")})
    chosen = examples.select([2, 0])
    assert (chosen.columns, chosen.where(0), chosen.label_names) == ({"a": [3, 1]}, "f:7", {"a": ("x", "y")})


# --- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["sentence", "label"], ("sentence", None, "label")),
        (["Premise", "Hypothesis", "Label"], ("Premise", "Hypothesis", "Label")),
        (["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], ("question1", "question2", "is_duplicate")),
        (["Text", "Sentence 2", "gold_label"], ("Text", "Sentence 2", "gold_label")),
        (["review", "kind"], ("review", None, "kind")),
        (["title", "body", "team"], (None, None, "team")),
        (["text", "label", "category"], ("text", None, None)),
        (["a", "b"], (None, None, None)),
    ],
)
def test_columns_guessed_where_there_is_no_doubt(names, found):
    assert tuple(guess_column(names, role) for role in ("text", "text_pair", "label")) == found


def test_a_missing_column():
    examples = Examples(columns={"text": ["a"], "label": ["b"]}, source="f.csv", lines=[2])
    assert require_column(examples, "label", option="--label") == "label"
    error = fails(require_column, examples, "lable", option="--label")
    assert str(error) == "no column 'lable'; columns: text, label (f.csv)"
    assert error.hint == "did you mean label? set it with --label label"
    assert "did you mean text?" in fails(require_column, examples, "Text", option="--text").hint
    assert "--label" in fails(require_column, examples, "zzz", option="--label").hint


def test_the_line_by_which_excel_names_its_separator(tmp_path):
    path = write(tmp_path / "a.csv", "sep=;\r\ntext;label\r\ngood, really;1\r\n")
    for separator in (None, ";"):
        examples = read_delimited(path, separator=separator)
        assert (examples.columns, [*examples.lines]) == ({"text": ["good, really"], "label": ["1"]}, [3])
    assert read_delimited(write(tmp_path / "a.tsv", "sep=\nb\n")).columns == {"sep=": ["b"]}


def test_an_empty_line_of_one_column_is_a_row(tmp_path):
    for name in ("a.csv", "a.tsv"):
        assert read_delimited(write(tmp_path / name, "text\ngood\n\nbad\n"), separator=",").columns == {
            "text": ["good", "", "bad"]
        }
    examples = read_delimited(write(tmp_path / "a.csv", "text\n\ngood\n\n\n"))
    assert (examples.columns, [*examples.lines]) == ({"text": ["", "good"]}, [2, 3])
    assert read_delimited(write(tmp_path / "a.csv", 'text\ngood\n""\n')).columns == {"text": ["good", ""]}, (
        "as pandas writes it"
    )
    assert read_delimited(write(tmp_path / "a.csv", "a,b\n1,2\n\n3,4\n")).columns == {"a": ["1", "3"], "b": ["2", "4"]}


@pytest.mark.parametrize(
    ("value", "options", "found"),
    [
        ("a ", {"may_be_empty": False}, "a "),
        (" ", {"may_be_empty": True}, " "),
        (7, {"may_be_empty": False, "may_be_number": True}, "7"),
        (0.5, {"may_be_empty": True, "may_be_number": True}, "0.5"),
    ],
)
def test_a_value_as_text(value, options, found):
    assert text_of(value, Examples({"t": [value]}, "f.csv", [2]), 0, "t", **options) == found


@pytest.mark.parametrize(
    ("value", "options", "what"),
    [
        (None, {"may_be_empty": True}, "column 't' holds nothing; expected text"),
        (7, {"may_be_empty": True}, "column 't' holds 7; expected text"),
        (True, {"may_be_empty": True, "may_be_number": True}, "column 't' holds True; expected text"),
        (["a"], {"may_be_empty": True, "may_be_number": True}, "column 't' holds ['a']; expected text"),
        (" \n", {"may_be_empty": False}, "the text in column 't' is empty"),
    ],
)
def test_a_value_that_is_no_text(value, options, what):
    error = fails(text_of, value, Examples({"t": ["a", value]}, "f.csv", [2, 5]), 1, "t", **options)
    assert (error.what, error.where, error.hint) == (what, "f.csv:5", "correct or remove the row")


@pytest.mark.parametrize(
    "names",
    [["ham", "Go until jurong point"], ["good", "1"], ["neutral", "\u4ed6\u8bf4\uff0c\u5988\u5988\u3002"], ["x", "Fine, then"]],
)
def test_a_first_row_taken_for_a_header_is_recognized(names):
    examples = Examples(columns={name: ["a"] for name in names}, source="f.tsv", lines=[2])
    assert "--columns label,text" in fails(require_column, examples, "sentiment_of_it", option="--label").hint


# --- real files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("GLUE/SST-2/train.tsv.gz", 67349),
        ("GLUE/MRPC/train.tsv.gz", 3668),
        ("GLUE/MRPC/test.tsv.gz", 1725),
        ("GLUE/STS-B/train.tsv.gz", 5749),
        ("GLUE/RTE/train.tsv.gz", 2490),
        ("OCNLI/dev.json.gz", 3000),
        ("LingNLI/val.jsonl.gz", 2425),
        ("SNIPS/train/seq.in.gz", 13084),
    ],
)
def test_public_files_have_their_official_number_of_rows(data_dir, name, rows):
    examples = read_file(data_dir / name)
    assert len(examples) == rows
    assert {len(values) for values in examples.columns.values()} == {rows}
    assert not next(iter(examples.columns)).startswith("\ufeff")


def test_sms_spam_has_no_header(data_dir):
    examples = read_file(data_dir / "SMSSpam/SMSSpamCollection.gz", columns=("label", "text"))
    assert len(examples) == 5574
    assert {label: examples.columns["label"].count(label) for label in ("ham", "spam")} == {"ham": 4827, "spam": 747}
    header_lost = read_file(data_dir / "SMSSpam/SMSSpamCollection.gz")
    assert "--columns label,text" in fails(require_column, header_lost, "label", option="--label").hint


def test_67_thousand_rows(data_dir):
    found = read_file(data_dir / "GLUE/SST-2/train.tsv.gz")
    with gzip.open(data_dir / "GLUE/SST-2/train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[1:-1]
    assert len(found) == 67349
    assert [f"{text}\t{label}" for text, label in zip(found.columns["sentence"], found.columns["label"])] == lines
